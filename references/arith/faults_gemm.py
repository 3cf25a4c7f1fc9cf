"""The mistakes of a tensor-core product with a split k range. They register themselves beside those of `faults`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from references.arith.faults import fault, flushed, landed
from references.arith.ieee import add
from references.arith.mma import gemm, gemm_from
from references.arith.reduce import chain_fma
from references.arith.site import Visit

SMALLEST_NORMAL = 2.0**-126

fault(gemm)(landed)
fault(gemm)(flushed)


def _operands(visit: Visit) -> tuple[np.ndarray, np.ndarray, int]:
    a, b, *splits = visit.args
    return a, b, splits[0] if splits else visit.kwargs.get("splits", 1)


def _rearranged(visit: Visit, arrange) -> np.ndarray:
    """The product of operands whose columns, as [rows, splits, blocks, 16], are arranged otherwise."""
    a, b, splits = _operands(visit)
    return gemm(*(arrange(x.reshape(len(x), splits, -1, 16)).reshape(len(x), -1) for x in (a, b)), splits)


@fault(gemm)
def k_descending(visit: Visit) -> np.ndarray:
    """the blocks of 16 are taken in descending order"""
    return _rearranged(visit, lambda x: x[:, :, ::-1])


@fault(gemm)
def blocks_of_8(visit: Visit) -> np.ndarray:
    """the sums are of 8 products, each truncated, as m16n8k8 adds them"""

    def halves(x: np.ndarray) -> np.ndarray:
        wide = np.zeros((*x.shape[:3], 2, 16), x.dtype)
        wide[..., :8] = x.reshape(*x.shape[:3], 2, 8)
        return wide.reshape(*x.shape[:2], -1, 16)

    a, b, splits = _operands(visit)
    return gemm(*(halves(x.reshape(len(x), splits, -1, 16)).reshape(len(x), -1) for x in (a, b)), splits)


@fault(gemm)
def two_chains(visit: Visit) -> np.ndarray | None:
    """even and odd blocks are summed apart and then added"""
    a, _, splits = _operands(visit)
    if a.shape[1] // splits < 32:
        return None
    return add(_rearranged(visit, lambda x: x[:, :, 0::2]), _rearranged(visit, lambda x: x[:, :, 1::2]))


@fault(gemm)
def rounded(visit: Visit) -> np.ndarray:
    """the sum of a block and the accumulator is rounded to nearest instead of truncated"""
    a, b, splits = _operands(visit)
    a, b = (np.asarray(x, np.float64).reshape(len(x), splits, -1, 16) for x in (a, b))
    out = np.zeros((splits, len(a), len(b)), np.float32)
    for split in range(splits):
        for block in range(a.shape[2]):
            total = out[split].astype(np.float64)
            for i in range(16):
                total = total + a[:, None, split, block, i] * b[None, :, split, block, i]
            out[split] = total.astype(np.float32)
    return out


@fault(gemm)
def by_fma(visit: Visit) -> np.ndarray:
    """the products are added one by one in f32, fused and rounded to nearest"""
    a, b, splits = _operands(visit)
    return np.stack([chain_fma(x[:, None], y[None]) for x, y in zip(np.split(a, splits, 1), np.split(b, splits, 1), strict=True)])


@fault(gemm)
def operands_flushed(visit: Visit) -> np.ndarray:
    """subnormal operands are read as zeros"""
    a, b, splits = _operands(visit)
    return gemm(*(np.where(np.abs(x) < SMALLEST_NORMAL, np.float32(0), x) for x in (a, b)), splits)


@fault(gemm)
def split_moved(visit: Visit) -> np.ndarray | None:
    """every split but the last ends a block of 16 late, where the next begins"""
    a, b, splits = _operands(visit)
    if splits == 1:
        return None
    k = a.shape[1]
    ends = [0, *(k // splits * s + 16 for s in range(1, splits)), k]
    return np.concatenate([gemm(a[:, i:j], b[:, i:j]) for i, j in pairwise(ends)])


@fault(gemm)
def interleaved(visit: Visit) -> np.ndarray | None:
    """the splits take turns at the blocks of 16 instead of a range each"""
    a, b, splits = _operands(visit)
    if splits == 1 or a.shape[1] == 16 * splits:
        return None
    return gemm(*(x.reshape(len(x), -1, splits, 16).swapaxes(1, 2).reshape(len(x), -1) for x in (a, b)), splits)


@fault(gemm)
def carried(visit: Visit) -> np.ndarray | None:
    """a split goes on from the sum of the one before instead of +0"""
    a, b, splits = _operands(visit)
    if splits == 1:
        return None
    sums = [np.float32(0)]
    for x, y in zip(np.split(a, splits, 1), np.split(b, splits, 1), strict=True):
        sums.append(gemm_from(sums[-1], x, y))
    return np.stack(sums[1:])


@fault(gemm)
def merged(visit: Visit) -> np.ndarray | None:
    """the splits are added up into the first partial, the others are zero"""
    splits = visit.run()
    if len(splits) == 1:
        return None
    total = np.zeros_like(splits)
    for partial in splits:
        total[0] = add(total[0], partial)
    return total


@fault(gemm)
def splits_reversed(visit: Visit) -> np.ndarray | None:
    """the partials are stored in reverse order"""
    splits = visit.run()
    return splits[::-1] if len(splits) > 1 else None
