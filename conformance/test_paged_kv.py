"""paged_kv: three gates on the paged cache, in whole steps of the small model, by the emulators and by the CUDA kernels."""

import numpy as np
import pytest

from conformance import paging
from references.k3.config import PAGE, SMALL
from references.k3.pages import Pages

pytestmark = pytest.mark.steps


def test_01_page_permutation(on):
    """Scrambled pages, free ones full of NaN, of large numbers, of another's rows, page 0 owned by another: every logit keeps its bits."""
    assert on(paging.permuted) == []
    assert on(paging.mismapped), "pages exchanged in a table leave the logits alone"


@pytest.mark.parametrize("last", [PAGE + 2, 1026, SMALL.pages * PAGE], ids=["a_page", "1024_tokens", "a_whole_table_row"])
def test_02_long_context(on, side, last):
    assert on(paging.long, last, side == "cuda") == []


def test_02_no_further(on):
    assert on(paging.full) == f"rows must fit the {SMALL.pages} pages of slot 0, got {SMALL.pages * PAGE} + 1"


def test_03_absorbed_and_expanded(on, side, reported, request):
    """Another token only where it is a coin flip. With --dump the logits of both are stored."""
    beyond, spent, told, logits = on(paging.expanded)
    reported(told, *(f"spent: {line}" for line in spent))
    if request.config.option.dump:
        request.config.option.dump.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(request.config.option.dump / f"absorbed_expanded_{side}.npz", absorbed=logits[0], expanded=logits[1])
    assert beyond == []


# The pool itself


def test_pages_are_handed_out_in_order_and_come_back():
    pages = Pages(2, 3, 4, [2, 0, 3, 1])
    page, row = pages.append(0, 65)
    assert pages.table[0].tolist() == [2, 0, -1] and page.tolist() == [2] * 64 + [0] and row.tolist() == [*range(64), 0]
    assert pages.append(1)[0].tolist() == [3] and pages.append(0)[1].tolist() == [1]
    pages.release(0)
    assert pages.free == [1, 2, 0] and pages.table[0].tolist() == [-1] * 3 and pages.length.tolist() == [0, 1]


@pytest.mark.parametrize(
    "rows, free, said",
    [
        (193, None, r"rows must fit the 3 pages of slot 0, got 0 \+ 193"),
        (129, [1, 0], r"rows of slots \[0\] need 3 more pages, 2 of 2 are free"),
        (1, [1, 1], r"free must hold each of 2 pages once, got \[1, 1\]"),
    ],
)
def test_what_the_pool_refuses(rows, free, said):
    with pytest.raises(ValueError, match=said):
        Pages(1, 3, 2 if free else 4, free).append(0, rows)
