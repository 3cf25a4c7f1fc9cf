// add2: one bf16 addition. The contract is references/add2.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "elementwise.cuh"

struct Add2 {
  // A mistake: the f32 sum is taken toward zero, so that cutting it is one truncation.
  static __device__ __forceinline__ bf16 truncated(bf16 a, bf16 b) { return __float2bfloat16_rz(__fadd_rz(f(a), f(b))); }
  static __device__ __forceinline__ bf16 one(bf16 a, bf16 b, int64_t) {
    const bf16 sum = PLANT(1, __hadd_rn(a, b), truncated(a, b));  // S1  MISTAKE 1 = S1.hadd:truncated
    return PLANT(2, sum, flushed(sum));                           // S1  MISTAKE 2 = S1.hadd:flushed
  }
};

// a bf16 [m, n], b bf16 [m, n] -> o bf16 [m, n]. form 0: current, 1: retired.
extern "C" int add2(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb, int form, cudaStream_t stream) {
  return elementwise<Add2>(a, b, o, m, n, lda, ldb, form, stream);
}
