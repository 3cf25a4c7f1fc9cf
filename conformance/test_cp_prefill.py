"""cp_prefill: context-parallel prefill of whole steps of the small model, two gates, by the emulators and by the CUDA kernels.

Gate 2 is a report: it shows, and holds nothing.
"""

import pytest

from conformance import cp, cp_times, steps
from conformance.fixtures import needs_torch
from goldens.walks import PLANS
from references.k3.config import SMALL
from references.k3.cp import even, prefill_cp
from references.k3.draft import Lane
from references.k3.ranks import RankLost

pytestmark = pytest.mark.steps
GOLDENS = [case for case, plan in PLANS.items() if plan.segments]
FEW = PLANS["cp_few"].segments
SHORT = PLANS["cp_short"].segments  # shorter than the halo, in the middle and at the beginning
ENDING = (5, 5, 5, 1, 2, 4)  # so short that all of what came before still shows
COMPARED = [even(516, 2), even(516, 4), even(515, 4), even(515, 8), SHORT, FEW, ENDING, (1, 1, 1, 1)]
LONG = [even(tokens, ranks) for tokens in (16896, 16895, 65536, 65535) for ranks in (2, 4, 8)]


@pytest.fixture
def gpus(gpu):
    """How many there are, to have a rank each."""
    count = gpu.call(cp.gpus)
    if count < 2:
        pytest.skip("NCCL needs two GPUs, there is one")
    return min(count, 8)


@pytest.mark.parametrize("segments", COMPARED, ids=str)
def test_01_against_one_rank(on, segments, reported):
    found, told = on(cp.against_one, segments)
    reported(told)
    assert found == []


@pytest.mark.parametrize("segments", LONG, ids=lambda segments: f"{sum(segments)}_by_{len(segments)}")
def test_01_against_one_rank_long(gpu, segments, reported):
    found, told = gpu.call(cp.against_one, "cuda", segments)
    reported(told)
    assert found == []


@pytest.mark.parametrize("case", [case for case in GOLDENS if not PLANS[case].long])
def test_01_forced_replay(on, case):
    """Every output of every rank, on the emulator every landing; then decode, from what the last rank has."""
    assert on(steps.forced, case) == []


@pytest.mark.parametrize("case", [case for case in GOLDENS if PLANS[case].long])
def test_01_forced_replay_long(gpu, case):
    assert gpu.call(steps.forced, "cuda", case) == []


@pytest.mark.parametrize("case", ["cp_4", "cp_short"])
def test_01_every_landing(gpu, case):
    assert gpu.call(cp.landings, "cuda", case) == []


def test_01_any_order_of_ranks(on, side):
    assert on(cp.orders, FEW if side == "emulator" else SHORT, 4) == []


def test_01_one_rank_is_the_engine_alone(on):
    assert on(cp.one_rank, 130) == []


def test_01_rounds_go_on_from_it(on):
    """Verify takes the slot over as decode does."""
    stepped, verified = on(cp.verified, FEW)
    assert stepped == verified


def test_02_time_to_first_token(on, side, reported):
    for tokens in [128] if side == "emulator" else [1 << i for i in range(7, 18)]:
        reported(on(cp_times.first_token, tokens))


# What must not pass


@pytest.mark.parametrize("plant, named", [
    ("transposed merge", "rank 2 layer 0 kda_fold#1 next"), ("missing halo", "rank 1 layer 0 conv_silu_chunk#1 y"),
    ("another order of merges", "rank 3 layer 3 "), ("a window one token short", "rank 1 layer 3 fmha#1 o"),
])
def test_a_wrong_schedule_is_named(on, plant, named, reported):
    """By the golden; what reaches the state by the comparison with one rank, too."""
    said, found, told = on(cp.planted, plant, "cp_few")
    reported(told)
    assert f": {named}" in said
    assert any(line.startswith("layer 0: states apart") for line in found) == (plant in ("transposed merge", "missing halo"))


# Ranks with a process each


@needs_torch
@pytest.mark.parametrize("segments", [(30, 9), FEW], ids=str)
def test_processes_give_the_same_bits(segments):
    assert cp.differing(cp.distributed("gloo", "emulator", segments), cp.boundaries("emulator", segments)) == []


def test_gpus_give_the_same_bits(gpus, gpu, reported):
    segments = even(515, gpus)
    assert cp.differing(cp.distributed("nccl", "cuda", segments), gpu.call(cp.boundaries, "cuda", segments)) == []
    reported(*cp_times.races("nccl", "cuda", [1 << i for i in range(7, 18)], gpus))


# What is refused


@pytest.mark.parametrize("tokens, segments, slot, said", [
    ([1] * 4, (3, 0, 1), 0, r"segments must be of at least one token each, 4 in all, got \[3, 0, 1\]"),
    ([1] * 4, (2, 3), 0, r"segments must be of at least one token each, 4 in all, got \[2, 3\]"),
    ([1] * 2, even(2, 3), 0, r"segments must be of at least one token each, 2 in all, got \[1, 1, 0\]"),
    ([], (), 0, r"segments must be of at least one token each, 0 in all, got \[\]"),
    ([1, 512], (1, 1), 0, "token must be an integer of 0 .. 511, got 512"),
    ([1, 2], (1, 1), 1, "slot must be a free one of 2, got 1"),
    ([1] * 65, (64, 1), 0, r"rows of slots \[0\] need 2 more pages, 1 of 2 are free"),
])
def test_what_is_refused(tokens, segments, slot, said):
    """With nothing changed."""
    engine = cp.Engine(cp.model("emulator", SMALL), slots=2, pool=2)
    engine.prefill(1, [1])
    with pytest.raises(ValueError, match=said):
        prefill_cp(engine, slot, tokens, segments)
    assert engine.live == {1} and engine.pages.length.tolist() == [0, 1]


def test_a_draft_lane_is_refused():
    held = cp.model("emulator", SMALL)
    engine = cp.Engine(held, slots=1, lane=Lane(SMALL, held.backend, 1))
    with pytest.raises(ValueError, match="engine must have no draft lane"):
        prefill_cp(engine, 0, [1, 2], (1, 1))
    assert not engine.live


def test_a_lost_rank_takes_no_slot():
    def watch(rank):
        def fail(place, *call):
            if (rank, place) == (1, "layer 3"):
                raise ArithmeticError("a bad day")
        return fail

    engine = cp.Engine(cp.model("emulator", SMALL), slots=1)
    with pytest.raises(RankLost, match="rank 1 failed: ArithmeticError: a bad day"):
        prefill_cp(engine, 0, [1] * 9, (3, 3, 3), watch=watch)
    assert not engine.live and not engine.pages.length.any()
