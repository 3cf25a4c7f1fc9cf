// What a kernel of copying and computing warpgroups is made of: barriers in shared memory, tiles brought by the bulk copy engine, 64 x 128 products.
#pragma once
#include <cuda.h>

#include "tensor_core.cuh"

static const int kWide = 64;  // bf16 columns of one swizzled row, 128 bytes; a tile of `rows` is kept as slabs of [rows][64]

// A barrier completes a phase when all its arrivals, and all bytes announced with them, are there. Phases alternate in parity, from 0.
struct Barrier {
  uint64_t state;

  __device__ __forceinline__ uint32_t address() { return shared_address(&state); }
  __device__ __forceinline__ void init(int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)); }
  __device__ __forceinline__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ uint32_t passed(int parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(address()), "r"(parity) : "memory");
    return done;
  }
  __device__ __forceinline__ void wait(int parity) {
    while (!passed(parity)) continue;
  }
  // By all lanes of a warp. They leave as one, which the compiler then knows: what a product is given stays in the registers that it is taken from.
  __device__ __forceinline__ void wait_together(int parity) {
    while (!__all_sync(kWarp, passed(parity))) continue;
  }
};
// After the barriers are initialised, before a __syncthreads(): the copy engine sees them, too.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Registers move from the warpgroup that copies to those that compute.
template <int registers>
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers)); }
template <int registers>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers)); }

// One slab of a tensor [token][head][column] into shared memory; tokens past the end arrive as zeros.
__device__ __forceinline__ void copy_slab(bf16* to, const CUtensorMap& map, int column, int head, int token, Barrier& full) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(shared_address(to)), "l"(&map), "r"(full.address()), "r"(column), "r"(head), "r"(token) : "memory");
}

// An operand slab in shared memory: 128-byte rows, 16-byte chunks permuted within groups of 8 rows (1024 bytes apart) as the copy engine does.
// `next_slab`: bytes to the next 64 columns, where they are the operand's n.
__device__ __forceinline__ uint64_t slab(const bf16* p, int next_slab = 16) {
  return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(next_slab >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ uint64_t bytes_on(uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

#define EIGHT(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])
#define ALL64(x) EIGHT(x, 0), EIGHT(x, 8), EIGHT(x, 16), EIGHT(x, 24), EIGHT(x, 32), EIGHT(x, 40), EIGHT(x, 48), EIGHT(x, 56)
#define FOUR(x, i) "+r"(x[i]), "+r"(x[i + 1]), "+r"(x[i + 2]), "+r"(x[i + 3])
#define ALL32(x) FOUR(x, 0), FOUR(x, 4), FOUR(x, 8), FOUR(x, 12), FOUR(x, 16), FOUR(x, 20), FOUR(x, 24), FOUR(x, 28)
#define LIST64                                                                                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "     \
  "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, " \
  "%55, %56, %57, %58, %59, %60, %61, %62, %63}"

// d [64 x 128] = or += a [64 x 16] . b [16 x 128], rows of 16 side by side in both. Element 4i + 2r + e of a thread is row 16 warp + lane / 4 + 8r,
// column 8i + 2 (lane % 4) + e. Asynchronous: d belongs to the tensor core until `finished`.
__device__ __forceinline__ void product(float (&d)[64], uint64_t a, uint64_t b, int onto) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " LIST64 ", %64, %65, p, 1, 1, 0, 0;\n}"
               : ALL64(d) : "l"(a), "l"(b), "r"(onto));
}
// d += a . b with a in registers, and b kept with its n side by side.
__device__ __forceinline__ void product_on(float (&d)[64], const uint32_t (&a)[32], int i, uint64_t b) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " LIST64
               ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
               : ALL64(d) : "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3]), "l"(b), "r"(1));
}
// All but the last `pending` groups of products are finished; d can be used from here on.
template <int pending>
__device__ __forceinline__ void finished(float (&d)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;" : ALL64(d) : "n"(pending) : "memory");
}

// The same of products that read a from registers, which could be written again before.
__device__ __forceinline__ void finished(float (&d)[64], uint32_t (&a)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : ALL64(d), ALL32(a)::"memory");
}

// The map of a bf16 tensor [tokens][heads][columns] for slabs of `rows` tokens of one head; strides in elements, multiples of 8.
static cudaError_t map_slabs(CUtensorMap& map, const bf16* p, int64_t columns, int64_t heads, int64_t tokens, int64_t head_stride, int64_t token_stride,
                             int rows) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (!encode) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)heads, (cuuint64_t)tokens};
  const cuuint64_t strides[] = {(cuuint64_t)head_stride * sizeof(bf16), (cuuint64_t)token_stride * sizeof(bf16)};
  const cuuint32_t box[] = {(cuuint32_t)kWide, 1, (cuuint32_t)rows}, steps[] = {1, 1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(p), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
