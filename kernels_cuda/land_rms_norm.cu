// land_rms_norm: fold split-k partials, land them, norm what was landed. The contract is references/land_rms_norm.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include <cuda_pipeline.h>

#include "norm.cuh"

static const int kSlots = 4;  // pieces of partials in a warp's ring: one in use, the others on their way

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

// Eight columns. The product of two bf16 in f32, landed, is their bf16 product: where f32 rounds it at all, it lies below half the smallest bf16.
__device__ __forceinline__ Bf16x8 scaled8(const Bf16x8& v, float r, const Bf16x8& gamma, int64_t index) {
  float x[8];
  widen8(v, x);
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(x[i], r);
  const Bf16x8 n = bf8(x);                                                          // S8
  for (int i = 0; i < 8; ++i) LANDING(8, index + i, n.at[i]);
  return hmul8(n, gamma);                                                           // S9
}

// What a warp folds, as one stream of pieces of 256 columns: row after row `step` apart, along a row piece after piece, and of each its split_k
// partials. It is kSlots - 1 pieces ahead, across the end of a row, too.
struct Stream {
  float* const ring;
  const float* const p;
  const int64_t b, split_k, nt, step;
  const int h;
  int64_t row, s = 0;
  const float* from = p + row * split_k * nt;
  int column = 0;
  unsigned slot = 0;

  __device__ void ask() {
    const int left = row < b ? h - column : 0;
    for (int i = threadIdx.x % 32 * 4; i < kSums; i += 128)
      if (i < left) __pipeline_memcpy_async(ring + slot * kSums + i, from + i, 16);
    __pipeline_commit();
    slot = (slot + 1) % kSlots, from += nt;
    if (++s < split_k) return;
    s = 0, column += kSums;
    if (column >= h) column = 0, row += step;
    from = p + row * split_k * nt + column;
  }

  // The lane's eight columns of the next piece. Past the last column they are anything.
  __device__ F32x8 next() {
    __pipeline_wait_prior(kSlots - 2);
    __syncwarp();  // every lane's part is there, and every lane has read the piece before, whose slot is asked for
    ask();
    return load8(ring + slot * kSums + threadIdx.x % 32 * 8);
  }
};

// Current form: a warp a row, and on to the row a grid further. Lane l takes columns 8l .. 8l + 7 of every 256, which are those of eight partial
// sums in their order. Landed columns wait in shared memory, and gamma is kept there.
__global__ void __launch_bounds__(kRows * 32)
    land_rms_norm_vector(const float* p, const bf16* gamma, float eps, bf16* o, int64_t b, int64_t split_k, int64_t nt, int64_t h) {
  extern __shared__ __align__(16) float shared[];
  const int warp = threadIdx.x / 32, own = threadIdx.x % 32 * 8, width = (int)h;
  const int64_t step = (int64_t)gridDim.x * kRows;
  int64_t row = (int64_t)blockIdx.x * kRows + warp;
  bf16 *const scale = reinterpret_cast<bf16*>(shared + kRows * kSlots * kSums), *const landed_row = scale + (warp + 1) * width;
  Stream stream{shared + warp * kSlots * kSums, p, b, split_k, nt, step, width, row};
  for (int i = 1; i < kSlots; ++i) stream.ask();
  for (int c = threadIdx.x * 8; c < width; c += blockDim.x * 8) store8(scale + c, load8(gamma + c));
  __syncthreads();
  for (; row < b; row += step) {
    float sum[8] = {};
    for (int c = own; c - own < width; c += kSums) {
      float acc[8];
      for (float& a : acc) a = seed();                                              // S1
      for (int64_t s = 0; s < split_k; ++s) {                                       // S2
        const F32x8 term = stream.next();
        for (int i = 0; i < 8; ++i) acc[i] = __fadd_rn(acc[i], term.at[i]);
      }
      if (c >= width) continue;
      Bf16x8 x;
      for (int i = 0; i < 8; ++i) x.at[i] = landed(acc[i]);                         // S3
      for (int i = 0; i < 8; ++i) LANDING(3, row * width + c + i, x.at[i]);
      store8(landed_row + c, x);
      widen8(x, acc);
      for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(acc[i], acc[i]));  // S4, S5
    }
    const float r = inverse(group_tree<32>(sum), width, eps);
    for (int c = own; c < width; c += kSums)
      stream_store8(o + row * width + c, scaled8(load8(landed_row + c), r, load8(scale + c), row * width + c));
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
  const int64_t shared = kRows * kSlots * kSums * (int64_t)sizeof(float) + (kRows + 1) * h * (int64_t)sizeof(bf16);
  const bool aligned = aligned16(p) && aligned16(gamma) && aligned16(o) && nt % 4 == 0 && off % 4 == 0 && h % 8 == 0;
  if (form == 0 && aligned && shared <= kMostShared)
    return launch_rows(land_rms_norm_vector, b, shared, stream, p + off, gamma, eps, o, b, split_k, nt, h);
  land_rms_norm_scalar<<<(unsigned)b, kSums, 0, stream>>>(p + off, gamma, eps, o, split_k, nt, h);
  return (int)cudaGetLastError();
}
