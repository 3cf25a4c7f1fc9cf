// What the emulator's arithmetic is measured against: one instruction or library function a thread, and one tensor-core tile a warp.
// Flags: -O3 -fmad=false.
#include <cuda_bf16.h>
#include <stdint.h>

namespace {

enum Function { RCP, RSQRT_FTZ, RSQRT, EX2, EXPF, TANHF, RSQRTF, LOGF, SIGMOID };

__device__ float apply(int function, float x) {
  float y;
  switch (function) {
    case RCP: asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
    case RSQRT_FTZ: asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
    case RSQRT: asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
    case EX2: asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
    case EXPF: return expf(x);
    case TANHF: return tanhf(x);
    case RSQRTF: return rsqrtf(x);
    case LOGF: return logf(x);
    default: return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(__fsub_rn(0.0f, x))));
  }
}

// The inputs are the bit patterns first, first + 1, .. or, where given, those of `inputs`.
__global__ void unary_kernel(int function, const uint32_t* inputs, uint32_t first, int64_t count, float* out) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < count) out[i] = apply(function, __uint_as_float(inputs ? inputs[i] : first + (uint32_t)i));
}

// One mma.sync.m16n8k16 a warp: a [tiles, 16, 16] row-major, b [tiles, 8, 16] as [n][k], c and d [tiles, 16, 8].
__global__ void mma_kernel(const uint16_t* a, const uint16_t* b, const float* c, float* d, int64_t tiles) {
  int64_t tile = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
  if (tile >= tiles) return;
  int lane = threadIdx.x % 32, group = lane / 4, pair = 2 * (lane % 4);
  const uint16_t *pa = a + tile * 256, *pb = b + tile * 128;
  auto two = [](const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); };
  uint32_t a0 = two(pa + group * 16 + pair), a1 = two(pa + (group + 8) * 16 + pair);
  uint32_t a2 = two(pa + group * 16 + pair + 8), a3 = two(pa + (group + 8) * 16 + pair + 8);
  uint32_t b0 = two(pb + group * 16 + pair), b1 = two(pb + group * 16 + pair + 8);
  const float* pc = c + tile * 128;
  float* pd = d + tile * 128;
  float d0, d1, d2, d3;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(pc[group * 8 + pair]), "f"(pc[group * 8 + pair + 1]),
        "f"(pc[(group + 8) * 8 + pair]), "f"(pc[(group + 8) * 8 + pair + 1]));
  pd[group * 8 + pair] = d0;
  pd[group * 8 + pair + 1] = d1;
  pd[(group + 8) * 8 + pair] = d2;
  pd[(group + 8) * 8 + pair + 1] = d3;
}
}  // namespace

extern "C" int unary(int function, const uint32_t* inputs, uint32_t first, int64_t count, float* out, cudaStream_t stream) {
  if (count > 0) unary_kernel<<<(count + 255) / 256, 256, 0, stream>>>(function, inputs, first, count, out);
  return cudaGetLastError();
}

extern "C" int mma(const uint16_t* a, const uint16_t* b, const float* c, float* d, int64_t tiles, cudaStream_t stream) {
  if (tiles > 0) mma_kernel<<<(tiles + 7) / 8, 256, 0, stream>>>(a, b, c, d, tiles);
  return cudaGetLastError();
}
