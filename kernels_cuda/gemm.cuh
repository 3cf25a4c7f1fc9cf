// The parts of gemm: its work and its retired form. Build: -O3 -fmad=false, no fast-math.
#pragma once
#include "hopper.cuh"

static const int kBand = 16;  // tiles of a that are multiplied by the same rows of w one after the other, while the L2 holds both

struct Sizes {
  int m, n, part, split_k, tiles_a, tiles_w;  // part: the columns of a split

  Sizes(int64_t m, int64_t n, int64_t k, int64_t split_k, int rows_a, int rows_w)
      : m((int)m), n((int)n), part((int)(k / split_k)), split_k((int)split_k), tiles_a((int)ceil_div(m, rows_a)), tiles_w((int)ceil_div(n, rows_w)) {}
  int64_t tiles() const { return (int64_t)tiles_a * tiles_w * split_k; }

  // S1: slabs of 64 columns, in each the blocks of 16
  __host__ __device__ __forceinline__ int slabs() const { return (part + kWide - 1) / kWide; }
  __device__ __forceinline__ int column(int i) const { return kWide * PLANT(1, i, slabs() - 1 - i); }
  __device__ __forceinline__ static int block(int i) { return PLANT(1, i, kWide / 16 - 1 - i); }  // MISTAKE 1 = S1.gemm:k_descending
  __device__ __forceinline__ float* row(float* p, int i, int split) const {
    const int place = PLANT(2, split, split_k - 1 - split);  // MISTAKE 2 = S1.gemm:splits_reversed
    return p + ((int64_t)i * split_k + place) * n;
  }
};

struct Tile {
  int a, w, split;

  __device__ __forceinline__ Tile(const Sizes& n, int item) {
    const int each = n.tiles_a * n.tiles_w, band = item % each / (kBand * n.tiles_w);
    const int within = item % each - band * kBand * n.tiles_w, height = min(kBand, n.tiles_a - kBand * band);
    a = kBand * band + within % height, w = within / height, split = item / each;
  }
};

__device__ __forceinline__ float stored(float x) { return PLANT(3, nan32(x), nan32(f(bf(x)))); }  // MISTAKE 3 = S1.gemm:landed

// Retired form, and of rows that do not lie on 16 bytes: four warps with 16 rows of a each, one slab at a time.
static const int kTile = 64;

template <bool vector>
__device__ __forceinline__ void stage_slab(bf16 (&to)[kTile][kWide + 8], const bf16* from, int64_t stride, int rows, int columns) {
  for (int e = threadIdx.x; e < kTile * kWide / 8; e += blockDim.x) {
    const int row = e / (kWide / 8), column = e % (kWide / 8) * 8;
    stage8<vector>(&to[row][column], from + row * stride + column, row < rows && column < columns);
  }
}

template <bool vector>
__global__ void __launch_bounds__(128) gemm_mma(const bf16* a, const bf16* w, float* p, const Sizes n) {
  __shared__ __align__(16) bf16 rows[kTile][kWide + 8], columns[kTile][kWide + 8];
  const Tile at(n, blockIdx.x);
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
  const int64_t stride = (int64_t)n.part * n.split_k, start = (int64_t)n.part * at.split;
  float d[kTile / 8][4] = {};
  for (int i = 0; i < n.slabs(); ++i) {  // S1
    const int column = n.column(i);
    stage_slab<vector>(rows, a + (int64_t)kTile * at.a * stride + start + column, stride, n.m - kTile * at.a, n.part - column);
    stage_slab<vector>(columns, w + (int64_t)kTile * at.w * stride + start + column, stride, n.n - kTile * at.w, n.part - column);
    commit_copies();
    await_copies<0>();
    uint32_t left[4], right[4];
#pragma unroll
    for (int j = 0; j < kWide / 16; ++j) {
      load_fragments(left, &rows[own + lane % 16][16 * n.block(j) + lane / 16 * 8]);
#pragma unroll
      for (int t = 0; t < kTile / 8; t += 2) {
        load_fragments(right, &columns[8 * t + lane % 8 + lane / 16 * 8][16 * n.block(j) + lane / 8 % 2 * 8]);
        mma16x8(d[t], left, right[0], right[1]), mma16x8(d[t + 1], left, right[2], right[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    const int row = kTile * at.a + own + lane / 4 + 8 * (i / 2 % 2), column = kTile * at.w + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (row < n.m && column < n.n) n.row(p, row, at.split)[column] = stored(d[i / 4][i % 4]);
  }
}
