"""The gate on the draft lane, on either side: rounds whose drafts are guessed from what the model's layers gave for the tokens that stayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance import paging, steps
from conformance.steps import backend
from conformance.verify import CONFIG, SCRIPT, WRONG, Heard, Run, Script, apart, model, oracle, played
from goldens import steps as goldens
from references.contract.mistakes import same_bits
from references.k3.config import PAGE
from references.k3.draft import Drafter, Lane
from references.k3.engine import Engine
from references.k3.model import Model

SHORT = replace(CONFIG, pages=2)
PROMPT, ROUNDS = 20, 6  # of the last round a draft stays


@dataclass(frozen=True)
class Guess:
    drafts: list[int]
    heard: Heard


class Speculation:
    """An engine with a lane, and its drafter."""

    def __init__(self, of: Model, slots: int = 2):
        self.lane = Lane(of.config, of.backend, slots)
        self.engine, self.drafter, self.download = Engine(of, slots=slots, lane=self.lane), Drafter(of, self.lane), of.backend.download
        self.anchors: dict[int, int] = {}
        self.found: list[str] = []

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        self.anchors[slot] = self.engine.greedy(self.engine.prefill(slot, prompt)[1], 0)

    def end(self, slot: int) -> None:
        self.engine.release(slot)
        del self.anchors[slot]
        self.found += [f"slot {slot} is released, its lane holds {self.lane.length[slot]} rows"] if self.lane.length[slot] else []

    def round(self) -> dict[int, Guess]:
        drafts = {slot: self.drafter.propose(slot, anchor, self.engine.room(slot)) for slot, anchor in self.anchors.items()}
        rounds = self.engine.verify(drafts)
        for slot, one in rounds.items():
            self.anchors[slot] = one.tokens[-1]
            if self.lane.length[slot] != self.engine.pages.length[slot]:
                self.found.append(f"slot {slot}: {self.lane.length[slot]} rows in the lane, {self.engine.pages.length[slot]} tokens")
        return {slot: Guess(drafts[slot], Heard(one.accepted, one.tokens, self.download(one.logits).copy())) for slot, one in rounds.items()}


def lane(side: str) -> tuple[list[str], str]:
    """Bounds, a slot released and filled again, the same beside another, what was rejected, the end of the context. And how many drafts stay."""
    of, prompt = steps.model(side, "moe_chain"), goldens.load("moe_chain").tokens[:PROMPT].tolist()
    alone = Speculation(of)
    alone.begin(0, prompt)
    want = [alone.round()[0] for _ in range(ROUNDS)]
    alone.end(0)
    alone.begin(0, prompt)
    found = parting("filled again", [alone.round()[0] for _ in range(ROUNDS)], want)
    beside = Speculation(of)
    beside.begin(0, paging.tokens(2, 9))
    beside.round()
    beside.begin(1, prompt)
    found += parting("beside another", [beside.round()[1] for _ in range(ROUNDS)], want)
    given, stay = sum(len(one.drafts) for one in want), sum(one.heard.accepted for one in want)
    found += alone.found + beside.found + rejected(side) + ceiling(side)
    return found, f"draft lane, {side}: {stay} of {given} drafts stay, {1 + stay / ROUNDS:.2f} tokens a round"


def parting(name: str, got: Sequence[Guess], want: Sequence[Guess]) -> list[str]:
    pairs = enumerate(zip(got, want, strict=True))
    other = [f"{name}: round {at} proposes {a.drafts}, not {b.drafts}" for at, (a, b) in pairs if a.drafts != b.drafts]
    return other or apart(name, [one.heard for one in got], [one.heard for one in want])


def rejected(side: str, wrong: Sequence[Script] = WRONG[1:2]) -> list[str]:
    """The lane after rounds of which the same drafts stay, others are rejected: the same rows, one of each token."""
    rows = [bits(side, (*script, *SCRIPT[3:5])) for script in (((2, None), (1, None)), *wrong)]
    found = [f"rejected {script}: other rows in the lane" for script, its in zip(wrong, rows[1:], strict=True) if not same_bits(its, rows[0])]
    return found + ([] if np.isfinite(rows[0].astype(np.float32)).all() else ["the lane holds what nobody wrote"])


def graphed(side: str) -> list[str]:
    """The lane after rounds, the last of which replays a graph."""
    script = ((0, None), (1, 0), (1, 0), (1, 0))
    return [] if same_bits(bits(side, script, graph=True), bits(side, script)) else ["graphs append other rows"]


def bits(side: str, script: Script, graph: bool = False) -> np.ndarray:
    of = Speculation(model(side), slots=1)
    played(of.engine, [Run(0, oracle(side), script)], graph)
    return backend(side).download(of.lane.recent(0)).copy()


def ceiling(side: str) -> list[str]:
    """Near the end of the context fewer drafts are taken, to the last token; then the sequence is refused, and nothing changes."""
    of, end = Speculation(Model(SHORT, backend(side)), slots=1), SHORT.pages * PAGE
    of.begin(0, paging.tokens(3, end - 6))
    while (length := int(of.engine.pages.length[0])) < end:
        one = of.round()[0]
        if len(one.drafts) > end - length - 1:
            of.found.append(f"{len(one.drafts)} drafts after {length} tokens of {end}")
    before = state(of)
    try:
        of.round()
        of.found.append(f"a token is fed after {end}")
    except ValueError as error:
        of.found += [] if "rows must fit the 2 pages of slot 0, got 128 + 1" in str(error) else [str(error)]
    return of.found + ([] if state(of) == before else ["a refused round changes something"])


def state(of: Speculation) -> Mapping[str, object]:
    pages = of.engine.pages
    return {"length": pages.length.tolist(), "lane": of.lane.length.tolist(), "free": list(pages.free), "tails": repr(of.engine.rounds.tails)}
