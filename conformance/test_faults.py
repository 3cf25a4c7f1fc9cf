"""Each fault does what its sentence says: on inputs made by hand, the right bits and the wrong ones."""

import numpy as np
import pytest

from conformance.test_faults_experts import TESTED
from references import arith
from references.arith import faults
from references.arith.site import Laboratory, Visit
from references.contract.inputs import BF16, F32, from_bits

WORDS = {name: getattr(arith, name) for name in faults._FAULTS}
HALF = 2.0**-24  # half an ulp of 1: lost when added to 1 alone, not when two of them were added before


def f(*values):
    return np.array(values, F32)


def block(x):
    """A row of 16, zeros after x."""
    return np.pad(x, (0, 16 - x.size))[None]


def b(*patterns):
    return from_bits(patterns, F32)


def blocks(*firsts):
    """A row of blocks of 16, each with one number that is not zero."""
    return f(*(x for first in firsts for x in (first, *[0] * 15)))[None]


BLOCKS, ONES = blocks(HALF, HALF, 1), f(*[1] * 64)[None]

SMALL = 2.0**-12 * (1 + 2.0**-12)  # pieces 2^-12 and 2^-24
LATER = [np.concatenate([block(f(1)), block(f(*x))], axis=1) for x in ((SMALL, 1), (1, SMALL))]  # lo by hi and hi by lo are 2^-24 each
CANCELLING = [block(f(2.0**-12 * (1 - 2.0**-13), -(2.0**-12), 1, -1)), block(f(1, 1, SMALL, 2.0**-12))]  # lo by hi -2^-25, hi by lo 2^-24, hi by hi 0
MATRICES, COLUMN = [f(1, 2, 0, 3).reshape(2, 2), f(1, 1, 2, 3).reshape(2, 2)], f(1, 1, 1, 1)[:, None]

