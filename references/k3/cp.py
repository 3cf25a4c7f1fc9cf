"""Context-parallel prefill: each rank takes one segment of a prompt through all layers, in one chunk.

Convolution: a rank gets the three inputs before its segment, its halo, from the rank before it. Linear attention: what a segment does to a state goes
to all later ranks; each starts from what the earlier segments, folded in order, make of zeros. Attention: latent and rope are exchanged, the triangle
is striped. The last rank ends with the states, every row of the cache and the boundary token, so that decode goes on there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from references.contract.inputs import BF16
from references.k3 import striped
from references.k3.backend import Array
from references.k3.config import HEAD, LATENT, ROW, TAPS, Config
from references.k3.engine import Engine
from references.k3.model import Calls, Model, State, Watch
from references.k3.ranks import SECONDS, Link, Pick, empty, in_process
from references.k3.step import by_head, forward, kda_gates, logits, mla_rows, project

HALO = TAPS - 1


@dataclass(frozen=True)
class Prefilled:
    """What the last rank has. state: of one slot. rows: by MLA layer, bf16 [t, 576] of each segment, in the order of the tokens."""

    logits: Array
    ids: Array
    state: State
    rows: dict[int, list[Array]]
    segments: tuple[int, ...]


def even(tokens: int, ranks: int) -> tuple[int, ...]:
    """Segments as equal as they can be, the longer ones first."""
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    return tuple((tokens + ranks - 1 - rank) // ranks for rank in range(ranks))


def edges(segments: Sequence[int]) -> list[int]:
    """The token at which each segment begins, and where the last one ends."""
    return [sum(segments[:i]) for i in range(len(segments) + 1)]


def check(c: Config, tokens: Sequence[int], segments: Sequence[int]) -> None:
    """ValueError where there is no such prefill."""
    if not segments or min(segments) < 1 or sum(segments) != len(tokens):
        raise ValueError(f"segments must be of at least one token each, {len(tokens)} in all, got {list(segments)}")
    c.check_tokens(tokens)


def check_seat(engine: Engine, slot: int, tokens: int) -> None:
    """ValueError where the engine cannot take over so many tokens in this slot."""
    if engine.lane:
        raise ValueError("engine must have no draft lane: the features of other ranks' tokens stay with them")
    engine.check_free(slot)
    engine.pages.check({slot: tokens})


def prefill_cp(
    engine: Engine, slot: int, tokens: Sequence[int], segments: Sequence[int], pick: Pick = min, seconds: float = SECONDS,
    watch: Callable[[int], Watch] | None = None,
) -> tuple[Array, Array]:
    """Admit a sequence with a prompt, by a rank a segment, all in this process. Logits bf16 [1, vocab] and greedy token i32 [1] after its last token.

    watch: of each rank. ValueError, with nothing changed; RankLost, with the slot still free.
    """
    check(engine.model.config, tokens, segments)
    check_seat(engine, slot, len(tokens))

    def work(link: Link) -> Prefilled | None:
        return prefill(link, engine.model, tokens, segments, watch and watch(link.rank))

    last = in_process(work, len(segments), pick, seconds)[-1]
    adopt(engine, slot, last)
    return last.logits, last.ids


def adopt(engine: Engine, slot: int, last: Prefilled) -> None:
    """Admit what the last rank has."""
    check_seat(engine, slot, sum(last.segments))
    with engine.admitted(slot):
        page, row = map(engine.model.backend.upload, engine.pages.append(slot, sum(last.segments)))
        for layer, parts in last.rows.items():
            for part, (start, end) in zip(parts, pairwise(edges(last.segments)), strict=True):
                engine.cache.append(layer, page[start:end], row[start:end], part[:, :LATENT], part[:, LATENT:])
        engine.adopt(slot, last.state, last.ids)


def prefill(link: Link, model: Model, tokens: Sequence[int], segments: Sequence[int], watch: Watch | None = None) -> Prefilled | None:
    """A rank's part; what the last rank has. ValueError before anything is sent."""
    check(model.config, tokens, segments)
    if len(segments) != link.ranks:
        raise ValueError(f"segments must be one of each of {link.ranks} ranks, got {list(segments)}")
    return Rank(link, model, tuple(segments), watch).prefill(tokens)


