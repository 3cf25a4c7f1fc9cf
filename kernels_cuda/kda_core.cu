// kda_core: one decode step of linear attention. The contract is references/kda_core.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "kda.cuh"

static const int kThreads = kWidth, kBlocks = 3;  // a thread takes a row of the state; three states fit the shared memory of a multiprocessor
static const int kPieces = kWidth / 4;            // 16-byte pieces of a row
static const int kTile = kState * sizeof(float);

struct Operands {
  const bf16 *q, *k, *v;
  const float *gate, *dt_bias, *a_log;
  const bf16* beta;
  const float *state, *go;
  const bf16* g2;
  float eps;
  bf16* o;
  float* next;
  int64_t b, heads;
};

// What all rows of a state share.
struct alignas(16) Head {
  float dec[kWidth], kn[kWidth], qs[kWidth], strength;
};

// One warp: a head of q (which = 0) or of k (1), normed in bf16.
__device__ void l2norm(const bf16* x, int64_t head, int64_t heads, int which, bf16 (&n)[4]) {
  const int lane = threadIdx.x % 32;
  float sq[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    n[i] = x[head * kWidth + i * 32 + lane];
    const bf16 square = __hmul_rn(n[i], n[i]);                                          // S1
    LANDING(1, (which * heads + head) * kWidth + i * 32 + lane, square);
    sq[i] = f(square);
  }
  const float sum = tree128(sq);
  const bf16 tot = bf(sum);                                                             // S2
  const float mean = __fadd_rn(PLANT(1, f(tot), sum), 1e-6f);                           // MISTAKE 1 = S2.bf:skipped
  const bf16 r = bf(rsqrtf(mean));                                                      // S3
  if (lane == 0) {
    LANDING(2, which * heads + head, tot);
    LANDING(3, which * heads + head, r);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    n[i] = __hmul_rn(n[i], r);                                                          // S4
    LANDING(4, (which * heads + head) * kWidth + i * 32 + lane, n[i]);
  }
}

// A warp each: the query, the key, the decays, the strength of the update.
__device__ void prepare(const Operands& in, int64_t head, Head& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t own = head % in.heads, all = in.b * in.heads;
  bf16 n[4];
  if (warp == 0) {
    l2norm(in.q, head, all, 0, n);
    for (int i = 0; i < 4; ++i) shared.qs[i * 32 + lane] = __fmul_rn(f(n[i]), 0x1.6a09e6p-4f);  // S11
  } else if (warp == 1) {
    l2norm(in.k, head, all, 1, n);
    for (int i = 0; i < 4; ++i) shared.kn[i * 32 + lane] = f(n[i]);
  } else if (warp == 2) {
    const float rate = expf(in.a_log[own]);
    for (int i = 0; i < 4; ++i) {
      const int64_t c = i * 32 + lane;
      const bf16 gl = bf(__fadd_rn(0.0f, in.gate[head * kWidth + c]));                  // S5
      LANDING(5, head * kWidth + c, gl);
      shared.dec[c] = decay(f(gl), in.dt_bias[own * kWidth + c], rate);                 // S6, S7
    }
  } else if (lane == 0) {
    shared.strength = sigmoid(f(in.beta[head]));                                        // S9
  }
}

__device__ __forceinline__ float predict(float s, float dec, float kn, float m) {
  const float w = __fmul_rn(s, dec);
  return PLANT(2, __fmaf_rn(w, kn, m), __fadd_rn(m, __fmul_rn(w, kn)));                 // S8; MISTAKE 2 = S8.chain_fma:unfused_steps
}
__device__ __forceinline__ float update(float s, float dec, float kn, float d) {
  const float w = __fmul_rn(s, dec);
  return PLANT(3, __fmaf_rn(d, kn, w), __fadd_rn(__fmul_rn(d, kn), w));                 // S10; MISTAKE 3 = S10.fma:unfused
}

// tree(64, ..., 1) with a column a thread.
__device__ float block_tree(float x) {
  __shared__ float terms[kWidth];
  terms[threadIdx.x] = x;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const float mine[4] = {terms[lane], terms[lane + 32], terms[lane + 64], terms[lane + 96]};
  return tree128(mine);
}

// The norm and the gate of one row's attention.
__device__ void finish(const Operands& in, int64_t head, float sum) {
  const int c = threadIdx.x;
  const int64_t i = head * kWidth + c;
  const bf16 attn = bf(sum);                                                            // S12
  LANDING(12, i, attn);
  const float tot = block_tree(__fmul_rn(f(attn), f(attn)));
  const float r = rsqrtf(__fadd_rn(__fdiv_rn(tot, (float)kWidth), in.eps));             // S13
  const float unit = __fmul_rn(f(attn), r);
  const bf16 n = bf(__fmul_rn(PLANT(4, unit, f(bf(unit))), in.go[c]));                  // MISTAKE 4 = S13.mul#2:landed
  const bf16 sig = bf(sigmoid(f(in.g2[i])));                                            // S14
  LANDING(13, i, n);
  LANDING(14, i, sig);
  in.o[i] = __hmul_rn(n, sig);                                                          // S15
}

