// mla_expand_k: the keys of every head, its own part and then the shared one. The contract is references/mla_expand_k.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "common.cuh"

static const int kNope = 128, kRope = 64, kWidth = kNope + kRope, kThreads = 256, kDeep = 3;

// Where element `column` of a head's key comes from; null for the zero that only a mistake writes.
__device__ __forceinline__ const bf16* source(const bf16* nope, const bf16* rope, int head, int column, int64_t h) {
  const int own = PLANT(1, head, head + 1 < h ? head + 1 : head);     // S1  MISTAKE 1 = S1.select:late
  if (column < kNope) return nope + own * kNope + column;             // S1, S3
  return PLANT(2, false, head > 0) ? nullptr : rope + column - kNope; // S2, S3  MISTAKE 2 = S2.repeat:first_only
}

// Retired form, and the current one where a row is not 16-byte aligned: one element a thread.
__global__ void __launch_bounds__(kWidth) mla_expand_k_scalar(const bf16* nope, const bf16* rope, bf16* k, int64_t t, int64_t h, int64_t ld) {
  for (int64_t row = blockIdx.x; row < t * h; row += gridDim.x) {
    const int64_t token = row / h;
    const bf16* const from = source(nope + token * ld, rope + token * kRope, (int)(row % h), threadIdx.x, h);
    k[row * kWidth + threadIdx.x] = from ? *from : __ushort_as_bfloat16(0);
  }
}

// Current form: a block a token, whose keys it writes from end to end; kDeep times 16 bytes are on their way before the first is stored.
__global__ void __launch_bounds__(kThreads) mla_expand_k_vector(const bf16* nope, const bf16* rope, bf16* k, int64_t h, int64_t ld) {
  const int64_t token = blockIdx.x;
  nope += token * ld, rope += token * kRope, k += token * h * kWidth;
  const int chunks = (int)h * (kWidth / 8);
  for (int first = threadIdx.x; first < chunks; first += kThreads * kDeep) {
    uint4 part[kDeep];
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
      const int chunk = first + i * kThreads, head = chunk / (kWidth / 8), column = chunk % (kWidth / 8) * 8;
      const bf16* const from = chunk < chunks ? source(nope, rope, head, column, h) : nullptr;
      part[i] = from ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
      const int chunk = first + i * kThreads;
      if (chunk < chunks) __stcs(reinterpret_cast<uint4*>(k + chunk * 8), part[i]);
    }
  }
}

// nope bf16 [t, h, 128] with tokens ld apart, rope bf16 [t, 64] -> k bf16 [t, h, 192]. form 0: current, 1: retired.
extern "C" int mla_expand_k(const bf16* nope, const bf16* rope, bf16* k, int64_t t, int64_t h, int64_t ld, int form, cudaStream_t stream) {
  REQUIRE(4, t >= 0 && t <= INT32_MAX);
  REQUIRE(5, h >= 1 && h <= INT32_MAX / kWidth);
  REQUIRE(1, nope || t == 0);
  REQUIRE(2, rope || t == 0);
  REQUIRE(3, k || t == 0);
  REQUIRE(6, ld >= h * kNope);
  REQUIRE(7, form == 0 || form == 1);
  if (t == 0) return 0;
  if (form == 0 && aligned16(nope) && aligned16(rope) && aligned16(k) && ld % 8 == 0) {
    mla_expand_k_vector<<<(unsigned)t, kThreads, 0, stream>>>(nope, rope, k, h, ld);
  } else {
    const int64_t rows = t * h;
    mla_expand_k_scalar<<<(unsigned)(rows < INT32_MAX ? rows : INT32_MAX), kWidth, 0, stream>>>(nope, rope, k, t, h, ld);
  }
  return (int)cudaGetLastError();
}
