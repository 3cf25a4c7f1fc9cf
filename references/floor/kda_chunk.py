"""kda_chunk against kda_core's recurrence taken token by token, and each against the recurrence in f64.

Two things set them apart. kda_chunk takes 16 tokens at once on tensor cores: `recurrence` shows what that costs, being kda_core's recurrence in f32
with kda_chunk's operands, normed in f32. kda_core norms q and k in bf16: that moves kda_core itself off the truth, and where a query nearly misses
all keys, as with fast decay, where few are left, what remains of its output is made of these roundings. Outputs are compared before the head's norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from references import kda_core
from references._kda import QUERY, log_decay, unit
from references.arith import as_bf16, as_f32, bf, chain_fma, exp, fma, mul, sigmoid, sub
from references.contract.inputs import BF16, F32, hashed, ordinary
from references.contract.kernel import Kernel
from references.floor._study import Bound, Deviation, Emulate

KERNELS = ("kda_chunk", "kda_core")
HEADS = 2
LONGEST = 1024
SEEDS = 32
# Mean of the gates' sigmoid's argument, and keys: ordinary, those of a convolution behind a SiLU, or alike up to a third.
REGIMES = {"slow": (-9.0, "ordinary"), "medium": (-4.0, "ordinary"), "fast": (0.0, "ordinary"), "silu": (-7.0, "silu"), "alike": (-7.0, "alike")}

NORMS = "kda_core lands the length, its root and the normed q and k in bf16"
BOUNDS = {
    "kda_chunk ~ recurrence": Bound(2.0, "the specified floor: tiles of 16 tokens, operands of 16 bits, sums on tensor cores"),
    "kda_chunk ~ truth": Bound(1.0, "the output lands in bf16, which is half an ULP"),
    "state: kda_chunk ~ truth": Bound(1.0, "in ULP of bf16: operands of 16 bits, sums that tensor cores cut"),
    "kda_chunk ~ kda_core": Bound(32.0, NORMS, 128.0),
    "kda_core ~ truth": Bound(64.0, NORMS, 128.0),
    "state: kda_core ~ truth": Bound(8.0, f"in ULP of bf16: {NORMS}", 16.0),
}


def deviations(seed: int, emulate: Emulate) -> Iterator[Deviation]:
    kernel = Kernel.load("kda_chunk")
    for number, (regime, (centre, keys)) in enumerate(REGIMES.items()):
        inputs = drawn(16 * seed + number, centre, keys)
        results = emulate(kernel, inputs)
        o, state = results["o"], as_bf16(bf(results["next"]))
        in_f32, _ = recurrence(inputs, lambda x: unit(as_f32(x)))
        core, core_state = recurrence(inputs, lambda x: kda_core.l2norm(as_f32(x)))
        exact, exact_state = truth(inputs)
        yield Deviation("kda_chunk ~ recurrence", regime, o, in_f32)
        yield Deviation("kda_chunk ~ truth", regime, o, exact)
        yield Deviation("state: kda_chunk ~ truth", regime, state, exact_state)
        yield Deviation("kda_chunk ~ kda_core", regime, o, core)
        yield Deviation("kda_core ~ truth", regime, core, exact)
        yield Deviation("state: kda_core ~ truth", regime, core_state, exact_state)


def drawn(seed: int, centre: float, keys: str) -> dict:
    """1 .. 1024 tokens, all lengths alike on a logarithmic scale, from a zero state in every other draw."""
    t = 1 + int(hashed(100 + seed, (1,))[0] % (LONGEST >> seed // 16 % 10))
    q, k, v = (ordinary(1000 + 8 * seed + i, (t, HEADS, 128)) for i in range(3))
    if keys == "silu":
        q, k, v = (as_bf16(bf(mul(as_f32(x), sigmoid(as_f32(x))))) for x in (q, k, v))
    if keys == "alike":
        k = (k.astype(F32) * F32.type(0.3) + ordinary(1003 + 8 * seed, (1, HEADS, 128)).astype(F32)).astype(BF16)
    return {"q": q, "k": k, "v": v, "gate": ordinary(1004 + 8 * seed, (t, HEADS, 128), dtype=F32) + F32.type(centre),
            "dt_bias": np.zeros((HEADS, 128), F32), "a_log": np.zeros(HEADS, F32), "beta": ordinary(1005 + 8 * seed, (t, HEADS)),
            "state": ordinary(1006 + 8 * seed, (HEADS, 128, 128), 0.125, F32) * F32.type(seed // 16 % 2)}


def recurrence(inputs: dict, norm: Callable) -> tuple[np.ndarray, np.ndarray]:
    """kda_core's, of normed q and k, token by token in its words: o bf16 [t, heads, 128] before the head's norm, the state bf16."""
    x = {name: as_f32(value) for name, value in inputs.items()}
    decay, weight = exp(log_decay(x["gate"], x["dt_bias"], x["a_log"])), sigmoid(x["beta"])
    kn, qs, state, o = norm(inputs["k"]), mul(norm(inputs["q"]), QUERY), x["state"], []
    for i in range(len(kn)):
        w = mul(state, decay[i, :, None])
        d = mul(sub(x["v"][i], chain_fma(w, kn[i, :, None])), weight[i][:, None])
        state = fma(d[..., None], kn[i, :, None], w)
        o.append(bf(chain_fma(state, qs[i, :, None])))
    return as_bf16(np.stack(o)), as_bf16(bf(state))


def truth(inputs: dict) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence in f64, nothing landed but the gate partial: o [t, heads, 128] and the state."""
    q, k, v, beta, state = (inputs[name].astype(np.float64) for name in ("q", "k", "v", "beta", "state"))
    gate = bf(inputs["gate"]).astype(np.float64) + inputs["dt_bias"]
    decay = np.exp(-5 / (1 + np.exp(-np.exp(inputs["a_log"].astype(np.float64))[:, None] * gate)))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    weight, o = 1 / (1 + np.exp(-beta)), []
    for i in range(len(k)):
        state = state * decay[i, :, None]
        d = (v[i] - (state @ k[i][..., None])[..., 0]) * weight[i][:, None]
        state = state + d[..., None] * k[i][:, None]
        o.append((state @ q[i][..., None])[..., 0] * 128**-0.5)
    return np.stack(o), state
