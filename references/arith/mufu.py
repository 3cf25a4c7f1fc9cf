"""The special-function unit of sm_90: rcp, rsqrt and ex2 of `.approx`, each a measured table and exponent arithmetic.

Every word is a function of f32 arrays, any shape; a NaN comes out as 0x7fffffff. The tables and the rules were measured on an H200 over all
2^32 inputs of the three .ftz instructions.
`<word>_defined` is the readable NumPy form; the compiled loops are vectorised around one plain gather.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numba import njit

from references.arith.bits import F32
from references.arith.site import site

TABLES = Path(__file__).with_name("tables") / "mufu_sm90.npz"
GROUP = 7  # 2^7 neighbouring entries differ by less than 256: a base and a byte each, 8 MB for 2^23 entries, which caches far better than 32 MB
CHUNK = 1 << 15  # elements a compiled loop is handed at a time: its scratch stays in the second-level cache

SIGN, MAGNITUDE, INF, ONE = np.int32(-(2**31)), np.int32(0x7FFFFFFF), np.int32(0x7F800000), np.int32(1 << 23)
NAN = MAGNITUDE
FRACTION, SHIFT, GROUP_SHIFT, ZERO = np.int32(0x7FFFFF), np.int32(23), np.uint32(GROUP), np.int32(0)
SCALE, LARGE = F32(2.0**23), F32(2.0**31 - 2.0**7)  # LARGE: the largest f32 that an int32 holds
SMALLEST_NORMAL, UP, UP_ROOT = F32(2.0**-126), F32(2.0**24), F32(2.0**12)


@functools.cache
def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The f32 result bits of rcp over [1, 2), rsqrt over [1, 4) or ex2 over [0, 1), a step of 2^-23 (2^-22 in [2, 4)) an entry.

    base int32 [n / 128] and step uint8 [n]: entry i is base[i >> 7] + step[i].
    """
    with np.load(TABLES) as file:
        first, difference = file[f"{name}_first"], file[f"{name}_diff"]
    bits = np.concatenate([[int(first)], difference]).cumsum(dtype=np.int32).reshape(-1, 1 << GROUP)
    base = bits.min(axis=1)
    return base, (bits - base[:, None]).astype(np.uint8).reshape(-1)


def entry(name: str, index: np.ndarray) -> np.ndarray:
    """Table entries as int64 bits of f32."""
    base, step = table(name)
    return base[index >> GROUP].astype(np.int64) + step[index]


def elementwise(kernel: Callable, x: np.ndarray, *tables: np.ndarray) -> np.ndarray:
    """Run kernel(x, y, *tables) over an f32 array of any shape and return y. ValueError: x is not float32."""
    x = np.asarray(x)
    if x.dtype != F32:
        raise ValueError(f"x: float32 expected, got {x.dtype}")
    y = np.empty(x.shape, F32)
    source, target = np.ascontiguousarray(x).reshape(-1), y.reshape(-1)
    for at in range(0, x.size, CHUNK):
        kernel(source[at : at + CHUNK], target[at : at + CHUNK], *tables)
    return y


@site
def rcp_approx(x: np.ndarray) -> np.ndarray:
    """rcp.approx.ftz.f32: within 1 ulp of 1/x; subnormal operands and results are zeros of their sign."""
    return elementwise(rcp_loop, x, *table("rcp"))


@site
def rsqrt_approx_ftz(x: np.ndarray) -> np.ndarray:
    """rsqrt.approx.ftz.f32: subnormal operands are zeros of their sign, zeros give infinity of their sign."""
    return elementwise(rsqrt_loop, x, *table("rsqrt"))


@site
def rsqrt_approx(x: np.ndarray) -> np.ndarray:
    """rsqrt.approx.f32: as the ftz form, except that a subnormal operand is multiplied by 2^24 first and its result by 2^12."""
    return elementwise(rsqrt_subnormal_loop, x, *table("rsqrt"))


@site
def ex2_approx(x: np.ndarray) -> np.ndarray:
    """ex2.approx.ftz.f32: 2^x of x cut to 23 fraction bits; +0 below 2^-126."""
    return elementwise(ex2_loop, x, *table("ex2"))


