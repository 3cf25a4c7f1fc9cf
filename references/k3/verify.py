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
from references.k3.draft import Lane, room
from references.k3.model import Cache, Calls, Model, State, Watch
from references.k3.pages import Pages
from references.k3.step import NOT_A_TOKEN, Features, NotANumber, by_head, forward, kda_gates, logits, mla, project

GRAPHS = 32  # kept at a time; a round of n sequences has about 100^n layouts


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


@dataclass(frozen=True)
class Round:
    """Of one slot: the drafts that stay, the tokens committed (those and the model's own), logits bf16 [1 + drafts, vocab] of anchor and drafts.

    A replayed graph writes the logits of its last round over.
    """

    accepted: int
    tokens: list[int]
    logits: Array


def layout(tails: Mapping[int, Tail], drafts: Mapping[int, Sequence[int]]) -> tuple[Part, ...]:
    parts, start, first = [], 0, 0
    for slot in sorted(drafts):
        replay, fresh = len(tails[slot].pending), 1 + len(drafts[slot])
        parts.append(Part(slot, tails[slot].parity, start, replay, start + replay + fresh, first))
        start, first = start + replay + fresh, first + fresh
    return tuple(parts)


def committed(drafts: Sequence[int], own: Sequence[int]) -> list[int]:
    """The drafts up to the first that the model does not say, then what it says there; that is NOT_A_TOKEN where a logit is NaN."""
    count = 0
    while count < len(drafts) and drafts[count] == own[count]:
        count += 1
    return [*drafts[:count], int(own[count])]


# On the device


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


# On the host


class Rounds:
    """The rounds of an engine: what is pending of each sequence, and the graphs by layout."""

    def __init__(self, model: Model, pages: Pages, cache: Cache, state: State, lane: Lane | None):
        self.model, self.pages, self.cache, self.state, self.lane = model, pages, cache, state, lane
        self.tails: dict[int, Tail] = {}
        self.graphs: dict[tuple[Part, ...], tuple] = {}
        self.rows: SimpleNamespace | None = None  # made at the first round

    def room(self, slot: int) -> int:
        """Drafts that a round takes of a slot: fewer near the end of its table."""
        return room(self.model.config, int(self.pages.length[slot]))

    def check(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """ValueError or NotANumber, with nothing changed, where there can be no such round."""
        most = self.model.config.drafts
        for slot, given in drafts.items():
            if slot not in self.tails:
                raise ValueError(f"drafts must be of slots that began with a prompt, got slot {slot}, admitted empty")
            if len(given) > most:
                raise ValueError(f"drafts must be at most {most} a slot, got {len(given)} of slot {slot}")
            if self.tails[slot].anchor == NOT_A_TOKEN:
                raise NotANumber(f"slot {slot} has a NaN logit")
        self.pages.check({slot: 1 + len(given) for slot, given in drafts.items()})

    def run(self, drafts: Mapping[int, Sequence[int]], graph: bool, watch: Watch | None) -> dict[int, Round]:
        parts = layout(self.tails, drafts)
        self._fill(parts, drafts)
        results = self._replayed(parts) if graph else self._verify(parts, watch)
        return self._settle(parts, drafts, *results)

    def _fill(self, parts: Sequence[Part], drafts: Mapping[int, Sequence[int]]) -> None:
        """Write the round's rows. Replayed ones write to the sink."""
        c, b = self.model.config, parts[-1].stop
        if self.rows is None:
            self.rows = round_rows(c, self.model.backend, len(self.pages.length) * 2 * (1 + c.drafts))
        ids, context, table = np.zeros(b, np.int32), np.zeros(b, np.int32), np.zeros((b, c.pages), np.int32)
        page, row = np.full(b, self.cache.sink, np.int64), np.zeros(b, np.int64)
        for part in parts:
            at, fresh, tail = slice(part.start, part.stop), slice(part.anchor, part.stop), self.tails[part.slot]
            page[fresh], row[fresh] = self.pages.append(part.slot, part.fresh)
            ids[at], table[at] = [*tail.pending, tail.anchor, *drafts[part.slot]], self.pages.table[part.slot]
            context[at] = int(self.pages.length[part.slot]) + 1 + np.arange(part.start - part.stop, 0)
        head = np.concatenate([np.arange(part.anchor, part.stop) for part in parts])
        for name, values in {"ids": ids, "context": context, "table": table, "page": page, "row": row, "head": head}.items():
            self.model.backend.write(getattr(self.rows, name)[: len(values)], values)

    def _verify(self, parts: Sequence[Part], watch: Watch | None = None) -> tuple[Array, Array, Array | None]:
        """Logits and tokens of the head's rows; the features of all rows, where there is a lane."""
        b, count = parts[-1].stop, parts[-1].first + parts[-1].fresh
        rows = SimpleNamespace(**{name: values[:b] for name, values in vars(self.rows).items()})
        rows.head, rows.streams = self.rows.head[:count], self.rows.streams[:, :b]
        tap = Features(self.model.backend) if self.lane else None
        found = verify(self.model, Calls(self.model.backend, watch), rows, parts, self.state, self.cache, tap)
        return *found, tap.rows() if tap else None

    def _replayed(self, parts: tuple[Part, ...]) -> tuple[Array, Array, Array | None]:
        """As `_verify`, captured at the first round of a layout. The graph used longest ago is dropped."""
        graph, results = self.graphs.pop(parts, None) or self.model.backend.capture(lambda: self._verify(parts))
        self.graphs[parts] = graph, results
        if len(self.graphs) > GRAPHS:
            del self.graphs[next(iter(self.graphs))]
        graph.replay()
        return results

    def _settle(
        self, parts: Sequence[Part], drafts: Mapping[int, Sequence[int]], found: Array, ids: Array, features: Array | None
    ) -> dict[int, Round]:
        """Commit what the model says. NotANumber where a logit is NaN that decides: then nothing is, for any slot, and the round may be run again."""
        own = self.model.backend.download(ids)
        tokens = {part.slot: committed(drafts[part.slot], own[part.first : part.first + part.fresh]) for part in parts}
        nan = [slot for slot, said in tokens.items() if said[-1] == NOT_A_TOKEN]
        for part in reversed(parts):
            self.pages.shorten(part.slot, part.fresh - (0 if nan else len(tokens[part.slot])))
        if nan:
            raise NotANumber(f"slot {nan[0]} has a NaN logit")
        for part in parts:
            self._commit(part, tokens[part.slot], features)
        return {part.slot: Round(len(tokens[part.slot]) - 1, tokens[part.slot], found[part.first : part.first + part.fresh]) for part in parts}

    def _commit(self, part: Part, tokens: list[int], features: Array | None) -> None:
        """The replayed rows are in the state; the anchor and the drafts that stay are pending."""
        tail = self.tails[part.slot]
        if self.lane:
            self.lane.append(part.slot, features[part.anchor : part.anchor + len(tokens)], len(tokens))
        parity = 1 - tail.parity if part.replay else tail.parity
        self.tails[part.slot] = Tail(tokens[-1], parity, [tail.anchor, *tokens[:-1]])
