"""Inputs from raw integer hashes: the same bits on every machine and under every NumPy. Nothing here rounds."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import ml_dtypes
import numba
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)


@numba.njit("void(uint64, uint32[::1])", cache=True, nogil=True)
def _fill(seed, out):
    """splitmix64 of (seed, index), high half."""
    for i in range(out.size):
        z = (seed << np.uint64(40)) + (np.uint64(i) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = np.uint32((z ^ (z >> np.uint64(31))) >> np.uint64(32))


def hashed(seed: int, shape: Iterable[int]) -> np.ndarray:
    """uint32 of the given shape, equidistributed; `seed` below 2^24."""
    shape = tuple(shape)
    out = np.empty(prod(shape), np.uint32)
    _fill(np.uint64(seed), out)
    return out.reshape(shape)


def patterns(seed: int, shape: Iterable[int], dtype: np.dtype = BF16) -> np.ndarray:
    """Every bit pattern alike: NaN, infinities, subnormals and both zeros in their share."""
    raw = hashed(seed, shape)
    return (raw >> np.uint32(16)).astype(np.uint16).view(BF16) if dtype == BF16 else raw.view(F32)


def spread(seed: int, shape: Iterable[int], low: int, high: int, dtype: np.dtype = BF16) -> np.ndarray:
    """Random sign and significand, the exponent even over 2^low .. 2^high."""
    raw = hashed(seed, shape)
    exponent = np.uint32(127 + low) + (((raw >> np.uint32(23)) & np.uint32(255)) * np.uint32(high - low + 1) >> np.uint32(8))
    bits = (raw & np.uint32(0x807F_FFFF)) | (exponent << np.uint32(23))
    return from_bits(bits >> np.uint32(16)) if dtype == BF16 else bits.view(F32)


def ordinary(seed: int, shape: Iterable[int], scale: float = 1.0, dtype: np.dtype = BF16) -> np.ndarray:
    """Bell-shaped around 0 with deviation about `scale` (a power of two): what activations look like.

    The sum of four bytes is an exact multiple of 2^-7; f32 adds 13 lower bits; bf16 drops the bits it has no room for.
    """
    raw = hashed(seed, shape)
    total = sum((raw >> np.uint32(8 * i)) & np.uint32(255) for i in range(4)).astype(np.int32) - 510
    low = (raw * np.uint32(0x9E3779B1) >> np.uint32(19)).astype(np.int32)
    values = (total * 8192 + low).astype(np.float32) * np.float32(scale * 2.0**-20)
    return from_bits(values.view(np.uint32) >> np.uint32(16)) if dtype == BF16 else values


def from_bits(bits, dtype: np.dtype = BF16) -> np.ndarray:
    """Values from bit patterns: an array or (nested) list of integers."""
    return np.asarray(bits).astype(np.uint16 if dtype == BF16 else np.uint32).view(dtype)


def values(numbers, dtype: np.dtype = BF16) -> np.ndarray:
    """Exactly these numbers; ValueError for one that the dtype cannot hold."""
    wanted = np.asarray(numbers, np.float64)
    held = wanted.astype(np.float32).astype(dtype)
    if not np.array_equal(held.astype(np.float64), wanted, equal_nan=True):
        raise ValueError(f"numbers must be representable in {dtype.name}, got {numbers!r}")
    return held


def near_ties(x: np.ndarray, within: int) -> np.ndarray:
    """Where an f32 lies at most `within` f32 steps from the midpoint of two bf16 neighbours: there a last bit decides the landing."""
    below = (x.view(np.uint32) & np.uint32(0xFFFF)).astype(np.int64) - 0x8000
    return np.flatnonzero(np.isfinite(x) & (np.abs(below) <= within))
