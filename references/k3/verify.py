"""Verify: drafts of several sequences held against the model's own tokens, in one round.

The rows of a sequence are consecutive tokens of it,

    pending                     anchor                        drafts
    cached, not in its state    its last own token, not fed   what may follow

and those of all sequences, slot after slot, go through the layers as one batch. The pending rows are replayed: they compute again, bit for bit, what
they did as anchor and drafts of the round before, now that it is known which of them stay, and take the state past them. They write no cache. Anchor
and drafts begin at that state; what they make of it is discarded, since some may be rejected. The drafts that the model itself says stay, and its own
token after them is the next anchor. Rows are not padded to a bucket: a graph belongs to a layout of rows, as the calls of a KDA layer do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from references.contract.inputs import BF16
from references.k3.backend import Array, Backend
from references.k3.config import HEAD, Config
from references.k3.model import Cache, Calls, Model, State
from references.k3.step import Features, by_head, forward, kda_gates, logits, mla, project


@dataclass
class Tail:
    """Of a sequence: its last own token, not fed yet; the cached tokens that its state has not seen; where of the two its state is."""

    anchor: int
    parity: int
    pending: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """The rows of one slot: `replay` of them from `start` on, then anchor and drafts up to `stop`. first: the anchor's among the rows of the head."""

    slot: int
    parity: int
    start: int
    replay: int
    stop: int
    first: int

    @property
    def anchor(self) -> int:
        return self.start + self.replay

    @property
    def fresh(self) -> int:
        """Anchor and drafts."""
        return self.stop - self.anchor


def layout(tails: Mapping[int, Tail], drafts: Mapping[int, Sequence[int]]) -> tuple[Part, ...]:
    parts, start, first = [], 0, 0
    for slot in sorted(drafts):
        replay, fresh = len(tails[slot].pending), 1 + len(drafts[slot])
        parts.append(Part(slot, tails[slot].parity, start, replay, start + replay + fresh, first))
        start, first = start + replay + fresh, first + fresh
    return tuple(parts)


def round_rows(c: Config, backend: Backend, b: int) -> SimpleNamespace:
    """As a decode step's; `head`: the rows that get logits; the convolved streams and the attention of a KDA layer, which are made slot by slot."""
    shapes = {"ids": (b,), "table": (b, c.pages), "context": (b,)}
    held = {name: backend.upload(np.zeros(shape, np.int32)) for name, shape in shapes.items()}
    held |= {name: backend.upload(np.zeros(b, np.int64)) for name in ("page", "row", "head")}
    return SimpleNamespace(**held, streams=backend.upload(np.zeros((3, b, c.inner), BF16)), o=backend.upload(np.zeros((b, c.heads, HEAD), BF16)))


def verify(
    model: Model, call: Calls, rows: SimpleNamespace, parts: Sequence[Part], state: State, cache: Cache, tap: Features | None = None
) -> tuple[Array, Array]:
    """Logits bf16 and greedy tokens i32 of the rows in `rows.head`. A slot's state is read at its parity; replayed rows write the other."""

    def attend(i: int, w: SimpleNamespace, x: Array) -> Array:
        if i in model.config.mla:
            return mla(call, model.config, w, x, rows, cache, i)
        return kda(call, model.config, w, x, rows, parts, state.carry[i], state.memory[i])

    call.place = "start"
    hidden = call("embedding", ids=rows.ids, table=model.ends.embedding)
    return logits(model, call, forward(model, call, hidden, attend, tap)[rows.head])


def kda(
    call: Calls, c: Config, w: SimpleNamespace, x: Array, rows: SimpleNamespace, parts: Sequence[Part], carry: Array, memory: Array
) -> Array:
    p = call("gemm", a=x, w=w.qkv, split_k=1)[:, 0]
    g2, beta, gate = kda_gates(call, c, w, x)

    def segment(start: int, stop: int, state: Array, into: Mapping[str, Array]) -> None:
        at = slice(start, stop)
        q, k, v = (by_head(c, stream[at]) for stream in rows.streams)
        call("kda_chunk", q=q, k=k, v=v, gate=gate[at], dt_bias=w.dt_bias, a_log=w.a_log, beta=beta[at], state=state, into={"o": rows.o[at], **into})

    for part in parts:
        convolve(call, c, w, p, rows, part, carry)
        reached = memory[part.parity, part.slot]
        if part.replay:
            before, reached = reached, memory[1 - part.parity, part.slot]
            segment(part.start, part.anchor, before, {"next": reached})
        segment(part.anchor, part.stop, reached, {})
    o = call("o_norm_gate", x=rows.o, go=w.go, g2=g2, eps=c.eps)
    return project(call, c, o.reshape(x.shape[0], c.inner), w.out)


def convolve(call: Calls, c: Config, w: SimpleNamespace, p: Array, rows: SimpleNamespace, part: Part, carry: Array) -> None:
    """All rows of a slot at once: a window reaches over the anchor."""
    at = slice(part.start, part.stop)
    for j in range(3):
        into = {"y": rows.streams[j, at]} | ({"next": carry[1 - part.parity, j, part.slot]} if part.replay else {})
        call("conv_silu_chunk", p=p[at], taps=w.taps[j], carry=carry[part.parity, j, part.slot], off=j * c.inner, commit_rows=part.replay, into=into)
