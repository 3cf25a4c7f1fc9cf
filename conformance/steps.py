"""The gates on whole steps, on either side: each returns what is wrong, one line a step. Arguments and results are plain data, for the worker."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterable, Sequence

import numpy as np

from goldens import steps
from goldens.walks import PLANS, Landed, Recorder, Result, walk
from references.contract.inputs import BF16
from references.contract.mistakes import same_bits
from references.floor import distances
from references.k3.backend import Backend, Emulators
from references.k3.bisect import Lockstep, bisect, rows
from references.k3.config import SMALL, TRANSPORTS, WIDE
from references.k3.engine import Engine
from references.k3.model import Model

FLOOR = 2.0  # ULP: what a golden's margin may be where another form of the schedule gives another token


@functools.cache
def backend(side: str, landed: bool = False) -> Backend:
    if side == "emulator":
        return Landed() if landed else Emulators()
    from references.k3.device import Cuda

    return Cuda()


@functools.cache
def model(side: str, transport: str) -> Model:
    return Model(SMALL, backend(side), transport)


# One sequence alone


def forced(side: str, case: str) -> list[str]:
    """The golden's tokens: every output, on the emulator every landing too, the logits, the token."""
    golden, kernels = steps.load(case), backend(side, landed=True)
    return wrong(golden.problem(one, landings=isinstance(kernels, Landed)) for one in walk(PLANS[case], kernels, golden.tokens))


def greedy(side: str, case: str) -> list[str]:
    """The prompt, then what each step gives."""
    golden = steps.load(case)
    return wrong(golden.problem(one) for one in walk(PLANS[case], backend(side), PLANS[case].tokens()))


def landings(side: str, case: str) -> list[str]:
    """Every landing within every kernel, against the emulator on the same operands."""
    watch = Lockstep(backend(side), Emulators(), landings=True)
    rows(SMALL, backend(side), PLANS[case].transport, steps.load(case).tokens.tolist(), watch)
    return wrong(map(str, watch.found))


def wide(side: str, transport: str, tokens: Sequence[int] = (7,)) -> tuple[list[str], str]:
    """One layer of each kind at K3's width, batch 1: what differs from the emulator on the same operands, and the time that took."""
    watch = Lockstep(backend(side), Emulators())
    rows(WIDE, backend(side), transport, tokens, watch)
    return wrong(map(str, watch.found)), f"K3 width, {transport}: {watch.seconds / len(tokens):.1f} s of CPU a step of {WIDE.layers} layers, emulated"


def wrong(said: Iterable[str]) -> list[str]:
    return [line for line in said if line]


# Sequences side by side


def beside(side: str, transport: str, sequences: Sequence[tuple[int, int, int]], bucket: int = 1, graph: bool = False) -> list[str]:
    """Sequences (slot, first step, steps), each the golden's from its beginning: every row is the golden's, in whatever company.

    A slot may be taken again after it was released. What no sequence owns, state and pages, is NaN.
    """
    golden, found = steps.load(transport), []
    engine = Engine(model(side, transport), slots=max(bucket, *(slot + 1 for slot, _, _ in sequences)))
    for held in (*engine.state.carry.values(), *engine.state.memory.values()):
        held[:] = float("nan")
    for step in range(max(first + count for _, first, count in sequences)):
        for slot in [slot for slot, first, count in sequences if first + count == step]:
            engine.release(slot)
        for slot in [slot for slot, first, _ in sequences if first == step]:
            engine.admit(slot)
        at = {slot: step - first for slot, first, count in sequences if first <= step < first + count}
        found += together(engine, golden, at, bucket, graph) if at else []
    return found


def together(engine: Engine, golden: steps.Walk, at: dict[int, int], bucket: int, graph: bool) -> list[str]:
    """One step: slot i is at step at[i] of the golden."""
    device = engine.model.backend
    watches = {slot: Recorder(device, row=slot) for slot in at}

    def watch(*call) -> None:
        for one in watches.values():
            one(*call)

    logits, ids = engine.step({slot: int(golden.tokens[step]) for slot, step in at.items()}, bucket, graph, watch)
    logits, ids = device.download(logits), device.download(ids)
    results = {slot: Result(step, 0, logits[slot], int(ids[slot]), watches[slot].seen) for slot, step in at.items()}
    return [f"slot {slot}, {problem}" for slot, one in results.items() if (problem := golden.problem(one))]


# Graphs


def replayed(side: str, transport: str) -> list[str]:
    """A captured step gives the golden's bits at both parities, and the same again where it is replayed once more."""
    golden, device = steps.load(transport), backend(side)
    engine, found = Engine(model(side, transport), slots=1), []
    engine.admit(0)
    for step, token in enumerate(golden.tokens.tolist()):
        parity = engine.state.parity
        logits, ids = engine.step({0: token}, graph=True)
        first = device.download(logits)[0].copy()
        found.append(golden.problem(Result(step, token, first, int(device.download(ids)[0]), {})))
        engine.graphs[1, parity][0].replay()  # it reads one parity and writes the other, so it can
        found.append("" if same_bits(first, device.download(logits)[0]) else f"step {step}: another replay gives other logits")
    return wrong(found) + ([] if len(engine.graphs) == 2 else [f"{len(engine.graphs)} graphs, not one for each parity"])


