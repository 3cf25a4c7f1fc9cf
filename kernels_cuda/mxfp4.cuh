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
__device__ __forceinline__ uint32_t scale2(uint32_t code) { return (code ? code << 7 : 0x40) * 0x10001; }

// Four e2m1 codes of neighbours, times a scale: neighbours 0 and 2, then 1 and 3. A code's exponent and fraction at their place in a bf16 are its
// value times 2^-126, subnormals included, so two products, both exact, give the weight.
__device__ __forceinline__ void weights(uint32_t (&b)[2], uint32_t codes, uint32_t scale) {
  const uint32_t apart = __byte_perm(codes, 0, 0x4140);
  b[0] = mul2(mul2((apart & 0x00070007) << 6 | (apart & 0x00080008) << 12, 0x7e807e80), scale);
  b[1] = mul2(mul2((apart & 0x00700070) << 2 | (apart & 0x00800080) << 8, 0x7e807e80), scale);
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
  // Two neighbours of an accumulator.
  __device__ __forceinline__ void store(int64_t row, int64_t column, float x, float y) const {
    const int64_t index = row * columns + column;
    const __nv_bfloat162 landed = __floats2bfloat162_rn(x, y);
    *reinterpret_cast<__nv_bfloat162*>(out + index) = landed;
    if (down) {
      LANDING(6, index, landed.x);   // S6
      LANDING(6, index + 1, landed.y);
    } else {
      LANDING(3, index, landed.x);   // S3
      LANDING(3, index + 1, landed.y);
    }
  }
};

// Current form: 128 columns a block, 16 a warp; 64 rows at a time. Weights go through shared memory as they are stored.
static const int kRows = 64, kColumns = 128, kDepth = 128, kStages = 3, kWarps = 8;

struct Stage {
  bf16 a[kRows][kDepth + 16];                // rows 32 bytes longer: 8-byte reads of four rows lie in different banks
  uint8_t w[kColumns][kDepth / 2 + 16];      // rows 16 bytes longer: 2-byte reads of eight rows do
  uint32_t s[kColumns];                      // the four scales of a row
};
static const int kStaged = kStages * sizeof(Stage);

__device__ __forceinline__ void stage_scales(uint32_t* to, const uint8_t* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void multiply(float (&sum)[kRows / 16][2][4], const Stage& from, int live) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    uint32_t b[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = 16 * warp + 8 * j + r;
      weights(b[j], *reinterpret_cast<const uint16_t*>(&from.w[column][8 * step + 2 * q]), scale2(from.s[column] >> step / 2 * 8 & 255));
    }
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i)
      if (16 * i < live) {
        const uint2 top = *reinterpret_cast<const uint2*>(&from.a[16 * i + r][16 * step + 4 * q]);
        const uint2 low = *reinterpret_cast<const uint2*>(&from.a[16 * i + r + 8][16 * step + 4 * q]);
        const uint32_t a[4] = {top.x, low.x, top.y, low.y};
        for (int j = 0; j < 2; ++j) mma16x8(sum[i][j], a, b[j][0], b[j][1]);
      }
  }
}

template <bool down>
__global__ void __launch_bounds__(kWarps * 32, 2) product_staged(const Product<down> p) {
  extern __shared__ __align__(16) uint8_t raw[];
  Stage* stages = reinterpret_cast<Stage*>(raw);
  if (*p.to.overfull) return;
  const int start = p.to.start[blockIdx.y], end = p.to.start[blockIdx.y + 1], chunks = p.k / kDepth;
  const int64_t column = (int64_t)blockIdx.x * kColumns, first = blockIdx.y * p.columns + column;
  const uint8_t *w = p.w + first * (p.k / 2), *s = p.s + first * (p.k / 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int of_a = threadIdx.x / 16, piece_a = threadIdx.x % 16, of_w = threadIdx.x / 4, piece_w = threadIdx.x % 4;  // 16 bytes a thread

  for (int top = start; top < end; top += kRows) {
    const int live = min(end - top, kRows);
    const bf16* rows[kRows / 16];
    for (int i = 0; i < kRows / 16; ++i) rows[i] = p.row(16 * i + of_a < live ? top + 16 * i + of_a : top) + 8 * piece_a;
    const auto stage = [&](int chunk) {
      Stage& to = stages[chunk % kStages];
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i)
        if (16 * i < live) stage8<true>(&to.a[16 * i + of_a][8 * piece_a], rows[i] + chunk * kDepth, 16 * i + of_a < live);
      for (int i = of_w; i < kColumns; i += kWarps * 8) {
        const uint8_t* from = w + i * (p.k / 2) + chunk * (kDepth / 2) + 16 * piece_w;
        stage8<true>(reinterpret_cast<bf16*>(&to.w[i][16 * piece_w]), reinterpret_cast<const bf16*>(from), true);
      }
      if (threadIdx.x < kColumns) stage_scales(&to.s[threadIdx.x], s + threadIdx.x * (p.k / 32) + chunk * (kDepth / 32));
    };
    for (int chunk = 0; chunk < kStages - 1; ++chunk) {
      if (chunk < chunks) stage(chunk);
      commit_copies();
    }
    float sum[kRows / 16][2][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      await_copies<kStages - 2>();  // and every warp is done with the stage that is filled next
      if (chunk + kStages - 1 < chunks) stage(chunk + kStages - 1);
      commit_copies();
      multiply(sum, stages[chunk % kStages], live);
    }
    await_copies<0>();
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i)
      if (8 * i + lane / 4 < live)
        for (int j = 0; j < 2; ++j)
          p.store(top + 8 * i + lane / 4, column + 16 * warp + 8 * j + lane % 4 * 2, sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
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
      weights(b, w[8 * step] | w[8 * step + 1] << 8, scale2(s[step / 2]));
      mma16x8(sum, a, b[0], b[1]);
    }
    if (has_top) p.store(row, column + 2 * q, sum[0], sum[1]);
    if (has_low) p.store(row + 8, column + 2 * q, sum[2], sum[3]);
  }
}

static bool product_vector(const void* w, const void* s, int64_t k, int64_t columns) {
  return aligned16(w) && (reinterpret_cast<uintptr_t>(s) & 3) == 0 && k % kDepth == 0 && columns % kColumns == 0;
}

template <bool down>
static void launch_product(const Product<down>& p, int64_t experts, bool current, cudaStream_t stream) {
  if (current && product_vector(p.w, p.s, p.k, p.columns)) {
    cudaFuncSetAttribute(product_staged<down>, cudaFuncAttributeMaxDynamicSharedMemorySize, kStaged);
    product_staged<down><<<dim3((unsigned)(p.columns / kColumns), (unsigned)experts), kWarps * 32, kStaged, stream>>>(p);
  } else {
    product_plain<down><<<dim3((unsigned)(p.columns / 8), (unsigned)experts), 32, 0, stream>>>(p);
  }
}
