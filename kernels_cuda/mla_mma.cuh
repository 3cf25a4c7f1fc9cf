// The mma form of mla_paged: four kernels on tensor cores. The contract is references/_mla_mma.py; S tags are its steps.
//   absorb: q_abs of every (row, head)            stats:  maximum and denominator of a split of a context
//   attend: a split's sum of probability times row   expand: o_lat from the splits, then o
// stats and attend make the same scores by the same instructions; none is stored. A block of theirs has 96 heads, two warpgroups of 48 for the
// scores, and walks the pages of one split. Transposed products, tokens or latent columns by heads, waste nothing where heads are 96.
#pragma once
#include <float.h>

#include "heads.cuh"

namespace mla {

constexpr int kNope = 128, kV = 128, kLatentWidth = 512, kWidth = 576, kTokens = 64, kGroup = 96, kThreads = 256;
constexpr int kSplits = 128;                       // the most of a context
constexpr int kThird = kTokens * kWidth / 3;       // elements of a third of a page: three slabs of 64 columns
constexpr int kRing = 4;                           // thirds in shared memory
constexpr int kTile = kTokens * 64;                // one such slab
constexpr int kPanel = kGroup * 64;                // 64 columns of the queries, or the probabilities of a page
constexpr size_t kShared = (9 * kPanel + kRing * kThird + kPanel) * sizeof(bf16) + 3 * kGroup * sizeof(float);
constexpr int kRows = 16, kExpandThreads = 512, kPad = 8;  // kPad: elements after a row, so that eight rows lie in different banks
constexpr size_t kExpandShared = (kV + kRows) * (kLatentWidth + kPad) * sizeof(bf16);

struct Operands {
  const bf16 *q, *w, *cache;
  const int32_t *table, *context;
  bf16 scale;
  int64_t layer_offset, page_stride, b, pages;
  int heads, splits;  // splits: as many as the table has room for
  bf16 *o, *q_abs;    // q_abs [b, heads, 576]
  float2* stats;      // maximum, denominator [b, heads, splits]
  float* parts;       // [b, splits, heads, 512]
};

// Pages of a split, by the pages of the context alone. Short contexts come in batches that fill the device; a long one must fill it by itself.
__host__ __device__ inline int split_pages(int n) { return n <= 64 ? 8 : n <= 4 * kSplits ? 4 : (n + kSplits - 1) / kSplits; }
__host__ __device__ inline int pages_of(int context) { return (context + kTokens - 1) / kTokens; }
__host__ __device__ inline int splits_of(int n) { return (n + split_pages(n) - 1) / split_pages(n); }
static inline int most_splits(int64_t pages) { return pages <= 64 ? splits_of((int)pages) : (int)(pages < 4 * kSplits ? ceil_div(pages, 4) : kSplits); }

// What a block of stats and attend works on: pages first .. first + count - 1 of the context of a row, 96 heads from `head` on.
struct Split {
  int64_t row;
  int index, head, heads, context, first, count;
};
__device__ __forceinline__ Split split_of(const Operands& a) {
  Split x;
  x.row = blockIdx.x / a.splits, x.index = blockIdx.x % a.splits;
  x.head = blockIdx.y * kGroup, x.heads = min(kGroup, a.heads - x.head);
  x.context = a.context[x.row];
  const int n = pages_of(x.context), size = split_pages(n);
  x.first = x.index * size, x.count = min(size, n - x.first);
  return x;
}

// The first element of a row's scores in the landings, which lie row after row, heads x context each.
__device__ __forceinline__ int64_t scores_before(const Operands& a, int64_t row) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < row; ++i) tokens += a.context[i];
  return tokens * a.heads;
}

