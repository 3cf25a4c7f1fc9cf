// land: fold split-k partials and land them. The contract is references/land.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kThreads = 256;

__device__ __forceinline__ float seed() { return PLANT(1, 0.0f, -0.0f); }                         // MISTAKE 1 = S1.zero:minus_zero
__device__ __forceinline__ bf16 landed(float acc) { return PLANT(2, bf(acc), __float2bfloat16_rz(acc)); }  // MISTAKE 2 = S3.bf:truncated
__device__ __forceinline__ int64_t partial(int64_t s, int64_t split_k) { return PLANT(3, s, split_k - 1 - s); }  // MISTAKE 3 = S2.asc:descending

// p and o point at the first column of the first row. Rows lie along grid.y, so that no thread divides.
// Retired form, and the current one where rows are not 16-byte aligned: one column a thread.
__global__ void __launch_bounds__(kThreads) land_scalar(const float* p, bf16* o, int64_t b, int64_t split_k, int64_t nt, int64_t n) {
  const int64_t column = (int64_t)blockIdx.x * kThreads + threadIdx.x;
  if (column >= n) return;
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const float* from = p + row * split_k * nt + column;
    float acc = seed();                                                                                      // S1
    for (int64_t s = 0; s < split_k; ++s) acc = __fadd_rn(acc, from[partial(s, split_k) * nt]);              // S2
    o[row * n + column] = landed(acc);                                                                       // S3
  }
}

// Current form: 8 columns a thread.
__global__ void __launch_bounds__(kThreads) land_vector(const float* p, bf16* o, int64_t b, int64_t split_k, int64_t nt, int64_t n) {
  const int64_t column = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8;
  if (column >= n) return;
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const float* from = p + row * split_k * nt + column;
    float acc[8];
    for (float& a : acc) a = seed();                                                                         // S1
#pragma unroll 4
    for (int64_t s = 0; s < split_k; ++s) {                                                                  // S2
      const F32x8 term = load8(from + partial(s, split_k) * nt);
      for (int i = 0; i < 8; ++i) acc[i] = __fadd_rn(acc[i], term.at[i]);
    }
    Bf16x8 out = bf8(acc);                                                                                   // S3
    for (int i = 0; i < 8; ++i) out.at[i] = PLANT(2, out.at[i], landed(acc[i]));
    global_store8(o + row * n + column, out);
  }
}

// p f32 [b, split_k, nt], off, n -> o bf16 [b, n]; packed. form 0: current, 1: retired.
extern "C" int land(const float* p, int64_t off, int64_t n, bf16* o, int64_t b, int64_t split_k, int64_t nt, int form, cudaStream_t stream) {
  REQUIRE(5, b >= 0);
  REQUIRE(1, p || b == 0);
  REQUIRE(2, off >= 0);
  REQUIRE(3, n >= 1 && n <= nt - off);
  REQUIRE(4, o || b == 0);
  REQUIRE(6, split_k >= 1);
  REQUIRE(8, form == 0 || form == 1);
  if (b == 0) return 0;
  const bool vector = form == 0 && aligned16(p) && aligned16(o) && nt % 4 == 0 && off % 4 == 0 && n % 8 == 0;
  const dim3 grid((unsigned)ceil_div(n, vector ? kThreads * 8 : kThreads), (unsigned)(b < 65535 ? b : 65535));
  (vector ? land_vector : land_scalar)<<<grid, kThreads, 0, stream>>>(p + off, o, b, split_k, nt, n);
  return (int)cudaGetLastError();
}
