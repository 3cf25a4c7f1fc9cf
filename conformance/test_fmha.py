"""What the schedule of fmha promises beyond its goldens: a query depends on the keys it sees, and on nothing else."""

import numpy as np
import pytest

from references.arith.site import Laboratory
from references.contract import Kernel
from references.contract.mistakes import find, same_bits
from references.fmha import attention, emulate


def rows_alone(inputs: dict, rows: range) -> bool:
    """Whether each of these rows of a causal call is, bit for bit, the one-query dense call on the keys it sees."""
    o, lse = emulate(**inputs)
    past = len(inputs["k"]) - len(inputs["q"])
    for i in rows:
        seen = slice(0, past + i + 1)
        alone = emulate(inputs["q"][i : i + 1], inputs["k"][seen], inputs["v"][seen], inputs["scale"], 0)
        if not (same_bits(o[i : i + 1], alone[0]) and same_bits(np.ascontiguousarray(lse[:, i : i + 1]), alone[1])):
            return False
    return True


def test_a_causal_row_is_the_dense_call_on_its_keys():
    """So it does not matter where in a block a query lies, or which tiles its neighbours need."""
    assert rows_alone(attention(140, 300, 2, 1), range(0, 140, 7))


@pytest.mark.parametrize("key", ["S2.visible:one_more", "S3.hide:in_sight"])
def test_rows_alone_sees_a_wrong_mask(key):
    inputs = attention(140, 300, 2, 1)
    mistake = find(Kernel.load("fmha"), key, inputs)
    with Laboratory(faults={mistake.site: mistake.fault}):
        assert not rows_alone(inputs, range(0, 140, 7))


def test_unseen_operands_change_nothing():
    """Keys and values after a row's own, as far as they are finite."""
    inputs = attention(64, 200, 1, 1)
    o, lse = emulate(**inputs)
    inputs["k"][190:], inputs["v"][190:] = 3e38, -3e38
    other_o, other_lse = emulate(**inputs)
    assert same_bits(o[:54], other_o[:54]) and same_bits(lse[:, :54], other_lse[:, :54])
    assert not same_bits(o[54:], other_o[54:])


@pytest.mark.parametrize(
    "wrong, said",
    [({"scale": 0.0}, "scale must be positive"), ({"scale": -1.0}, "scale must be positive"), ({"scale": float("nan")}, "scale must be positive"),
     ({"scale": 2.0**127.5}, "scale must be positive and 2\\^127 at most"), ({"causal": 2}, "0 <= causal <= 1 is required, got causal = 2")],
)
def test_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        emulate(**attention(2, 3, 1, 1) | wrong)
