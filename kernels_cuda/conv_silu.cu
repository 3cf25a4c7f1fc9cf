// conv_silu: one token a row through the four-tap convolution. The contract is references/conv_silu.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
// Of conv.cuh:
// MISTAKE 1 = S1.zero:minus_zero
// MISTAKE 2 = S3.fma:unfused
// MISTAKE 3 = S7.select:early
#include "conv.cuh"

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
  p += off;
  if (form == 1 || !conv_vector(p, taps, carry, y, next, nt, inner)) return walk_rows<1>(p, taps, carry, y, next, b, nt, inner, 65535, stream);
  return walk_rows<8>(p, taps, carry, y, next, b, nt, inner, side_by_side(conv_rows<8>, ceil_div(inner, kConvThreads * 8)), stream);
}
