// The four-tap convolution and its silu, as decode and chunk share them. S tags are those of references/conv_silu.py and conv_silu_chunk.py.
// A thread has C neighbouring channels: 8 in 16-byte accesses, or 1. bf16 values are held as the f32 they stand for, so that the window need
// not be widened for every row.
#pragma once
#include "common.cuh"

static const int kConvThreads = 256;

template <int C>
struct alignas(C == 8 ? 16 : 4) Channels {
  float at[C];
};

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000); }

template <int C>
__device__ __forceinline__ Channels<C> landed(const Channels<C>& x) {
  Channels<C> out;
  if constexpr (C == 1) out.at[0] = f(bf(x.at[0]));
  else
#pragma unroll
    for (int i = 0; i < C; i += 2) {
      const uint32_t pair = land_pair(x.at[i], x.at[i + 1]);
      out.at[i] = low(pair), out.at[i + 1] = high(pair);
    }
  return out;
}

// What is loaded stays packed until it is used: taking it apart would wait for it.
template <int C>
struct Packed {
  uint4 words;
};
template <>
struct Packed<1> {
  bf16 words;
};
template <int C>
__device__ __forceinline__ Packed<C> load_packed(const bf16* from) {
  return *reinterpret_cast<const Packed<C>*>(from);
}
template <int C>
__device__ __forceinline__ Channels<C> widened(const Packed<C>& x) {
  Channels<C> out;
  if constexpr (C == 1) out.at[0] = f(x.words);
  else widen8(*reinterpret_cast<const Bf16x8*>(&x), out.at);
  return out;
}
template <int C>
__device__ __forceinline__ void store_landed(bf16* to, const Channels<C>& x) {
  if constexpr (C == 1) *to = bf(x.at[0]);
  else global_store8(to, bf8(x.at));
}
template <int C>
__device__ __forceinline__ Channels<C> load_partials(const float* from) {
  Channels<C> x;
  if constexpr (C == 1) x.at[0] = *from;
  else x = *reinterpret_cast<const Channels<8>*>(from);
  return x;
}

// S1
template <int C>
__device__ __forceinline__ Channels<C> input(const Channels<C>& p) {
  Channels<C> sum;
#pragma unroll
  for (int i = 0; i < C; ++i) sum.at[i] = __fadd_rn(PLANT(1, 0.0f, -0.0f), p.at[i]);  // MISTAKE 1 = S1.zero:minus_zero
  return landed(sum);
}

// The taps of a thread's channels, and the three inputs before the next row.
template <int C>
struct Convolution {
  float4 tap[C];
  Channels<C> w[3];

  __device__ __forceinline__ explicit Convolution(const float* taps) {
#pragma unroll
    for (int i = 0; i < C; ++i) tap[i] = C == 1 ? make_float4(taps[0], taps[1], taps[2], taps[3]) : __ldg(reinterpret_cast<const float4*>(taps) + i);
  }
  __device__ __forceinline__ void shift(const Channels<C>& x) { w[0] = w[1], w[1] = w[2], w[2] = x; }

  // One row's output, to be landed, from its input. `index` is the flat index of the first channel's result.
  __device__ __forceinline__ Channels<C> row(const Channels<C>& x, int64_t index) const {
    Channels<C> ca, y;
#pragma unroll
    for (int i = 0; i < C; ++i) {                                                      // S3
      const float inputs[4] = {w[0].at[i], w[1].at[i], w[2].at[i], x.at[i]}, taps[4] = {tap[i].x, tap[i].y, tap[i].z, tap[i].w};
      ca.at[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float fused = __fmaf_rn(inputs[j], taps[j], ca.at[i]);
        ca.at[i] = PLANT(2, fused, __fadd_rn(__fmul_rn(inputs[j], taps[j]), ca.at[i]));  // MISTAKE 2 = S3.fma:unfused
      }
    }
    const Channels<C> sb = landed(ca);                                                 // S4
    for (int i = 0; i < C; ++i) {
      LANDING(1, index + i, bf(x.at[i]));
      LANDING(4, index + i, bf(sb.at[i]));
    }
    if constexpr (C == 1) y.at[0] = sigmoid(sb.at[0]);                                 // S5
    else sigmoid8(sb.at, y.at);
#pragma unroll
    for (int i = 0; i < C; ++i) y.at[i] = __fmul_rn(sb.at[i], y.at[i]);                // S6
    return y;
  }
};

// What a row of decode brings.
template <int C>
struct Arrival {
  Channels<C> p;
  Packed<C> window[3];

  __device__ __forceinline__ void load(const float* partials, const bf16* carry, int64_t inner) {
    p = load_partials<C>(partials);
#pragma unroll
    for (int j = 0; j < 3; ++j) window[j] = load_packed<C>(carry + j * inner);
  }
};

// Decode: rows are independent and bring their windows. Rows lie along grid.y, and a thread walks on by the grid with the taps in registers; the
// next row is on its way while one is computed. C = 1 with a row a thread is the retired form.
template <int C>
__global__ void __launch_bounds__(kConvThreads) conv_rows(const float* p, const float* taps, const bf16* carry, bf16* y, bf16* next,
                                                          int64_t b, int64_t nt, int64_t inner) {
  const int64_t channel = ((int64_t)blockIdx.x * kConvThreads + threadIdx.x) * C;
  if (channel >= inner) return;
  Arrival<C> arrival;
  const auto load = [&](int64_t row) { if (row < b) arrival.load(p + row * nt + channel, carry + row * 3 * inner + channel, inner); };
  load(blockIdx.y);
  Convolution<C> conv(taps + channel * 4);
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const Channels<C> x = input(arrival.p);
#pragma unroll
    for (int j = 0; j < 3; ++j) conv.w[j] = widened(arrival.window[j]);                // S2
    load(row + gridDim.y);
    store_landed(y + row * inner + channel, conv.row(x, row * inner + channel));
    if (!next) continue;                                                               // a composition may keep the windows itself
    bf16* window = next + row * 3 * inner + channel;
    store_landed(window, PLANT(3, conv.w[1], conv.w[0]));                              // S7  MISTAKE 3 = S7.select:early
    store_landed(window + inner, PLANT(3, conv.w[2], conv.w[1]));
    store_landed(window + 2 * inner, PLANT(3, x, conv.w[2]));
  }
}

// Rows, or runs of rows, that the device holds at once where a row takes `across` blocks: no thread waits for a second wave.
template <class... Arguments>
static int64_t side_by_side(void (*kernel)(Arguments...), int64_t across) {
  const int64_t resident = resident_blocks(kernel, kConvThreads);
  return resident > across ? resident / across : 1;
}

template <int C>
static int walk_rows(const float* p, const float* taps, const bf16* carry, bf16* y, bf16* next, int64_t b, int64_t nt, int64_t inner, int64_t most,
                     cudaStream_t stream) {
  const dim3 grid((unsigned)ceil_div(inner, kConvThreads * C), (unsigned)(b < most ? b : most));
  conv_rows<C><<<grid, kConvThreads, 0, stream>>>(p, taps, carry, y, next, b, nt, inner);
  return (int)cudaGetLastError();
}

// 16-byte access to p, y, the windows and the taps; off is added to p already.
static inline bool conv_vector(const float* p, const float* taps, const bf16* carry, const bf16* y, const bf16* next, int64_t nt, int64_t inner) {
  return aligned16(p) && aligned16(taps) && aligned16(carry) && aligned16(y) && aligned16(next) && nt % 4 == 0 && inner % 8 == 0;
}
