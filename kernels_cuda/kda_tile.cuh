// A tile of 16 tokens of the KDA recurrence, of one head: eight warps make what does not depend on the state, eight others keep the state.
// S tags are the steps of references/kda_chunk.py.
#pragma once
#include "hopper.cuh"
#include "norm.cuh"

static const int kTile = 16, kHead = 128;         // tokens of a tile; columns of a head, and rows of its state
static const int kKeepers = 256, kMakers = 256;   // threads
static const int kAll = kKeepers + kMakers;
static const int kTurn = 1, kMade = 2;  // named barriers: of all threads, once a tile and once more; of the makers

struct Segment {
  const bf16 *q, *k, *v;
  const float *gate, *dt_bias, *a_log;
  const bf16* beta;
  const float* state;
  bf16* o;
  float* next;
  int64_t t, heads;
};

// An f32 matrix as two bf16 pieces. Rows are padded so that eight of them begin in different banks.
struct Wide {
  bf16 hi[kTile][kHead + 8], lo[kTile][kHead + 8];
};
struct Square {
  bf16 hi[kTile][kTile + 8], lo[kTile][kTile + 8];
};
struct Stage {
  Wide kd, qd, kl;
  Square t, w;
  bf16 v[kTile][kHead + 8];
  float b[kTile], last[kHead];
};
struct Shared {
  Stage stage[2];
  Wide ku;
  float g[kTile][kHead + 4], c[kTile][kHead + 4];
  float bias[kHead], n[kTile][kTile + 4];  // n by columns
  bf16 o[kKeepers / 32][kTile][kTile + 8];
};

