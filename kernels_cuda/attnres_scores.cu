// attnres_scores: scores of the attention residual. The contract is references/attnres_scores.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "norm.cuh"

static const int kHidden = 7168;  // the width whose candidates stay in registers

__device__ __forceinline__ float inverse(float total, int64_t h, float eps) {
  const float shifted = __fadd_rn(__fdiv_rn(total, (float)h), eps);                // S3
  return PLANT(1, rsqrtf(shifted), __fdiv_rn(1.0f, __fsqrt_rn(shifted)));          // S4; MISTAKE 1 = S4.rsqrt:exact_rsqrt
}

__device__ __forceinline__ float with_square(float sum, float x) { return __fadd_rn(sum, __fmul_rn(x, x)); }  // S1, S2

__device__ __forceinline__ float with_term(float sum, float x, float r, float sw) {
  const float scaled = __fmul_rn(x, r);                                            // S5
  return PLANT(2, __fadd_rn(sum, __fmul_rn(scaled, sw)), __fmaf_rn(scaled, sw, sum));  // S5, S6; MISTAKE 2 = S6.lanes:fused_squares
}

// Retired form, and the current one where x or sw is not 16-byte aligned: a block a candidate, one partial sum a thread.
__global__ void __launch_bounds__(kSums) attnres_scores_scalar(const bf16* x, const float* sw, float eps, float* score, int64_t h) {
  const int64_t candidate = blockIdx.x;
  const bf16* const row = x + candidate * h;
  float sum = 0.0f, total = 0.0f;
  for (int64_t i = threadIdx.x; i < h; i += kSums) sum = with_square(sum, f(row[i]));
  const float r = inverse(block_tree<kSums>(sum), h, eps);
  if (threadIdx.x == 0) KEPT(4, candidate, r);
  for (int64_t i = threadIdx.x; i < h; i += kSums) total = with_term(total, f(row[i]), r, sw[i]);
  total = block_tree<kSums>(total);
  if (threadIdx.x == 0) score[candidate] = nan32(total);
}

__device__ __forceinline__ uint4 fetch(const bf16* p) { return __ldcs(reinterpret_cast<const uint4*>(p)); }
__device__ __forceinline__ void widen(const uint4& words, float (&x)[8]) { widen8(*reinterpret_cast<const Bf16x8*>(&words), x); }

// Current form: a warp a candidate, and on to the one a grid further. Lane l takes columns 8l .. 8l + 7 of every 256, which are those of eight
// partial sums in their order. Where the width is `fixed` (0: it is h) the candidate stays in registers between its two passes, and in the second
// one each register is filled again from the next candidate as soon as it is read. There sw lies in shared memory, its 16-byte words sorted so
// that neighbouring lanes read neighbours.
template <int fixed>
__global__ void __launch_bounds__(kRows * 32, fixed ? 3 : 1)
    attnres_scores_vector(const bf16* x, const float* sw, float eps, float* score, int64_t candidates, int64_t h) {
  constexpr int held_chunks = fixed ? fixed / kSums : 1;
  __shared__ float4 weights[held_chunks][2][32];
  const int lane = threadIdx.x % 32, own = lane * 8, width = fixed ? fixed : (int)h;
  const int chunks = fixed ? held_chunks : (width - own + kSums - 1) / kSums;
  const int64_t step = (int64_t)gridDim.x * kRows;
  int64_t candidate = (int64_t)blockIdx.x * kRows + threadIdx.x / 32;
  uint4 held[held_chunks];
  if constexpr (fixed != 0) {
    if (candidate < candidates)
      for (int j = 0; j < held_chunks; ++j) held[j] = fetch(x + candidate * width + own + j * kSums);
    for (int i = threadIdx.x; i < fixed / 4; i += kRows * 32) weights[i / 64][i % 2][i % 64 / 2] = reinterpret_cast<const float4*>(sw)[i];
    __syncthreads();
  }
  for (; candidate < candidates; candidate += step) {
    const bf16 *const now = x + candidate * width + own, *const next = now + step * width;
    const bool more = candidate + step < candidates;
    float sum[8] = {}, total[8] = {}, v[8];
#pragma unroll (fixed ? held_chunks : 1)
    for (int j = 0; j < chunks; ++j) {
      widen(fixed ? held[fixed ? j : 0] : fetch(now + j * kSums), v);
      for (int i = 0; i < 8; ++i) sum[i] = with_square(sum[i], v[i]);
    }
    const float r = inverse(group_tree<32>(sum), width, eps);
    if (lane == 0) KEPT(4, candidate, r);
#pragma unroll (fixed ? held_chunks : 1)
    for (int j = 0; j < chunks; ++j) {
      F32x8 weight;
      if constexpr (fixed != 0) {
        widen(held[j], v);
        if (more) held[j] = fetch(next + j * kSums);
        reinterpret_cast<float4*>(&weight)[0] = weights[j][0][lane], reinterpret_cast<float4*>(&weight)[1] = weights[j][1][lane];
      } else {
        widen(fetch(now + j * kSums), v);
        weight = load8(sw + own + j * kSums);
      }
      for (int i = 0; i < 8; ++i) total[i] = with_term(total[i], v[i], r, weight.at[i]);
    }
    const float all = group_tree<32>(total);  // S6
    if (lane == 0) score[candidate] = nan32(all);
  }
}

// x bf16 [b, c, h], sw f32 [h], eps -> score f32 [b, c]. form 0: current, 1: retired.
extern "C" int attnres_scores(const bf16* x, const float* sw, float eps, float* score, int64_t b, int64_t c, int64_t h, int form,
                              cudaStream_t stream) {
  REQUIRE(5, b >= 0 && b <= INT32_MAX);
  REQUIRE(6, c >= 1 && c <= INT32_MAX);
  REQUIRE(5, b * c <= INT32_MAX);
  REQUIRE(7, h >= 1 && h <= INT32_MAX);
  REQUIRE(1, x || b == 0);
  REQUIRE(2, sw);
  REQUIRE(4, score || b == 0);
  REQUIRE(8, form == 0 || form == 1);
  if (b == 0) return 0;
  if (form == 0 && aligned16(x) && aligned16(sw) && h % 8 == 0)
    return launch_rows(h == kHidden ? attnres_scores_vector<kHidden> : attnres_scores_vector<0>, b * c, 0, stream, x, sw, eps, score, b * c, h);
  attnres_scores_scalar<<<(unsigned)(b * c), kSums, 0, stream>>>(x, sw, eps, score, h);
  return (int)cudaGetLastError();
}
