"""fmha against attention in f64: what tensor cores, an approximate exponential and landed weights cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from references.contract.inputs import hashed, ordinary
from references.contract.kernel import Kernel
from references.floor._study import Bound, Deviation, Emulate

KERNELS = ("fmha",)
HEADS = 2
SCALE = 0.072265625  # 192^-0.5 in bf16
REGIMES = {"flat": 0.0625, "ordinary": 1.0, "peaked": 4.0, "heavy keys": 0.25}  # deviation of queries, and about that of the scores
SEEDS = 16

BOUNDS = {
    "o ~ truth": Bound(2.0, "weights land in bf16 before they meet the values, and so does the output"),
    "lse ~ truth": Bound(12.0, "tensor cores cut what does not fit their sums, so large scores are small by some f32 ULP; ex2.approx"),
}


def deviations(seed: int, emulate: Emulate) -> Iterator[Deviation]:
    kernel = Kernel.load("fmha")
    for number, (regime, strength) in enumerate(REGIMES.items()):
        inputs = drawn(16 * seed + number, strength, regime == "heavy keys")
        results, (o, lse) = emulate(kernel, inputs), attention(**inputs)
        yield Deviation("o ~ truth", regime, results["o"], o)
        yield Deviation("lse ~ truth", regime, results["lse"], lse)


def drawn(seed: int, strength: float, heavy: bool) -> dict:
    """2 heads of 1 .. 256 queries at the end of up to 768 keys, dense and causal in turns."""
    t_q, past = (1 + int(hashed(100 + seed, (2,))[i] % limit) for i, limit in enumerate((256, 512)))
    q, k = ordinary(200 + seed, (t_q, HEADS, 192), strength), ordinary(300 + seed, (t_q + past, HEADS, 192))
    if heavy:
        q[..., 0], k[[0, past // 2, past], :, 0] = 4, [[20], [19], [21]]  # scores of 4 * 20 * scale, near 6, above the others
    return {"q": q, "k": k, "v": ordinary(400 + seed, (t_q + past, HEADS, 128)), "scale": SCALE, "causal": seed % 2}


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: int) -> tuple[np.ndarray, np.ndarray]:
    """o f64 [t_q, h, 128] and lse f64 [h, t_q], nothing landed."""
    q, k, v = (x.astype(np.float64).swapaxes(0, 1) for x in (q, k, v[..., -128:]))
    score = q @ k.swapaxes(1, 2) * scale
    if causal:
        score[:, np.arange(k.shape[1]) > k.shape[1] - q.shape[1] + np.arange(q.shape[1])[:, None]] = -np.inf
    with np.errstate(invalid="ignore", divide="ignore"):
        top = score.max(-1, keepdims=True)
        weight = np.exp(score - np.where(np.isfinite(top), top, 0))
        total = weight.sum(-1, keepdims=True)
        o = weight @ v / np.maximum(total, np.finfo(float).tiny)
        return o.swapaxes(0, 1), (np.log(total) + np.where(np.isfinite(top), top, 0))[..., 0]
