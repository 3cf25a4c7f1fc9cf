// lse_merge: one window of keys merged into the running attention of earlier ones. The contract is references/lse_merge.py; S tags are its steps.
// acc_out may be acc and lse_out may be lse: a row is read whole before it is written. o and lw may lie on another device.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kWidth = 128, kLanes = 16, kThreads = 256, kRows = kThreads / kLanes;
static_assert(kLanes * 8 == kWidth, "a lane holds eight columns");

struct Weights {
  float merged, old, window;
  bool first, empty_accumulator, empty_window;
};

__device__ __forceinline__ Weights weights(float lse, float lw, bool reset) {
  const float empty = -INFINITY;
  if (reset) return {lw, 0.0f, 1.0f, true, false, lw == empty};                                              // S1
  const float m = fmaxf(lse, lw);                                                                            // S2
  const float apart = __fsub_rn(lse, m);
  const float before = PLANT(1, expf(apart), __expf(apart));                                                 // S3; MISTAKE 1 = S3.exp:fast_exp
  const float merged = __fadd_rn(m, logf(__fadd_rn(before, expf(__fsub_rn(lw, m)))));                        // S3
  const Weights both = {merged, expf(__fsub_rn(lse, merged)), expf(__fsub_rn(lw, merged)), false, lse == empty, lw == empty};  // S4
  return both;
}

// A product with 1 keeps every bit but a NaN's payload, which is stored as 0x7fffffff.
__device__ __forceinline__ float same(float x) { return __fmul_rn(x, 1.0f); }

__device__ __forceinline__ float lse_of(const Weights& w, float lse, float lw) {
  if (w.empty_window) return w.first ? lw : same(lse);  // S7
  return same(w.empty_accumulator ? lw : w.merged);     // S6
}

__device__ __forceinline__ float merged(float acc, float o, const Weights& w) {
  if (w.first) acc = PLANT(2, 0.0f, -0.0f);                                                            // S1  MISTAKE 2 = S1.zero:minus_zero
  const float part = __fmul_rn(o, w.window);
  const float sum = PLANT(3, __fmaf_rn(acc, w.old, part), __fadd_rn(__fmul_rn(acc, w.old), part));     // S5; MISTAKE 3 = S5.fma:unfused
  const float total = w.empty_accumulator ? same(o) : sum;                                             // S6
  return PLANT(4, w.empty_window, false) ? same(acc) : total;                                          // S7  MISTAKE 4 = S7.choose:never
}

// Retired form, and the current one where a base is not 16-byte aligned: a block a row, one column a thread.
__global__ void __launch_bounds__(kWidth) lse_merge_scalar(const float* acc, const float* lse, const bf16* o, const float* lw, bool reset,
                                                           float* acc_out, float* lse_out, int64_t t, int64_t h) {
  const int64_t row = blockIdx.x, at = row % h * t + row / h, i = row * kWidth + threadIdx.x;
  const float before = reset ? 0.0f : lse[at], window = lw[at];
  const Weights w = weights(before, window, reset);
  acc_out[i] = merged(reset ? 0.0f : acc[i], f(o[i]), w);
  __syncthreads();  // lse_out may be lse
  if (threadIdx.x == 0) lse_out[at] = lse_of(w, before, window);
}

// Current form: 16 lanes a row, eight columns each. A block takes 16 tokens of one head, whose log-sums are neighbours: of 16 heads of one token
// each would be read and written as a sector of its own.
__global__ void __launch_bounds__(kThreads) lse_merge_vector(const float* acc, const float* lse, const bf16* o, const float* lw, bool reset,
                                                             float* acc_out, float* lse_out, int64_t t, int64_t h) {
  const int lane = threadIdx.x % kLanes;
  const unsigned half = 0xffffu << (threadIdx.x & 16);  // the lanes of this row
  for (int64_t token = (int64_t)blockIdx.y * kRows + threadIdx.x / kLanes; token < t; token += (int64_t)gridDim.y * kRows) {
    const int64_t first = (token * h + blockIdx.x) * kWidth + lane * 8, at = blockIdx.x * t + token;
    const uint4 loaded = __ldcs(reinterpret_cast<const uint4*>(o + first));
    float4 low = {}, high = {};
    if (!reset) {
      low = __ldcs(reinterpret_cast<const float4*>(acc + first));
      high = __ldcs(reinterpret_cast<const float4*>(acc + first) + 1);
    }
    const float before = reset ? 0.0f : lse[at], window_lse = lw[at];
    const Weights w = weights(before, window_lse, reset);
    const Bf16x8 window = load8(reinterpret_cast<const bf16*>(&loaded));
    const float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float r[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) r[i] = merged(a[i], f(window.at[i]), w);
    __stcs(reinterpret_cast<float4*>(acc_out + first), make_float4(r[0], r[1], r[2], r[3]));
    __stcs(reinterpret_cast<float4*>(acc_out + first) + 1, make_float4(r[4], r[5], r[6], r[7]));
    __syncwarp(half);  // lse_out may be lse
    if (lane == 0) lse_out[at] = lse_of(w, before, window_lse);
  }
}

// acc f32 [t, h, 128], lse f32 [h, t], o bf16 [t, h, 128], lw f32 [h, t], reset -> acc_out f32 [t, h, 128], lse_out f32 [h, t].
// form 0: current, 1: retired.
extern "C" int lse_merge(const float* acc, const float* lse, const bf16* o, const float* lw, int64_t reset, float* acc_out, float* lse_out, int64_t t,
                         int64_t h, int form, cudaStream_t stream) {
  REQUIRE(8, t >= 0);
  REQUIRE(9, h >= 1);
  REQUIRE(8, t * h <= INT32_MAX);
  REQUIRE(5, reset == 0 || reset == 1);
  REQUIRE(1, acc || t == 0);
  REQUIRE(2, lse || t == 0);
  REQUIRE(3, o || t == 0);
  REQUIRE(4, lw || t == 0);
  REQUIRE(6, acc_out || t == 0);
  REQUIRE(7, lse_out || t == 0);
  REQUIRE(10, form == 0 || form == 1);
  if (t == 0) return 0;
  if (form == 0 && aligned16(acc) && aligned16(o) && aligned16(acc_out)) {
    const int64_t needed = ceil_div(t, kRows);
    const dim3 grid((unsigned)h, (unsigned)(needed < 65535 ? needed : 65535));
    lse_merge_vector<<<grid, kThreads, 0, stream>>>(acc, lse, o, lw, reset, acc_out, lse_out, t, h);
  } else {
    lse_merge_scalar<<<(unsigned)(t * h), kWidth, 0, stream>>>(acc, lse, o, lw, reset, acc_out, lse_out, t, h);
  }
  return (int)cudaGetLastError();
}