// S1: q_abs = nope x UK, a head and 128 latent columns a block, 16 rows at a time; the first block of a head copies the rope.
template <bool vector>
__global__ void __launch_bounds__(kThreads) absorb(const __grid_constant__ Operands a) {
  __shared__ __align__(16) bf16 uk[kNope][128 + kPad], q[kRows][kNope + kPad];
  const int head = blockIdx.x, column = blockIdx.y * 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  launch_dependents();
  const bf16* const weights = a.w + ((int64_t)head * (kNope + kV)) * kLatentWidth + column;
  for (int e = threadIdx.x; e < kNope * 16; e += kThreads) stage8<vector>(&uk[e / 16][e % 16 * 8], weights + e / 16 * kLatentWidth + e % 16 * 8, true);
  for (int64_t row = 0; row < a.b; row += kRows) {
    const auto query = [&](int r) { return a.q + ((row + r) * a.heads + head) * (kNope + 64); };
    const int r = threadIdx.x / 16, piece = threadIdx.x % 16;
    const bool live = row + r < a.b;
    stage8<vector>(&q[r][piece * 8], query(r) + piece * 8, live);
    if (column == 0 && live)
      for (int i = piece; i < 64; i += 16) a.q_abs[((row + r) * a.heads + head) * kWidth + kLatentWidth + i] = query(r)[kNope + i];
    commit_copies();
    await_copies<0>();
    float d[2][4] = {};
    for (int k = 0; k < kNope; k += 16) {
      uint32_t left[4], right[4];
      load_fragments(left, &q[lane % 16][k + lane / 16 * 8]);
      load_fragments_transposed(right, &uk[k + lane % 16][warp * 16 + lane / 16 * 8]);
      mma16x8(d[0], left, right[0], right[1]);
      mma16x8(d[1], left, right[2], right[3]);
    }
    for (int i = 0; i < 8; i += 2) {
      const int64_t at = row + lane / 4 + i / 2 % 2 * 8;
      const int j = column + warp * 16 + i / 4 * 8 + lane % 4 * 2;
      if (at >= a.b) continue;
      const __nv_bfloat162 two = __floats2bfloat162_rn(d[i / 4][i % 4], d[i / 4][i % 4 + 1]);
      *reinterpret_cast<__nv_bfloat162*>(&a.q_abs[(at * a.heads + head) * kWidth + j]) = two;
      LANDING(1, (at * a.heads + head) * kLatentWidth + j, two.x);
      LANDING(1, (at * a.heads + head) * kLatentWidth + j + 1, two.y);
    }
    __syncthreads();
  }
}

// The queries of 96 heads, zeros behind the last head.
__device__ __forceinline__ void stage_queries(bf16* to, const Operands& a, const Split& x) {
  const int piece = threadIdx.x % 8;
  const bf16* const from = a.q_abs + (x.row * a.heads + x.head) * kWidth + piece * 8;
  for (int column = 0; column < 9; ++column)
    for (int r = threadIdx.x / 8; r < kGroup; r += kThreads / 8)
      stage8<true>(to + column * kPanel + swizzled(r, piece), from + (r < x.heads ? r : 0) * kWidth + column * 64, r < x.heads);
  commit_copies();
}

// Third `step` % 3 of page `step` / 3 of the split, into its place in the ring. Zeros for a page that is none and behind the context.
template <bool vector>
__device__ __forceinline__ void request(bf16* ring, const Operands& a, const Split& x, int step) {
  if (step < 3 * x.count) {
    const int place = x.first + step / 3, page = a.table[x.row * a.pages + place], live = page < 0 ? 0 : x.context - place * kTokens;
    const int piece = threadIdx.x % 8;
    const bf16* const from = a.cache + a.layer_offset + (page < 0 ? 0 : page) * a.page_stride + step % 3 * 192 + piece * 8;
    bf16* const to = ring + step % kRing * kThird;
    for (int r = threadIdx.x / 8; r < kTokens; r += kThreads / 8)
      for (int column = 0; column < 3; ++column)
        stage8<vector>(to + column * kTile + swizzled(r, piece), from + (r < live ? r * kWidth + column * 64 : 0), r < live);
  }
  commit_copies();
}

// S2, a third of it: s [64 tokens, 48 heads of the warpgroup] += cache x queries over 192 columns.
__device__ __forceinline__ void multiply_third(float (&s)[24], const bf16* ring, const bf16* queries, int step) {
  const uint64_t rows = slab(ring + step % kRing * kThird), heads = slab(queries + step % 3 * 3 * kPanel + threadIdx.x / 128 * 48 * kWide);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 12; ++k) product48(s, bytes_on(rows, k / 4 * kTile * 2 + k % 4 * 32), bytes_on(heads, k / 4 * kPanel * 2 + k % 4 * 32));
  wgmma_commit();
}

