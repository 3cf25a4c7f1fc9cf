"""Products of f32 operands on the bf16 tensor core: each operand is two bf16 pieces, which hold it to 16 bits."""

from __future__ import annotations

import numpy as np

from references.arith.bits import bf
from references.arith.ieee import sub
from references.arith.mma import gemm_from
from references.arith.site import site


@site
def gemm_pieces(acc: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """acc + a @ b.T, batched over equal leading axes: three tensor-core steps for each block of 16 along k, blocks ascending.

    acc: f32 that broadcasts to [..., m, n], as 0 does; a: f32 [..., m, k], b: f32 [..., n, k], k a multiple of 16. Returns f32 [..., m, n].
    With hi = bf(x) and lo = bf(x - hi) the steps are lo of a by hi of b, hi by lo, hi by hi. What they leave out, lo by lo, is 2^-16 of the whole.
    """
    (a_hi, a_lo), (b_hi, b_lo) = pieces(a), pieces(b)
    return gemm_from.word(acc, by_block(a_lo, a_hi, a_hi), by_block(b_hi, b_lo, b_hi))


def pieces(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bf16 nearest to x, and the one nearest to what it leaves of x."""
    hi = bf.word(x)
    return hi, bf.word(sub.word(x, hi))


def by_block(*operands: np.ndarray) -> np.ndarray:
    """The first block of 16 along k of each operand in turn, then the second of each, ..."""
    blocks = np.concatenate([x.reshape(*x.shape[:-1], -1, 16) for x in operands], axis=-1)
    return blocks.reshape(*operands[0].shape[:-1], -1)