// Retired form, and the current one where state or next is not 16-byte aligned: a block a head, a thread walks its row where it lies.
__global__ void __launch_bounds__(kThreads) kda_core_rows(const Operands in) {
  __shared__ Head shared;
  const int64_t head = blockIdx.x, i = head * kWidth + threadIdx.x;
  prepare(in, head, shared);
  __syncthreads();
  const float* s = in.state + i * kWidth;
  float* next = in.next + i * kWidth;
  float m = 0.0f, a = 0.0f;
  for (int k = 0; k < kWidth; ++k) m = predict(s[k], shared.dec[k], shared.kn[k], m);   // S8
  const float d = __fmul_rn(__fsub_rn(f(in.v[i]), m), shared.strength);                 // S9
  for (int k = 0; k < kWidth; ++k) {
    const float after = update(s[k], shared.dec[k], shared.kn[k], d);                   // S10
    a = __fmaf_rn(after, shared.qs[k], a);                                              // S12
    next[k] = nan32(after);
  }
  finish(in, head, a);
}

// Where piece c of row v lies: rows that 8 lanes read at once are on different banks.
__device__ __forceinline__ int place(int v, int c) { return v * kPieces + (c ^ v % 8); }
__device__ __forceinline__ float4 piece(const float (&x)[kWidth], int c) { return reinterpret_cast<const float4*>(x)[c]; }

// Current form: a block a head. Its state comes and goes in 16-byte pieces, whole lines at a time; in between a thread has row v in shared memory.
__global__ void __launch_bounds__(kThreads, kBlocks) kda_core_tile(const Operands in) {
  extern __shared__ float4 tile[];
  __shared__ Head shared;
  const int64_t head = blockIdx.x;
  const int own = threadIdx.x;
  const float4* state = reinterpret_cast<const float4*>(in.state + head * kState);
  float4* next = reinterpret_cast<float4*>(in.next + head * kState);
  for (int i = own; i < kState / 4; i += kThreads) copy16(tile + place(i / kPieces, i % kPieces), state + i);
  commit_copies();
  prepare(in, head, shared);
  const float v = f(in.v[head * kWidth + own]);
  await_copies<0>();
  __syncthreads();
  float m = 0.0f, a = 0.0f;
#pragma unroll 8
  for (int c = 0; c < kPieces; ++c) {
    const float4 s = tile[place(own, c)], dec = piece(shared.dec, c), kn = piece(shared.kn, c);
    m = predict(s.x, dec.x, kn.x, m), m = predict(s.y, dec.y, kn.y, m);                 // S8
    m = predict(s.z, dec.z, kn.z, m), m = predict(s.w, dec.w, kn.w, m);
  }
  const float d = __fmul_rn(__fsub_rn(v, m), shared.strength);                          // S9
#pragma unroll 8
  for (int c = 0; c < kPieces; ++c) {
    const float4 dec = piece(shared.dec, c), kn = piece(shared.kn, c), qs = piece(shared.qs, c);
    float4 s = tile[place(own, c)];
    s.x = update(s.x, dec.x, kn.x, d), s.y = update(s.y, dec.y, kn.y, d);               // S10
    s.z = update(s.z, dec.z, kn.z, d), s.w = update(s.w, dec.w, kn.w, d);
    a = __fmaf_rn(s.x, qs.x, a), a = __fmaf_rn(s.y, qs.y, a);                           // S12
    a = __fmaf_rn(s.z, qs.z, a), a = __fmaf_rn(s.w, qs.w, a);
    tile[place(own, c)] = make_float4(nan32(s.x), nan32(s.y), nan32(s.z), nan32(s.w));
  }
  __syncthreads();
  for (int i = own; i < kState / 4; i += kThreads) __stcs(next + i, tile[place(i / kPieces, i % kPieces)]);
  finish(in, head, a);
}

// Shapes as in references/kda_core.py, packed; state and next apart. form 0: current, 1: retired.
extern "C" int kda_core(const bf16* q, const bf16* k, const bf16* v, const float* gate, const float* dt_bias, const float* a_log, const bf16* beta,
                        const float* state, const float* go, const bf16* g2, float eps, bf16* o, float* next, int64_t b, int64_t heads, int form,
                        cudaStream_t stream) {
  REQUIRE(14, b >= 0 && b <= INT32_MAX);
  REQUIRE(15, heads >= 0 && (b == 0 || heads <= INT32_MAX / b));
  const int64_t all = b * heads;
  const void* pointers[] = {q, k, v, gate, dt_bias, a_log, beta, state, go, g2};
  for (int i = 0; i < 10; ++i) REQUIRE(i + 1, pointers[i] || all == 0);
  REQUIRE(12, o || all == 0);
  REQUIRE(13, (next && next != state) || all == 0);
  REQUIRE(16, form == 0 || form == 1);
  if (all == 0) return 0;
  const Operands in = {q, k, v, gate, dt_bias, a_log, beta, state, go, g2, eps, o, next, b, heads};
  if (form == 0 && aligned16(state) && aligned16(next)) {
    const cudaError_t refused = cudaFuncSetAttribute(kda_core_tile, cudaFuncAttributeMaxDynamicSharedMemorySize, kTile);
    if (refused != cudaSuccess) return (int)refused;
    kda_core_tile<<<(unsigned)all, kThreads, kTile, stream>>>(in);
  } else {
    kda_core_rows<<<(unsigned)all, kThreads, 0, stream>>>(in);
  }
  return (int)cudaGetLastError();
}
