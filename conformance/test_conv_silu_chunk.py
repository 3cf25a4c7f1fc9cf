"""The laws between the convolutions: a segment is its rows decoded one by one, and a segment cut anywhere is itself."""

import numpy as np
import pytest

from goldens.rows import take
from references.contract import Kernel
from references.contract.inputs import BF16, F32, ordinary, patterns, spread
from references.contract.mistakes import emulate_with, find, same_bits

pytestmark = pytest.mark.kernels("conv_silu_chunk", "conv_silu")
CHUNK, DECODE = Kernel.load("conv_silu_chunk"), Kernel.load("conv_silu")
T, INNER, OFF, NT = 7, 24, 4, 32


def segment(kind: str = "ordinary", commit_rows: int = T) -> dict:
    draw = {"ordinary": lambda s, n, d: ordinary(s, n, dtype=d), "spread": lambda s, n, d: spread(s, n, -80, 60, d), "patterns": patterns}[kind]
    return {"p": draw(1, (T, NT), F32), "taps": draw(2, (INNER, 4), F32), "carry": draw(3, (3, INNER), BF16), "off": OFF,
            "commit_rows": commit_rows}


def decoded(inputs: dict, rows: range) -> tuple[np.ndarray, np.ndarray]:
    """Each row as a token of its own, its carry handed to the next: outputs of the rows, and the last carry."""
    carry, out = inputs["carry"][None], []
    for row in rows:
        y, carry = DECODE.emulate(inputs["p"][row : row + 1], inputs["taps"], carry, inputs["off"])
        out.append(y[0])
    return np.stack(out), carry[0]


@pytest.mark.parametrize("commit_rows", range(1, T + 1))
@pytest.mark.parametrize("kind", ["ordinary", "spread", "patterns"])
def test_segment_is_its_rows_decoded(kind, commit_rows):
    inputs = segment(kind, commit_rows)
    y, carry = CHUNK.emulate(**inputs)
    assert same_bits(y, decoded(inputs, range(T))[0])
    assert same_bits(carry, decoded(inputs, range(commit_rows))[1])


@pytest.mark.parametrize("cut", range(1, T))
def test_segment_cut_anywhere_is_itself(cut):
    whole = segment()
    head = whole | {"p": whole["p"][:cut], "commit_rows": cut}
    first, carry = CHUNK.emulate(**head)
    second, last = CHUNK.emulate(**whole | {"p": whole["p"][cut:], "carry": carry, "commit_rows": T - cut})
    y, want = CHUNK.emulate(**whole)
    assert same_bits(np.concatenate([first, second]), y) and same_bits(last, want)


@pytest.mark.parametrize("key", ["S7.select:early", "S7.select:late", "S2.join:reversed_first", "S1.bf:truncated"])
def test_a_mistaken_segment_breaks_the_law(key):
    inputs = segment(commit_rows=2)
    wrong = emulate_with(CHUNK, find(CHUNK, key, inputs), inputs)
    assert not (same_bits(wrong["y"], decoded(inputs, range(T))[0]) and same_bits(wrong["next"], decoded(inputs, range(2))[1]))


def test_nothing_committed_leaves_the_carry_unwritten():
    y, carry = CHUNK.emulate(**segment(commit_rows=0))
    assert carry is None and same_bits(y, CHUNK.emulate(**segment(commit_rows=T))[0])


@pytest.mark.parametrize("name, value", [("commit_rows", T + 1), ("commit_rows", -1), ("off", NT - INNER + 1), ("off", -1)])
def test_refusals_name_the_argument_and_the_value(name, value):
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        CHUNK.emulate(**segment() | {name: value})


def test_channels_can_be_taken_out_of_a_wide_row():
    inputs, wanted = segment(), [0, 5, 23]
    y, carry = CHUNK.emulate(**take(CHUNK.signature.inputs, inputs, "inner", wanted))
    whole, last = CHUNK.emulate(**inputs)
    assert same_bits(y, np.ascontiguousarray(whole[:, wanted])) and same_bits(carry, np.ascontiguousarray(last[:, wanted]))
    assert not same_bits(y, np.ascontiguousarray(whole[:, [1, 5, 23]]))
