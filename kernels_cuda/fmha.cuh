// What both forms of fmha share: who computes what, and the softmax between the two products. The contract is references/fmha.py.
#pragma once
#include "common.cuh"

static const int kTile = 128;               // queries of a block, keys of a tile
static const int kQk = 192, kV = 128;       // columns of a query and a key, of a value

struct Sizes {
  int t_q, t_kv, h, causal;
  int64_t wv, ldv;

  __device__ __forceinline__ int seen(int row) const {  // S2
    const int count = causal ? min(max(t_kv - t_q + 1 + row, 0), t_kv) : t_kv;
    return PLANT(1, count, max(count - 1, 0));  // MISTAKE 1 = S2.visible:one_less
  }
  __device__ __forceinline__ int tiles(int block) const { return (seen(kTile * block + kTile - 1) + kTile - 1) / kTile; }  // S2
};

// Which block of queries of which head. The longest first; heads in groups whose keys and values the L2 holds together.
struct Work {
  int head, block;

  __device__ __forceinline__ Work(const Sizes& n, int group) {
    const int blocks = (n.t_q + kTile - 1) / kTile, item = blockIdx.x;
    const int first = item / (group * blocks) * group, heads = min(group, n.h - first), within = item - first * blocks;
    head = first + within % heads, block = blocks - 1 - within / heads;
  }
};

// What a thread keeps of its two queries, `row` and row + 8 of the block: both forms hold scores and outputs in the fragments of the tensor core,
// element 4i + 2r + e being column 8i + 2 (lane % 4) + e of query r.
struct Queries {
  float m[2] = {-0x1.fffffep+127f, -0x1.fffffep+127f}, l[2] = {0.0f, 0.0f}, acc[64] = {};  // S2
  int row, seen[2], lane;

  __device__ __forceinline__ Queries(const Sizes& n, const Work& at, int first) {
    lane = threadIdx.x % 32, row = first + lane / 4;
    for (int r = 0; r < 2; ++r) seen[r] = n.seen(kTile * at.block + row + 8 * r);
  }

  __device__ __forceinline__ void hide(float (&s)[64], int start) const {  // S3
    if (start + kTile <= seen[0]) return;
#pragma unroll
    for (int i = 0; i < 64; ++i)
      if (start + 8 * (i / 4) + 2 * (lane % 4) + i % 2 >= seen[i / 2 % 2]) s[i] = __int_as_float(0xff800000);
  }

  // Scores become weights; `alpha` is what the weights so far shrink by.
  __device__ __forceinline__ void weigh(float (&s)[64], float c, float (&alpha)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float n = m[r], sum = 0.0f;
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) n = fmaxf(n, fmaxf(s[i], s[i + 1]));
      n = fmaxf(n, __shfl_xor_sync(~0u, n, 1));
      n = fmaxf(n, __shfl_xor_sync(~0u, n, 2));
      alpha[r] = ex2(__fmul_rn(__fsub_rn(m[r], n), c));  // S4
      m[r] = n;
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4)
#pragma unroll
        for (int e = i; e < i + 2; ++e) {
          s[e] = ex2(__fmul_rn(__fsub_rn(s[e], n), c));  // S4
          sum = e == 2 * r ? s[e] : __fadd_rn(sum, s[e]);  // S5: +0 and the first, which is no -0
        }
      l[r] = PLANT(2, __fmaf_rn(l[r], alpha[r], sum), __fadd_rn(__fmul_rn(l[r], alpha[r]), sum));  // S5; MISTAKE 2 = S5.fma:unfused
    }
  }

  __device__ __forceinline__ void rescale(const float (&alpha)[2]) {  // S7
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] = __fmul_rn(acc[i], alpha[i / 2 % 2]);
  }

  // The weights of keys 16k .. 16k + 15 are registers 4k .. 4k + 3: the first operand of a product.
  __device__ __forceinline__ void land(const float (&s)[64], uint32_t (&p)[32], const Sizes& n, const Work& at, int tile) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = land_pair(s[2 * i], s[2 * i + 1]);  // S6
#ifdef TRACE
    int64_t visit = tile;
    for (int block = 0; block < at.block; ++block) visit += n.tiles(block);
    for (int i = 0; i < 64; ++i) {
      const int64_t query = (visit * n.h + at.head) * kTile + row + 8 * (i / 2 % 2);
      LANDING(6, query * kTile + 8 * (i / 4) + 2 * (lane % 4) + i % 2, bf(s[i]));
    }
#endif
  }

  template <bool wide>
  __device__ __forceinline__ void store(bf16* o, float* lse, float scale, const Sizes& n, const Work& at) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = __fadd_rn(l[r], __shfl_xor_sync(~0u, l[r], 1));  // S8
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));      // S8
      const int query = kTile * at.block + row + 8 * r;
      if (query >= n.t_q) continue;
      const float divisor = fmaxf(total, 1.0f);
      bf16* const to = o + ((int64_t)query * n.h + at.head) * kV + 2 * (lane % 4);
      if (lane % 4 == 0) lse[(int64_t)at.head * n.t_q + query] = nan32(__fmaf_rn(m[r], scale, logf(total)));  // S10
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float a = acc[4 * i + 2 * r], b = acc[4 * i + 2 * r + 1];
        const float x = PLANT(3, __fdiv_rn(a, divisor), __fmul_rn(a, __fdiv_rn(1.0f, divisor)));  // S9; MISTAKE 3 = S9.div:reciprocal
        const float y = PLANT(3, __fdiv_rn(b, divisor), __fmul_rn(b, __fdiv_rn(1.0f, divisor)));  // S9
        if (wide) *reinterpret_cast<uint32_t*>(to + 8 * i) = land_pair(x, y);
        else to[8 * i] = bf(x), to[8 * i + 1] = bf(y);
      }
    }
  }
};
