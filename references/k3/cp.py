"""Context-parallel prefill: the striped triangle.

Rank r owns segment r of the tokens: its queries, keys and values. Of the pairs (q, k), k < q, of a query segment and an earlier key segment,
the owner of the queries attends those an odd number of segments apart; it fetches keys and values, its window. The holder of the keys attends
those an even number apart: it fetches the queries and hands back the attention and its LSE. So no rank attends more than half a pair
above the average.

In slot i every rank attends for the i-th owner it helps and merges what its own i-th helper returns, through two alternating slabs a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from references.contract.inputs import BF16, F32
from references.k3.attention import WIDTH, Merged, Run, attend

SLABS = 2

# The schedule


def kept(rank: int) -> range:
    """Key segments that this rank attends with its own queries, beside its own segment, in the order of merging."""
    return range((rank + 1) % 2, rank, 2)


def read_by(ranks: int, rank: int) -> range:
    """Ranks whose window this segment is part of: those that keep it."""
    return range(rank + 1, ranks, 2)


def helped(ranks: int, rank: int) -> range:
    """Owners whose queries this rank attends over its own keys, by slot."""
    return range(rank + 2, ranks, 2)


def returns(rank: int) -> range:
    """Ranks that help this one, by slot."""
    return range(rank - 2, -1, -2)


def slots(ranks: int) -> int:
    """As many as rank 0 helps: (ranks - 1) / 2, rounded down where that is no integer."""
    return (ranks - 1) // 2


def load(ranks: int, rank: int) -> float:
    """Segment pairs that this rank attends; the diagonal counts half."""
    return len(kept(rank)) + len(helped(ranks, rank)) + 0.5


# What a helper hands back


@dataclass(frozen=True)
class Slab:
    """Byte offsets of a return: o bf16 [t, h, 128], then lse f32 [h, t], then the end; each is a multiple of 16."""

    o: int
    lse: int
    end: int


def slab_layout(tokens: int, heads: int) -> tuple[Slab, ...]:
    """The slabs of a rank that helps owners of at most this many tokens."""
    lse = tokens * heads * WIDTH * BF16.itemsize
    end = lse + -(-heads * tokens * F32.itemsize // 16) * 16
    return tuple(Slab(i * end, i * end + lse, (i + 1) * end) for i in range(SLABS))


def slab_of(slot: int) -> int:
    return slot % SLABS


# The attention

Wait = tuple[list[bool], int]  # flags, and which of them


class Striped:
    """Causal attention of all tokens by ranks that share nothing but queries, windows and return slabs.

    q bf16 [t_r, h, 192], k bf16 [t_r, h, 192], v bf16 [t_r, h, 128] of each rank r, in the order of the tokens; a t_r may be 0.
    """

    def __init__(self, run: Run, q: Sequence[np.ndarray], k: Sequence[np.ndarray], v: Sequence[np.ndarray], scale: float):
        if not len(q) == len(k) == len(v):
            raise ValueError(f"q, k and v must have a segment of every rank, got {len(q)}, {len(k)} and {len(v)}")
        for rank, segments in enumerate(zip(q, k, v, strict=True)):
            if len({len(segment) for segment in segments}) > 1:
                raise ValueError(f"q, k and v of rank {rank} must have the same tokens, got {[len(segment) for segment in segments]}")
        self.run, self.q, self.k, self.v, self.scale = run, q, k, v, scale
        self.ranks, self.heads = len(q), q[0].shape[1]
        self.layout = slab_layout(max(map(len, q)), self.heads)
        self.slabs = [np.full(self.layout[-1].end, 0xFF, np.uint8) for _ in q]  # NaN, as long as nothing is returned
        self.published = [False] * self.ranks
        self.returned, self.taken = ([[False] * slots(self.ranks) for _ in q] for _ in range(2))  # by helper and slot
        self.results: list = [None] * self.ranks

    def results_in(self, pick: Callable[[list[int]], int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """o bf16 [t_r, h, 128] and lse f32 [h, t_r] of each rank. Of the ranks that can go on, `pick` says which one does; RuntimeError if none."""
        working = {rank: self.work(rank) for rank in range(self.ranks)}
        waits: dict[int, Wait | None] = dict.fromkeys(working)
        while working:
            ready = [rank for rank, wait in waits.items() if wait is None or wait[0][wait[1]]]
            if not ready:
                raise RuntimeError(f"no rank can go on: {sorted(waits)} wait for each other")
            rank = pick(ready)
            try:
                waits[rank] = next(working[rank])
            except StopIteration:
                del working[rank], waits[rank]
        return self.results

    def work(self, rank: int) -> Iterator[Wait]:
        """A rank's work. Before each step it yields the flag that must be up; meanwhile other ranks may go on."""
        self.published[rank] = True
        merged = Merged(self.run, len(self.q[rank]), self.heads)
        for segment in (*kept(rank), rank):
            yield self.published, segment
            merged.merge(*self.attended(rank, segment))
        owners, helpers = helped(self.ranks, rank), returns(rank)
        for slot in range(slots(self.ranks)):
            if slot < len(owners):
                yield self.published, owners[slot]
                if slot >= SLABS:
                    yield self.taken[rank], slot - SLABS  # what the slab holds
                self.hand_back(rank, slot)
                self.returned[rank][slot] = True
            if slot < len(helpers):
                yield self.returned[helpers[slot]], slot
                merged.merge(*self.slab(helpers[slot], slot, len(self.q[rank])))
                self.taken[helpers[slot]][slot] = True
        self.results[rank] = merged.result()

    def attended(self, owner: int, segment: int) -> tuple[np.ndarray, np.ndarray]:
        return attend(self.run, self.q[owner], self.k[segment], self.v[segment], self.scale, causal=owner == segment)

    def hand_back(self, rank: int, slot: int) -> None:
        owner = helped(self.ranks, rank)[slot]
        o, lse = self.slab(rank, slot, len(self.q[owner]))
        o[...], lse[...] = self.attended(owner, rank)

    def slab(self, rank: int, slot: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """o bf16 [tokens, h, 128] and lse f32 [h, tokens] as they lie in this rank's slab."""
        at, memory = self.layout[slab_of(slot)], self.slabs[rank]
        return _view(memory, at.o, (tokens, self.heads, WIDTH), BF16), _view(memory, at.lse, (self.heads, tokens), F32)


def striped(run: Run, q: Sequence[np.ndarray], k: Sequence[np.ndarray], v: Sequence[np.ndarray], scale: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """o and lse of each rank's tokens. Any order in which ranks go on gives the same bits; here the lowest that can does."""
    return Striped(run, q, k, v, scale).results_in(min)


def _view(memory: np.ndarray, start: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return memory[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
