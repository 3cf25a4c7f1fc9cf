"""The rounds of an engine: from drafts to what is committed, with the host's side of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from references.k3.backend import Array
from references.k3.draft import Lane
from references.k3.model import Cache, Calls, Model, State, Watch
from references.k3.pages import Pages
from references.k3.step import NOT_A_TOKEN, Features, NotANumber
from references.k3.verify import Part, Tail, layout, round_rows, verify

GRAPHS = 32  # kept at a time; a round of n sequences has about 100^n layouts


@dataclass(frozen=True)
class Round:
    """Of one slot: the drafts that stay, the tokens committed (those and the model's own), logits bf16 [1 + drafts, vocab] of anchor and drafts.

    Of the anchor alone where the sequence was run again without its drafts. A replayed graph writes the logits of its last round over.
    """

    accepted: int
    tokens: list[int]
    logits: Array


def committed(drafts: Sequence[int], own: Sequence[int]) -> list[int]:
    """The drafts up to the first that the model does not say, then what it says there; that is NOT_A_TOKEN where a logit is NaN."""
    count = 0
    while count < len(drafts) and drafts[count] == own[count]:
        count += 1
    return [*drafts[:count], int(own[count])]


class Rounds:
    """The rounds of an engine: what is pending of each sequence, and the graphs by layout."""

    def __init__(self, model: Model, pages: Pages, cache: Cache, state: State, lane: Lane | None):
        self.model, self.pages, self.cache, self.state, self.lane = model, pages, cache, state, lane
        self.tails: dict[int, Tail] = {}
        self.graphs: dict[tuple[Part, ...], tuple] = {}
        self.rows: SimpleNamespace | None = None  # made at the first round

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
        """Commit what the model says. Where anything is raised nothing is committed, for any slot, and the round may be run again.

        A draft that is not finite makes NaN of its whole tile of kda_chunk, the anchor's row too. So a sequence with a NaN logit is run again without
        its drafts, and it is NotANumber where there are none.
        """
        parts, before, kept = layout(self.tails, drafts), self.pages.length.copy(), {}
        try:
            self._fill(parts, drafts)
            found, ids, features = self._replayed(parts) if graph else self._verify(parts, watch)
            for part in parts if self.lane else ():
                self.lane.write(part.slot, features[part.anchor : part.stop], part.fresh)
            said = self._said(parts, drafts, ids)
            nan = {slot: [] for slot, tokens in said.items() if tokens[-1] == NOT_A_TOKEN}
            kept = {} if nan else said
        finally:
            for part in reversed(parts):
                self.pages.shorten(part.slot, before[part.slot] + len(kept.get(part.slot, ())))
        if nan:
            return self.run({**drafts, **nan}, graph, watch)
        for part in parts:
            self._commit(part, kept[part.slot])
        return {part.slot: Round(len(kept[part.slot]) - 1, kept[part.slot], found[part.first : part.first + part.fresh]) for part in parts}

    def _said(self, parts: Sequence[Part], drafts: Mapping[int, Sequence[int]], ids: Array) -> dict[int, list[int]]:
        """The committed tokens of each slot. NotANumber where even without drafts there are none."""
        own = self.model.backend.download(ids)
        said = {part.slot: committed(drafts[part.slot], own[part.first : part.first + part.fresh]) for part in parts}
        for slot, tokens in said.items():
            if tokens == [NOT_A_TOKEN] and not len(drafts[slot]):
                raise NotANumber(f"slot {slot} has a NaN logit")
        return said

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

    def _commit(self, part: Part, tokens: list[int]) -> None:
        """The replayed rows are in the state, the lane's are written; the anchor and the drafts that stay are pending. Nothing here can fail."""
        tail = self.tails[part.slot]
        if self.lane:
            self.lane.length[part.slot] += len(tokens)
        parity = 1 - tail.parity if part.replay else tail.parity
        self.tails[part.slot] = Tail(tokens[-1], parity, [tail.anchor, *tokens[:-1]])
