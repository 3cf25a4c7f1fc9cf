"""spec_verify: rounds of drafts, six gates, by the emulators and by the CUDA kernels."""

from dataclasses import replace

import numpy as np
import pytest

from conformance import steps, verify, verify_lane, verify_state
from references.contract.mistakes import same_bits
from references.k3 import verify as rounds
from references.k3.config import PAGE, SMALL, TRANSPORTS
from references.k3.engine import Engine, NotANumber
from references.k3.pages import Pages
from references.k3.verify import Rounds, committed

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


def test_03_neighbours(on):
    assert on(verify.neighbours) == []


def test_04_a_corrupt_draft(on):
    assert on(verify.corrupted) == []


def test_04_corrupt_values(on):
    """Those that nobody owns change nothing; one within the context does."""
    assert on(verify.spoiled) == [] and on(verify.spoiled, True) != []


@both_transports
def test_05_tracks_plain_decoding(on, transport, reported):
    beyond, spent, told = on(verify.tracks, transport)
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


@pytest.mark.parametrize("kept", [rounds.GRAPHS, 1])
def test_graphs_equal_eager(gpu, kept):
    assert gpu.call(verify.graphed, "cuda", kept) == []


def test_graphs_of_sequences_that_come_and_go(gpu):
    assert gpu.call(verify.neighbours, "cuda", True) == []


def test_every_landing(gpu):
    assert gpu.call(verify_state.every_landing, "cuda") == []


# What is refused, and changes nothing


@pytest.fixture
def engine():
    """Slot 1 with a prompt of 3 tokens; slot 0 is free."""
    held = Engine(steps.model("emulator", "moe_chain"), slots=2, pool=2)
    held.prefill(1, [1, 2, 3])
    return held


def everything(engine: Engine) -> str:
    return repr((engine.mode, engine.live, engine.rounds.tails, engine.pages.length, engine.pages.table, engine.pages.free))


@pytest.mark.parametrize(
    "drafts, said",
    [
        ({}, r"drafts must be one of each live slot \[1\], got slots \[\]"),
        ({0: [], 1: []}, r"drafts must be one of each live slot \[1\], got slots \[0, 1\]"),
        ({1: [1] * 7}, "drafts must be at most 6 a slot, got 7 of slot 1"),
        ({1: [1, 512]}, "token must be 0 .. 511, got 512"),
        ({1: [-1]}, "token must be 0 .. 511, got -1"),
    ],
)
def test_rounds_that_are_refused(engine, drafts, said):
    before = everything(engine)
    with pytest.raises(ValueError, match=said):
        engine.verify(drafts)
    assert everything(engine) == before


def test_the_end_of_a_table(engine):
    """Fewer drafts, none, and no anchor."""
    last = SMALL.pages * PAGE
    for length, room in ((3, 6), (last - 7, 6), (last - 3, 2), (last - 1, 0), (last, 0)):
        engine.pages.length[1] = length
        assert engine.room(1) == room
    with pytest.raises(ValueError, match=r"rows must fit the 17 pages of slot 1, got 1088 \+ 1"):
        engine.verify({1: []})


def test_a_pool_without_room(engine):
    engine.prefill(0, [1] * 62)
    before = everything(engine)
    with pytest.raises(ValueError, match=r"rows of slots \[0, 1\] need 1 more pages, 0 of 2 are free"):
        engine.verify({0: [1, 2], 1: []})
    assert everything(engine) == before


def test_no_step_beside_rounds(engine):
    engine.verify({1: []})
    with pytest.raises(ValueError, match="step must not be mixed with verify on one engine"):
        engine.step({1: 1})
    other = Engine(engine.model, slots=1)
    other.prefill(0, [1])
    other.step({0: 1})
    with pytest.raises(ValueError, match="verify must not be mixed with step on one engine"):
        other.verify({0: []})


def test_no_round_without_a_prompt(engine):
    engine.admit(0)
    with pytest.raises(ValueError, match="drafts must be of slots that began with a prompt, got slot 0, admitted empty"):
        engine.verify({0: [], 1: []})


def test_emulators_have_no_graphs(engine):
    with pytest.raises(ValueError, match="graph must be False where kernels are emulated, got True"):
        engine.verify({1: []}, graph=True)


