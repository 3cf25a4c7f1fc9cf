"""CUDA's `expf`, `tanhf`, `rsqrtf`, `logf` and `__expf`, as `nvcc -ptx -arch=sm_90` of CUDA 13.0 writes them without fast-math.

Every word is a function of f32 arrays, any shape, and equals the device bit for bit, NaN payloads aside. `<word>_defined` is the readable
NumPy form, a line an instruction; the compiled loops do the same around the table loops of `mufu`. ValueError: x is not float32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from references.arith.bits import F32
from references.arith.ieee import add, div, fma32, fma32_rm, fma_defined, fma_rm_defined, sub
from references.arith.mufu import elementwise, ex2_approx_defined, ex2_loop, rcp_approx_defined, rcp_loop, rsqrt_approx, table
from references.arith.site import site

_quiet = np.errstate(all="ignore")


def _f32(text: str) -> np.float32:
    return F32(float.fromhex(text))


ZERO, HALF, ONE, MINUS_TWO, INFINITY = F32(0), F32(0.5), F32(1), F32(-2), F32(np.inf)
SHIFT = np.uint32(23)

# expf: 2^n * 2^t with n whole. x * LOG2E_PART + 1/2, saturated, runs over [0, 1] while n runs over [-126, 126], in steps of 1 / SPAN.
LOG2E, LOG2E_LOW, LOG2E_PART, SPAN = _f32("0x1.715476p+0"), _f32("0x1.4ae0c0p-26"), _f32("0x1.77313ap-8"), F32(252)
ROUND, UNROUND = _f32("0x1.800002p+23"), _f32("-0x1.8000fep+23")  # added to ROUND, n + 126 lies in the low bits as the exponent field n + 127
LOWEST_EX2 = F32(-126)

# tanhf: an odd polynomial below 0.6, 1 - 2 / (e^2|x| + 1) from there, 1 from 9.01 on.
TWO_LOG2E, LARGE, SATURATED = _f32("0x1.715476p+1"), _f32("0x1.333334p-1"), _f32("0x1.205968p+3")
T9, T7, T5, T3 = _f32("0x1.01e104p-6"), _f32("-0x1.ac795cp-5"), _f32("0x1.10b282p-3"), _f32("-0x1.5553dap-2")

# logf: e * ln 2 + a polynomial in m - 1, with x = 2^e * m and m in [2/3, 4/3).
TWO_THIRDS, EXPONENT, INFINITE = np.int32(0x3F2AAAAB), np.int32(-(1 << 23)), np.uint32(0x7F800000)  # bit patterns
SMALLEST_NORMAL, UP, UP_LOG2, FIELD, LN2 = F32(2.0**-126), F32(2.0**23), F32(-23), F32(2.0**-23), _f32("0x1.62e430p-1")
L10, L9, L8, L7, L6 = _f32("-0x1.0aa04ep-3"), _f32("0x1.2073ecp-3"), _f32("-0x1.f19b98p-4"), _f32("0x1.1e52aap-3"), _f32("-0x1.55b172p-3")
L5, L4, L3, L2 = _f32("0x1.99da16p-3"), _f32("-0x1.fffe44p-3"), _f32("0x1.5554f0p-2"), F32(-0.5)


@site
def exp(x: np.ndarray) -> np.ndarray:
    """`expf`: e^x within 2 ulp, subnormal results included."""
    return elementwise(exp_loop, x, *table("ex2"))


@site
def exp_fast(x: np.ndarray) -> np.ndarray:
    """`__expf`, what fast-math makes of `expf`: ex2.approx of one rounded product, so the error grows with |x|. No kernel uses it."""
    return elementwise(exp_fast_loop, x, *table("ex2"))


@site
def tanh(x: np.ndarray) -> np.ndarray:
    """`tanhf`: within 2 ulp; subnormals and -0 come back as they are, exactly 1 from 9.01 on."""
    return elementwise(tanh_loop, x, *table("ex2"), *table("rcp"))


@site
def log(x: np.ndarray) -> np.ndarray:
    """`logf`: natural logarithm within 1 ulp; -inf at either zero, NaN below."""
    return elementwise(log_loop, x)


@site
def rsqrt(x: np.ndarray) -> np.ndarray:
    """`rsqrtf`, which is the instruction rsqrt.approx.f32: within 2 ulp."""
    return rsqrt_approx(x)


@site
def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(0 - x)), four operations with a rounding each."""
    return div(1, add(1, exp(sub(0, x))))


# ---- readable NumPy


@_quiet
def exp_defined(x: np.ndarray) -> np.ndarray:
    part = fma_defined(x, LOG2E_PART, HALF)
    part = np.fmin(np.fmax(part, ZERO), ONE)  # cvt.sat: NaN is 0
    high = fma_rm_defined(part, SPAN, ROUND)
    n = high + UNROUND
    t = fma_defined(x, LOG2E, -n)
    t = fma_defined(x, LOG2E_LOW, t)
    scale = (high.view(np.uint32) << SHIFT).view(F32)
    return ex2_approx_defined(t) * scale


