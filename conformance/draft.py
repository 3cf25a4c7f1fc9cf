"""Gates on the draft lane and the drafter, on either side. Arguments and results are plain data, for the worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np

from conformance.steps import backend, model
from goldens import steps
from references.contract.inputs import BF16, hashed, ordinary, values
from references.contract.mistakes import same_bits
from references.k3.backend import Array
from references.k3.config import SMALL
from references.k3.draft import WINDOW, Drafter, Lane, ceiling
from references.k3.engine import Engine
from references.k3.model import NAN

WIDTH = len(SMALL.taps) * SMALL.hidden
CHAIN = "moe_chain"


# The lane


def lane(side: str, slots: int = 2) -> Lane:
    return Lane(SMALL, backend(side), slots)


def refused(side: str, call: str, *args) -> str:
    """What a lane that holds 3 tokens in slot 0 says, and it must be left as it is. Of `append`, features are given by their columns."""
    one = filled(side, 3)
    before = one.backend.download(one.rows).copy()
    try:
        getattr(one, call)(*(one.backend.upload(before[0, :5, :arg]) if i == 1 else arg for i, arg in enumerate(args)))
    except ValueError as error:
        kept = same_bits(one.backend.download(one.rows), before) and one.length.tolist() == [3, 0]
        return str(error) if kept else "the lane has changed"
    return ""


def filled(side: str, *counts: int) -> Lane:
    """Slots that hold so many rows of ordinary features."""
    one = lane(side)
    for slot, count in enumerate(counts):
        one.append(slot, one.backend.upload(ordinary(slot, (count, WIDTH))), count)
    return one


def ring(side: str, pieces: Sequence[int]) -> list[str]:
    """However a sequence comes, its last WINDOW rows are there, in order. Each piece brings a row more than it appends."""
    one, given, start = lane(side), ordinary(0, (sum(pieces) + 1, WIDTH)), 0
    for count in pieces:
        one.append(0, one.backend.upload(given[start : start + count + 1]), count)
        start += count
    got, want = one.backend.download(one.recent(0)), given[max(0, start - WINDOW) : start]
    held = one.backend.download(one.rows)
    said = [] if same_bits(got, want) else ["recent rows are not the last appended"]
    free = np.isnan(held[0].astype(np.float32)).all(axis=1).sum()
    said += [] if free == max(0, len(held[0]) - start) else ["rows that nothing was appended to are not NaN"]
    return said + ([] if one.length.tolist() == [start, 0] and np.isnan(held[1].astype(np.float32)).all() else ["the other slot has rows"])


def brim(side: str) -> str:
    """A slot takes as many tokens as its pages hold, and says so when it is to take one more."""
    one = lane(side, 1)
    features = one.backend.upload(ordinary(0, (ceiling(SMALL), WIDTH)))
    one.append(0, features, ceiling(SMALL))
    one.append(0, features, 0)
    try:
        one.append(0, features, 1)
    except ValueError as error:
        return str(error)
    return ""


def released(side: str) -> tuple[bool, list[int], list[int], list[int]]:
    """Whether a released slot's rows are the fill and its neighbour's are not; lengths; proposals; those of who counts on rows that have gone."""
    one = drafter(side, CHAIN, 30, 30)
    fill, kept = np.full((WINDOW + 1 + SMALL.drafts, WIDTH), NAN, np.uint16).view(BF16), one.lane.backend.download(one.lane.rows[1]).copy()
    one.lane.release(0)
    rows = one.lane.backend.download(one.lane.rows)
    gone, lengths = same_bits(rows[0], fill) and same_bits(rows[1], kept), one.lane.length.tolist()
    empty = one.propose(0, 1, 6)
    one.lane.length[0] = 30
    return gone, lengths, empty, one.propose(0, 1, 6)


# The drafter


@functools.cache
def features(side: str, case: str) -> Array:
    """Of every token of a walk, prefilled at once."""
    tokens = [int(token) for token in steps.load(case).tokens][: SMALL.tokens]
    one = lane(side, 1)
    Engine(model(side, case if case != "deep" else CHAIN), slots=1, lane=one).prefill(0, tokens)
    return one.recent(0)


def drafter(side: str, transport: str, *counts: int) -> Drafter:
    """Slot 0 holds so many of a walk's first tokens, slot 1 of random ones."""
    one = lane(side)
    for slot, (case, count) in enumerate(zip((transport, "deep"), counts, strict=False)):
        one.append(slot, features(side, case), count)
    return Drafter(model(side, transport), one)


