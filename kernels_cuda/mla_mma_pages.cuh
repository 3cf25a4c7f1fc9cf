// Of the mma form of mla_paged: its operands, how a context is split, and the scores of a page, which stats and attend make alike.
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
static inline int most_splits(int64_t pages) { return pages <= 4 * kSplits ? splits_of((int)pages) : kSplits; }

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

}  // namespace mla