// S2, S3: the landed, scaled scores of a page; -inf behind the context.
template <bool trace>
__device__ __forceinline__ void land_scores(float (&s)[24], const Operands& a, const Split& x, int page) {
  const int lane = threadIdx.x % 32, token = (x.first + page) * kTokens + threadIdx.x / 32 % 4 * 16 + lane / 4;
  const __nv_bfloat162 scale = __halves2bfloat162(a.scale, a.scale);
#pragma unroll
  for (int i = 0; i < 24; i += 2) {
    const int t = token + i / 2 % 2 * 8;
    const __nv_bfloat162 dot = __floats2bfloat162_rn(s[i], s[i + 1]), scl = __hmul2_rn(dot, scale);
    s[i] = t < x.context ? f(scl.x) : -INFINITY, s[i + 1] = t < x.context ? f(scl.y) : -INFINITY;
#ifdef TRACE
    const int head = threadIdx.x / 128 * 48 + i / 4 * 8 + lane % 4 * 2;
    for (int e = 0; trace && e < 2 && head + e < x.heads && t < x.context; ++e) {
      const int64_t at = scores_before(a, x.row) + (int64_t)(x.head + head + e) * x.context + t;
      LANDING(2, at, e ? dot.y : dot.x);
      LANDING(3, at, e ? scl.y : scl.x);
    }
#endif
  }
}

