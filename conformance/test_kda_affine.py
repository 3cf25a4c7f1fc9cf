"""kda_affine and kda_fold: a segment's package does to any state what its tokens do, and packages compose in the order of their tokens."""

from itertools import pairwise

import numpy as np
import pytest

from references import kda_affine
from references.arith import bf
from references.contract import Kernel
from references.contract.inputs import F32, ordinary
from references.contract.mistakes import emulate_with, find, same_bits

pytestmark = pytest.mark.kernels("kda_affine", "kda_fold")
AFFINE, FOLD = Kernel.load("kda_affine"), Kernel.load("kda_fold")
HEADS = 2
CLOSE = 2.0**-16  # f32 sums of 128 terms, over some dozens of tokens


def tokens(t: int) -> dict:
    return kda_affine.segment(60, t, HEADS, live=128)


def part(inputs: dict, rows: slice) -> dict:
    return {name: x if name in ("dt_bias", "a_log") else x[rows] for name, x in inputs.items()}


def packages(*segments: dict) -> dict:
    made = [AFFINE.outputs(one) for one in segments]
    return {name: np.stack([one[name] for one in made]) for name in ("mm", "d")}


def walked(inputs: dict, state: np.ndarray) -> np.ndarray:
    """The recurrence in f64, token by token, on the state [heads, v, k]."""
    k, v, gate, bias, rate, beta = (np.asarray(inputs[n], np.float64) for n in ("k", "v", "gate", "dt_bias", "a_log", "beta"))
    state = state.astype(np.float64)
    for i in range(len(k)):
        state = state * np.exp(-5 / (1 + np.exp(-np.exp(rate)[:, None] * (landed(gate[i]) + bias))))[:, None]
        key = k[i] / np.sqrt((k[i] ** 2).sum(-1, keepdims=True) + 1e-6)
        update = (v[i] - (state * key[:, None]).sum(-1)) / (1 + np.exp(-beta[i]))[:, None]
        state = state + update[..., None] * key[:, None]
    return state


def landed(gate: np.ndarray) -> np.ndarray:
    return bf(gate.astype(F32)).astype(np.float64)


def off(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max())


@pytest.mark.parametrize("t", [0, 1, 16, 33])
def test_a_package_is_what_the_tokens_do(t):
    state = ordinary(61, (HEADS, 128, 128), dtype=F32)
    package = packages(tokens(t)) | {"state": state}
    want = walked(tokens(t), state)
    assert off(FOLD.outputs(package)["next"], want) < CLOSE
    if t:
        swapped = emulate_with(FOLD, find(FOLD, "S2.chain_matmul:swapped", package), package)
        assert off(swapped["next"], want) > 1000 * CLOSE


@pytest.mark.parametrize("cuts", [(0, 20, 33), (0, 1, 2, 33), (0, 16, 16, 33)])
def test_packages_compose(cuts):
    """In order of their tokens; in the other order they are something else."""
    state, whole = ordinary(62, (HEADS, 128, 128), dtype=F32), tokens(33)
    folded = packages(*(part(whole, slice(a, b)) for a, b in pairwise(cuts)))
    assert off(FOLD.outputs(folded | {"state": state})["next"], walked(whole, state)) < CLOSE
    backwards = {name: x[::-1].copy() for name, x in folded.items()}
    assert off(FOLD.outputs(backwards | {"state": state})["next"], walked(whole, state)) > 1000 * CLOSE


def test_an_empty_segment_and_no_rank_change_no_bit():
    state = ordinary(63, (HEADS, 128, 128), dtype=F32)
    empty = packages(tokens(0), tokens(0))
    assert same_bits(FOLD.outputs(empty | {"state": state})["next"], state)
    assert same_bits(FOLD.outputs({name: x[:0] for name, x in empty.items()} | {"state": state})["next"], state)


def test_the_tail_of_a_segment_does_not_reach_its_start():
    """A package of 7 tokens is the same whatever follows them in the arrays it was cut from; a head is itself among others."""
    spoiled = tokens(16)
    spoiled["v"][7:], spoiled["k"][:, 1] = np.nan, np.nan
    alone, cut = AFFINE.outputs(part(tokens(16), slice(7))), AFFINE.outputs(part(spoiled, slice(7)))
    for name in ("mm", "d"):
        assert same_bits(alone[name][0], cut[name][0])
        assert not same_bits(alone[name][1], cut[name][1])
