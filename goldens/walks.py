"""Walks of one sequence through the engine: what is fed, what is recorded of each step, on any backend."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from references.contract import Kernel
from references.contract.inputs import hashed
from references.k3.backend import Array, Backend, Emulators, Landings
from references.k3.config import PAGE, SMALL, TRANSPORTS, Config
from references.k3.cp import even, prefill_cp
from references.k3.engine import Engine
from references.k3.model import Model, Watch

PROMPT, GREEDY = 16, 24
DEEP = 100  # tokens: a page and a part of the next, three chunks
CP_SEED, MORE = 7, 6  # of the prompts of context-parallel walks, and the tokens fed after them


@dataclass(frozen=True)
class Plan:
    """first: the step whose results come first; the tokens up to it are prefilled in chunks of `cap`, or stepped where that is None.

    prompt: seed and number of the tokens given; steps: in all. Where the given tokens end, each step feeds what the one before it gave.
    segments: the prefill is context-parallel, by a rank each; `long`: of too many tokens to keep every landing of.
    rounds: in place of the steps after the first, of each how many drafts it takes, from the walk of the transport, and which of them is corrupted.
    """

    why: str
    transport: str
    first: int = 0
    cap: int | None = None
    prompt: tuple[int, int] = (0, PROMPT)
    steps: int = PROMPT + GREEDY
    rounds: tuple[tuple[int, int | None], ...] = ()
    segments: tuple[int, ...] = ()

    @property
    def long(self) -> bool:
        return self.steps > 4096

    @property
    def config(self) -> Config:
        """The small model, with pages for so many steps."""
        return replace(SMALL, pages=max(SMALL.pages, -(-self.steps // PAGE)))

    def tokens(self) -> list[int]:
        seed, count = self.prompt
        return [int(token) for token in hashed(seed, (count,)) % SMALL.vocab]


PLANS = {transport: Plan(f"{PROMPT} tokens of a prompt and {GREEDY} greedy ones, experts by {transport}", transport) for transport in TRANSPORTS}
for _transport in TRANSPORTS:
    PLANS[f"{_transport}_prefill"] = Plan(f"the prompt of {_transport} prefilled at once, then its tokens", _transport, PROMPT - 1, PROMPT)
    PLANS[f"{_transport}_chunked"] = Plan(f"13 tokens of {_transport} in chunks of 8 and 5, then its tokens", _transport, 12, 8)
    # All stay, none is given, some stay, none stays; none again, all of fewer; all but the last.
    _rounds = ((6, None), (0, None), (4, 2), (6, 0), (0, None), (3, None), (6, 5))
    PLANS[f"{_transport}_verify"] = Plan(f"the prompt of {_transport} prefilled, then rounds with its tokens as drafts, some corrupted", _transport,
                                         PROMPT - 1, PROMPT, steps=PROMPT + len(_rounds), rounds=_rounds)
PLANS["deep"] = Plan(f"{DEEP} random tokens, stepped", "moe_chain", DEEP - 1, None, (1, DEEP + 2), DEEP + 2)
PLANS["deep_prefill"] = Plan(f"{DEEP} random tokens, in chunks of 48", "moe_chain", DEEP - 1, 48, (1, DEEP + 2), DEEP + 2)


def parallel(segments: tuple[int, ...]) -> Plan:
    first = sum(segments) - 1
    return Plan(f"{first + 1} random tokens prefilled by ranks of {', '.join(map(str, segments))}, then {MORE} more", "moe_chain", first, first + 1,
                (CP_SEED, first + 1 + MORE), first + 1 + MORE, segments=segments)


PLANS |= {f"cp_{name}": parallel(segments) for name, segments in {
    "2": even(516, 2), "4": even(516, 4), "4_odd": even(515, 4), "8_odd": even(515, 8), "short": (2, 1, 300, 3, 1, 208), "few": (9, 30, 2, 17),
    "4_long": even(16896, 4), "4_long_odd": even(16895, 4),
}.items()}


@dataclass(frozen=True)
class Result:
    """Of one step: what it was fed, all logits bf16 [vocab], the token it gave, digests of what it landed by name.

    Of a round: its anchor, the logits of the row that gave the next one, that token.
    """

    step: int
    token: int
    logits: np.ndarray
    greedy: int
    seen: dict[str, int]


class Landed(Emulators):
    """Emulators that keep what the last call landed on its way."""

    last: Landings

    def run(self, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        outputs, self.last = self.landed(kernel, inputs)
        return self.written(outputs, into)


class Recorder:
    """A `watch` that digests the results of a step: `layer 3 land#2 o`, and of `Landed` emulators `layer 3 rms_norm#1 S5.bf`.

    row: of a wider bucket, digested as if it were alone.
    """

    def __init__(self, backend: Backend, row: int | None = None):
        self.backend, self.row, self.calls, self.seen = backend, row, {}, {}
        self.kernels: dict[str, int] = {}

    def __call__(self, place: str, kernel: Kernel, inputs: Mapping[str, Any], outputs: Mapping[str, Array]) -> None:
        number = self.calls[place, kernel.name] = self.calls.get((place, kernel.name), 0) + 1
        self.kernels[kernel.name] = kernel.version
        part = slice(None) if self.row is None else slice(self.row, self.row + 1)
        results = {name: self.backend.download(array[part]) for name, array in outputs.items()}
        for name, array in (getattr(self.backend, "last", {}) | results).items():
            self.seen[f"{place} {kernel.name}#{number} {name}"] = digest(array)

    def of_rank(self, rank: int) -> Watch:
        """`rank 2 layer 3 fmha#1 o`, in the order in which ranks go on: what a mistake reaches comes after it."""
        return lambda place, *call: self(f"rank {rank} {place}", *call)


def digest(array: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8), digest_size=8).digest(), "little")


def walk(plan: Plan, backend: Backend, tokens: Sequence[int], kernels: dict[str, int] | None = None) -> Iterator[Result]:
    """The recorded steps of a plan, fed `tokens`. kernels: gets the versions of those that ran."""
    engine, given = Engine(Model(plan.config, backend, plan.transport), slots=1, pool=plan.config.pages), list(tokens)
    if plan.cap is None:
        engine.admit(0)
    for step in range(plan.first if plan.cap else 0, plan.steps):
        recorder = Recorder(backend)
        if plan.rounds and step > plan.first:
            yield verified(engine, given, step, plan.rounds[step - plan.first - 1], recorder)
        else:
            if plan.segments and step == plan.first:
                logits, ids = prefill_cp(engine, 0, given[: step + 1], plan.segments, watch=recorder.of_rank)
            elif plan.cap and step == plan.first:
                logits, ids = engine.prefill(0, given[: step + 1], plan.cap, watch=recorder)
            else:
                logits, ids = engine.step({0: given[step]}, watch=recorder if step >= plan.first else None)
            greedy = engine.greedy(ids, 0)
            given += [greedy] if len(given) == step + 1 else []
            if step >= plan.first:
                yield Result(step, given[step], backend.download(logits)[0].copy(), greedy, recorder.seen)
        if kernels is not None:
            kernels |= recorder.kernels


def verified(engine: Engine, tokens: Sequence[int], step: int, round_: tuple[int, int | None], recorder: Recorder) -> Result:
    anchor, drafts = engine.rounds.tails[0].anchor, scripted(tokens, int(engine.pages.length[0]), *round_)
    one = engine.verify({0: drafts}, watch=recorder)[0]
    seen = recorder.seen | {"end committed": digest(np.array(one.tokens, np.int32))}
    return Result(step, anchor, engine.model.backend.download(one.logits)[one.accepted].copy(), one.tokens[-1], seen)


def scripted(tokens: Sequence[int], length: int, count: int, corrupted: int | None) -> list[int]:
    """Drafts of a sequence of so many cached tokens: what follows its anchor in `tokens`, one exchanged for another token."""
    drafts = list(tokens[length + 1 : length + 1 + count])
    if corrupted is not None:
        drafts[corrupted] = (drafts[corrupted] + 1) % SMALL.vocab
    return drafts
