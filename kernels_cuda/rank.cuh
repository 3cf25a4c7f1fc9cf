// Keys that order as the values do, for searches in parallel.
#pragma once
#include "common.cuh"

static const unsigned kNaNKey = 0xffffffffu;  // above all others; 0 is below all others, and no value's

// -0 has the key of +0.
__device__ __forceinline__ unsigned key_of(float x) {
  if (x != x) return kNaNKey;
  const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