# word, fault, arguments, right bits, wrong bits
TABLE = [
    # 0x3F808000 is the tie of 0x3F80 and 0x3F81
    ("bf", "skipped", [b(0x3F808001)], [0x3F810000], [0x3F808001]),
    ("bf", "truncated", [b(0x3F808001, 0xBF808001, 0x7F7FFFFF)], [0x3F810000, 0xBF810000, 0x7F800000], [0x3F800000, 0xBF800000, 0x7F7F0000]),
    ("bf", "half_away", [b(0x3F808000, 0xBF808000, 0x00008000)], [0x3F800000, 0xBF800000, 0], [0x3F810000, 0xBF810000, 0x00010000]),
    ("bf", "flushed", [b(0x80010000)], [0x80010000], [0x80000000]),
    # f64 does not hold 1 - 2^-60
    ("hadd", "truncated", [f(1 + 2.0**-7, 1), f(2.0**-8, -(2.0**-60))], [0x3F820000, 0x3F800000], [0x3F810000, 0x3F7F0000]),
    ("hadd", "half_away", [f(1), f(2.0**-8)], [0x3F800000], [0x3F810000]),
    ("hadd", "flushed", [b(0x00020000), b(0x80010000)], [0x00010000], [0]),
    # 1.0078125 * 1.5 is the tie of 0x3FC1 and 0x3FC2, 1.0234375 * 1.5 that of 0x3FC4 and 0x3FC5
    ("hmul", "truncated", [f(1.0078125), f(1.5)], [0x3FC20000], [0x3FC10000]),
    ("hmul", "half_away", [f(1.0234375), f(1.5)], [0x3FC40000], [0x3FC50000]),
    ("hmul", "flushed", [f(2.0**-70), f(2.0**-60)], [0x00080000], [0]),
    ("add", "landed", [f(1), f(2.0**-10)], [0x3F802000], [0x3F800000]),
    ("add", "flushed", [b(0x00000003), b(0x80000001)], [0x00000002], [0]),
    ("sub", "landed", [f(1), f(2.0**-10)], [0x3F7FC000], [0x3F800000]),
    ("sub", "flushed", [b(0x00000001), b(0x00000003)], [0x80000002], [0x80000000]),
    ("mul", "landed", [f(1 + 2.0**-10), f(1)], [0x3F802000], [0x3F800000]),
    ("mul", "flushed", [f(2.0**-70), f(-(2.0**-70))], [0x80000200], [0x80000000]),
    ("div", "landed", [f(1), f(3)], [0x3EAAAAAB], [0x3EAB0000]),
    ("div", "flushed", [f(2.0**-100), f(2.0**40)], [0x00000200], [0]),
    ("div", "reciprocal", [f(5), f(3)], [0x3FD55555], [0x3FD55556]),
    ("div", "approximate", [f(1, 1), f(33, 2.0**127)], [0x3CF83E10, 0x00400000], [0x3CF83E0F, 0]),
    ("fma", "landed", [f(1), f(1), f(2.0**-10)], [0x3F802000], [0x3F800000]),
    ("fma", "flushed", [f(2.0**-70), f(2.0**-70), f(0)], [0x00000200], [0]),
    # a product of 1.5 units of 2^-149 beside one unit: 2.5 rounds to 2, 2 + 1 is 3
    ("fma", "unfused", [f(1.5 * 2.0**-75), f(2.0**-74), f(2.0**-149)], [0x00000002], [0x00000003]),
    ("exp", "landed", [f(1)], [0x402DF854], [0x402E0000]),
    ("exp", "flushed", [f(-100)], [0x0000001B], [0]),
    ("exp", "fast_exp", [f(50)], [0x638C881F], [0x638C8815]),
    ("tanh", "landed", [f(1)], [0x3F42F7D6], [0x3F430000]),
    ("tanh", "flushed", [b(0x80000001)], [0x80000001], [0x80000000]),
    ("tanh", "tanh_by_exp", [f(9, 44.375)], [0x3F7FFFFF, 0x3F800000], [0x3F800000, "NaN"]),
    ("log", "landed", [f(3)], [0x3F8C9F54], [0x3F8D0000]),
    ("rsqrt", "landed", [f(2)], [0x3F3504F2], [0x3F350000]),
    ("rsqrt", "exact_rsqrt", [f(2)], [0x3F3504F2], [0x3F3504F3]),
    ("sigmoid", "landed", [f(1)], [0x3F3B26A7], [0x3F3B0000]),
    ("sigmoid", "flushed", [f(-88)], [0x0041EDC4], [0]),
    ("sigmoid", "sigmoid_by_tanh", [f(1, -20)], [0x3F3B26A7, 0x310DA432], [0x3F3B26A8, 0]),
    ("ex2_approx", "landed", [f(0.5)], [0x3FB504F3], [0x3FB50000]),
    ("ex2_approx", "by_exp", [f(-50.7)], [0x261D961E], [0x261D961B]),
    # the tensor core truncates 1 + 1.5 ulp, an addition rounds it to even
    ("gemm_from", "apart", [f(1 + 2 * HALF), f(HALF, *[0] * 15)[None], f(*[1] * 16)[None]], [[0x3F800001]], [[0x3F800002]]),
    ("gemm_from", "backwards", [0, BLOCKS, np.ones((1, 48), F32)], [[0x3F800001]], [[0x3F800000]]),
    ("gemm_pieces", "one_piece", [0, block(f(1 + 2.0**-10)), block(f(1))], [[0x3F802000]], [[0x3F800000]]),
    ("gemm_pieces", "left_landed", [0, block(f(1 + 2.0**-10)), block(f(1))], [[0x3F802000]], [[0x3F800000]]),
    ("gemm_pieces", "right_landed", [0, block(f(1)), block(f(1 + 2.0**-10))], [[0x3F802000]], [[0x3F800000]]),
    ("gemm_pieces", "four_steps", [0, block(f(1 + 2.0**-10)), block(f(1 + 2.0**-10))], [[0x3F804000]], [[0x3F804008]]),
    ("gemm_pieces", "largest_first", [0, block(f(1, SMALL, 1)), block(f(1, 1, SMALL))], [[0x3F801001]], [[0x3F801000]]),
    ("gemm_pieces", "exchanged", [f(1), *CANCELLING], [[0x3F800000]], [[0x3F7FFFFF]]),
    ("gemm_pieces", "piece_by_piece", [0, *LATER], [[0x3F801000]], [[0x3F801001]]),
    ("gemm_pieces", "blocks_descending", [0, *LATER], [[0x3F801000]], [[0x3F801001]]),
    ("gemm_pieces", "added_after", [f(1 + 2 * HALF), block(f(HALF)), block(f(1))], [[0x3F800001]], [[0x3F800002]]),
    ("visible", "one_less", [range(3), 4, 3, 1], [0, 0x3F800000, 0x40000000], [0, 0, 0x3F800000]),
    ("visible", "one_more", [range(4), 4, 3, 1], [0, 0x3F800000, 0x40000000, 0x40400000], [0x3F800000, 0x40000000, 0x40400000, 0x40400000]),
    ("hide", "in_sight", [f(1, 2)[None], np.array([1]), 0], [[0x3F800000, 0xFF800000]], [[0x3F800000, 0x40000000]]),
    ("full", "from_zero", [f(1, 2), 3], [0x40400000, 0x40400000], [0, 0]),
    ("zero", "minus_zero", [f(1, 2)], [0, 0], [0x80000000, 0x80000000]),
    ("chain", "pairwise", [f(1, HALF, HALF, HALF)], 0x3F800000, 0x3F800001),
    ("chain_fma", "unseeded", [f(-1, 0), f(0, -1)], 0, 0x80000000),
    ("chain_fma", "from_the_end", [f(1, HALF, HALF), f(1)], 0x3F800000, 0x3F800001),
    ("chain_fma", "halves", [f(1, HALF, HALF, HALF), f(1)], 0x3F800000, 0x3F800001),
    ("chain_fma", "unfused_steps", [f(1, 1.5) * f(2.0**-75), f(2.0**-74)], 0x00000002, 0x00000003),
    ("chain_fma", "landed_steps", [f(1, 2.0**-10), f(1)], 0x3F802000, 0x3F800000),
    ("chain_fma", "flushed_steps", [f(2.0**-70), f(-(2.0**-70))], 0x80000200, 0x80000000),
    ("chain_matmul", "swapped", MATRICES, [[0x40A00000, 0x40E00000], [0x40C00000, 0x41100000]], [[0x3F800000, 0x40A00000], [0x40000000, 0x41500000]]),
    ("chain_matmul", "transposed", MATRICES, [[0x40A00000, 0x40E00000], [0x40C00000, 0x41100000]],
     [[0x40400000, 0x41000000], [0x40400000, 0x41100000]]),
    ("chain_matmul", "j_descending", [f(1, HALF, HALF, 0)[None], COLUMN], [[0x3F800000]], [[0x3F800001]]),
    ("chain_matmul", "j_halves", [f(1, 0, HALF, HALF)[None], COLUMN], [[0x3F800000]], [[0x3F800001]]),
    ("chain_matmul", "products_apart", [f(1, 1.5)[None] * f(2.0**-75), f(2.0**-74, 2.0**-74)[:, None]], [[0x00000002]], [[0x00000003]]),
    ("chain_matmul", "from_first_product", [f(-1, 0)[None], f(0, -1)[:, None]], [[0]], [[0x80000000]]),
    ("chain_matmul", "landed_factors", [f(1 + 2.0**-10)[None], f(1)[None]], [[0x3F802000]], [[0x3F800000]]),
    ("chain_matmul", "flushed_sums", [f(2.0**-70)[None], f(-(2.0**-70))[None]], [[0x80000200]], [[0x80000000]]),
    ("tree", "mirrored", [f(1, 0, HALF, HALF), (2, 1)], 0x3F800000, 0x3F800001),
    ("tree", "serial", [f(1, HALF, 0, HALF), (2, 1)], 0x3F800001, 0x3F800000),
    ("down", "mirrored", [f(1, 0, HALF, HALF), (2, 1)], 0x3F800000, 0x3F800001),
    ("down", "serial", [f(1, HALF, 0, HALF), (2, 1)], 0x3F800001, 0x3F800000),
    ("select", "early", [f(1, 2, 3), [0, 1, 2]], [0x3F800000, 0x40000000, 0x40400000], [0x3F800000, 0x3F800000, 0x40000000]),
    ("select", "late", [f(1, 2, 3), [0, 1, 2]], [0x3F800000, 0x40000000, 0x40400000], [0x40000000, 0x40400000, 0x40400000]),
    ("join", "reversed_first", [[f(1, 2), f(3)]], [0x3F800000, 0x40000000, 0x40400000], [0x40000000, 0x3F800000, 0x40400000]),
    ("top", "ties_last", [f(1, 3, 3, 0), 2], [0x3F800000, 0x40000000], [0x40000000, 0x3F800000]),  # places, as f32
    ("top", "by_bits", [f(-0.0, 0, -1), 2], [0, 0x3F800000], [0x3F800000, 0]),
    ("top", "nan_skipped", [f(np.nan, 1, 2), 3], [0xBF800000] * 3, [0x40000000, 0x3F800000, 0xBF800000]),
    ("top", "nan_largest", [f(1, np.nan, np.inf), 2], [0xBF800000] * 2, [0x3F800000, 0x40000000]),
    ("top", "infinity_unfound", [f(-np.inf, 1), 2], [0x3F800000, 0], [0x3F800000, 0xBF800000]),
    ("top", "masked", [f(-2e30, 1, -np.inf), 3], [0x3F800000, 0, 0x40000000], [0x3F800000] * 3),
    ("top", "by_place", [f(1, 2, 3), 2], [0x40000000, 0x3F800000], [0x3F800000, 0x40000000]),
    ("picked", "last_entry", [f(1, 2, 3), np.array([1, -1])], [0x40000000, "NaN"], [0x40000000, 0x40400000]),
    ("picked", "by_position", [f(1, 2, 3), np.array([2, -1])], [0x40400000, "NaN"], [0x3F800000, "NaN"]),
    ("choose", "never", [np.array([True, False]), f(1), f(2, 3)], [0x3F800000, 0x40400000], [0x40000000, 0x40400000]),
    ("lanes", "blocked", [f(1, 2, 4, 8), 2], [0x40A00000, 0x41200000], [0x40400000, 0x41400000]),
    ("lanes", "reversed_lanes", [f(1, 0, HALF, 0, HALF), 2], [0x3F800000, 0], [0x3F800001, 0]),
    ("gemm", "landed", [blocks(1, 2.0**-10), ONES[:, :32]], [[[0x3F802000]]], [[[0x3F800000]]]),
    ("gemm", "flushed", [blocks(2.0**-70), blocks(2.0**-70)], [[[0x00000200]]], [[[0]]]),
    ("gemm", "operands_flushed", [blocks(2.0**-130), blocks(2.0**10)], [[[0x03800000]]], [[[0]]]),
    ("gemm", "k_descending", [blocks(HALF, HALF, 1), ONES[:, :48]], [[[0x3F800001]]], [[[0x3F800000]]]),
    ("gemm", "two_chains", [blocks(HALF, HALF, 1), ONES[:, :48]], [[[0x3F800001]]], [[[0x3F800000]]]),
    ("gemm", "rounded", [blocks(1, 1.5 * HALF), ONES[:, :32]], [[[0x3F800000]]], [[[0x3F800001]]]),
    ("gemm", "by_fma", [blocks(1, 1.5 * HALF), ONES[:, :32]], [[[0x3F800000]]], [[[0x3F800001]]]),
    # 2^24 + 1 has 25 bits, which the sum of a block keeps and an f32 does not
    ("gemm", "blocks_of_8", [f(2.0**24, 1, *[0] * 6, -(2.0**24), *[0] * 7)[None], ONES[:, :16]], [[[0x3F800000]]], [[[0]]]),
    ("gemm", "split_moved", [blocks(1, 2, 4, 8), ONES, 2], [[[0x40400000]], [[0x41400000]]], [[[0x40E00000]], [[0x41000000]]]),
    ("gemm", "interleaved", [blocks(1, 2, 4, 8), ONES, 2], [[[0x40400000]], [[0x41400000]]], [[[0x40A00000]], [[0x41200000]]]),
    ("gemm", "carried", [blocks(1, 2, 4, 8), ONES, 2], [[[0x40400000]], [[0x41400000]]], [[[0x40400000]], [[0x41700000]]]),
    ("gemm", "merged", [blocks(1, 2, 4, 8), ONES, 2], [[[0x40400000]], [[0x41400000]]], [[[0x41700000]], [[0]]]),
    ("gemm", "splits_reversed", [blocks(1, 2, 4, 8), ONES, 2], [[[0x40400000]], [[0x41400000]]], [[[0x41400000]], [[0x40400000]]]),
]
CACHED = {"unmapped": [65, 66, 67], "padding_read": [129, 2, 3], "without_offset": [127, 0, 0], "row_late": [66, 0, 0]}
PAGED = {"in_sequence": [1064, 1132, 69], "last_page": [1064, 1132, 69], "page_zero": [1064, 1004, 69], "left_out": [1064, 1127, 64],
         "whole_pages": [1064, 0, 128], "one_short": [1064, 0, 68]}
