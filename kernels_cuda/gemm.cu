// gemm: partial products of a split k range. The contract is references/gemm.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "widths.cuh"

static const int kBand = 8;  // tiles of a that are multiplied by the same rows of w one after the other, while the L2 holds both

struct Sizes {
  int m, n, part, split_k, tiles_a, tiles_w;  // part: the columns of a split

  Sizes(int64_t m, int64_t n, int64_t k, int64_t split_k, int rows_a, int rows_w)
      : m((int)m), n((int)n), part((int)(k / split_k)), split_k((int)split_k), tiles_a((int)ceil_div(m, rows_a)), tiles_w((int)ceil_div(n, rows_w)) {}
  int64_t tiles() const { return (int64_t)tiles_a * tiles_w * split_k; }

  // S1: slabs of 64 columns, in each the blocks of 16
  __device__ __forceinline__ int slabs() const { return (part + kWide - 1) / kWide; }
  __device__ __forceinline__ int column(int i) const { return kWide * PLANT(1, i, slabs() - 1 - i); }
  __device__ __forceinline__ static int block(int i) { return PLANT(1, i, kWide / 16 - 1 - i); }  // MISTAKE 1 = S1.gemm:k_descending
  __device__ __forceinline__ float* row(float* p, int i, int split) const {
    const int place = PLANT(2, split, split_k - 1 - split);  // MISTAKE 2 = S1.gemm:splits_reversed
    return p + ((int64_t)i * split_k + place) * n;
  }
};

struct Tile {
  int a, w, split;

  __device__ __forceinline__ Tile(const Sizes& n, int item) {
    const int each = n.tiles_a * n.tiles_w, band = item % each / (kBand * n.tiles_w);
    const int within = item % each - band * kBand * n.tiles_w, height = min(kBand, n.tiles_a - kBand * band);
    a = kBand * band + within % height, w = within / height, split = item / each;
  }
};

__device__ __forceinline__ float stored(float x) { return PLANT(3, nan32(x), nan32(f(bf(x)))); }  // MISTAKE 3 = S1.gemm:landed

// Current form: w . a^T, so that weights are the rows of 64 that a warpgroup multiplies at once and the batch is the width, 8 at least: products
// commute, and every width adds them up alike. One warp keeps slabs of both coming, as many as shared memory holds; blocks walk the tiles.
template <int kWidth, int kGroups>
struct Ring {
  static const int kRows = 64 * kGroups, kThreads = 128 * kGroups + 32, kBlocks = kGroups == 1 ? 2 : 1;  // blocks of a multiprocessor
  // Of a block's share of the 228 KB, 1 is the system's, 1 goes into the alignment, 1 is for the barriers.
  static const int kStages = (228 / kBlocks - 3) * 1024 / ((kRows + kWidth) * kWide * (int)sizeof(bf16));

  struct alignas(1024) Stage {
    bf16 w[kRows][kWide], a[kWidth][kWide];
  };
  Stage stages[kStages];
  Barrier full[kStages], free[kStages];

  struct Turn {
    int stage = 0, phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage == kStages) stage = 0, phase ^= 1;
    }
  };
};

__device__ __forceinline__ void prefetch_slab(const CUtensorMap& map, int column, int head, int token) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(&map), "r"(column), "r"(head), "r"(token) : "memory");
}

