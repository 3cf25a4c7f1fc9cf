// mla_paged: absorbed attention over a paged latent cache. The contract is references/mla_paged.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math. In two_pass and three_sweep a block of 128 threads serves one head of one row; mma is in mla_mma.cuh.
#include "mla_mma.cuh"

static const int kThreads = 128, kWarps = 4, kPage = 64, kLatent = 512, kRow = 576, kNope = 128, kQuery = 192, kValue = 128;
static const float kLowest = -0x1.fffffep+127f;  // below every finite score, and finite

__device__ alignas(16) const bf16 zero_row[kRow] = {};  // what a negative page reads as

struct Paged {
  const bf16 *q, *w_kv_b, *cache;
  const int32_t *table, *context;
  bf16 scale;
  int64_t layer_offset, page_stride;
  bf16* o;
  int64_t heads, pages;

  __device__ __forceinline__ int64_t row() const { return blockIdx.x / heads; }
  __device__ __forceinline__ int64_t head() const { return blockIdx.x % heads; }
  __device__ __forceinline__ const bf16* key(int64_t t) const {  // 64 bits: a pool can be larger than 2^31 elements
    const int32_t page = table[row() * pages + t / kPage];
    return page < 0 ? zero_row : cache + layer_offset + page * page_stride + t % kPage * kRow;
  }
  __device__ __forceinline__ int64_t traced(int64_t t) const {  // of a score: rows differ in length and lie one after the other
    int64_t before = head() * context[row()] + t;
    for (int64_t i = 0; i < row(); ++i) before += heads * context[i];
    return before;
  }
};

// Two neighbours: in one access where the base lies on 4 bytes, which every pair then does.
template <bool even>
__device__ __forceinline__ float2 pair(const bf16* p) {
  return even ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(p)) : make_float2(f(p[0]), f(p[1]));
}

// The sum of the block's terms, to every thread: down(16..1) a warp, then the warps' sums ascending.
__device__ __forceinline__ float block_sum(float term) {
  __shared__ float sums[kWarps];
  for (int offset = 16; offset >= 1; offset /= 2) term = __fadd_rn(term, __shfl_down_sync(kWarp, term, offset));
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = term;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) total = __fadd_rn(total, sums[warp]);
  __syncthreads();
  return total;
}

__device__ __forceinline__ float block_max(float term) {
  __shared__ float largest[kWarps];
  for (int offset = 16; offset >= 1; offset /= 2) term = fmaxf(term, __shfl_xor_sync(kWarp, term, offset));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = term;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) term = fmaxf(term, largest[warp]);
  __syncthreads();
  return term;
}

// q_abs of the block's head: four latents a thread, then the rope half as it is.
__device__ void absorb(const Paged& a, float (&q_abs)[kRow]) {
  const int own = threadIdx.x;
  const bf16* const q = a.q + (int64_t)blockIdx.x * kQuery;
  const bf16* const uk = a.w_kv_b + a.head() * (kNope + kValue) * kLatent;
  float acc[kLatent / kThreads] = {};
  for (int d = 0; d < kNope; ++d)
    for (int i = 0; i < kLatent / kThreads; ++i)
      acc[i] = __fmaf_rn(f(q[d]), f(uk[d * kLatent + own + i * kThreads]), acc[i]);  // S1
  for (int i = 0; i < kLatent / kThreads; ++i) {
    const bf16 landed = bf(acc[i]);                                                  // S1
    LANDING(1, (int64_t)blockIdx.x * kLatent + own + i * kThreads, landed);
    q_abs[own + i * kThreads] = f(landed);
  }
  if (own < kRow - kLatent) q_abs[kLatent + own] = f(q[kNope + own]);
  __syncthreads();
}

__device__ __forceinline__ float score(const Paged& a, int64_t t, float dot) {
  const bf16 landed = bf(dot);                     // S2
  const bf16 scaled = __hmul_rn(landed, a.scale);  // S3
  LANDING(2, a.traced(t), landed);
  LANDING(3, a.traced(t), scaled);
  return f(scaled);
}

