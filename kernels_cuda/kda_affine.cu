// kda_affine: what a segment of tokens does to the state of linear attention. The contract is references/kda_affine.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "kda.cuh"

static const int kThreads = kWidth, kWarps = kThreads / 32;
static const int kTokens = 16;          // a tile of the current form
static const int kPitch = kWidth + 1;   // of the retired form's rows: lanes on different banks
static const int kRows = kWidth * kPitch * sizeof(float);

struct Operands {
  const bf16 *k, *v;
  const float *gate, *dt_bias, *a_log;
  const bf16* beta;
  float *mm, *d;
  int64_t t, heads;
};

// What all rows of a state share of one token; v is +0 for those of M.
struct alignas(16) Token {
  float dec[kWidth], kn[kWidth], v[kWidth], strength[4];
};

// One warp: one token of one head.
__device__ __forceinline__ void prepare(const Operands& in, int64_t token, int64_t head, bool lower, float rate, Token& shared) {
  const int lane = threadIdx.x % 32;
  const int64_t at = token * in.heads + head;
  float key[4], sq[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int c = i * 32 + lane;
    const bf16 gl = bf(__fadd_rn(0.0f, in.gate[at * kWidth + c]));
    LANDING(2, at * kWidth + c, gl);
    shared.dec[c] = decay(PLANT(1, f(gl), in.gate[at * kWidth + c]), in.dt_bias[head * kWidth + c], rate);  // S2; MISTAKE 1 = S2.bf:skipped
    shared.v[c] = lower ? f(in.v[at * kWidth + c]) : 0.0f;                                                  // S1
    key[i] = f(in.k[at * kWidth + c]);
    sq[i] = __fmul_rn(key[i], key[i]);
  }
  const float r = rsqrtf(__fadd_rn(tree128(sq), 1e-6f));
#pragma unroll
  for (int i = 0; i < 4; ++i) shared.kn[i * 32 + lane] = __fmul_rn(key[i], PLANT(2, r, f(bf(r))));          // S3; MISTAKE 2 = S3.rsqrt:landed
  if (lane == 0) shared.strength[0] = sigmoid(f(in.beta[at]));                                              // S5
}

__device__ __forceinline__ float predict(float w, float kn, float m) {
  return PLANT(3, __fmaf_rn(w, kn, m), __fadd_rn(m, __fmul_rn(w, kn)));  // S4; MISTAKE 3 = S4.chain_fma:unfused_steps
}

// Retired form, and the current one where mm or d is not 16-byte aligned: the rows in shared memory, a token at a time.
__global__ void __launch_bounds__(kThreads) kda_affine_rows(const Operands in) {
  extern __shared__ float rows[];
  __shared__ Token now;
  const int64_t head = blockIdx.x / 2;
  const bool lower = blockIdx.x % 2;
  const float rate = expf(in.a_log[head]);
  float* s = rows + threadIdx.x * kPitch;
  for (int k = 0; k < kWidth; ++k) s[k] = !lower && k == threadIdx.x ? 1.0f : 0.0f;                         // S1
  for (int64_t token = 0; token < in.t; ++token) {
    __syncthreads();
    if (threadIdx.x < 32) prepare(in, token, head, lower, rate, now);
    __syncthreads();
    float m = 0.0f;
    for (int k = 0; k < kWidth; ++k) s[k] = __fmul_rn(s[k], now.dec[k]), m = predict(s[k], now.kn[k], m);   // S4
    const float d = __fmul_rn(__fsub_rn(now.v[threadIdx.x], m), now.strength[0]);                           // S5
    for (int k = 0; k < kWidth; ++k) s[k] = __fmaf_rn(d, now.kn[k], s[k]);                                  // S6
  }
  float* out = (lower ? in.d : in.mm) + (head * kWidth + threadIdx.x) * kWidth;                             // S7
  for (int k = 0; k < kWidth; ++k) out[k] = nan32(s[k]);
}

