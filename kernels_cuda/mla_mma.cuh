// The mma form of mla_paged: four kernels on tensor cores. The contract is references/_mla_mma.py; S tags are its steps.
//   absorb: q_abs of every (row, head)            stats:  maximum and denominator of a split of a context
//   attend: a split's sum of probability times row   expand: o_lat from the splits, then o
// stats and attend make the same scores by the same instructions; none is stored. A block of theirs has 96 heads, two warpgroups of 48 for the
// scores, and walks the pages of one split. Transposed products, tokens or latent columns by heads, waste nothing where heads are 96.
#pragma once
#include "mla_mma_attend.cuh"
#include "mla_mma_stats.cuh"

namespace mla {

// S1: q_abs = nope x UK, a head and 128 latent columns a block, 16 rows at a time; the first block of a head copies the rope.
template <bool vector>
__global__ void __launch_bounds__(kThreads) absorb(const __grid_constant__ Operands a) {
  __shared__ __align__(16) bf16 uk[kNope][128 + kPad], q[kRows][kNope + kPad];
  const int head = blockIdx.x, column = blockIdx.y * 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  launch_dependents();
  const bf16* const weights = a.w + ((int64_t)head * (kNope + kV)) * kLatentWidth + column;
  for (int e = threadIdx.x; e < kNope * 16; e += kThreads)
    stage8<vector>(&uk[e / 16][e % 16 * 8], weights + e / 16 * kLatentWidth + e % 16 * 8, true);
  for (int64_t row = 0; row < a.b; row += kRows) {
    const auto query = [&](int r) { return a.q + ((row + r) * a.heads + head) * (kNope + 64); };
    const int r = threadIdx.x / 16, piece = threadIdx.x % 16;
    const bool live = row + r < a.b;
    stage8<vector>(&q[r][piece * 8], query(r) + piece * 8, live);
    if (column == 0 && live)
      for (int i = piece; i < 64; i += 16) a.q_abs[((row + r) * a.heads + head) * kWidth + kLatentWidth + i] = query(r)[kNope + i];
    commit_copies();
    await_copies<0, true>();
    float d[2][4] = {};
    for (int k = 0; k < kNope; k += 16) {
      uint32_t left[4], right[4];
      load_fragments(left, &q[lane % 16][k + lane / 16 * 8]);
      load_fragments_transposed(right, &uk[k + lane % 16][warp * 16 + lane / 16 * 8]);
      mma16x8(d[0], left, right[0], right[1]);
      mma16x8(d[1], left, right[2], right[3]);
    }
    for (int i = 0; i < 8; i += 2) {
      const int64_t at = row + lane / 4 + i / 2 % 2 * 8;
      const int j = column + warp * 16 + i / 4 * 8 + lane % 4 * 2;
      if (at >= a.b) continue;
      const __nv_bfloat162 two = __floats2bfloat162_rn(d[i / 4][i % 4], d[i / 4][i % 4 + 1]);
      *reinterpret_cast<__nv_bfloat162*>(&a.q_abs[(at * a.heads + head) * kWidth + j]) = two;
      LANDING(1, (at * a.heads + head) * kLatentWidth + j, two.x);
      LANDING(1, (at * a.heads + head) * kLatentWidth + j + 1, two.y);
    }
    __syncthreads();
  }
}

// S6, S7: o_lat of a head for 16 rows, each column of the splits in four partial sums, side by side; then o = UV x o_lat.
template <bool vector>
__global__ void __launch_bounds__(kExpandThreads, 1) expand(const __grid_constant__ Operands a) {
  extern __shared__ __align__(16) bf16 room[];
  constexpr int pitch = kLatentWidth + kPad;
  bf16 *const uv = room, *const latent = room + kV * pitch;
  const int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = (int64_t)blockIdx.y * kRows;
  const bf16* const weights = a.w + ((int64_t)head * (kNope + kV) + kNope) * kLatentWidth;
  for (int e = threadIdx.x; e < kV * 64; e += kExpandThreads) stage8<vector>(uv + e / 64 * pitch + e % 64 * 8, weights + e * 8, true);
  commit_copies();
  await_launch();
  const int column = threadIdx.x / 4 * 4, part = threadIdx.x % 4;
  for (int r = 0; r < kRows; r += 4) {
    float sum[4][4] = {};
    const float* from[4];
    int n[4], most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      n[i] = row + r + i < a.b ? splits_of(pages_of(a.context[row + r + i])) : 0;
      from[i] = a.parts + ((row + r + i) * a.splits * a.heads + head) * kLatentWidth + column;
      most = max(most, n[i]);
    }
#pragma unroll 4
    for (int split = part; split < most; split += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 v = split < n[i] ? *reinterpret_cast<const float4*>(from[i] + (int64_t)split * a.heads * kLatentWidth) : make_float4(0, 0, 0, 0);
        sum[i][0] = __fadd_rn(sum[i][0], v.x), sum[i][1] = __fadd_rn(sum[i][1], v.y);
        sum[i][2] = __fadd_rn(sum[i][2], v.z), sum[i][3] = __fadd_rn(sum[i][3], v.w);
      }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum[i][j] = __fadd_rn(sum[i][j], __shfl_xor_sync(~0u, sum[i][j], PLANT(7, 2, 1)));  // MISTAKE 7 = mma/S6.tree:mirrored
        sum[i][j] = __fadd_rn(sum[i][j], __shfl_xor_sync(~0u, sum[i][j], PLANT(7, 1, 2)));
        if (j == part) {
          latent[(r + i) * pitch + column + j] = bf(sum[i][j]);
          if (n[i]) LANDING(6, ((row + r + i) * a.heads + head) * kLatentWidth + column + j, bf(sum[i][j]));
        }
      }
  }
  await_copies<0, true>();
  float d[4] = {};
  for (int k = 0; k < kLatentWidth; k += 32) {
    uint32_t left[4], right[4];
    load_fragments(right, uv + (warp * 8 + lane % 8) * pitch + k + lane / 8 * 8);
    load_fragments(left, latent + lane % 16 * pitch + k + lane / 16 * 8);
    mma16x8(d, left, right[0], right[1]);
    load_fragments(left, latent + lane % 16 * pitch + k + 16 + lane / 16 * 8);
    mma16x8(d, left, right[2], right[3]);
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t at = row + lane / 4 + i / 2 * 8;
    if (at < a.b) a.o[(at * a.heads + head) * kV + warp * 8 + lane % 4 * 2 + i % 2] = bf(d[i]);  // S7
  }
}