// S4: a thread's running maximum and denominator of each of its 12 heads, then those of the split.
struct Softmax {
  float top[12], den[12];
  __device__ __forceinline__ Softmax() {
    for (int c = 0; c < 12; ++c) top[c] = -FLT_MAX, den[c] = 0.0f;
  }
  __device__ __forceinline__ void take(const float (&s)[24]) {
#pragma unroll
    for (int c = 0; c < 12; ++c) {
      const float first = s[c / 2 * 4 + c % 2], second = s[c / 2 * 4 + 2 + c % 2], now = fmaxf(top[c], fmaxf(first, second));
      const float both = __fadd_rn(expf(__fsub_rn(first, now)), expf(__fsub_rn(second, now))), fade = expf(__fsub_rn(top[c], now));
      den[c] = PLANT(5, __fadd_rn(__fmul_rn(den[c], fade), both), __fmaf_rn(den[c], fade, both));  // MISTAKE 5 = mma/S4.softmax.split_softmax.add#2:fused
      top[c] = now;
    }
  }
  // `room` holds 8 x 48 floats. Threads below 96 get their head's.
  __device__ __forceinline__ float2 finish(float* room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto own = [&](int c) { return warp * 48 + c / 2 * 8 + lane % 4 * 2 + c % 2; };
    const auto others = [&](int w, int column) { return room[(warp / 4 * 4 + w) * 48 + column]; };
    float most[12];
    for (int c = 0; c < 12; ++c) {
      most[c] = top[c];
      for (int offset = 4; offset < 32; offset *= 2) most[c] = fmaxf(most[c], __shfl_xor_sync(~0u, most[c], offset));
      if (lane < 4) room[own(c)] = most[c];
    }
    __syncthreads();
    for (int c = 0; c < 12; ++c)
      for (int w = 0; w < 4; ++w) most[c] = fmaxf(most[c], others(w, c / 2 * 8 + lane % 4 * 2 + c % 2));
    __syncthreads();
    for (int c = 0; c < 12; ++c) {
      float sum = __fmul_rn(den[c], expf(__fsub_rn(top[c], most[c])));
      for (int offset = 16; offset >= 4; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
      if (lane < 4) room[own(c)] = sum;
    }
    __syncthreads();
    float2 result = {};
    if (threadIdx.x < kGroup)
      for (int w = 0; w < 4; ++w) result.y = __fadd_rn(result.y, room[(threadIdx.x / 48 * 4 + w) * 48 + threadIdx.x % 48]);
    __syncthreads();
    if (lane < 4)
      for (int c = 0; c < 12; ++c) room[own(c)] = most[c];
    __syncthreads();
    if (threadIdx.x < kGroup) result.x = room[threadIdx.x / 48 * 4 * 48 + threadIdx.x % 48];
    return result;
  }
};

template <bool vector>
__global__ void __launch_bounds__(kThreads, 1) stats(const __grid_constant__ Operands a) {
  extern __shared__ __align__(1024) bf16 shared[];
  bf16 *const queries = shared, *const ring = shared + 9 * kPanel;
  launch_dependents();
  const Split x = split_of(a);
  if (x.count <= 0) return;
  for (int step = 0; step < 3; ++step) request<vector>(ring, a, x, step);
  await_launch();
  stage_queries(queries, a, x);
  await_copies<0>();
  Softmax softmax;
  for (int page = 0; page < x.count; ++page) {
    float s[24] = {};
#pragma unroll
    for (int third = 0; third < 3; ++third) {
      const int step = 3 * page + third;
      await_copies<2>();
      multiply_third(s, ring, queries, step);
      wgmma_await<1>();
      __syncthreads();  // the third before is done with
      request<vector>(ring, a, x, step + 3);
    }
    wgmma_await<0>();
    settle(s);
    land_scores<false>(s, a, x, page);
    softmax.take(s);
  }
  __syncthreads();
  const float2 result = softmax.finish(reinterpret_cast<float*>(ring));
  if (threadIdx.x < x.heads) a.stats[(x.row * a.heads + x.head + threadIdx.x) * a.splits + x.index] = result;
}

// S4: maximum and denominator of each head from those of the splits, eight lanes a head.
__device__ __forceinline__ void join_splits(const Operands& a, const Split& x, float* top, float* den, float* inverse) {
  const int lane = threadIdx.x % 8, n = splits_of(pages_of(x.context));
  for (int head = threadIdx.x / 8; head < kGroup; head += kThreads / 8) {
    const float2* const from = a.stats + (x.row * a.heads + x.head + (head < x.heads ? head : 0)) * a.splits;
    float2 part[kSplits / 8];
    float most = -FLT_MAX, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSplits / 8; ++i) {
      part[i] = i * 8 + lane < n ? from[i * 8 + lane] : make_float2(-FLT_MAX, 0.0f);
      most = fmaxf(most, part[i].x);
    }
    for (int offset = 4; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
#pragma unroll
    for (int i = 0; i < kSplits / 8; ++i) sum = __fadd_rn(sum, __fmul_rn(part[i].y, expf(__fsub_rn(part[i].x, most))));
    for (int offset = 4; offset; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
    if (lane != 0) continue;
    top[head] = most, den[head] = sum, inverse[head] = __fdiv_rn(1.0f, sum);
    if (x.index == 0 && head < x.heads) {
      KEPT(4, 2 * x.row * a.heads + x.head + head, most);
      KEPT(4, (2 * x.row + 1) * a.heads + x.head + head, sum);
    }
  }
}

// n / d to nearest even by the rounded 1 / d, for n = 0 or above 2^-60 and d in 1 .. 2^31: the remainders are exact, and two steps round as division does.
__device__ __forceinline__ float quotient(float n, float d, float inverse) {
  float q = __fmul_rn(n, inverse);
  q = __fmaf_rn(__fmaf_rn(-d, q, n), inverse, q);
  return __fmaf_rn(__fmaf_rn(-d, q, n), inverse, q);
}

// S5: the landed probabilities of a page, [96 heads, 64 tokens]; two blocks of eight heads at a time.
__device__ __forceinline__ void land_probabilities(bf16* to, const float (&s)[24], const float* top, const float* den, const float* inverse,
                                                   const Operands& a, const Split& x, int page) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4 * 48;
#pragma unroll
  for (int i = 0; i < 24; i += 8) {
    uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      const int head = group + (i + k) / 4 * 8 + lane % 4 * 2;
      const float2 m = *reinterpret_cast<const float2*>(top + head), d = *reinterpret_cast<const float2*>(den + head);
      const float2 r = *reinterpret_cast<const float2*>(inverse + head);
      const float n0 = expf(__fsub_rn(s[i + k], m.x)), n1 = expf(__fsub_rn(s[i + k + 1], m.y));
      float p0 = PLANT(6, quotient(n0, d.x, r.x), __fmul_rn(n0, r.x));  // MISTAKE 6 = mma/S5.div:reciprocal
      float p1 = PLANT(6, quotient(n1, d.y, r.y), __fmul_rn(n1, r.y));
      if (MISTAKE != 6 && ((n0 > 0.0f && n0 < 0x1p-60f) || (n1 > 0.0f && n1 < 0x1p-60f))) p0 = __fdiv_rn(n0, d.x), p1 = __fdiv_rn(n1, d.y);
      const __nv_bfloat162 p = __floats2bfloat162_rn(p0, p1);
      packed[k / 2] = *reinterpret_cast<const uint32_t*>(&p);
#ifdef TRACE
      const int t = (x.first + page) * kTokens + warp % 4 * 16 + lane / 4 + k / 2 % 2 * 8;
      for (int e = 0; e < 2 && head + e < x.heads && t < x.context; ++e)
        LANDING(5, scores_before(a, x.row) + (int64_t)(x.head + head + e) * x.context + t, e ? p.y : p.x);
#endif
    }
    store_fragments_transposed(to + swizzled(group + i * 2 + lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2), packed);
  }
}