def test_a_nan_logit_ends_the_round(engine):
    """For all slots, as if it had not been; without the slot the others go on."""
    engine.prefill(0, [4, 5])
    engine.verify({0: [7], 1: [8, 9]})
    want = Engine(engine.model, slots=1)
    want.prefill(0, [1, 2, 3])
    want.verify({0: [8, 9]})
    engine.state.memory[0][engine.rounds.tails[0].parity, 0] = np.nan
    before = everything(engine)
    with pytest.raises(NotANumber, match="slot 0 has a NaN logit"):
        engine.verify({0: [1, 2], 1: [3]})
    assert everything(engine) == before
    engine.release(0)
    assert same_bits(engine.verify({1: [3]})[1].logits, want.verify({0: [3]})[0].logits)


def test_a_prompt_that_gives_nan_has_no_round(engine):
    engine.rounds.tails[1].anchor = -1
    with pytest.raises(NotANumber, match="slot 1 has a NaN logit"):
        engine.verify({1: []})


@pytest.mark.parametrize(
    "drafts, own, tokens",
    [([], [5], [5]), ([5, 6], [5, 6, 7], [5, 6, 7]), ([5, 6], [5, 7, -1], [5, 7]), ([5, 6], [4, 6, 7], [4]), ([5, 6], [5, -1, 7], [5, -1])],
)
def test_what_is_committed(drafts, own, tokens):
    """A NaN logit behind a rejected draft is nobody's."""
    assert committed(drafts, own) == tokens


def test_pages_of_rejected_rows_are_the_next_again():
    pages = Pages(1, 3, 4, [2, 0, 3, 1])
    pages.append(0, 62)
    pages.append(0, 70)
    pages.shorten(0, 69)
    assert pages.free == [0, 3, 1] and pages.table[0].tolist() == [2, -1, -1] and pages.length[0] == 63
    pages.shorten(0, 0)
    assert pages.append(0, 2)[0].tolist() == [2, 0]


# What must not pass


def moved(part: rounds.Part, **by: int) -> rounds.Part:
    return replace(part, **{name: max(0, getattr(part, name) + count) for name, count in by.items()})


def rejected_features():
    right = Rounds._commit

    def plant(self, part, tokens, features):
        right(self, part, tokens, features)
        self.lane.append(part.slot, features[part.anchor + len(tokens) : part.stop], part.fresh - len(tokens))

    return Rounds, "_commit", plant


def convolving(by: int):
    right = rounds.convolve
    return rounds, "convolve", lambda call, c, w, p, rows, part, carry: right(call, c, w, p, rows, moved(part, replay=by), carry)


def drafts_in_the_state():
    """All but the last."""
    right = rounds.kda

    def plant(call, c, w, x, rows, parts, carry, memory):
        return right(call, c, w, x, rows, [moved(part, replay=part.fresh - 1) for part in parts], carry, memory)

    return rounds, "kda", plant


def rejected_rows_stay():
    return Pages, "shorten", lambda self, slot, rows: None


def stale_state():
    """Of a slot without replayed rows the other parity."""
    right = rounds.kda

    def plant(call, c, w, x, rows, parts, carry, memory):
        parts = [part if part.replay else replace(part, parity=1 - part.parity) for part in parts]
        return right(call, c, w, x, rows, parts, carry, memory)

    return rounds, "kda", plant


def committing(change):
    right = Rounds._commit

    def plant(self, part, tokens, features):
        before = self.tails[part.slot]
        right(self, part, tokens, features)
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
    "parity_stays": (lambda: committing(parity_stays), verify.corrupted, ([0],), "corrupted at 0"),
    "stale_state": (stale_state, verify.spoiled, (), NAN),
    "carry_of_one_row_less": (lambda: convolving(-1), verify_state.committed, (2,), "round 1, layer 0: not the carries of the same tokens"),
    "carry_of_one_row_more": (lambda: convolving(1), verify_state.committed, (2,), "round 1, layer 0: not the carries of the same tokens"),
    "context_of_the_anchor": (lambda: filling(context_of_the_anchor), verify_state.replays, (2,), "round 1: layer 3 mla_paged#1 o is another"),
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
