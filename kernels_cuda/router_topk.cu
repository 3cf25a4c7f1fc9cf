// router_topk: the experts of a token and their weights. The contract is references/router_topk.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "rank.cuh"

static const int kRows = 4;               // rows a block, a warp each
static const int kSerial = 32;            // rows a block, a thread each

__device__ __forceinline__ float biased(float s, float bias) { return __fadd_rn(sigmoid(s), bias); }  // S1, S2

// What a winner counts.
__device__ __forceinline__ float worth(float s, float bias) {
  return PLANT(2, sigmoid(s), biased(s, bias));  // S4; MISTAKE 2 = S4.picked:as_ranked
}
__device__ __forceinline__ float weight(float sig, float den, float rs) {
  const float total = __fadd_rn(den, 1e-20f);                                                      // S5
  const float share = PLANT(3, __fdiv_rn(sig, total), __fmul_rn(sig, __fdiv_rn(1.0f, total)));     // S5; MISTAKE 3 = S5.div:reciprocal
  return nan32(__fmul_rn(share, rs));                                                              // S5
}

// Retired form, and the current one where a block cannot hold its keys: a thread a row, a scan over all experts a round.
__global__ void __launch_bounds__(kSerial) router_topk_serial(const float* s, const float* bias, int64_t k, float rs, int32_t* ids, float* w,
                                                              int64_t b, int64_t experts) {
  const int64_t row = (int64_t)blockIdx.x * kSerial + threadIdx.x;
  if (row >= b) return;
  s += row * experts, ids += row * k, w += row * k;
  float last = 0.0f, den = 0.0f;
  int64_t before = -1;
  bool broken = false;
  for (int64_t round = 0; round < k; ++round) {                                                    // S3
    int64_t winner = -1;
    float best = 0.0f;
    for (int64_t e = 0; e < experts; ++e) {
      const float score = biased(s[e], bias[e]);
      if (round == 0) KEPT(2, row * experts + e, score);
      broken |= score != score;
      const bool left = before < 0 || score < last || (score == last && e > before);  // ranks behind the last winner, so has not won
      if (left && (winner < 0 || score > best)) best = score, winner = e;
    }
    const float sig = broken ? NAN : worth(s[winner], bias[winner]);
    ids[round] = broken ? -1 : (int32_t)winner, w[round] = sig;
    den = __fadd_rn(den, sig);                                                                     // S4
    last = best, before = winner;
  }
  KEPT(4, row, den);
  for (int64_t j = 0; j < k; ++j) w[j] = weight(w[j], den, rs);
}

// Current form: a warp a row, lane l with the experts 4l .. 4l + 3 of every 128. Each lane knows its best that is left; a round reduces these, and
// all lanes together look through the winner's lane for its next best. A row's keys lie in shared memory, 132 words for 128, so that this look
// meets no bank twice. A winner's key becomes 0.
__device__ __forceinline__ int slot(int e) { return e + e / 128 * 4; }
static int64_t slots(int64_t experts) { return ceil_div(experts, 128) * 132; }

struct Best {
  unsigned key, id;

  __device__ __forceinline__ void take(unsigned other, unsigned e) {
    if (PLANT(1, other > key, other >= key)) key = other, id = e;  // S3; MISTAKE 1 = S3.top:ties_last
  }
  // The best of all lanes, in all lanes.
  __device__ __forceinline__ Best of_warp() const {
    const unsigned most = __reduce_max_sync(kWarp, key);
    return {most, PLANT(1, __reduce_min_sync(kWarp, key == most ? id : ~0u), __reduce_max_sync(kWarp, key == most ? id : 0u))};
  }
};

