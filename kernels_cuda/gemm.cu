// gemm: partial products of a split k range. The contract is references/gemm.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "gemm.cuh"
#include "widths.cuh"

// Current form: a . w^T in tiles of 64 rows of a a warpgroup and of kColumns rows of w, so narrow that every multiprocessor gets an even share of the
// weights. Products commute, and every width adds them up alike. One warp keeps slabs of both coming, as many as shared memory holds; blocks walk the tiles.
template <int kColumns, int kGroups>
struct Shape {
  static const int kRows = 64 * kGroups, kThreads = 128 * kGroups + 32;
  static const int kSlabs = kColumns <= 16 ? 8 : kColumns <= 32 ? 4 : kColumns <= 64 ? 2 : 1;  // that come and go together, a stage of the ring
};
static const int kRowBytes = kWide * (int)sizeof(bf16), kMostStages = 18;

// A stage is kSlabs slabs of `rows` rows of a, then as many of w. Where a has fewer rows than a tile, the products take what follows them in the stage for
// the others, and nothing is stored of that.
template <int kColumns, int kGroups>
struct Ring {
  static const int kSlabs = Shape<kColumns, kGroups>::kSlabs, kBytesW = kColumns * kRowBytes;
  static_assert(kColumns * kSlabs >= 64 - 8, "all that the products take for rows of a lies in the stage");
  uint8_t* const stages;
  const int bytes_a, bytes, count;
  Barrier *const full, *const free;
  int stage = 0, phase = 0;

  __device__ __forceinline__ Ring(uint8_t* stages, Barrier* barriers, int rows, int count)
      : stages(stages), bytes_a(rows * kRowBytes), bytes(kSlabs * (rows * kRowBytes + kBytesW)), count(count), full(barriers), free(barriers + kMostStages) {}
  __device__ __forceinline__ bf16* a(int slab) const { return reinterpret_cast<bf16*>(stages + stage * bytes + slab * bytes_a); }
  __device__ __forceinline__ bf16* w(int slab) const { return reinterpret_cast<bf16*>(stages + stage * bytes + kSlabs * bytes_a + slab * kBytesW); }
  __device__ __forceinline__ void next() {
    if (++stage == count) stage = 0, phase ^= 1;
  }
};

// A lane's rows `row` and 8 below it. Where rows of p lie on 16 bytes, neighbouring lanes exchange pairs for four columns side by side.
template <int kSums>
__device__ __forceinline__ void store_tile(const float (&d)[kSums], float* p, const Sizes& n, int row, int column, int split) {
  const int lane = threadIdx.x % 32, odd = lane % 2;
  const bool fours = kSums % 8 == 0 && n.n % 4 == 0 && reinterpret_cast<uintptr_t>(p) % 16 == 0;
#pragma unroll
  for (int half = 0; half < 4; half += 2, row += 8) {
    float* const to = n.row(p, row, split);
    if (fours) {
#pragma unroll
      for (int i = 0; i + 8 <= kSums; i += 8) {
        const float2 low = {stored(d[i + half]), stored(d[i + half + 1])}, high = {stored(d[i + half + 4]), stored(d[i + half + 5])};
        const float x = __shfl_xor_sync(kWarp, odd ? low.x : high.x, 1), y = __shfl_xor_sync(kWarp, odd ? low.y : high.y, 1);
        const int at = column + 2 * i + 8 * odd + 4 * (lane % 4 / 2);
        if (row < n.m && at < n.n) *reinterpret_cast<float4*>(to + at) = odd ? make_float4(x, y, high.x, high.y) : make_float4(low.x, low.y, x, y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = column + 2 * i + 2 * (lane % 4) + e;
          if (row < n.m && at < n.n) to[at] = stored(d[i + half + e]);
        }
    }
  }
}

template <int kColumns, int kGroups>
__global__ void __launch_bounds__(Shape<kColumns, kGroups>::kThreads, 1)
    gemm_wgmma(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap w, float* p, const Sizes n, int tiles, int rows, int stages) {
  using Tiled = Shape<kColumns, kGroups>;
  extern __shared__ uint8_t raw[];
  __shared__ Barrier barriers[2 * kMostStages];
  Ring<kColumns, kGroups> ring(raw + (1024 - shared_address(raw) % 1024) % 1024, barriers, rows, stages);
  const int warp = __shfl_sync(kWarp, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int turns = (n.slabs() + Tiled::kSlabs - 1) / Tiled::kSlabs;
  launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) ring.full[i].init(1), ring.free[i].init(4 * kGroups);
    publish_barriers();
  }
  __syncthreads();

  if (warp == 4 * kGroups) {
    await_launch();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const Tile at(n, tile);
      for (int i = 0; i < turns; ++i, ring.next()) {
        Barrier& full = ring.full[ring.stage];
        ring.free[ring.stage].wait_together(ring.phase ^ 1);  // of a stage not yet used, the phase before the first counts as complete
        if (lane == 0) full.arrive_expecting(ring.bytes);
        __syncwarp();
        if (lane < Tiled::kSlabs) {  // a slab past the last comes as zeros, which add nothing
          const int column = n.column(Tiled::kSlabs * i + lane);
          copy_slab(ring.w(lane), w, column, at.split, kColumns * at.w, full);
          copy_slab(ring.a(lane), a, column, at.split, Tiled::kRows * at.a, full);
        }
      }
    }
  } else {
    float d[kColumns / 2];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int before = ring.stage;
      for (int i = 0; i < turns; ++i, ring.next()) {  // S1
        ring.full[ring.stage].wait_together(ring.phase);
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < Tiled::kSlabs; ++t) {
          const uint64_t left = slab(ring.a(t) + warp / 4 * 64 * kWide), right = slab(ring.w(t));
#pragma unroll
          for (int j = 0; j < kWide / 16; ++j) product(d, bytes_on(left, n.block(j) * 32), bytes_on(right, n.block(j) * 32), i + t + j > 0);
        }
        wgmma_commit();
        wgmma_await<1>();
        if (i > 0 && lane == 0) ring.free[before].arrive();
        before = ring.stage;
      }
      finished<0>(d);
      if (lane == 0) ring.free[before].arrive();
      const Tile at(n, tile);
      store_tile(d, p, n, Tiled::kRows * at.a + 16 * warp + lane / 4, kColumns * at.w, at.split);
    }
  }
}

