"""The gates on verify, on either side: rounds of drafts give the same bits whatever was before, whatever was rejected, whoever is beside.

Each returns what is wrong, one line a finding. The model has a KDA layer above an attention layer: so what replayed rows attend to reaches a state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from conformance import paging, steps
from conformance.steps import backend
from goldens.walks import scripted
from references.contract.mistakes import same_bits
from references.k3.config import PAGE, SMALL
from references.k3.engine import Engine
from references.k3.model import Model, Watch
from references.k3.rounds import GRAPHS

CONFIG = replace(SMALL, layers=6)  # KDA KDA KDA MLA KDA MLA
PROMPT, GREEDY = 60, 30  # the rounds come to the end of a page
# Of each round how many drafts, and which is corrupted. The second is rejected beyond a page that it alone has begun.
SCRIPT = ((2, None), (6, 0), (4, 1), (0, None), (6, None), (3, 2), (0, None), (6, 5))
Script = Sequence[tuple[int, int | None] | tuple[int, int, int]]


@functools.cache
def model(side: str, transport: str = "moe_chain") -> Model:
    return Model(CONFIG, backend(side), transport)


@functools.cache
def oracle(side: str) -> tuple[int, ...]:
    """A prompt, and the tokens that plain decoding gives after it."""
    engine, tokens = Engine(model(side), slots=1), paging.tokens(1, PROMPT)
    _, ids = engine.prefill(0, tokens)
    for _ in range(GREEDY):
        tokens.append(engine.greedy(ids, 0))
        _, ids = engine.step({0: tokens[-1]})
    return tuple(tokens)


@dataclass(frozen=True)
class Run:
    """A sequence in a slot from round `first` on: `prompt` of its tokens, then rounds whose drafts are cut from the rest.

    script: of each round how many drafts, the corrupted one, and by how much all from there on are moved.
    """

    slot: int
    tokens: tuple[int, ...]
    script: Script = SCRIPT
    prompt: int = PROMPT
    first: int = 0

    @property
    def last(self) -> int:
        return self.first + len(self.script)

    def drafts(self, length: int, at: int) -> list[int]:
        count, corrupted, *moved = self.script[at - self.first]
        drafts = scripted(self.tokens, length, count, corrupted)
        return drafts if not moved else drafts[:corrupted] + [(token + moved[0]) % CONFIG.vocab for token in drafts[corrupted:]]


@dataclass(frozen=True)
class Heard:
    """What a round gave a sequence. logits: bf16 [1 + drafts, vocab], on the host."""

    accepted: int
    tokens: list[int]
    logits: np.ndarray


def played(
    engine: Engine, runs: Sequence[Run], graph: bool = False, before: Callable[[Engine], None] | None = None, watch: Watch | None = None
) -> list[list[Heard]]:
    """The rounds of each run. before: is done ahead of every round."""
    heard: list[list[Heard]] = [[] for _ in runs]
    for at in range(max(run.last for run in runs)):
        for run in runs:
            if run.last == at:
                engine.release(run.slot)
        for run in runs:
            if run.first == at:
                engine.prefill(run.slot, run.tokens[: run.prompt])
        if before:
            before(engine)
        on = {i: run for i, run in enumerate(runs) if run.first <= at < run.last}
        rounds = engine.verify({run.slot: run.drafts(int(engine.pages.length[run.slot]), at) for run in on.values()}, graph, watch)
        for i, run in on.items():
            one = rounds[run.slot]
            heard[i].append(Heard(one.accepted, one.tokens, engine.model.backend.download(one.logits).copy()))
    return heard


@functools.cache
def alone(side: str, run: Run | None = None) -> list[Heard]:
    return played(Engine(model(side), slots=1), [replace(run, slot=0, first=0) if run else Run(0, oracle(side))])[0]


def apart(name: str, got: Sequence[Heard], want: Sequence[Heard], rows: slice = slice(None), first: int = 0) -> list[str]:
    """Rounds, the first of which is `first`, that accept otherwise or have other bits in a row of logits."""
    for at, (a, b) in enumerate(zip(got, want, strict=True), first):
        if a.tokens != b.tokens:
            return [f"{name}: round {at} commits {a.tokens}, not {b.tokens}"]
        if not same_bits(a.logits[rows], b.logits[rows]):
            return [f"{name}: round {at} commits the same on other logits"]
    return []


# 1: history


def history(side: str) -> list[str]:
    """The same rounds again: after 64 steps of another engine, in a slot used before, on scrambled pages that hold what must not matter."""
    want, run = alone(side), Run(0, oracle(side))
    other = Engine(steps.model(side, "moe_mega"), slots=2)
    other.admit(1)
    for token in paging.tokens(6, 64):
        other.step({1: token})
    found = apart("after a walk of another engine", played(Engine(model(side), slots=1), [run])[0], want)
    again = played(Engine(model(side), slots=1), [replace(run, script=SCRIPT[:3]), replace(run, first=3, script=SCRIPT[:5])])[1]
    found += apart("in a slot used before", again, want[:5])
    return found + scrambled(side)


def scrambled(side: str, rounds: int = 4, layouts: Sequence[str] = ("scrambled", "large", "others_data")) -> list[str]:
    """A run alone has its pages in order, among NaN."""
    found, run = [], Run(0, oracle(side), SCRIPT[:rounds])
    for name in layouts:
        layout = paging.LAYOUTS[name]
        engine = Engine(model(side), slots=2, pool=paging.POOL, free=layout.free)
        backend(side).write(engine.cache.rows, paging.FILLS[layout.fill](tuple(engine.cache.rows.shape)))
        guest = [Run(1, tuple(paging.tokens(2, 60)), run.script, prompt=5)] if layout.guest else []
        found += apart(f"pages {name}", played(engine, [*guest, run])[-1], alone(side, run))
    return found


# 2: rejected drafts


WRONG = (((3, 2), (2, 1)), ((6, 2, 17), (6, 1, 100)), ((6, 2, 200), (4, 1, 3)))


def rejected(side: str, wrong: Sequence[Script] = WRONG) -> list[str]:
    """Two drafts stay of the first round, one of the second: however many others came after them, and whichever they were, nothing later knows."""
    rest, found = SCRIPT[4:7], []
    want = alone(side, Run(0, oracle(side), ((2, None), (1, None), *rest)))
    for first, second in wrong:
        got = alone(side, Run(0, oracle(side), (first, second, *rest)))
        found += apart(f"rejected {first, second}", got[2:], want[2:], first=2)
        found += apart(f"accepted before {first, second}", got[:2], want[:2], rows=slice(2))
    return found


def not_finite(side: str) -> list[str]:
    """The rejected draft's embedding is NaN: what is committed, the anchor's logits and the sequence beside it are those of any rejected draft."""
    run, other = Run(0, oracle(side), ((2, None), (6, 0), (1, None))), Run(1, oracle(side), ((2, None), (3, None), (0, None)), 62)
    of, (draft, *_) = model(side), run.drafts(PROMPT + 3, 1)
    table = of.backend.download(of.ends.embedding).copy()
    table[draft] = np.nan
    spoilt = SimpleNamespace(**vars(of) | {"ends": SimpleNamespace(**vars(of.ends) | {"embedding": of.backend.upload(table)})})
    its, others = played(Engine(spoilt, slots=2), [run, other])
    return apart("a draft of NaN", its, alone(side, run), rows=slice(1)) + apart("beside a draft of NaN", others, alone(side, other))


# 3: neighbours


def neighbours(side: str, graph: bool = False) -> list[str]:
    """Sequences that come and go, in slots used before, with other counts of drafts: each has the bits that it has alone."""
    tokens, stranger = oracle(side), tuple(paging.tokens(2, 60))
    runs = [
        Run(2, tokens, SCRIPT[:6]), Run(0, tokens, ((1, None), (5, None), (6, 2)), 66), Run(0, stranger, ((6, None), (0, None)), 5, first=4),
        Run(5, tokens, ((0, None), (0, None), (6, None), (0, None)), 62, first=1), Run(3, stranger, ((3, None),) * 3, 9, first=2),
    ]
    got = played(Engine(model(side), slots=6), runs, graph)
    return [line for run, its in zip(runs, got, strict=True) for line in apart(f"slot {run.slot} from round {run.first}", its, alone(side, run))]


# 4: corruption


def corrupted(side: str, places: Sequence[int] = range(CONFIG.drafts)) -> list[str]:
    """Of six drafts that plain decoding gives one is another token: those before it stay, and what is committed is what plain decoding gives."""
    run, at, found = Run(0, oracle(side), ((6, None), *((6, place) for place in places))), PROMPT + 1, []
    for heard, stay in zip(alone(side, run), (6, *places), strict=True):
        want, at = list(run.tokens[at : at + stay + 1]), at + stay + 1
        found += [] if (heard.accepted, heard.tokens) == (stay, want) else [f"{stay} should stay: {heard.tokens}, not {want}"]
    return found


def spoiled(side: str, live: bool = False, rounds: int = len(SCRIPT)) -> list[str]:
    """Before every round all that nobody owns becomes NaN: rows past the length, free pages, the sink, the state that is not current, the buffers.

    live: a row of the context too, which must be seen.
    """

    def spoil(engine: Engine) -> None:
        length, table, nan = int(engine.pages.length[0]), engine.pages.table[0], float("nan")
        for page in (*engine.pages.free, engine.cache.sink):
            engine.cache.rows[page] = nan
        engine.cache.rows[int(table[(length - 1) // PAGE]), :, (length - 1) % PAGE + 1 :] = nan
        if live:
            engine.cache.rows[int(table[0]), :, 0] = 100.0
        parity = engine.rounds.tails[0].parity
        for held in (*engine.state.carry.values(), *engine.state.memory.values()):
            held[1 - parity] = nan
        if engine.rounds.rows:
            engine.rounds.rows.streams[:], engine.rounds.rows.o[:] = nan, nan

    run = Run(0, oracle(side), SCRIPT[:rounds])
    return apart("spoiled", played(Engine(model(side), slots=1, pool=3), [run], before=spoil)[0], alone(side)[:rounds])


# Graphs


def graphed(side: str, kept: int = GRAPHS) -> list[str]:
    """Rounds of three layouts, each captured once and replayed, or where fewer graphs are kept captured again: the bits of the eager ones."""
    run = Run(0, oracle(side), ((3, None),) * 7)
    with patch("references.k3.rounds.GRAPHS", kept):
        engine = Engine(model(side), slots=1)
        found = apart("graph", played(engine, [run], graph=True)[0], alone(side, run))
    return found + ([] if len(engine.rounds.graphs) == min(kept, 3) else [f"{len(engine.rounds.graphs)} graphs of three layouts"])
