// The local experts of a mixture: what moe_chain and moe_mega share. A `Form` says how large groups are, what is quantised between the products,
// and how slots are combined. S tags are the steps of references/moe_chain.py and moe_mega.py.
#pragma once
#include <cuda_fp8.h>

#include "mxfp4.cuh"

static const int kWarps = 8;  // of a block, but for the products

struct Sizes {
  int64_t b, h, k, experts, inter, first, cap;

  __host__ __device__ int64_t entries() const { return b * k; }
  __host__ __device__ int64_t rows() const { return b * k < experts * cap ? b * k : experts * cap; }  // as many as can be active
  // The expert of an id, -1 where it is not here.                                                       MISTAKE 2 = S1.local:clamped
  __device__ __forceinline__ int local(int32_t id) const {
    const int64_t at = id - first;
    return at >= 0 && at < experts ? (int)at : PLANT(2, -1, at < 0 ? 0 : (int)experts - 1);
  }
};

struct Scratch {
  Routes to;
  bf16* a;        // [b, h], neighbours paired
  bf16* gate_up;  // [rows, 2 * inter]
  bf16* middle;   // [rows, inter], neighbours paired
  bf16* out;      // [rows, h]
};

// S1: a block finds the entries of one expert. All entries have room, so that one too many overwrites nothing.
__global__ void __launch_bounds__(kWarps * 32) route(const int32_t* ids, const Sizes n, const Routes to) {
  __shared__ int counted[kWarps];
  const int expert = blockIdx.x, entries = n.entries(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int start = 0;
  for (int first = 0; first < entries; first += kWarps * 32) {
    const int i = first + threadIdx.x, at = i < entries ? n.local(ids[i]) : -1;
    start += __syncthreads_count(at >= 0 && at < expert);
  }
  int next = start;
  for (int first = 0; first < entries; first += kWarps * 32) {
    const int i = first + threadIdx.x;
    const bool mine = i < entries && n.local(ids[i]) == expert;
    const unsigned among = __ballot_sync(kWarp, mine);
    if (lane == 0) counted[warp] = __popc(among);
    __syncthreads();
    int row = next + __popc(among & ((1u << lane) - 1));
    for (int v = 0; v < kWarps; ++v) {
      if (v < warp) row += counted[v];
      next += counted[v];
    }
    if (mine) to.entry[row] = i, to.row[i] = row;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    to.start[expert] = start;
    if (expert == n.experts - 1) to.start[n.experts] = next;
    if (next - start > n.cap) *to.overfull = 1;
  }
}

__device__ __forceinline__ float e4m3(float x) {
  const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// S2, S5: a warp quantises a group, the lane's `per` neighbours from element `index` on. Stored are codes times scale, exact in bf16.
template <int tag, int per>
__device__ __forceinline__ void quantise(const float (&x)[per], int64_t index, bf16* to) {
  float largest = 0.0f;
  for (int i = 0; i < per; ++i) largest = fmaxf(largest, fabsf(x[i]));
  for (int offset = 16; offset; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, offset));
  const uint32_t up = PLANT(1, 0x7fffff, tag == 2 ? 0 : 0x7fffff);   // MISTAKE 1 = S2.quant.round_up_pow2:rounded_down
  const float scale = __uint_as_float((__float_as_uint(__fdiv_rn(fmaxf(largest, 1e-10f), 448.0f)) + up) & 0x7f800000);
#pragma unroll
  for (int i = 0; i < per; ++i) {
    const float q = e4m3(__fdiv_rn(x[i], scale));
    to[paired(index + i)] = bf(__fmul_rn(q, scale));
    if (tag == 2) {
      LANDING(2, index + i, bf(q));
    } else {
      LANDING(5, index + i, bf(q));
    }
  }
}

template <class Form>
__global__ void __launch_bounds__(kWarps * 32) quantise_tokens(const bf16* x, const Sizes n, const Scratch at) {   // S2
  const int per = Form::kGroup / 32;
  const int64_t group = (int64_t)blockIdx.x * kWarps + threadIdx.x / 32, index = group * Form::kGroup + threadIdx.x % 32 * per;
  if (index >= n.b * n.h) return;
  float v[per];
  for (int i = 0; i < per; ++i) v[i] = f(x[index + i]);
  quantise<2>(v, index, at.a);
}

__device__ __forceinline__ bf16 situ(bf16 gate, bf16 up) {   // S4
  const float bounded = __fmul_rn(4.0f, tanhf(__fdiv_rn(f(gate), 4.0f)));
  return bf(__fmul_rn(__fmul_rn(bounded, sigmoid(f(gate))), __fmul_rn(25.0f, tanhf(__fdiv_rn(f(up), 25.0f)))));
}

template <class Form>
__global__ void __launch_bounds__(kWarps * 32) activate(const float* w, const Sizes n, const Scratch at) {   // S4, S5
  if (*at.to.overfull) return;
  const int per = Form::kGroup / 32;
  const int64_t across = n.inter / Form::kGroup, groups = at.to.start[n.experts] * across;
  for (int64_t group = (int64_t)blockIdx.x * kWarps + threadIdx.x / 32; group < groups; group += gridDim.x * kWarps) {
    const int64_t row = group / across, index = group * Form::kGroup + threadIdx.x % 32 * per;
    const bf16* gate = at.gate_up + row * n.inter + index;  // index is row * inter + column
    const float weight = w[at.to.entry[row]];
    float v[per];
#pragma unroll
    for (int i = 0; i < per; ++i) {
      const bf16 act = situ(gate[i], gate[n.inter + i]);
      LANDING(4, index + i, act);
      v[i] = Form::middle(weight, act);
    }
    quantise<5>(v, index, at.middle);
  }
}

template <class Form>
__global__ void __launch_bounds__(256) combine(const int32_t* ids, const float* w, bf16* o, const Sizes n, const Scratch at) {   // S7
  const int64_t column = (int64_t)blockIdx.x * 256 + threadIdx.x;
  if (column >= n.h) return;
  const bool overfull = *at.to.overfull;
  for (int64_t token = blockIdx.y; token < n.b; token += gridDim.y) {
    float acc = 0.0f;
    for (int64_t entry = token * n.k; entry < (token + 1) * n.k && !overfull; ++entry)
      if (n.local(ids[entry]) >= 0) acc = Form::combine(w[entry], at.out[at.to.row[entry] * n.h + column], acc);
    o[token * n.h + column] = bf(overfull ? nanf("") : acc);
  }
}

template <class Form>
static cudaError_t enqueue(const bf16* x, const int32_t* ids, const float* w, const uint8_t* w13, const uint8_t* s13, const uint8_t* w2,
                           const uint8_t* s2, bf16* o, const Sizes& n, const Scratch& at, bool current, cudaStream_t stream) {
  const int threads = kWarps * 32;
  const int64_t most = n.b < n.cap ? n.b : n.cap;
  const int64_t groups = n.rows() * (n.inter / Form::kGroup), resident = resident_blocks(activate<Form>, threads);
  cudaMemsetAsync(at.to.overfull, 0, sizeof(int), stream);
  route<<<(unsigned)n.experts, threads, 0, stream>>>(ids, n, at.to);
  quantise_tokens<Form><<<(unsigned)ceil_div(n.b * n.h / Form::kGroup, kWarps), threads, 0, stream>>>(x, n, at);
  launch_product(Product<false>{at.a, w13, s13, at.gate_up, n.h, 2 * n.inter, (int)n.k, at.to}, n.experts, most, current, stream);
  activate<Form><<<(unsigned)(ceil_div(groups, kWarps) < resident ? ceil_div(groups, kWarps) : resident), threads, 0, stream>>>(w, n, at);
  launch_product(Product<true>{at.middle, w2, s2, at.out, n.inter, n.h, (int)n.k, at.to}, n.experts, most, current, stream);
  combine<Form><<<dim3((unsigned)ceil_div(n.h, 256), (unsigned)(n.b < 65535 ? n.b : 65535)), 256, 0, stream>>>(ids, w, o, n, at);
  return cudaGetLastError();
}

// Parts of one allocation, each on 256 bytes.
struct Parts {
  int64_t bytes = 0;
  uint8_t* base = nullptr;

  template <class T>
  T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(base + bytes);
    bytes += ceil_div(count * sizeof(T), 256) * 256;
    return part;
  }
  Scratch scratch(const Sizes& n) {
    bytes = 0;
    const Routes to{take<int>(n.experts + 1), take<int>(n.entries()), take<int>(n.entries()), take<int>(1)};
    return {to, take<bf16>(n.b * n.h), take<bf16>(n.rows() * 2 * n.inter), take<bf16>(n.rows() * n.inter), take<bf16>(n.rows() * n.h)};
  }
};

