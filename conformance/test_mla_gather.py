"""mla_gather: only logical positions matter, and what a launch must not see is refused."""

import numpy as np
import pytest

from references.contract import Kernel
from references.contract.inputs import BF16, from_bits, patterns
from references.contract.mistakes import emulate_with, find, same_bits
from references.mla_gather import PAGE_ELEMENTS, gather

GATHER = Kernel.load("mla_gather")
ORDER = [3, 0, 4, 1]  # physical pages of the logical ones; page 2 is nobody's


def placed(rows, order, filler):
    """Five pages filled by `filler`, and the logical pages of `rows` where `order` says."""
    cache = np.resize(filler, 5 * PAGE_ELEMENTS).astype(BF16)
    for logical, physical in enumerate(order):
        cache[physical * PAGE_ELEMENTS :][:PAGE_ELEMENTS] = rows[logical * 64 : (logical + 1) * 64].reshape(-1)
    return {"cache": cache, "table": np.array([order], np.int32), "start": np.array([7], np.int32), "t": 240, "layer_offset": 0,
            "page_stride": PAGE_ELEMENTS}


def test_is_a_copy_of_the_logical_rows():
    """Whatever the order of pages and whatever lies in pages that are not the sequence's; NaN payloads too."""
    rows = patterns(1, (256, 576))
    for order, filler in ((ORDER, 0x7FC1), ([0, 1, 2, 3], 0x0000), ([4, 2, 1, 0], 0x7F7F)):
        out = GATHER.outputs(placed(rows, order, from_bits([filler])))
        assert same_bits(np.concatenate([out["latent"][0], out["rope"][0]], axis=1), rows[7:247])


def test_a_table_that_is_not_looked_up_is_seen():
    inputs = placed(patterns(1, (256, 576)), ORDER, from_bits([0]))
    wrong = emulate_with(GATHER, find(GATHER, "S1.cached:unmapped", inputs), inputs)
    assert not same_bits(wrong["latent"], GATHER.outputs(inputs)["latent"])


def test_table_entries_outside_the_window_are_not_looked_at():
    inputs = gather([[1 << 30, 1, 0, 1 << 30]], [64], 128)
    assert same_bits(GATHER.outputs(inputs)["latent"], GATHER.outputs(gather([[0, 1, 0, 0]], [64], 128))["latent"])


BAD = {
    "start must be 0 .. 98, for t = 30 rows in a table of 2 pages, got [99]": {"start": np.array([99], np.int32)},
    "start must be 0 .. 98, for t = 30 rows in a table of 2 pages, got [-1]": {"start": np.array([-1], np.int32)},
    "table must name pages inside the pool of 110592 elements, got 3 in row 0": {"table": np.array([[0, 3]], np.int32)},
    "table must name pages inside the pool of 110590 elements, got 2 in row 0": {"cache": patterns(1, (110590,))},
    "layer_offset % 2 == 0 is required, got layer_offset = 3": {"layer_offset": 3},
    "page_stride % 2 == 0 is required, got page_stride = 36865": {"page_stride": 36865},
    "layer_offset >= 0 is required, got layer_offset = -2": {"layer_offset": -2},
    "t >= 0 is required, got t = -1": {"t": -1},
    "cache must be a bfloat16 array, got float32": {"cache": np.zeros(110592, np.float32)},
    "table must be a int32 array, got int64": {"table": np.array([[0, 2]])},
    "start must have shape [b] with b = 1, got [2]": {"start": np.zeros(2, np.int32)},
}


@pytest.mark.parametrize("message", BAD)
def test_refusals(message):
    inputs = gather([[0, 2]], [60], 30)
    GATHER.outputs(inputs)
    with pytest.raises(ValueError) as refused:
        GATHER.outputs(inputs | BAD[message])
    assert str(refused.value) == message


def test_far_pages_have_the_bits_of_near_ones():
    """The same rows whether their page lies 2.4e9 elements into the pool or at its start."""
    far = next(case for case in GATHER.cases() if case.name == "far").make()
    used = [far["cache"][far["layer_offset"] + page * far["page_stride"] :][:PAGE_ELEMENTS] for page in (3, 0)]
    near = far | {"cache": np.concatenate(used), "table": np.array([[0, 1]], np.int32), "start": far["start"][:1], "layer_offset": 0,
                  "page_stride": PAGE_ELEMENTS}
    assert same_bits(GATHER.outputs(far)["latent"][:1], GATHER.outputs(near)["latent"])
    assert far["layer_offset"] + 3 * far["page_stride"] > 1 << 31