def _fields(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bits = x.view(np.uint32).astype(np.int64)
    return bits & 0x80000000, bits >> 23 & 0xFF, bits & 0x7FFFFF


def _float(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(F32)


def rcp_approx_defined(x: np.ndarray) -> np.ndarray:
    sign, exponent, fraction = _fields(x)
    bits = entry("rcp", fraction) + (127 - exponent << 23)
    bits = np.where(bits < ONE, 0, bits)
    bits = np.where(exponent == 0, INF, np.where(exponent == 255, 0, bits))
    return _float(np.where(np.isnan(x), NAN, sign | bits))


def rsqrt_approx_ftz_defined(x: np.ndarray) -> np.ndarray:
    sign, exponent, fraction = _fields(x)
    odd_power = 1 - (exponent & 1)  # the bias is odd: an even field is 2^odd, and the fraction lies in the table's upper half, [2, 4)
    bits = entry("rsqrt", odd_power << 23 | fraction) + (128 - exponent >> 1 << 23)
    bits = np.where(exponent == 255, 0, np.where(exponent == 0, sign | INF, bits))
    return _float(np.where(np.isnan(x) | (sign != 0) & (exponent != 0), NAN, bits))


def rsqrt_approx_defined(x: np.ndarray) -> np.ndarray:
    small = np.abs(x) < SMALLEST_NORMAL
    result = rsqrt_approx_ftz_defined(np.where(small, x * UP, x))
    return np.where(small, result * UP_ROOT, result)


def ex2_approx_defined(x: np.ndarray) -> np.ndarray:
    k = (np.fmin(np.abs(x), F32(256)) * SCALE).astype(np.int64)  # truncated; 256 is past both ends, and stands in for NaN
    negative = np.where(k & FRACTION == 0, -k, ~k)  # the unit complements instead of negating, but not a whole number
    k = np.where(x < 0, negative, k)
    exponent, fraction = k >> 23, k & FRACTION
    bits = entry("ex2", fraction) + (exponent << 23)
    bits = np.where(exponent < -126, 0, np.where(exponent >= 128, INF, bits))
    return _float(np.where(np.isnan(x), NAN, bits))


@njit(cache=True, nogil=True)
def gather(index, entries, base, step):
    """entries[i] = base[index[i] >> 7] + step[index[i]]: alone in its loop, so that many cache misses overlap."""
    for i in range(index.size):
        j = np.uint32(index[i])
        entries[i] = base[j >> GROUP_SHIFT] + np.int32(step[j])


@njit(cache=True, nogil=True)
def rcp_loop(x, y, base, step):
    operand, result = x.view(np.int32), y.view(np.int32)
    entries = np.empty(x.size, np.int32)
    gather(operand & FRACTION, entries, base, step)
    for i in range(x.size):
        magnitude = operand[i] & MAGNITUDE
        bits = entries[i] + ((np.int32(127) - (magnitude >> SHIFT)) << SHIFT)
        bits = bits if bits >= ONE and magnitude < INF else ZERO
        bits = bits if magnitude >= ONE else INF
        result[i] = bits | (operand[i] & SIGN) if magnitude <= INF else NAN


@njit(cache=True, nogil=True)
def rsqrt_loop(x, y, base, step):
    operand, result = x.view(np.int32), y.view(np.int32)
    entries = np.empty(x.size, np.int32)
    gather((operand ^ ONE) & (ONE | FRACTION), entries, base, step)  # the exponent's low bit and the fraction index the table
    for i in range(x.size):
        magnitude = operand[i] & MAGNITUDE
        bits = entries[i] + ((np.int32(128) - (magnitude >> SHIFT)) >> np.int32(1) << SHIFT)
        bits = bits if magnitude < INF else ZERO
        bits = bits if magnitude == operand[i] else NAN
        bits = bits if magnitude >= ONE else INF | (operand[i] & SIGN)
        result[i] = bits if magnitude <= INF else NAN


@njit(cache=True, nogil=True)
def rsqrt_subnormal_loop(x, y, base, step):
    scaled = np.empty(x.size, F32)
    for i in range(x.size):
        scaled[i] = x[i] * UP if abs(x[i]) < SMALLEST_NORMAL else x[i]
    rsqrt_loop(scaled, y, base, step)
    for i in range(x.size):
        y[i] = y[i] * UP_ROOT if abs(x[i]) < SMALLEST_NORMAL else y[i]


@njit(cache=True, nogil=True)
def ex2_loop(x, y, base, step):
    """May run in place (x is y)."""
    result = y.view(np.int32)
    k, fraction, entries = np.empty(x.size, np.int32), np.empty(x.size, np.int32), np.empty(x.size, np.int32)
    for i in range(x.size):
        scaled = abs(x[i]) * SCALE
        magnitude = np.int32(scaled if scaled < LARGE else LARGE)
        negative = -magnitude if magnitude & FRACTION == ZERO else ~magnitude
        k[i] = negative if x[i] < F32(0) else magnitude
        fraction[i] = k[i] & FRACTION
    gather(fraction, entries, base, step)
    for i in range(x.size):
        exponent = k[i] >> SHIFT
        bits = entries[i] + (exponent << SHIFT)
        bits = bits if exponent > np.int32(-127) else ZERO
        bits = bits if exponent < np.int32(128) else INF
        result[i] = bits if x[i] == x[i] else NAN
