// fmha: attention of dense queries over dense keys. The contract is references/fmha.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "fmha.cuh"
#include "hopper.cuh"

static const int64_t kCached = 40 << 20;    // bytes of keys and values that the L2 holds while the blocks of their heads run

// Current form: one warpgroup copies, two compute 64 queries each. The products with the values of a tile run beside the weights of the next.
static const int kStages = 2, kCopiers = 128, kThreads = kCopiers + 2 * 128, kComputing = 8;

struct alignas(1024) Shared {
  bf16 q[kQk / kWide][kTile][kWide];
  bf16 k[kStages][kQk / kWide][kTile][kWide];
  bf16 v[kStages][kV / kWide][kTile][kWide];
  Barrier q_full, k_full[kStages], v_full[kStages], k_free[kStages], v_free[kStages];
};

template <int slabs>
__device__ __forceinline__ void copy_tile(bf16 (&to)[slabs][kTile][kWide], const CUtensorMap& map, int head, int tile, Barrier& full) {
  full.arrive_expecting(sizeof to);
  for (int i = 0; i < slabs; ++i) copy_slab(&to[i][0][0], map, kWide * i, head, kTile * tile, full);
}

__global__ void __launch_bounds__(kThreads, 1)
    fmha_wgmma(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, float scale, bf16* o,
               float* lse, const Sizes n, int group) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const Work at(n, group);
  const int tiles = n.tiles(at.block);
  if (threadIdx.x == 0) {
    shared.q_full.init(1);
    for (int i = 0; i < kStages; ++i) {
      shared.k_full[i].init(1), shared.v_full[i].init(1);
      shared.k_free[i].init(kComputing), shared.v_free[i].init(kComputing);
    }
    publish_barriers();
  }
  __syncthreads();

  if (threadIdx.x < kCopiers) {
    give_registers<24>();
    if (threadIdx.x != 0) return;
    copy_tile(shared.q, q, at.head, at.block, shared.q_full);
    for (int j = 0; j <= tiles; ++j) {  // in the order in which they are used: k 0, k 1, v 0, k 2, v 1, ...
      if (j < tiles) {
        shared.k_free[j % kStages].wait((j / kStages + 1) % 2);  // of a stage not yet used, the phase before the first counts as complete
        copy_tile(shared.k[j % kStages], k, at.head, j, shared.k_full[j % kStages]);
      }
      if (j > 0) {
        shared.v_free[(j - 1) % kStages].wait(((j - 1) / kStages + 1) % 2);
        copy_tile(shared.v[(j - 1) % kStages], v, at.head, j - 1, shared.v_full[(j - 1) % kStages]);
      }
    }
  } else {
    take_registers<240>();
    const int first = (threadIdx.x - kCopiers) / 32 * 16;
    const bool leader = threadIdx.x % 32 == 0;
    const float c = __fmul_rn(scale, kLog2e);  // S1
    Queries mine(n, at, first);
    float s[64], alpha[2];
    uint32_t p[32];
    const auto score = [&](int j) {  // S3
      shared.k_full[j % kStages].wait(j / kStages % 2);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kQk / 16; ++i) {
        const uint64_t a = slab(&shared.q[i / 4][first / 64 * 64][0]), b = slab(&shared.k[j % kStages][i / 4][0][0]);
        product(s, bytes_on(a, i % 4 * 32), bytes_on(b, i % 4 * 32), i > 0);
      }
      wgmma_commit();
    };
    const auto add_values = [&](int j) {  // S7
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kTile / 16; ++i) product_on(mine.acc, p, 4 * i, slab(&shared.v[j % kStages][0][16 * i][0], sizeof shared.v[0][0]));
      wgmma_commit();
    };
    const auto weigh = [&](int j) {
      if (leader) shared.k_free[j % kStages].arrive();
      mine.hide(s, kTile * j);
      mine.weigh(s, c, alpha);
      shared.v_full[j % kStages].wait(j / kStages % 2);  // here, where it also keeps ptxas from waiting for products before there are weights
    };
    shared.q_full.wait(0);
    if (tiles > 0) {
      score(0);
      finished<0>(s);
      weigh(0);
      mine.land(s, p, n, at, 0);
      for (int j = 1; j < tiles; ++j) {
        score(j);
        add_values(j - 1);
        finished<1>(s);
        weigh(j);
        finished(mine.acc, p);
        if (leader) shared.v_free[(j - 1) % kStages].arrive();
        mine.rescale(alpha);
        mine.land(s, p, n, at, j);
      }
      add_values(tiles - 1);
      finished(mine.acc, p);
    }
    mine.store<true>(o, lse, scale, n, at);
  }
}

// Retired form: eight warps with 16 queries each, one tile at a time.
static const int kWarps = 8;

template <int columns>
struct Padded {
  bf16 at[kTile][columns + 8];  // rows 16 bytes longer: the eight rows of an ldmatrix lie in different banks

  template <bool wide>
  __device__ __forceinline__ void load(const bf16* from, int64_t stride, int rows) {
    const int step = wide ? 8 : 1;
    for (int i = threadIdx.x * step; i < kTile * columns; i += blockDim.x * step) {
      const int row = i / columns, column = i % columns;
      if (!wide) at[row][column] = row < rows ? from[row * stride + column] : bf(0.0f);
      else store8(&at[row][column], row < rows ? load8(from + row * stride + column) : Bf16x8{});
    }
  }
};
struct PaddedShared {
  Padded<kQk> q, k;
  Padded<kV> v;
};

__device__ __forceinline__ float (&four(float (&x)[64], int i))[4] { return reinterpret_cast<float(&)[4]>(x[i]); }

