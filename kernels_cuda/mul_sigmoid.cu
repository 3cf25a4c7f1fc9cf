// mul_sigmoid: a times the landed sigmoid of b. The contract is references/mul_sigmoid.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "elementwise.cuh"

struct MulSigmoid {
  static __device__ __forceinline__ float by_tanh(float x) { return __fadd_rn(__fmul_rn(0.5f, tanhf(__fmul_rn(0.5f, x))), 0.5f); }
  // Toward zero to f32 and cut: one truncation.
  static __device__ __forceinline__ bf16 truncated(bf16 a, bf16 b) { return __float2bfloat16_rz(__fmul_rz(f(a), f(b))); }
  static __device__ __forceinline__ bf16 one(bf16 a, bf16 b, int64_t index) {
    const bf16 gate = bf(PLANT(1, sigmoid(f(b)), by_tanh(f(b))));          // S1  MISTAKE 1 = S1.sigmoid:sigmoid_by_tanh
    LANDING(1, index, gate);
    return PLANT(2, __hmul_rn(a, gate), truncated(a, gate));               // S2  MISTAKE 2 = S2.hmul:truncated
  }
};

// One decision for eight quotients: an exponential and a division each make 36 instructions an element, of the 42 that the memory leaves time for.
struct Gated {
  static const int kThreads = 256, kBlocks = 4;
  __device__ void prepare() {}
  __device__ __forceinline__ Bf16x8 eight(const Bf16x8& a, const Bf16x8& b, int64_t index) const {
    float x[8], y[8];
    widen8(b, x);
    sigmoid8(x, y);
    for (int i = 0; i < 8; ++i) y[i] = PLANT(1, y[i], MulSigmoid::by_tanh(x[i]));
    const Bf16x8 gate = bf8(y);                                            // S1
    Bf16x8 out = hmul8(a, gate);                                           // S2
    for (int i = 0; i < 8; ++i) {
      LANDING(1, index + i, gate.at[i]);
      out.at[i] = PLANT(2, out.at[i], MulSigmoid::truncated(a.at[i], gate.at[i]));
    }
    return out;
  }
};

// a bf16 [m, n], b bf16 [m, n] -> o bf16 [m, n]. form 0: current, 1: retired.
extern "C" int mul_sigmoid(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb, int form, cudaStream_t stream) {
  return elementwise<MulSigmoid, Gated>(a, b, o, m, n, lda, ldb, form, stream);
}