def every_bucket(side: str, transport: str, steps_each: int = 4) -> list[str]:
    """Captured and replayed at both parities, the last row being the one that is held to the golden."""
    return [f"bucket {b}, {line}" for b in SMALL.buckets for line in beside(side, transport, [(b - 1, 0, steps_each)], b, graph=True)]


# Where two forms differ by the noise floor


def flips(case: str, got: Iterable[Result] | None = None) -> tuple[list[str], list[str]]:
    """Steps that give another token than the stepped golden: beyond the floor, and spent on it.

    A coin flip is within it: the golden's own margin is at most FLOOR, and the token among its largest. got: in place of the stored golden's steps.
    """
    walked, base = steps.load(case), stepped(case)
    given = {one.step: one.greedy for one in got} if got is not None else dict(enumerate(walked.greedy.tolist(), int(walked.first)))
    beyond, spent = [], []
    for step, token in given.items():
        want, near = base.greedy[base.at(step)], base.top[base.at(step)].tolist()
        if token != want:
            line = f"{case}, step {step}: token {token}, stepped {want}, margin {base.margin(step):.1f} ulp"
            (spent if base.margin(step) <= FLOOR and token in near else beyond).append(line)
    return beyond, spent


def agreement(side: str, case: str) -> list[str]:
    """Of each step of a prefilled walk: the token, whether the stepped golden gives it, the golden's margin, how far its largest logits are apart."""
    base, lines = stepped(case), []
    for one in walk(PLANS[case], backend(side), steps.load(case).tokens):
        at = base.at(one.step)
        largest = base.bits[at].view(BF16).astype(np.float64)
        apart = np.abs(one.logits[base.top[at]].astype(np.float64) - largest).max() / 2.0 ** (np.frexp(largest[0])[1] - 8)
        says = "the same" if one.greedy == base.greedy[at] else f"stepped {base.greedy[at]}"
        margin = f"margin {base.margin(one.step):.1f} ulp, the golden's largest logits within {apart:.1f} ulp"
        lines.append(f"{case}, {side}, step {one.step}: token {one.greedy}, {says}; {margin}")
    return lines


def stepped(case: str) -> steps.Walk:
    """The golden that a prefilled walk is to agree with."""
    return steps.load("deep" if case.startswith("deep") else PLANS[case].transport)


def other_gemm(side: str, transport: str) -> tuple[list[str], list[str], str]:
    """The golden's tokens through a gemm of another order: tokens beyond the floor, spent on it, and how far the logits are apart."""
    golden = steps.load(transport)
    got = list(walk(PLANS[transport], vendor(side), golden.tokens))
    want = walk(PLANS[transport], backend(side), golden.tokens)
    apart = np.concatenate([distances(a.logits, b.logits) for a, b in zip(got, want, strict=True)])
    told = f"{transport}, gemm of another order: logits apart by {quantiles(apart)}"
    return *flips(transport, got), told


def vendor(side: str) -> Backend:
    """The vendor's gemm; where there is no GPU, two chains of alternate blocks stand for one."""
    if side == "emulator":
        return Emulators({"gemm": "S1.gemm:two_chains"})
    from conformance.vendor import Vendor

    return Vendor()


def quantiles(apart: np.ndarray) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in zip(("median", "p90", "max"), np.quantile(apart, (0.5, 0.9, 1)), strict=True)) + " ulp"


# A wrong kernel


def named(side: str, kernel: str, mistake: str | int) -> tuple[str, list[str]]:
    """What the gate says of kernels of which one makes this mistake, and what the bisection says."""
    wrong = planted(side, {kernel: mistake})
    found = next(filter(None, map(steps.load(TRANSPORTS[0]).problem, walk(PLANS[TRANSPORTS[0]], wrong, PLANS[TRANSPORTS[0]].tokens()))), "")
    return found, list(bisect(SMALL, Emulators(), wrong, TRANSPORTS[0], [1, 2]))


def planted(side: str, mistakes: dict) -> Backend:
    if side == "emulator":
        return Emulators(mistakes)
    from references.k3.device import Cuda

    return Cuda(mistakes)


# Times, which are no gates


def prefill_time(side: str, transport: str) -> str:
    tokens = PLANS["deep"].tokens()[:64]
    taken = [timed(side, lambda: Engine(model(side, transport), slots=1).prefill(0, tokens)) for _ in range(4)][1:]
    return f"prefill, {side}, {transport}: 64 tokens in {statistics.median(taken) * 1e3:.1f} ms (median of {len(taken)})"


def step_time(side: str, transport: str, graph: bool = False) -> str:
    engine = Engine(model(side, transport), slots=1)
    engine.admit(0)
    taken = [timed(side, lambda: engine.step({0: 1}, graph=graph)) for _ in range(12)][4:]
    return f"step, {side}, {transport}, {'graph' if graph else 'eager'}: {statistics.median(taken) * 1e3:.2f} ms (median of {len(taken)})"


def timed(side: str, work) -> float:
    start = time.perf_counter()
    work()
    if side == "cuda":
        backend(side).torch.cuda.synchronize()
    return time.perf_counter() - start