template <bool wide>
__global__ void __launch_bounds__(kWarps * 32)
    fmha_mma(const bf16* q, const bf16* k, const bf16* v, float scale, bf16* o, float* lse, const Sizes n, int group) {
  extern __shared__ __align__(16) uint8_t raw[];
  PaddedShared& shared = *reinterpret_cast<PaddedShared*>(raw);
  const Work at(n, group);
  const int first = threadIdx.x / 32 * 16, tiles = n.tiles(at.block);
  const float c = __fmul_rn(scale, kLog2e);  // S1
  Queries mine(n, at, first);
  const int lane = mine.lane;
  const int64_t stride = (int64_t)n.h * kQk, column = at.head * kQk;
  shared.q.template load<wide>(q + (int64_t)at.block * kTile * stride + column, stride, n.t_q - at.block * kTile);
  for (int j = 0; j < tiles; ++j) {
    const int64_t token = (int64_t)j * kTile;
    shared.k.template load<wide>(k + token * stride + column, stride, n.t_kv - j * kTile);
    shared.v.template load<wide>(v + token * n.ldv + (at.head + 1) * n.wv - kV, n.ldv, n.t_kv - j * kTile);
    __syncthreads();
    float s[64] = {}, alpha[2];
    uint32_t p[32], a[4], b[4];
    for (int i = 0; i < kQk; i += 16) {  // S3
      load_fragments(a, &shared.q.at[first + lane % 16][i + lane / 16 * 8]);
#pragma unroll
      for (int key = 0; key < kTile; key += 16) {
        load_fragments(b, &shared.k.at[key + lane % 8 + lane / 16 * 8][i + lane / 8 % 2 * 8]);
        mma16x8(four(s, key / 2), a, b[0], b[1]), mma16x8(four(s, key / 2 + 4), a, b[2], b[3]);
      }
    }
    mine.hide(s, kTile * j);
    mine.weigh(s, c, alpha);
    mine.rescale(alpha);
    mine.land(s, p, n, at, j);
#pragma unroll
    for (int key = 0; key < kTile; key += 16) {  // S7
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = p[key / 4 + i];
#pragma unroll
      for (int i = 0; i < kV; i += 16) {
        load_fragments_transposed(b, &shared.v.at[key + lane % 16][i + lane / 16 * 8]);
        mma16x8(four(mine.acc, i / 2), a, b[0], b[1]), mma16x8(four(mine.acc, i / 2 + 4), a, b[2], b[3]);
      }
    }
    __syncthreads();
  }
  mine.template store<wide>(o, lse, scale, n, at);
}

template <class... Parameters, class... Arguments>
static int launch(void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared, cudaStream_t stream, Arguments... arguments) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
  if (status) return (int)status;
  kernel<<<(unsigned)blocks, threads, shared, stream>>>(arguments...);
  return (int)cudaGetLastError();
}

// q bf16 [t_q, h, 192], k bf16 [t_kv, h, 192], v bf16 [t_kv, h, wv] with tokens ldv apart, scale, causal (0 or 1) -> o bf16 [t_q, h, 128],
// lse f32 [h, t_q]. form 0: current, 1: retired.
extern "C" int fmha(const bf16* q, const bf16* k, const bf16* v, float scale, int64_t causal, bf16* o, float* lse, int64_t t_q, int64_t h, int64_t t_kv,
                    int64_t wv, int64_t ldv, int form, cudaStream_t stream) {
  REQUIRE(1, q);
  REQUIRE(2, k);
  REQUIRE(3, v);
  REQUIRE(4, scale > 0.0f && scale <= 0x1p127f);  // so that scale * log2(e) is finite
  REQUIRE(5, causal == 0 || causal == 1);
  REQUIRE(6, o);
  REQUIRE(7, lse);
  REQUIRE(8, t_q >= 1 && t_q <= 1 << 30);
  REQUIRE(9, h >= 1 && h <= 1 << 16 && ceil_div(t_q, kTile) * h <= INT32_MAX);
  REQUIRE(10, t_kv >= 1 && t_kv <= 1 << 30);
  REQUIRE(11, wv >= kV);
  REQUIRE(12, ldv >= h * wv);
  REQUIRE(13, form == 0 || form == 1);
  const Sizes n = {(int)t_q, (int)t_kv, (int)h, (int)causal, wv, ldv};
  const int64_t blocks = ceil_div(t_q, kTile) * h, groups = h * t_kv * (kQk + kV) * (int64_t)sizeof(bf16) / kCached;
  const int group = (int)ceil_div(h, groups < 1 ? 1 : groups > h ? h : groups);
  const bool wide = aligned16(q) && aligned16(k) && aligned16(v) && aligned16(o) && wv % 8 == 0 && ldv % 8 == 0;
  if (form == 1 || !wide)
    return launch(wide ? fmha_mma<true> : fmha_mma<false>, blocks, kWarps * 32, sizeof(PaddedShared), stream, q, k, v, scale, o, lse, n, group);
  CUtensorMap maps[3];
  cudaError_t status = map_slabs(maps[0], q, kQk, h, t_q, kQk, h * kQk, kTile);
  if (!status) status = map_slabs(maps[1], k, kQk, h, t_kv, kQk, h * kQk, kTile);
  if (!status) status = map_slabs(maps[2], v + wv - kV, kV, h, t_kv, wv, ldv, kTile);
  if (status) return (int)status;
  return launch(fmha_wgmma, blocks, kThreads, sizeof(Shared) + 1024, stream, maps[0], maps[1], maps[2], scale, o, lse, n, group);
}
