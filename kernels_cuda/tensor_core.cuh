// What every tensor-core kernel is made of: copies into shared memory by all threads, fragments, mma.sync, programmatic launch.
// A k16 step of mma.sync or wgmma is one fused sum of 16 products and the accumulator: `dot16` of references/arith/mma.py.
#pragma once
#include "common.cuh"

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Eight bf16 into shared memory, zeros where not `live`: an asynchronous copy of 16 aligned bytes, or element by element.
template <bool vector>
__device__ __forceinline__ void stage8(bf16* to, const bf16* from, bool live) {
  if constexpr (vector) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(live ? 16 : 0) : "memory");
  } else {
    Bf16x8 v = {};
    if (live)
      for (int i = 0; i < 8; ++i) v.at[i] = from[i];
    store8(to, v);
  }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// What this thread wrote into shared memory may, from the next barrier on, be read by the products of a warpgroup.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// All but the newest `pending` groups of copies of the whole block have arrived; `publish` first where a warpgroup's products read them.
template <int pending, bool published = false>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
  if (published) publish();
  __syncthreads();
}

// Programmatic launch: the next kernel of the stream may start, and waits where it needs what this one writes.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void await_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Four 8 x 8 matrices: lane 8i + r names row r of matrix i. Each lane gets of row lane / 4 the columns 2 (lane % 4) and the next.
__device__ __forceinline__ void load_fragments(uint32_t (&v)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void load_fragments_transposed(uint32_t (&v)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void store_fragments_transposed(bf16* row, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(shared_address(row)), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// d [16, 8] += a [16, 16] b [8, 16]^T.
__device__ __forceinline__ void mma16x8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Registers written before `wgmma_begin` are seen by the products of the warpgroup after it, which are asynchronous and waited for in groups.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the newest `pending` groups are finished.
template <int pending>
__device__ __forceinline__ void wgmma_await() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }
