"""Products of f32 matrices, one thread's chain an element."""

from __future__ import annotations

import numpy as np
from numba import njit

from references.arith.bits import operand
from references.arith.ieee import fma, fma32
from references.arith.mma_fast import frozen
from references.arith.move import zero
from references.arith.site import site


@site
def chain_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in f32, batched over equal leading axes: acc = fma(a[i, j], b[j, k], acc) from +0, j ascending.

    a: f32 [..., n, m], b: f32 [..., m, k]. Returns f32 [..., n, k].
    """
    a, b = np.asarray(operand(a)), np.asarray(operand(b))
    out = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    batch = (int(np.prod(a.shape[:-2])),)
    _chain_matmul(*(frozen(x.reshape(batch + x.shape[-2:])) for x in (a, b)), out.reshape(batch + out.shape[-2:]))
    return out


def chain_matmul_defined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`chain_matmul` in words."""
    total = zero(np.broadcast_to(a[..., :1], (*a.shape[:-1], b.shape[-1])))
    for j in range(a.shape[-1]):
        total = fma(a[..., j : j + 1], b[..., j : j + 1, :], total)
    return total


@njit(cache=True, nogil=True)
def _chain_matmul(a, b, out):
    for h in range(a.shape[0]):
        for i in range(a.shape[1]):
            row = out[h, i]
            for j in range(a.shape[2]):
                left, right = a[h, i, j], b[h, j]
                for k in range(row.size):
                    row[k] = fma32(left, right[k], row[k])
