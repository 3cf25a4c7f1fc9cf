// mla_gather: rows of the paged cache as dense matrices. The contract is references/mla_gather.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kPage = 64, kRow = 576, kLatent = 512, kRope = kRow - kLatent, kChunks = kRow / 8;
static const int kTogether = 4, kDeep = 4, kThreads = kTogether * kChunks;  // rows side by side in a block, and one after the other in a thread

struct Cache {
  const bf16* rows;
  const int32_t *table, *start;
  int64_t offset, stride, pages;

  // The first element of row r of sequence i, null where it is zero.
  __device__ const bf16* row(int64_t i, int64_t r) const {
    const int64_t token = start[i] + r;
    const int32_t named = table[i * pages + token / kPage];
    const int64_t page = PLANT(1, named, named < 0 ? 0 : named);   // S1  MISTAKE 1 = S1.cached:padding_read
    const int64_t layer = PLANT(2, offset, 0);                     // S1  MISTAKE 2 = S1.cached:without_offset
    const int64_t in_page = PLANT(3, token, token + 1) % kPage;    // S1  MISTAKE 3 = S1.cached:row_late
    return page < 0 ? nullptr : rows + layer + page * stride + in_page * kRow;
  }
};

// Where element `column` of a row goes.
__device__ __forceinline__ bf16* place(bf16* latent, bf16* rope, int64_t row, int column) {
  return column < kLatent ? latent + row * kLatent + column : rope + row * kRope + (column - kLatent);  // S2
}

// Retired form, and the current one where a row is not 16-byte aligned: one element a thread.
__global__ void __launch_bounds__(kRow) mla_gather_scalar(Cache cache, unsigned t, bf16* latent, bf16* rope) {
  const int column = threadIdx.x;
  const int64_t row = blockIdx.x;
  const bf16* const from = cache.row(blockIdx.x / t, blockIdx.x % t);
  *place(latent, rope, row, column) = from ? from[column] : __ushort_as_bfloat16(0);
}

// Current form: eight elements of kDeep rows a thread, all on their way before the first is stored.
__global__ void __launch_bounds__(kThreads) mla_gather_vector(Cache cache, unsigned t, bf16* latent, bf16* rope, unsigned rows) {
  const int column = threadIdx.x % kChunks * 8;
  const unsigned first = blockIdx.x * (kTogether * kDeep) + threadIdx.x / kChunks;
  uint4 part[kDeep];
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
    const unsigned row = first + k * kTogether;
    const bf16* const from = row < rows ? cache.row(row / t, row % t) : nullptr;
    part[k] = from ? *reinterpret_cast<const uint4*>(from + column) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
    const unsigned row = first + k * kTogether;
    if (row < rows) *reinterpret_cast<uint4*>(place(latent, rope, row, column)) = part[k];
  }
}

// cache bf16 [pool], table i32 [b, pages], start i32 [b] -> latent bf16 [b, t, 512], rope bf16 [b, t, 64]. form 0: current, 1: retired.
// What start and table hold is for the caller to check: they lie in device memory.
extern "C" int mla_gather(const bf16* cache, const int32_t* table, const int32_t* start, int64_t t, int64_t layer_offset, int64_t page_stride,
                          bf16* latent, bf16* rope, int64_t pool, int64_t b, int64_t pages, int form, cudaStream_t stream) {
  REQUIRE(4, t >= 0);
  REQUIRE(5, layer_offset >= 0 && layer_offset % 2 == 0);
  REQUIRE(6, page_stride >= 0 && page_stride % 2 == 0);
  REQUIRE(9, pool >= 0);
  REQUIRE(10, b >= 0);
  REQUIRE(11, pages >= 1);
  const int64_t rows = b * t;
  REQUIRE(4, rows <= INT32_MAX);
  REQUIRE(1, cache || rows == 0);
  REQUIRE(2, table || rows == 0);
  REQUIRE(3, start || rows == 0);
  REQUIRE(7, latent || rows == 0);
  REQUIRE(8, rope || rows == 0);
  REQUIRE(12, form == 0 || form == 1);
  if (rows == 0) return 0;
  const Cache paged = {cache, table, start, layer_offset, page_stride, pages};
  const bool aligned = aligned16(cache) && aligned16(latent) && aligned16(rope) && layer_offset % 8 == 0 && page_stride % 8 == 0;
  if (form == 0 && aligned)
    mla_gather_vector<<<(unsigned)ceil_div(rows, kTogether * kDeep), kThreads, 0, stream>>>(paged, (unsigned)t, latent, rope, (unsigned)rows);
  else
    mla_gather_scalar<<<(unsigned)rows, kRow, 0, stream>>>(paged, (unsigned)t, latent, rope);
  return (int)cudaGetLastError();
}
