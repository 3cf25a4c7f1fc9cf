"""Prefill attention in windows, and striped over ranks, against the single causal call."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from references.contract.inputs import hashed
from references.contract.kernel import Kernel
from references.floor._study import Bound, Deviation, Emulate
from references.floor.fmha import REGIMES, drawn
from references.k3.attention import cut, windowed
from references.k3.striped import striped

KERNELS = ("fmha", "lse_merge", "o_finalize")
SIZES = (1, 64, 100, 128, 300)  # of windows; the past is cut to leave a last window of one token by turns
RANKS = (2, 3, 5, 8)
SEEDS = 20

OUTPUT, LSE = "the specified floor: every window lands its output in bf16 once more", "every merge rounds a log, two exponentials and a sum"
BOUNDS = {
    "windowed ~ causal": Bound(2.0, OUTPUT, 4.0),
    "windowed lse ~ causal": Bound(16.0, LSE),
    "striped ~ causal": Bound(2.0, OUTPUT, 4.0),
    "striped lse ~ causal": Bound(4.0, LSE),
}


def deviations(seed: int, emulate: Emulate) -> Iterator[Deviation]:
    for number, (regime, strength) in enumerate(REGIMES.items()):
        inputs = drawn(16 * seed + number, strength, regime == "heavy keys") | {"causal": 1}
        q, k, v, scale = (inputs[name] for name in ("q", "k", "v", "scale"))
        single = emulate(Kernel.load("fmha"), inputs)
        past = len(k) - len(q)
        size = SIZES[seed % len(SIZES)]
        tail = past % 2 if size > 1 else 0
        o, lse = windowed(emulate, q, k, v, scale, cut(past - tail, size) + (1,) * tail)
        yield Deviation("windowed ~ causal", regime, o, single["o"])
        yield Deviation("windowed lse ~ causal", regime, lse, single["lse"])
        yield from by_ranks(seed, regime, q, k[-len(q) :], v[-len(q) :], scale, emulate)


def by_ranks(seed: int, regime: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, emulate: Emulate) -> Iterator[Deviation]:
    """Segments cut anywhere, so some are empty."""
    single = emulate(Kernel.load("fmha"), {"q": q, "k": k, "v": v, "scale": scale, "causal": 1})
    cuts = np.sort(hashed(600 + seed, (RANKS[seed % len(RANKS)] - 1,)) % (len(q) + 1))
    results = striped(emulate, *(np.split(x, cuts) for x in (q, k, v)), scale)
    yield Deviation("striped ~ causal", regime, np.concatenate([o for o, _ in results]), single["o"])
    yield Deviation("striped lse ~ causal", regime, np.concatenate([lse for _, lse in results], 1), single["lse"])
