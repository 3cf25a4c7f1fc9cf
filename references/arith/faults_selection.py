"""The mistakes of ranking and of picking by rank. They register themselves beside those of `faults`."""

from __future__ import annotations

import numpy as np

from references.arith.faults import fault
from references.arith.selection import picked, ranked, top
from references.arith.site import Visit

MASK = np.float32(-1e30)


@fault(top)
def ties_last(visit: Visit) -> np.ndarray:
    """among equals the highest place wins (>= instead of >)"""
    x, k = visit.args
    return _reported(x, np.shape(x)[-1] - 1 - ranked(x[..., ::-1], k))


@fault(top)
def by_bits(visit: Visit) -> np.ndarray:
    """values are compared as ordered integers, where -0 is below +0"""
    x, k = visit.args
    bits = np.ascontiguousarray(x).view(np.int32)
    ordered = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    return _reported(x, np.argsort(-ordered, axis=-1, kind="stable")[..., :k])


@fault(top)
def nan_skipped(visit: Visit) -> np.ndarray:
    """NaN is passed over and the numbers are ranked; places that are left over are -1"""
    x, k = visit.args
    places = np.lexsort((-x, np.isnan(x)))[..., :k]
    return np.where(np.isnan(np.take_along_axis(x, places, -1)), -1, places).astype(np.int32)


@fault(top)
def nan_largest(visit: Visit) -> np.ndarray:
    """NaN ranks above every number"""
    x, k = visit.args
    return np.lexsort((-x, ~np.isnan(x)))[..., :k].astype(np.int32)


@fault(top)
def infinity_unfound(visit: Visit) -> np.ndarray:
    """the search starts from -inf, above which no -inf is found: -1"""
    found = visit.run()
    return np.where(picked(visit.args[0], found) == -np.inf, np.int32(-1), found)


@fault(top)
def masked(visit: Visit) -> np.ndarray | None:
    """a winner is masked with -1e30, so it wins again where the rest is no larger"""
    x, k = visit.args
    if k == 1:
        return None
    left, rounds = x.copy(), []
    for _ in range(k):
        rounds.append(ranked(left, 1))
        np.put_along_axis(left, rounds[-1], MASK, axis=-1)
    return _reported(x, np.concatenate(rounds, axis=-1))


@fault(top)
def by_place(visit: Visit) -> np.ndarray | None:
    """winners are listed by place instead of by rank"""
    return None if visit.args[1] == 1 else np.sort(visit.run(), axis=-1)


def _reported(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x).any(axis=-1, keepdims=True), -1, places).astype(np.int32)


@fault(picked)
def last_entry(visit: Visit) -> np.ndarray:
    """place -1 fetches the last entry"""
    return np.take_along_axis(*visit.args, axis=-1)


@fault(picked)
def by_position(visit: Visit) -> np.ndarray:
    """the first entries of the row are taken, not those of its places"""
    x, places = visit.args
    return picked(x, np.where(places < 0, -1, np.arange(places.shape[-1])))


@fault(picked)
def as_ranked(visit: Visit) -> np.ndarray | None:
    """the values are those that were ranked"""
    source = visit.origin(visit.args[1])
    return picked(source.args[0], visit.args[1]) if source and source.word.__name__ == "top" else None
