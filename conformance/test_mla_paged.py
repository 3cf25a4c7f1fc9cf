"""Laws of mla_paged in every form: only logical positions matter, what lies past a context does not, and neither rows nor heads meet."""

import ml_dtypes
import numpy as np
import pytest

from goldens import load
from references import _mla
from references.contract import Kernel
from references.contract.mistakes import emulate_with, find, same_bits

KERNEL = Kernel.load("mla_paged")
pytestmark = pytest.mark.parametrize("form", KERNEL.forms)


def outputs(inputs: dict, form: str) -> np.ndarray:
    return KERNEL.emulate(**inputs, form=form)


def mistaken(inputs: dict, form: str, fault: str) -> np.ndarray:
    inputs = inputs | {"form": form}
    return emulate_with(KERNEL, find(KERNEL, fault, inputs), inputs)["o"]


def test_pages_may_lie_anywhere(form):
    """Two goldens whose pages lie in another order have the same landings and outputs; a kernel that ignores the table tells them apart."""
    one, other = (load("mla_paged", f"{form}_{name}") for name in ("in_order", "shuffled"))
    assert one.landings.keys() == other.landings.keys() and all(same_bits(one.landings[key], other.landings[key]) for key in one.landings)
    assert same_bits(one.outputs["o"], other.outputs["o"])
    assert not same_bits(mistaken(_mla.permuted([2, 0, 1]), form, "S2.paged:in_sequence"), one.outputs["o"])


@pytest.mark.parametrize("dead", [0.0, 3.0e38, -np.inf, "another"])
def test_dead_rows_change_no_bit(form, dead):
    inputs = _mla.poisoned(_mla.pages(99, 1)[0, 13:] if dead == "another" else dead)
    assert same_bits(outputs(inputs, form), load("mla_paged", f"{form}_dead_rows").outputs["o"])


def test_a_page_read_to_its_end_is_seen(form):
    assert not same_bits(mistaken(_mla.poisoned(0.0), form, "S2.paged:whole_pages"), outputs(_mla.poisoned(0.0), form))


@pytest.mark.parametrize("tail", [-1, 0, 2**31 - 1, -(2**31)])
def test_entries_past_a_context_change_no_bit(form, tail):
    contexts = [129, 1, 200, 64]
    assert same_bits(outputs(_mla.drawn(contexts, tail=tail), form), load("mla_paged", f"{form}_ragged").outputs["o"])


@pytest.mark.parametrize("b", [31, 32, 33, 128])
def test_neighbours_change_no_bit(form, b):
    """Row 0 of a batch is the golden of one row; every row alone is what it is in the batch, and not what the row before it is."""
    batch = next(case for case in _mla.cases() if case.name == f"batch_{b}").make()
    together = outputs(batch, form)
    assert same_bits(together[:1], load("mla_paged", f"{form}_context_65").outputs["o"])
    for i in range(1, b, 7):
        alone = outputs(batch | {name: batch[name][i : i + 1] for name in ("q", "table", "context")}, form)
        assert same_bits(alone, together[i : i + 1]) and not same_bits(alone, together[i - 1 : i])


def test_heads_do_not_meet(form):
    inputs = _mla.drawn([70, 66], heads=3)
    together = outputs(inputs, form)
    for head in range(3):
        part = slice(head, head + 1)
        assert same_bits(outputs(inputs | {"q": inputs["q"][:, part], "w_kv_b": inputs["w_kv_b"][part]}, form), together[:, part].copy())


def test_pages_that_are_not_there(form):
    """They take part: 64 of 128 equal scores halve every weight. They add nothing, and pages of them alone give +0."""
    inputs = _mla.by_score([[0.0] * 64])
    alone, beside = outputs(inputs, form), outputs(inputs | {"table": np.array([[0, -1]], np.int32), "context": np.array([128], np.int32)}, form)
    assert np.array_equal(beside.astype(np.float32) * 2, alone.astype(np.float32)) and alone.any()
    nowhere = outputs(inputs | {"table": np.array([[-7]], np.int32)}, form)
    assert not nowhere.view(np.uint16).any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_offset": 1}, r"layer_offset % 2 == 0 is required, got layer_offset = 1"),
        ({"layer_offset": -2}, r"layer_offset >= 0 is required, got layer_offset = -2"),
        ({"page_stride": 36865}, r"page_stride % 2 == 0 is required, got page_stride = 36865"),
        ({"page_stride": 36862}, r"page_stride >= 36864 is required, got page_stride = 36862"),
        ({"layer_offset": 2}, r"table must name pages inside the pool of 110592 elements, got 2 in row 0"),
        ({"table": np.array([[0, 3]], np.int32)}, r"table must name pages inside the pool of 110592 elements, got 3 in row 0"),
        ({"table": np.array([[0, 2**31 - 1]], np.int32)}, r"table must name pages inside the pool of 110592 elements, got 2147483647 in row 0"),
        ({"context": np.array([0], np.int32)}, r"context must be 1 \.\. 128 for a table of 2 pages, got 0 in row 0"),
        ({"context": np.array([-3], np.int32)}, r"context must be 1 \.\. 128 for a table of 2 pages, got -3 in row 0"),
        ({"context": np.array([129], np.int32)}, r"context must be 1 \.\. 128 for a table of 2 pages, got 129 in row 0"),
        ({"context": np.array([65, 65], np.int32)}, r"context must have shape \[b\] with b = 1, got \[2\]"),
        ({"context": np.array([65])}, r"context must be a int32 array, got int64"),
        ({"table": np.array([[0, 1]])}, r"table must be a int32 array, got int64"),
        ({"cache": np.zeros(110592, np.float32)}, r"cache must be a bfloat16 array, got float32"),
        ({"q": np.zeros((1, 1, 576), ml_dtypes.bfloat16)}, r"q must have shape .* with 192 = 192, got \[1, 1, 576\]"),
        ({"scale": 0.1}, r"scale must be a number that bf16 holds, got 0\.1"),
        ({"q": np.zeros((1, 0, 192), ml_dtypes.bfloat16), "w_kv_b": np.zeros((0, 256, 512), ml_dtypes.bfloat16)}, r"heads >= 1 is required"),
    ],
)
def test_refusals(form, change, said):
    with pytest.raises(ValueError, match=said):
        outputs(_mla.drawn([65]) | change, form)
    outputs(_mla.drawn([65]), form)
