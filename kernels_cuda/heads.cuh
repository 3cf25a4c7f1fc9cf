// Products of a warpgroup whose n is 48 or 96 heads.
#pragma once
#include "hopper.cuh"

// Where 16-byte piece `piece` of row `row` lies in a `slab` of hopper.cuh, in elements. A product runs along the rows, 32 bytes a k16 step, or,
// where the rows are its k, across them, 2048 bytes a step.
__device__ __forceinline__ int swizzled(int row, int piece) { return row * kWide + (piece ^ row % 8) * 8; }

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D24(d, i) D4(d, i), D4(d, i + 4), D4(d, i + 8), D4(d, i + 12), D4(d, i + 16), D4(d, i + 20)

// d [64, n] += a b^T, a k16 step; elements as in `product` of hopper.cuh. a runs along its rows with 48 columns and across them with 96.
__device__ __forceinline__ void product48(float (&d)[24], uint64_t a, uint64_t b) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
               "%24, %25, p, 1, 1, 0, 0;\n}" : D24(d, 0) : "l"(a), "l"(b));
}
__device__ __forceinline__ void product96(float (&d)[48], uint64_t a, uint64_t b) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
               "%27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
               "%48, %49, p, 1, 1, 1, 0;\n}" : D24(d, 0), D24(d, 24) : "l"(a), "l"(b));
}
// d is not read before this.
__device__ __forceinline__ void settle(float (&d)[24]) { asm volatile("" : D24(d, 0)::"memory"); }
__device__ __forceinline__ void settle(float (&d)[48]) { asm volatile("" : D24(d, 0), D24(d, 24)::"memory"); }
#undef D24
#undef D4
