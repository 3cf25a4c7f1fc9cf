"""Drafts: a lane of what the target's layers gave for the accepted tokens, and a drafter that guesses from it what comes next.

The next token depends on the anchor's features, which nobody has computed yet. The drafter looks them up: what the target's first layer makes of
the anchor's embedding, and the features before it, are matched with the same two things of every row of the lane by attention, whose values are
those rows themselves. Embedding, lookup and the target's own end (last mix, norm and head) give a token; the lookup stands in for its features.
"""

from __future__ import annotations

import numpy as np

from references.contract.inputs import BF16
from references.k3 import weights
from references.k3.attention import WIDTH, attend
from references.k3.backend import Array, Backend
from references.k3.config import PAGE, Config
from references.k3.model import NAN, Calls, Model
from references.k3.step import NOT_A_TOKEN, dense, logits, project, residual

WINDOW = 128  # rows of a lane: its keys are one tile of the attention kernel, whatever the context


def ceiling(config: Config) -> int:
    """Tokens that the pages of a slot hold."""
    return config.pages * PAGE


def room(config: Config, length: int) -> int:
    """How many drafts fit behind an anchor that follows `length` tokens."""
    return max(0, min(config.drafts, ceiling(config) - length - 1))


class Lane:
    """rows: bf16 [slots, WINDOW + 1 + drafts, taps * hidden], a ring for each slot, NaN where nothing was written. length: tokens of each slot.

    Behind the window a round has room: its rows are written before it is known which of them stay, and cost none of those before.
    """

    def __init__(self, config: Config, backend: Backend, slots: int):
        self.config, self.backend, self.length = config, backend, np.zeros(slots, np.int64)
        self.empty = np.full((WINDOW + 1 + config.drafts, len(config.taps) * config.hidden), NAN, np.uint16).view(BF16)
        self.rows = backend.upload(np.stack([self.empty] * slots))

    def append(self, slot: int, features: Array, count: int) -> None:
        """The first `count` rows of features bf16 [t, taps * hidden], of tokens that stay. ValueError, and nothing changed, where they do not fit."""
        self.write(slot, features, count)
        self.length[slot] += count

    def write(self, slot: int, features: Array, count: int) -> None:
        """As `append`, without a change of `length`: until that counts them, the rows are not there, and the next ones take their place."""
        length = self._length(slot)
        if tuple(features.shape[1:]) != self.empty.shape[1:]:
            raise ValueError(f"features must be [t, {self.empty.shape[1]}], got {list(features.shape)}")
        if not 0 <= count <= len(features):
            raise ValueError(f"count must be 0 .. {len(features)}, the rows of features, got {count}")
        if length + count > ceiling(self.config):
            raise ValueError(f"count must leave slot {slot} within {ceiling(self.config)} tokens, got {length} + {count}")
        first = max(0, count - len(self.empty))
        self.rows[slot, self._places(length + first, length + count)] = features[first:count]

    def recent(self, slot: int) -> Array:
        """bf16 [n, taps * hidden]: the last rows, oldest first, WINDOW at most."""
        length = self._length(slot)
        return self.rows[slot, self._places(max(0, length - WINDOW), length)]

    def release(self, slot: int) -> None:
        self._length(slot)
        self.backend.write(self.rows[slot], self.empty)
        self.length[slot] = 0

    def _length(self, slot: int) -> int:
        if not 0 <= slot < len(self.length):
            raise ValueError(f"slot must be 0 .. {len(self.length) - 1}, got {slot}")
        return int(self.length[slot])

    def _places(self, start: int, stop: int) -> Array:
        return self.backend.upload(np.arange(start, stop) % len(self.empty))


class Drafter:
    """Embedding, first multilayer perceptron, last mix, norm and head are the model's; the projections of the lookup are its own."""

    def __init__(self, model: Model, lane: Lane):
        self.model, self.lane, self.call = model, lane, Calls(model.backend)
        self.weights = weights.draft(model.config, model.backend.upload)

    def propose(self, slot: int, token: int, count: int) -> list[int]:
        """Tokens to follow `token`, whose features are not in the lane: `count` of them, or fewer where the context ends or a logit is NaN.

        None from fewer than two rows: a row is matched together with the one before it. ValueError for a token or count out of range.
        """
        c, rows, found = self.model.config, self.lane.recent(slot), []
        c.check_tokens([token])
        if not 0 <= count <= c.drafts:
            raise ValueError(f"count must be 0 .. {c.drafts}, got {count}")
        count = min(count, room(c, int(self.lane.length[slot])))
        if not count or len(rows) < 2:
            return []
        keys, values = self._projected(rows[1:, : c.hidden], rows[:-1]), by_head(rows[1:])
        before = rows[-1:]
        while len(found) < count:
            token, before = self._next(token, before, keys, values)
            if token == NOT_A_TOKEN:
                break
            found.append(token)
        return found

    def _next(self, token: int, before: Array, keys: Array, values: Array) -> tuple[int, Array]:
        """The token after `token`, NOT_A_TOKEN where a logit is NaN, and what stands in for the features of `token`, bf16 [1, taps * hidden].

        before: features of the token before it.
        """
        call, c, ends, first = self.call, self.model.config, self.model.ends, self.model.layers[0]
        hidden = call("embedding", ids=call.backend.upload(np.array([token], np.int32)), table=ends.embedding)
        made = dense(call, c, first.up, first.down, call("rms_norm", x=hidden, gamma=first.mlp_norm, eps=c.eps))
        found = attend(call.run, self._projected(made, before), keys, values, c.scale, causal=False)[0].reshape(before.shape)
        *earlier, last = (found[:, i * c.hidden : (i + 1) * c.hidden] for i in range(len(c.taps)))
        mixed = residual(call, c, ends.mix, [hidden, *earlier], last)
        ids = logits(self.model, call, call("rms_norm", x=mixed, gamma=ends.norm, eps=c.eps))[1]
        return int(call.backend.download(ids)[0]), found

    def _projected(self, made: Array, before: Array) -> Array:
        """bf16 [t, heads, 192]: of each token what an early layer made of it, bf16 [t, hidden], and the deepest of the features before it.

        Keys and queries are projected alike, so that like finds like.
        """
        call, c, w = self.call, self.model.config, self.weights
        here = project(call, c, call("rms_norm", x=made, gamma=w.norm, eps=c.eps), w.match)
        there = project(call, c, call("rms_norm", x=before[:, -c.hidden :], gamma=w.before_norm, eps=c.eps), w.before)
        return call("add2", a=here, b=there).reshape(made.shape[0], -1, 192)


def by_head(features: Array) -> Array:
    """Each 128 columns are the values of a head."""
    return features.reshape(features.shape[0], -1, WIDTH)