// S6, half a page's: two blocks of 64 latent columns a warpgroup += rows x probabilities. Warpgroup g has the columns of blocks g, g + 2, g + 4, g + 6.
template <int half>
__device__ __forceinline__ void multiply_half(float (&d)[4][48], const bf16* ring, const bf16* probabilities, int page) {
#pragma unroll
  for (int i = 2 * half; i < 2 * half + 2; ++i) {
    const int block = threadIdx.x / 128 + 2 * i, step = 3 * page + block / 3;
    const uint64_t rows = slab(ring + step % kRing * kThird + block % 3 * kTile);
#pragma unroll
    for (int k = 0; k < 4; ++k) product96(d[i], bytes_on(rows, k * 2048), bytes_on(slab(probabilities), k * 32));
  }
  wgmma_commit();
}

template <bool vector>
__global__ void __launch_bounds__(kThreads, 1) attend(const __grid_constant__ Operands a) {
  extern __shared__ __align__(1024) bf16 shared[];
  bf16 *const queries = shared, *const ring = shared + 9 * kPanel, *const probabilities = ring + kRing * kThird;
  float *const top = reinterpret_cast<float*>(probabilities + kPanel), *const den = top + kGroup, *const inverse = den + kGroup;
  launch_dependents();
  const Split x = split_of(a);
  if (x.count <= 0) return;
  for (int step = 0; step < 2; ++step) request<vector>(ring, a, x, step);
  await_launch();
  stage_queries(queries, a, x);
  join_splits(a, x, top, den, inverse);
  await_copies<0>();
  float d[4][48] = {};
  for (int page = 0; page < x.count; ++page) {
    float s[24] = {};
    const int step = 3 * page;
    await_copies<1>();  // and every product of the page before is done
    multiply_third(s, ring, queries, step);
    request<vector>(ring, a, x, step + 2);
    request<vector>(ring, a, x, step + 3);
    await_copies<2>();
    multiply_third(s, ring, queries, step + 1);
    await_copies<1>();
    multiply_third(s, ring, queries, step + 2);
    wgmma_await<0>();
    settle(s);
    land_scores<true>(s, a, x, page);
    land_probabilities(probabilities, s, top, den, inverse, a, x, page);
    publish();
    __syncthreads();
    wgmma_begin();
    multiply_half<0>(d, ring, probabilities, page);
    multiply_half<1>(d, ring, probabilities, page);
    wgmma_await<1>();
    __syncthreads();  // the first third is done with
    request<vector>(ring, a, x, step + 4);
    wgmma_await<0>();
  }
  const int lane = threadIdx.x % 32, column = threadIdx.x / 128 * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
  float* const to = a.parts + ((x.row * a.splits + x.index) * a.heads + x.head) * kLatentWidth + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    settle(d[i]);
#pragma unroll
    for (int c = 0; c < 48; ++c) {
      const int head = c / 4 * 8 + lane % 4 * 2 + c % 2;
      if (head < x.heads) to[head * kLatentWidth + i * 128 + c / 2 % 2 * 8] = d[i][c];
    }
  }
}

