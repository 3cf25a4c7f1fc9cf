"""mla_paged: its forms against three_sweep, which sums everything in one order, and each against attention in f64.

A landed score moves by a bf16 step where two orders of its 576 products lie on both sides of a midpoint; so do the latent query and the landed
outputs. A score moved by a step of 2^-k moves its key's weight by a 2^-k part: what that does to the output depends on how the weight is spread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from references.contract.inputs import BF16, hashed, ordinary
from references.contract.kernel import Kernel
from references.floor._study import Bound, Deviation, Emulate
from references.mla_paged import FORMS

KERNELS = ("mla_paged",)
REFERENCE = "three_sweep"
HEADS, LATENT, ROPE, PAGE = 4, 512, 64, 64
LONGEST = 4096
SCALE = 0.072265625  # 192^-0.5 in bf16
# Deviation of the queries: nearly uniform weights; what attention looks like; one key takes most of it. With dense weights of 2^-4 a query of
# deviation d and keys of deviation 1 give scores of about 17 d scale.
REGIMES = {"flat": 0.0625, "ordinary": 1.0, "peaked": 4.0, "heavy keys": 0.25}

SEEDS = 128
# In a few of 10,000 keys two orders land a score on both sides of a midpoint. Between 16 and 32 that is a step of 1/8: where two keys share the
# weight, 3 % of it go from one to the other, and the outputs of this head with it. No order of sums avoids it.
MIDPOINT = 16.0
LANDED = "scores land in bf16, so a large one is off by up to half of its step and the weight of its key by as much"
ORDERS = {"two_pass": "scores by 32 lanes of pairs, a denominator scaled page by page", "mma": "every sum on tensor cores, softmax by splits"}
BOUNDS = {
    **{f"{form} ~ {REFERENCE}": Bound(2.0, f"the specified floor: {ORDERS[form]}", MIDPOINT) for form in FORMS if form != REFERENCE},
    **{f"{form} ~ truth": Bound(64.0, LANDED, 128.0) for form in FORMS},
}


def deviations(seed: int, emulate: Emulate) -> Iterator[Deviation]:
    kernel = Kernel.load("mla_paged")
    for number, (regime, strength) in enumerate(REGIMES.items()):
        inputs = drawn(16 * seed + number, strength, regime == "heavy keys")
        truth = attention(inputs)
        results = {form: emulate(kernel, inputs | {"form": form})["o"] for form in kernel.forms}
        for form, o in results.items():
            if form != REFERENCE:
                yield Deviation(f"{form} ~ {REFERENCE}", regime, o, results[REFERENCE])
            yield Deviation(f"{form} ~ truth", regime, o, truth)


def drawn(seed: int, strength: float, heavy: bool) -> dict:
    """Two rows of 4 heads, contexts of 1 .. 4096 tokens with all lengths alike on a logarithmic scale."""
    length = [1 + int(hashed(100 + seed, (2,))[i] % (1 << (1 + seed % 12))) for i in range(2)]
    pages = -(-max(length) // PAGE)
    q = ordinary(200 + seed, (2, HEADS, 192), strength)
    w = ordinary(300 + seed, (HEADS, 256, LATENT), 0.0625)
    cache = ordinary(400 + seed, (pages * PAGE, LATENT + ROPE))
    if heavy:
        favour(q, cache, length)
    table = np.stack([np.argsort(hashed(500 + seed, (pages,)), kind="stable")] * 2).astype(np.int32)
    placed = np.empty_like(cache).reshape(pages, -1)
    placed[table[0]] = cache.reshape(pages, -1)
    return {"q": q, "w_kv_b": w, "cache": placed.reshape(-1), "table": table, "context": np.array(length, np.int32), "scale": SCALE,
            "layer_offset": 0, "page_stride": PAGE * (LATENT + ROPE)}


def favour(q: np.ndarray, cache: np.ndarray, length: list[int]) -> None:
    """What trained models show: the first key and a few later ones take most of the weight, and one latent in 64 is eight times as large."""
    cache[:, 0:LATENT:64] *= BF16.type(8)
    q[..., 128] = 4
    for tokens in length:
        cache[[0, tokens // 2, tokens - 1], LATENT] = [20, 19, 21]  # scores of 4 * 20 * scale, near 6, above the others


def latent_query(q: np.ndarray, w: np.ndarray) -> np.ndarray:
    """f64 [576] of q [192] and w [256, 512]."""
    return np.concatenate([q[:128].astype(np.float64) @ w[:128].astype(np.float64), q[128:].astype(np.float64)])


def attention(inputs: dict) -> np.ndarray:
    """The exact contract in f64, nothing landed: [b, heads, 128]."""
    pages = inputs["cache"].reshape(-1, PAGE, LATENT + ROPE).astype(np.float64)
    o = np.empty((*inputs["q"].shape[:2], 128))
    for row, tokens in enumerate(inputs["context"]):
        keys = pages[inputs["table"][row]].reshape(-1, LATENT + ROPE)[:tokens]
        for head, w in enumerate(inputs["w_kv_b"]):
            score = keys @ latent_query(inputs["q"][row, head], w) * inputs["scale"]
            weight = np.exp(score - score.max())
            o[row, head] = w[128:].astype(np.float64) @ (weight / weight.sum() @ keys[:, :LATENT])
    return o
