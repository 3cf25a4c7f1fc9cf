"""Ranks: which entries of a row are its largest, in order. Nothing is computed, but a kernel can get ties, signs of zero and NaN wrong."""

from __future__ import annotations

import numpy as np

from references.arith.bits import F32, operand
from references.arith.site import site


@site
def top(x: np.ndarray, k: int) -> np.ndarray:
    """int32 [..., k]: the places of the k largest along the last axis, the largest first and the lowest place among equals.

    k distinct places, -inf among the values or not; -0 equals +0. A row that holds a NaN has no rank: its places are -1.
    """
    return np.where(np.isnan(x).any(axis=-1, keepdims=True), -1, ranked(x, k)).astype(np.int32)


def ranked(x: np.ndarray, k: int) -> np.ndarray:
    """`top` of rows without NaN. A stable sort leaves equals in the order of their places; of one place np.argmax says the same, faster."""
    return np.argmax(x, axis=-1)[..., None] if k == 1 else np.argsort(-operand(x), axis=-1, kind="stable")[..., :k]


@site
def picked(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """x[..., place] of each row's own places [..., k]; NaN where the place is -1."""
    return np.where(places < 0, F32(np.nan), np.take_along_axis(operand(x), np.maximum(places, 0), axis=-1))
