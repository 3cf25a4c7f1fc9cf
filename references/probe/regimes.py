"""Operands for the tensor core, by regime: a [tiles, 16, 16] and b [tiles, 8, 16] (as [n][k]) bf16, c [tiles, 16, 8] f32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from references.contract.inputs import BF16, F32, from_bits, hashed, patterns, spread

Tiles = tuple[np.ndarray, np.ndarray, np.ndarray]


def exponents(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> Callable[[int, int], Tiles]:
    """Random signs and significands, exponents even over the given ranges."""

    def tiles(seed: int, count: int) -> Tiles:
        return (spread(seed, (count, 16, 16), *a), spread(seed + 1, (count, 8, 16), *b), spread(seed + 2, (count, 16, 8), *c, F32))

    return tiles


def every_pattern(seed: int, count: int) -> Tiles:
    """All bit patterns, so that most results meet a NaN or an infinity somewhere."""
    return patterns(seed, (count, 16, 16)), patterns(seed + 1, (count, 8, 16)), patterns(seed + 2, (count, 16, 8), F32)


def subnormal(seed: int, count: int) -> Tiles:
    """One operand subnormal, the other near 1, and a subnormal accumulator."""
    _, b, c = exponents((0, 0), (-3, 3), (0, 0))(seed, count)
    low = from_bits(patterns(seed, (count, 16, 16)).view(np.uint16) & np.uint16(0x807F))
    return low, b, (c.view(np.uint32) & np.uint32(0x807F_FFFF)).view(F32)


def cancelling(seed: int, count: int) -> Tiles:
    """Products that cancel in pairs, most of them exactly: what is left is the accumulator, a signed zero, or a last bit."""
    a, b, c = exponents((-20, 20), (-20, 20), (-45, -5))(seed, count)
    a[..., 8:] = a[..., :8]
    b[..., 8:] = -b[..., :8]
    near = hashed(seed + 3, b[..., 8:].shape) < np.uint32(1 << 28)  # one in sixteen misses by a unit
    b[..., 8:] = from_bits(b[..., 8:].view(np.uint16) ^ near.astype(np.uint16))
    c[hashed(seed + 4, c.shape) < np.uint32(1 << 31)] = -0.0
    return a, b, c


def sparse(seed: int, count: int) -> Tiles:
    """Mostly zeros of both signs."""
    a, b, c = exponents((-20, 20), (-20, 20), (-20, 20))(seed, count)
    for operand, number, keep in ((a, 5, 28), (b, 6, 31), (c, 7, 30)):
        zeroed = hashed(seed + number, operand.shape) >> np.uint32(keep) != 0
        operand[zeroed] = np.copysign(operand[zeroed].astype(np.float32) * 0, operand[zeroed].astype(np.float32)).astype(operand.dtype)
    return a, b, c


def sprinkled(seed: int, count: int) -> Tiles:
    """Ordinary values with an infinity or a NaN here and there."""
    a, b, c = exponents((-4, 4), (-4, 4), (-4, 4))(seed, count)
    chosen = hashed(seed + 5, a.shape) < np.uint32(1 << 25)
    kinds = np.array([0x7F80, 0xFF80, 0x7FC0, 0x0000], np.uint16).view(BF16)
    a[chosen] = kinds[hashed(seed + 6, a.shape)[chosen] & np.uint32(3)]
    return a, b, c


def brink(seed: int, count: int) -> Tiles:
    """Accumulators at the largest finite value, products of about its last bit: finite and infinite lie next to each other."""
    a, b, c = exponents((48, 54), (44, 50), (127, 127))(seed, count)
    return a, b, (c.view(np.uint32) | np.uint32(0x007F_FFFC)).view(F32)


REGIMES: dict[str, Callable[[int, int], Tiles]] = {
    "ordinary": exponents((-8, 2), (-8, 2), (-8, 4)),
    "narrow": exponents((0, 0), (0, 0), (0, 4)),
    "wide": exponents((-20, 20), (-20, 20), (-40, 40)),
    "any_finite": exponents((-126, 127), (-126, 127), (-126, 127)),
    "tiny": exponents((-80, -60), (-80, -60), (-126, -115)),
    "huge": exponents((55, 66), (55, 66), (110, 127)),
    "brink": brink,
    "accumulator_leads": exponents((-8, 2), (-8, 2), (10, 26)),
    "accumulator_trails": exponents((-2, 4), (-2, 4), (-28, -14)),
    "every_pattern": every_pattern,
    "subnormal": subnormal,
    "cancelling": cancelling,
    "sparse": sparse,
    "sprinkled": sprinkled,
}