template <int kWidth, int kGroups>
__global__ void __launch_bounds__(Ring<kWidth, kGroups>::kThreads, Ring<kWidth, kGroups>::kBlocks)
    gemm_wgmma(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap w, float* p, const Sizes n, int tiles) {
  using Held = Ring<kWidth, kGroups>;
  extern __shared__ uint8_t raw[];
  Held& ring = *reinterpret_cast<Held*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slabs = n.slabs();
  launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Held::kStages; ++i) ring.full[i].init(1), ring.free[i].init(4 * kGroups);
    publish_barriers();
  }
  __syncthreads();

  typename Held::Turn turn;
  if (warp == 4 * kGroups) {
    if (lane != 0) return;
    const Tile first(n, blockIdx.x);
    for (int i = 0; i < min(Held::kStages, slabs); ++i) prefetch_slab(w, n.column(i), first.split, Held::kRows * first.w);
    await_launch();  // until here nothing came nearer than the L2, which holds what the kernel before this one writes
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const Tile at(n, tile);
      for (int i = 0; i < slabs; ++i, turn.next()) {
        auto& stage = ring.stages[turn.stage];
        ring.free[turn.stage].wait(turn.phase ^ 1);  // of a stage not yet used, the phase before the first counts as complete
        ring.full[turn.stage].arrive_expecting(sizeof stage);
        copy_slab(&stage.w[0][0], w, n.column(i), at.split, Held::kRows * at.w, ring.full[turn.stage]);
        copy_slab(&stage.a[0][0], a, n.column(i), at.split, kWidth * at.a, ring.full[turn.stage]);
      }
    }
  } else {
    float d[kWidth / 2];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int before = turn.stage;
      for (int i = 0; i < slabs; ++i, turn.next()) {  // S1
        ring.full[turn.stage].wait(turn.phase);
        wgmma_begin();
        const uint64_t left = slab(&ring.stages[turn.stage].w[warp / 4 * 64][0]), right = slab(&ring.stages[turn.stage].a[0][0]);
#pragma unroll
        for (int j = 0; j < kWide / 16; ++j) product(d, bytes_on(left, n.block(j) * 32), bytes_on(right, n.block(j) * 32), i + j > 0);
        wgmma_commit();
        wgmma_await<1>();
        if (i > 0 && lane == 0) ring.free[before].arrive();
        before = turn.stage;
      }
      finished<0>(d);
      if (lane == 0) ring.free[before].arrive();
      const Tile at(n, tile);
      const int row = kWidth * at.a + 2 * (lane % 4), column = Held::kRows * at.w + 16 * warp + lane / 4;
      const int64_t pitch = (int64_t)n.split_k * n.n;
      const bool here = column < n.n, beyond = column + 8 < n.n;
      float* to = n.row(p, row, at.split) + column;
#pragma unroll
      for (int i = 0; i < kWidth / 2; i += 4, to += 8 * pitch)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (row + 2 * i + e >= n.m) continue;
          if (here) to[e * pitch] = stored(d[i + e]);
          if (beyond) to[e * pitch + 8] = stored(d[i + 2 + e]);
        }
    }
  }
}

template <int kWidth, int kGroups>
static int run_wgmma(const bf16* a, const bf16* w, float* p, int64_t m, int64_t n, int64_t k, int64_t split_k, cudaStream_t stream) {
  using Held = Ring<kWidth, kGroups>;
  const auto kernel = gemm_wgmma<kWidth, kGroups>;
  const Sizes sizes(m, n, k, split_k, kWidth, Held::kRows);
  const int shared = sizeof(Held) + 1024;
  CUtensorMap maps[2];  // a split is what map_slabs calls a head: columns past its end arrive as zeros, which add nothing
  cudaError_t status = map_slabs(maps[0], a, sizes.part, split_k, m, sizes.part, k, kWidth);
  if (!status) status = map_slabs(maps[1], w, sizes.part, split_k, n, sizes.part, k, Held::kRows);
  if (!status) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status) return (int)status;
  const int64_t resident = resident_blocks(kernel, Held::kThreads, shared), tiles = sizes.tiles();
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = (unsigned)(tiles < resident ? tiles : resident), config.blockDim = Held::kThreads;
  config.dynamicSmemBytes = shared, config.stream = stream, config.attrs = &early, config.numAttrs = 1;
  return (int)cudaLaunchKernelEx(&config, kernel, maps[0], maps[1], p, sizes, (int)tiles);
}

// Retired form, and of rows that do not lie on 16 bytes: four warps with 16 rows of a each, one slab at a time.
static const int kTile = 64;