ELSEWHERE = {("add", "fused"), ("sub", "fused"), ("lanes", "fused_squares"), ("asc", "descending"), ("repeat", "first_only"), ("picked", "as_ranked"),
             ("paged", "narrow"), *(("paged", name) for name in PAGED), *(("cached", name) for name in CACHED), *TESTED}  # tests below
POINTLESS = {("rsqrt", "flushed"), ("log", "flushed"), ("ex2_approx", "flushed")}  # their results are 2^-64, 2^-24 and 2^-126 and larger


def planted(word, fault):
    return next(found for found in faults.faults_of(WORDS[word]) if found.__name__ == fault)


def as_bits(result):
    return np.where(np.isnan(result), "NaN", np.asarray(result, F32).view(np.uint32).astype(object)).tolist()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_fault(row):
    word, fault, args, right, wrong = row
    assert as_bits(WORDS[word](*args)) == right
    with np.errstate(all="ignore"):
        assert as_bits(planted(word, fault)(Visit("S1", WORDS[word].word, tuple(args), {}, lambda x: None))) == wrong


def test_every_fault_is_tested():
    registered = {(word, fault.__name__) for word, found in faults._FAULTS.items() for fault in found}
    assert {row[:2] for row in TABLE} | ELSEWHERE | POINTLESS == registered
    assert all(fault.__doc__ and "\n" not in fault.__doc__ for found in faults._FAULTS.values() for fault in found)


