"""The time of context-parallel prefill to the first token, which is no gate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from conformance.cp import model, seat
from conformance.steps import backend, timed
from goldens.walks import Plan, parallel
from references.k3.cp import even, prefill, prefill_cp
from references.k3.engine import Engine
from references.k3.processes import spawned
from references.k3.ranks import Link


def first_token(side: str, tokens: int, ranks: int = 4) -> str:
    """Ranks in one process work one after another: what is told is the sum of their work."""
    plan = parallel(even(tokens, ranks))
    given = plan.tokens()[:tokens]

    def one_rank(engine: Engine) -> None:
        engine.greedy(engine.prefill(0, given, tokens)[1], 0)

    def all_ranks(engine: Engine) -> None:
        engine.greedy(prefill_cp(engine, 0, given, plan.segments)[1], 0)

    one, several = (min(timed(side, partial(work, seat(side, plan))) for _ in range(2)) for work in (one_rank, all_ranks))
    return f"first token, {side}, {tokens:6} tokens: one rank {one * 1e3:.1f} ms; {ranks} ranks in one process {several * 1e3:.1f} ms in all"


def raced(link: Link, side: str, sizes: Sequence[int]) -> list[float]:
    """A rank's work: seconds from a common start to the boundary token, of each size."""
    return [min(_raced(link, side, parallel(even(tokens, link.ranks))) for _ in range(3)) for tokens in sizes]


def _raced(link: Link, side: str, plan: Plan) -> float:
    held, given, ready = model(side, plan.config), plan.tokens()[: plan.first + 1], backend(side).upload(np.zeros(1, np.uint8))
    for source, to in [(rank, 0) for rank in range(1, link.ranks)] + [(0, rank) for rank in range(1, link.ranks)]:
        if link.rank == source:
            link.send(to, "ready", ready)
        elif link.rank == to:
            link.receive(source, "ready", ready)

    def work() -> None:
        last = prefill(link, held, given, plan.segments)
        if last:
            backend(side).download(last.ids)

    return timed(side, work)


def races(kind: str, side: str, sizes: Sequence[int], ranks: int) -> list[str]:
    """Of ranks with a process, and a GPU, each."""
    seconds = spawned(raced, ranks, kind, side, tuple(sizes), seconds=300)[-1]
    return [f"first token, {side}, {size:6} tokens: {ranks} ranks over {kind} {one * 1e3:.1f} ms" for size, one in zip(sizes, seconds, strict=True)]
