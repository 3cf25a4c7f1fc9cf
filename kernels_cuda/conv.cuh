// The four-tap convolution and its silu, as decode and chunk share them. S tags are those of references/conv_silu.py and conv_silu_chunk.py.
// A thread has C neighbouring channels: 8 in 16-byte accesses, or 1. bf16 values are held as the f32 they stand for, so that the window need
// not be widened for every row.
#pragma once
#include "bf16_table.cuh"

static const int kConvThreads = 256;

template <int C>
struct Channels {
  float at[C];
};

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000); }

// Landings go in pairs: a lone conversion takes the special-function unit, a packed one does not.
__device__ __forceinline__ uint32_t land_pair(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
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
template <int C>
__device__ __forceinline__ Channels<C> load_landed(const bf16* from) {
  Channels<C> x;
  if constexpr (C == 1) x.at[0] = f(*from);
  else {
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(from));
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) x.at[2 * i] = low(pairs[i]), x.at[2 * i + 1] = high(pairs[i]);
  }
  return x;
}
template <int C>
__device__ __forceinline__ void store_landed(bf16* to, const Channels<C>& x) {
  if constexpr (C == 1) *to = bf(x.at[0]);
  else
    __stcs(reinterpret_cast<uint4*>(to),
           make_uint4(land_pair(x.at[0], x.at[1]), land_pair(x.at[2], x.at[3]), land_pair(x.at[4], x.at[5]), land_pair(x.at[6], x.at[7])));
}
template <int C>
__device__ __forceinline__ Channels<C> load_partials(const float* from) {
  Channels<C> x;
  if constexpr (C == 1) x.at[0] = *from;
  else
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 four = __ldcs(reinterpret_cast<const float4*>(from) + i);
      x.at[4 * i] = four.x, x.at[4 * i + 1] = four.y, x.at[4 * i + 2] = four.z, x.at[4 * i + 3] = four.w;
    }
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

// S5, S6, of a landed sum
struct SiluOf {
  static __device__ __forceinline__ bf16 of(float sb) { return bf(__fmul_rn(sb, sigmoid(sb))); }
};
struct Silu {
  __device__ void prepare() {}
  template <int C>
  __device__ __forceinline__ Channels<C> operator()(const Channels<C>& sb) const {
    Channels<C> y;
#pragma unroll
    for (int i = 0; i < C; ++i) y.at[i] = f(SiluOf::of(sb.at[i]));
    return y;
  }
};
// An expf and a division make a row 40 instructions an element, of the 47 that the memory leaves time for. A look-up makes it 25.
struct TabledSilu {
  typedef Bf16Table<bf16, SiluOf, -14, 7> Table;
  Table table;
  __device__ void prepare() {
    table.fill();
    __syncthreads();
  }
  template <int C>
  __device__ __forceinline__ Channels<C> operator()(const Channels<C>& sb) const {
    uint32_t farthest = 0;
#pragma unroll
    for (int i = 0; i < C; ++i) farthest = max(farthest, Table::offset(__float_as_uint(sb.at[i]) >> 16));
    if (farthest >= Table::kSize) return Silu()(sb);
    Channels<C> y;
#pragma unroll
    for (int i = 0; i < C; ++i) y.at[i] = f(table.look_up(__float_as_uint(sb.at[i]) >> 16));
    return y;
  }
};

// Taps in registers and the window before the next row: a thread that walks rows of its channels loads each of them once.
template <int C>
struct Convolution {
  float4 tap[C];
  Channels<C> w0, w1, w2, gone;  // gone: the input that left the window last

  __device__ __forceinline__ explicit Convolution(const float* taps) {
#pragma unroll
    for (int i = 0; i < C; ++i) tap[i] = C == 1 ? make_float4(taps[0], taps[1], taps[2], taps[3]) : __ldg(reinterpret_cast<const float4*>(taps) + i);
  }
  __device__ __forceinline__ void shift(const Channels<C>& x) { gone = w0, w0 = w1, w1 = w2, w2 = x; }

  // One row's output from its input, which shifts the window. `index` is the flat index of the first channel's result.
  template <class Activation>
  __device__ __forceinline__ Channels<C> step(const Channels<C>& x, const Activation& silu, int64_t index) {
    Channels<C> ca;
#pragma unroll
    for (int i = 0; i < C; ++i) {                                                      // S3
      const float w[4] = {w0.at[i], w1.at[i], w2.at[i], x.at[i]}, taps[4] = {tap[i].x, tap[i].y, tap[i].z, tap[i].w};
      ca.at[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        ca.at[i] = PLANT(2, __fmaf_rn(w[j], taps[j], ca.at[i]), __fadd_rn(__fmul_rn(w[j], taps[j]), ca.at[i]));  // MISTAKE 2 = S3.fma:unfused
    }
    const Channels<C> sb = landed(ca);                                                 // S4
    for (int i = 0; i < C; ++i) {
      LANDING(1, index + i, bf(x.at[i]));
      LANDING(4, index + i, bf(sb.at[i]));
    }
    shift(x);
    return silu(sb);
  }
  // S7
  __device__ __forceinline__ void store_window(bf16* to, int64_t inner) const {
    store_landed(to, PLANT(3, w0, gone));  // MISTAKE 3 = S7.select:early
    store_landed(to + inner, PLANT(3, w1, w0));
    store_landed(to + 2 * inner, PLANT(3, w2, w1));
  }
};

// Decode: rows are independent and bring their windows. Rows lie along grid.y; C = 1 with a row a thread is the retired form.
template <int C, class Activation>
__global__ void __launch_bounds__(kConvThreads) conv_rows(const float* p, const float* taps, const bf16* carry, bf16* y, bf16* next,
                                                          int64_t b, int64_t nt, int64_t inner) {
  __shared__ Activation silu;
  silu.prepare();
  const int64_t channel = ((int64_t)blockIdx.x * kConvThreads + threadIdx.x) * C;
  if (channel >= inner) return;
  Convolution<C> conv(taps + channel * 4);
  for (int64_t row = blockIdx.y; row < b; row += gridDim.y) {
    const bf16* window = carry + row * 3 * inner + channel;
    const Channels<C> x = input(load_partials<C>(p + row * nt + channel));
    conv.w0 = load_landed<C>(window);                                                  // S2
    conv.w1 = load_landed<C>(window + inner);
    conv.w2 = load_landed<C>(window + 2 * inner);
    store_landed(y + row * inner + channel, conv.step(x, silu, row * inner + channel));
    if (next) conv.store_window(next + row * 3 * inner + channel, inner);              // a composition may keep the windows itself
  }
}

// 16-byte access to p, y, the windows and the taps; off is added to p already.
static inline bool conv_vector(const float* p, const float* taps, const bf16* carry, const bf16* y, const bf16* next, int64_t nt, int64_t inner) {
  return aligned16(p) && aligned16(taps) && aligned16(carry) && aligned16(y) && aligned16(next) && nt % 4 == 0 && inner % 8 == 0;
}

// Rows a thread must walk for a table to be worth filling: 16 rows of 8 channels, against its 21 of the block's 5,376 entries.
static const int64_t kTablePays = 16;
