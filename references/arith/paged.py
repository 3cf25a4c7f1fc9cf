"""Rows of a paged cache by logical position."""

from __future__ import annotations

import numpy as np

from references.arith.site import site

PAGE = 64  # rows
ROW = 576  # elements: 512 latent, 64 rope


def rows_of(cache: np.ndarray, page: np.ndarray, row: np.ndarray, offset: int, stride: int) -> np.ndarray:
    """[..., 576] of the cache's dtype and bits: row `row` of physical page `page`; of a page below 0 zeros."""
    rows = np.zeros((*np.shape(page), ROW), cache.dtype)
    live = np.asarray(page) >= 0
    first = offset + np.asarray(page, np.int64)[live] * stride + np.asarray(row)[live] * ROW
    rows[live] = cache[first[:, None] + np.arange(ROW)]
    return rows


@site
def cached(cache: np.ndarray, table: np.ndarray, start: np.ndarray, tokens: int, offset: int, stride: int) -> np.ndarray:
    """Rows start .. start + tokens - 1 of each sequence, [b, tokens, 576] of the cache's dtype and bits.

    cache: [pool]; table: i32 [b, pages], the physical page of each logical one; start: i32 [b]. Page p begins at offset + p * stride.
    """
    token = np.asarray(start, np.int64)[:, None] + np.arange(tokens)
    page = np.take_along_axis(np.asarray(table, np.int64), token // PAGE, 1)
    return rows_of(cache, page, token % PAGE, offset, stride)
