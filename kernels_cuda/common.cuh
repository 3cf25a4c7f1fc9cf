// What every kernel here shares: bf16 words with their rounding spelled, 16-byte access, argument checks, landing traces, planted mistakes.
// No torch header: each .cu also compiles with bare nvcc. Flags: -O3 -fmad=false, no fast-math.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

#ifdef __FAST_MATH__
#error "fast-math changes expf, tanhf, division and subnormals: no kernel here may be built with it"
#endif

typedef __nv_bfloat16 bf16;

static const unsigned kWarp = 0xffffffffu;  // all lanes
static const int kMostShared = 227 * 1024;  // bytes of shared memory a block can have on sm_90
static const float kLog2e = 0x1.715476p+0f;

// A landing: f32 -> bf16, nearest even, every NaN 0x7fff. Widening is exact.
__device__ __forceinline__ bf16 bf(float x) { return __float2bfloat16_rn(x); }
__device__ __forceinline__ float f(bf16 x) { return __bfloat162float(x); }

// Landings go in pairs: a lone conversion takes the special-function unit, a packed one does not.
__device__ __forceinline__ uint32_t land_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// An f32 as it is stored: every NaN 0x7fffffff.
__device__ __forceinline__ float nan32(float x) { return x == x ? x : __int_as_float(0x7fffffff); }

// 2^x.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sigmoid(x) = 1 / (1 + exp(0 - x)), IEEE division.
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(__fsub_rn(0.0f, x)))); }

// Eight sigmoids at once, the same bits: where 1 <= d < 2^126, one Newton step on rcp.approx gives the rounded quotient 1 / d (a test tries all
// 2^23 significands). The quotient itself decides that for each d and branches; here the largest decides for all.
__device__ __forceinline__ float rcp_approx(float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));  // for sigmoid8() only
  return r;
}
__device__ __forceinline__ void sigmoid8(const float (&x)[8], float (&y)[8]) {
  float d[8], largest = 1.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) d[i] = __fadd_rn(1.0f, expf(__fsub_rn(0.0f, x[i])));
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, d[i]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float r = rcp_approx(d[i]);
    y[i] = __fmaf_rn(r, __fmaf_rn(-d[i], r, 1.0f), r);
  }
  if (largest >= 0x1p126f)
    for (int i = 0; i < 8; ++i) y[i] = __fdiv_rn(1.0f, d[i]);
}

// Eight bf16 in one 16-byte access.
struct alignas(16) Bf16x8 {
  bf16 at[8];
};
__device__ __forceinline__ Bf16x8 load8(const bf16* p) {
  Bf16x8 v;
  *reinterpret_cast<uint4*>(&v) = *reinterpret_cast<const uint4*>(p);
  return v;
}
__device__ __forceinline__ void store8(bf16* p, const Bf16x8& v) { *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&v); }
// To device memory in one instruction: where the compiler cannot derive an address's alignment, it makes four 4-byte stores of an assignment.
__device__ __forceinline__ void global_store8(bf16* p, const Bf16x8& v) {
  const uint4 words = *reinterpret_cast<const uint4*>(&v);
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
}
__device__ __forceinline__ void stream_store8(bf16* p, const Bf16x8& v) {  // first to leave the caches
  __stcs(reinterpret_cast<uint4*>(p), *reinterpret_cast<const uint4*>(&v));
}

// Eight bf16 as f32, an instruction each.
__device__ __forceinline__ void widen8(const Bf16x8& v, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const unsigned pair = reinterpret_cast<const unsigned*>(v.at)[i / 2];
    x[i] = __uint_as_float(pair << 16), x[i + 1] = __uint_as_float(pair & 0xffff0000u);
  }
}

// Eight f32 in two 16-byte accesses, first to leave the caches: for what is read once.
struct alignas(16) F32x8 {
  float at[8];
};
__device__ __forceinline__ F32x8 stream_load8(const float* p) {
  F32x8 v;
  reinterpret_cast<float4*>(&v)[0] = __ldcs(reinterpret_cast<const float4*>(p));
  reinterpret_cast<float4*>(&v)[1] = __ldcs(reinterpret_cast<const float4*>(p) + 1);
  return v;
}

__device__ __forceinline__ F32x8 load8(const float* p) {
  F32x8 v;
  reinterpret_cast<float4*>(&v)[0] = reinterpret_cast<const float4*>(p)[0];
  reinterpret_cast<float4*>(&v)[1] = reinterpret_cast<const float4*>(p)[1];
  return v;
}

// Eight landings and eight bf16 products, two an instruction.
__device__ __forceinline__ Bf16x8 bf8(const float (&x)[8]) {
  Bf16x8 v;
  for (int i = 0; i < 8; i += 2) *reinterpret_cast<__nv_bfloat162*>(&v.at[i]) = __floats2bfloat162_rn(x[i], x[i + 1]);
  return v;
}
__device__ __forceinline__ Bf16x8 hmul8(const Bf16x8& a, const Bf16x8& b) {
  Bf16x8 v;
  for (int i = 0; i < 8; i += 2)
    *reinterpret_cast<__nv_bfloat162*>(&v.at[i]) =
        __hmul2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a.at[i]), *reinterpret_cast<const __nv_bfloat162*>(&b.at[i]));
  return v;
}

static inline bool aligned16(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int multiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Blocks that the device holds at once: the grid of a kernel that walks its work.
template <class... Arguments>
static int64_t resident_blocks(void (*kernel)(Arguments...), int threads, size_t shared = 0) {
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared);
  return (int64_t)multiprocessors() * blocks;
}

// Launchers return 0, a cudaError_t, or minus the 1-based position of the argument that is wrong.
#define REQUIRE(position, condition) \
  if (!(condition)) return -(position)

// The gate compares every landing, not only those that leave the kernel. A build with -DTRACE stores landing S<tag> of element `index`
// into the buffer that `trace(tag, buffer)` named; any other build compiles LANDING to nothing. KEPT is the same for an f32 (the word `kept`).
#ifdef TRACE
__device__ void* traced[16];
extern "C" int trace(int tag, void* buffer) { return (int)cudaMemcpyToSymbol(traced, &buffer, sizeof buffer, tag * sizeof buffer); }
#define LANDING(tag, index, value) \
  if (traced[tag]) static_cast<bf16*>(traced[tag])[index] = (value)
#define KEPT(tag, index, value) \
  if (traced[tag]) static_cast<float*>(traced[tag])[index] = nan32(value)
#else
#define LANDING(tag, index, value)
#define KEPT(tag, index, value)
#endif

// PLANT(k, right, wrong): `right`, unless the build is told -DMISTAKE=k. The gate must see every planted mistake.
#ifndef MISTAKE
#define MISTAKE 0
#endif
#define PLANT(k, right, wrong) (MISTAKE == (k) ? (wrong) : (right))

// A mistake of several: what has no exponent becomes zero.
__device__ __forceinline__ bf16 flushed(bf16 x) {
  const unsigned short bits = __bfloat16_as_ushort(x);
  return bits & 0x7f80 ? x : __ushort_as_bfloat16(bits & 0x8000);
}