__global__ void __launch_bounds__(kRows * 32) router_topk_warp(const float* s, const float* bias, int k, float rs, int32_t* ids, float* w, int64_t b,
                                                               int experts, bool aligned) {
  extern __shared__ __align__(16) unsigned shared_keys[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = (experts + 127) / 128;
  const int64_t row = (int64_t)blockIdx.x * kRows + warp;
  if (row >= b) return;
  unsigned* const keys = shared_keys + warp * groups * 132;
  s += row * experts, ids += row * k, w += row * k;

  Best mine = {0, 0};
#pragma unroll 4
  for (int first = lane * 4; first < groups * 128; first += 128) {
    float4 raw = {}, shift = {};
    if (aligned && first < experts) {
      raw = __ldcs(reinterpret_cast<const float4*>(s + first)), shift = *reinterpret_cast<const float4*>(bias + first);
    } else {
      for (int i = 0; i < 4; ++i)
        if (first + i < experts) (&raw.x)[i] = s[first + i], (&shift.x)[i] = bias[first + i];
    }
    uint4 found;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float score = biased((&raw.x)[i], (&shift.x)[i]);
      const unsigned key = first + i < experts ? key_of(score) : 0;
      if (key != 0) KEPT(2, row * experts + first + i, score);
      (&found.x)[i] = key;
      mine.take(key, first + i);
    }
    *reinterpret_cast<uint4*>(keys + slot(first)) = found;
  }
  __syncwarp();
  const bool broken = __any_sync(kWarp, mine.key == kNaNKey);

  for (int round = 0; round < k; ++round) {                                                        // S3
    const Best winner = mine.of_warp();
    const int owner = winner.id / 4 % 32;
    if (lane == 0) ids[round] = broken ? -1 : (int)winner.id;
    Best next = {0, 0};
    for (int i = lane; i < groups * 4; i += 32) {  // an expert is looked at by the same lane in every round
      const int e = i / 4 * 128 + owner * 4 + i % 4;
      if (e == (int)winner.id) keys[slot(e)] = 0;
      next.take(keys[slot(e)], e);
    }
    next = next.of_warp();
    if (lane == owner) mine = next;
  }
  __syncwarp();

  float den = 0.0f;
  for (int first = 0; first < k; first += 32) {
    const int j = first + lane, id = j < k && !broken ? ids[j] : 0;
    const float sig = broken ? NAN : worth(s[id], bias[id]);
    if (j < k) w[j] = sig;
    for (int i = 0; i < 32 && first + i < k; ++i) den = __fadd_rn(den, __shfl_sync(kWarp, sig, i));  // S4
  }
  if (lane == 0) KEPT(4, row, den);
  for (int j = lane; j < k; j += 32) w[j] = weight(w[j], den, rs);
}

// s f32 [b, experts], bias f32 [experts], k, rs -> ids i32 [b, k], w f32 [b, k]. form 0: current, 1: retired.
extern "C" int router_topk(const float* s, const float* bias, int64_t k, float rs, int32_t* ids, float* w, int64_t b, int64_t experts, int form,
                           cudaStream_t stream) {
  REQUIRE(7, b >= 0 && b <= INT32_MAX);
  REQUIRE(8, experts >= 1 && experts <= INT32_MAX);
  REQUIRE(3, k >= 1 && k <= experts);
  REQUIRE(1, s || b == 0);
  REQUIRE(2, bias);
  REQUIRE(5, ids || b == 0);
  REQUIRE(6, w || b == 0);
  REQUIRE(9, form == 0 || form == 1);
  if (b == 0) return 0;
  const int64_t shared = kRows * slots(experts) * (int64_t)sizeof(unsigned);
  if (form == 0 && shared <= kMostShared) {
    const cudaError_t refused = cudaFuncSetAttribute(router_topk_warp, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (refused != cudaSuccess) return (int)refused;
    const bool aligned = aligned16(s) && aligned16(bias) && experts % 4 == 0;
    router_topk_warp<<<(unsigned)ceil_div(b, kRows), kRows * 32, (size_t)shared, stream>>>(s, bias, (int)k, rs, ids, w, b, (int)experts, aligned);
  } else {
    router_topk_serial<<<(unsigned)ceil_div(b, kSerial), kSerial, 0, stream>>>(s, bias, k, rs, ids, w, b, experts);
  }
  return (int)cudaGetLastError();
}
