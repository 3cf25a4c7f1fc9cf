"""The tensor core of sm_90: `mma.sync.m16n8k16` bf16 -> f32, and the GEMM that chains it.

One instruction is one fused dot product of 16 products and an accumulator. Every term is aligned to the largest exponent and truncated, the sum
is exact, the result is truncated. `define_dot16` and `define_gemm` say this in NumPy; `dot16` and `gemm` are the words, compiled from `mma_fast`.
Source: measured on an H200; `goldens/hardware/sm_90/mma_*.npz` holds 168,960 of the results.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from references.arith import mma_fast
from references.arith.bits import bf
from references.arith.site import planted, site

FRACTION = 25  # bits kept below the alignment exponent
FLOOR = -133  # the alignment exponent is never lower
NAN = np.uint32(0x7FFFFFFF)


def define_dot16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The definition of `dot16`: same arguments, same bits."""
    a, b, c, _ = _dot16_operands(a, b, c)
    (sa, ea), (sb, eb), (sc, ec) = _split(a, 7), _split(b, 7), _split(c.view(np.uint32), 23)
    product, exponent = sa * sb, ea + eb  # not normalised: 1.5 * 1.5 keeps the exponent 0
    # A zero takes no part in the maximum, whatever exponent its other factor has.
    align = np.maximum(np.where(product != 0, exponent, FLOOR).max(axis=-1), np.where(sc != 0, ec, FLOOR))
    align = np.maximum(align, FLOOR)
    total = _shift(product, FRACTION - 14 + exponent - align[..., None]).sum(axis=-1) + _shift(sc, FRACTION - 23 + ec - align)
    result = _toward_zero(np.ldexp(total.astype(np.float64), align - FRACTION))
    return np.where(_special(a, b, c), _ieee_sum(a, b, c), result)


def define_gemm(a: np.ndarray, b: np.ndarray, splits: int = 1) -> np.ndarray:
    """The definition of `gemm`: same arguments, same bits."""
    a, b = _gemm_operands(a, b, splits)
    a, b = a.view(ml_dtypes.bfloat16), b.view(ml_dtypes.bfloat16)
    out = np.zeros((splits, len(a), len(b)), np.float32)
    part = a.shape[1] // splits
    for s in range(splits):
        for k in range(s * part, (s + 1) * part, 16):
            out[s] = define_dot16(a[:, None, k : k + 16], b[None, :, k : k + 16], out[s])
    return out


@site
def dot16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """One tensor-core dot-product-add: sum of a * b over the last axis, plus c.

    a, b: [..., 16] bfloat16, or f32 holding bf16 values. c: [...] f32. Leading axes broadcast. Returns [...] f32.
    Subnormals are exact; a zero result is +0; overflow is inf; NaN, inf - inf and 0 * inf are 0x7fffffff.
    Raises ValueError naming the argument that has the wrong shape or type, or an f32 value that is not bf16.
    """
    a, b, c, shape = _dot16_operands(a, b, c)
    a, b, c = np.broadcast_to(a, (*shape, 16)), np.broadcast_to(b, (*shape, 16)), np.broadcast_to(c, shape)
    out = np.empty(c.size, np.float32)
    mma_fast.dots(*(mma_fast.frozen(x.reshape(last)) for x, last in ((a, (-1, 16)), (b, (-1, 16)), (c, -1))), out)
    return out.reshape(shape)


@site
def gemm(a: np.ndarray, b: np.ndarray, splits: int = 1) -> np.ndarray:
    """Tensor-core chains a @ b.T: f32 partials [splits, m, n], not merged.

    a: [m, k], b: [n, k] bfloat16, or f32 holding bf16 values. The k range is cut into `splits` equal parts, and each part is walked in ascending
    blocks of 16 from +0. k must be a multiple of 16 * splits (ValueError otherwise). A kernel that fills its last block with zeros is emulated
    by zero-padding the k axis of both operands: this is exact, as a product of zeros changes neither the sum nor its alignment.
    """
    a, b = _gemm_operands(a, b, splits)
    out = np.zeros((splits, len(a), len(b)), np.float32)
    mma_fast.accumulate(a, b, out)
    return out