template <bool vector>
__device__ __forceinline__ void stage_slab(bf16 (&to)[kTile][kWide + 8], const bf16* from, int64_t stride, int rows, int columns) {
  for (int e = threadIdx.x; e < kTile * kWide / 8; e += blockDim.x) {
    const int row = e / (kWide / 8), column = e % (kWide / 8) * 8;
    stage8<vector>(&to[row][column], from + row * stride + column, row < rows && column < columns);
  }
}

template <bool vector>
__global__ void __launch_bounds__(128) gemm_mma(const bf16* a, const bf16* w, float* p, const Sizes n) {
  __shared__ __align__(16) bf16 rows[kTile][kWide + 8], columns[kTile][kWide + 8];
  const Tile at(n, blockIdx.x);
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
  const int64_t stride = (int64_t)n.part * n.split_k, start = (int64_t)n.part * at.split;
  float d[kTile / 8][4] = {};
  for (int i = 0; i < n.slabs(); ++i) {  // S1
    const int column = n.column(i);
    stage_slab<vector>(rows, a + (int64_t)kTile * at.a * stride + start + column, stride, n.m - kTile * at.a, n.part - column);
    stage_slab<vector>(columns, w + (int64_t)kTile * at.w * stride + start + column, stride, n.n - kTile * at.w, n.part - column);
    commit_copies();
    await_copies<0>();
    uint32_t left[4], right[4];
#pragma unroll
    for (int j = 0; j < kWide / 16; ++j) {
      load_fragments(left, &rows[own + lane % 16][16 * n.block(j) + lane / 16 * 8]);
#pragma unroll
      for (int t = 0; t < kTile / 8; t += 2) {
        load_fragments(right, &columns[8 * t + lane % 8 + lane / 16 * 8][16 * n.block(j) + lane / 8 % 2 * 8]);
        mma16x8(d[t], left, right[0], right[1]), mma16x8(d[t + 1], left, right[2], right[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kTile / 2; ++i) {
    const int row = kTile * at.a + own + lane / 4 + 8 * (i / 2 % 2), column = kTile * at.w + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (row < n.m && column < n.n) n.row(p, row, at.split)[column] = stored(d[i / 4][i % 4]);
  }
}

// a bf16 [m, k], w bf16 [n, k], split_k -> p f32 [m, split_k, n]; packed. form 0: current, 1: retired.
extern "C" int gemm(const bf16* a, const bf16* w, int64_t split_k, float* p, int64_t m, int64_t k, int64_t n, int form, cudaStream_t stream) {
  REQUIRE(5, m >= 0 && m <= 1 << 30);
  REQUIRE(1, a || m == 0);
  REQUIRE(2, w);
  REQUIRE(3, split_k >= 1 && split_k <= 1 << 20);
  REQUIRE(4, p || m == 0);
  REQUIRE(6, k >= 1 && k <= 1 << 30 && k % (16 * split_k) == 0);
  REQUIRE(7, n >= 1 && n <= 1 << 30 && ceil_div(m, kTile) * ceil_div(n, kTile) <= (1 << 30) / split_k);
  REQUIRE(8, form == 0 || form == 1);
  if (m == 0) return 0;
  const bool aligned = aligned16(a) && aligned16(w);
  if (form == 1 || !aligned) {
    const Sizes sizes(m, n, k, split_k, kTile, kTile);
    (aligned ? gemm_mma<true> : gemm_mma<false>)<<<(unsigned)sizes.tiles(), 128, 0, stream>>>(a, w, p, sizes);
    return (int)cudaGetLastError();
  }
  const auto run = m <= 8    ? run_wgmma<8, 1>
                   : m <= 16  ? run_wgmma<16, 1>
                   : m <= 32  ? run_wgmma<32, 1>
                   : m <= 64  ? run_wgmma<64, 1>
                   : m <= 128 ? run_wgmma<128, 1>
                              : run_wgmma<256, 2>;
  return run(a, w, p, m, n, k, split_k, stream);
}
