// situ: the tanh-bounded gate times the tanh-bounded up. The contract is references/situ.py; S tags are its steps.
// Build: -O3 -fmad=false, no fast-math.
#include "bf16_table.cuh"
#include "elementwise.cuh"

__device__ __forceinline__ float tanh_by_exp(float x) {
  const float power = expf(__fmul_rn(2.0f, x));
  return __fdiv_rn(__fsub_rn(power, 1.0f), __fadd_rn(power, 1.0f));
}

struct Gate {
  static __device__ __forceinline__ float of(float g) {
    const float x = __fdiv_rn(g, 4.0f);
    const float bounded = __fmul_rn(4.0f, PLANT(1, tanhf(x), tanh_by_exp(x)));   // S1  MISTAKE 1 = S1.tanh:tanh_by_exp
    return __fmul_rn(bounded, sigmoid(g));                                       // S2, S4
  }
};

struct Up {
  static __device__ __forceinline__ float of(float u) {
    const float x = PLANT(2, __fdiv_rn(u, 25.0f), __fmul_rn(u, __fdiv_rn(1.0f, 25.0f)));   // S3  MISTAKE 2 = S3.div:reciprocal
    return __fmul_rn(25.0f, tanhf(x));                                                     // S3
  }
};

struct Situ {
  static __device__ __forceinline__ bf16 one(bf16 g, bf16 u, int64_t) { return bf(__fmul_rn(Gate::of(f(g)), Up::of(f(u)))); }   // S4
};

// Two tanhf, an expf and three divisions take about 100 instructions and 6 trips to the special-function unit an element; the memory leaves
// time for 47 and 6. But each factor is a function of one bf16, and two look-ups take about 20.
struct Tabled {
  static const int kThreads = 1024, kBlocks = 1;
  typedef Bf16Table<Gate, -14, 7> GateTable;
  typedef Bf16Table<Up, -14, 8> UpTable;
  static const int64_t kEntries = 2 * (GateTable::kSize + UpTable::kSize);
  GateTable gate;
  UpTable up;

  __device__ void prepare() {
    gate.fill();
    up.fill();
    __syncthreads();
  }
  __device__ __forceinline__ Bf16x8 eight(const Bf16x8& g, const Bf16x8& u, int64_t index) const {
    uint32_t farthest_g = 0, farthest_u = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      farthest_g = max(farthest_g, GateTable::offset(__bfloat16_as_ushort(g.at[i])));
      farthest_u = max(farthest_u, UpTable::offset(__bfloat16_as_ushort(u.at[i])));
    }
    if (farthest_g >= GateTable::kSize || farthest_u >= UpTable::kSize) return Plain<Situ>().eight(g, u, index);
    Bf16x8 out;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out.at[i] = bf(__fmul_rn(gate.look_up(__bfloat16_as_ushort(g.at[i])), up.look_up(__bfloat16_as_ushort(u.at[i]))));   // S4
    return out;
  }
};

// g bf16 [m, n], u bf16 [m, n] -> o bf16 [m, n]; gate and up may be halves of one wide row. form 0: current, 1: retired.
extern "C" int situ(const bf16* g, const bf16* u, bf16* o, int64_t m, int64_t n, int64_t ldg, int64_t ldu, int form, cudaStream_t stream) {
  const bool table_pays = m > 0 && n > 132 * Tabled::kEntries / m;   // every multiprocessor computes more elements than its table has
  return table_pays ? elementwise<Situ, Tabled>(g, u, o, m, n, ldg, ldu, form, stream) : elementwise<Situ>(g, u, o, m, n, ldg, ldu, form, stream);
}
