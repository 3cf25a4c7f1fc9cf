"""Landings to bf16 and bit codecs: the bottom of `references.arith`.

A bf16 value travels as the f32 it stands for, so widening is free and a landing is `bf`. Words take and return float32 arrays that
broadcast; a Python number among the operands is first rounded to the nearest f32. Anything else is a ValueError: a float64 array
that slipped in would be a second rounding. Loops over 10^8 elements are compiled; the NumPy text that defines each (`*_defined`) stands
beside it, and the two are held equal bit for bit.

An f32 NaN has no defined payload until it is stored: bf16 stores 0x7fff.
"""

from __future__ import annotations

import ml_dtypes
import numba
import numpy as np

from references.arith.site import landing

F32 = np.float32
NAN_DISTANCE = np.iinfo(np.int64).max  # `ulp_distance` where the bits differ and a NaN is involved
quiet = np.errstate(all="ignore")
compiled = numba.vectorize(cache=True)
inlined = numba.njit(cache=True, nogil=True)


def operand(x) -> np.ndarray | np.float32:
    """An operand of a word as float32: a Python number is rounded, an array of another type is a ValueError."""
    if isinstance(x, (int, float)):  # np.float64 is a float, and as good as a Python one
        return F32(x)
    x = np.asarray(x)
    if x.dtype != F32:
        raise ValueError(f"operand: float32 expected, got {x.dtype}")
    return x


# ---- landing to bf16


def bf_defined(x: np.ndarray) -> np.ndarray:
    """`bf` in NumPy."""
    bits = np.asarray(round_to_odd_f32(x) if x.dtype == np.float64 else x).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.uint32(0x7FFF0000), nearest).view(F32)


@quiet
def round_to_odd_f32(x: np.ndarray) -> np.ndarray:
    """f64 -> f32, toward zero, last bit set where that was inexact. A later rounding to 22 bits or fewer is then the only one."""
    near = x.astype(F32)
    bits = near.view(np.uint32)
    wide = near.astype(np.float64)
    return np.asarray((bits - (np.abs(wide) > np.abs(x))) | (wide != x)).astype(np.uint32).view(F32)


@inlined
def bf16_of_f32(bits):
    """Scalar for compiled code: uint32 bits of an f32 -> uint32 bits of the landed f32."""
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.uint32(0x7FFF0000) if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else np.uint32(nearest)


@inlined
def bf16_of_f64(x):
    """Scalar for compiled code: f64 -> uint32 bits of the landed f32, rounded once."""
    near = np.float32(x)
    wide = np.float64(near)
    bits = near.view(np.uint32)
    return bf16_of_f32(np.uint32((bits - np.uint32(abs(wide) > abs(x))) | np.uint32(wide != x)))


@compiled
def _bf_f32(bits):
    return bf16_of_f32(bits)


@compiled
def _bf_f64(x):
    return bf16_of_f64(x)


@compiled
def _hadd(a, b):
    return bf16_of_f64(np.float64(a) + np.float64(b))


@compiled
def _hmul(a, b):
    return bf16_of_f64(np.float64(a) * np.float64(b))


@landing
@quiet
def bf(x: np.ndarray) -> np.ndarray:
    """f32 or f64 array -> f32 array of bf16 values: one rounding to nearest even, every NaN 0x7fff, overflow to inf, subnormals kept."""
    x = np.asarray(x)
    if x.dtype == np.float64:
        return _bf_f64(x).view(F32)
    return _bf_f32(operand(x).view(np.uint32)).view(F32)


@landing
@quiet
def hadd(a, b) -> np.ndarray:
    """CUDA `__hadd_rn`: bf16 operands (as f32), the exact sum rounded once to bf16.

    An f64 sum can be inexact, but 53 >= 2 * 8 + 2 bits are enough for the second rounding to see no difference.
    """
    return _hadd(operand(a), operand(b)).view(F32)


@landing
@quiet
def hmul(a, b) -> np.ndarray:
    """CUDA `__hmul_rn`: bf16 operands (as f32), the exact product rounded once to bf16; 16 bits are exact in f64."""
    return _hmul(operand(a), operand(b)).view(F32)


# ---- codecs (not sites)


def from_bits(bits: np.ndarray) -> np.ndarray:
    """uint16 bf16 patterns -> the f32 they stand for."""
    bits = np.asarray(bits)
    if bits.dtype != np.uint16:
        raise ValueError(f"bits: uint16 expected, got {bits.dtype}")
    return (bits.astype(np.uint32) << np.uint32(16)).view(F32)


def to_bits(x: np.ndarray) -> np.ndarray:
    """f32 holding bf16 values -> uint16 patterns; every NaN is 0x7fff. ValueError where a value is not a bf16."""
    x = np.asarray(operand(x))
    bits = np.where(np.isnan(x), np.uint32(0x7FFF0000), x.view(np.uint32))
    if np.any(bits & np.uint32(0xFFFF)):
        raise ValueError(f"x: bf16 values expected, got {x[(bits & np.uint32(0xFFFF)) != 0].flat[0]!r}")
    return (bits >> np.uint32(16)).astype(np.uint16)


def as_f32(x: np.ndarray) -> np.ndarray:
    """bfloat16 or float32 array -> float32, exactly. Bit patterns go through `from_bits`."""
    x = np.asarray(x)
    return from_bits(x.view(np.uint16)) if x.dtype == ml_dtypes.bfloat16 else np.asarray(operand(x))


def as_bf16(x: np.ndarray) -> np.ndarray:
    """f32 holding bf16 values -> ml_dtypes.bfloat16, exactly; every NaN is 0x7fff. ValueError where a value is not a bf16."""
    return to_bits(x).view(ml_dtypes.bfloat16)


def ulp_distance(a_bits: np.ndarray, b_bits: np.ndarray, kind: str) -> np.ndarray:
    """Representable steps from b up to a (int64), counted through zero: -0 to +0 is no step, inf is one past the largest finite.

    kind: "bf16" (uint16 patterns) or "f32" (uint32 patterns). Equal bits are 0 apart, NaNs too; otherwise a NaN gives NAN_DISTANCE.
    """
    if kind not in ("bf16", "f32"):
        raise ValueError(f"kind: 'bf16' or 'f32' expected, got {kind!r}")
    dtype, infinity = (np.uint16, 0x7F80) if kind == "bf16" else (np.uint32, 0x7F800000)
    a, b = np.asarray(a_bits), np.asarray(b_bits)
    if a.dtype != dtype or b.dtype != dtype:
        raise ValueError(f"a_bits, b_bits: {np.dtype(dtype)} expected for {kind}, got {a.dtype} and {b.dtype}")
    sign = np.int64(1) << (a.itemsize * 8 - 1)
    size_a, size_b = a & (sign - 1), b & (sign - 1)
    steps = np.where(a & sign, -size_a, size_a) - np.where(b & sign, -size_b, size_b)
    return np.where((a != b) & ((size_a > infinity) | (size_b > infinity)), NAN_DISTANCE, steps)