// S6, S7: o_lat of a head for 16 rows, each column of the splits in four partial sums, side by side; then o = UV x o_lat.
template <bool vector>
__global__ void __launch_bounds__(kExpandThreads, 1) expand(const __grid_constant__ Operands a) {
  extern __shared__ __align__(16) bf16 room[];
  constexpr int pitch = kLatentWidth + kPad;
  bf16 *const uv = room, *const latent = room + kV * pitch;
  const int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = (int64_t)blockIdx.y * kRows;
  const bf16* const weights = a.w + ((int64_t)head * (kNope + kV) + kNope) * kLatentWidth;
  for (int e = threadIdx.x; e < kV * 64; e += kExpandThreads) stage8<vector>(uv + e / 64 * pitch + e % 64 * 8, weights + e * 8, true);
  commit_copies();
  await_launch();
  const int column = threadIdx.x / 4 * 4, part = threadIdx.x % 4;
  for (int r = 0; r < kRows; r += 4) {
    float sum[4][4] = {};
    const float* from[4];
    int n[4], most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      n[i] = row + r + i < a.b ? splits_of(pages_of(a.context[row + r + i])) : 0;
      from[i] = a.parts + ((row + r + i) * a.splits * a.heads + head) * kLatentWidth + column;
      most = max(most, n[i]);
    }
#pragma unroll 4
    for (int split = part; split < most; split += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 v = split < n[i] ? *reinterpret_cast<const float4*>(from[i] + (int64_t)split * a.heads * kLatentWidth) : make_float4(0, 0, 0, 0);
        sum[i][0] = __fadd_rn(sum[i][0], v.x), sum[i][1] = __fadd_rn(sum[i][1], v.y);
        sum[i][2] = __fadd_rn(sum[i][2], v.z), sum[i][3] = __fadd_rn(sum[i][3], v.w);
      }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum[i][j] = __fadd_rn(sum[i][j], __shfl_xor_sync(~0u, sum[i][j], PLANT(7, 2, 1)));  // MISTAKE 7 = mma/S6.tree:mirrored
        sum[i][j] = __fadd_rn(sum[i][j], __shfl_xor_sync(~0u, sum[i][j], PLANT(7, 1, 2)));
        if (j == part) {
          latent[(r + i) * pitch + column + j] = bf(sum[i][j]);
          if (n[i]) LANDING(6, ((row + r + i) * a.heads + head) * kLatentWidth + column + j, bf(sum[i][j]));
        }
      }
  }
  await_copies<0>();
  float d[4] = {};
  for (int k = 0; k < kLatentWidth; k += 32) {
    uint32_t left[4], right[4];
    load_fragments(right, uv + (warp * 8 + lane % 8) * pitch + k + lane / 8 * 8);
    load_fragments(left, latent + lane % 16 * pitch + k + lane / 16 * 8);
    mma16x8(d, left, right[0], right[1]);
    load_fragments(left, latent + lane % 16 * pitch + k + 16 + lane / 16 * 8);
    mma16x8(d, left, right[2], right[3]);
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t at = row + lane / 4 + i / 2 * 8;
    if (at < a.b) a.o[(at * a.heads + head) * kV + warp * 8 + lane % 4 * 2 + i % 2] = bf(d[i]);  // S7
  }
}

// A kernel that may start while the one before it ends; await_launch() is where it needs what that one wrote.
static cudaError_t launch_next(void (*kernel)(Operands), dim3 grid, int threads, size_t shared, cudaStream_t stream, const Operands& a) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = &early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, a);
}

template <bool vector>
static cudaError_t run(const Operands& a, cudaStream_t stream) {
  const dim3 splits((unsigned)(a.b * a.splits), (unsigned)ceil_div(a.heads, kGroup));
  absorb<vector><<<dim3(a.heads, kLatentWidth / 128), kThreads, 0, stream>>>(a);
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = launch_next(stats<vector>, splits, kThreads, kShared, stream, a);
  if (status == cudaSuccess) status = launch_next(attend<vector>, splits, kThreads, kShared, stream, a);
  if (status == cudaSuccess) status = launch_next(expand<vector>, dim3(a.heads, (unsigned)ceil_div(a.b, kRows)), kExpandThreads, kExpandShared, stream, a);
  return status;
}

}  // namespace mla

// The operands of mla_paged, checked by its launcher. Scratch is allocated in the order of the stream, so it may be captured.
static int mla_mma(const bf16* q, const bf16* w_kv_b, const bf16* cache, const int32_t* table, const int32_t* context, float scale, int64_t layer_offset,
                   int64_t page_stride, bf16* o, int64_t b, int64_t heads, int64_t pages, cudaStream_t stream) {
  mla::Operands a = {q, w_kv_b, cache, table, context, __float2bfloat16(scale), layer_offset, page_stride, b, pages, (int)heads, mla::most_splits(pages), o};
  const size_t parts = b * a.splits * heads * mla::kLatentWidth * sizeof(float), stats = b * heads * a.splits * sizeof(float2);
  char* scratch = nullptr;
  cudaError_t status = cudaMallocAsync(&scratch, parts + stats + b * heads * mla::kWidth * sizeof(bf16), stream);
  if (status != cudaSuccess) return (int)status;
  a.parts = reinterpret_cast<float*>(scratch), a.stats = reinterpret_cast<float2*>(scratch + parts), a.q_abs = reinterpret_cast<bf16*>(scratch + parts + stats);
  const bool vector = aligned16(q) && aligned16(w_kv_b) && aligned16(cache) && layer_offset % 8 == 0 && page_stride % 8 == 0;
  status = vector ? mla::run<true>(a, stream) : mla::run<false>(a, stream);
  const cudaError_t freed = cudaFreeAsync(scratch, stream);
  return (int)(status != cudaSuccess ? status : freed);
}
