// Of the mma form of mla_paged: maximum and denominator of each split.
#pragma once
#include "mla_mma_pages.cuh"

namespace mla {

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
      // MISTAKE 5 = mma/S4.softmax.split_softmax.add#2:fused
      den[c] = PLANT(5, __fadd_rn(__fmul_rn(den[c], fade), both), __fmaf_rn(den[c], fade, both));
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
  await_copies<0, true>();
  Softmax softmax;
  for (int page = 0; page < x.count; ++page) {
    float s[24] = {};
#pragma unroll
    for (int third = 0; third < 3; ++third) {
      const int step = 3 * page + third;
      await_copies<2, true>();
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

}  // namespace mla
