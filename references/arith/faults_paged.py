"""The mistakes of reading a paged cache, and of the long dot products over its rows. They register themselves beside those of `faults`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from references.arith.bits import bf
from references.arith.faults import fault
from references.arith.ieee import add, fma, mul
from references.arith.move import full
from references.arith.paged import PAGE, ROW, paged
from references.arith.reduce import chain_fma
from references.arith.site import Visit

# Rows of a paged cache


def _pages(visit: Visit) -> tuple[np.ndarray, int]:
    """The table's entries that are read, and the last page of the pool."""
    pool, table, length, offset, stride = visit.args
    return table[: -(-length // PAGE)], (len(pool) - offset - PAGE * ROW) // stride


def _rows(visit: Visit, table: np.ndarray | None = None, length: int | None = None) -> np.ndarray:
    pool, old_table, old_length, offset, stride = visit.args
    return paged(pool, old_table if table is None else table, old_length if length is None else length, offset, stride)


@fault(paged)
def in_sequence(visit: Visit) -> np.ndarray | None:
    """the pages after the first are taken to follow it in the pool, whatever the table says"""
    table, last = _pages(visit)
    return None if len(table) == 1 or table[0] < 0 else _rows(visit, np.minimum(table[0] + np.arange(len(table)), last))


@fault(paged)
def last_page(visit: Visit) -> np.ndarray | None:
    """a negative page is counted from the end of the pool"""
    table, last = _pages(visit)
    return None if table.min() >= 0 or last < 0 else _rows(visit, np.where(table < 0, last, table))


@fault(paged)
def page_zero(visit: Visit) -> np.ndarray | None:
    """a negative page reads page 0"""
    table, last = _pages(visit)
    return None if table.min() >= 0 or last < 0 else _rows(visit, np.maximum(table, 0))


@fault(paged)
def left_out(visit: Visit) -> np.ndarray | None:
    """the rows of a negative page take no part"""
    table, _ = _pages(visit)
    live = np.repeat(table >= 0, PAGE)[: visit.args[2]]
    return None if live.all() or not live.any() else visit.run()[live]


@fault(paged)
def whole_pages(visit: Visit) -> np.ndarray | None:
    """the last page is read to its end"""
    length = visit.args[2]
    return None if length % PAGE == 0 else _rows(visit, length=-(-length // PAGE) * PAGE)


@fault(paged)
def one_short(visit: Visit) -> np.ndarray | None:
    """the last row is left out"""
    length = visit.args[2]
    return None if length == 1 else _rows(visit, length=length - 1)


@fault(paged)
def narrow(visit: Visit) -> np.ndarray | None:
    """offsets are computed in 32 bits"""
    pool, _, length, offset, stride = visit.args
    used, _ = _pages(visit)
    starts = offset + used.astype(np.int64) * stride
    if starts.max() < 1 << 31:
        return None
    wrapped = np.where(used < 0, -1, starts % (1 << 31))  # where a negative offset would fault, some other place
    return np.concatenate([paged(pool, np.array([min(start, 0)]), min(PAGE, length - PAGE * i), max(start, 0), 0) for i, start in enumerate(wrapped)])


# Dot products


def _terms(visit: Visit) -> tuple[np.ndarray, np.ndarray]:
    """The factors, broadcast, the axis of the sum first."""
    shape = np.broadcast_shapes(*map(np.shape, visit.args))
    a, b = (np.moveaxis(np.broadcast_to(x, shape), visit.kwargs.get("axis", -1), 0) for x in visit.args)
    return a, b


def _steps(visit: Visit, step: Callable) -> np.ndarray:
    """The ascending sum with another step: total = step(a, b, total)."""
    a, b = _terms(visit)
    total = np.zeros(a.shape[1:], np.float32)
    for left, right in zip(a, b, strict=True):
        total = step(left, right, total)
    return total


@fault(chain_fma)
def unseeded(visit: Visit) -> np.ndarray:
    """the sum starts from its first product instead of +0"""
    a, b = _terms(visit)
    return np.where(np.all(mul(a, b).view(np.uint32) == 0x80000000, axis=0), np.float32(-0.0), visit.run())


@fault(chain_fma)
def from_the_end(visit: Visit) -> np.ndarray:
    """the products are summed in descending order"""
    return chain_fma(*(x[::-1] for x in _terms(visit)), axis=0)


@fault(chain_fma)
def halves(visit: Visit) -> np.ndarray:
    """the products are summed in two halves"""
    a, b = _terms(visit)
    half = len(a) // 2
    return add(chain_fma(a[:half], b[:half], axis=0), chain_fma(a[half:], b[half:], axis=0)) if half else visit.run()


@fault(chain_fma)
def unfused_steps(visit: Visit) -> np.ndarray:
    """each fma is a product and a sum, rounded separately"""
    return _steps(visit, lambda a, b, total: add(total, mul(a, b)))


@fault(chain_fma)
def landed_steps(visit: Visit) -> np.ndarray:
    """the sum is kept in bf16"""
    return _steps(visit, lambda a, b, total: bf(fma(a, b, total)))


@fault(chain_fma)
def flushed_steps(visit: Visit) -> np.ndarray:
    """subnormal sums are flushed to zero"""
    return _steps(visit, lambda a, b, total: flush(fma(a, b, total)))


def flush(x: np.ndarray) -> np.ndarray:
    return np.where((x.view(np.uint32) & np.uint32(0x7F80_0000)) == 0, np.copysign(np.float32(0), x), x)


# Seeds


@fault(full)
def from_zero(visit: Visit) -> np.ndarray:
    """the seed is +0"""
    return np.zeros_like(visit.run())
