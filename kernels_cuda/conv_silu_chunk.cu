// conv_silu_chunk: a segment of consecutive rows through the four-tap convolution. The contract is references/conv_silu_chunk.py.
// Build: -O3 -fmad=false, no fast-math.
// Of conv.cuh:
// MISTAKE 1 = S1.zero:minus_zero
// MISTAKE 2 = S3.fma:unfused
// MISTAKE 3 = S7.select:early
#include "conv.cuh"

// Current form: each thread walks `rows` consecutive rows of its channels with the window in registers. It starts three rows early, and two
// rows are on their way while one is computed.
template <int C, class Activation>
__global__ void __launch_bounds__(kConvThreads) conv_chunk(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y,
                                                           bf16* next, int64_t t, int64_t nt, int64_t inner, int64_t rows) {
  __shared__ Activation silu;
  silu.prepare();
  const int64_t channel = ((int64_t)blockIdx.x * kConvThreads + threadIdx.x) * C;
  if (channel >= inner) return;
  const int64_t first = blockIdx.y * rows, last = first + rows < t ? first + rows : t;
  p += channel, carry += channel;
  Convolution<C> conv(taps + channel * 4);
  for (int64_t row = first - 3; row < first; ++row)                                                    // S2
    conv.shift(row < 0 ? load_landed<C>(carry + (row + 3) * inner) : input(load_partials<C>(p + row * nt)));
  Channels<C> even, odd;
  const auto load = [&](Channels<C>& partials, int64_t row) { if (row < last) partials = load_partials<C>(p + row * nt); };
  const auto step = [&](Channels<C>& partials, int64_t row) {
    const Channels<C> x = input(partials);
    load(partials, row + 2);
    store_landed(y + row * inner + channel, conv.step(x, silu, row * inner + channel));
    if (row == commit_rows - 1) conv.store_window(next + channel, inner);                              // S7
  };
  load(even, first);
  load(odd, first + 1);
  for (int64_t row = first; row < last; row += 2) {
    step(even, row);
    if (row + 1 < last) step(odd, row + 1);
  }
}

template <int C, class Activation>
static int walk_chunk(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt, int64_t inner,
                      int64_t rows, cudaStream_t stream) {
  const dim3 grid((unsigned)ceil_div(inner, kConvThreads * C), (unsigned)ceil_div(t, rows));
  conv_chunk<C, Activation><<<grid, kConvThreads, 0, stream>>>(p, taps, carry, commit_rows, y, next, t, nt, inner, rows);
  return (int)cudaGetLastError();
}

// One wave of threads, none with fewer than 16 rows to its three early ones.
static int chunk_current(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt,
                         int64_t inner, cudaStream_t stream) {
  const bool vector = conv_vector(p, taps, carry, y, next, nt, inner);
  const int64_t blocks = vector ? resident_blocks(conv_chunk<8, TabledSilu>, kConvThreads) : resident_blocks(conv_chunk<1, Silu>, kConvThreads);
  const int64_t side_by_side = ceil_div(blocks, ceil_div(inner, kConvThreads * (vector ? 8 : 1)));
  const int64_t fair = ceil_div(t, side_by_side), rows = fair > 16 ? fair : 16;
  const auto walk = !vector ? walk_chunk<1, Silu> : rows > kTablePays ? walk_chunk<8, TabledSilu> : walk_chunk<8, Silu>;
  return walk(p, taps, carry, commit_rows, y, next, t, nt, inner, rows, stream);
}

// The carried rows, then the inputs: x [3 + t, inner].
__global__ void __launch_bounds__(kConvThreads) land_rows(const float* p, const bf16* carry, bf16* x, int64_t t, int64_t nt, int64_t inner) {
  const int64_t channel = (int64_t)blockIdx.x * kConvThreads + threadIdx.x;
  if (channel >= inner) return;
  for (int64_t row = blockIdx.y; row < t + 3; row += gridDim.y)
    store_landed(x + row * inner + channel, row < 3 ? load_landed<1>(carry + row * inner + channel) : input(load_partials<1>(p + (row - 3) * nt + channel)));
}

// Retired form, the composition it was: land behind the carried rows, copy out every row's window, decode all rows, copy the carry.
static cudaError_t chunk_retired(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt,
                                 int64_t inner, bf16* x, bf16* windows, cudaStream_t stream) {
  const size_t row = inner * sizeof(bf16);
  const dim3 grid((unsigned)ceil_div(inner, kConvThreads), (unsigned)(t < 65535 ? t : 65535));
  land_rows<<<grid, kConvThreads, 0, stream>>>(p, carry, x, t, nt, inner);                                                            // S1
  for (int j = 0; j < 3; ++j) cudaMemcpy2DAsync(windows + j * inner, 3 * row, x + j * inner, row, row, t, cudaMemcpyDeviceToDevice, stream);   // S2
  conv_rows<1, Silu><<<grid, kConvThreads, 0, stream>>>(p, taps, windows, y, nullptr, t, nt, inner);                                  // S3..S6
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
  if (form == 0) return chunk_current(p, taps, carry, commit_rows, y, next, t, nt, inner, stream);
  bf16* scratch = nullptr;  // x [3 + t, inner], then windows [t, 3, inner]
  cudaError_t status = cudaMallocAsync(&scratch, (4 * t + 3) * inner * sizeof(bf16), stream);
  if (status == cudaSuccess) {
    status = chunk_retired(p, taps, carry, commit_rows, y, next, t, nt, inner, scratch, scratch + (t + 3) * inner, stream);
    cudaFreeAsync(scratch, stream);
  }
  return (int)status;
}
