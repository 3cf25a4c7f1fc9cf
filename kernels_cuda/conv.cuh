// The four-tap convolution and its silu, as decode and chunk share them. S tags are those of references/conv_silu.py and conv_silu_chunk.py.
#pragma once
#include "common.cuh"

static const int kConvThreads = 128;

// S1: the input of one channel.
__device__ __forceinline__ bf16 conv_input(float p) { return bf(__fadd_rn(PLANT(1, 0.0f, -0.0f), p)); }  // MISTAKE 1 = S1.zero:minus_zero

// S3, S4: the window, oldest input first, against the taps.
__device__ __forceinline__ bf16 convolve(bf16 w0, bf16 w1, bf16 w2, bf16 w3, float4 tap) {
  const float w[4] = {f(w0), f(w1), f(w2), f(w3)}, taps[4] = {tap.x, tap.y, tap.z, tap.w};
  float ca = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; ++j) ca = PLANT(2, __fmaf_rn(w[j], taps[j], ca), __fadd_rn(__fmul_rn(w[j], taps[j]), ca));  // MISTAKE 2 = S3.fma:unfused
  return bf(ca);
}

// S5, S6
__device__ __forceinline__ bf16 silu(bf16 sb) { return bf(__fmul_rn(f(sb), sigmoid(f(sb)))); }

// C neighbouring channels of one thread: 8 in 16-byte accesses, or 1.
template <int C>
struct Channels {
  bf16 at[C];
};
template <int C>
__device__ __forceinline__ Channels<C> load_channels(const bf16* from) {
  Channels<C> x;
  if constexpr (C == 8) *reinterpret_cast<uint4*>(&x) = *reinterpret_cast<const uint4*>(from);
  else x.at[0] = *from;
  return x;
}
template <int C>
__device__ __forceinline__ void store_channels(bf16* to, const Channels<C>& x) {
  if constexpr (C == 8) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&x);
  else *to = x.at[0];
}
template <int C>
struct Partials {
  float at[C];
  __device__ __forceinline__ void load(const float* from) {
    if constexpr (C == 8) {
      reinterpret_cast<float4*>(at)[0] = __ldcs(reinterpret_cast<const float4*>(from));
      reinterpret_cast<float4*>(at)[1] = __ldcs(reinterpret_cast<const float4*>(from) + 1);
    } else {
      at[0] = *from;
    }
  }
};

// Taps in registers and the window before the next row: a thread that walks rows of its channels loads each of them once.
template <int C>
struct Convolution {
  float4 tap[C];
  Channels<C> w0, w1, w2, gone;  // gone: the input that left the window last

  __device__ __forceinline__ explicit Convolution(const float* taps) {
#pragma unroll
    for (int i = 0; i < C; ++i) tap[i] = C == 8 ? __ldg(reinterpret_cast<const float4*>(taps) + i) : make_float4(taps[0], taps[1], taps[2], taps[3]);
  }
  __device__ __forceinline__ static Channels<C> input(const Partials<C>& p) {
    Channels<C> x;
#pragma unroll
    for (int i = 0; i < C; ++i) x.at[i] = conv_input(p.at[i]);
    return x;
  }
  __device__ __forceinline__ void shift(const Channels<C>& x) { gone = w0, w0 = w1, w1 = w2, w2 = x; }
  // One row: the output, and the window shifted by the row's input. `index` is the flat index of the first channel's result.
  __device__ __forceinline__ Channels<C> step(const Partials<C>& p, int64_t index) {
    const Channels<C> x = input(p);
    Channels<C> y;
#pragma unroll
    for (int i = 0; i < C; ++i) {
      LANDING(1, index + i, x.at[i]);
      const bf16 sb = convolve(w0.at[i], w1.at[i], w2.at[i], x.at[i], tap[i]);
      LANDING(4, index + i, sb);
      y.at[i] = silu(sb);
    }
    shift(x);
    return y;
  }
  // S7
  __device__ __forceinline__ void store_window(bf16* to, int64_t inner) const {
    store_channels<C>(to, PLANT(3, w0, gone));  // MISTAKE 3 = S7.select:early
    store_channels<C>(to + inner, PLANT(3, w1, w0));
    store_channels<C>(to + 2 * inner, PLANT(3, w2, w1));
  }
};

// Decode: rows are independent and bring their windows. Rows lie along grid.y; C = 1 with a row a thread is the retired form.
template <int C>
__global__ void __launch_bounds__(kConvThreads) conv_rows(const float* p, const float* taps, const bf16* carry, bf16* y, bf16* next,
                                                          int64_t b, int64_t nt, int64_t inner) {
  const int64_t channel = ((int64_t)blockIdx.x * kConvThreads + threadIdx.x) * C;
  if (channel >= inner) return;
  Convolution<C> conv(taps + channel * 4);
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const int64_t window = row * 3 * inner + channel;
    Partials<C> now;
    now.load(p + row * nt + channel);
    conv.w0 = load_channels<C>(carry + window);                                      // S2
    conv.w1 = load_channels<C>(carry + window + inner);
    conv.w2 = load_channels<C>(carry + window + 2 * inner);
    store_channels<C>(y + row * inner + channel, conv.step(now, row * inner + channel));
    if (next) conv.store_window(next + window, inner);                               // S7; a composition may keep the windows itself
  }
}

// 16-byte access to p, y, the windows and the taps; off is added to p already.
static inline bool conv_vector(const float* p, const float* taps, const bf16* carry, const bf16* y, const bf16* next, int64_t nt, int64_t inner) {
  return aligned16(p) && aligned16(taps) && aligned16(carry) && aligned16(y) && aligned16(next) && nt % 4 == 0 && inner % 8 == 0;
}
