"""`references.arith.quant`: every code of the small formats, every midpoint between two, and the scales of groups."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from conformance.exact import random_f32, u32
from references.arith import quant as Q


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


def test_fp8_saturates():
    x = np.array([448, 464, 464.0001, 465, 1e9, np.inf])
    assert np.all(Q.e4m3_encode(x) == 0x7E) and np.all(Q.e4m3_encode(-x) == 0xFE)
    assert np.all(Q.e4m3_encode(np.array([np.nan, -np.nan])) == 0x7F)
    assert np.any(x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) != 0x7E)  # the trap: ml_dtypes makes these NaN


def test_nibbles_are_pairs():
    code = np.tile(np.arange(16, dtype=np.uint8), 2)
    pairs = Q.e2m1_pack(code)
    assert pairs.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2
    assert np.array_equal(Q.e2m1_unpack(pairs), code)
    assert np.any(pairs != (code[:16] | code[16:] << 4))  # the split order
