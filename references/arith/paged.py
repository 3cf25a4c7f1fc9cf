"""Rows of a paged cache by logical position."""

from __future__ import annotations

import numpy as np

from references.arith.bits import F32, as_f32
from references.arith.site import site

PAGE = 64  # rows
ROW = 576  # elements: 512 latent, 64 rope


@site
def paged(pool: np.ndarray, table: np.ndarray, length: int, offset: int, stride: int) -> np.ndarray:
    """The first `length` rows, f32 [length, 576], of a bf16 pool as it is stored: only they are read.

    Row t is row t % 64 of page `table[t // 64]`, whose first element is pool[offset + page * stride]. A negative page reads as zero rows.
    """
    rows = np.zeros((int(length), ROW), F32)
    for first in range(0, len(rows), PAGE):
        page, live = int(table[first // PAGE]), rows[first : first + PAGE]  # a Python integer: offsets pass 2^31
        if page >= 0:
            start = offset + page * stride
            live[...] = as_f32(pool[start : start + live.size]).reshape(live.shape)
    return rows
