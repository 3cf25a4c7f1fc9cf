"""`references.arith.bits` and `.quant` against exact integer arithmetic, exhaustively where a format is small enough."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from references.arith import bits as B
from references.arith import ieee as I
from references.arith import move as M
from references.arith import quant as Q

BF16 = np.arange(1 << 16, dtype=np.uint16)
NAN16 = (BF16 & 0x7FFF) > 0x7F80
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


# ---- the independent route: Python integers


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


# ---- fused multiply-add


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


# ---- small formats


@pytest.mark.parametrize(
    ("decode", "count", "theirs"),
    [(Q.e4m3_decode, 256, ml_dtypes.float8_e4m3fn), (Q.e2m1_decode, 16, ml_dtypes.float4_e2m1fn), (Q.e8m0_decode, 256, ml_dtypes.float8_e8m0fnu)],
)
def test_every_code_decodes(decode, count, theirs):
    code = np.arange(count, dtype=np.uint8)
    assert np.array_equal(u32(decode(code)), u32(code.view(theirs).astype(np.float32)))


@pytest.mark.parametrize(
    ("encode", "decode", "largest", "sign"), [(Q.e4m3_encode, Q.e4m3_decode, 0x7E, 0x80), (Q.e2m1_encode, Q.e2m1_decode, 7, 8)]
)
def test_every_code_and_midpoint_encodes(encode, decode, largest, sign):
    k = np.arange(largest, dtype=np.uint8)
    value = decode(np.arange(largest + 1, dtype=np.uint8))
    tie = (value[:-1].astype(np.float64) + value[1:]) / 2
    x = np.concatenate([value, tie, np.nextafter(tie, 0), np.nextafter(tie, 999), [1e300, np.inf, 5e-324]])
    want = np.concatenate([np.arange(largest + 1), k + (k & 1), k, k + 1, [largest, largest, 0]])
    assert np.array_equal(encode(x), want) and np.array_equal(encode(-x), want | sign)
    with np.errstate(over="ignore"):
        narrow = x.astype(np.float32)
    assert np.array_equal(encode(narrow[x == narrow]), want[x == narrow])
    assert np.any(encode(narrow) != want)  # f64 neighbours of a tie see a second rounding


def test_e8m0_takes_powers_of_two_only():
    code = np.arange(256, dtype=np.uint8)
    assert np.array_equal(Q.e8m0_encode(Q.e8m0_decode(code)), code)
    for bad in (0.0, -1.0, 3.0, np.inf, 2.0**-128, 2.0**128):
        with pytest.raises(ValueError, match="scale: a power of two"):
            Q.e8m0_encode(np.array([1.0, bad]))


def test_small_formats_refuse():
    with pytest.raises(ValueError, match="NaN"):
        Q.e2m1_encode(np.array([np.nan]))
    with pytest.raises(ValueError, match="uint8 up to 15"):
        Q.e2m1_pack(np.array([1, 16], np.uint8))
    with pytest.raises(ValueError, match="even last axis"):
        Q.e2m1_pack(np.array([1], np.uint8))
    with pytest.raises(ValueError, match="group"):
        Q.quant(np.zeros((1, 6), np.float32), 4)


def test_quant_scales():
    over = np.nextafter(np.float32(448), np.float32(999))
    x = np.array([[448, -448, 1, 0], [over, 3, 0.1, 0], [0, -0.0, 0, 0], [224, 1e-9, -17, 0.3], [np.nan, 1, 448, 0]], np.float32)
    q, scale = Q.quant(x, 4)
    assert np.array_equal(scale[:, 0], np.float32([1, 2, 2.0**-42, 0.5, 1]))
    assert np.array_equal(u32(q[0]), u32([448, -448, 1, 0])) and np.array_equal(u32(q[2]), u32([0, -0.0, 0, 0]))
    assert np.array_equal(u32(q[1]), u32([224, 1.5, 0.05078125, 0])) and np.array_equal(u32(q[4]), u32([np.nan, 1, 448, 0]))
    exponent = np.random.default_rng(3).integers(1, 254, 10_000)
    y = np.abs(random_f32(np.random.default_rng(4), 10_000, 1, 254))
    up = Q.round_up_pow2(y)
    assert np.all((up >= y) & (up / 2 < y) & (np.frexp(up)[0] == 0.5))
    exact = np.ldexp(np.float32(1), exponent - 127)
    assert np.array_equal(Q.round_up_pow2(exact), exact)


# ---- faults seen in real kernels


def test_c39_fp8_saturates():
    x = np.array([448, 464, 464.0001, 465, 1e9, np.inf])
    assert np.all(Q.e4m3_encode(x) == 0x7E) and np.all(Q.e4m3_encode(-x) == 0xFE)
    assert np.all(Q.e4m3_encode(np.array([np.nan, -np.nan])) == 0x7F)
    assert np.any(x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) != 0x7E)  # the trap: ml_dtypes makes these NaN


def test_c41_nibbles_are_pairs():
    code = np.tile(np.arange(16, dtype=np.uint8), 2)
    pairs = Q.e2m1_pack(code)
    assert pairs.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2
    assert np.array_equal(Q.e2m1_unpack(pairs), code)
    assert np.any(pairs != (code[:16] | code[16:] << 4))  # the split order


def test_c51_maximum_keeps_the_sign_of_zero():
    zero, nan, lowest = np.array([0, -0.0], np.float32), np.float32(np.nan), -np.finfo(np.float32).max
    assert np.array_equal(u32(I.maximum(zero[:, None], zero)), u32([[0, 0], [0, -0.0]]))
    assert I.maximum(nan, np.float32(1)) == I.maximum(np.float32(1), nan) == 1 and np.isnan(I.maximum(nan, nan))
    assert u32(I.maximum(np.float32(-0.0), lowest)) == 0x80000000
    rows = np.array([[-0.0, lowest], [-0.0, 0], [0, -0.0], [-0.0, -0.0], [nan, -1], [nan, nan]], np.float32)
    want = [0x80000000, 0, 0, 0x80000000, 0xBF800000, 0x7FFFFFFF]
    assert u32(I.amax(rows)).tolist() == u32(I.maximum(rows[:, 0], rows[:, 1])).tolist() == want


def test_c52_nan_stays_nan():
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FC00000], np.uint32).view(np.float32)
    assert np.all(B.to_bits(B.bf(x)) == 0x7FFF)
    assert np.all(B.bf(x).view(np.uint32) == 0x7FFF0000)
    assert np.any(x.view(np.uint32) >> 16 << 16 == 0x7F800000)  # the trap: truncation makes one of them infinite


def test_c54_ties_go_to_even():
    assert B.to_bits(B.bf(np.array([1.01953125]))) == 0x3F82
    tie = np.arange(0x7F80, dtype=np.uint32) << 16 | 0x8000
    away = (tie + 0x8000) >> 16
    assert np.count_nonzero(B.bf(tie.view(np.float32)).view(np.uint32) >> 16 != away) == 0x7F80 // 2
