"""The fused multiply-add of `references.arith.ieee` against exact integer arithmetic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from conformance.exact import SPECIAL, exact_fma, random_f32, u32
from references.arith import ieee as I


def triples(regime: str, n: int = 170_000) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(map(ord, regime)))
    a, b, c = (random_f32(rng, n) for _ in range(3))
    nudge = rng.integers(-2, 3, n)
    if regime == "close":
        a, b, c = random_f32(rng, n, 120, 134), random_f32(rng, n, 120, 134), random_f32(rng, n, 115, 139)
    if regime == "cancel":
        a, b = random_f32(rng, n, 40, 190), random_f32(rng, n, 40, 190)
        c = -((a * b).view(np.uint32) + nudge).astype(np.uint32).view(np.float32)
    if regime == "tie":  # the product is half an ulp of c, give or take one part in 2^24 to 2^46
        c, a = random_f32(rng, n, 70, 190), random_f32(rng, n, 100, 150)
        a = (a.view(np.uint32) & ~np.uint32(0x7FFFFF) | rng.integers(0, 3, n).astype(np.uint32)).view(np.float32)
        b = ((np.spacing(c) / 2 / a).view(np.uint32) + nudge).astype(np.uint32).view(np.float32)
    if regime == "tiny":
        a, c = random_f32(rng, n, 0, 130), random_f32(rng, n, 0, 3)
        b = np.ldexp(random_f32(rng, n, 125, 129), -127 - np.clip(np.frexp(a)[1], -127, 0) - rng.integers(0, 24, n))
    if regime == "huge":
        a, c = random_f32(rng, n, 127, 255), random_f32(rng, n, 230, 255)
        b = np.ldexp(random_f32(rng, n, 126, 128), 128 - np.frexp(a)[1])
    return [np.where(np.isfinite(x), x, np.float32(1)) for x in (a, b, c)]


def naive_fma(a, b, c):
    """Two roundings: to f64, then to f32."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


@pytest.mark.parametrize("regime", ["any", "close", "cancel", "tie", "tiny", "huge"])
def test_fma_against_integers(regime):
    with np.errstate(all="ignore"):
        a, b, c = triples(regime)
        naive, unfused = naive_fma(a, b, c), a * b + c
    want = exact_fma(a, b, c)
    assert np.array_equal(I.fma(a, b, c).view(np.uint32), want)
    assert np.array_equal(I.fma_defined(a, b, c).view(np.uint32), want)
    down = exact_fma(a, b, c, down=True)
    assert np.array_equal(I.fma_rm(a, b, c).view(np.uint32), down)
    assert np.array_equal(I.fma_rm_defined(a, b, c).view(np.uint32), down)
    assert np.any(down != want)
    if regime != "any":
        assert np.any(u32(unfused) != want)
    if regime == "tie":
        assert np.count_nonzero(u32(naive) != want) > 1000


def test_fma_special_operands():
    a, b, c = (np.array(x, np.float32) for x in zip(*itertools.product(SPECIAL, repeat=3), strict=True))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    with np.errstate(all="ignore"):
        limit = u32(naive_fma(a, b, c))  # exact where an operand is not finite
    for down, words in ((False, (I.fma, I.fma_defined)), (True, (I.fma_rm, I.fma_rm_defined))):
        want = limit.copy()
        want[finite] = exact_fma(a[finite], b[finite], c[finite], down)
        for word in words:
            assert np.array_equal(u32(word(a, b, c)), want), word.__name__


@pytest.mark.parametrize(
    ("a", "b", "c", "fused", "unfused"),
    [
        (1.5 * 2.0**-75, 2.0**-74, 2.0**-149, 0x00000002, 0x00000003),
        (1.5 * 2.0**64, 2.0**64, -3.3895e38, 0x7F01009B, 0x7F800000),
    ],
)
def test_fma_is_not_a_product_and_a_sum(a, b, c, fused, unfused):
    assert u32(I.fma(a, b, c)) == fused
    assert u32(I.add(I.mul(a, b), c)) == unfused
