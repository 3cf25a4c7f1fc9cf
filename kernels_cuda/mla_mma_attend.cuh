// Of the mma form of mla_paged: probabilities, and the sum of probability times row of each split.
#pragma once
#include "mla_mma_pages.cuh"

namespace mla {

// S4: maximum and denominator of each head from those of the splits, eight lanes a head.
__device__ __forceinline__ void join_splits(const Operands& a, const Split& x, float* top, float* den, float* inverse) {
  const int lane = threadIdx.x % 8, n = splits_of(pages_of(x.context));
  for (int head = threadIdx.x / 8; head < kGroup; head += kThreads / 8) {
    const float2* const from = a.stats + (x.row * a.heads + x.head + (head < x.heads ? head : 0)) * a.splits;
    float2 part[kSplits / 8];
    float most = -FLT_MAX, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSplits / 8; ++i) {
      part[i] = i * 8 + lane < n ? from[i * 8 + lane] : make_float2(-FLT_MAX, 0.0f);
      most = fmaxf(most, part[i].x);
    }
    for (int offset = 4; offset; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
#pragma unroll
    for (int i = 0; i < kSplits / 8; ++i) sum = __fadd_rn(sum, __fmul_rn(part[i].y, expf(__fsub_rn(part[i].x, most))));
    for (int offset = 4; offset; offset /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
    if (lane != 0) continue;
    top[head] = most, den[head] = sum, inverse[head] = __fdiv_rn(1.0f, sum);
    if (x.index == 0 && head < x.heads) {
      KEPT(4, 2 * x.row * a.heads + x.head + head, most);
      KEPT(4, (2 * x.row + 1) * a.heads + x.head + head, sum);
    }
  }
}

// n / d to nearest even by the rounded 1 / d, for n = 0 or above 2^-60 and d in 1 .. 2^31: the first step leaves less than an ulp, and of that the
// remainder is exact, so that the second rounds as division does.
__device__ __forceinline__ float quotient(float n, float d, float inverse) {
  float q = __fmul_rn(n, inverse);
  q = __fmaf_rn(__fmaf_rn(-d, q, n), inverse, q);
  return __fmaf_rn(__fmaf_rn(-d, q, n), inverse, q);
}

// S5: the landed probabilities of a page, [96 heads, 64 tokens]; two blocks of eight heads at a time.
__device__ __forceinline__ void land_probabilities(bf16* to, const float (&s)[24], const float* top, const float* den, const float* inverse,
                                                   const Operands& a, const Split& x, int page) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4 * 48;
#pragma unroll
  for (int i = 0; i < 24; i += 8) {
    uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      const int head = group + (i + k) / 4 * 8 + lane % 4 * 2;
      const float2 m = *reinterpret_cast<const float2*>(top + head), d = *reinterpret_cast<const float2*>(den + head);
      const float2 r = *reinterpret_cast<const float2*>(inverse + head);
      const float n0 = expf(__fsub_rn(s[i + k], m.x)), n1 = expf(__fsub_rn(s[i + k + 1], m.y));
      float p0 = PLANT(6, quotient(n0, d.x, r.x), __fmul_rn(n0, r.x));  // MISTAKE 6 = mma/S5.div:reciprocal
      float p1 = PLANT(6, quotient(n1, d.y, r.y), __fmul_rn(n1, r.y));
      if (MISTAKE != 6 && ((n0 > 0.0f && n0 < 0x1p-60f) || (n1 > 0.0f && n1 < 0x1p-60f))) p0 = __fdiv_rn(n0, d.x), p1 = __fdiv_rn(n1, d.y);
      const __nv_bfloat162 p = __floats2bfloat162_rn(p0, p1);
      packed[k / 2] = *reinterpret_cast<const uint32_t*>(&p);
#ifdef TRACE
      const int t = (x.first + page) * kTokens + warp % 4 * 16 + lane / 4 + k / 2 % 2 * 8;
      for (int e = 0; e < 2 && head + e < x.heads && t < x.context; ++e)
        LANDING(5, scores_before(a, x.row) + (int64_t)(x.head + head + e) * x.context + t, e ? p.y : p.x);
#endif
    }
    store_fragments_transposed(to + swizzled(group + i * 2 + lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2), packed);
  }
}

// S6, half a page's: two blocks of 64 latent columns a warpgroup += rows x probabilities. Warpgroup g has blocks g, g + 2, g + 4, g + 6.
template <int half>
__device__ __forceinline__ void multiply_half(float (&d)[4][48], const bf16* ring, const bf16* probabilities, int page) {
#pragma unroll
  for (int i = 2 * half; i < 2 * half + 2; ++i) {
    const int block = threadIdx.x / 128 + 2 * i, step = 3 * page + block / 3;
    const uint64_t rows = slab(ring + step % kRing * kThird + block % 3 * kTile);
#pragma unroll
    for (int k = 0; k < 4; ++k) product96(d[i], bytes_on(rows, k * 2048), bytes_on(slab(probabilities), k * 32));
  }
  wgmma_commit();
}

template <bool vector>
__global__ void __launch_bounds__(kThreads, 1) attend(const __grid_constant__ Operands a) {
  extern __shared__ __align__(1024) bf16 shared[];
  bf16 *const queries = shared, *const ring = shared + 9 * kPanel, *const probabilities = ring + kRing * kThird;
  float *const top = reinterpret_cast<float*>(probabilities + kPanel), *const den = top + kGroup, *const inverse = den + kGroup;
  launch_dependents();
  const Split x = split_of(a);
  if (x.count <= 0) return;
  for (int step = 0; step < 2; ++step) request<vector>(ring, a, x, step);
  await_launch();
  stage_queries(queries, a, x);
  join_splits(a, x, top, den, inverse);
  await_copies<0, true>();
  float d[4][48] = {};
  for (int page = 0; page < x.count; ++page) {
    float s[24] = {};
    const int step = 3 * page;
    await_copies<1, true>();  // and every product of the page before is done
    multiply_third(s, ring, queries, step);
    request<vector>(ring, a, x, step + 2);
    request<vector>(ring, a, x, step + 3);
    await_copies<2, true>();
    multiply_third(s, ring, queries, step + 1);
    await_copies<1, true>();
    multiply_third(s, ring, queries, step + 2);
    wgmma_await<0>();
    settle(s);
    land_scores<true>(s, a, x, page);
    land_probabilities(probabilities, s, top, den, inverse, a, x, page);
    publish();
    __syncthreads();
    wgmma_begin();
    multiply_half<0>(d, ring, probabilities, page);
    multiply_half<1>(d, ring, probabilities, page);
    wgmma_await<1>();
    __syncthreads();  // the first third is done with
    request<vector>(ring, a, x, step + 4);
    wgmma_await<0>();
  }
  const int lane = threadIdx.x % 32, column = threadIdx.x / 128 * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
  float* const to = a.parts + ((x.row * a.splits + x.index) * a.heads + x.head) * kLatentWidth + column;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    settle(d[i]);
#pragma unroll
    for (int c = 0; c < 48; ++c) {
      const int head = c / 4 * 8 + lane % 4 * 2 + c % 2;
      if (head < x.heads) to[head * kLatentWidth + i * 128 + c / 2 % 2 * 8] = d[i][c];
    }
  }
}

}  // namespace mla