__device__ __forceinline__ float probability(const Paged& a, int64_t t, float score, float m, float den) {
  const bf16 p = bf(__fdiv_rn(expf(__fsub_rn(score, m)), den));  // S5
  LANDING(5, a.traced(t), p);
  return f(p);
}

// The rest of a head, once its maximum and denominator are known. `scores(first, count)` leaves the scores of `count` keys in p.
template <bool even, class Scores>
__device__ void attend(const Paged& a, float m, float den, float (&p)[kThreads], int step, Scores scores) {
  __shared__ float o_lat[kLatent];
  const int own = threadIdx.x;
  const int64_t context = a.context[a.row()], index = blockIdx.x;
  if (own == 0) {
    KEPT(4, 2 * a.row() * a.heads + a.head(), m);
    KEPT(4, (2 * a.row() + 1) * a.heads + a.head(), den);
  }
  float2 low = {}, high = {};
  for (int64_t first = 0; first < context; first += step) {
    const int count = (int)min((int64_t)step, context - first);
    scores(first, count);
    if (own < count) p[own] = probability(a, first + own, p[own], m, den);
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const bf16* const c = a.key(first + i) + 2 * own;
      const float2 x = pair<even>(c), y = pair<even>(c + kLatent / 2);
      low.x = __fmaf_rn(p[i], x.x, low.x), low.y = __fmaf_rn(p[i], x.y, low.y);      // S6
      high.x = __fmaf_rn(p[i], y.x, high.x), high.y = __fmaf_rn(p[i], y.y, high.y);  // S6
    }
    __syncthreads();
  }
  const float sums[] = {low.x, low.y, high.x, high.y};
  for (int i = 0; i < 4; ++i) {
    const int j = 2 * own + i % 2 + i / 2 * kLatent / 2;
    const bf16 landed = bf(sums[i]);  // S6
    LANDING(6, index * kLatent + j, landed);
    o_lat[j] = f(landed);
  }
  __syncthreads();
  const bf16* const uv = a.w_kv_b + (a.head() * (kNope + kValue) + kNope + own) * kLatent;
  float acc = 0.0f;
  for (int j = 0; j < kLatent; j += 2) {
    const float2 w = pair<even>(uv + j);
    acc = __fmaf_rn(w.y, o_lat[j + 1], __fmaf_rn(w.x, o_lat[j], acc));  // S7
  }
  a.o[index * kValue + own] = bf(acc);  // S7
}

// Retired: each sweep computes the scores anew, a key a thread.
template <bool even>
__global__ void __launch_bounds__(kThreads) three_sweep(Paged a) {
  __shared__ float q_abs[kRow], p[kThreads];
  const int own = threadIdx.x;
  const int64_t context = a.context[a.row()];
  absorb(a, q_abs);
  const auto scored = [&](int64_t t) {
    const bf16* const c = a.key(t);
    float dot = 0.0f;
    for (int d = 0; d < kRow; ++d)
      dot = PLANT(3, __fmaf_rn(q_abs[d], f(c[d]), dot), __fadd_rn(dot, __fmul_rn(q_abs[d], f(c[d]))));  // S2
      // MISTAKE 3 = three_sweep/S2.chain_fma:unfused_steps
    return score(a, t, dot);
  };
  float m = kLowest, sum = 0.0f;
  for (int64_t t = own; t < context; t += kThreads) m = fmaxf(m, scored(t));  // S4
  m = block_max(m);                                                           // S4
  for (int64_t t = own; t < context; t += kThreads) {
    const float below = __fsub_rn(scored(t), m);                              // S4
    sum = __fadd_rn(sum, PLANT(4, expf(below), __expf(below)));               // S4; MISTAKE 4 = three_sweep/S4.exp:fast_exp
  }
  const float den = block_sum(sum);                                           // S4
  attend<even>(a, m, den, p, kThreads, [&](int64_t first, int count) {
    if (own < count) p[own] = scored(first + own);
  });
}

