// o_norm_gate: norm each head's output and gate it. The contract is references/o_norm_gate.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "norm.cuh"

static const int kWidth = 128;  // columns of a head
static const int kLanes = 16;   // lanes a head in the current form
static const int kThreads = 256, kBlocks = 4;  // threads a block of the current form, and blocks a multiprocessor

__device__ __forceinline__ float inverse(float total, float eps) {
  const float mean = __fadd_rn(__fdiv_rn(total, (float)kWidth), eps);  // S3
  return PLANT(1, rsqrtf(mean), __fdiv_rn(1.0f, __fsqrt_rn(mean)));    // S4; MISTAKE 1 = S4.rsqrt:exact_rsqrt
}

__device__ __forceinline__ float scaled(float x, float r, float go) {
  const float unit = __fmul_rn(x, r);
  return __fmul_rn(PLANT(2, unit, f(bf(unit))), go);                   // S5; MISTAKE 2 = S5.mul:landed
}

// Retired form, and the current one where a pointer is not 16-byte aligned: a block a head, one column a thread.
__global__ void __launch_bounds__(kWidth) o_norm_gate_scalar(const bf16* x, const float* go, const bf16* g2, float eps, bf16* o) {
  const int64_t i = (int64_t)blockIdx.x * kWidth + threadIdx.x;
  const float value = f(x[i]);
  const float r = inverse(block_tree<kWidth>(__fmul_rn(value, value)), eps);  // S1, S2
  const bf16 n = bf(scaled(value, r, go[threadIdx.x]));                // S5
  const bf16 sig = bf(sigmoid(f(g2[i])));                              // S6
  LANDING(5, i, n);
  LANDING(6, i, sig);
  o[i] = __hmul_rn(n, sig);                                            // S7
}

__device__ __forceinline__ uint4 words(const bf16* p, bool live) { return live ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0); }

// Current form: eight columns a thread, and a grid that fills the device once and walks on. The operands of the next step are on their way while
// this one computes. Threads past the last head compute on zeros, so that every exchange is between whole warps.
__global__ void __launch_bounds__(kThreads, kBlocks)
    o_norm_gate_vector(const bf16* x, const float* go, const bf16* g2, float eps, bf16* o, int64_t size) {
  const int64_t step = (int64_t)gridDim.x * kThreads * 8;
  const int own = threadIdx.x * 8;
  const F32x8 scale = load8(go + own % kWidth);
  int64_t block = (int64_t)blockIdx.x * kThreads * 8;
  uint4 next_x = words(x + block + own, block + own < size), next_g = words(g2 + block + own, block + own < size);
  for (; block < size; block += step) {
    const int64_t start = block + own, next = start + step;
    const uint4 now_x = next_x, now_g = next_g;
    next_x = words(x + next, next < size), next_g = words(g2 + next, next < size);
    const Bf16x8 v = load8(reinterpret_cast<const bf16*>(&now_x)), g = load8(reinterpret_cast<const bf16*>(&now_g));
    float sq[8], gate[8], n[8], sig[8];
    for (int i = 0; i < 8; ++i) gate[i] = f(g.at[i]), sq[i] = __fmul_rn(f(v.at[i]), f(v.at[i]));  // S1
    const float r = inverse(group_tree<kLanes>(sq), eps);              // S2
    for (int i = 0; i < 8; ++i) n[i] = scaled(f(v.at[i]), r, scale.at[i]);
    sigmoid8(gate, sig);
    const Bf16x8 landed_n = bf8(n), landed_sig = bf8(sig);             // S5, S6
    if (start < size) {
      for (int i = 0; i < 8; ++i) {
        LANDING(5, start + i, landed_n.at[i]);
        LANDING(6, start + i, landed_sig.at[i]);
      }
      store8(o + start, hmul8(landed_n, landed_sig));                  // S7
    }
  }
}

// x bf16 [m, heads, 128], go f32 [128], g2 bf16 [m, heads, 128], eps -> o bf16 [m, heads, 128]; packed. form 0: current, 1: retired.
extern "C" int o_norm_gate(const bf16* x, const float* go, const bf16* g2, float eps, bf16* o, int64_t m, int64_t heads, int form,
                           cudaStream_t stream) {
  REQUIRE(6, m >= 0 && m <= INT32_MAX);
  REQUIRE(7, heads >= 0 && (m == 0 || heads <= INT32_MAX / m));
  const int64_t all = m * heads;
  REQUIRE(1, x || all == 0);
  REQUIRE(2, go);
  REQUIRE(3, g2 || all == 0);
  REQUIRE(5, o || all == 0);
  REQUIRE(8, form == 0 || form == 1);
  if (all == 0) return 0;
  if (form == 0 && aligned16(x) && aligned16(go) && aligned16(g2) && aligned16(o)) {
    const int64_t needed = ceil_div(all * kLanes, kThreads), resident = resident_blocks(o_norm_gate_vector, kThreads);
    const unsigned blocks = (unsigned)(needed < resident ? needed : resident);
    o_norm_gate_vector<<<blocks, kThreads, 0, stream>>>(x, go, g2, eps, o, all * kWidth);
  } else {
    o_norm_gate_scalar<<<(unsigned)all, kWidth, 0, stream>>>(x, go, g2, eps, o);
  }
  return (int)cudaGetLastError();
}
