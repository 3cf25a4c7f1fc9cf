// kda_fold: the state a rank starts from, folded through the segments before it. The contract is references/kda_fold.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "kda.cuh"

static const int kThreads = 128, kRows = 32;  // of the state, a block; its rows never meet another
static const int kSlab = 32;                  // rows of M in shared memory at a time; two slabs take turns
static const int kSlabs = kWidth / kSlab;

struct Operands {
  const float *mm, *d, *state;
  float* next;
  int64_t r, heads;
};

__device__ __forceinline__ float step(float s, float m, float sum) {
  return PLANT(1, __fmaf_rn(s, m, sum), __fadd_rn(sum, __fmul_rn(s, m)));       // S2; MISTAKE 1 = S2.chain_matmul:products_apart
}

// All four matrices transposed, the same code computes M . S: the retired form of a build that is told to.
__device__ __forceinline__ int at(int row, int column) {
  return PLANT(2, row * kWidth + column, column * kWidth + row);                // MISTAKE 2 = S2.chain_matmul:swapped
}

// Retired form, and the current one where an array is not 16-byte aligned: a block a row of the state, an element a thread.
__global__ void __launch_bounds__(kWidth) kda_fold_rows(const Operands in) {
  __shared__ float s[kWidth];
  const int64_t head = blockIdx.x / kWidth;
  const int v = blockIdx.x % kWidth, k = threadIdx.x;
  s[k] = in.state[head * kState + at(v, k)];
  for (int64_t rank = 0; rank < in.r; ++rank) {                                 // S1
    const int64_t package = (rank * in.heads + head) * kState;
    __syncthreads();
    float sum = 0.0f;
    for (int j = 0; j < kWidth; ++j) sum = step(s[j], in.mm[package + at(j, k)], sum);
    __syncthreads();
    s[k] = __fadd_rn(sum, in.d[package + at(v, k)]);                            // S2
  }
  in.next[head * kState + at(v, k)] = nan32(s[k]);
}

// Of a [rows][128] matrix a thread has 4 rows and twice 4 columns.
struct Part {
  float at[4][8];
};
__device__ __forceinline__ float4 four(const float* x) { return *reinterpret_cast<const float4*>(x); }

__device__ __forceinline__ Part load(const float* x, int row, int column) {
  Part part;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 low = four(x + (row + i) * kWidth + column), high = four(x + (row + i) * kWidth + column + 64);
    part.at[i][0] = low.x, part.at[i][1] = low.y, part.at[i][2] = low.z, part.at[i][3] = low.w;
    part.at[i][4] = high.x, part.at[i][5] = high.y, part.at[i][6] = high.z, part.at[i][7] = high.w;
  }
  return part;
}

// The rows are shared by columns. Where rows row .. row + 3 of one lie: lanes that write at once do so to different banks.
__device__ __forceinline__ int place(int row, int column) { return column * (kRows / 4) + (row / 4 ^ column / 4 % 8); }

__device__ __forceinline__ void share(const Part& s, float4* columns, int row, int column) {
#pragma unroll
  for (int k = 0; k < 8; ++k) columns[place(row, column + k % 4 + k / 4 * 64)] = make_float4(s.at[0][k], s.at[1][k], s.at[2][k], s.at[3][k]);
}

// 32 rows of M, of one head of one rank.
__device__ __forceinline__ void stage(const Operands& in, int64_t head, int64_t slab, float4* to) {
  const float* m = in.mm + ((slab / kSlabs) * in.heads + head) * kState + slab % kSlabs * kSlab * kWidth;
  for (int i = threadIdx.x; i < kSlab * kWidth / 4; i += kThreads) copy16(to + i, reinterpret_cast<const float4*>(m) + i);
}

// Current form: a block takes 32 rows of a head through all ranks.
__global__ void __launch_bounds__(kThreads) kda_fold_slabs(const Operands in) {
  __shared__ float4 slabs[2][kSlab * kWidth / 4];
  __shared__ float4 columns[kWidth * kRows / 4];
  const int64_t head = blockIdx.x / (kWidth / kRows);
  const int first = blockIdx.x % (kWidth / kRows) * kRows, row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const int64_t rows = head * kState + first * kWidth, last = in.r * kSlabs;
  Part s = load(in.state + rows, row, column), sum;
  if (last) stage(in, head, 0, slabs[0]);
  commit_copies();
  for (int64_t slab = 0; slab < last; ++slab) {                                 // S1
    if (slab + 1 < last) stage(in, head, slab + 1, slabs[(slab + 1) % 2]);
    commit_copies();
    if (slab % kSlabs == 0) share(s, columns, row, column), sum = {};
    await_copies<1>();
    __syncthreads();
    const float* m = reinterpret_cast<const float*>(slabs[slab % 2]) + column;
#pragma unroll 4
    for (int j = 0; j < kSlab; ++j) {
      const float4 left = columns[place(row, slab % kSlabs * kSlab + j)], low = four(m + j * kWidth), high = four(m + j * kWidth + 64);
      const float a[4] = {left.x, left.y, left.z, left.w}, b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 32; ++i) sum.at[i / 8][i % 8] = step(a[i / 8], b[i % 8], sum.at[i / 8][i % 8]);
    }
    __syncthreads();  // the slab and, after the last of a rank, the rows are written anew
    if (slab % kSlabs == kSlabs - 1) {
      const Part d = load(in.d + slab / kSlabs * in.heads * kState + rows, row, column);
#pragma unroll
      for (int i = 0; i < 32; ++i) s.at[i / 8][i % 8] = __fadd_rn(sum.at[i / 8][i % 8], d.at[i / 8][i % 8]);  // S2
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float* x = s.at[i / 2] + i % 2 * 4;
    *reinterpret_cast<float4*>(in.next + rows + (row + i / 2) * kWidth + column + i % 2 * 64) =
        make_float4(nan32(x[0]), nan32(x[1]), nan32(x[2]), nan32(x[3]));
  }
}

// mm, d f32 [r, heads, 128, 128], state f32 [heads, 128, 128] -> next f32 [heads, 128, 128]; packed. form 0: current, 1: retired.
extern "C" int kda_fold(const float* mm, const float* d, const float* state, float* next, int64_t r, int64_t heads, int form, cudaStream_t stream) {
  REQUIRE(5, r >= 0 && r <= INT32_MAX);
  REQUIRE(6, heads >= 0 && heads <= INT32_MAX / kWidth);
  REQUIRE(1, mm || r * heads == 0);
  REQUIRE(2, d || r * heads == 0);
  REQUIRE(3, state || heads == 0);
  REQUIRE(4, next || heads == 0);
  REQUIRE(7, form == 0 || form == 1);
  if (heads == 0) return 0;
  const Operands in = {mm, d, state, next, r, heads};
  if (PLANT(2, form == 0, false) && aligned16(mm) && aligned16(d) && aligned16(state) && aligned16(next)) {
    kda_fold_slabs<<<(unsigned)(heads * (kWidth / kRows)), kThreads, 0, stream>>>(in);
  } else {
    kda_fold_rows<<<(unsigned)(heads * kWidth), kWidth, 0, stream>>>(in);
  }
  return (int)cudaGetLastError();
}