// A kernel that may start while the one before it ends; await_launch() is where it needs what that one wrote.
static cudaError_t launch_next(void (*kernel)(Operands), dim3 grid, int threads, size_t shared, cudaStream_t stream, const Operands& a) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization, early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = &early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, a);
}

template <bool vector>
static cudaError_t run(const Operands& a, cudaStream_t stream) {
  const dim3 splits((unsigned)(a.b * a.splits), (unsigned)ceil_div(a.heads, kGroup)), rows(a.heads, (unsigned)ceil_div(a.b, kRows));
  absorb<vector><<<dim3(a.heads, kLatentWidth / 128), kThreads, 0, stream>>>(a);
  cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) status = launch_next(stats<vector>, splits, kThreads, kShared, stream, a);
  if (status == cudaSuccess) status = launch_next(attend<vector>, splits, kThreads, kShared, stream, a);
  if (status == cudaSuccess) status = launch_next(expand<vector>, rows, kExpandThreads, kExpandShared, stream, a);
  return status;
}

}  // namespace mla

// The operands of mla_paged, checked by its launcher. Scratch is allocated in the order of the stream, so it may be captured.
static int mla_mma(const bf16* q, const bf16* w_kv_b, const bf16* cache, const int32_t* table, const int32_t* context, bf16 scale,
                   int64_t layer_offset, int64_t page_stride, bf16* o, int64_t b, int64_t heads, int64_t pages, cudaStream_t stream) {
  mla::Operands a = {q, w_kv_b, cache, table, context, scale, layer_offset, page_stride, b, pages, (int)heads, mla::most_splits(pages), o};
  const size_t parts = b * a.splits * heads * mla::kLatentWidth * sizeof(float), q_abs = b * heads * mla::kWidth * sizeof(bf16);
  char* scratch = nullptr;  // parts and q_abs fill whole 16-byte pieces
  cudaError_t status = cudaMallocAsync(&scratch, parts + q_abs + b * heads * a.splits * sizeof(float2), stream);
  if (status != cudaSuccess) return (int)status;
  a.parts = reinterpret_cast<float*>(scratch), a.q_abs = reinterpret_cast<bf16*>(scratch + parts);
  a.stats = reinterpret_cast<float2*>(scratch + parts + q_abs);
  const bool vector = aligned16(q) && aligned16(w_kv_b) && aligned16(cache) && layer_offset % 8 == 0 && page_stride % 8 == 0;
  status = vector ? mla::run<true>(a, stream) : mla::run<false>(a, stream);
  const cudaError_t freed = cudaFreeAsync(scratch, stream);
  return (int)(status != cudaSuccess ? status : freed);
}
