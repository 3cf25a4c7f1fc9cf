// rms_norm: round before scale. The contract is references/rms_norm.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include <cuda_pipeline.h>

#include "norm.cuh"

static const int kRows = 4;  // rows a block of the current form, one a warp

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

// Current form: a warp a row. Lane l takes the 16-byte chunks l, l + 32, ..., which are the columns of the partial sums 8l .. 8l + 7 in their
// order. The whole row is in flight at once, into shared memory; a lane reads back only what it copied itself, so there is no barrier.
__global__ void __launch_bounds__(kRows * 32) rms_norm_vector(const bf16* x, const bf16* gamma, float eps, bf16* o, int64_t b, int64_t h, int64_t ldx) {
  extern __shared__ Bf16x8 staged[];
  const int chunks = (int)(h / 8), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = (int64_t)blockIdx.x * kRows + warp;
  if (row >= b) return;
  Bf16x8* mine = staged + warp * chunks;
  for (int c = lane; c < chunks; c += 32) __pipeline_memcpy_async(mine + c, x + row * ldx + c * 8, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);

  float sum[8] = {};
  for (int c = lane; c < chunks; c += 32) {
    const Bf16x8 v = mine[c];
    for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(f(v.at[i]), f(v.at[i])));  // S1, S2
  }
  const float r = inverse(group_tree<32>(sum), h, eps);
  for (int c = lane; c < chunks; c += 32) {
    const Bf16x8 v = mine[c], g = load8(gamma + c * 8);
    Bf16x8 out;
    for (int i = 0; i < 8; ++i) out.at[i] = scaled(v.at[i], r, g.at[i], row * h + c * 8 + i);
    store8(o + row * h + c * 8, out);
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
  const int64_t shared = kRows * h * (int64_t)sizeof(bf16);
  const bool aligned = aligned16(x) && aligned16(gamma) && aligned16(o) && h % 8 == 0 && ldx % 8 == 0;
  if (form == 0 && aligned && shared <= kShared) {
    const cudaError_t refused = cudaFuncSetAttribute(rms_norm_vector, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (refused != cudaSuccess) return (int)refused;
    rms_norm_vector<<<(unsigned)ceil_div(b, kRows), kRows * 32, (size_t)shared, stream>>>(x, gamma, eps, o, b, h, ldx);
  } else {
    rms_norm_scalar<<<(unsigned)b, kSums, 0, stream>>>(x, gamma, eps, o, h, ldx);
  }
  return (int)cudaGetLastError();
}
