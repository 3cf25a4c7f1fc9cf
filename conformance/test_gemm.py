"""gemm: a row has one result, whatever batch it comes in; a split is the same product of its own columns."""

import numpy as np
import pytest

from goldens import load
from references import gemm
from references.contract import Kernel
from references.contract.mistakes import emulate_with, find, same_bits

GEMM = Kernel.load("gemm")
GOLDENS = {m: load("gemm", f"batch_{m}") for m in gemm.BATCHES}


@pytest.mark.parametrize("m", gemm.BATCHES)
def test_a_row_has_the_same_bits_in_every_batch(m):
    """These goldens are what both forms must give on the device, the batches of one row to 257 through every height of a tile."""
    whole = GOLDENS[257]
    assert same_bits(GOLDENS[m].inputs["a"], whole.inputs["a"][:m]) and same_bits(GOLDENS[m].inputs["w"], whole.inputs["w"])
    assert same_bits(GOLDENS[m].outputs["p"], whole.outputs["p"][:m])


@pytest.mark.parametrize("mistake", ["S1.gemm:k_descending", "S1.gemm:two_chains", "S1.gemm:split_moved"])
def test_a_batch_with_an_order_of_its_own_is_seen(mistake):
    """Of each such batch some row is other than alone."""
    for m, golden in GOLDENS.items():
        wrong = emulate_with(GEMM, find(GEMM, mistake, golden.inputs), golden.inputs)["p"]
        assert not same_bits(wrong, GOLDENS[257].outputs["p"][:m])


def test_splits_are_products_of_their_own():
    inputs = gemm.splits(3, 80)
    whole = GEMM.outputs(inputs)["p"]
    for s in range(3):
        part = np.s_[:, 80 * s : 80 * s + 80]
        alone = GEMM.outputs({"a": inputs["a"][part], "w": inputs["w"][part], "split_k": 1})["p"]
        assert same_bits(alone[:, 0], np.ascontiguousarray(whole[:, s]))


def test_no_rows():
    assert GEMM.outputs(gemm.drawn(0, 24, 64, 2))["p"].shape == (0, 2, 24)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"split_k": 5}, r"k % \(16 \* split_k\) == 0 is required, got k = 96, split_k = 5"),
        ({"split_k": 0}, "split_k >= 1 is required, got split_k = 0"),
        ({"w": gemm.batch(1)["w"][:, :64]}, r"w must have shape \[n, k\] with k = 96, got \[24, 64\]"),
        ({"a": gemm.batch(1)["a"].astype(np.float32)}, "a must be a bfloat16 array, got float32"),
    ],
)
def test_refusals(change, said):
    with pytest.raises(ValueError, match=said):
        GEMM.outputs(gemm.batch(1) | change)
