// moe_chain: the local experts of a mixture, combined by routing weight at the end. The contract is references/moe_chain.py.
// Build: -O3 -fmad=false, no fast-math.
#include "moe.cuh"

struct Chain {
  static const int kGroup = 128;
  static __device__ __forceinline__ float middle(float, bf16 act) { return f(act); }                         // S5
  static __device__ __forceinline__ float combine(float w, bf16 out, float acc) {
    return PLANT(3, __fmaf_rn(w, f(out), acc), __fadd_rn(__fmul_rn(w, f(out)), acc));                        // S7  MISTAKE 3 = S7.fma:unfused
  }
};

// x bf16 [b, h], ids i32 [b, k], w f32 [b, k], w13 [experts, rows13, pairs_h], s13 [experts, rows13, groups_h], w2 [experts, h, pairs_i],
// s2 [experts, h, groups_i], first, cap -> o bf16 [b, h]; packed. form 0: current, 1: retired.
extern "C" int moe_chain(const bf16* x, const int32_t* ids, const float* w, const uint8_t* w13, const uint8_t* s13, const uint8_t* w2,
                         const uint8_t* s2, int64_t first, int64_t cap, bf16* o, int64_t b, int64_t h, int64_t k, int64_t experts, int64_t rows13,
                         int64_t pairs_h, int64_t groups_h, int64_t pairs_i, int64_t groups_i, int form, cudaStream_t stream) {
  REQUIRE_EXPERTS(128);
  if (b == 0) return 0;
  return run_experts<Chain>(x, ids, w, w13, s13, w2, s2, o, {b, h, k, experts, rows13 / 2, first, cap}, form, stream);
}
