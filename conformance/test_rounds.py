"""Rounds of drafts beside their gates: what is refused, with nothing changed, and what is committed."""

import numpy as np
import pytest

from conformance import steps
from references.contract import Kernel
from references.contract.mistakes import same_bits
from references.k3.backend import Emulators, Mixture
from references.k3.bisect import Lockstep
from references.k3.config import PAGE, SMALL
from references.k3.cp import prefill_cp
from references.k3.draft import Lane
from references.k3.engine import Engine, NotANumber
from references.k3.model import Model
from references.k3.pages import Pages
from references.k3.rounds import committed


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
        ({1: [1, 512]}, "token must be an integer of 0 .. 511, got 512"),
        ({1: [-1]}, "token must be an integer of 0 .. 511, got -1"),
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
    for slot in (0, -1, 2):
        with pytest.raises(ValueError, match=rf"slot must be a live one of \[1\], got {slot}"):
            engine.room(slot)


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


def test_a_round_that_is_interrupted_may_be_run_again(engine):
    """A step too, on an engine of its own, and a prompt, whose slot is free again."""
    stepped = Engine(engine.model, slots=1)
    stepped.admit(0)
    for act in (lambda watch: engine.verify({1: [8, 9]}, watch=watch), lambda watch: engine.prefill(0, [4, 5, 6], watch=watch),
                lambda watch: stepped.step({0: 7}, watch=watch)):
        before = everything(engine), everything(stepped), stepped.state.parity
        with pytest.raises(Interrupted):
            act(Interrupting(40))
        assert (everything(engine), everything(stepped), stepped.state.parity) == before
        act(None)


class Interrupted(Exception):
    pass


class Interrupting:
    """A watch that ends the calls after so many."""

    def __init__(self, calls: int):
        self.left = calls

    def __call__(self, *call) -> None:
        self.left -= 1
        if not self.left:
            raise Interrupted


def test_what_the_backend_interrupts_may_be_done_again(engine, monkeypatch):
    """Rows are not yet filled, a state not made, a prompt's token not read, by one rank or two."""
    stepped = Engine(engine.model, slots=1)
    stepped.admit(0)

    def interrupted(*args):
        raise Interrupted

    for where, act in (("write", lambda: stepped.step({0: 7})), ("write", lambda: engine.verify({1: [8, 9]})),
                       ("upload", lambda: engine.prefill(0, [4, 5, 6])), ("download", lambda: engine.prefill(0, [4, 5, 6])),
                       ("download", lambda: prefill_cp(engine, 0, [4, 5, 6], (2, 1)))):
        before = everything(engine), everything(stepped)
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(engine.model.backend, where, interrupted)
            act()
        assert (everything(engine), everything(stepped)) == before
        act()
        if 0 in engine.live:
            engine.release(0)


def test_a_round_that_its_lane_interrupts_may_be_run_again(engine, monkeypatch):
    """Of two slots, wherever their rows are uploaded: no slot is committed, and the rings, which went round, hold what they did."""
    lane, backend = Lane(SMALL, engine.model.backend, 2), engine.model.backend
    held = Engine(engine.model, slots=2, lane=lane)
    for slot in (0, 1):
        held.prefill(slot, [slot + 1] * 140)
    held.verify({0: [1], 1: [2]})

    def carried() -> list:
        return [everything(held), lane.length.tolist(), *(lane.recent(slot).tobytes() for slot in (0, 1))]

    before, uploads, upload = carried(), [0], backend.upload

    def interrupted(array):
        uploads[0] -= 1
        if uploads[0] < 0:
            raise Interrupted
        return upload(array)

    for uploads[0] in (0, 1):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(backend, "upload", interrupted)
            held.verify({0: [1, 2, 3], 1: [2]})
        assert carried() == before
    held.verify({0: [], 1: [2]})
    assert lane.length.tolist() == held.pages.length.tolist() and carried() != before


def test_a_nan_logit_ends_the_first_round(engine):
    """And the engine may still step."""
    engine.state.memory[0][0, 1] = np.nan
    before = everything(engine)
    with pytest.raises(NotANumber, match="slot 1 has a NaN logit"):
        engine.verify({1: [8]})
    assert everything(engine) == before


def test_an_output_that_is_not_written_is_none():
    """It moves between backends, and no watch sees it."""
    seen = []
    held = Engine(Model(SMALL, Mixture(Emulators(), Emulators(), ["conv_silu_chunk"])), slots=1)
    held.prefill(0, [1])
    for _ in range(2):
        held.verify({0: []}, watch=lambda place, kernel, inputs, outputs: seen.append((inputs.get("commit_rows"), [*outputs])))
    assert {commit: outputs for commit, outputs in seen if commit is not None} == {0: ["y"], 1: ["y", "next"]}
    target = np.ones(3, np.float32)
    assert Emulators.written({"next": None}, {"next": target}) == {"next": None} and target.tolist() == [1, 1, 1]


def test_an_output_that_one_side_leaves_unwritten_is_seen():
    class Half(Emulators):
        def run(self, kernel, inputs, into=None):
            return super().run(kernel, inputs, into) | {"next": None}

    kernel = Kernel.load("conv_silu_chunk")
    inputs = next(inputs for inputs in (case.make() for case in kernel.cases()) if inputs["commit_rows"])
    for base, other in ((Emulators(), Half()), (Half(), Emulators())):
        watch = Lockstep(base, other)
        watch("layer 0", kernel, inputs, {name: array for name, array in base.run(kernel, inputs).items() if array is not None})
        assert [one.landing for one in watch.found] == ["next: written on one side only"]


def test_a_lane_of_fewer_slots(engine):
    with pytest.raises(ValueError, match="lane must have a place for each of 2 slots, got 1"):
        Engine(engine.model, slots=2, lane=Lane(SMALL, engine.model.backend, 1))


@pytest.mark.parametrize("cap", [0, -1])
def test_chunks_of_nothing(engine, cap):
    before = everything(engine)
    with pytest.raises(ValueError, match=f"size must be at least 1, got {cap}"):
        engine.prefill(0, [1, 2], cap)
    assert everything(engine) == before


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
    pages.shorten(0, 63)
    assert pages.free == [0, 3, 1] and pages.table[0].tolist() == [2, -1, -1] and pages.length[0] == 63
    pages.shorten(0, 63)
    assert pages.append(0, 2)[0].tolist() == [2, 0]