@_quiet
def exp_fast_defined(x: np.ndarray) -> np.ndarray:
    power = x * LOG2E
    low = power < LOWEST_EX2  # ex2.approx without .ftz: halved and squared where the unit would flush
    result = ex2_approx_defined(np.where(low, power * HALF, power))
    return np.where(low, result * result, result)


@_quiet
def tanh_defined(x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    power = ex2_approx_defined(size * TWO_LOG2E)
    inverse = rcp_approx_defined(power + ONE)
    large = fma_defined(inverse, MINUS_TWO, ONE)
    large = np.where(size >= SATURATED, ONE, large)
    large = np.copysign(large, x)
    square = x * x
    p = fma_defined(T9, square, T7)
    p = fma_defined(p, square, T5)
    p = fma_defined(p, square, T3)
    p = fma_defined(p, square, ZERO)
    small = fma_defined(p, x, x)
    return np.where(size >= LARGE, large, small)


@_quiet
def log_defined(x: np.ndarray) -> np.ndarray:
    low = x < SMALLEST_NORMAL
    x = np.where(low, x * UP, x)
    bits = x.view(np.int32)
    exponent = (bits - TWO_THIRDS) & EXPONENT
    m = (bits - exponent).view(F32)
    e = fma_defined(exponent.astype(F32), FIELD, np.where(low, UP_LOG2, ZERO))
    f = m + F32(-1)
    p = fma_defined(L10, f, L9)
    for coefficient in (L8, L7, L6, L5, L4, L3, L2):
        p = fma_defined(p, f, coefficient)
    p = f * p
    p = fma_defined(p, f, f)
    result = fma_defined(e, LN2, p)
    result = np.where(x.view(np.uint32) < INFINITE, result, fma_defined(x, INFINITY, INFINITY))
    return np.where(x == 0, -INFINITY, result)


# ---- compiled


@njit(cache=True, nogil=True)
def exp_loop(x, y, base, step):
    t, scale = np.empty(x.size, F32), np.empty(x.size, F32)
    scale_bits = scale.view(np.uint32)
    for i in range(x.size):
        part = fma32(x[i], LOG2E_PART, HALF)
        part = part if part > ZERO else ZERO
        part = part if part < ONE else ONE
        high = fma32_rm(part, SPAN, ROUND)
        n = high + UNROUND
        t[i] = fma32(x[i], LOG2E_LOW, fma32(x[i], LOG2E, -n))
        scale_bits[i] = np.float32(high).view(np.uint32) << SHIFT
    ex2_loop(t, y, base, step)
    for i in range(x.size):
        y[i] = y[i] * scale[i]


@njit(cache=True, nogil=True)
def exp_fast_loop(x, y, base, step):
    power = np.empty(x.size, F32)
    for i in range(x.size):
        product = x[i] * LOG2E
        power[i] = product * HALF if product < LOWEST_EX2 else product
    ex2_loop(power, y, base, step)
    for i in range(x.size):
        y[i] = y[i] * y[i] if x[i] * LOG2E < LOWEST_EX2 else y[i]


@njit(cache=True, nogil=True)
def tanh_loop(x, y, ex2_base, ex2_step, rcp_base, rcp_step):
    power, inverse = np.empty(x.size, F32), np.empty(x.size, F32)
    for i in range(x.size):
        y[i] = abs(x[i]) * TWO_LOG2E
    ex2_loop(y, power, ex2_base, ex2_step)
    for i in range(x.size):
        power[i] = power[i] + ONE
    rcp_loop(power, inverse, rcp_base, rcp_step)
    for i in range(x.size):
        large = fma32(inverse[i], MINUS_TWO, ONE) if abs(x[i]) < SATURATED else ONE
        large = -large if x[i] < ZERO else large
        square = x[i] * x[i]
        p = fma32(fma32(fma32(T9, square, T7), square, T5), square, T3)
        small = fma32(fma32(p, square, ZERO), x[i], x[i])
        y[i] = large if abs(x[i]) >= LARGE else small


@njit(cache=True, nogil=True)
def log_loop(x, y):
    scaled = np.empty(x.size, F32)
    bits = scaled.view(np.int32)
    for i in range(x.size):
        scaled[i] = x[i] * UP if x[i] < SMALLEST_NORMAL else x[i]
    exponent = (bits - TWO_THIRDS) & EXPONENT
    mantissa = (bits - exponent).view(F32)
    for i in range(x.size):
        e = fma32(F32(exponent[i]), FIELD, UP_LOG2 if x[i] < SMALLEST_NORMAL else ZERO)
        f = mantissa[i] - ONE
        p = fma32(fma32(fma32(fma32(L10, f, L9), f, L8), f, L7), f, L6)
        p = fma32(fma32(fma32(fma32(p, f, L5), f, L4), f, L3), f, L2)
        result = fma32(e, LN2, fma32(f * p, f, f))
        result = result if np.uint32(bits[i]) < INFINITE else fma32(scaled[i], INFINITY, INFINITY)
        y[i] = -INFINITY if scaled[i] == ZERO else result
