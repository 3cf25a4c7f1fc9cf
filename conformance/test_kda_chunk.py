"""What the schedule of kda_chunk promises beyond its goldens: no token reaches an earlier one, and a state is all that the next segment needs."""

import numpy as np
import pytest

from references import kda_core
from references._kda import log_decay, unit
from references.arith import as_f32, exp
from references.arith.site import Laboratory
from references.contract import Kernel
from references.contract.mistakes import find, same_bits
from references.contract.signature import DTYPES
from references.floor import distances
from references.floor.kda_chunk import recurrence
from references.kda_chunk import emulate, segment

TOKENS = ("q", "k", "v", "gate", "beta")


def cut(inputs: dict, start: int, stop: int, **others) -> dict:
    return inputs | {name: inputs[name][start:stop] for name in TOKENS} | others


def reaches_back(inputs: dict, at: int) -> bool:
    """Whether the outputs before token `at` change where the tokens from it on are others."""
    other = segment(len(inputs["q"]), inputs["q"].shape[1], 9, live=128)
    changed = {name: np.concatenate([inputs[name][:at], other[name][at:]]) for name in TOKENS}
    before, after = emulate(**inputs)[0], emulate(**inputs | changed)[0]
    assert not same_bits(before[at:], after[at:]), "the tokens changed are seen by nothing"
    return not same_bits(before[:at], after[:at])


@pytest.mark.parametrize("at", [1, 15, 16, 17, 30])
def test_later_tokens_change_no_earlier_output(at):
    assert not reaches_back(segment(40, 2, live=128), at)


def test_a_missing_mask_is_seen():
    inputs = segment(40, 2, live=128)
    mistake = find(Kernel.load("kda_chunk"), "S7.choose:never", inputs)
    with Laboratory(faults={mistake.site: mistake.fault}):
        assert reaches_back(inputs, 5)


def in_parts(inputs: dict, *ends: int) -> tuple[np.ndarray, np.ndarray]:
    """Segments one after the other, each on the state that the one before hands over."""
    state, parts = inputs["state"], []
    for start, stop in zip((0, *ends), (*ends, len(inputs["q"])), strict=True):
        o, state = emulate(**cut(inputs, start, stop, state=state))
        parts.append(o)
    return np.concatenate(parts), state


def test_segments_of_whole_tiles_are_one():
    inputs = segment(50, 2, live=128)
    assert all(same_bits(*pair) for pair in zip(in_parts(inputs, 0, 16, 48, 50), emulate(**inputs), strict=True))


def test_other_segments_differ_by_rounding():
    """Tiles begin where a segment does, so the same tokens are summed in another order."""
    inputs = segment(50, 2, live=128)
    (o, state), (whole, after) = in_parts(inputs, 7, 24), emulate(**inputs)
    assert not same_bits(state, after)
    assert distances(o, whole).max() <= 2 and distances(state, after).max() <= 1000, "f32 ULP of operands of 16 bits"


@pytest.mark.parametrize("t", [1, 15, 16, 17, 100])
def test_agrees_with_the_recurrence(t):
    inputs = segment(t, 2, live=128)
    o, state = emulate(**inputs)
    want, after = recurrence(inputs, lambda x: unit(as_f32(x)))
    assert distances(o, want).max() <= 2
    assert distances(state.astype(DTYPES["bf16"]), after).max() <= 1


def test_the_least_decay_does_not_overflow():
    """exp(-5) a token: factors of exp(80) and exp(-80), and still the recurrence."""
    inputs = segment(33, 1, live=128) | {"gate": np.full((33, 1, 128), 1000, np.float32)}
    assert log_decay(*(inputs[name] for name in ("gate", "dt_bias", "a_log"))).max() == -5
    o, state = emulate(**inputs)
    assert np.isfinite(o.astype(np.float32)).all() and np.isfinite(state).all()
    assert distances(o, recurrence(inputs, lambda x: unit(as_f32(x)))[0]).max() <= 2


def test_decay_is_that_of_kda_core():
    inputs = segment(3, 2)
    operands = [inputs[name] for name in ("gate", "dt_bias", "a_log")]
    assert same_bits(exp(log_decay(*operands)), kda_core.decay(*operands))
