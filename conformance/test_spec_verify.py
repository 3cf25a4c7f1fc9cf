"""spec_verify: rounds of drafts, six gates, by the emulators and by the CUDA kernels."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import steps, verify, verify_lane, verify_plain, verify_state
from references.k3 import verify as device
from references.k3.config import TRANSPORTS
from references.k3.pages import Pages
from references.k3.rounds import GRAPHS, Rounds
from references.k3.verify import Part

pytestmark = pytest.mark.steps
both_transports = pytest.mark.parametrize("transport", TRANSPORTS)


@both_transports
def test_01_golden(on, transport):
    """Every landing of the rounds that are stored."""
    assert on(steps.forced, f"{transport}_verify") == []


def test_01_history(on):
    assert on(verify.history) == []


def test_02_rejected_drafts(on):
    assert on(verify.rejected) == []


def test_02_a_draft_that_is_not_finite(on):
    assert on(verify.not_finite) == []


def test_03_neighbours(on):
    assert on(verify.neighbours) == []


def test_04_a_corrupt_draft(on):
    assert on(verify.corrupted) == []


def test_04_corrupt_values(on):
    """Those that nobody owns change nothing; one within the context does."""
    assert on(verify.spoiled) == [] and on(verify.spoiled, True, 2) != []


@both_transports
def test_05_tracks_plain_decoding(on, transport, reported):
    beyond, spent, told = on(verify_plain.tracks, transport)
    reported(told, *(f"spent: {line}" for line in spent))
    assert beyond == []


def test_06_draft_lane(on, reported):
    found, told = on(verify_lane.lane)
    reported(told)
    assert found == []


# What a round leaves behind


def test_the_state_of_the_accepted_tokens(on, reported):
    found, told = on(verify_state.committed)
    reported(*told)
    assert found == []


def test_replayed_rows_are_those_of_the_round_before(on):
    assert on(verify_state.replays) == []


# Graphs, and every kernel of a round


@pytest.mark.parametrize("kept", [GRAPHS, 1])
def test_graphs_equal_eager(gpu, kept):
    assert gpu.call(verify.graphed, "cuda", kept) == []


def test_graphs_of_sequences_that_come_and_go(gpu):
    assert gpu.call(verify.neighbours, "cuda", True) == []


def test_the_lane_of_graphs(gpu):
    assert gpu.call(verify_lane.graphed, "cuda") == []


def test_every_landing(gpu):
    assert gpu.call(verify_state.every_landing, "cuda") == []


# What must not pass


def moved(part: Part, **by: int) -> Part:
    return replace(part, **{name: max(0, getattr(part, name) + count) for name, count in by.items()})


def rejected_features():
    right = Rounds._commit

    def plant(self, part, tokens):
        right(self, part, tokens)
        self.lane.length[part.slot] += part.fresh - len(tokens)

    return Rounds, "_commit", plant


def convolving(by: int):
    right = device.convolve
    return device, "convolve", lambda call, c, w, p, rows, part, carry: right(call, c, w, p, rows, moved(part, replay=by), carry)


def drafts_in_the_state():
    """All but the last."""
    right = device.kda

    def plant(call, c, w, x, rows, parts, carry, memory):
        return right(call, c, w, x, rows, [moved(part, replay=part.fresh - 1) for part in parts], carry, memory)

    return device, "kda", plant


def rejected_rows_stay():
    return Pages, "shorten", lambda self, slot, rows: None


def stale_state():
    """Of a slot without replayed rows the other parity."""
    right = device.kda

    def plant(call, c, w, x, rows, parts, carry, memory):
        parts = [part if part.replay else replace(part, parity=1 - part.parity) for part in parts]
        return right(call, c, w, x, rows, parts, carry, memory)

    return device, "kda", plant


def committing(change):
    right = Rounds._commit

    def plant(self, part, tokens):
        before = self.tails[part.slot]
        right(self, part, tokens)
        change(self, part, before, self.tails[part.slot])

    return Rounds, "_commit", plant


def filling(change):
    """change(rows, parts) of the rows on the device."""
    right = Rounds._fill

    def plant(self, parts, drafts):
        right(self, parts, drafts)
        change(self.rows, parts)

    return Rounds, "_fill", plant


def parity_stays(self, part, before, after):
    after.parity = before.parity


def context_of_the_anchor(rows, parts):
    """Replayed rows attend to what follows them."""
    for part in parts:
        rows.context[part.start : part.anchor] = rows.context[part.anchor]


def physical_is_logical(rows, parts):
    rows.table[:, :2] = np.arange(2)


def first_table(rows, parts):
    rows.table[: parts[-1].stop] = rows.table[0].copy()


NAN = "has a NaN logit"
PLANTS = {  # the mistake, the gate and how much of it, what it says
    "physical_is_logical": (lambda: filling(physical_is_logical), verify.scrambled, (2,), NAN),
    "drafts_in_the_state": (drafts_in_the_state, verify.rejected, (verify.WRONG[:1],), "rejected ((3, 2), (2, 1)): round 2"),
    "rejected_rows_stay": (rejected_rows_stay, verify.rejected, (verify.WRONG[:1],), "rejected ((3, 2), (2, 1)): round 2"),
    "neighbours_table": (lambda: filling(first_table), verify.neighbours, (), NAN),
    "parity_stays": (lambda: committing(parity_stays), verify.corrupted, ([0, 1],), "should stay: "),
    "stale_state": (stale_state, verify.spoiled, (), NAN),
    "carry_of_a_later_row": (lambda: convolving(1), verify_state.committed, (2,), "round 1, layer 0: not the carries of the same tokens"),
    "context_of_the_anchor": (lambda: filling(context_of_the_anchor), verify_state.replays, (2,), "round 1: layer 3 mla_paged#1 o is another"),
    "carry_of_an_earlier_row": (lambda: convolving(-1), verify_plain.tracks, ("moe_chain",), "moe_chain, step "),
    "rejected_features": (rejected_features, verify_lane.rejected, (verify.WRONG[1:2],), "rejected ((6, 2, 17), (6, 1, 100)): other rows"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_is_seen(monkeypatch, name):
    """By the gate that is there for it."""
    plant, gate, arguments, said = PLANTS[name]
    verify.oracle("emulator")
    monkeypatch.setattr(verify, "alone", verify.alone.__wrapped__)  # what the gate compares to is made with the mistake too
    monkeypatch.setattr(*plant())
    try:
        found = gate("emulator", *arguments)
        found = found[0] if isinstance(found, tuple) else found
    except (ArithmeticError, ValueError) as error:
        found = [str(error)]
    assert any(said in line for line in found), found
