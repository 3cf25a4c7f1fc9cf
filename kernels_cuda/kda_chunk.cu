// kda_chunk: the KDA recurrence over a segment, in tiles of 16 tokens. The contract is references/kda_chunk.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "kda_tile.cuh"

static const int kKeeperRegisters = 144, kMakerRegisters = 112;

// The right operand of a product along k for two groups of 8 rows x [16][k]: lane 8i + r names row r of matrix i.
template <int pitch>
__device__ __forceinline__ void rows16(uint32_t* b, const bf16 (&x)[kTile][pitch], int column, int lane) {
  load_fragments(four(b), &x[lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
}
// The same of 16 columns of x [token][column], along the tokens; and an accumulator's [column][token] of them.
template <int pitch>
__device__ __forceinline__ void columns16(uint32_t* b, const bf16 (&x)[kTile][pitch], int column, int lane) {
  load_fragments_transposed(four(b), &x[lane / 8 % 2 * 8 + lane % 8][column + lane / 16 * 8]);
}

// The state is kept as accumulators: S[j][2r + e] of a thread is row lane / 4 + 8r of the warp's 16, column 8j + 2 (lane % 4) + e.
template <bool vector>
__device__ __forceinline__ void load_state(const float* from, float (&S)[16][4], int lane) {
  for (int j = 0; j < 16; ++j)
    for (int r = 0; r < 2; ++r) {
      const float* p = from + (lane / 4 + 8 * r) * kHead + 8 * j + lane % 4 * 2;
      const float2 x = vector ? *reinterpret_cast<const float2*>(p) : make_float2(p[0], p[1]);
      S[j][2 * r] = x.x, S[j][2 * r + 1] = x.y;
    }
}
template <bool vector>
__device__ __forceinline__ void store_state(float* to, const float (&S)[16][4], int lane) {
  for (int j = 0; j < 16; ++j)
    for (int r = 0; r < 2; ++r) {
      float* p = to + (lane / 4 + 8 * r) * kHead + 8 * j + lane % 4 * 2;
      const float2 x = make_float2(nan32(S[j][2 * r]), nan32(S[j][2 * r + 1]));
      if constexpr (vector) *reinterpret_cast<float2*>(p) = x;
      else p[0] = x.x, p[1] = x.y;
    }
}

// S9: groups 0 and 1 are S . kd of the 16 tokens, groups 2 and 3 S . qd.
__device__ __forceinline__ void read_state(const float (&S)[16][4], const Stage& stage, float (&read)[4][4], int lane) {
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    uint32_t hi[4], lo[4], b_hi[8], b_lo[8];
    cut_fragment(S[j], S[j + 1], hi, lo);
    rows16(b_hi, stage.kd.hi, 8 * j, lane), rows16(b_hi + 4, stage.qd.hi, 8 * j, lane);
    rows16(b_lo, stage.kd.lo, 8 * j, lane), rows16(b_lo + 4, stage.qd.lo, 8 * j, lane);
    gemm_pieces<4>(read, hi, lo, b_hi, b_lo);                                      // S9
  }
}

// The deltas of 16 rows v, as left operands along the tokens.
__device__ __forceinline__ void delta(const Stage& stage, const float (&read)[4][4], uint32_t (&hi)[4], uint32_t (&lo)[4], int first, int lane,
                                      int64_t tile_head) {
  uint32_t v[4], b_hi[4], b_lo[4];
  columns16(v, stage.v, first, lane);
  float rest[2][4], d[2][4] = {};
  for (int half = 0; half < 2; ++half)
    for (int e = 0; e < 4; ++e) {
      const uint32_t pair = v[half + e / 2 * 2];
      const float x = __uint_as_float(e % 2 ? pair & 0xffff0000u : pair << 16), short_of = __fsub_rn(x, read[half][e]);
      rest[half][e] = __fmul_rn(stage.b[8 * half + lane % 4 * 2 + e % 2], PLANT(3, short_of, f(bf(short_of))));  // S10; MISTAKE 3 = S10.sub:landed
    }
  cut_fragment(rest[0], rest[1], hi, lo);
  rows16(b_hi, stage.t.hi, 0, lane), rows16(b_lo, stage.t.lo, 0, lane);
  gemm_pieces<2>(d, hi, lo, b_hi, b_lo);                                           // S10
  for (int half = 0; half < 2; ++half)
    for (int e = 0; e < 4; ++e)
      KEPT(10, (tile_head * kHead + first + lane / 4 + e / 2 * 8) * kTile + 8 * half + lane % 4 * 2 + e % 2, d[half][e]);
  cut_fragment(d[0], d[1], hi, lo);
}

// a [v][token] of 16 rows v, landed, to their columns of o: through shared memory, so that half a sector is a store.
template <bool vector>
__device__ __forceinline__ void store_output(const Segment& s, bf16 (&o)[kTile][kTile + 8], const float (*a)[4], int64_t h, int64_t tile, int first,
                                             int lane) {
  uint32_t landed[4];
  for (int i = 0; i < 4; ++i) landed[i] = land_pair(a[i % 2][i / 2 * 2], a[i % 2][i / 2 * 2 + 1]);  // S11
  store_fragments_transposed(&o[lane / 8 % 2 * 8 + lane % 8][lane / 16 * 8], landed);
  __syncwarp();
  const int64_t token = tile * kTile + lane / 2;
  const Bf16x8 x = load8(&o[lane / 2][lane % 2 * 8]);
  bf16* to = s.o + (token * s.heads + h) * kHead + first + lane % 2 * 8;
  if (token < s.t) {
    if constexpr (vector) global_store8(to, x);
    else for (int i = 0; i < 8; ++i) to[i] = x.at[i];
  }
  __syncwarp();
}

__device__ __forceinline__ void update_state(float (&S)[16][4], const Stage& stage, const uint32_t (&hi)[4], const uint32_t (&lo)[4], int lane) {
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    uint32_t b_hi[4], b_lo[4];
    columns16(b_hi, stage.kl.hi, 8 * j, lane), columns16(b_lo, stage.kl.lo, 8 * j, lane);
#pragma unroll
    for (int i = j; i < j + 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) S[i][e] = __fmul_rn(S[i][e], stage.last[8 * i + lane % 4 * 2 + e % 2]);  // S12
    gemm_pieces<2>(S + j, hi, lo, b_hi, b_lo);                                     // S12
  }
}