template <int kColumns, int kGroups>
static int run(const bf16* a, const bf16* w, float* p, int64_t m, int64_t n, int64_t k, int64_t split_k, cudaStream_t stream) {
  using Tiled = Shape<kColumns, kGroups>;
  const auto kernel = gemm_wgmma<kColumns, kGroups>;
  const Sizes sizes(m, n, k, split_k, Tiled::kRows, kColumns);
  const int rows = (int)(m < Tiled::kRows ? 8 * ceil_div(m, 8) : Tiled::kRows), bytes = Tiled::kSlabs * (rows + kColumns) * kRowBytes;
  const int64_t tiles = sizes.tiles(), turns = ceil_div(sizes.slabs(), Tiled::kSlabs) * ceil_div(tiles, multiprocessors());
  const int64_t room = (kMostShared - 2 * kMostStages * (int)sizeof(Barrier) - 1024) / bytes, most = room < kMostStages ? room : kMostStages;
  const int stages = (int)(turns < most ? turns : most), shared = stages * bytes + 1024;  // no more than are used: the next kernel's blocks want theirs
  CUtensorMap maps[2];  // a split is what map_slabs calls a head: columns past its end arrive as zeros, too
  cudaError_t status = map_slabs(maps[0], a, sizes.part, split_k, m, sizes.part, k, rows);
  if (!status) status = map_slabs(maps[1], w, sizes.part, split_k, n, sizes.part, k, kColumns);
  if (!status) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status) return (int)status;
  const int64_t resident = resident_blocks(kernel, Tiled::kThreads, shared);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = (unsigned)(tiles < resident ? tiles : resident), config.blockDim = Tiled::kThreads;
  config.dynamicSmemBytes = shared, config.stream = stream, config.attrs = &early, config.numAttrs = 1;
  return (int)cudaLaunchKernelEx(&config, kernel, maps[0], maps[1], p, sizes, (int)tiles, rows, stages);
}

// The width of 8 to 64 that leaves the busiest multiprocessor the least to do: rows of w, and 8 more a tile for what a tile costs beside them.
static int even_width(int64_t n, int64_t split_k) {
  const int64_t processors = multiprocessors();
  int64_t least = INT64_MAX;
  int best = 0;
  for (int width = 64; width >= 8; width -= 8) {
    const int64_t work = ceil_div(ceil_div(n, width) * split_k, processors) * (width + 8);
    if (work < least) least = work, best = width;
  }
  return best;
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
  if (m > 128) return run<256, 2>(a, w, p, m, n, k, split_k, stream);
  if (m > 64) return run<128, 2>(a, w, p, m, n, k, split_k, stream);
  static const decltype(&run<8, 1>) narrow[] = {run<8, 1>, run<16, 1>, run<24, 1>, run<32, 1>, run<40, 1>, run<48, 1>, run<56, 1>, run<64, 1>};
  return narrow[even_width(n, split_k) / 8 - 1](a, w, p, m, n, k, split_k, stream);
}
