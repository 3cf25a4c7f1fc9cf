"""kda_core: the step it computes, and the contraction that no single fault of a word stands for."""

import numpy as np
import pytest

from goldens import load
from references import _kda_inputs
from references.arith import fma, mul
from references.arith.site import Laboratory
from references.contract import Kernel
from references.contract.mistakes import moved, same_bits

CORE = Kernel.load("kda_core")


def wide(x):
    return np.asarray(x, np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def recurrence(inputs: dict) -> tuple[np.ndarray, np.ndarray]:
    """The attention before the norm, and the next state, in f64."""
    q, k, v, gate, bias, rate, beta, state = (wide(inputs[n]) for n in ("q", "k", "v", "gate", "dt_bias", "a_log", "beta", "state"))
    decayed = state * np.exp(-5 * sigmoid(np.exp(rate)[:, None] * (gate + bias)))[..., None, :]
    k = unit(k)
    update = (v - np.einsum("bhvk,bhk->bhv", decayed, k)) * sigmoid(beta)[..., None]
    after = decayed + update[..., None] * k[..., None, :]
    return np.einsum("bhvk,bhk->bhv", after, unit(q)) * 128**-0.5, after


def test_is_the_delta_rule():
    """Keys and roots are landed, so 2^-7 of what they scale; transposed states would be off by as much as they are large."""
    inputs = _kda_inputs.usual(50, 2, 3, rows=128)
    attention, after = recurrence(inputs)
    got = CORE.outputs(inputs)
    assert np.abs(got["next"] - after).max() < 2.0**-4
    assert np.abs(got["next"] - after.swapaxes(-1, -2)).max() > 1
    norm = attention / np.sqrt((attention**2).mean(-1, keepdims=True) + inputs["eps"])
    want = norm * wide(inputs["go"]) * sigmoid(wide(inputs["g2"]))
    assert np.abs(wide(got["o"]) - want).max() < 2.0**-4 < np.abs(want).max()


@pytest.mark.parametrize("poison", [np.nan, 3e38])
def test_rows_and_heads_do_not_meet(poison):
    inputs = _kda_inputs.usual(51, 3, 2)
    spoiled = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in inputs.items()}
    for name in ("q", "k", "v", "gate", "beta", "state", "g2"):
        spoiled[name][0], spoiled[name][1, 1] = poison, poison
    clean, got = CORE.outputs(inputs), CORE.outputs(spoiled)
    for name in ("o", "next"):
        assert same_bits(clean[name][2], got[name][2]) and same_bits(clean[name][1, 0], got[name][1, 0])
        assert not same_bits(clean[name][1, 1], got[name][1, 1])


def test_the_other_product_fused_is_seen():
    """S' = fma(S, dec, d * kn) where the contract fuses d * kn."""

    def other(visit):
        d, kn, w = visit.args
        state, decay = visit.origin(w).args
        return fma(state, decay, mul(d, kn))

    golden = load("kda_core", "one_head")
    with Laboratory(faults={"S10.fma": other}):
        assert moved(CORE.outputs(golden.inputs), golden.outputs)
