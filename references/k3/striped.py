"""The striped triangle: causal attention by ranks, each with one segment of the tokens.

Rank r owns segment r: its queries, keys and values. Of the pairs (q, k), k < q, of a query segment and an earlier key segment, the owner of the
queries attends those an odd number of segments apart, with keys and values that it fetched, its window. The holder of the keys attends those an even
number apart: it is sent the queries and hands back the attention and its LSE. So no rank attends more than half a pair above the average.

In slot i every rank attends for the i-th owner it helps and merges what its own i-th helper returns, through two alternating slabs a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from references.contract.inputs import BF16, F32
from references.k3.attention import WIDTH, Merged, Run, attend
from references.k3.backend import Array
from references.k3.ranks import Link, Pick, Sent, empty, in_process

SLABS = 2
Keys = Callable[[int], tuple[Array, Array]]  # of a segment: k bf16 [t, h, 192], v bf16 [t, h, at least 128]

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


class Returns:
    """What this rank hands back. A slab is written again only when the owner took what it held."""

    def __init__(self, link: Link, like: Array, tokens: int, heads: int):
        """like: bf16; tokens: the most of an owner."""
        self.link, self.layout = link, slab_layout(tokens, heads)
        self.memory = empty(like, self.layout[-1].end // BF16.itemsize)
        self.sent: list[tuple[Sent, Sent]] = []  # by slot

    def send(self, owner: int, what: str, o: Array, lse: Array) -> None:
        slot = len(self.sent)
        if slot >= SLABS:
            for part in self.sent[slot - SLABS]:
                part.wait()
        at = self.layout[slab_of(slot)]
        parts = {"attention": self._put(at.o, o), "lse": self._put(at.lse, lse)}
        self.sent.append(tuple(self.link.send(owner, f"{what} {name}", part) for name, part in parts.items()))

    def _put(self, start: int, array: Array) -> Array:
        size = BF16.itemsize
        part = self.memory[start // size : (start + prod(array.shape) * array.dtype.itemsize) // size].view(array.dtype).reshape(array.shape)
        part[...] = array
        return part


# The attention


def attention(link: Link, run: Run, q: Array, keys: Keys, scale: float, tokens: Sequence[int], what: str) -> tuple[Array, Array]:
    """A rank's part: causal attention of its queries, bf16 [t_r, h, 192], over all tokens up to them -> o bf16 [t_r, h, 128], lse f32 [h, t_r].

    keys: of its own segment and of those that it keeps. tokens: of each rank. what: begins the names of all that is sent.
    """
    rank, heads = link.rank, q.shape[1]
    owners, helpers = helped(link.ranks, rank), returns(rank)
    for helper in helpers:
        link.send(helper, f"{what} queries", q)
    merged = Merged(run, len(q), heads)
    for segment in (*kept(rank), rank):
        merged.merge(*attend(run, q, *keys(segment), scale, causal=segment == rank))
    back = Returns(link, q, max((tokens[owner] for owner in owners), default=0), heads)
    for slot in range(slots(link.ranks)):
        if slot < len(owners):
            theirs = link.receive(owners[slot], f"{what} queries", empty(q, tokens[owners[slot]], *q.shape[1:]))
            back.send(owners[slot], what, *attend(run, theirs, *keys(rank), scale, causal=False))
        if slot < len(helpers):
            o = link.receive(helpers[slot], f"{what} attention", empty(q, len(q), heads, WIDTH))
            merged.merge(o, link.receive(helpers[slot], f"{what} lse", empty(merged.lse, heads, len(q))))
    return merged.result()


def striped(
    run: Run, q: Sequence[np.ndarray], k: Sequence[np.ndarray], v: Sequence[np.ndarray], scale: float, pick: Pick = min
) -> list[tuple[np.ndarray, np.ndarray]]:
    """o and lse of each rank's tokens, all in this process: q, k and v have a segment of every rank, which may be empty.

    Any order in which ranks go on gives the same bits; here the lowest that can does.
    """
    if not len(q) == len(k) == len(v):
        raise ValueError(f"q, k and v must have a segment of every rank, got {len(q)}, {len(k)} and {len(v)}")
    for rank, segments in enumerate(zip(q, k, v, strict=True)):
        if len({len(segment) for segment in segments}) > 1:
            raise ValueError(f"q, k and v of rank {rank} must have the same tokens, got {[len(segment) for segment in segments]}")
    tokens = [len(segment) for segment in q]

    def work(link: Link) -> Any:
        return attention(link, run, q[link.rank], lambda segment: (k[segment], v[segment]), scale, tokens, "layer 0")

    return in_process(work, len(q), pick)
