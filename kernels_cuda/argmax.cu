// argmax: the token of the greatest logit. The contract is references/argmax.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "rank.cuh"

static const int kThreads = 1024, kWarps = kThreads / 32;
static_assert(kWarps == 32, "one warp ends the search");

// The greater rank wins: the greater key, then the lower place. 0 is none.
__device__ __forceinline__ uint64_t rank(unsigned key, unsigned place) { return (uint64_t)key << 32 | PLANT(1, ~place, place); }

__device__ __forceinline__ uint64_t most_of_warp(uint64_t mine) {
  for (int offset = 16; offset >= 1; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kWarp, mine, offset);
    mine = other > mine ? other : mine;
  }
  return mine;
}

// The id of the greatest of the block's ranks.
__device__ __forceinline__ void answer(uint64_t mine, int32_t* id) {
  __shared__ uint64_t most[kWarps];
  mine = most_of_warp(mine);
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = most_of_warp(most[threadIdx.x]);
  const unsigned key = (unsigned)(mine >> 32), place = (unsigned)mine;
  const bool unfound = PLANT(2, false, key == key_of(-INFINITY));  // MISTAKE 2 = S1.top:infinity_unfound
  if (threadIdx.x == 0) *id = key == kNaNKey || unfound ? -1 : (int32_t)PLANT(1, ~place, place);
}

__device__ __forceinline__ bool better(float x, float best) { return PLANT(1, x > best, x >= best); }  // S1; MISTAKE 1 = S1.top:ties_last

// Retired form, and the current one where rows are not 16-byte aligned: a block a row, one logit at a time.
__global__ void __launch_bounds__(kThreads) argmax_scalar(const bf16* x, int32_t* id, int64_t n) {
  const bf16* const row = x + blockIdx.x * n;
  uint64_t mine = 0;
  float best = -INFINITY;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float logit = f(row[i]);
    if (mine == 0 || better(logit, best) || logit != logit) best = logit, mine = rank(key_of(logit), (unsigned)i);
    if (logit != logit) break;
  }
  answer(mine, id + blockIdx.x);
}

// The greatest of eight; NaN where one is.
__device__ __forceinline__ float greatest(const uint4& words) {
  const __nv_bfloat162* const pair = reinterpret_cast<const __nv_bfloat162*>(&words);
  const __nv_bfloat162 four = __hmax2_nan(__hmax2_nan(pair[0], pair[1]), __hmax2_nan(pair[2], pair[3]));
  return f(__hmax_nan(four.x, four.y));
}

// Current form: the greatest of eight at a time, and at the end its place among the eight.
__global__ void __launch_bounds__(kThreads) argmax_vector(const bf16* x, int32_t* id, int64_t n) {
  const bf16* const row = x + blockIdx.x * n;
  const int64_t first = threadIdx.x * 8;
  float best = -INFINITY;
  int64_t at = first;
  bool broken = false;
#pragma unroll 4
  for (int64_t i = first; i < n; i += kThreads * 8) {
    const float most = greatest(__ldcs(reinterpret_cast<const uint4*>(row + i)));
    broken |= most != most;
    if (better(most, best)) best = most, at = i;
  }
  uint64_t mine = 0;
  if (broken) {
    mine = rank(kNaNKey, 0);
  } else if (first < n) {
    at += PLANT(1, 0, 7);
    while (f(row[at]) != best) at += PLANT(1, 1, -1);
    mine = rank(key_of(best), (unsigned)at);
  }
  answer(mine, id + blockIdx.x);
}

// x bf16 [b, n] -> id i32 [b]. form 0: current, 1: retired.
extern "C" int argmax(const bf16* x, int32_t* id, int64_t b, int64_t n, int form, cudaStream_t stream) {
  REQUIRE(3, b >= 0 && b <= INT32_MAX);
  REQUIRE(4, n >= 1 && n <= INT32_MAX);
  REQUIRE(1, x || b == 0);
  REQUIRE(2, id || b == 0);
  REQUIRE(5, form == 0 || form == 1);
  if (b == 0) return 0;
  const bool vector = form == 0 && aligned16(x) && n % 8 == 0;
  (vector ? argmax_vector : argmax_scalar)<<<(unsigned)b, kThreads, 0, stream>>>(x, id, n);
  return (int)cudaGetLastError();
}
