"""What the words of f32 and bf16 are held to: Python integers, rounded once; and the operands they are tried on."""

from __future__ import annotations

import numpy as np

SPECIAL = "0 1 2 7FFFFF 800000 800001 33800000 3F7FFFFF 3F800000 3F800001 40400000 7F000000 7F7FFFFF 7F800000 7FC00000"
SPECIAL = np.array([int(word, 16) for word in SPECIAL.split()], np.uint32)
SPECIAL = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31)]).view(np.float32)


def u32(x) -> np.ndarray:
    """Bits of an f32 array, with one pattern for every NaN."""
    x = np.asarray(x, np.float32)
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), x.view(np.uint32))


def random_f32(rng, n: int, low: int = 0, high: int = 255) -> np.ndarray:
    """Random sign and significand; exponent fields in [low, high)."""
    return (rng.integers(0, 2, n) << 31 | rng.integers(low, high, n) << 23 | rng.integers(0, 1 << 23, n)).astype(np.uint32).view(np.float32)


def significand(x: np.ndarray) -> tuple[list[int], list[int]]:
    """x = m * 2^e with integers, for finite f32 or f64."""
    m, e = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(m, 53).astype(np.int64).tolist(), (e - 53).tolist()


def nearest(total: int, e: int, down: bool, precision: int, lowest: int) -> int:
    """Pattern of total * 2^e rounded to `precision` bits, no finer than 2^lowest, with an 8-bit exponent; to even, or toward -inf."""
    size = abs(total)
    grid = max(size.bit_length() + e - precision, lowest)
    shift = grid - e
    q = size >> shift if shift > 0 else size << -shift
    rest = size - (q << shift) if shift > 0 else 0
    if rest:
        half = 1 << (shift - 1)
        q += (total < 0) if down else rest > half or (rest == half and q & 1)
    pattern, infinity = ((grid - lowest) << (precision - 1)) + q, 0xFF << (precision - 1)
    if pattern >= infinity:
        pattern = infinity - (down and total > 0)
    return pattern | (total < 0) << (precision + 7)


def exact_fma(a, b, c, down: bool = False, precision: int = 24, lowest: int = -149) -> np.ndarray:
    """Patterns of a * b + c for finite f32 operands."""
    out = np.empty(a.size, np.uint32)
    negative = (np.signbit(a) ^ np.signbit(b)).tolist(), np.signbit(c).tolist()
    for i, (ma, ea, mb, eb, mc, ec, minus_ab, minus_c) in enumerate(zip(*significand(a), *significand(b), *significand(c), *negative, strict=True)):
        e = min(ea + eb, ec) if ma and mb and mc else ea + eb if ma and mb else ec
        total = ((ma * mb << (ea + eb - e)) if ma and mb else 0) + ((mc << (ec - e)) if mc else 0)
        if total:
            out[i] = nearest(total, e, down, precision, lowest)
        else:
            out[i] = ((minus_ab or minus_c) if down else (minus_ab and minus_c)) << (precision + 7)
    return out
