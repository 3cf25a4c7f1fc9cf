"""Landings, IEEE f32 words and bit codecs: the bottom of `references.arith`.

A bf16 value travels as the f32 it stands for, so widening is free and a landing is `bf`. Words take and return float32 arrays that
broadcast; a Python number among the operands is first rounded to the nearest f32. Anything else is a ValueError: a float64 array
that slipped in would be a second rounding. Loops over 10^8 elements are compiled; the NumPy text that defines each (`*_defined`) stands
beside it, and the two are held equal bit for bit.

An f32 NaN has no defined payload until it is stored: bf16 stores 0x7fff.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from references.arith.site import landing, site

F32 = np.float32
NAN_DISTANCE = np.iinfo(np.int64).max  # `ulp_distance` where the bits differ and a NaN is involved
_quiet = np.errstate(all="ignore")
_compiled = numba.vectorize(cache=True)
_inlined = numba.njit(cache=True, nogil=True)


def _f32(x) -> np.ndarray | np.float32:
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


@_quiet
def round_to_odd_f32(x: np.ndarray) -> np.ndarray:
    """f64 -> f32, toward zero, last bit set where that was inexact. A later rounding to 22 bits or fewer is then the only one."""
    near = x.astype(F32)
    bits = near.view(np.uint32)
    wide = near.astype(np.float64)
    return np.asarray((bits - (np.abs(wide) > np.abs(x))) | (wide != x)).astype(np.uint32).view(F32)


@_inlined
def bf16_of_f32(bits):
    """Scalar for compiled code: uint32 bits of an f32 -> uint32 bits of the landed f32."""
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.uint32(0x7FFF0000) if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else np.uint32(nearest)


@_inlined
def bf16_of_f64(x):
    """Scalar for compiled code: f64 -> uint32 bits of the landed f32, rounded once."""
    near = np.float32(x)
    wide = np.float64(near)
    bits = near.view(np.uint32)
    return bf16_of_f32(np.uint32((bits - np.uint32(abs(wide) > abs(x))) | np.uint32(wide != x)))


@_compiled
def _bf_f32(bits):
    return bf16_of_f32(bits)


@_compiled
def _bf_f64(x):
    return bf16_of_f64(x)


@_compiled
def _hadd(a, b):
    return bf16_of_f64(np.float64(a) + np.float64(b))


@_compiled
def _hmul(a, b):
    return bf16_of_f64(np.float64(a) * np.float64(b))


@landing
@_quiet
def bf(x: np.ndarray) -> np.ndarray:
    """f32 or f64 array -> f32 array of bf16 values: one rounding to nearest even, every NaN 0x7fff, overflow to inf, subnormals kept."""
    x = np.asarray(x)
    if x.dtype == np.float64:
        return _bf_f64(x).view(F32)
    return _bf_f32(_f32(x).view(np.uint32)).view(F32)


@landing
@_quiet
def hadd(a, b) -> np.ndarray:
    """CUDA `__hadd_rn`: bf16 operands (as f32), the exact sum rounded once to bf16.

    An f64 sum can be inexact, but 53 >= 2 * 8 + 2 bits are enough for the second rounding to see no difference.
    """
    return _hadd(_f32(a), _f32(b)).view(F32)


@landing
@_quiet
def hmul(a, b) -> np.ndarray:
    """CUDA `__hmul_rn`: bf16 operands (as f32), the exact product rounded once to bf16; 16 bits are exact in f64."""
    return _hmul(_f32(a), _f32(b)).view(F32)


# ---- f32 arithmetic


@site
@_quiet
def add(a, b) -> np.ndarray:
    """a + b in f32, to nearest even."""
    return np.add(_f32(a), _f32(b))


@site
@_quiet
def sub(a, b) -> np.ndarray:
    """a - b in f32, to nearest even."""
    return np.subtract(_f32(a), _f32(b))


@site
@_quiet
def mul(a, b) -> np.ndarray:
    """a * b in f32, to nearest even."""
    return np.multiply(_f32(a), _f32(b))


@site
@_quiet
def div(a, b) -> np.ndarray:
    """a / b in f32, to nearest even (CUDA `div.rn`)."""
    return np.divide(_f32(a), _f32(b))


@site
@_quiet
def sqrt(a) -> np.ndarray:
    """Square root in f32, to nearest even (CUDA `sqrt.rn`)."""
    return np.sqrt(_f32(a))


@site
def absolute(a) -> np.ndarray:
    """|a|: the sign bit cleared."""
    return np.abs(_f32(a))


@site
@_quiet
def maximum(a, b) -> np.ndarray:
    """CUDA `fmaxf`: a number wins over NaN, +0 over -0."""
    a, b = _f32(a), _f32(b)
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


@site
@_quiet
def amax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """`maximum` along an axis, which is gone from the result; the order cannot be seen."""
    x = np.asarray(_f32(x))
    largest = np.fmax.reduce(x, axis=axis)
    return np.where((largest == 0) & np.any(x.view(np.uint32) == 0, axis=axis), F32(0), largest)


# ---- fused multiply-add


def _exact_sum(a, b, c) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f32 operands -> (product, sum, error) in f64 with a*b = product and a*b + c = sum + error, both exactly (TwoSum)."""
    product, c = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product + c
    back = total - product
    return product, total, (product - (total - back)) + (c - back)


