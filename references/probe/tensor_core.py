"""The tensor core over all regimes, and which chain a vendor GEMM is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from references.arith import add, as_bf16, bf, dot16, gemm, zero
from references.probe.device import Device
from references.probe.regimes import REGIMES

TILES = 1 << 12  # a batch: 2^19 results
RECORDED = 48  # tiles of each regime kept for tests
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096)
PROJECTIONS = {  # K3: output width, k
    "mla [q_a|kv_a|gate]": (14400, 7168),
    "mla q_b": (18432, 1536),
    "attention out": (7168, 12288),
    "kda q, k or v": (12288, 7168),
    "dense gate|up": (67584, 7168),
    "dense down": (7168, 33792),
    "moe latent down": (3584, 7168),
    "moe latent up": (7168, 3584),
    "router": (896, 7168),
    "q lora": (1536, 7168),
    "lm head": (163840, 7168),
}


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


@dataclass(frozen=True)
class Vendor:
    """What one vendor GEMM turned out to be. `split` 0: no equal split of 1..8 reproduces it. `lands`: bf16 output == landed f32 output."""

    name: str
    m: int
    n: int
    k: int
    split: int
    compared: int
    lands: bool
    slices: dict[str, np.ndarray]


def vendor(device: Device, rows: tuple[int, ...] = ROWS) -> Iterator[Vendor]:
    """Sweep batch sizes over the projections; a few rows and 64 columns of each product are emulated."""
    for name, (n, k) in PROJECTIONS.items():
        for m in rows:
            picked = np.unique(np.array([0, m // 2, m - 1]))
            slices = device.vendor(m, n, k, picked, np.arange(0, n, n // 64)[:64])
            split = next((s for s in range(1, 9) if k % (16 * s) == 0 and same(merged(slices, s), slices["f32"])), 0)
            lands = same(as_bf16(bf(slices["f32"])).view(np.uint16), slices["bf16"].view(np.uint16))
            yield Vendor(name, m, n, k, split, slices["f32"].size, lands, slices)


def merged(slices: dict[str, np.ndarray], splits: int) -> np.ndarray:
    """The chain's partials of `splits` equal parts of k, added in order."""
    partials = gemm(slices["a"], slices["b"], splits)
    total = zero(partials[0])
    for partial in partials:
        total = add(total, partial)
    return total


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))
