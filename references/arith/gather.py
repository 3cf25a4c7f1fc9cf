"""Rows of a paged cache for a batch of sequences, as they are stored."""

from __future__ import annotations

import numpy as np

from references.arith.paged import PAGE, ROW
from references.arith.site import site


@site
def cached(cache: np.ndarray, table: np.ndarray, start: np.ndarray, tokens: int, offset: int, stride: int) -> np.ndarray:
    """Rows start[i] .. start[i] + tokens - 1 of each sequence i: [b, tokens, 576] in the cache's dtype.

    cache: [pool]; table: [b, pages] physical page of each logical one. Row r of physical page p starts at offset + p * stride + r * 576;
    rows of a page below 0 are zero.
    """
    token = np.asarray(start, np.int64)[:, None] + np.arange(tokens)
    return rows_of(cache, np.take_along_axis(np.asarray(table, np.int64), token // PAGE, 1), token % PAGE, offset, stride)


def rows_of(cache: np.ndarray, page: np.ndarray, row: np.ndarray, offset: int, stride: int) -> np.ndarray:
    """Row `row` of physical page `page`, elementwise; no read leaves the pool."""
    found = np.zeros((*page.shape, ROW), cache.dtype)
    first = np.minimum(offset + page * stride + row * ROW, cache.size - ROW)[page >= 0]
    found[page >= 0] = cache[first[:, None] + np.arange(ROW)]
    return found