// A warp a key, page by page, with a running maximum; the second pass computes the scores again, bit for bit.
template <bool even>
__global__ void __launch_bounds__(kThreads) two_pass(Paged a) {
  __shared__ float q_abs[kRow], p[kThreads];
  const int own = threadIdx.x, warp = own / 32, lane = own % 32;
  const int64_t context = a.context[a.row()];
  absorb(a, q_abs);
  float2 q[kRow / kPage];
  for (int k = 0; k < kRow / 64; ++k) q[k] = make_float2(q_abs[2 * lane + 64 * k], q_abs[2 * lane + 64 * k + 1]);
  const auto scores = [&](int64_t first, int count) {
    for (int i = warp; i < count; i += kWarps) {
      const bf16* const c = a.key(first + i) + 2 * lane;
      float dot = 0.0f;
      for (int k = 0; k < kRow / 64; ++k) {
        const float2 x = pair<even>(c + 64 * k);
        const float y = __fmul_rn(q[k].y, x.y);                                                     // S2
        const float s = PLANT(1, __fmaf_rn(q[k].x, x.x, y), __fadd_rn(__fmul_rn(q[k].x, x.x), y));  // S2
        dot = __fadd_rn(dot, s);  // S2; MISTAKE 1 = two_pass/S2.warp_dot.fma:unfused
      }
      for (int offset = 16; offset >= 1; offset /= 2) dot = __fadd_rn(dot, __shfl_down_sync(kWarp, dot, offset));  // S2
      if (lane == 0) p[i] = score(a, first + i, dot);
    }
    __syncthreads();
  };
  float m = kLowest, den = 0.0f;
  for (int64_t first = 0; first < context; first += kPage) {
    const int count = (int)min((int64_t)kPage, context - first);
    scores(first, count);
    const float top = fmaxf(m, block_max(own < count ? p[own] : kLowest));         // S4
    const float sum = block_sum(own < count ? expf(__fsub_rn(p[own], top)) : 0.0f);  // S4
    const float shrink = expf(__fsub_rn(m, top));                                  // S4
    den = PLANT(2, __fadd_rn(__fmul_rn(den, shrink), sum), __fmaf_rn(den, shrink, sum));  // S4; MISTAKE 2 = two_pass/S4.add:fused
    m = top;
  }
  attend<even>(a, m, den, p, kPage, scores);
}

// q bf16 [b, heads, 192], w_kv_b bf16 [heads, 256, 512], cache bf16 [pool], table i32 [b, pages], context i32 [b] -> o bf16 [b, heads, 128].
// Table and context are checked on the host before (`refuse` of the contract). form 0: mma, 1: two_pass, 2: three_sweep.
extern "C" int mla_paged(const bf16* q, const bf16* w_kv_b, const bf16* cache, const int32_t* table, const int32_t* context, float scale,
                         int64_t layer_offset, int64_t page_stride, bf16* o, int64_t b, int64_t heads, int64_t pool, int64_t pages, int form,
                         cudaStream_t stream) {
  REQUIRE(10, b >= 1);
  REQUIRE(11, heads >= 1 && heads <= INT32_MAX / b);
  REQUIRE(12, pool >= 0);
  REQUIRE(13, pages >= 1);
  REQUIRE(1, q);
  REQUIRE(2, w_kv_b);
  REQUIRE(3, cache || pool == 0);
  REQUIRE(4, table);
  REQUIRE(5, context);
  REQUIRE(7, layer_offset >= 0 && layer_offset % 2 == 0);
  REQUIRE(8, page_stride >= kPage * kRow && page_stride % 2 == 0);
  REQUIRE(9, o);
  REQUIRE(14, form >= 0 && form <= 2);
  const bf16 factor = __float2bfloat16_rn(scale);
  if (form == 0) return mla_mma(q, w_kv_b, cache, table, context, factor, layer_offset, page_stride, o, b, heads, pages, stream);
  const Paged a = {q, w_kv_b, cache, table, context, factor, layer_offset, page_stride, o, heads, pages};
  const bool even = (reinterpret_cast<uintptr_t>(w_kv_b) | reinterpret_cast<uintptr_t>(cache)) % 4 == 0;
  auto* const kernel = form == 1 ? (even ? two_pass<true> : two_pass<false>) : (even ? three_sweep<true> : three_sweep<false>);
  kernel<<<(unsigned)(b * heads), kThreads, 0, stream>>>(a);
  return (int)cudaGetLastError();
}