def proposed(side: str, transport: str, anchors: Sequence[int], count: int = SMALL.drafts) -> list[list[int]]:
    """At each of these tokens of the walk, from the features before it."""
    tokens, found, one = steps.load(transport).tokens, [], drafter(side, transport)
    for anchor in anchors:
        one.lane.release(0)
        one.lane.append(0, features(side, transport), anchor)
        found.append(one.propose(0, int(tokens[anchor]), count))
    return found


def asked(side: str, token: int, count: int, slot: int = 0, length: int = 30) -> list[int] | str:
    """Proposals, or what is said instead."""
    one = drafter(side, CHAIN, length, 30)
    try:
        return one.propose(slot, token, count)
    except ValueError as error:
        return str(error)


def shed(side: str, length: int) -> list[int]:
    """Proposals behind so many tokens, as many asked as there ever are."""
    one = drafter(side, CHAIN, 30)
    for count in (length - 30) // 30 * (30,) + ((length - 30) % 30,):
        one.lane.append(0, features(side, CHAIN), count)
    return one.propose(0, 53, SMALL.drafts)


def spoiled(side: str, spoil: str, length: int = 30, token: int = 53) -> tuple[list[int], list[int]]:
    """Proposals from 30 rows (or from a ring that went round), and again after the lane was spoilt."""
    one = drafter(side, CHAIN, 30, 40)
    for start in range(30, length, 34):
        one.lane.append(0, features(side, "deep"), min(34, length - start))
    before = one.propose(0, token, 6)
    SPOILS[spoil](one.lane)
    return before, one.propose(0, token, 6)


def _rest(lane: Lane, number: float) -> None:
    lane.rows[0, 30:], lane.rows[1] = number, number


def _guest(lane: Lane) -> None:
    lane.rows[0, 30:40] = lane.rows[1, 30:40]


def _row(lane: Lane, element: float) -> None:
    lane.rows[0, 17, 300] = element


def _swap(lane: Lane) -> None:
    lane.backend.write(lane.rows[0, :30], lane.backend.download(lane.rows[1, :30]))


SPOILS: dict[str, Callable[[Lane], None]] = {
    "the rest is NaN": lambda lane: _rest(lane, float("nan")), "the rest is large": lambda lane: _rest(lane, 1e30),
    "the rest is another's": _guest, "a NaN in a row": lambda lane: _row(lane, float("nan")), "another's rows": _swap,
}


def stopped(side: str) -> tuple[list[int], list[int]]:
    """Proposals, and again where the embedding of the second of them is NaN."""
    one = drafter(side, CHAIN, 30)
    whole = one.propose(0, 53, 6)
    table = one.model.backend.download(one.model.ends.embedding).copy()
    table[whole[1]] = values(np.nan)
    ends = SimpleNamespace(**vars(one.model.ends) | {"embedding": one.model.backend.upload(table)})
    one.model = SimpleNamespace(**vars(one.model) | {"ends": ends})
    return whole, one.propose(0, 53, 6)


# How often it is right


def rounds(side: str, transport: str, prompts: int = 2, tokens: int = 16) -> tuple[list[tuple[int, int]], list[int]]:
    """Verified rounds from several prompts of 16 tokens, the golden walk's first, until each has so many tokens: drafts and those that stay.

    And the first prompt's tokens.
    """
    one = lane(side, prompts)
    engine, pair = Engine(model(side, transport), slots=prompts, lane=one), Drafter(model(side, transport), one)
    told: dict[int, list[int]] = {}
    for slot in range(prompts):
        prompt = [int(token) for token in hashed(100 + slot if slot else 0, (16,)) % SMALL.vocab]
        told[slot] = [engine.greedy(engine.prefill(slot, prompt)[1], 0)]
    found = []
    while min(map(len, told.values())) < tokens:
        drafts = {slot: pair.propose(slot, said[-1], SMALL.drafts) for slot, said in told.items()}
        for slot, one_round in engine.verify(drafts).items():
            if len(told[slot]) < tokens:
                found.append((len(drafts[slot]), one_round.accepted))
            told[slot] += one_round.tokens
    return found, told[0][:tokens]
