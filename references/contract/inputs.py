"""Inputs from raw integer hashes: the same bits on every machine and under every NumPy. Nothing here rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import ml_dtypes
import numba
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
BLOCK = 1 << 17  # hashes mapped at a time


@numba.njit("void(uint64, uint64, uint32[::1])", cache=True, nogil=True)
def _fill(seed, start, out):
    """splitmix64 of (seed, index), high half, for the indices from `start` on."""
    for i in range(out.size):
        z = (seed << np.uint64(40)) + (start + np.uint64(i) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = np.uint32((z ^ (z >> np.uint64(31))) >> np.uint64(32))


def hashed(seed: int, shape: Iterable[int]) -> np.ndarray:
    """uint32 of the given shape, equidistributed; `seed` below 2^24."""
    return _mapped(seed, shape, F32, lambda raw: raw).view(np.uint32)


def _mapped(seed: int, shape: Iterable[int], dtype: np.dtype, bits: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Hashes mapped to f32 bits, block by block within the caches; a bf16 is the upper half of the f32."""
    out = np.empty(tuple(shape), dtype)
    flat = out.reshape(-1).view(np.uint16 if dtype == BF16 else np.uint32)
    for start in range(0, flat.size, BLOCK):
        raw = np.empty(min(BLOCK, flat.size - start), np.uint32)
        _fill(np.uint64(seed), np.uint64(start), raw)
        mapped = bits(raw)
        flat[start : start + BLOCK] = mapped >> np.uint32(16) if dtype == BF16 else mapped
    return out


def patterns(seed: int, shape: Iterable[int], dtype: np.dtype = BF16) -> np.ndarray:
    """Every bit pattern alike: NaN, infinities, subnormals and both zeros in their share."""
    return _mapped(seed, shape, dtype, lambda raw: raw)


def spread(seed: int, shape: Iterable[int], low: int, high: int, dtype: np.dtype = BF16) -> np.ndarray:
    """Random sign and significand, the exponent even over 2^low .. 2^high."""

    def bits(raw):
        exponent = np.uint32(127 + low) + (((raw >> np.uint32(23)) & np.uint32(255)) * np.uint32(high - low + 1) >> np.uint32(8))
        return (raw & np.uint32(0x807F_FFFF)) | (exponent << np.uint32(23))

    return _mapped(seed, shape, dtype, bits)


def ordinary(seed: int, shape: Iterable[int], scale: float = 1.0, dtype: np.dtype = BF16) -> np.ndarray:
    """Bell-shaped around 0 with deviation about `scale` (a power of two): what activations look like.

    The sum of four bytes is an exact multiple of 2^-7; f32 adds 13 lower bits; bf16 drops the bits it has no room for.
    """

    def bits(raw):
        total = sum((raw >> np.uint32(8 * i)) & np.uint32(255) for i in range(4)).view(np.int32) - np.int32(510)
        low = (raw * np.uint32(0x9E3779B1) >> np.uint32(19)).view(np.int32)
        return ((total * np.int32(8192) + low).astype(np.float32) * np.float32(scale * 2.0**-20)).view(np.uint32)

    return _mapped(seed, shape, dtype, bits)


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
