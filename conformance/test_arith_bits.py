"""`references.arith.bits`, `.ieee` and `.move` against exact integer arithmetic, exhaustively where a format is small enough."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from conformance.exact import SPECIAL, exact_fma, nearest, significand, u32
from references.arith import bits as B
from references.arith import ieee as I
from references.arith import move as M

BF16 = np.arange(1 << 16, dtype=np.uint16)
NAN16 = (BF16 & 0x7FFF) > 0x7F80


# ---- landing


@pytest.mark.parametrize("land", [B.bf, B.bf_defined])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_bf16_lands_on_itself(land, dtype):
    with np.errstate(invalid="ignore"):
        x = B.from_bits(BF16).astype(dtype)
    assert np.array_equal(land(x).view(np.uint32) >> 16, np.where(NAN16, 0x7FFF, BF16))


def midpoints() -> tuple[np.ndarray, np.ndarray]:
    """Between every two neighbours up to infinity, both signs: f64 values at the tie and beside it by an ulp of f32 and of f64; bf16 patterns."""
    k = np.arange(0x7F80, dtype=np.uint32)
    tie32 = (k << 16 | 0x8000).view(np.float32)
    tie = tie32.astype(np.float64)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    below = [np.nextafter(tie32, down).astype(np.float64), np.nextafter(tie, -np.inf)]
    above = [np.nextafter(tie32, up).astype(np.float64), np.nextafter(tie, np.inf)]
    x = np.concatenate([tie, *below, *above])
    want = np.concatenate([k + (k & 1), k, k, k + 1, k + 1])
    return np.concatenate([x, -x]), np.concatenate([want, want | 0x8000])


@pytest.mark.parametrize("land", [B.bf, B.bf_defined])
def test_every_midpoint(land):
    x, want = midpoints()
    assert np.array_equal(land(x).view(np.uint32) >> 16, want)
    exact = x == x.astype(np.float32)
    assert np.array_equal(land(x[exact].astype(np.float32)).view(np.uint32) >> 16, want[exact])


def test_midpoints_see_a_second_rounding():
    x, want = midpoints()
    assert np.count_nonzero(B.to_bits(B.bf(x.astype(np.float32))) != want) > 60_000
    with np.errstate(over="ignore"):
        assert np.count_nonzero(x.astype(ml_dtypes.bfloat16).view(np.uint16) != want) > 60_000


def test_landing_random_values_against_integers():
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.uniform(-1, 1, 50_000), rng.integers(-160, 132, 50_000))
    want = [nearest(m, e, False, 8, -133) for m, e in zip(*significand(x), strict=True)]
    assert np.array_equal(B.to_bits(B.bf(x)), want)
    assert np.array_equal(u32(B.bf(x)), u32(B.bf_defined(x)))


def test_landing_random_bits():
    x = np.random.default_rng(2).integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32)
    assert np.array_equal(B.bf(x).view(np.uint32), B.bf_defined(x).view(np.uint32))
    x = x[~np.isnan(x)]
    assert np.array_equal(B.to_bits(B.bf(x)), x.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_landing_shapes():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 3
    assert np.array_equal(B.bf(x[:, ::-1, ::2]), B.bf(np.ascontiguousarray(x[:, ::-1, ::2])))
    assert B.bf(x[:0]).shape == (0, 3, 4)
    assert B.bf(np.float32(1.01)).dtype == np.float32


@pytest.mark.parametrize("word", [B.bf, B.to_bits, B.as_f32, I.sqrt])
def test_other_types_are_refused(word):
    with pytest.raises(ValueError, match="float32 expected, got float16"):
        word(np.zeros(2, np.float16))
    with pytest.raises(ValueError, match="float32 expected, got uint16"):
        word(np.zeros(2, np.uint16))


# ---- other words


@pytest.mark.parametrize("word", [B.hadd, B.hmul])
def test_bf16_arithmetic_against_integers(word):
    rng = np.random.default_rng(5)
    a, b = B.from_bits(rng.integers(0, 1 << 16, (2, 100_000), dtype=np.uint16))
    flips = rng.integers(0, 1 << 11, 50_000) | rng.integers(0, 2, 50_000) << 15  # a neighbour within 16 binades, of either sign
    near = B.from_bits(((a[:50_000].view(np.uint32) >> 16) ^ flips).astype(np.uint16))
    small = B.from_bits(rng.integers(0x1C00, 0x2100, 50_000, dtype=np.uint16))  # products about the smallest normal and below
    a, b = np.concatenate([a, a[:50_000], small]), np.concatenate([b, near, small[::-1]])
    keep = np.isfinite(a) & np.isfinite(b)
    a, b = a[keep], b[keep]
    if word is B.hadd:
        want = exact_fma(a, np.ones_like(a), b, False, 8, -133)
    else:
        zero = np.where(np.signbit(a) ^ np.signbit(b), np.float32(-0.0), np.float32(0))
        want = exact_fma(a, b, zero, False, 8, -133)
    assert np.array_equal(word(a, b).view(np.uint32) >> 16, want)
    with np.errstate(all="ignore"):
        truncated = (a + b if word is B.hadd else a * b).view(np.uint32) >> 16
    assert np.any(truncated != want)


def test_bf16_arithmetic_special_operands():
    a, b = (x.ravel() for x in np.meshgrid(B.bf(SPECIAL), B.bf(SPECIAL)))
    wide = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        assert np.array_equal(B.hadd(a, b).view(np.uint32), B.bf_defined(wide[0] + wide[1]).view(np.uint32))
        assert np.array_equal(B.hmul(a, b).view(np.uint32), B.bf_defined(wide[0] * wide[1]).view(np.uint32))
    assert B.to_bits(B.hadd(np.float32(np.inf), np.float32(-np.inf))) == 0x7FFF


def test_plain_arithmetic_keeps_subnormals_and_takes_numbers():
    tiny = np.array([1], np.uint32).view(np.float32)
    assert u32(I.mul(tiny, 3)) == 3 and u32(I.add(tiny, tiny)) == 2 and u32(I.sub(tiny, tiny)) == 0
    assert u32(I.div(np.float32(1), 3)) == 0x3EAAAAAB and u32(I.sqrt(np.float32(2))) == 0x3FB504F3
    assert I.add(tiny, 0.1).dtype == np.float32
    with pytest.raises(ValueError, match="float64"):
        I.add(tiny, np.zeros(1))


def test_data_movement():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(u32(M.zero(x)), np.zeros((2, 3))) and np.array_equal(M.full(x, 2), np.full((2, 3), 2))
    assert np.array_equal(M.join([x, x], 1), np.hstack([x, x])) and np.array_equal(M.select(x, [2, 0], 1), x[:, [2, 0]])
    assert list(M.asc(3)) == [0, 1, 2]
    for index in ([-1], [3]):
        with pytest.raises(ValueError, match="index"):
            M.select(x, index, 1)


def test_codecs_of_bf16():
    stored = B.as_bf16(B.from_bits(BF16)).view(np.uint16)
    assert np.array_equal(stored, np.where(NAN16, 0x7FFF, BF16))
    assert np.array_equal(B.as_f32(BF16.view(ml_dtypes.bfloat16)).view(np.uint32), BF16.astype(np.uint32) << 16)
    with pytest.raises(ValueError, match=r"bf16 values expected, got .*1\.0000001"):
        B.as_bf16(np.array([1, 1.0000001], np.float32))


def test_ulp_distance():
    def distance(a, b, kind="bf16"):
        dtype = np.uint16 if kind == "bf16" else np.uint32
        return int(B.ulp_distance(np.array(a, dtype), np.array(b, dtype), kind))

    assert distance(0x3F81, 0x3F80) == 1 and distance(0xBF81, 0xBF80) == -1
    assert distance(0x8000, 0) == 0 and distance(1, 0x8001) == 2 and distance(0x7F80, 0x7F7F) == 1
    assert distance(0x7F800000, 0xFF800000, "f32") == 2 * 0x7F800000
    assert distance(0x7FFF, 0x7FFF) == 0 and distance(0x7FFF, 0x7FC0) == distance(0, 0x7FFF) == B.NAN_DISTANCE
    with pytest.raises(ValueError, match="kind"):
        B.ulp_distance(BF16, BF16, "f16")
    with pytest.raises(ValueError, match="uint32 expected"):
        B.ulp_distance(BF16, BF16, "f32")


# ---- faults seen in real kernels


def test_maximum_keeps_the_sign_of_zero():
    zero, nan, lowest = np.array([0, -0.0], np.float32), np.float32(np.nan), -np.finfo(np.float32).max
    assert np.array_equal(u32(I.maximum(zero[:, None], zero)), u32([[0, 0], [0, -0.0]]))
    assert I.maximum(nan, np.float32(1)) == I.maximum(np.float32(1), nan) == 1 and np.isnan(I.maximum(nan, nan))
    assert u32(I.maximum(np.float32(-0.0), lowest)) == 0x80000000
    rows = np.array([[-0.0, lowest], [-0.0, 0], [0, -0.0], [-0.0, -0.0], [nan, -1], [nan, nan]], np.float32)
    want = [0x80000000, 0, 0, 0x80000000, 0xBF800000, 0x7FFFFFFF]
    assert u32(I.amax(rows)).tolist() == u32(I.maximum(rows[:, 0], rows[:, 1])).tolist() == want


def test_nan_stays_nan():
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FC00000], np.uint32).view(np.float32)
    assert np.all(B.to_bits(B.bf(x)) == 0x7FFF)
    assert np.all(B.bf(x).view(np.uint32) == 0x7FFF0000)
    assert np.any(x.view(np.uint32) >> 16 << 16 == 0x7F800000)  # the trap: truncation makes one of them infinite


def test_ties_go_to_even():
    assert B.to_bits(B.bf(np.array([1.01953125]))) == 0x3F82
    tie = np.arange(0x7F80, dtype=np.uint32) << 16 | 0x8000
    away = (tie + 0x8000) >> 16
    assert np.count_nonzero(B.bf(tie.view(np.float32)).view(np.uint32) >> 16 != away) == 0x7F80 // 2
