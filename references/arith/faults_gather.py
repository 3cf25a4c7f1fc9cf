"""The mistakes of copying rows out of a paged cache. They register themselves beside those of `faults`."""

from __future__ import annotations

import numpy as np

from references.arith.faults import fault
from references.arith.gather import cached, rows_of
from references.arith.paged import PAGE
from references.arith.site import Visit


@fault(cached)
def unmapped(visit: Visit) -> np.ndarray:
    """the block table is not looked up: a logical page is read from the physical page of that number"""
    cache, table, *rest = visit.args
    return cached.word(cache, np.broadcast_to(np.arange(np.shape(table)[1]), np.shape(table)), *rest)


@fault(cached)
def padding_read(visit: Visit) -> np.ndarray:
    """a page below 0 is read as physical page 0"""
    cache, table, *rest = visit.args
    return cached.word(cache, np.maximum(table, 0), *rest)


@fault(cached)
def without_offset(visit: Visit) -> np.ndarray:
    """the layer's offset is left out"""
    *rest, _, stride = visit.args
    return cached.word(*rest, 0, stride)


@fault(cached)
def row_late(visit: Visit) -> np.ndarray:
    """the row after each one is read, the first of its own page after the last"""
    cache, table, start, tokens, offset, stride = visit.args
    token = np.asarray(start, np.int64)[:, None] + np.arange(tokens)
    return rows_of(cache, np.take_along_axis(np.asarray(table, np.int64), token // PAGE, 1), (token + 1) % PAGE, offset, stride)