// S9 .. S12 of every tile: a warp keeps 16 rows v.
template <bool vector>
__device__ __forceinline__ void keep_state(const Segment& s, int64_t h, Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 16 * warp;
  const int64_t at = (h * kHead + first) * kHead;
  float S[16][4];
  load_state<vector>(s.state + at, S, lane);
  barrier_sync(kTurn, kAll);  // before the first tile nothing is full
  for (int64_t tile = 0; tile * kTile < s.t; ++tile) {                         // S4
    const Stage& stage = shared.stage[tile & 1];
    barrier_sync(kTurn, kAll);
    float read[4][4] = {};
    read_state(S, stage, read, lane);
    uint32_t hi[4], lo[4], w_hi[4], w_lo[4];
    delta(stage, read, hi, lo, first, lane, tile * s.heads + h);
    rows16(w_hi, stage.w.hi, 0, lane), rows16(w_lo, stage.w.lo, 0, lane);
    gemm_pieces<2>(read + 2, hi, lo, w_hi, w_lo);                                  // S11
    store_output<vector>(s, shared.o[warp], read + 2, h, tile, first, lane);
    update_state(S, stage, hi, lo, lane);
  }
  store_state<vector>(s.next + at, S, lane);
}

template <bool vector>
__global__ void __launch_bounds__(kAll, 1) kda_chunk_head(Segment s) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x < kKeepers) {
    take_registers<kKeeperRegisters>();
    keep_state<vector>(s, blockIdx.x, shared);
  } else {
    give_registers<kMakerRegisters>();
    make_tiles<vector>(s, blockIdx.x, shared);
  }
}

template <bool vector>
static int start(const Segment& s, cudaStream_t stream) {
  const cudaError_t refused = cudaFuncSetAttribute(kda_chunk_head<vector>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Shared));
  if (refused != cudaSuccess) return (int)refused;
  kda_chunk_head<vector><<<(unsigned)s.heads, kAll, sizeof(Shared), stream>>>(s);
  return (int)cudaGetLastError();
}

// q, k, v bf16 [t, heads, 128], gate f32 [t, heads, 128], dt_bias f32 [heads, 128], a_log f32 [heads], beta bf16 [t, heads],
// state f32 [heads, 128, 128] -> o bf16 [t, heads, 128], next f32 [heads, 128, 128]; packed. form 0: current.
extern "C" int kda_chunk(const bf16* q, const bf16* k, const bf16* v, const float* gate, const float* dt_bias, const float* a_log, const bf16* beta,
                         const float* state, bf16* o, float* next, int64_t t, int64_t heads, int form, cudaStream_t stream) {
  const int64_t all = t * heads;
  REQUIRE(11, t >= 0 && t <= INT32_MAX);
  REQUIRE(12, heads >= 0 && heads <= INT32_MAX);
  REQUIRE(1, q || all == 0);
  REQUIRE(2, k || all == 0);
  REQUIRE(3, v || all == 0);
  REQUIRE(4, gate || all == 0);
  REQUIRE(5, dt_bias || heads == 0);
  REQUIRE(6, a_log || heads == 0);
  REQUIRE(7, beta || all == 0);
  REQUIRE(8, state || heads == 0);
  REQUIRE(9, o || all == 0);
  REQUIRE(10, next || heads == 0);
  REQUIRE(13, form == 0);
  if (heads == 0) return 0;
  const Segment s = {q, k, v, gate, dt_bias, a_log, beta, state, o, next, t, heads};
  const bool vector = aligned16(q) && aligned16(k) && aligned16(v) && aligned16(gate) && aligned16(state) && aligned16(o) && aligned16(next);
  return vector ? start<true>(s, stream) : start<false>(s, stream);
}
