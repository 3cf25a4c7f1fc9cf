// rms_norm: round before scale. The contract is references/rms_norm.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include <cuda_pipeline.h>

#include "norm.cuh"

__device__ __forceinline__ float inverse(float total, int64_t h, float eps) {
  const float width = (float)h;
  const float mean = PLANT(1, __fdiv_rn(total, width), __fmul_rn(total, __fdiv_rn(1.0f, width)));  // S3; MISTAKE 1 = S3.div:reciprocal
  const float shifted = __fadd_rn(mean, eps);                                                      // S3
  return PLANT(2, rsqrtf(shifted), __fdiv_rn(1.0f, __fsqrt_rn(shifted)));                           // S4; MISTAKE 2 = S4.rsqrt:exact_rsqrt
}

__device__ __forceinline__ bf16 scaled(bf16 x, float r, bf16 gamma, int64_t index) {
  const float product = __fmul_rn(f(x), r);
  const float n = PLANT(3, f(bf(product)), product);  // S5; MISTAKE 3 = S5.bf:skipped
  LANDING(5, index, bf(n));
  return bf(__fmul_rn(n, f(gamma)));                  // S6
}

// Retired form, and the current one where rows are not 16-byte aligned: a block a row, one partial sum a thread.
__global__ void __launch_bounds__(kSums) rms_norm_scalar(const bf16* x, const bf16* gamma, float eps, bf16* o, int64_t h, int64_t ldx) {
  const int64_t row = blockIdx.x;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < h; i += kSums) {
    const float value = f(x[row * ldx + i]);
    sum = __fadd_rn(sum, __fmul_rn(value, value));  // S1, S2
  }
  const float r = inverse(block_tree<kSums>(sum), h, eps);
  for (int64_t i = threadIdx.x; i < h; i += kSums) o[row * h + i] = scaled(x[row * ldx + i], r, gamma[i], row * h + i);
}

// Eight columns. The product of two bf16 in f32, landed, is their bf16 product: where f32 rounds it at all, it lies below half the smallest bf16.
__device__ __forceinline__ Bf16x8 scaled8(const Bf16x8& v, float r, const Bf16x8& gamma, int64_t index) {
  float x[8], late[8];
  widen8(v, x);
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], r), late[i] = __fmul_rn(x[i], f(gamma.at[i]));
  const Bf16x8 n = bf8(x);  // S5
  for (int i = 0; i < 8; ++i) LANDING(5, index + i, n.at[i]);
  return PLANT(3, hmul8(n, gamma), bf8(late));  // S6
}

// Current form: a warp a row, and on to the row a grid further, which is on its way into shared memory while this one is normed. Lane l takes
// columns 8l .. 8l + 7 of every 256, which are those of eight partial sums in their order. It reads back only what it copied itself, so there is
// no barrier. Where the width is `fixed` (0: it is h), gamma stays in registers: beside the stores, the first-level cache would not keep it.
template <int fixed>
__global__ void __launch_bounds__(kRows * 32)
    rms_norm_vector(const bf16* x, const bf16* gamma, float eps, bf16* o, int64_t b, int64_t h, int64_t ldx) {
  extern __shared__ __align__(16) bf16 staged[];
  const int warp = threadIdx.x / 32, own = threadIdx.x % 32 * 8, width = fixed ? fixed : (int)h;
  const int chunks = fixed ? fixed / kSums : (width - own + kSums - 1) / kSums;
  const int64_t step = (int64_t)gridDim.x * kRows;
  int64_t row = (int64_t)blockIdx.x * kRows + warp;
  bf16 *now = staged + 2 * warp * width + own, *next = now + width;
  const auto fetch = [=](bf16* to, int64_t row) {
    const bf16* const from = x + row * ldx + own;
    if (row < b)
      for (int j = 0; j < chunks; ++j) __pipeline_memcpy_async(to + j * kSums, from + j * kSums, 16);
    __pipeline_commit();
  };
  fetch(now, row);
  Bf16x8 scale[fixed / kSums + 1];
  for (int j = 0; j < fixed / kSums; ++j) scale[j] = load8(gamma + own + j * kSums);
  for (; row < b; row += step) {
    fetch(next, row + step);
    __pipeline_wait_prior(1);  // for this row, not the next
    float sum[8] = {}, v[8];
    for (int j = 0; j < chunks; ++j) {
      widen8(load8(now + j * kSums), v);
      for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(v[i], v[i]));  // S1, S2
    }
    const float r = inverse(group_tree<32>(sum), width, eps);
    const int64_t first = row * width + own;
#pragma unroll (fixed ? fixed / kSums : 1)
    for (int j = 0; j < chunks; ++j) {
      const Bf16x8 g = fixed ? scale[j] : load8(gamma + own + j * kSums);
      stream_store8(o + first + j * kSums, scaled8(load8(now + j * kSums), r, g, first + j * kSums));
    }
    bf16* const done = now;
    now = next, next = done;
  }
}

// x bf16 [b, h] with rows ldx apart, gamma bf16 [h], eps -> o bf16 [b, h]. form 0: current, 1: retired.
extern "C" int rms_norm(const bf16* x, const bf16* gamma, float eps, bf16* o, int64_t b, int64_t h, int64_t ldx, int form, cudaStream_t stream) {
  REQUIRE(5, b >= 0 && b <= INT32_MAX);
  REQUIRE(6, h >= 1);
  REQUIRE(1, x || b == 0);
  REQUIRE(2, gamma);
  REQUIRE(4, o || b == 0);
  REQUIRE(7, ldx >= h);
  REQUIRE(8, form == 0 || form == 1);
  if (b == 0) return 0;
  const int64_t shared = 2 * kRows * h * (int64_t)sizeof(bf16);
  const bool aligned = aligned16(x) && aligned16(gamma) && aligned16(o) && h % 8 == 0 && ldx % 8 == 0;
  if (form == 0 && aligned && shared <= kMostShared) {
    auto* const kernel = h == 7168 ? rms_norm_vector<7168> : h == 3584 ? rms_norm_vector<3584> : h == 512 ? rms_norm_vector<512> : rms_norm_vector<0>;
    return launch_rows(kernel, b, shared, stream, x, gamma, eps, o, b, h, ldx);
  }
  rms_norm_scalar<<<(unsigned)b, kSums, 0, stream>>>(x, gamma, eps, o, h, ldx);
  return (int)cudaGetLastError();
}
