// Products of activations with MXFP4 weights, expert by expert. A row of activations is bf16, exactly what e4m3 codes times their scale are, and
// keeps each four neighbours in the order 0, 2, 1, 3: a lane then reads its part of an mma.sync operand, four neighbours, as two pairs. The same
// pairs come out of a weight's nibbles, and within a block of 16 the order is nothing that the tensor core's sum can see.
#pragma once
#include "tensor_core.cuh"

// Where entries are: of expert e those of rank 0, 1, ... are rows start[e], start[e] + 1, ...
struct Routes {
  int* start;      // [experts + 1]
  int* entry;      // of a row
  int* row;        // of an active entry
  int* overfull;   // not 0: an expert has too many entries, and no row is computed
};

__device__ __forceinline__ int64_t paired(int64_t i) { return (i & ~3) | (i & 1) << 1 | (i >> 1 & 1); }

__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product = __hmul2_rn(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(product);
}

// 2^(code - 127), twice.
__device__ __forceinline__ uint32_t power2(uint32_t code) { return max(code * 0x800080, 0x400040); }

// Four e2m1 codes, in bytes 0 and 2, times the scale 2^(code - 127): neighbours 0 and 2, then 1 and 3. A code's exponent and fraction at their place in
// a bf16 are its value times 2^-126, subnormals included. Products with powers of two are exact, so one gives the weight while 2^(code - 1) is finite.
template <bool finite>
__device__ __forceinline__ void weights(uint32_t (&b)[2], uint32_t apart, uint32_t code) {
  b[0] = (apart & 0x000f000f) * 0x1040 & 0x81c081c0;
  b[1] = (apart & 0x00f000f0) * 0x0104 & 0x81c081c0;
  for (uint32_t& pair : b) pair = finite ? mul2(pair, power2(code + 126)) : mul2(mul2(pair, power2(253)), power2(code));
}

// One of the two products: `down` is w2 on the activations of rows, otherwise w13 on those of tokens.
template <bool down>
struct Product {
  const bf16* a;      // [tokens or rows, k]
  const uint8_t* w;   // [experts, columns, k / 2]
  const uint8_t* s;   // [experts, columns, k / 32]
  bf16* out;          // [rows, columns]
  int64_t k, columns;
  int slots;          // entries of a token
  Routes to;

  __device__ __forceinline__ const bf16* row(int i) const { return a + (int64_t)(down ? i : to.entry[i] / slots) * k; }
  __device__ __forceinline__ void store(int64_t row, int64_t column, float x) const {
    const int64_t index = row * columns + column;
    out[index] = bf(x);
    if (down) {
      LANDING(6, index, bf(x));   // S6
    } else {
      LANDING(3, index, bf(x));   // S3
    }
  }
};

// Current form: a warp has 16 columns, whose weights are the left operand of its products, and all rows of the block, 8 to a product.
static const int kDepth = 128;

template <int rows, int warps, int stages, int blocks>  // blocks: of a multiprocessor
struct Shape {
  static const int kRows = rows, kWarps = warps, kStages = stages, kBlocks = blocks, kColumns = 16 * warps, kThreads = 32 * warps;

  struct Stage {
    bf16 a[kRows][kDepth + 16];            // rows 32 bytes longer: 8-byte reads of four rows lie in different banks
    uint8_t w[kColumns][kDepth / 2 + 16];  // rows 16 bytes longer: 16-byte reads of eight rows do
    uint32_t s[kColumns];                  // the four scales of a row
  };
  typedef float Sums[kRows / 8][4];
};
using Few = Shape<16, 4, 6, 4>;  // where no expert has more rows: a decode step, bound by the bytes of the weights
using Many = Shape<32, 4, 4, 3>;

template <bool finite, class Shape>
__device__ __forceinline__ void multiply(typename Shape::Sums& sum, const typename Shape::Stage& from, const uint32_t (&scales)[2], int live) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
  const uint32_t mine = 2 * q | (2 * q + 1) << 8;  // of the eight bytes of a block of 16, the two that go to bytes 0 and 2
#pragma unroll
  for (int group = 0; group < kDepth / 32; ++group) {
    uint4 codes[2];
    for (int j = 0; j < 2; ++j) codes[j] = *reinterpret_cast<const uint4*>(&from.w[16 * warp + 8 * j + r][16 * group]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[2][2];
      for (int j = 0; j < 2; ++j)
        weights<finite>(w[j], half ? __byte_perm(codes[j].z, codes[j].w, mine) : __byte_perm(codes[j].x, codes[j].y, mine),
                        __byte_perm(scales[j], 0, 0x4440 + group));
      const uint32_t left[4] = {w[0][0], w[1][0], w[0][1], w[1][1]};
#pragma unroll
      for (int i = 0; i < Shape::kRows / 8; ++i)
        if (8 * i < live) {
          const uint2 right = *reinterpret_cast<const uint2*>(&from.a[8 * i + r][32 * group + 16 * half + 4 * q]);
          mma16x8(sum[i], left, right.x, right.y);
        }
    }
  }
}

