// o_finalize: the merged attention lands. The contract is references/o_finalize.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kWidth = 128, kThreads = 256;

__device__ __forceinline__ bf16 finalized(float acc) {
  const bf16 o = PLANT(1, bf(acc), __float2bfloat16_rz(acc));  // S1  MISTAKE 1 = S1.bf:truncated
  return PLANT(2, o, flushed(o));                              // S1  MISTAKE 2 = S1.bf:flushed
}

// Retired form, and the current one where a base is not 16-byte aligned: one column a thread.
__global__ void __launch_bounds__(kThreads) o_finalize_scalar(const float* acc, bf16* o, int64_t columns) {
  const int64_t step = (int64_t)gridDim.x * kThreads;
  for (int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x; i < columns; i += step) o[i] = finalized(acc[i]);
}

// Current form: eight columns a thread; the next eight are on their way while these land.
__global__ void __launch_bounds__(kThreads) o_finalize_vector(const float* acc, bf16* o, int64_t columns) {
  const int64_t step = (int64_t)gridDim.x * kThreads * 8;
  int64_t i = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8;
  F32x8 next;
  if (i < columns) next = stream_load8(acc + i);
  while (i < columns) {
    const F32x8 now = next;
    const int64_t first = i;
    i += step;
    if (i < columns) next = stream_load8(acc + i);
    Bf16x8 out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.at[k] = finalized(now.at[k]);
    stream_store8(o + first, out);
  }
}

// acc f32 [t, h, 128] -> o bf16 [t, h, 128]. form 0: current, 1: retired.
extern "C" int o_finalize(const float* acc, bf16* o, int64_t t, int64_t h, int form, cudaStream_t stream) {
  REQUIRE(3, t >= 0);
  REQUIRE(4, h >= 1);
  REQUIRE(1, acc || t == 0);
  REQUIRE(2, o || t == 0);
  REQUIRE(5, form == 0 || form == 1);
  if (t == 0) return 0;
  const int64_t columns = t * h * kWidth;
  const bool vector = form == 0 && aligned16(acc) && aligned16(o);
  auto* const kernel = vector ? o_finalize_vector : o_finalize_scalar;
  const int64_t needed = ceil_div(columns, vector ? kThreads * 8 : kThreads), resident = resident_blocks(kernel, kThreads);
  kernel<<<(unsigned)(needed < resident ? needed : resident), kThreads, 0, stream>>>(acc, o, columns);
  return (int)cudaGetLastError();
}
