"""The unit in which deviations are told."""

from __future__ import annotations

import numpy as np

from references.contract.signature import DTYPES

SIGNIFICAND = {DTYPES["bf16"]: 7, DTYPES["f32"]: 23}  # stored bits
ROW = 2.0
LEAST = -126  # exponent of the smallest normal number of both


def distances(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """f64, the shape of `got`: |got - want| in ULP of got's dtype (bf16 or f32); `want` of the same shape, of any float dtype.

    An element's ULP is that of the largest of |got|, |want| and ROW times the RMS of its row (the last axis of `want`). What an element may be off
    is set by the terms it is summed from: where they cancel nearly to zero, their errors do not. So elements of a row, whose terms are alike, have
    alike errors, and get one unit: in a bell-shaped row twice the RMS is above 95 of 100 elements. The largest element of the row would give a unit
    about as large, but one outlier would hide the others; the element alone gives none: one of 2^-20 of its row is thousands of its own ULP off.
    Two NaN and two equal infinities are 0 apart, a number and one of these infinitely far.
    """
    got, bits = np.asarray(got), SIGNIFICAND[np.asarray(got).dtype]
    a, b = got.astype(np.float64), np.asarray(want, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"want must have shape {list(a.shape)}, got {list(b.shape)}")
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.maximum(np.abs(a), np.abs(b)), ROW * row_rms(b))
        apart = np.abs(a - b) / np.ldexp(1.0, exponent(size) - bits)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(a) & np.isfinite(b), apart, np.inf))


def row_rms(x: np.ndarray) -> np.ndarray:
    """[..., 1]: root mean square of the finite elements of each row, 0 where there are none."""
    finite = np.isfinite(x)
    squares = np.where(finite, x, 0.0) ** 2
    return np.sqrt(squares.sum(-1, keepdims=True) / np.maximum(finite.sum(-1, keepdims=True), 1))


def exponent(x: np.ndarray) -> np.ndarray:
    """floor(log2 |x|), not below that of the smallest normal number; of what is not finite any."""
    return np.maximum(np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1, LEAST)
