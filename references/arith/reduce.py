"""Orders of summation. Every function takes the axis it reduces and adds in one stated order; sums start from +0 where a thread's do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from references.arith.bits import operand
from references.arith.ieee import add, fma, fma32
from references.arith.mma_fast import frozen
from references.arith.move import zero
from references.arith.site import site


@site
def chain(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """One thread's sum, ascending from +0: ((0 + x[0]) + x[1]) + ... f32 in and out, the axis removed."""
    x = np.ascontiguousarray(np.moveaxis(x, axis, 0))  # terms side by side are added many times as fast
    total = zero(x[0])
    for term in x:
        total = add(total, term)
    return total


@site
def chain_fma(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """One thread's dot product, ascending from +0: acc = fma(a[i], b[i], acc). f32 operands broadcast; the axis is removed."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    a, b = (np.moveaxis(operand(x).reshape((1,) * (len(shape) - np.ndim(x)) + np.shape(x)), axis, 0) for x in (a, b))
    rest = np.broadcast_shapes(a.shape[1:], b.shape[1:])
    if len(rest) != 2 or len(a) != len(b):
        a, b = (np.broadcast_to(x, (shape[axis], *rest)).reshape(shape[axis], -1, *rest[-1:] or (1,)) for x in (a, b))
    total = np.zeros((max(a.shape[1], b.shape[1]), max(a.shape[2], b.shape[2])), np.float32)
    _chain_fma(*(frozen(x) for x in ((b, a) if a.shape[2] > b.shape[2] else (a, b))), total)
    return total.reshape(rest)


def chain_fma_defined(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    """`chain_fma` in words."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    total = zero(np.moveaxis(np.broadcast_to(a, shape), axis, 0)[0])
    for left, right in zip(*(np.moveaxis(np.broadcast_to(x, shape), axis, 0) for x in (a, b)), strict=True):
        total = fma(left, right, total)
    return total


@njit(cache=True, nogil=True)
def _chain_fma(a, b, total):
    """a [k, m or 1, n or 1], b [k, m or 1, n], total [m, n]."""
    for m in range(total.shape[0]):
        row = total[m]
        for k in range(a.shape[0]):
            left, right = a[k, m if a.shape[1] > 1 else 0], b[k, m if b.shape[1] > 1 else 0]
            if left.size == 1:
                for n in range(row.size):
                    row[n] = fma32(left[0], right[n], row[n])
            else:
                for n in range(row.size):
                    row[n] = fma32(left[n], right[n], row[n])


@site
def lanes(x: np.ndarray, threads: int, axis: int = -1) -> np.ndarray:
    """Strided partials of a block: thread t sums x[t], x[t + threads], ... ascending from +0. The axis becomes `threads` long."""
    x = np.moveaxis(x, axis, -1)
    partial = np.zeros((*x.shape[:-1], threads), np.float32)
    for start in range(0, x.shape[-1], threads):
        stride = x[..., start : start + threads]  # a ragged last stride leaves the threads past it as they are
        width = stride.shape[-1]
        partial[..., :width] = add.word(partial[..., :width], stride)
    return np.moveaxis(partial, -1, axis)


@site
def tree(x: np.ndarray, offsets: Sequence[int], axis: int = -1) -> np.ndarray:
    """Xor butterfly: for each offset in the order given, every lane i adds lane i ^ offset. The axis is removed.

    All lanes end with the same sum, since addition commutes; only those are added that lane 0's comes from. ValueError where the offsets do not span
    the axis.
    """
    x = np.moveaxis(x, axis, -1)
    if np.bitwise_xor.reduce(np.array([*offsets, x.shape[-1] - 1])) != 0 or sum(offsets) != x.shape[-1] - 1:
        raise ValueError(f"offsets must be the powers of two below the axis length {x.shape[-1]}, got {tuple(offsets)}")
    for i, offset in enumerate(offsets):
        below = 1 << sum(later < offset for later in offsets[i + 1 :])  # how far apart lane and lane ^ offset are among those left
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * below), 2, below)
        x = add.word(pairs[..., 0, :], pairs[..., 1, :]).reshape(*x.shape[:-1], x.shape[-1] // 2)
    return x[..., 0]


@site
def down(x: np.ndarray, offsets: Sequence[int] = (16, 8, 4, 2, 1), axis: int = -1) -> np.ndarray:
    """Warp reduction by shfl_down: lane i adds lane i + offset (its own value where that is past the warp); lane 0's result."""
    x = np.moveaxis(x, axis, -1)
    lane = np.arange(x.shape[-1])
    for offset in offsets:
        source = np.where(lane + offset < x.shape[-1], lane + offset, lane)
        x = add.word(x, x[..., source])
    return x[..., 0]
