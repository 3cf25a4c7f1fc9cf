"""The tensor core over all regimes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from references.arith import dot16
from references.probe.device import Device
from references.probe.regimes import REGIMES

TILES = 1 << 12  # a batch: 2^19 results
RECORDED = 48  # tiles of each regime kept for tests


def mismatches(device: Device, regime: str, results: int, threads: int) -> tuple[int, int]:
    """Compare at least `results` tensor-core results of one regime; (compared, wrong). A NaN must be 0x7fffffff in both."""
    batches = -(-results // (TILES * 128))

    def wrong(batch: int) -> int:
        a, b, c = REGIMES[regime](100 * batch, TILES)
        measured = device.mma(a, b, c)
        return int(np.count_nonzero(measured.view(np.uint32) != emulated(a, b, c).view(np.uint32)))

    with ThreadPoolExecutor(threads) as pool:
        return batches * TILES * 128, sum(pool.map(wrong, range(batches)))


def emulated(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return dot16(a[:, :, None, :], b[:, None, :, :], c)


def samples(device: Device) -> dict[str, np.ndarray]:
    """RECORDED tiles of every regime as bits: a, b uint16; c, d uint32; `regime` the index of each tile's."""
    parts = []
    for number, make in enumerate(REGIMES.values()):
        a, b, c = make(1 << 20, RECORDED)
        d = device.mma(a, b, c)
        parts.append((a.view(np.uint16), b.view(np.uint16), c.view(np.uint32), d.view(np.uint32), np.full(RECORDED, number, np.uint8)))
    return {name: np.concatenate(group) for name, group in zip(("a", "b", "c", "d", "regime"), zip(*parts, strict=True), strict=True)}
