"""The draft lane and the drafter, by the emulators and by the CUDA kernels."""

import pytest

from conformance import draft
from conformance.plugin import unmet
from goldens import GoldenError, steps
from references.k3.config import SMALL
from references.k3.draft import room

pytestmark = pytest.mark.steps

ANCHORS = (16, 20, 24, 28, 32, 36)  # of the greedy part of a walk
PROPOSED = [  # the same by both transports
    [53, 350, 453, 350, 453, 350], [83, 293, 350, 350, 350, 350], [98, 98, 98, 98, 98, 98],
    [25, 212, 98, 98, 83, 98], [453, 25, 212, 98, 98, 83], [25, 212, 53, 25, 212, 53],
]
WHOLE = [17, 152, 53, 25, 212, 98]  # behind token 53 at 30


# The lane


@pytest.mark.parametrize("pieces", [(0,), (3, 0, 5), (128,), (129,), (300,), (100, 60, 140)], ids=str)
def test_a_ring_keeps_the_last_rows_in_order(on, pieces):
    assert on(draft.ring, pieces) == []


@pytest.mark.parametrize(
    "call, args, said",
    [
        ("append", (0, 512, 6), "count must be 0 .. 5, the rows of features, got 6"),
        ("append", (0, 512, -1), "count must be 0 .. 5, the rows of features, got -1"),
        ("append", (0, 256, 1), "features must be [t, 512], got [5, 256]"),
        ("append", (2, 512, 1), "slot must be 0 .. 1, got 2"),
        ("release", (-1,), "slot must be 0 .. 1, got -1"),
        ("recent", (2,), "slot must be 0 .. 1, got 2"),
        ("append", (0, 512, 5), ""),
    ],
)
def test_what_a_lane_refuses_changes_nothing(on, call, args, said):
    assert on(draft.refused, call, *args) == said


def test_a_lane_ends_where_the_context_does(on):
    assert on(draft.brim) == "count must leave slot 0 within 1088 tokens, got 1088 + 1"


def test_release_poisons(on):
    """Whoever still counts on the rows gets NaN, of which nothing is proposed."""
    assert on(draft.released) == (True, [0, 30], [], [])


# The drafter


@pytest.mark.parametrize("transport", ["moe_chain", "moe_mega"])
def test_proposals(on, transport):
    """Recorded once, at a few places; at all others a device agrees with the emulator."""
    assert on(draft.proposed, transport, ANCHORS) == PROPOSED
    between = tuple(range(17, 40, 4))
    assert on(draft.proposed, transport, between) == draft.proposed("emulator", transport, between)


@pytest.mark.parametrize(
    "asked, said",
    [
        ((53, 6), WHOLE),
        ((53, 3), WHOLE[:3]),
        ((53, 0), []),
        ((52, 6), [416, 212, 98, 98, 83, 98]),
        ((512, 1), "token must be an integer of 0 .. 511, got 512"),
        ((-1, 1), "token must be an integer of 0 .. 511, got -1"),
        ((53, 7), "count must be 0 .. 6, got 7"),
        ((53, -1), "count must be 0 .. 6, got -1"),
        ((53, 6, 2), "slot must be 0 .. 1, got 2"),
        ((53, 6, 0, 1), []),
    ],
    ids=str,
)
def test_what_is_asked(on, asked, said):
    assert on(draft.asked, *asked) == said


@pytest.mark.parametrize("length, fit", [(1081, 6), (1082, 5), (1086, 1), (1087, 0), (1088, 0)])
def test_drafts_are_shed_near_the_ceiling(on, length, fit):
    """The anchor takes the place behind `length` tokens, drafts the next ones."""
    assert room(SMALL, length) == fit
    assert len(on(draft.shed, length)) == fit


@pytest.mark.parametrize("spoil", ["the rest is NaN", "the rest is large", "the rest is another's"])
def test_only_appended_rows_are_read(on, spoil):
    """The same rows do change the proposals once the ring has come to them."""
    before, after = on(draft.spoiled, spoil)
    assert before == after == WHOLE
    before, after = on(draft.spoiled, spoil, 200)
    assert before != after


def test_proposals_hang_on_the_rows(on):
    assert on(draft.spoiled, "another's rows") == (WHOLE, [98] * 6)
    assert on(draft.spoiled, "a NaN in a row") == (WHOLE, [])


def test_a_nan_logit_ends_the_proposals(on):
    assert on(draft.stopped) == (WHOLE, WHOLE[:2])


@pytest.mark.parametrize("transport, prompts", [("moe_chain", 2), ("moe_mega", 1)])
def test_a_fifth_of_the_first_drafts_stay(on, side, reported, transport, prompts):
    """Of rounds that the model verified; what stays is the greedy walk of its golden."""
    rounds, tokens = on(draft.rounds, transport, prompts)
    first, stay = sum(accepted > 0 for _, accepted in rounds), sum(accepted for _, accepted in rounds)
    reported(f"drafts, {side}, {transport}, {prompts} prompts: of {len(rounds)} rounds the first draft stays in {first}, {stay} drafts in all")
    with unmet("the golden walk", GoldenError):
        walked = steps.load(transport)
    assert tokens == walked.greedy[15:31].tolist()
    assert first >= len(rounds) / 5 and all(accepted <= drafts <= SMALL.drafts for drafts, accepted in rounds)