@site
def gemm_from(acc: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Tensor-core chains continued: acc + a @ b.T, batched over equal leading axes, k in ascending blocks of 16.

    acc: f32 that broadcasts to [..., m, n], as 0 does; a: [..., m, k], b: [..., n, k] bfloat16, or f32 holding bf16 values. Returns f32 [..., m, n].
    k must be a multiple of 16 (ValueError otherwise).
    """
    a, b = _bf16_bits("a", a), _bf16_bits("b", b)
    if a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"b has the leading axes {list(b.shape[:-2])}, but a has {list(a.shape[:-2])}")
    out = np.array(np.broadcast_to(np.asarray(acc, np.float32), (*a.shape[:-1], b.shape[-2])), order="C")
    for at in np.ndindex(a.shape[:-2]):
        mma_fast.accumulate(*_gemm_bits(a[at], b[at], 1), out[at][None])
    return out


def _split(bits: np.ndarray, fraction: int) -> tuple[np.ndarray, np.ndarray]:
    """Signed significand and exponent of a float with an 8-bit exponent: value = significand * 2^(exponent - fraction)."""
    bits = bits.astype(np.int64)
    field = bits >> fraction & 255
    significand = bits & (1 << fraction) - 1 | (field > 0).astype(np.int64) << fraction
    return np.where(bits >> fraction + 8, -significand, significand), np.maximum(field, 1) - 127


def _shift(x: np.ndarray, left: np.ndarray) -> np.ndarray:
    """x * 2^left, truncated toward zero. 63 places to the right leave nothing of any term."""
    magnitude = abs(x) << np.maximum(left, 0) >> np.minimum(np.maximum(-left, 0), 63)
    return np.where(x < 0, -magnitude, magnitude)


def _toward_zero(x: np.ndarray) -> np.ndarray:
    """f64 -> f32 by truncation; from 2^128 up infinity; every zero is +0."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = x.astype(np.float32)
    beyond = (abs(nearest.astype(np.float64)) > abs(x)) & (abs(x) < 2.0**128)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest) + np.float32(0)


def _special(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return ~(np.isfinite(_f32(a)) & np.isfinite(_f32(b))).all(axis=-1) | ~np.isfinite(c)


def _ieee_sum(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """What infinities and NaN sum to. In f64 no finite product overflows."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = (_f32(a).astype(np.float64) * _f32(b)).sum(axis=-1) + c
        return np.where(np.isnan(total), NAN.view(np.float32), total.astype(np.float32))


def _f32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _bf16_bits(name: str, x: np.ndarray) -> np.ndarray:
    """The bf16 patterns of an operand, u16."""
    x = np.asarray(x)
    if x.dtype == ml_dtypes.bfloat16:
        return np.ascontiguousarray(x).view(np.uint16).reshape(x.shape)
    if x.dtype != np.float32:
        raise ValueError(f"{name} must be bfloat16 or float32, not {x.dtype}")
    bits = np.empty(x.shape, np.uint16)
    at = mma_fast.narrow(mma_fast.frozen(x.reshape(-1)), bits.reshape(-1))
    if at >= 0 and planted():  # whatever a mistake leaves unlanded, the instruction takes bf16
        return _bf16_bits(name, bf.word(x))
    if at >= 0:
        raise ValueError(f"{name} holds {float(x.flat[at])!r}, which is not a bf16 value")
    return bits


def _dot16_operands(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """The checked operands, a and b as bits, and the shape of the result."""
    a, b, c = _bf16_bits("a", a), _bf16_bits("b", b), np.asarray(c)
    for name, x in (("a", a), ("b", b)):
        if x.ndim < 1 or x.shape[-1] != 16:
            raise ValueError(f"{name} must be [..., 16], not {list(x.shape)}")
    if c.dtype != np.float32:
        raise ValueError(f"c must be float32, not {c.dtype}")
    try:
        shape = np.broadcast_shapes(a.shape[:-1], b.shape[:-1], c.shape)
    except ValueError:
        raise ValueError(f"a {list(a.shape)}, b {list(b.shape)} and c {list(c.shape)} do not broadcast") from None
    return a, b, c, shape


def _gemm_operands(a: np.ndarray, b: np.ndarray, splits: int) -> tuple[np.ndarray, np.ndarray]:
    return _gemm_bits(_bf16_bits("a", a), _bf16_bits("b", b), splits)


def _gemm_bits(a: np.ndarray, b: np.ndarray, splits: int) -> tuple[np.ndarray, np.ndarray]:
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 2:
            raise ValueError(f"{name} must be [rows, k], not {list(x.shape)}")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"b has k = {b.shape[1]}, but a has k = {a.shape[1]}")
    if not isinstance(splits, int | np.integer) or splits < 1:
        raise ValueError(f"splits must be a positive integer, not {splits!r}")
    if a.shape[1] % (16 * splits):
        raise ValueError(f"k = {a.shape[1]} of a is not a multiple of 16 * splits = {16 * splits}; pad the k axis of a and b with zeros")
    return a, b
