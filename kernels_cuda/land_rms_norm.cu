// land_rms_norm: fold split-k partials, land them, norm what was landed. The contract is references/land_rms_norm.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "norm.cuh"

static const int kRows = 4;   // rows a block of the current form, one a warp
static const int kAhead = 2;  // 16-byte chunks a lane folds at once, so that enough loads are in flight with a single partial, too

__device__ __forceinline__ float seed() { return PLANT(1, 0.0f, -0.0f); }                                  // MISTAKE 1 = S1.zero:minus_zero
__device__ __forceinline__ bf16 landed(float acc) { return PLANT(2, bf(acc), __float2bfloat16_rz(acc)); }  // MISTAKE 2 = S3.bf:truncated

__device__ __forceinline__ float inverse(float total, int64_t h, float eps) {
  const float mean = __fadd_rn(__fdiv_rn(total, (float)h), eps);                    // S6
  return PLANT(3, rsqrtf(mean), __fdiv_rn(1.0f, __fsqrt_rn(mean)));                 // S7; MISTAKE 3 = S7.rsqrt:exact_rsqrt
}

__device__ __forceinline__ bf16 scaled(bf16 x, float r, bf16 gamma, int64_t index) {
  const bf16 n = bf(__fmul_rn(f(x), r));  // S8
  LANDING(8, index, n);
  return bf(__fmul_rn(f(n), f(gamma)));   // S9
}

// One column of one row: its partials lie nt apart.
__device__ __forceinline__ bf16 fold(const float* p, int64_t split_k, int64_t nt) {
  float acc = seed();                                                               // S1
  for (int64_t s = 0; s < split_k; ++s) acc = __fadd_rn(acc, p[s * nt]);            // S2
  return landed(acc);                                                               // S3
}

// p points at the first column of the first row. Retired form, and the current one where rows are not 16-byte aligned: a block a row,
// one partial sum a thread, landed a second time for the scaling.
__global__ void __launch_bounds__(kSums)
    land_rms_norm_scalar(const float* p, const bf16* gamma, float eps, bf16* o, int64_t split_k, int64_t nt, int64_t h) {
  const int64_t row = blockIdx.x;
  const float* from = p + row * split_k * nt;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < h; i += kSums) {
    const bf16 x = fold(from + i, split_k, nt);
    LANDING(3, row * h + i, x);
    sum = __fadd_rn(sum, __fmul_rn(f(x), f(x)));                                    // S4, S5
  }
  const float r = inverse(block_tree<kSums>(sum), h, eps);
  for (int64_t i = threadIdx.x; i < h; i += kSums) o[row * h + i] = scaled(fold(from + i, split_k, nt), r, gamma[i], row * h + i);
}

// Chunks c, c + 32, .. of 8 landed columns each, as many as there are below `chunks`.
__device__ __forceinline__ void fold_chunks(Bf16x8 (&x)[kAhead], const float* p, int c, int chunks, int64_t split_k, int64_t nt) {
  float acc[kAhead][8];
  for (auto& chunk : acc)
    for (float& a : chunk) a = seed();                                              // S1
#pragma unroll 2
  for (int64_t s = 0; s < split_k; ++s) {                                           // S2
    F32x8 term[kAhead] = {};
    for (int j = 0; j < kAhead; ++j)
      if (c + 32 * j < chunks) term[j] = stream_load8(p + s * nt + (c + 32 * j) * 8);
    for (int j = 0; j < kAhead; ++j)
      for (int i = 0; i < 8; ++i) acc[j][i] = __fadd_rn(acc[j][i], term[j].at[i]);
  }
  for (int j = 0; j < kAhead; ++j)
    for (int i = 0; i < 8; ++i) x[j].at[i] = landed(acc[j][i]);                     // S3
}

// Current form: a warp a row. Lane l takes the chunks l, l + 32, ..., which are the columns of the partial sums 8l .. 8l + 7 in their order.
// Landed columns wait in shared memory; a lane reads back only what it put there itself, so there is no barrier.
__global__ void __launch_bounds__(kRows * 32)
    land_rms_norm_vector(const float* p, const bf16* gamma, float eps, bf16* o, int64_t b, int64_t split_k, int64_t nt, int64_t h) {
  extern __shared__ Bf16x8 staged[];
  const int chunks = (int)(h / 8), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = (int64_t)blockIdx.x * kRows + warp;
  if (row >= b) return;
  Bf16x8* mine = staged + warp * chunks;
  float sum[8] = {};
  for (int c = lane; c < chunks; c += 32 * kAhead) {
    Bf16x8 x[kAhead];
    fold_chunks(x, p + row * split_k * nt, c, chunks, split_k, nt);
    for (int j = 0; j < kAhead && c + 32 * j < chunks; ++j) {
      mine[c + 32 * j] = x[j];
      for (int i = 0; i < 8; ++i) {
        LANDING(3, row * h + (c + 32 * j) * 8 + i, x[j].at[i]);
        sum[i] = __fadd_rn(sum[i], __fmul_rn(f(x[j].at[i]), f(x[j].at[i])));        // S4, S5
      }
    }
  }
  const float r = inverse(group_tree<32>(sum), h, eps);
  for (int c = lane; c < chunks; c += 32) {
    const Bf16x8 v = mine[c], g = load8(gamma + c * 8);
    Bf16x8 out;
    for (int i = 0; i < 8; ++i) out.at[i] = scaled(v.at[i], r, g.at[i], row * h + c * 8 + i);
    store8(o + row * h + c * 8, out);
  }
}

// p f32 [b, split_k, nt], gamma bf16 [h], off, eps -> o bf16 [b, h]; packed. form 0: current, 1: retired.
extern "C" int land_rms_norm(const float* p, const bf16* gamma, int64_t off, float eps, bf16* o, int64_t b, int64_t split_k, int64_t nt, int64_t h,
                             int form, cudaStream_t stream) {
  REQUIRE(6, b >= 0 && b <= INT32_MAX);
  REQUIRE(1, p || b == 0);
  REQUIRE(2, gamma);
  REQUIRE(3, off >= 0);
  REQUIRE(5, o || b == 0);
  REQUIRE(7, split_k >= 1);
  REQUIRE(9, h >= 1);
  REQUIRE(8, off <= nt - h);
  REQUIRE(10, form == 0 || form == 1);
  if (b == 0) return 0;
  const int64_t shared = kRows * h * (int64_t)sizeof(bf16);
  const bool aligned = aligned16(p) && aligned16(gamma) && aligned16(o) && nt % 4 == 0 && off % 4 == 0 && h % 8 == 0;
  if (form == 0 && aligned && shared <= kShared) {
    const cudaError_t refused = cudaFuncSetAttribute(land_rms_norm_vector, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (refused != cudaSuccess) return (int)refused;
    land_rms_norm_vector<<<(unsigned)ceil_div(b, kRows), kRows * 32, (size_t)shared, stream>>>(p + off, gamma, eps, o, b, split_k, nt, h);
  } else {
    land_rms_norm_scalar<<<(unsigned)b, kSums, 0, stream>>>(p + off, gamma, eps, o, split_k, nt, h);
  }
  return (int)cudaGetLastError();
}
