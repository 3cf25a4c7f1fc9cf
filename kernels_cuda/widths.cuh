// wgmma of hopper.cuh at the other widths that a tile may have: 8 to 64 in steps of 8, and 256 columns beside its 128.
#pragma once
#include "hopper.cuh"

#define NAMES4 "%0, %1, %2, %3"
#define NAMES8 NAMES4 ", %4, %5, %6, %7"
#define NAMES12 NAMES8 ", %8, %9, %10, %11"
#define NAMES16 NAMES12 ", %12, %13, %14, %15"
#define NAMES20 NAMES16 ", %16, %17, %18, %19"
#define NAMES24 NAMES20 ", %20, %21, %22, %23"
#define NAMES28 NAMES24 ", %24, %25, %26, %27"
#define NAMES32 NAMES28 ", %28, %29, %30, %31"
#define NAMES128 NAMES32 ", "                                                                                                      \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "  \
  "%57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "  \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
  "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define FOUR_SUMS(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define SUMS4(x) FOUR_SUMS(x, 0)
#define SUMS8(x) EIGHT(x, 0)
#define SUMS12(x) SUMS8(x), FOUR_SUMS(x, 8)
#define SUMS16(x) SUMS8(x), EIGHT(x, 8)
#define SUMS20(x) SUMS16(x), FOUR_SUMS(x, 16)
#define SUMS24(x) SUMS16(x), EIGHT(x, 16)
#define SUMS28(x) SUMS24(x), FOUR_SUMS(x, 24)
#define SUMS32(x) SUMS24(x), EIGHT(x, 24)
#define SUMS128(x)                                                                                                                     \
  ALL64(x), EIGHT(x, 64), EIGHT(x, 72), EIGHT(x, 80), EIGHT(x, 88), EIGHT(x, 96), EIGHT(x, 104), EIGHT(x, 112), EIGHT(x, 120)

// d [64 x n] = or += a [64 x 16] . b [16 x n], of which a thread holds `sums` elements; `a`, `b`, `onto`: the numbers of these operands.
#define PRODUCT(n, sums, a, b, onto)                                                                                                          \
  __device__ __forceinline__ void product(float (&d)[sums], uint64_t left, uint64_t right, int more) {                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #onto ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" NAMES##sums     \
                 "}, %" #a ", %" #b ", p, 1, 1, 0, 0;\n}" : SUMS##sums(d) : "l"(left), "l"(right), "r"(more));                                 \
  }                                                                                                                                           \
  template <int pending>                                                                                                                      \
  __device__ __forceinline__ void finished(float (&d)[sums]) {                                                                                \
    asm volatile("wgmma.wait_group.sync.aligned %" #a ";" : SUMS##sums(d) : "n"(pending) : "memory");                                         \
  }
PRODUCT(8, 4, 4, 5, 6)
PRODUCT(16, 8, 8, 9, 10)
PRODUCT(24, 12, 12, 13, 14)
PRODUCT(32, 16, 16, 17, 18)
PRODUCT(40, 20, 20, 21, 22)
PRODUCT(48, 24, 24, 25, 26)
PRODUCT(56, 28, 28, 29, 30)
PRODUCT(64, 32, 32, 33, 34)
PRODUCT(256, 128, 128, 129, 130)
