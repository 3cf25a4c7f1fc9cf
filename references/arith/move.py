"""Seeds, orders and data movement: nothing is computed, but a kernel can get each of them wrong, so each is a site."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from references.arith.bits import F32, operand
from references.arith.site import landing, site


@site
def zero(like: np.ndarray) -> np.ndarray:
    """+0 of the shape of `like`: the seed of a sum."""
    return np.zeros(np.shape(like), F32)


@site
def full(like: np.ndarray, value: float) -> np.ndarray:
    """`value` as f32, in the shape of `like`."""
    return np.full(np.shape(like), operand(value), F32)


@site
def join(arrays: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Arrays one after the other along `axis`."""
    return np.concatenate([np.asarray(a) for a in arrays], axis)


@site
def choose(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a where the condition holds, elsewhere b: the exception that a schedule makes of some results."""
    return np.where(condition, a, b)


@site
def repeat(x: np.ndarray, times: int, axis: int) -> np.ndarray:
    """x `times` times along a new axis."""
    return np.repeat(np.expand_dims(x, axis), times, axis)


@site
def select(x: np.ndarray, index, axis: int = 0) -> np.ndarray:
    """Entries `index` of `axis`. A negative index is an error: padding ids are -1 and must not fetch the last entry."""
    index = np.asarray(index)
    if index.size and (index.min() < 0 or index.max() >= np.shape(x)[axis]):
        raise ValueError(f"index: 0..{np.shape(x)[axis] - 1} expected, got {index.min()}..{index.max()}")
    return np.take(x, index, axis)


@partial(landing, stored="f32")
def kept(x: np.ndarray) -> np.ndarray:
    """x itself: an f32 of the schedule that nothing rounds (a maximum, a denominator), recorded and compared as a landing is."""
    return np.asarray(x, F32)


@site
def tiles(x: np.ndarray, size: int, axis: int) -> np.ndarray:
    """x cut along `axis` into tiles of `size` on a new first axis, the last tile filled up with +0."""
    x = np.moveaxis(x, axis, 0)
    whole = np.zeros((-(-len(x) // size), size, *x.shape[1:]), F32)
    whole.reshape(-1, *x.shape[1:])[: len(x)] = x
    return np.moveaxis(whole, 1, axis + 1)


@site
def visible(rows: range, t_q: int, t_kv: int, causal: int) -> np.ndarray:
    """How many of t_kv keys each query row sees: all, or where `causal` those up to its own place, the queries being at the end of the keys."""
    return np.clip(t_kv - t_q + 1 + np.asarray(rows), 0, t_kv) if causal else np.full(len(rows), t_kv)


@site
def hide(scores: np.ndarray, seen: np.ndarray, start: int) -> np.ndarray:
    """-inf for the keys that a row does not see. scores [..., rows, columns], of which row r sees the columns below seen[r] - start."""
    return np.where(np.arange(scores.shape[-1]) < (seen - start)[:, None], scores, F32(-np.inf))


def reached(seen: np.ndarray, size: int) -> int:
    """The number of tiles of `size` keys that hold one that any of the rows sees."""
    return -(-int(seen.max()) // size)


@site
def asc(n: int) -> range:
    """0, 1, ..., n - 1: a loop whose order is part of the schedule."""
    return range(n)
