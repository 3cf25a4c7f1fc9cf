"""Each fault of the experts' words does what its sentence says: on inputs made by hand, the right results and the wrong ones."""

import numpy as np
import pytest

from references.arith import e4m3, local, members, mxfp4, returned, round_up_pow2, upcast
from references.arith import faults_experts as faults
from references.arith.faults import faults_of
from references.arith.quant import e2m1_decode, e2m1_pack, quant
from references.arith.site import Visit
from references.contract.inputs import F32

CODES = np.arange(64, dtype=np.uint8)[None] % 15  # two blocks, of which element 16 is not element 1
PAIRS, SCALES = e2m1_pack(CODES), np.array([[127, 130]], np.uint8)
WEIGHTS = e2m1_decode(CODES)[0]
EIGHTH = np.repeat([1, 8], 32)
HALVED = e2m1_decode(np.concatenate([part for block in CODES.reshape(2, 32) for part in (block[::2], block[1::2])]))


def f(*values):
    return np.array(values, F32)


def order(*tokens):
    """Three rows 1, 2, 3 of two experts, entries 2, 0, 1."""
    return [f(1, 2)[:, None], f(3)[:, None]], [np.array([2, 0]), np.array([1])], [np.array([0, 0]), np.array([0])], np.zeros((3, 1), int), 1


# fault, word, arguments, right, wrong
TABLE = [
    ("clamped", local, [np.array([4, 5, 7, 8, -1], np.int32), 5, 3], [-1, 0, 2, -1, -1], [0, 0, 2, 2, 0]),
    ("unshifted", local, [np.array([4, 5, 7, 1], np.int32), 5, 3], [-1, 0, 2, -1], [-1, -1, -1, 1]),
    ("last_lost", members, [np.array([[1, 0], [0, 1]]), 1], [[0, 1], [0, 1]], [[0], [0]]),
    ("in_order", returned, order(), [[[2]], [[3]], [[1]]], [[[1]], [[2]], [[3]]]),
    ("next_scale", upcast, [f(1, 2, 3, 4), f(1, 8)], [1, 2, 24, 32], [8, 16, 3, 4]),
    ("one_scale", upcast, [f(1, 2, 3, 4), f(1, 8)], [1, 2, 24, 32], [1, 2, 3, 4]),
    ("next_block", mxfp4, [PAIRS, SCALES], [WEIGHTS * EIGHTH], [WEIGHTS * EIGHTH[::-1]]),
    ("row_scale", mxfp4, [PAIRS, SCALES], [WEIGHTS * EIGHTH], [WEIGHTS]),
    ("high_first", mxfp4, [PAIRS, SCALES], [WEIGHTS * EIGHTH], [WEIGHTS.reshape(-1, 2)[:, ::-1].reshape(-1) * EIGHTH]),
    ("halves", mxfp4, [PAIRS, SCALES], [WEIGHTS * EIGHTH], [HALVED * EIGHTH]),
    # of 896 the scale is 2, and 3 * 2^-9 is then a tie of the codes 2^-9 and 2^-8
    ("row_group", quant, [f(896, 0, 3 * 2.0**-9, 1), 2], [[448, 0, 1.5, 256], [2, 2.0**-8]], [[448, 0, 2.0**-8, 0.5], [2, 2]]),
    ("without_floor", quant, [f(0, -0.0, 448, 1), 2], [[0, 0, 448, 1], [2.0**-42, 1]], [[np.nan, np.nan, 448, 1], [0, 1]]),
    ("rounded_down", round_up_pow2, [f(1, 1.5, 2)], [1, 2, 2], [1, 1, 2]),
    ("unrounded", round_up_pow2, [f(1, 1.5, 2)], [1, 2, 2], [1, 1.5, 2]),
    ("unclamped", e4m3, [f(464, 465, -1e9)], [448, 448, -448], [448, np.nan, np.nan]),
    ("cut_off", e4m3, [f(1.1, -1.12, 0.99, 2.0**-9 * 0.9, 500)], [1.125, -1.125, 1, 2.0**-9, 448], [1, -1, 0.9375, 0, 448]),
    ("ties_away", e4m3, [f(1.0625, -1.1875, 2.0**-10, 448)], [1, -1.25, 0, 448], [1.125, -1.25, 2.0**-9, 448]),
    ("no_subnormals", e4m3, [f(2.0**-6, -(2.0**-7))], [2.0**-6, -(2.0**-7)], [2.0**-6, -0.0]),
]
TESTED = {(word.__name__, fault) for fault, word, *_ in TABLE}


def same(result, expected) -> bool:
    """Of a word with several results each."""
    several = result if isinstance(result, tuple) else (result,)
    wanted = expected if isinstance(result, tuple) else (expected,)
    return all(np.array_equal(a, np.asarray(b), equal_nan=a.dtype == F32) for a, b in zip(several, wanted, strict=True))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_fault(row):
    name, word, args, right, wrong = row
    fault = getattr(faults, name)
    assert fault in faults_of(word)
    assert same(word(*args), right)
    with np.errstate(all="ignore"):
        result = fault(Visit("S1", word.word, tuple(args), {}, lambda x: None))
    assert same(result, wrong) and not same(result, right)


def test_nothing_to_go_wrong():
    assert faults.row_group(Visit("S1", quant.word, (f(1, 2), 2), {}, lambda x: None)) is None
    assert faults.in_order(Visit("S1", returned.word, ([], [], [], np.zeros((1, 1), int), 1), {}, lambda x: None)) is None
