// conv_silu: one token a row through the four-tap convolution. The contract is references/conv_silu.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
// Of conv.cuh:
// MISTAKE 1 = S1.zero:minus_zero
// MISTAKE 2 = S3.fma:unfused
// MISTAKE 3 = S7.select:early
#include "conv.cuh"

// As many rows side by side as the device holds, so that the taps are loaded once for many rows. `retired`: one row a thread.
template <int C>
static int conv_silu_rows(const float* p, const float* taps, const bf16* carry, bf16* y, bf16* next, int64_t b, int64_t nt, int64_t inner,
                          bool retired, cudaStream_t stream) {
  const int64_t across = ceil_div(inner, kConvThreads * C), held = ceil_div(resident_blocks(conv_rows<C>, kConvThreads), across);
  const int64_t limit = retired ? 65535 : held, rows = b < limit ? b : limit;
  conv_rows<C><<<dim3((unsigned)across, (unsigned)rows), kConvThreads, 0, stream>>>(p, taps, carry, y, next, b, nt, inner);
  return (int)cudaGetLastError();
}

// p f32 [b, nt], taps f32 [inner, 4], carry bf16 [b, 3, inner], off -> y bf16 [b, inner], next bf16 [b, 3, inner]; packed.
// form 0: current, 1: retired.
extern "C" int conv_silu(const float* p, const float* taps, const bf16* carry, int64_t off, bf16* y, bf16* next, int64_t b, int64_t nt, int64_t inner,
                         int form, cudaStream_t stream) {
  REQUIRE(7, b >= 0);
  REQUIRE(1, p || b == 0);
  REQUIRE(9, inner >= 1);
  REQUIRE(4, off >= 0 && inner <= nt - off);
  REQUIRE(2, taps || b == 0);
  REQUIRE(3, carry || b == 0);
  REQUIRE(5, y || b == 0);
  REQUIRE(6, next || b == 0);
  REQUIRE(10, form == 0 || form == 1);
  if (b == 0) return 0;
  const bool vector = form == 0 && conv_vector(p + off, taps, carry, y, next, nt, inner);
  return (vector ? conv_silu_rows<8> : conv_silu_rows<1>)(p + off, taps, carry, y, next, b, nt, inner, form == 1, stream);
}
