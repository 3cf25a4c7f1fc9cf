// A function of one bf16 has 65,536 values, and those of the exponents that occur fit in shared memory. The table is filled by the function
// itself on the device, so a value looked up has its bits by construction.
#pragma once
#include "common.cuh"

// `Function` is a struct with `static __device__ float of(float x)`. Held: 2^LOW <= |x| < 2^HIGH, positive values first.
template <class Function, int LOW, int HIGH>
struct Bf16Table {
  static const uint32_t kFirst = (LOW + 127) << 7, kSize = (HIGH - LOW) << 7;
  float positive[kSize], negative[kSize];

  // By every thread of the block; a __syncthreads() must follow.
  __device__ void fill() {
    for (uint32_t i = threadIdx.x; i < kSize; i += blockDim.x) {
      const float x = __uint_as_float((kFirst + i) << 16);
      positive[i] = Function::of(x);
      negative[i] = Function::of(-x);
    }
  }

  // bits: a bf16 pattern. Anything not below kSize is not held: small, large, infinite and NaN.
  static __device__ __forceinline__ uint32_t offset(uint32_t bits) { return (bits & 0x7fff) - kFirst; }
  __device__ __forceinline__ float look_up(uint32_t bits) const { return positive[offset(bits) + (bits >> 15) * kSize]; }
};
