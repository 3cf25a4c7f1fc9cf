"""Sequences in slots: admitted with a prompt or an empty past, stepped together, released."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from types import SimpleNamespace

import numpy as np

from references.k3.attention import cut
from references.k3.backend import Array
from references.k3.draft import Lane, room
from references.k3.model import Cache, Calls, Model, State, Watch, step_rows
from references.k3.pages import Pages
from references.k3.prefill import chunk
from references.k3.rounds import Round, Rounds
from references.k3.step import NOT_A_TOKEN, Features, NotANumber, decode
from references.k3.verify import Tail


class Engine:
    """slots: sequences at a time, at most the largest bucket. pool: pages; free: the order in which they are handed out.

    attention: of decode, in place of the absorbed form; `prefill.mla` expands the keys, of one sequence. lane: gets the tapped features of every
    token that stays, so that such an engine only verifies.
    """

    def __init__(
        self, model: Model, slots: int = 8, pool: int | None = None, free: Sequence[int] | None = None, attention: Callable | None = None,
        lane: Lane | None = None,
    ):
        c, self.attention = model.config, attention
        if lane and len(lane.length) < slots:
            raise ValueError(f"lane must have a place for each of {slots} slots, got {len(lane.length)}")
        self.model, self.slots, self.widest, self.live = model, slots, c.bucket(slots), set()
        self.pages = Pages(slots, c.pages, 4 * slots if pool is None else pool, free)
        self.cache = Cache(c, model.backend, self.pages)
        self.state = State.zeros(c, model.backend, self.widest)
        self.rows = step_rows(c, model.backend)
        self.rounds = Rounds(model, self.pages, self.cache, self.state, lane)
        self.lane, self.mode = lane, "verify" if lane else None  # step or verify
        self.graphs: dict[tuple[int, int], tuple] = {}  # by bucket and parity: the graph, its logits and tokens

    # Slots

    def admit(self, slot: int) -> None:
        """An empty sequence, whatever the slot held before."""
        self.check_free(slot)
        self.state.clear(slot)
        self.live.add(slot)

    def check_free(self, slot: int) -> None:
        if not 0 <= slot < self.slots or slot in self.live:
            raise ValueError(f"slot must be a free one of {self.slots}, got {slot}")

    def _check_taken(self, slot: int) -> None:
        if slot not in self.live:
            raise ValueError(f"slot must be a live one of {sorted(self.live)}, got {slot}")

    def release(self, slot: int) -> None:
        self._check_taken(slot)
        self.live.remove(slot)
        self.pages.release(slot)
        self.rounds.tails.pop(slot, None)
        if self.lane:
            self.lane.release(slot)

    def _check_mode(self, mode: str, graph: bool) -> None:
        """Of one engine either kind of step: verify leaves tokens out of the state and keeps a parity of each slot, decode has one of all."""
        if self.mode not in (None, mode):
            raise ValueError(f"{mode} must not be mixed with {self.mode} on one engine: their states are at other tokens and parities")
        if graph and not hasattr(self.model.backend, "capture"):
            raise ValueError("graph must be False where kernels are emulated, got True")

    def _check_live(self, name: str, given: Mapping[int, object]) -> None:
        if not given or given.keys() != self.live:
            raise ValueError(f"{name} must be one of each live slot {sorted(self.live)}, got slots {sorted(given)}")

    # Decode

    def step(self, tokens: Mapping[int, int], bucket: int | None = None, graph: bool = False, watch: Watch | None = None) -> tuple[Array, Array]:
        """Feed every live slot its token. Logits bf16 [bucket, vocab] and greedy tokens i32 [bucket], row i being slot i.

        bucket: a wider one than needed. graph: captured at its first use, replayed from then on; `watch` sees calls that run, so none of a replay.
        Where anything is raised no token is fed.
        """
        self._check_mode("step", graph)
        b = self._bucket(tokens, bucket or 1)
        self.pages.check(dict.fromkeys(tokens, 1))
        before = self.pages.length.copy()
        try:
            self._fill(tokens, b)
            results = self._replayed(b, self.state.parity) if graph else self._decode(b, self.state.parity, watch)
        except BaseException:
            for slot in reversed([*tokens]):
                self.pages.shorten(slot, before[slot])
            raise
        self.mode, self.state.parity = "step", 1 - self.state.parity
        return results

    def _bucket(self, tokens: Mapping[int, int], least: int) -> int:
        """What a step takes that feeds these tokens. ValueError, with nothing changed, where they cannot be fed."""
        self._check_live("tokens", tokens)
        self.model.config.check_tokens(tokens.values())
        b = self.model.config.bucket(max(least, *(slot + 1 for slot in tokens)))
        if b > self.widest:
            raise ValueError(f"bucket must be at most {self.widest}, that of {self.slots} slots, got {b}")
        return b

    def _fill(self, tokens: Mapping[int, int], b: int) -> None:
        """Write the step's rows. A padding row has no page, a context of one, token 0, and writes to the sink."""
        ids, context = np.zeros(b, np.int32), np.ones(b, np.int32)
        page, row = np.full(b, self.cache.sink, np.int64), np.zeros(b, np.int64)
        table = np.full((b, self.model.config.pages), -1, np.int32)
        for slot, token in tokens.items():
            (page[slot],), (row[slot],) = self.pages.append(slot)
            ids[slot], context[slot], table[slot] = token, self.pages.length[slot], self.pages.table[slot]
        for name, values in {"ids": ids, "context": context, "table": table, "page": page, "row": row}.items():
            self.model.backend.write(getattr(self.rows, name)[:b], values)

    def _decode(self, b: int, parity: int, watch: Watch | None = None) -> tuple[Array, Array]:
        rows = SimpleNamespace(**{name: values[:b] for name, values in vars(self.rows).items()}, past=int(self.pages.length[0]) - 1)
        return decode(self.model, Calls(self.model.backend, watch), rows, self.state, parity, self.cache, self.attention)

    def _replayed(self, b: int, parity: int) -> tuple[Array, Array]:
        if (b, parity) not in self.graphs:
            self.graphs[b, parity] = self.model.backend.capture(lambda: self._decode(b, parity))
        graph, results = self.graphs[b, parity]
        graph.replay()
        return results

    def greedy(self, ids: Array, slot: int) -> int:
        """The token of a slot. NotANumber where there is none."""
        token = int(self.model.backend.download(ids)[slot])
        if token == NOT_A_TOKEN:
            raise NotANumber(f"slot {slot} has a NaN logit")
        return token

    # Verify

    def verify(self, drafts: Mapping[int, Sequence[int]], graph: bool = False, watch: Watch | None = None) -> dict[int, Round]:
        """Feed every live slot its anchor and its drafts, up to `room(slot)` tokens, and keep those that the model itself says.

        Refused with nothing changed: ValueError; NotANumber where a logit is NaN on which a token hangs. graph, watch: as of `step`.
        """
        self._check_mode("verify", graph)
        self._check_live("drafts", drafts)
        for given in drafts.values():
            self.model.config.check_tokens(given)
        self.rounds.check(drafts)
        rounds = self.rounds.run(drafts, graph, watch)
        self.mode = "verify"
        return rounds

    def room(self, slot: int) -> int:
        """Drafts that a round takes of a live slot: fewer near the end of its table."""
        self._check_taken(slot)
        return room(self.model.config, int(self.pages.length[slot]))

    # Prefill

    def prefill(self, slot: int, tokens: Sequence[int], cap: int | None = None, watch: Watch | None = None) -> tuple[Array, Array]:
        """Admit a sequence with a prompt, in chunks of at most `cap` tokens. Logits bf16 [1, vocab] and greedy token i32 [1] after its last token.

        ValueError, with nothing changed; the slot is free again whatever else is raised.
        """
        if not tokens:
            raise ValueError("tokens must be at least one, got none")
        self.model.config.check_tokens(tokens)
        sizes = cut(len(tokens), self.model.config.tokens if cap is None else cap)
        self.check_free(slot)
        self.pages.check({slot: len(tokens)})
        with self.admitted(slot):
            state = State.zeros(self.model.config, self.model.backend, 1)
            for end, size in zip(accumulate(sizes), sizes, strict=True):
                results = self._chunk(slot, tokens[end - size : end], state, end == len(tokens), watch)
            self.adopt(slot, state, results[1])
        return results

    @contextmanager
    def admitted(self, slot: int) -> Iterator[None]:
        """The slot is free again where anything is raised."""
        self.admit(slot)
        try:
            yield
        except BaseException:
            self.release(slot)
            raise

    def adopt(self, slot: int, state: State, ids: Array) -> None:
        """An admitted sequence goes on from the state, of one slot, of its prompt, with the token in ids i32 [1]."""
        self.state.adopt(slot, state, 0)
        self.rounds.tails[slot] = Tail(int(self.model.backend.download(ids)[0]), self.state.parity)

    def _chunk(self, slot: int, tokens: Sequence[int], state: State, last: bool, watch: Watch | None) -> tuple[Array, Array] | None:
        backend, past = self.model.backend, int(self.pages.length[slot])
        page, row = map(backend.upload, self.pages.append(slot, len(tokens)))
        ids = backend.upload(np.array(tokens, np.int32))
        rows = SimpleNamespace(ids=ids, page=page, row=row, past=past, table=backend.upload(self.pages.table[slot : slot + 1]))
        tap = Features(backend) if self.lane else None
        results = chunk(self.model, Calls(backend, watch), rows, state, self.cache, last, tap)
        if tap:
            self.lane.append(slot, tap.rows(), len(tokens))
        return results
