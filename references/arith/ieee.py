"""IEEE f32 arithmetic, subnormals kept: one word an operation, each rounded once.

The fused multiply-add is exact in f64 up to an error term that decides the last bit: the NumPy text (`*_defined`) says how, the compiled
form uses the processor's, and the two are held equal bit for bit.
"""

from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from references.arith.bits import F32, compiled, inlined, operand, quiet
from references.arith.site import site


@site
@quiet
def add(a, b) -> np.ndarray:
    """a + b in f32, to nearest even."""
    return np.add(operand(a), operand(b))


@site
@quiet
def sub(a, b) -> np.ndarray:
    """a - b in f32, to nearest even."""
    return np.subtract(operand(a), operand(b))


@site
@quiet
def mul(a, b) -> np.ndarray:
    """a * b in f32, to nearest even."""
    return np.multiply(operand(a), operand(b))


@site
@quiet
def div(a, b) -> np.ndarray:
    """a / b in f32, to nearest even (CUDA `div.rn`)."""
    return np.divide(operand(a), operand(b))


@site
@quiet
def sqrt(a) -> np.ndarray:
    """Square root in f32, to nearest even (CUDA `sqrt.rn`)."""
    return np.sqrt(operand(a))


@site
def absolute(a) -> np.ndarray:
    """|a|: the sign bit cleared."""
    return np.abs(operand(a))


@site
@quiet
def maximum(a, b) -> np.ndarray:
    """CUDA `fmaxf`: a number wins over NaN, +0 over -0."""
    a, b = operand(a), operand(b)
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


@site
@quiet
def amax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """`maximum` along an axis, which is gone from the result; the order cannot be seen."""
    x = np.asarray(operand(x))
    largest = np.fmax.reduce(x, axis=axis)
    return np.where((largest == 0) & np.any(x.view(np.uint32) == 0, axis=axis), F32(0), largest)


# ---- fused multiply-add


def _exact_sum(a, b, c) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f32 operands -> (product, sum, error) in f64 with a*b = product and a*b + c = sum + error, both exactly (TwoSum)."""
    product, c = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = product + c
    back = total - product
    return product, total, (product - (total - back)) + (c - back)


def odd_sum(a, b, c) -> tuple[np.ndarray, np.ndarray]:
    """The product and a*b + c rounded to odd at 53 bits: as good as the exact sum, to round to 24 bits or to compare with a value of 24."""
    product, total, error = _exact_sum(a, b, c)
    even = (total.view(np.int64) & 1) == 0
    move = even & np.isfinite(total) & (error != 0)
    return product, np.where(move, np.nextafter(total, np.copysign(np.inf, error)), total)


@quiet
def fma_defined(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`fma` in NumPy."""
    return odd_sum(a, b, c)[1].astype(F32)


@quiet
def fma_rm_defined(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`fma_rm` in NumPy. An exact zero is -0 unless product and c are both +0 (IEEE 754, 6.3)."""
    product, total = odd_sum(a, b, c)
    near = total.astype(F32)
    down = np.where(near > total, np.nextafter(near, F32(-np.inf)), near)
    return np.where(total == 0, np.where(np.signbit(product) | np.signbit(c), F32(-0.0), F32(0)), down)


@intrinsic
def fma32(typingctx, a, b, c):
    """Scalar for compiled code: LLVM's `llvm.fma.f32`."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@compiled
def _fma(a, b, c):
    return fma32(a, b, c)


@inlined
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


@compiled
def _fma_rm(a, b, c):
    return fma32_rm(a, b, c)


@site
@quiet
def fma(a, b, c) -> np.ndarray:
    """a * b + c rounded once to f32, to nearest even (CUDA `__fmaf_rn`)."""
    return _fma(operand(a), operand(b), operand(c))


@site
@quiet
def fma_rm(a, b, c) -> np.ndarray:
    """a * b + c rounded once to f32, toward -inf (PTX `fma.rm.f32`)."""
    return _fma_rm(operand(a), operand(b), operand(c))
