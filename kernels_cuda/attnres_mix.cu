// attnres_mix: candidates weighted by the softmax of their scores. The contract is references/attnres_mix.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kScalar = 256, kThreads = 224;  // 4 blocks of 224 threads are the 7168 columns
static const int kMost = 256;                    // candidates whose weights a block holds

__device__ __forceinline__ float power(float score, float mx) { return expf(__fsub_rn(score, mx)); }  // S2
__device__ __forceinline__ float weight(float e, float den) {
  return PLANT(1, __fdiv_rn(e, den), __fmul_rn(e, __fdiv_rn(1.0f, den)));  // S4; MISTAKE 1 = S4.div:reciprocal
}
__device__ __forceinline__ float seed() { return PLANT(2, 0.0f, -0.0f); }  // S5; MISTAKE 2 = S5.zero:minus_zero
__device__ __forceinline__ float with(float acc, float p, float x) {
  return PLANT(3, __fmaf_rn(p, x, acc), __fadd_rn(__fmul_rn(p, x), acc));  // S5; MISTAKE 3 = S5.fma:unfused
}

// Retired form, and the current one where rows are not 16-byte aligned or candidates too many: one column a thread, rows along grid.y.
__global__ void __launch_bounds__(kScalar) attnres_mix_scalar(const float* score, const bf16* x, bf16* o, int64_t b, int64_t c, int64_t h) {
  const int64_t column = (int64_t)blockIdx.x * kScalar + threadIdx.x;
  if (column >= h) return;
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const float* const s = score + row * c;
    float mx = s[0], den = 0.0f, acc = seed();
    for (int64_t j = 1; j < c; ++j) mx = fmaxf(mx, s[j]);                     // S1
    for (int64_t j = 0; j < c; ++j) den = __fadd_rn(den, power(s[j], mx));    // S3
    for (int64_t j = 0; j < c; ++j) {
      const float p = weight(power(s[j], mx), den);
      if (column == 0) KEPT(4, row * c + j, p);
      acc = with(acc, p, f(x[(row * c + j) * h + column]));
    }
    o[row * h + column] = bf(acc);                                           // S6
  }
}

// The weights of a row, by one warp.
__device__ __forceinline__ void weigh(const float* s, int c, float* p, int64_t index) {
  const int lane = threadIdx.x;
  float mx = s[0], den = 0.0f;
#pragma unroll 1
  for (int j = lane; j < c; j += 32) mx = fmaxf(mx, s[j]);                    // S1
  for (int offset = 16; offset >= 1; offset /= 2) mx = fmaxf(mx, __shfl_xor_sync(kWarp, mx, offset));
#pragma unroll 1
  for (int j = lane; j < c; j += 32) p[j] = power(s[j], mx);
  __syncwarp();
  for (int j = 0; j < c; ++j) den = __fadd_rn(den, p[j]);                     // S3
  __syncwarp();
#pragma unroll 1
  for (int j = lane; j < c; j += 32) {
    p[j] = weight(p[j], den);
    if (blockIdx.x == 0) KEPT(4, index + j, p[j]);
  }
}

// Current form: eight columns a thread. Where the number of candidates is `fixed` (0: it is c), all of them are on their way while the first warp
// finds their weights.
template <int fixed>
__global__ void __launch_bounds__(kThreads) attnres_mix_vector(const float* score, const bf16* x, bf16* o, int64_t b, int64_t c, int64_t h) {
  __shared__ float p[kMost];
  const int count = fixed ? fixed : (int)c;
  const int64_t column = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 8;
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const auto part = [=](int j) { return __ldcs(reinterpret_cast<const uint4*>(x + (row * count + j) * h + column)); };
    uint4 held[fixed + 1];
    if (column < h)
#pragma unroll
      for (int j = 0; j < fixed; ++j) held[j] = part(j);
    if (threadIdx.x < 32) weigh(score + row * count, count, p, row * count);
    __syncthreads();
    if (column < h) {
      float acc[8], v[8];
      for (float& a : acc) a = seed();
#pragma unroll (fixed ? fixed : 4)
      for (int j = 0; j < count; ++j) {
        const uint4 words = fixed ? held[fixed ? j : 0] : part(j);
        widen8(*reinterpret_cast<const Bf16x8*>(&words), v);
        for (int i = 0; i < 8; ++i) acc[i] = with(acc[i], p[j], v[i]);
      }
      global_store8(o + row * h + column, bf8(acc));                         // S6
    }
    __syncthreads();  // before p holds the next row's
  }
}

// score f32 [b, c], x bf16 [b, c, h] -> o bf16 [b, h]. form 0: current, 1: retired.
extern "C" int attnres_mix(const float* score, const bf16* x, bf16* o, int64_t b, int64_t c, int64_t h, int form, cudaStream_t stream) {
  REQUIRE(4, b >= 0);
  REQUIRE(5, c >= 1);
  REQUIRE(6, h >= 1);
  REQUIRE(1, score || b == 0);
  REQUIRE(2, x || b == 0);
  REQUIRE(3, o || b == 0);
  REQUIRE(7, form == 0 || form == 1);
  if (b == 0) return 0;
  decltype(&attnres_mix_scalar) const vector[] = {attnres_mix_vector<0>, attnres_mix_vector<1>, attnres_mix_vector<2>, attnres_mix_vector<3>,
                                                  attnres_mix_vector<4>, attnres_mix_vector<5>, attnres_mix_vector<6>, attnres_mix_vector<7>,
                                                  attnres_mix_vector<8>, attnres_mix_vector<9>};
  const bool fits = form == 0 && aligned16(x) && aligned16(o) && h % 8 == 0 && c <= kMost;
  const int threads = fits ? kThreads : kScalar;
  const dim3 grid((unsigned)ceil_div(h, fits ? threads * 8 : threads), (unsigned)(b < 65535 ? b : 65535));
  (fits ? vector[c <= 9 ? c : 0] : attnres_mix_scalar)<<<grid, threads, 0, stream>>>(score, x, o, b, c, h);
  return (int)cudaGetLastError();
}
