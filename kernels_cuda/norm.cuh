// What the norms share: 256 strided sums of squares and their tree, in two shapes that add the same pairs, and the scaling.
#pragma once
#include "common.cuh"

static const int kSums = 256;  // partial sums of a row: sum t takes columns t, t + 256, ...
static const int kRows = 4;  // rows a block where a warp takes a row

// tree(128, 64, ..., 1), or from `threads` / 2 on, with one term a thread: across warps through shared memory, then by shuffle.
template <int threads>
__device__ __forceinline__ float block_tree(float sum) {
  __shared__ float terms[threads];
  for (int offset = threads / 2; offset >= 32; offset /= 2) {
    terms[threadIdx.x] = sum;
    __syncthreads();
    sum = __fadd_rn(sum, terms[threadIdx.x ^ offset]);
    __syncthreads();
  }
  for (int offset = 16; offset >= 1; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kWarp, sum, offset));
  return sum;
}

// The same tree over 8 * lanes terms, where lane l of a group holds terms 8l .. 8l + 7. Its first offsets are distances between lanes, and
// while a lane holds several terms it goes on with half of them and its partner with the other half. The offsets 4, 2, 1 then lie between
// the lanes that parted there.
template <int lanes>
__device__ __forceinline__ float group_tree(float (&term)[8]) {
  int apart = lanes / 2;
#pragma unroll
  for (int half = 4; half >= 1; half /= 2, apart /= 2) {
    const bool upper = threadIdx.x & apart;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? term[i + half] : term[i], give = upper ? term[i] : term[i + half];
      term[i] = __fadd_rn(keep, __shfl_xor_sync(kWarp, give, apart));
    }
  }
  for (; apart >= 1; apart /= 2) term[0] = __fadd_rn(term[0], __shfl_xor_sync(kWarp, term[0], apart));
  for (apart = lanes / 2; apart >= lanes / 8; apart /= 2) term[0] = __fadd_rn(term[0], __shfl_xor_sync(kWarp, term[0], apart));
  return term[0];
}

// A kernel that walks the rows, one a warp: a grid that fills the device once, `shared` bytes a block.
template <class... Arguments>
static int launch_rows(void (*kernel)(Arguments...), int64_t b, int64_t shared, cudaStream_t stream, Arguments... arguments) {
  const cudaError_t refused = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
  if (refused != cudaSuccess) return (int)refused;
  const int64_t needed = ceil_div(b, kRows), resident = resident_blocks(kernel, kRows * 32, (size_t)shared);
  kernel<<<(unsigned)(needed < resident ? needed : resident), kRows * 32, (size_t)shared, stream>>>(arguments...);
  return (int)cudaGetLastError();
}
