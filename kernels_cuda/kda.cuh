// What the recurrent linear-attention kernels share: a head's 128 columns, four to a lane of one warp, column i * 32 + lane at place i; decays;
// asynchronous copies into shared memory.
#pragma once
#include "common.cuh"

static const int kWidth = 128;                  // columns of a head, and rows of its state
static const int kState = kWidth * kWidth;      // elements of a head's state, S[v][k]

// tree(64, 32, ..., 1): the offsets 64 and 32 lie within a lane.
__device__ __forceinline__ float tree128(const float (&x)[4]) {
  float sum = __fadd_rn(__fadd_rn(x[0], x[2]), __fadd_rn(x[1], x[3]));
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kWarp, sum, offset));
  return sum;
}

// exp(-5 * sigmoid(rate * (gl + bias))): between exp(-5) and 1, whatever the gate.
__device__ __forceinline__ float decay(float gl, float bias, float rate) {
  return expf(__fmul_rn(-5.0f, sigmoid(__fmul_rn(rate, __fadd_rn(gl, bias)))));
}

__device__ __forceinline__ void copy16(float4* shared, const float4* global) {
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the newest `pending` groups of this thread's copies have arrived; a barrier makes them everyone's.
template <int pending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
