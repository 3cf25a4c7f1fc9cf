"""What the convolutions share: directed channels (the four inputs of a window and their taps, a column each) and what no channel can show."""

from __future__ import annotations

import numpy as np

from references.arith import add, as_f32, asc, bf, fma, zero
from references.contract.inputs import BF16, F32, from_bits, near_ties, patterns, spread, values

BLIND = {
    "S1.add:landed": "the input is landed at once",
    "S5.sigmoid.sub:landed": "0 - sb is a bf16 already",
    "S5.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S5.sigmoid.exp:flushed": "a subnormal vanishes in 1 + exp",
    "S5.sigmoid.exp:fast_exp": "all 65,536 landed sums give the same y",
    "S5.sigmoid.add:flushed": "1 + exp is never below 1",
    "S5.sigmoid.div:reciprocal": "a product with 1 is exact: 1 * (1 / x)",
    "S6.mul:landed": "the product is landed at once",
    "S6.bf:skipped": "the store rounds as the landing does",
}

Channels = tuple[np.ndarray, np.ndarray, np.ndarray]  # carry bf16 [3, n] oldest first, p f32 [n], taps f32 [n, 4]


def channels(*columns: tuple) -> Channels:
    """Each column is ((w0, w1, w2, p), (tap0, tap1, tap2, tap3)): numbers."""
    window, taps = (np.array([column[i] for column in columns], np.float64) for i in range(2))
    return values(window[:, :3].T), values(window[:, 3], F32), values(taps, F32)


def both_signs(carry: np.ndarray, p: np.ndarray, taps: np.ndarray) -> Channels:
    """The channels, and the same with every input negated."""
    return np.concatenate([carry, -carry], 1), np.concatenate([p, -p]), np.concatenate([taps, taps])


def minus_zero() -> Channels:
    ones = (1, 1, 1, 1)
    return channels(((-0.0, -0.0, -0.0, -0.0), ones), ((-0.0, -0.0, -0.0, 0.0), (1, 1, 1, -1)), ((0, 0, 0, -(2.0**-149)), ones))


def ties() -> Channels:
    """Partials with lower halves around 0x8000, then sums of a bf16 and half its last place, one bf16 to either side too."""
    upper = np.array([0x3F80, 0x3F81, 0x3FFF, 0x4049, 0x0080, 0x7F7E])
    p = from_bits((upper[:, None] << 16 | np.array([0x7FFF, 0x8000, 0x8001])).reshape(-1), F32)
    alone = np.zeros((3, p.size), BF16), p, np.tile(values([0, 0, 0, 1], F32), (p.size, 1))
    sums = channels(*(((0, 0, high, 2.0**-8 * part), (0, 0, 1, 1)) for high in (1, 1 + 2.0**-7) for part in (1 - 2.0**-8, 1, 1 + 2.0**-7)))
    return both_signs(*side_by_side(alone, sums))


def fused() -> Channels:
    """1.5 units of 2^-149 on top of 0x00027FFF: fused it is the tie 0x00028000, unfused 0x00028001. 1.5 * 2^128 less the largest bf16 is finite."""
    unit, largest = 2.0**-149, float(from_bits([0x7F7F])[0])
    return channels(((0, 0, 1, 1.5 * 2.0**-75), (0, 0, 0x27FFF * unit, 2.0**-74)), ((0, 0, -largest, 1.5 * 2.0**64), (0, 0, 1, 2.0**64)),
                    ((0, 0, -1.015625, 1.0078125), (0, 0, 1, 1.0078125)))


def order() -> Channels:
    big, half, tie = 2.0**30, 2.0**-24, 2.0**-8
    ones = (1, 1, 1, 1)
    windows = (big, 1, -big, 1), (1 + 2.0**-7, tie, half, half), (half, half, tie, 1), (1, tie, -1, 0)
    return both_signs(*channels(*((window, ones) for window in windows)))


def subnormal() -> Channels:
    """Inputs that land below 2^-126, and products and sums there of inputs that do not."""
    unit = 2.0**-149
    alone = [((0, 0, 0, count * unit), (0, 0, 0, 1)) for count in (0x1, 0x8000, 0x8001, 0x18000, 0x28000, 0x7F8000, 0x7FFFFF, 0x800000)]
    made = [((0, 0, 2.0**-66, 2.0**-64), (0, 0, 2.0**-66, 1.5 * 2.0**-64)), ((2.0**-126, 0, -(2.0**-127), 0), (1, 0, 1, 0)),
            ((2.0**-100, 2.0**-100, 0, 1), (2.0**-30, -(2.0**-30), 0, 2.0**-126))]
    return both_signs(*channels(*alone, *made))


def special() -> Channels:
    """NaN payloads that truncation would lose; an overflow in the landing, in a product, in the sum; inf - inf; inf * 0; silu of -inf."""
    p = from_bits([0x7F80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7F7F_FFFF, 0x7F7F_8000, *[0x3F80_0000] * 3], F32)
    last = from_bits([0x0000, 0x0000, 0x0000, 0xFF80, 0x0000, 0x7F7F, 0x0000, 0x7F80, 0xFF80, 0x7FC0])
    taps = values([[0, 0, 1, 1]] * 7 + [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]], F32)
    return np.stack([np.zeros_like(last), np.zeros_like(last), last]), p, taps


def finite_first() -> np.ndarray:
    """All 65,536 bf16 patterns as f32, infinities and NaN at the end."""
    x = as_f32(from_bits(np.arange(65536)))
    return x[np.argsort(~np.isfinite(x), kind="stable")]


def near(seed: int, n: int, within: int) -> Channels:
    """Of n random channels those whose sum lies within so many f32 steps of a bf16 midpoint."""
    carry, p, taps = spread(3 * seed, (3, n), -4, 2), spread(3 * seed + 1, (n,), -4, 2, F32), spread(3 * seed + 2, (n, 4), -4, 2, F32)
    window = [*as_f32(carry), bf(add(zero(p), p))]
    total = zero(p)
    for j in asc(4):
        total = fma(window[j], taps[:, j], total)
    found = near_ties(total, within)
    return carry[:, found], p[found], taps[found]


def tiny(seed: int, n: int) -> Channels:
    """Inputs and taps whose products lie around the smallest f32."""
    return spread(3 * seed, (3, n), -70, -58), spread(3 * seed + 1, (n,), -70, -58, F32), spread(3 * seed + 2, (n, 4), -70, -58, F32)


def any_bits(seed: int, n: int) -> Channels:
    return patterns(3 * seed, (3, n)), patterns(3 * seed + 1, (n,), F32), patterns(3 * seed + 2, (n, 4), F32)


def side_by_side(*parts: Channels) -> Channels:
    carry, p, taps = zip(*parts, strict=True)
    return np.concatenate(carry, 1), np.concatenate(p), np.concatenate(taps)
