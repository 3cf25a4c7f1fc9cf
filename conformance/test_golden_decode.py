"""golden_decode: whole steps of the small model against goldens/k3, thirteen gates, by the emulators and by the CUDA kernels.

Gates 10 to 12 are reports: they show, and hold nothing. A graph gate is not run where there is no GPU.
"""

import pytest

from conformance import steps
from conformance.plugin import unmet
from goldens import GoldenError
from references.k3.config import SMALL, TRANSPORTS

pytestmark = pytest.mark.steps
both_transports = pytest.mark.parametrize("transport", TRANSPORTS)
WIDER = {"emulator": ((2, 16), (4, 16), (16, 6), (32, 3), (128, 2)), "cuda": tuple((bucket, 12) for bucket in SMALL.buckets[1:])}
STAGGERED = [(2, 0, 5), (0, 3, 24), (2, 6, 24), (3, 9, 24), (1, 12, 24)]  # slot, first step, steps; slot 2 is released and taken again


@both_transports
def test_01_forced_replay(on, transport):
    assert on(steps.forced, transport) == []


@both_transports
def test_01_every_landing(gpu, transport):
    assert gpu.call(steps.landings, "cuda", transport) == []


@both_transports
def test_02_greedy_replay(on, transport):
    assert on(steps.greedy, transport) == []


@both_transports
def test_03_row_independence(on, transport):
    """Bucket 8: eight replicas, four in the top half, one alone."""
    for slots in (range(8), range(4, 8), (5,)):
        assert on(steps.beside, transport, [(slot, 0, 10) for slot in slots], 8) == []


@both_transports
def test_04_wider_buckets(on, side, transport):
    for bucket, count in WIDER[side]:
        assert on(steps.beside, transport, [(0, 0, count)], bucket) == [], f"bucket {bucket}"


@both_transports
def test_04_gemm_of_another_order(on, transport, reported):
    beyond, spent, told = on(steps.other_gemm, transport)
    reported(told, *(f"spent: {line}" for line in spent))
    assert beyond == []


@both_transports
def test_05_graphs_equal_eager(gpu, transport):
    """One sequence, and sequences that come and go beneath a graph of four rows."""
    assert gpu.call(steps.replayed, "cuda", transport) == []
    assert gpu.call(steps.beside, "cuda", transport, STAGGERED, 4, True) == []


@both_transports
def test_06_every_bucket_captures(gpu, transport):
    assert gpu.call(steps.every_bucket, "cuda", transport) == []


@both_transports
def test_07_staggered_sequences(on, transport):
    assert on(steps.beside, transport, STAGGERED, 4) == []


@both_transports
@pytest.mark.parametrize("case", ["prefill", "chunked"], ids=["08_prefill_then_decode", "09_chunked_prefill"])
def test_prefilled(on, transport, case, reported):
    """The bits of the emulator's, and the tokens of the stepped golden but for coin flips."""
    assert on(steps.forced, f"{transport}_{case}") == []
    with unmet("flips", GoldenError):  # reads the stepped golden as well
        beyond, spent = steps.flips(f"{transport}_{case}")
    reported(*(f"spent: {line}" for line in spent))
    assert beyond == []


@both_transports
def test_10_agreement(on, transport, reported):
    reported(*on(steps.agreement, f"{transport}_prefill"))


@both_transports
def test_11_prefill_time(on, transport, reported):
    reported(on(steps.prefill_time, transport))


@both_transports
def test_12_step_time(on, side, transport, reported):
    reported(*(on(steps.step_time, transport, graph) for graph in ([False, True] if side == "cuda" else [False])))


def test_13_depth(on, reported):
    """A hundred tokens prefilled in chunks, against the same tokens stepped."""
    assert on(steps.forced, "deep") == [] and on(steps.forced, "deep_prefill") == []
    beyond, spent = steps.flips("deep_prefill")
    reported(*on(steps.agreement, "deep_prefill"), *(f"spent: {line}" for line in spent))
    assert beyond == []


@both_transports
def test_k3_width(gpu, transport, reported):
    """One layer of each kind, dense and routed KDA and MLA, in every call."""
    found, told = gpu.call(steps.wide, "cuda", transport)
    reported(told)
    assert found == []


# What must not pass


WRONG = {  # the mistake as the emulator names it, and the number it has in the .cu; where a step made with it parts
    "emulator": [
        ("rms_norm", "S6.bf:truncated", "S"), ("land", "S3.bf:truncated", "S"), ("kda_core", "S2.bf:skipped", "S"),
        ("moe_chain", "S7.bf:truncated", "S"),
    ],
    "cuda": [("rms_norm", 3, "o[")],  # its landing is skipped: a trace stores what would have landed, so the output parts first
}


@pytest.mark.parametrize("side, kernel, mistake, place", [(side, *one) for side, pairs in WRONG.items() for one in pairs])
def test_a_wrong_kernel_is_named(on, kernel, mistake, place):
    """By the gate, and by the bisection with the landing at which it parts."""
    found, lines = on(steps.named, kernel, mistake)
    assert f" {kernel}#1 " in found
    assert len(lines) == 2 and f": {kernel} (call 1) parts at {place}" in lines[0] and "with it alone swapped the logits move" in lines[1]