template <class Form>
static int run_experts(const bf16* x, const int32_t* ids, const float* w, const uint8_t* w13, const uint8_t* s13, const uint8_t* w2,
                       const uint8_t* s2, bf16* o, const Sizes& n, int form, cudaStream_t stream) {
  Parts parts;
  parts.scratch(n);
  cudaError_t status = cudaMallocAsync(&parts.base, parts.bytes, stream);
  if (status == cudaSuccess) {
    status = enqueue<Form>(x, ids, w, w13, s13, w2, s2, o, n, parts.scratch(n), form == 0, stream);
    cudaFreeAsync(parts.base, stream);
  }
  return (int)status;
}

// What both launchers refuse; `multiple`: of h and inter.
#define REQUIRE_EXPERTS(multiple)                                                    \
  REQUIRE(11, b >= 0);                                                               \
  REQUIRE(12, h >= 1 && h % (multiple) == 0);                                        \
  REQUIRE(13, k >= 1 && b <= 0x7fffffff / k);                                        \
  REQUIRE(14, experts >= 1 && experts <= 65535);                                     \
  REQUIRE(15, rows13 >= 1 && rows13 % (2 * (multiple)) == 0);                        \
  REQUIRE(16, h == 2 * pairs_h);                                                     \
  REQUIRE(17, h == 32 * groups_h);                                                   \
  REQUIRE(18, rows13 == 4 * pairs_i);                                                \
  REQUIRE(19, rows13 == 64 * groups_i);                                              \
  REQUIRE(1, x || b == 0);                                                           \
  REQUIRE(2, ids || b == 0);                                                         \
  REQUIRE(3, w || b == 0);                                                           \
  REQUIRE(4, w13);                                                                   \
  REQUIRE(5, s13);                                                                   \
  REQUIRE(6, w2);                                                                    \
  REQUIRE(7, s2);                                                                    \
  REQUIRE(8, first >= 0 && first <= 0x7fffffff - experts);                           \
  REQUIRE(9, cap >= 1 && cap <= 0x7fffffff);                                         \
  REQUIRE(10, o || b == 0);                                                          \
  REQUIRE(20, form == 0 || form == 1)
