"""The mistakes of products of two pieces. They register themselves beside those of `faults`."""

from __future__ import annotations

import numpy as np

from references.arith.faults import fault
from references.arith.ieee import add
from references.arith.mma import gemm_from
from references.arith.pieces import by_block, gemm_pieces, pieces
from references.arith.site import Visit


def steps(visit: Visit, order: str) -> np.ndarray:
    """The product in other steps: pairs such as "lh" for lo of a by hi of b."""
    acc, a, b = visit.args
    left, right = (dict(zip("hl", pieces(x), strict=True)) for x in (a, b))
    pairs = order.split()
    return gemm_from.word(acc, by_block(*(left[pair[0]] for pair in pairs)), by_block(*(right[pair[1]] for pair in pairs)))


@fault(gemm_pieces)
def one_piece(visit: Visit) -> np.ndarray:
    """the operands are landed to bf16, their low pieces left out"""
    return steps(visit, "hh")


@fault(gemm_pieces)
def left_landed(visit: Visit) -> np.ndarray:
    """the left operand is landed to bf16, its low piece left out"""
    return steps(visit, "hl hh")


@fault(gemm_pieces)
def right_landed(visit: Visit) -> np.ndarray:
    """the right operand is landed to bf16, its low piece left out"""
    return steps(visit, "lh hh")


@fault(gemm_pieces)
def largest_first(visit: Visit) -> np.ndarray:
    """the high pieces are multiplied first, before those that a large sum cuts short"""
    return steps(visit, "hh hl lh")


@fault(gemm_pieces)
def exchanged(visit: Visit) -> np.ndarray:
    """hi by lo comes before lo by hi"""
    return steps(visit, "hl lh hh")


@fault(gemm_pieces)
def four_steps(visit: Visit) -> np.ndarray:
    """lo by lo is added, too"""
    return steps(visit, "ll lh hl hh")


@fault(gemm_pieces)
def piece_by_piece(visit: Visit) -> np.ndarray | None:
    """all blocks of lo by hi are taken first, then all of hi by lo, then all of hi by hi"""
    acc, a, b = visit.args
    if a.shape[-1] == 16:
        return None
    (a_hi, a_lo), (b_hi, b_lo) = pieces(a), pieces(b)
    for left, right in ((a_lo, b_hi), (a_hi, b_lo), (a_hi, b_hi)):
        acc = gemm_from.word(acc, left, right)
    return acc


@fault(gemm_pieces)
def blocks_descending(visit: Visit) -> np.ndarray | None:
    """the blocks of 16 are taken in descending order"""
    acc, *factors = visit.args
    if factors[0].shape[-1] == 16:
        return None
    return gemm_pieces(acc, *(x.reshape(*x.shape[:-1], -1, 16)[..., ::-1, :].reshape(x.shape) for x in factors))


@fault(gemm_pieces)
def added_after(visit: Visit) -> np.ndarray | None:
    """the products are summed from +0, and that sum is added to the accumulator"""
    acc, a, b = visit.args
    return None if np.ndim(acc) == 0 else add(acc, gemm_pieces(0, a, b))
