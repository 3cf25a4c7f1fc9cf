"""Ranks against a serial scan written out, and where its mask of -1e30 would pick a winner twice."""

import numpy as np
import pytest

from references import router_topk
from references.arith import add, sigmoid, top
from references.contract.inputs import F32, hashed

LEVELS = np.array([0.5, -0.0, 0.0, 1.5, -2.0, -np.inf, np.inf, 0.5], F32)  # few, so that most are tied


def scan(row: np.ndarray, k: int) -> list[int]:
    """k rounds of a strict-greater search from the first entry on, a winner's score set to -1e30."""
    row, ids = row.copy(), []
    for _ in range(k):
        best = 0
        for place in range(1, len(row)):
            if row[place] > row[best]:
                best = place
        ids.append(best)
        row[best] = -1e30
    return ids


@pytest.mark.parametrize("experts, k", [(1, 1), (7, 3), (40, 16), (300, 16)])
def test_top_is_the_scan(experts, k):
    x = LEVELS[hashed(experts, (50, experts)) % 8]
    x[x == -np.inf] = -1e29 if experts < 40 else -np.inf  # above the mask while all rounds need it
    assert top(x, k).tolist() == [scan(row, k) for row in x]


def test_below_the_mask_the_scan_repeats_a_winner():
    """There ids are distinct all the same, the lowest first among equals."""
    inputs = next(case for case in router_topk.cases() if case.name == "below_mask").make()
    ids, _ = router_topk.emulate(**inputs)
    for row, biased in zip(ids, add(sigmoid(inputs["s"]), inputs["bias"]), strict=True):
        assert len({*row.tolist()}) == inputs["k"]
        assert len({*scan(biased, inputs["k"])}) < inputs["k"]
        ranks = [(-biased[i], i) for i in row]
        assert ranks == sorted(ranks)


def test_k_above_the_experts_is_refused():
    with pytest.raises(ValueError, match="experts >= k is required, got experts = 3, k = 4"):
        router_topk.emulate(np.zeros((1, 3), F32), np.zeros(3, F32), 4, 1.0)
