// conv_silu_chunk: a segment of consecutive rows through the four-tap convolution. The contract is references/conv_silu_chunk.py.
// Build: -O3 -fmad=false, no fast-math.
// Of conv.cuh:
// MISTAKE 1 = S1.zero:minus_zero
// MISTAKE 2 = S3.fma:unfused
#include "conv.cuh"

// The input of a row: a carried one where the row is negative.
template <int C>
__device__ __forceinline__ Channels<C> input_of(int64_t row, const float* p, const bf16* carry, int64_t nt, int64_t inner) {
  return row < 0 ? widened(load_packed<C>(carry + (row + 3) * inner)) : input(load_partials<C>(p + row * nt));
}

// Current form: each thread walks `rows` consecutive rows of its channels with the window in registers. It starts three rows early, and three
// rows are on their way while one is computed: their registers take turns, as those of the window do.
template <int C>
__global__ void __launch_bounds__(kConvThreads, 2) conv_chunk(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y,
                                                              bf16* next, int64_t t, int64_t nt, int64_t inner, int64_t rows) {
  const int64_t channel = ((int64_t)blockIdx.x * kConvThreads + threadIdx.x) * C;
  if (channel >= inner) return;
  const int64_t first = blockIdx.y * rows, last = first + rows < t ? first + rows : t;
  p += channel, carry += channel;
  const int64_t end = PLANT(3, commit_rows, commit_rows - 1);                                          // MISTAKE 3 = S7.select:early
  if (first < commit_rows && commit_rows <= last)
    for (int j = 0; j < 3; ++j) store_landed(next + j * inner + channel, input_of<C>(end - 3 + j, p, carry, nt, inner));  // S7
  Channels<C> ahead[3];
  const float* from = p + first * nt;
  const auto load = [&](Channels<C>& partials, int64_t row) {
    if (row < last) partials = load_partials<C>(from);
    from += nt;
  };
#pragma unroll
  for (int i = 0; i < 3; ++i) load(ahead[i], first + i);
  Convolution<C> conv(taps + channel * 4);
  if (first > 0) {
#pragma unroll
    for (int j = 0; j < 3; ++j) conv.w[j] = input(load_partials<C>(p + (first - 3 + j) * nt));         // S2
  } else {
#pragma unroll
    for (int j = 0; j < 3; ++j) conv.w[j] = widened(load_packed<C>(carry + j * inner));
  }
  int64_t index = first * inner + channel;
  for (int64_t row = first;; row += 3)
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (row + i >= last) return;
      const Channels<C> x = input(ahead[i]);
      load(ahead[i], row + i + 3);
      store_landed(y + index, conv.row(x, index));
      conv.shift(x);
      index += inner;
    }
}

// One wave of threads, none with fewer than 16 rows to its three early ones.
template <int C>
static int walk_chunk(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt,
                      int64_t inner, cudaStream_t stream) {
  const int64_t across = ceil_div(inner, kConvThreads * C), fair = ceil_div(t, side_by_side(conv_chunk<C>, across));
  const int64_t rows = fair > 16 ? fair : 16;
  const dim3 grid((unsigned)across, (unsigned)ceil_div(t, rows));
  conv_chunk<C><<<grid, kConvThreads, 0, stream>>>(p, taps, carry, commit_rows, y, next, t, nt, inner, rows);
  return (int)cudaGetLastError();
}

// The carried rows, then the inputs: x [3 + t, inner].
__global__ void __launch_bounds__(kConvThreads) land_rows(const float* p, const bf16* carry, bf16* x, int64_t t, int64_t nt, int64_t inner) {
  const int64_t channel = (int64_t)blockIdx.x * kConvThreads + threadIdx.x;
  if (channel >= inner) return;
  for (int64_t row = blockIdx.y; row < t + 3; row += gridDim.y)
    store_landed(x + row * inner + channel, input_of<1>(row - 3, p + channel, carry + channel, nt, inner));
}

// Retired form, the composition it was: land behind the carried rows, copy out every row's window, decode all rows, copy the carry.
static cudaError_t chunk_retired(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt,
                                 int64_t inner, bf16* x, bf16* windows, cudaStream_t stream) {
  const size_t row = inner * sizeof(bf16);
  const dim3 grid((unsigned)ceil_div(inner, kConvThreads), (unsigned)(t < 65535 ? t : 65535));
  land_rows<<<grid, kConvThreads, 0, stream>>>(p, carry, x, t, nt, inner);                                                            // S1
  for (int j = 0; j < 3; ++j)                                                                                                         // S2
    cudaMemcpy2DAsync(windows + j * inner, 3 * row, x + j * inner, row, row, t, cudaMemcpyDeviceToDevice, stream);
  conv_rows<1><<<grid, kConvThreads, 0, stream>>>(p, taps, windows, y, nullptr, t, nt, inner);                                        // S3..S6
  const int64_t from = PLANT(3, commit_rows, commit_rows - 1);
  if (commit_rows) cudaMemcpyAsync(next, x + from * inner, 3 * row, cudaMemcpyDeviceToDevice, stream);                                // S7
  return cudaGetLastError();
}

// p f32 [t, nt], taps f32 [inner, 4], carry bf16 [3, inner], off, commit_rows -> y bf16 [t, inner], next bf16 [3, inner]; packed.
// next must not overlap carry, and is not written where commit_rows is 0. form 0: current, 1: retired.
extern "C" int conv_silu_chunk(const float* p, const float* taps, const bf16* carry, int64_t off, int64_t commit_rows, bf16* y, bf16* next, int64_t t,
                               int64_t nt, int64_t inner, int form, cudaStream_t stream) {
  REQUIRE(8, t >= 0);
  REQUIRE(1, p || t == 0);
  REQUIRE(10, inner >= 1);
  REQUIRE(4, off >= 0 && inner <= nt - off);
  REQUIRE(2, taps || t == 0);
  REQUIRE(3, carry || t == 0);
  REQUIRE(5, commit_rows >= 0 && commit_rows <= t);
  REQUIRE(6, y || t == 0);
  REQUIRE(7, next || commit_rows == 0);
  REQUIRE(11, form == 0 || form == 1);
  if (t == 0) return 0;
  p += off;
  if (form == 0) {
    const auto walk = conv_vector(p, taps, carry, y, next, nt, inner) ? walk_chunk<8> : walk_chunk<1>;
    return walk(p, taps, carry, commit_rows, y, next, t, nt, inner, stream);
  }
  bf16* scratch = nullptr;  // x [3 + t, inner], then windows [t, 3, inner]
  cudaError_t status = cudaMallocAsync(&scratch, (4 * t + 3) * inner * sizeof(bf16), stream);
  if (status == cudaSuccess) {
    status = chunk_retired(p, taps, carry, commit_rows, y, next, t, nt, inner, scratch, scratch + (t + 3) * inner, stream);
    cudaFreeAsync(scratch, stream);
  }
  return (int)status;
}
