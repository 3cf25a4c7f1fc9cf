"""The words of a mixture of experts: who computes what, and the two small formats as the bf16 values a tensor core takes.

An entry is one (token, slot) of ids [b, k], number token * k + slot. Its rank inside an expert is the number of that expert's entries before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from references.arith.bits import F32
from references.arith.quant import e2m1_decode, e2m1_unpack, e8m0_decode
from references.arith.site import site

BLOCK = 32  # weights along k that share a scale
PAIRS = e2m1_decode(e2m1_unpack(np.arange(256, dtype=np.uint8)[:, None]))  # [256, 2]: the values in a byte, low nibble first


@site
def local(ids: np.ndarray, first: int, experts: int) -> np.ndarray:
    """Experts counted from `first`, i64; -1 (inactive) for an id outside first .. first + experts - 1."""
    at = np.asarray(ids, np.int64) - first
    return np.where((at >= 0) & (at < experts), at, -1)


@site
def members(expert: np.ndarray, e: int) -> tuple[np.ndarray, np.ndarray]:
    """Token and slot of the entries of expert e, by rank. expert [b, k] as `local` gives it."""
    return np.nonzero(expert == e)


@site
def returned(rows: Sequence[np.ndarray], tokens: Sequence[np.ndarray], slots: Sequence[np.ndarray], expert: np.ndarray, width: int) -> np.ndarray:
    """Rows of the experts, one array each, back at their entries: f32 [b, k, width], +0 where no row belongs."""
    out = np.zeros((*expert.shape, width), F32)
    for row, token, slot in zip(rows, tokens, slots, strict=True):
        out[token, slot] = row
    return out


@site
def upcast(q: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """q [..., n] e4m3 values times scale [..., n / group]. Exact, and a bf16: at most 4 significant bits; from 2^128 on infinity."""
    grouped = q.reshape(*scale.shape, q.shape[-1] // scale.shape[-1])
    with np.errstate(all="ignore"):
        return (grouped * scale[..., None]).reshape(q.shape)


@site
def mxfp4(pairs: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """u8 pairs [n, k / 2] of e2m1 codes, low nibble first, times u8 e8m0 scales [n, k / 32]: f32 [n, k]. Exact, and bf16 for scales up to 252."""
    return scaled(PAIRS[pairs].reshape(len(pairs), -1), scales)


def scaled(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Each block of 32 values times its scale."""
    with np.errstate(all="ignore"):
        return (values.reshape(*scales.shape, BLOCK) * e8m0_decode(scales)[..., None]).reshape(values.shape)