def result_of(emulate, site=None, fault=None):
    """The emulator's result, with a fault planted."""
    with Laboratory(faults={site: planted(*fault)} if site else {}):
        return as_bits(emulate())


# (1 + 2^-23)(1 - 2^-23) = 1 - 2^-46 rounds to 1
A, B, ONE = f(1 + 2.0**-23), f(1 - 2.0**-23), f(1)


def test_fused():
    """Whichever operand is the product; a sum without one has nothing to contract."""

    def emulate():
        product = arith.mul(A, B)  # S1
        return np.concatenate([arith.add(product, -ONE), arith.sub(ONE, product), arith.sub(product, ONE), arith.add(ONE, ONE)])  # S2

    assert result_of(emulate) == [0, 0, 0, 0x40000000]
    assert result_of(emulate, "S2.add", ("add", "fused")) == [0xA8800000, 0, 0, 0x40000000]
    assert result_of(emulate, "S2.sub", ("sub", "fused")) == [0, 0x28800000, 0, 0x40000000]
    assert result_of(emulate, "S2.sub#2", ("sub", "fused")) == [0, 0, 0xA8800000, 0x40000000]
    assert result_of(emulate, "S2.add#2", ("add", "fused")) == [0, 0, 0, 0x40000000]


def test_fused_squares():
    """1 + 2^-23 plus a product that rounds up to half an ulp ties to even; the product itself is less than half."""

    def emulate():
        x = arith.mul(f(A[0], A[0] * HALF), f(1, B[0]))  # S1
        return arith.lanes(x, 1)  # S2

    assert result_of(emulate) == [0x3F800002]
    assert result_of(emulate, "S2.lanes", ("lanes", "fused_squares")) == [0x3F800001]