__device__ __forceinline__ void barrier_sync(int which, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory"); }

// Two f32 as two pairs of pieces: hi = bf(x), lo = bf(x - hi).
__device__ __forceinline__ void cut(float x, float y, uint32_t& hi, uint32_t& lo) {
  hi = land_pair(x, y);
  lo = land_pair(__fsub_rn(x, __uint_as_float(hi << 16)), __fsub_rn(y, __uint_as_float(hi & 0xffff0000u)));
}
__device__ __forceinline__ void cut8(const float (&x)[8], bf16* hi, bf16* lo) {
  uint4 h, l;
  cut(x[0], x[1], h.x, l.x), cut(x[2], x[3], h.y, l.y), cut(x[4], x[5], h.z, l.z), cut(x[6], x[7], h.w, l.w);
  *reinterpret_cast<uint4*>(hi) = h, *reinterpret_cast<uint4*>(lo) = l;
}
// Two accumulators side by side, [16, 16], as the left operand of a product along their columns.
__device__ __forceinline__ void cut_fragment(const float (&left)[4], const float (&right)[4], uint32_t (&hi)[4], uint32_t (&lo)[4]) {
  cut(left[0], left[1], hi[0], lo[0]), cut(left[2], left[3], hi[1], lo[1]);
  cut(right[0], right[1], hi[2], lo[2]), cut(right[2], right[3], hi[3], lo[3]);
}

// One block of 16 along k, for `count` groups of 8 columns, whose two fragments lie side by side in b.
template <int count>
__device__ __forceinline__ void gemm_pieces(float (*d)[4], const uint32_t (&a_hi)[4], const uint32_t (&a_lo)[4], const uint32_t* b_hi,
                                            const uint32_t* b_lo) {
#pragma unroll
  for (int i = 0; i < count; ++i) mma16x8(d[i], a_lo, b_hi[2 * i], b_hi[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < count; ++i) mma16x8(d[i], a_hi, b_lo[2 * i], b_lo[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < count; ++i) mma16x8(d[i], a_hi, b_hi[2 * i], b_hi[2 * i + 1]);
}
__device__ __forceinline__ uint32_t (&four(uint32_t* p))[4] { return *reinterpret_cast<uint32_t(*)[4]>(p); }

// A thread's share of a tile: 8 columns of a token, zeros past the last one.
template <bool vector>
struct Token {
  Bf16x8 q = {}, k = {}, v = {};
  F32x8 gate = {};
  float beta = 0;

  __device__ __forceinline__ Token(const Segment& s, int64_t h, int64_t token, int column) {
    if (token >= s.t) return;
    const int64_t row = token * s.heads + h, at = row * kHead + column;
    beta = f(s.beta[row]);
    if constexpr (vector) {
      q = load8(s.q + at), k = load8(s.k + at), v = load8(s.v + at), gate = load8(s.gate + at);
    } else {
      for (int i = 0; i < 8; ++i) q.at[i] = s.q[at + i], k.at[i] = s.k[at + i], v.at[i] = s.v[at + i], gate.at[i] = s.gate[at + i];
    }
  }
};

__device__ __forceinline__ void unit8(const Bf16x8& x, float (&y)[8]) {
  float sq[8];
  widen8(x, y);
  for (int i = 0; i < 8; ++i) sq[i] = __fmul_rn(y[i], y[i]);
  const float r = rsqrtf(__fadd_rn(group_tree<16>(sq), 1e-6f));
  for (int i = 0; i < 8; ++i) y[i] = __fmul_rn(y[i], r);
}

// One of four warps: eight columns of n or of w.
__device__ __forceinline__ void make_system(Shared& shared, Stage& stage, int warp, int lane) {
  const bool queries = warp & 2;
  const int group = lane / 8, row = lane % 8, half = warp & 1;
  const Wide& left = queries ? stage.qd : stage.kd;
  float d[1][4] = {};
#pragma unroll
  for (int column = 0; column < kHead; column += 16) {
    uint32_t hi[4], lo[4], b[4];
    load_fragments(hi, &left.hi[(group & 1) * 8 + row][column + (group >> 1) * 8]);
    load_fragments(lo, &left.lo[(group & 1) * 8 + row][column + (group >> 1) * 8]);
    load_fragments(b, &(group < 2 ? shared.ku.hi : shared.ku.lo)[half * 8 + row][column + (group & 1) * 8]);
    gemm_pieces<1>(d, hi, lo, b, b + 2);                                           // S7
  }
  for (int r = 0; r < 2; ++r) {
    const int i = lane / 4 + 8 * r, j = half * 8 + lane % 4 * 2;
    float* x = d[0] + 2 * r;
    if (queries) {
      uint32_t hi, lo;
      cut(PLANT(4, j <= i, true) ? x[0] : 0.0f, PLANT(4, j + 1 <= i, true) ? x[1] : 0.0f, hi, lo);  // MISTAKE 4 = S7.choose:never
      *reinterpret_cast<uint32_t*>(&stage.w.hi[i][j]) = hi, *reinterpret_cast<uint32_t*>(&stage.w.lo[i][j]) = lo;
    } else {
      for (int e = 0; e < 2; ++e) shared.n[j + e][i] = __fmul_rn(x[e], -stage.b[i]);  // below the diagonal it counts
    }
  }
}

// A thread takes a column of t.
__device__ __forceinline__ void invert(const Shared& shared, Stage& stage, int column, int64_t tile_head) {
  float t[kTile];
  for (int i = 0; i < kTile; ++i) t[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j < kTile - 1; ++j) {
#pragma unroll
    for (int four = (j + 1) / 4 * 4; four < kTile; four += 4) {
      const float4 n = *reinterpret_cast<const float4*>(&shared.n[j][four]);
      const float at[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (four + i > j) t[four + i] = PLANT(2, __fmaf_rn(at[i], t[j], t[four + i]), __fadd_rn(__fmul_rn(at[i], t[j]), t[four + i]));  // S8
    }  // MISTAKE 2 = S8.inverse.fma:unfused
  }
  for (int i = 0; i < kTile; ++i) {
    KEPT(8, (tile_head * kTile + i) * kTile + column, t[i]);
    stage.t.hi[i][column] = bf(t[i]);
    stage.t.lo[i][column] = bf(__fsub_rn(t[i], f(stage.t.hi[i][column])));
  }
}

// S1 .. S8 of every tile, a stage ahead of the keepers. Sixteen threads hold a token. At the turn of a tile the tile before it is made, and the one
// before that, whose stage comes next, is read. The turn lies after S2, so that seven warps need not wait while the first inverts.
template <bool vector>
__device__ __forceinline__ void make_tiles(const Segment& s, int64_t h, Shared& shared) {
  const int thread = threadIdx.x - kKeepers, warp = thread / 32, lane = thread % 32, row = thread / 16, column = thread % 16 * 8;
  const float rate = expf(s.a_log[h]);
  if (thread < kHead) shared.bias[thread] = s.dt_bias[h * kHead + thread];
  barrier_sync(kMade, kMakers);
  Token<vector> next(s, h, row, column);
  for (int64_t tile = 0; tile * kTile < s.t; ++tile) {
    Stage& stage = shared.stage[tile & 1];
    const Token<vector> now = next;
    const int64_t token = tile * kTile + row, tile_head = tile * s.heads + h;  // S4
    const bool live = token < s.t;
    float x[8], sig[8], kn[8], qn[8];
    for (int i = 0; i < 8; ++i) {
      const bf16 landed = bf(__fadd_rn(0.0f, now.gate.at[i]));
      if (live) LANDING(1, (token * s.heads + h) * kHead + column + i, landed);
      x[i] = __fmul_rn(rate, __fadd_rn(f(landed), shared.bias[column + i]));                   // S1
    }
    sigmoid8(x, sig);
    for (int i = 0; i < 8; ++i) shared.g[row][column + i] = live ? __fmul_rn(-5.0f, sig[i]) : 0.0f;  // S1
    next = Token<vector>(s, h, token + kTile, column);
    unit8(now.k, kn), unit8(now.q, qn);                                        // S2
    for (int i = 0; i < 8; ++i) qn[i] = __fmul_rn(qn[i], 0x1.6a09e6p-4f);      // S2
    barrier_sync(kTurn, kAll);

    const int half = thread / kHead, channel = thread % kHead;
    float total = 0.0f;
    for (int i = 0; i < 8 * (half + 1); ++i) {
      total = __fadd_rn(total, shared.g[i][channel]);                          // S5
      if (i / 8 != half) continue;
      shared.c[i][channel] = total;
      KEPT(5, (tile_head * kTile + i) * kHead + channel, total);
    }
    barrier_sync(kMade, kMakers);

    float kd[8], qd[8], ku[8], kl[8], last[8];
    for (int i = 0; i < 8; ++i) {
      const float c = shared.c[row][column + i];
      const float e = ex2(__fmul_rn(c, kLog2e)), u = ex2(__fmul_rn(c, -kLog2e));  // S6
      last[i] = ex2(__fmul_rn(shared.c[kTile - 1][column + i], kLog2e));
      kd[i] = __fmul_rn(kn[i], e), qd[i] = __fmul_rn(qn[i], e), ku[i] = __fmul_rn(kn[i], u);  // S6
      const float left = __fmul_rn(ku[i], last[i]);                            // S6
      kl[i] = PLANT(1, left, f(bf(left)));                                     // MISTAKE 1 = S6.mul#4:landed
    }
    cut8(kd, &stage.kd.hi[row][column], &stage.kd.lo[row][column]);
    cut8(qd, &stage.qd.hi[row][column], &stage.qd.lo[row][column]);
    cut8(ku, &shared.ku.hi[row][column], &shared.ku.lo[row][column]);
    cut8(kl, &stage.kl.hi[row][column], &stage.kl.lo[row][column]);
    store8(&stage.v[row][column], now.v);
    if (column == 0) stage.b[row] = live ? sigmoid(now.beta) : 0.0f;           // S3
    if (row == 0)
      for (int i = 0; i < 8; ++i) stage.last[column + i] = last[i];
    barrier_sync(kMade, kMakers);
    if (warp < 4) make_system(shared, stage, warp, lane);
    barrier_sync(kMade, kMakers);
    if (warp == 0 && lane < kTile) invert(shared, stage, lane, tile_head);
    __syncwarp();  // half a warp has written, and the whole of it takes the turn
  }
  barrier_sync(kTurn, kAll);
}
