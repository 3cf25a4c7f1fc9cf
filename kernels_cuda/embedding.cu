// embedding: the rows of a table that tokens name. The contract is references/embedding.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kScalar = 256, kThreads = 224, kDeep = 4;  // 224 threads of 4 times 8 columns take the 7168

// The row of token i; null for an id outside the table.
__device__ __forceinline__ const bf16* row_of(const int32_t* ids, const bf16* table, int64_t i, int64_t vocab, int64_t h) {
  int64_t id = ids[i];                                    // S1
  id = PLANT(1, id, id > 0 ? id - 1 : 0);                 // MISTAKE 1 = S1.select:early
  id = PLANT(2, id, id < vocab - 1 ? id + 1 : vocab - 1);  // MISTAKE 2 = S1.select:late
  return id >= 0 && id < vocab ? table + id * h : nullptr;
}

// Retired form, and the current one where a row is not 16-byte aligned: one element a thread. Tokens lie along grid.y.
__global__ void __launch_bounds__(kScalar) embedding_scalar(const int32_t* ids, const bf16* table, bf16* o, int64_t b, int64_t vocab, int64_t h) {
  const int64_t column = (int64_t)blockIdx.x * kScalar + threadIdx.x;
  if (column >= h) return;
  for (int64_t i = blockIdx.y; i < b; i += gridDim.y) {
    const bf16* const row = row_of(ids, table, i, vocab, h);
    o[i * h + column] = row ? row[column] : __ushort_as_bfloat16(0x7fff);
  }
}

// Current form: kDeep times eight columns a thread, all on their way before the first is stored.
__global__ void __launch_bounds__(kThreads) embedding_vector(const int32_t* ids, const bf16* table, bf16* o, int64_t b, int64_t vocab, int64_t h) {
  const int64_t first = ((int64_t)blockIdx.x * kDeep * kThreads + threadIdx.x) * 8;
  for (int64_t i = blockIdx.y; i < b; i += gridDim.y) {
    const bf16* const row = row_of(ids, table, i, vocab, h);
    uint4 part[kDeep];
#pragma unroll
    for (int j = 0; j < kDeep; ++j) {
      const int64_t column = first + j * kThreads * 8;
      part[j] = make_uint4(0x7fff7fff, 0x7fff7fff, 0x7fff7fff, 0x7fff7fff);
      if (row && column < h) part[j] = *reinterpret_cast<const uint4*>(row + column);
    }
#pragma unroll
    for (int j = 0; j < kDeep; ++j) {
      const int64_t column = first + j * kThreads * 8;
      if (column < h) *reinterpret_cast<uint4*>(o + i * h + column) = part[j];
    }
  }
}

// ids i32 [b], table bf16 [vocab, h] -> o bf16 [b, h]. form 0: current, 1: retired.
// Ids lie in device memory and are for the caller to check; one outside the table, such as argmax's -1, reads nothing and makes a row of NaN.
extern "C" int embedding(const int32_t* ids, const bf16* table, bf16* o, int64_t b, int64_t vocab, int64_t h, int form, cudaStream_t stream) {
  REQUIRE(4, b >= 0);
  REQUIRE(5, vocab >= 1);
  REQUIRE(6, h >= 1);
  REQUIRE(1, ids || b == 0);
  REQUIRE(2, table);
  REQUIRE(3, o || b == 0);
  REQUIRE(7, form == 0 || form == 1);
  if (b == 0) return 0;
  const bool vector = form == 0 && aligned16(table) && aligned16(o) && h % 8 == 0;
  const int columns = vector ? kThreads * kDeep * 8 : kScalar;
  const dim3 grid((unsigned)ceil_div(h, columns), (unsigned)(b < 65535 ? b : 65535));
  (vector ? embedding_vector : embedding_scalar)<<<grid, vector ? kThreads : kScalar, 0, stream>>>(ids, table, o, b, vocab, h);
  return (int)cudaGetLastError();
}