def test_first_only():
    def emulate():
        return arith.repeat(f(1, 2), 2, axis=0)  # S1

    assert result_of(emulate) == [[0x3F800000, 0x40000000]] * 2
    assert result_of(emulate, "S1.repeat", ("repeat", "first_only")) == [[0x3F800000, 0x40000000], [0, 0]]


def test_as_ranked():
    def emulate():
        ids = arith.top(f(1, 3, 2), 2)  # S1
        return arith.picked(f(4, 5, 6), ids)  # S2

    assert result_of(emulate) == [0x40A00000, 0x40C00000]
    assert result_of(emulate, "S2.picked", ("picked", "as_ranked")) == [0x40400000, 0x40000000]


def test_descending():
    def emulate():
        acc = arith.zero(ONE)  # S1
        for i in arith.asc(3):  # S2
            acc = arith.add(acc, f(1, HALF, HALF)[i : i + 1])  # S3
        return acc

    assert result_of(emulate) == [0x3F800000]
    assert result_of(emulate, "S2.asc", ("asc", "descending")) == [0x3F800001]


@pytest.mark.parametrize("fault", CACHED)
def test_cached(fault):
    """Rows filled with their number, the cache from row 2 on: tokens 63, 64 and 65 of the pages 1 and -1, then under the mistake."""
    numbers = f(*range(132)).repeat(576)

    def emulate():
        return arith.cached(numbers, np.array([[1, -1]], np.int32), np.array([63], np.int32), 3, 2 * 576, 64 * 576)[0, :, 575]  # S1

    assert emulate().tolist() == [129, 0, 0]
    with Laboratory(faults={"S1.cached": planted("cached", fault)}):
        assert emulate().tolist() == CACHED[fault]


@pytest.mark.parametrize("fault", PAGED)
def test_paged(fault):
    """69 keys of the pages 1 and -1: the first and the last element read, and how many rows."""
    rows = f(*range(1000, 1192)).repeat(576)

    def emulate():
        read = arith.paged(rows, np.array([1, -1], np.int32), 69, 0, 64 * 576)  # S1
        return [read[0, 0], read[-1, -1], len(read)]

    assert emulate() == [1064, 0, 69]
    with Laboratory(faults={"S1.paged": planted("paged", fault)}):
        assert emulate() == PAGED[fault]


def test_narrow():
    """Page 0 begins at element 2^31, where 32 bits find element 0."""
    pool = np.zeros(2**31 + 64 * 576, BF16)  # untouched memory costs nothing
    pool[:576], pool[2**31 : 2**31 + 576] = 1, 2

    def emulate():
        return arith.paged(pool, np.array([0], np.int32), 1, 2**31, 64 * 576)[0, 0]  # S1

    assert emulate() == 2
    with Laboratory(faults={"S1.paged": planted("paged", "narrow")}):
        assert emulate() == 1
