// conv_silu_chunk: a segment of consecutive rows through the four-tap convolution. The contract is references/conv_silu_chunk.py.
// Build: -O3 -fmad=false, no fast-math.
// Of conv.cuh:
// MISTAKE 1 = S1.zero:minus_zero
// MISTAKE 2 = S3.fma:unfused
// MISTAKE 3 = S7.select:early
#include "conv.cuh"

// Current form: each thread walks `rows` consecutive rows of its channels with the window in registers. It starts three rows early.
// Two rows are on their way while one is computed.
template <int C>
__global__ void __launch_bounds__(kConvThreads) conv_chunk(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y,
                                                           bf16* next, int64_t t, int64_t nt, int64_t inner, int64_t rows) {
  const int64_t channel = ((int64_t)blockIdx.x * kConvThreads + threadIdx.x) * C;
  if (channel >= inner) return;
  const int64_t first = blockIdx.y * rows, last = first + rows < t ? first + rows : t;
  p += channel, carry += channel, y += channel, next += channel;
  Convolution<C> conv(taps + channel * 4);
  Partials<C> ahead[2];
  for (int i = 0; i < 2; ++i) if (first + i < last) ahead[i].load(p + (first + i) * nt);
  for (int64_t row = first - 3; row < first; ++row) {                                                  // S2
    Partials<C> halo;
    if (row >= 0) halo.load(p + row * nt);
    conv.shift(row >= 0 ? conv.input(halo) : load_channels<C>(carry + (row + 3) * inner));
  }
  for (int64_t row = first; row < last; ++row) {
    const Partials<C> now = ahead[0];
    ahead[0] = ahead[1];
    if (row + 2 < last) ahead[1].load(p + (row + 2) * nt);
    store_channels<C>(y + row * inner, conv.step(now, row * inner + channel));
    if (row == commit_rows - 1) conv.store_window(next, inner);                                        // S7
  }
}

// One wave of threads, none with fewer than 16 rows to its three early ones.
template <int C>
static int chunk_current(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt,
                         int64_t inner, cudaStream_t stream) {
  const int64_t across = ceil_div(inner, kConvThreads * C), held = ceil_div(resident_blocks(conv_chunk<C>, kConvThreads), across);
  const int64_t fair = ceil_div(t, held), rows = fair > 16 ? fair : 16;
  const dim3 grid((unsigned)across, (unsigned)ceil_div(t, rows));
  conv_chunk<C><<<grid, kConvThreads, 0, stream>>>(p, taps, carry, commit_rows, y, next, t, nt, inner, rows);
  return (int)cudaGetLastError();
}

__global__ void __launch_bounds__(kConvThreads) land_rows(const float* p, bf16* x, int64_t t, int64_t nt, int64_t inner) {
  const int64_t channel = (int64_t)blockIdx.x * kConvThreads + threadIdx.x;
  if (channel >= inner) return;
  for (int64_t row = blockIdx.y; row < t; row += gridDim.y) x[row * inner + channel] = conv_input(p[row * nt + channel]);
}

// Retired form, the composition it was: land behind the carried rows, copy out every row's window, decode all rows, copy the carry.
static cudaError_t chunk_retired(const float* p, const float* taps, const bf16* carry, int64_t commit_rows, bf16* y, bf16* next, int64_t t, int64_t nt,
                                 int64_t inner, bf16* x, bf16* windows, cudaStream_t stream) {
  const size_t row = inner * sizeof(bf16);
  const dim3 grid((unsigned)ceil_div(inner, kConvThreads), (unsigned)(t < 65535 ? t : 65535));
  cudaMemcpyAsync(x, carry, 3 * row, cudaMemcpyDeviceToDevice, stream);
  land_rows<<<grid, kConvThreads, 0, stream>>>(p, x + 3 * inner, t, nt, inner);                                                       // S1
  for (int j = 0; j < 3; ++j) cudaMemcpy2DAsync(windows + j * inner, 3 * row, x + j * inner, row, row, t, cudaMemcpyDeviceToDevice, stream);   // S2
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
  if (form == 0)
    return (conv_vector(p, taps, carry, y, next, nt, inner) ? chunk_current<8> : chunk_current<1>)(p, taps, carry, commit_rows, y, next, t, nt, inner,
                                                                                                 stream);
  bf16* scratch = nullptr;  // x [3 + t, inner], then windows [t, 3, inner]
  cudaError_t status = cudaMallocAsync(&scratch, (4 * t + 3) * inner * sizeof(bf16), stream);
  if (status == cudaSuccess) {
    status = chunk_retired(p, taps, carry, commit_rows, y, next, t, nt, inner, scratch, scratch + (t + 3) * inner, stream);
    cudaFreeAsync(scratch, stream);
  }
  return (int)status;
}
