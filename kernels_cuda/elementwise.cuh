// o = op(a, b) element by element, in both forms. Rows of a and b may lie lda and ldb apart; o is packed.
// An operation is a struct with `static __device__ bf16 one(bf16 a, bf16 b, int64_t index)`; `index`, of the result, is for landing traces.
#pragma once
#include <type_traits>

#include "common.cuh"

// Retired form, and the current one where a row is not 16-byte aligned: one element a thread, rows along grid.y.
template <class Op>
__global__ void __launch_bounds__(256) elementwise_scalar(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb) {
  const int64_t column = (int64_t)blockIdx.x * 256 + threadIdx.x;
  if (column >= n) return;
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    const int64_t index = row * n + column;
    o[index] = Op::one(a[row * lda + column], b[row * ldb + column], index);
  }
}

// Eight columns at a time, for an operation that needs no preparation.
template <class Op>
struct Plain {
  __device__ Bf16x8 eight(const Bf16x8& a, const Bf16x8& b, int64_t index) const {
    Bf16x8 out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out.at[i] = Op::one(a.at[i], b.at[i], index + i);
    return out;
  }
};

__device__ __forceinline__ uint4 words(const bf16* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ __forceinline__ Bf16x8 eight_of(const uint4& words) { return load8(reinterpret_cast<const bf16*>(&words)); }

// Current form of an operation that needs no preparation: a thread takes two groups of 8 columns and is done, which on an H200 is 4 % faster than
// a grid that stays and walks. Rows lie along grid.y.
template <class Eight>
__global__ void __launch_bounds__(256) elementwise_once(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb) {
  const Eight op;
  const int64_t column = ((int64_t)blockIdx.x * 512 + threadIdx.x) * 8;
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    uint4 now_a[2], now_b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (column + i * 2048 < n) now_a[i] = words(a + row * lda + column + i * 2048), now_b[i] = words(b + row * ldb + column + i * 2048);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t index = row * n + column + i * 2048;
      if (column + i * 2048 < n) global_store8(o + index, op.eight(eight_of(now_a[i]), eight_of(now_b[i]), index));
    }
  }
}

// Current form of one that prepares a table: a grid that fills the device once and walks the matrix in groups of 8 columns. Row and column
// advance together, so no step divides; the operands of the next step are on their way while this one computes.
template <class Eight>
__global__ void __launch_bounds__(Eight::kThreads, Eight::kBlocks)
    elementwise_vector(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb) {
  __shared__ Eight op;
  const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8, step = (int64_t)gridDim.x * blockDim.x * 8;
  const int64_t down = step / n, right = step % n;
  int64_t row = first / n, column = first % n;
  uint4 next_a, next_b;  // not Bf16x8: taking the loaded words apart would wait for them
  if (row < m) next_a = words(a + row * lda + column), next_b = words(b + row * ldb + column);
  op.prepare();
  while (row < m) {
    const uint4 now_a = next_a, now_b = next_b;
    const int64_t index = row * n + column;
    row += down, column += right;
    if (column >= n) ++row, column -= n;
    if (row < m) next_a = words(a + row * lda + column), next_b = words(b + row * ldb + column);
    global_store8(o + index, op.eight(eight_of(now_a), eight_of(now_b), index));
  }
}

template <class Eight>
static int launch_vector(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb, cudaStream_t stream) {
  if constexpr (std::is_empty_v<Eight>) {
    if (lda == n && ldb == n) n *= m, lda = ldb = n, m = 1;  // packed rows are one long row
    const dim3 grid((unsigned)ceil_div(n, 4096), (unsigned)(m < 65535 ? m : 65535));
    elementwise_once<Eight><<<grid, 256, 0, stream>>>(a, b, o, m, n, lda, ldb);
  } else {
    const int64_t needed = ceil_div(m * (n / 8), Eight::kThreads), resident = resident_blocks(elementwise_vector<Eight>, Eight::kThreads);
    const unsigned blocks = (unsigned)(needed < resident ? needed : resident);
    elementwise_vector<Eight><<<blocks, Eight::kThreads, 0, stream>>>(a, b, o, m, n, lda, ldb);
  }
  return (int)cudaGetLastError();
}

// Positions: 1 a, 2 b, 3 o, 4 m, 5 n, 6 lda, 7 ldb, 8 form (0: current, 1: retired).
template <class Op, class Eight = Plain<Op>>
static int elementwise(const bf16* a, const bf16* b, bf16* o, int64_t m, int64_t n, int64_t lda, int64_t ldb, int form, cudaStream_t stream) {
  REQUIRE(4, m >= 0);
  REQUIRE(5, n >= 1);
  REQUIRE(1, a || m == 0);
  REQUIRE(2, b || m == 0);
  REQUIRE(3, o || m == 0);
  REQUIRE(6, lda >= n);
  REQUIRE(7, ldb >= n);
  REQUIRE(8, form == 0 || form == 1);
  if (m == 0) return 0;
  if (form == 0 && aligned16(a) && aligned16(b) && aligned16(o) && n % 8 == 0 && lda % 8 == 0 && ldb % 8 == 0)
    return launch_vector<Eight>(a, b, o, m, n, lda, ldb, stream);
  const dim3 grid((unsigned)ceil_div(n, 256), (unsigned)(m < 65535 ? m : 65535));
  elementwise_scalar<Op><<<grid, 256, 0, stream>>>(a, b, o, m, n, lda, ldb);
  return (int)cudaGetLastError();
}