__device__ __forceinline__ void stage_scales(uint32_t* to, const uint8_t* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

template <class Shape, bool down>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) product_staged(const Product<down> p) {
  extern __shared__ __align__(16) uint8_t raw[];
  typename Shape::Stage* stages = reinterpret_cast<typename Shape::Stage*>(raw);
  if (*p.to.overfull) return;
  const int start = p.to.start[blockIdx.y], end = p.to.start[blockIdx.y + 1], chunks = p.k / kDepth;
  const int64_t column = (int64_t)blockIdx.x * Shape::kColumns, first = blockIdx.y * p.columns + column;
  const int warp = threadIdx.x / 32, r = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const int of_a = threadIdx.x / 16, piece_a = threadIdx.x % 16, of_w = threadIdx.x / 4, rows_a = Shape::kThreads / 16, rows_w = Shape::kThreads / 4;
  const uint8_t *w = p.w + (first + of_w) * (p.k / 2) + 16 * q, *s = p.s + (first + threadIdx.x) * (p.k / 32);  // a thread brings 16 bytes

  for (int top = start; top < end; top += Shape::kRows) {
    const int live = min(end - top, Shape::kRows);
    const bf16* rows[Shape::kRows / rows_a];
    for (int i = 0; i < Shape::kRows / rows_a; ++i) rows[i] = p.row(min(top + rows_a * i + of_a, end - 1)) + 8 * piece_a;
    const auto stage = [&](int chunk) {
      typename Shape::Stage& to = stages[chunk % Shape::kStages];
#pragma unroll
      for (int i = 0; i < Shape::kRows / rows_a; ++i)
        if (rows_a * i < live) stage8<true>(&to.a[rows_a * i + of_a][8 * piece_a], rows[i] + chunk * kDepth, rows_a * i + of_a < live);
#pragma unroll
      for (int i = 0; i < Shape::kColumns; i += rows_w)
        stage8<true>(reinterpret_cast<bf16*>(&to.w[i + of_w][16 * q]), reinterpret_cast<const bf16*>(w + i * (p.k / 2) + chunk * (kDepth / 2)), true);
      if (threadIdx.x < Shape::kColumns) stage_scales(&to.s[threadIdx.x], s + chunk * (kDepth / 32));
    };
    for (int chunk = 0; chunk < Shape::kStages - 1; ++chunk) {
      if (chunk < chunks) stage(chunk);
      commit_copies();
    }
    typename Shape::Sums sum = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      await_copies<Shape::kStages - 2>();  // and every warp is done with the stage that is filled next
      if (chunk + Shape::kStages - 1 < chunks) stage(chunk + Shape::kStages - 1);
      commit_copies();
      const typename Shape::Stage& from = stages[chunk % Shape::kStages];
      const uint32_t scales[] = {from.s[16 * warp + r], from.s[16 * warp + 8 + r]};
      if (__any_sync(kWarp, (scales[0] | scales[1]) & 0x80808080))
        multiply<false, Shape>(sum, from, scales, live);
      else
        multiply<true, Shape>(sum, from, scales, live);
    }
    await_copies<0>();
#pragma unroll
    for (int i = 0; i < Shape::kRows / 8; ++i)
      for (int e = 0; e < 4; ++e)
        if (const int row = 8 * i + 2 * q + e % 2; row < live) p.store(top + row, column + 16 * warp + 8 * (e / 2) + r, sum[i][e]);
  }
}

// Retired form: a warp for 8 columns, 16 rows at a time, operands straight from memory, weights byte by byte.
template <bool down>
__global__ void __launch_bounds__(32) product_plain(const Product<down> p) {
  if (*p.to.overfull) return;
  const int start = p.to.start[blockIdx.y], end = p.to.start[blockIdx.y + 1], r = threadIdx.x / 4, q = threadIdx.x % 4;
  const int64_t column = (int64_t)blockIdx.x * 8, mine = blockIdx.y * p.columns + column + r;
  const uint8_t *w = p.w + mine * (p.k / 2) + 2 * q, *s = p.s + mine * (p.k / 32);
  for (int row = start + r; row - r < end; row += 16) {
    const bool has_top = row < end, has_low = row + 8 < end;
    const bf16 *top = p.row(has_top ? row : start) + 4 * q, *low = p.row(has_low ? row + 8 : start) + 4 * q;
    float sum[4] = {};
    for (int step = 0; step < p.k / 16; ++step) {
      const uint2 none = {0, 0};
      const uint2 x = has_top ? *reinterpret_cast<const uint2*>(top + 16 * step) : none;
      const uint2 y = has_low ? *reinterpret_cast<const uint2*>(low + 16 * step) : none;
      const uint32_t a[4] = {x.x, y.x, x.y, y.y};
      uint32_t b[2];
      weights<false>(b, w[8 * step] | w[8 * step + 1] << 16, s[step / 2]);
      mma16x8(sum, a, b[0], b[1]);
    }
    for (int e = 0; e < 4; ++e)
      if (e < 2 ? has_top : has_low) p.store(row + e / 2 * 8, column + 2 * q + e % 2, sum[e]);
  }
}

template <class Shape, bool down>
static bool launch_staged(const Product<down>& p, int64_t experts, cudaStream_t stream) {
  const int shared = Shape::kStages * sizeof(typename Shape::Stage);
  const bool fits = aligned16(p.w) && reinterpret_cast<uintptr_t>(p.s) % 4 == 0 && p.k % kDepth == 0 && p.columns % Shape::kColumns == 0;
  if (!fits) return false;
  cudaFuncSetAttribute(product_staged<Shape, down>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  product_staged<Shape><<<dim3((unsigned)(p.columns / Shape::kColumns), (unsigned)experts), Shape::kThreads, shared, stream>>>(p);
  return true;
}

// most: rows that an expert can have.
template <bool down>
static void launch_product(const Product<down>& p, int64_t experts, int64_t most, bool current, cudaStream_t stream) {
  if (current && (most <= Few::kRows ? launch_staged<Few>(p, experts, stream) : launch_staged<Many>(p, experts, stream))) return;
  product_plain<<<dim3((unsigned)(p.columns / 8), (unsigned)experts), 32, 0, stream>>>(p);
}