// Current form: row threadIdx.x of one half of a head in registers.
__global__ void __launch_bounds__(kThreads) kda_affine_tiles(const Operands in) {
  __shared__ Token tile[kTokens];
  const int64_t head = blockIdx.x / 2;
  const bool lower = blockIdx.x % 2;
  const float rate = expf(in.a_log[head]);
  float s[kWidth];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) s[k] = !lower && k == threadIdx.x ? 1.0f : 0.0f;                         // S1
  for (int64_t first = 0; first < in.t; first += kTokens) {
    const int live = (int)(in.t - first < kTokens ? in.t - first : kTokens);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < live; i += kWarps) prepare(in, first + i, head, lower, rate, tile[i]);
    __syncthreads();
    for (int i = 0; i < live; ++i) {
      const Token& now = tile[i];
      const float4 *decays = reinterpret_cast<const float4*>(now.dec), *keys = reinterpret_cast<const float4*>(now.kn);
      float m = 0.0f;
#pragma unroll
      for (int k = 0; k < kWidth; k += 4) {
        const float4 dec = decays[k / 4], kn = keys[k / 4];
        s[k] = __fmul_rn(s[k], dec.x), s[k + 1] = __fmul_rn(s[k + 1], dec.y);
        s[k + 2] = __fmul_rn(s[k + 2], dec.z), s[k + 3] = __fmul_rn(s[k + 3], dec.w);
        m = predict(s[k], kn.x, m), m = predict(s[k + 1], kn.y, m), m = predict(s[k + 2], kn.z, m), m = predict(s[k + 3], kn.w, m);  // S4
      }
      const float d = __fmul_rn(__fsub_rn(now.v[threadIdx.x], m), now.strength[0]);                         // S5
#pragma unroll
      for (int k = 0; k < kWidth; k += 4) {
        const float4 kn = keys[k / 4];
        s[k] = __fmaf_rn(d, kn.x, s[k]), s[k + 1] = __fmaf_rn(d, kn.y, s[k + 1]);                           // S6
        s[k + 2] = __fmaf_rn(d, kn.z, s[k + 2]), s[k + 3] = __fmaf_rn(d, kn.w, s[k + 3]);
      }
    }
  }
  float4* out = reinterpret_cast<float4*>((lower ? in.d : in.mm) + (head * kWidth + threadIdx.x) * kWidth);  // S7
#pragma unroll
  for (int k = 0; k < kWidth; k += 4) out[k / 4] = make_float4(nan32(s[k]), nan32(s[k + 1]), nan32(s[k + 2]), nan32(s[k + 3]));
}

// Shapes as in references/kda_affine.py, packed. form 0: current, 1: retired.
extern "C" int kda_affine(const bf16* k, const bf16* v, const float* gate, const float* dt_bias, const float* a_log, const bf16* beta, float* mm,
                          float* d, int64_t t, int64_t heads, int form, cudaStream_t stream) {
  REQUIRE(9, t >= 0 && t <= INT32_MAX);
  REQUIRE(10, heads >= 0 && heads <= INT32_MAX / 2);
  const void *tokens[] = {k, v, gate}, *weights[] = {dt_bias, a_log};
  for (int i = 0; i < 3; ++i) REQUIRE(i + 1, tokens[i] || t * heads == 0);
  for (int i = 0; i < 2; ++i) REQUIRE(i + 4, weights[i] || heads == 0);
  REQUIRE(6, beta || t * heads == 0);
  REQUIRE(7, mm || heads == 0);
  REQUIRE(8, (d && d != mm) || heads == 0);
  REQUIRE(11, form == 0 || form == 1);
  if (heads == 0) return 0;
  const Operands in = {k, v, gate, dt_bias, a_log, beta, mm, d, t, heads};
  if (form == 0 && aligned16(mm) && aligned16(d)) {
    kda_affine_tiles<<<(unsigned)(2 * heads), kThreads, 0, stream>>>(in);
  } else {
    const cudaError_t refused = cudaFuncSetAttribute(kda_affine_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, kRows);
    if (refused != cudaSuccess) return (int)refused;
    kda_affine_rows<<<(unsigned)(2 * heads), kThreads, kRows, stream>>>(in);
  }
  return (int)cudaGetLastError();
}