class Rank:
    """state: read at parity 0, what the segment starts from; written at parity 1."""

    def __init__(self, link: Link, model: Model, segments: tuple[int, ...], watch: Watch | None = None):
        self.link, self.model, self.segments, self.call = link, model, segments, Calls(model.backend, watch)
        self.rank, self.last = link.rank, link.rank == link.ranks - 1
        self.state, self.rows = State.zeros(model.config, model.backend, 1), {}

    def prefill(self, tokens: Sequence[int]) -> Prefilled | None:
        start, end = edges(self.segments)[self.rank : self.rank + 2]
        ids = self.model.backend.upload(np.array(tokens[start:end], np.int32))
        self.call.place = "start"
        normed = forward(self.model, self.call, self.call("embedding", ids=ids, table=self.model.ends.embedding), self.attend)
        self.state.parity = 1
        return Prefilled(*logits(self.model, self.call, normed[-1:]), self.state, self.rows, self.segments) if self.last else None

    def attend(self, i: int, w: SimpleNamespace, x: Array) -> Array:
        return (self.mla if i in self.model.config.mla else self.kda)(i, w, x)

    # Linear attention

    def kda(self, i: int, w: SimpleNamespace, x: Array) -> Array:
        call, c, t = self.call, self.model.config, x.shape[0]
        carry, memory = self.state.carry[i], self.state.memory[i]
        p = call("gemm", a=x, w=w.qkv, split_k=1)
        before = self.halo(i, p)
        q, k, v = (
            by_head(c, call("conv_silu_chunk", p=p[:, 0], taps=w.taps[j], carry=before[:, j * c.inner : (j + 1) * c.inner], off=j * c.inner,
                            commit_rows=t, into={"next": carry[1, j, 0]})[0]) for j in range(3)
        )
        g2, beta, gate = kda_gates(call, c, w, x)
        decays = {"gate": gate, "dt_bias": w.dt_bias, "a_log": w.a_log, "beta": beta}
        if not self.last:
            self.hand_on(i, *call("kda_affine", k=k, v=v, **decays))
        start = self.folded(i, memory[0, 0]) if self.rank else memory[0, 0]
        o, _ = call("kda_chunk", q=q, k=k, v=v, **decays, state=start, into={"next": memory[1, 0]})
        o = call("o_norm_gate", x=o, go=w.go, g2=g2, eps=c.eps)
        return project(call, c, o.reshape(t, c.inner), w.out)

    def halo(self, i: int, p: Array) -> Array:
        """The inputs before this segment, bf16 [3, 3 * inner], oldest first. The last of its own go to the next rank, after what is left of those."""
        own = self.call("land", p=p[-HALO:], off=0, n=p.shape[-1])
        if len(own) == HALO:
            self.send_halo(i, own)
        before = self.model.backend.upload(np.zeros((HALO, p.shape[-1]), BF16))
        if self.rank:
            self.link.receive(self.rank - 1, f"layer {i} halo", before)
        if len(own) < HALO:
            both = empty(own, HALO, own.shape[1])
            both[: HALO - len(own)], both[HALO - len(own) :] = before[len(own) :], own
            self.send_halo(i, both)
        return before

    def send_halo(self, i: int, rows: Array) -> None:
        if not self.last:
            self.link.send(self.rank + 1, f"layer {i} halo", rows)

    def hand_on(self, i: int, mm: Array, d: Array) -> None:
        for later in range(self.rank + 1, self.link.ranks):
            self.link.send(later, f"layer {i} M", mm)
            self.link.send(later, f"layer {i} D", d)

    def folded(self, i: int, start: Array) -> Array:
        """The state f32 [heads, 128, 128] after all earlier segments."""
        mm, d = (empty(start, self.rank, *start.shape) for _ in "MD")
        for earlier in range(self.rank):
            self.link.receive(earlier, f"layer {i} M", mm[earlier])
            self.link.receive(earlier, f"layer {i} D", d[earlier])
        return self.fold(mm, d, start)

    def fold(self, mm: Array, d: Array, start: Array) -> Array:
        return self.call("kda_fold", mm=mm, d=d, state=start)

    # Attention

    def mla(self, i: int, w: SimpleNamespace, x: Array) -> Array:
        call, c, t = self.call, self.model.config, x.shape[0]
        q, latent, rope, gate = mla_rows(call, c, w, x)
        windows = self.windows(i, latent, rope)
        own = self.keys(w, windows[self.rank])
        o, _ = striped.attention(self.link, call.run, q, lambda segment: own if segment == self.rank else self.keys(w, windows[segment]), c.scale,
                                 self.segments, f"layer {i}")
        return project(call, c, call("mul_sigmoid", a=o.reshape(t, c.inner), b=gate), w.out)

    def windows(self, i: int, latent: Array, rope: Array) -> dict[int, Array]:
        """Cached rows by segment, bf16 [t, 576]: its own, and those that it keeps; of the last rank all, which stay."""
        own = empty(latent, latent.shape[0], ROW)
        own[:, :LATENT], own[:, LATENT:] = latent, rope
        for reader in sorted({*striped.read_by(self.link.ranks, self.rank), self.link.ranks - 1} - {self.rank}):
            self.link.send(reader, f"layer {i} rows", own)
        fetched = range(self.rank) if self.last else striped.kept(self.rank)
        rows = {k: self.link.receive(k, f"layer {i} rows", empty(own, self.segments[k], ROW)) for k in fetched} | {self.rank: own}
        if self.last:
            self.rows[i] = [rows[segment] for segment in range(self.link.ranks)]
        return rows

    def keys(self, w: SimpleNamespace, rows: Array) -> tuple[Array, Array]:
        """k bf16 [t, heads, 192], and bf16 [t, heads, 256] whose last 128 are the values, of rows of the cache."""
        c = self.model.config
        kv = by_head(c, project(self.call, c, rows[:, :LATENT], w.kv_b.reshape(c.heads * 2 * HEAD, -1)))
        return self.call("mla_expand_k", nope=kv[..., :HEAD], rope=rows[:, LATENT:]), kv
