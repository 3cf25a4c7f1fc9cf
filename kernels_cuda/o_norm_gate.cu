// o_norm_gate: norm each head's output and gate it. The contract is references/o_norm_gate.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "norm.cuh"

static const int kWidth = 128;    // columns of a head
static const int kLanes = 16;     // lanes a head in the current form
static const int kThreads = 256;  // threads a block in the current form

__device__ __forceinline__ float inverse(float total, float eps) {
  const float mean = __fadd_rn(__fdiv_rn(total, (float)kWidth), eps);  // S3
  return PLANT(1, rsqrtf(mean), __fdiv_rn(1.0f, __fsqrt_rn(mean)));    // S4; MISTAKE 1 = S4.rsqrt:exact_rsqrt
}

__device__ __forceinline__ bf16 gated(bf16 x, float r, float go, bf16 g2, int64_t index) {
  const float unit = __fmul_rn(f(x), r);
  const bf16 n = bf(__fmul_rn(PLANT(2, unit, f(bf(unit))), go));           // S5; MISTAKE 2 = S5.mul:landed
  const bf16 sig = PLANT(3, bf(sigmoid(f(g2))), __float2bfloat16_rz(sigmoid(f(g2))));  // S6; MISTAKE 3 = S6.bf:truncated
  LANDING(5, index, n);
  LANDING(6, index, sig);
  return __hmul_rn(n, sig);                                                // S7
}

// Retired form, and the current one where a pointer is not 16-byte aligned: a block a head, one column a thread.
__global__ void __launch_bounds__(kWidth) o_norm_gate_scalar(const bf16* x, const float* go, const bf16* g2, float eps, bf16* o) {
  const int64_t i = (int64_t)blockIdx.x * kWidth + threadIdx.x;
  const float value = f(x[i]);
  const float r = inverse(block_tree<kWidth>(__fmul_rn(value, value)), eps);  // S1, S2
  o[i] = gated(x[i], r, go[threadIdx.x], g2[i], i);
}

// Current form. Lanes past the last head work on it, too, and store nothing, so that every exchange is between whole warps.
__global__ void __launch_bounds__(kThreads)
    o_norm_gate_vector(const bf16* x, const float* go, const bf16* g2, float eps, bf16* o, int64_t heads) {
  const int64_t mine = (int64_t)blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const int64_t start = (mine < heads ? mine : heads - 1) * kWidth + column;
  const Bf16x8 v = load8(x + start), g = load8(g2 + start);
  float sq[8];
  for (int i = 0; i < 8; ++i) sq[i] = __fmul_rn(f(v.at[i]), f(v.at[i]));     // S1
  const float r = inverse(group_tree<kLanes>(sq), eps);                      // S2
  Bf16x8 out;
  for (int i = 0; i < 8; ++i) out.at[i] = gated(v.at[i], r, go[column + i], g.at[i], start + i);
  if (mine < heads) store8(o + start, out);
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
  if (form == 0 && aligned16(x) && aligned16(go) && aligned16(g2) && aligned16(o))
    o_norm_gate_vector<<<(unsigned)ceil_div(all * kLanes, kThreads), kThreads, 0, stream>>>(x, go, g2, eps, o, all);
  else
    o_norm_gate_scalar<<<(unsigned)all, kWidth, 0, stream>>>(x, go, g2, eps, o);
  return (int)cudaGetLastError();
}