def _odd_sum(a, b, c) -> tuple[np.ndarray, np.ndarray]:
    """The product and a*b + c rounded to odd at 53 bits, from which a rounding to 24 bits is as good as from the exact sum."""
    product, total, error = _exact_sum(a, b, c)
    even = (total.view(np.int64) & 1) == 0
    move = even & np.isfinite(total) & (error != 0)
    return product, np.where(move, np.nextafter(total, np.copysign(np.inf, error)), total)


@_quiet
def fma_defined(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`fma` in NumPy."""
    return _odd_sum(a, b, c)[1].astype(F32)


@_quiet
def fma_rm_defined(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`fma_rm` in NumPy. An exact zero is -0 unless product and c are both +0 (IEEE 754, 6.3)."""
    product, total = _odd_sum(a, b, c)
    near = total.astype(F32)
    down = np.where(near > total, np.nextafter(near, F32(-np.inf)), near)
    return np.where(total == 0, np.where(np.signbit(product) | np.signbit(c), F32(-0.0), F32(0)), down)


@intrinsic
def fma32(typingctx, a, b, c):
    """Scalar for compiled code: LLVM's `llvm.fma.f32`."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@_compiled
def _fma(a, b, c):
    return fma32(a, b, c)


@_inlined
def fma32_rm(a, b, c):
    """Scalar for compiled code: a * b + c toward -inf, from the nearest value and the side of it on which the exact sum lies."""
    product, wide = np.float64(a) * np.float64(b), np.float64(c)
    total = product + wide
    back = total - product
    error = (product - (total - back)) + (wide - back)
    near = np.float32(fma32(a, b, c))
    if total == 0.0:
        return np.float32(-0.0) if np.signbit(product) | np.signbit(wide) else np.float32(0.0)
    bits = near.view(np.uint32)
    step = np.uint32(1) if bits >> np.uint32(31) else np.uint32(0xFFFFFFFF)  # a step down; near is never +0 where one is due
    due = np.uint32(near > total or (near == total and error < 0.0))
    return np.uint32(bits + due * step).view(np.float32)


@_compiled
def _fma_rm(a, b, c):
    return fma32_rm(a, b, c)


@site
@_quiet
def fma(a, b, c) -> np.ndarray:
    """a * b + c rounded once to f32, to nearest even (CUDA `__fmaf_rn`)."""
    return _fma(_f32(a), _f32(b), _f32(c))


@site
@_quiet
def fma_rm(a, b, c) -> np.ndarray:
    """a * b + c rounded once to f32, toward -inf (PTX `fma.rm.f32`)."""
    return _fma_rm(_f32(a), _f32(b), _f32(c))


bf16_rn, fma_rn = bf, fma


# ---- seeds, orders and data movement: nothing is computed, but a kernel can get each of them wrong


@site
def zero(like: np.ndarray) -> np.ndarray:
    """+0 of the shape of `like`: the seed of a sum."""
    return np.zeros(np.shape(like), F32)


@site
def full(like: np.ndarray, value: float) -> np.ndarray:
    """`value` as f32, in the shape of `like`."""
    return np.full(np.shape(like), _f32(value), F32)


@site
def join(arrays: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Arrays one after the other along `axis`."""
    return np.concatenate([np.asarray(a) for a in arrays], axis)


@site
def select(x: np.ndarray, index, axis: int = 0) -> np.ndarray:
    """Entries `index` of `axis`. A negative index is an error: padding ids are -1 and must not fetch the last entry."""
    index = np.asarray(index)
    if index.size and (index.min() < 0 or index.max() >= np.shape(x)[axis]):
        raise ValueError(f"index: 0..{np.shape(x)[axis] - 1} expected, got {index.min()}..{index.max()}")
    return np.take(x, index, axis)


@site
def asc(n: int) -> range:
    """0, 1, ..., n - 1: a loop whose order is part of the schedule."""
    return range(n)


# ---- codecs (not sites)


def from_bits(bits: np.ndarray) -> np.ndarray:
    """uint16 bf16 patterns -> the f32 they stand for."""
    bits = np.asarray(bits)
    if bits.dtype != np.uint16:
        raise ValueError(f"bits: uint16 expected, got {bits.dtype}")
    return (bits.astype(np.uint32) << np.uint32(16)).view(F32)


def to_bits(x: np.ndarray) -> np.ndarray:
    """f32 holding bf16 values -> uint16 patterns; every NaN is 0x7fff. ValueError where a value is not a bf16."""
    x = np.asarray(_f32(x))
    bits = np.where(np.isnan(x), np.uint32(0x7FFF0000), x.view(np.uint32))
    if np.any(bits & np.uint32(0xFFFF)):
        raise ValueError(f"x: bf16 values expected, got {x[(bits & np.uint32(0xFFFF)) != 0].flat[0]!r}")
    return (bits >> np.uint32(16)).astype(np.uint16)


def as_f32(x: np.ndarray) -> np.ndarray:
    """bfloat16 or float32 array -> float32, exactly. Bit patterns go through `from_bits`."""
    x = np.asarray(x)
    return from_bits(x.view(np.uint16)) if x.dtype == ml_dtypes.bfloat16 else np.asarray(_f32(x))


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
