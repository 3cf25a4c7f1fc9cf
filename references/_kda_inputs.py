"""Directed inputs of the recurrent linear-attention kernels. States are large, so most rows of a head are left at zero."""

from __future__ import annotations

import numpy as np

from references.arith import as_f32, div, mul, sigmoid
from references.contract.inputs import BF16, F32, from_bits, hashed, ordinary, patterns, spread, values

QUERY = 128**-0.5
KEEP = -200.0  # a dt_bias that makes the decay exactly 1: the sigmoid is 1 / (1 + inf)


def still(b: int, heads: int) -> dict:
    """Nothing moves: decay 1, k, v and state 0; q takes column 0, the gate is 1, eps 0."""
    row = b, heads, 128
    q = np.zeros(row, BF16)
    q[..., 0] = 1
    return {"q": q, "k": np.zeros(row, BF16), "v": np.zeros(row, BF16), "gate": np.zeros(row, F32), "dt_bias": np.full((heads, 128), KEEP, F32),
            "a_log": np.zeros(heads, F32), "beta": np.zeros((b, heads), BF16), "state": np.zeros((*row, 128), F32), "go": values([1.0] * 128, F32),
            "g2": np.full(row, values(64.0)), "eps": 0}


def shown(x: np.ndarray, go: np.ndarray, g2: np.ndarray, eps: float) -> dict:
    """The attention is x, bf16 [b, heads, 128]: column 0 of the state is what times 128^-0.5 lands there."""
    inputs = still(*x.shape[:2]) | {"go": go, "g2": g2, "eps": eps}
    inputs["state"][..., 0] = div(as_f32(x), QUERY)
    return inputs


def usual(seed: int, b: int, heads: int, rows: int = 4) -> dict:
    """What decoding sees; of the state and of v only the first rows."""
    row, s = (b, heads, 128), 16 * seed
    state, v = np.zeros((*row, 128), F32), np.zeros(row, BF16)
    state[:, :, :rows], v[..., :rows] = ordinary(s, (b, heads, rows, 128), dtype=F32), ordinary(s + 1, (b, heads, rows))
    return {"q": ordinary(s + 2, row), "k": ordinary(s + 3, row), "v": v, "gate": ordinary(s + 4, row, dtype=F32),
            "dt_bias": ordinary(s + 5, (heads, 128), dtype=F32), "a_log": ordinary(s + 6, (heads,), dtype=F32), "beta": ordinary(s + 7, (b, heads)),
            "state": state, "go": spread(s + 8, (128,), -1, 0, F32), "g2": ordinary(s + 9, row, 4.0), "eps": 1e-5}


def zeros() -> dict:
    """Every operand a zero of either sign, decay 1: sums of -0 are +0, and the signs of d, of S' and of the attention say so."""
    row = 1, 4, 128
    inputs = still(1, 4) | {name: np.broadcast_to(values([0.0, -0.0] * 64), row).copy() for name in ("k", "v")} | {"eps": 1e-5}
    inputs["state"][:, 1:] = -0.0
    inputs["k"][:, 1], inputs["k"][:, 2:] = values([0.0]), values([1.0])
    inputs["q"][:, 3] = -inputs["q"][:, 3]
    inputs["gate"][...] = -0.0
    return inputs


def landing_ties() -> dict:
    """Gate partials around midpoints of bf16; attention on them, by states whose f32 product with 128^-0.5 is one; squares that sum to one."""
    upper = np.array([0x3F80, 0x3F81, 0x3FFF, 0x4049, 0xBF80, 0xBF81, 0xBFFF, 0xC049])
    inputs = still(1, 3)
    inputs["k"][...], inputs["dt_bias"][...] = ordinary(1, (1, 3, 128)), 0.25
    inputs["state"][:, :, 0] = 1
    inputs["k"][0, 2] = values([1.0, 0.0625] + [0.0] * 126)
    inputs["gate"][0, 0, :24] = from_bits((upper[:, None] << 16 | np.array([0x7FFF, 0x8000, 0x8001])).reshape(-1), F32)
    inputs["k"][0, 1], inputs["dt_bias"][1] = 0, KEEP
    inputs["state"][0, 1, :, 0] = halfway(128)
    return inputs


def halfway(n: int) -> np.ndarray:
    """States that 128^-0.5 takes to the midpoints of n bf16 neighbours, f32 bit for bit."""
    ties = from_bits(0x3F800000 + (np.arange(8 * n) << 16 & 0x7F0000 | 0x8000) + (np.arange(8 * n) >> 7 << 23), F32)
    near = div(ties, QUERY).view(np.uint32)[:, None] + np.arange(-2, 3).astype(np.uint32)
    hits = near.view(F32)[mul(near.view(F32), QUERY) == ties[:, None]]
    return hits[:n]


def saturated() -> dict:
    """Gates and rates so large that the sigmoid's argument overflows: decays of exactly 1 and of exp(-5), and all kinds between."""
    inputs = usual(3, 1, 3)
    inputs["gate"][0, 0] = np.resize(values([2.0**127, -(2.0**127), 90.0, -90.0, 0.0], F32), 128)
    inputs["gate"][0, 1] = spread(4, (128,), -30, 100, F32)
    inputs["a_log"][...] = values([80.0, -80.0, 0.0], F32)
    inputs["gate"][0, 2] = np.resize(values([np.inf, -np.inf, 88.0, -88.5, -104.0], F32), 128)
    return inputs


def subnormal() -> dict:
    """What a flush would take. Heads: 0 gates that a rate of exp(88) brings back, 1 a rate of exp(-100) that gates of 2^127 bring back,
    2 states whose decayed values are subnormal, 3 keys and values whose products are, 4 the least queries beside large states, 5 keys and
    6 a sigmoid of beta that are subnormal beside large values."""
    inputs = usual(5, 1, 7)
    inputs["a_log"][:2] = values([88.0, -100.0], F32)
    inputs["gate"][0, :2], inputs["dt_bias"][:2] = spread(6, (2, 128), -126, -124, F32), 0
    inputs["gate"][0, 0] = from_bits(hashed(7, (128,)) & 0x807FFFFF, F32)
    inputs["gate"][0, 1] = spread(8, (128,), 120, 127, F32)
    inputs["state"][0, 2:4, :4] = spread(9, (2, 4, 128), -127, -124, F32)
    inputs["v"][0, 2:4, :4] = spread(10, (2, 4), -126, -120)
    inputs["k"][0, 3], inputs["q"][0, 4] = spread(11, (128,), -30, -8), from_bits(hashed(12, (128,)) & 0x8000 | 1)
    inputs["state"][0, 4, :4] = spread(13, (4, 128), 60, 120, F32)
    inputs["k"][0, 5], inputs["v"][0, 5:, :4] = from_bits(hashed(12, (128,)) & 0x800F), spread(14, (2, 4), 110, 120)
    inputs["k"][0, 5, 0], inputs["state"][0, 5] = 1, 0
    inputs["beta"][0, 5:] = values([0.0, -88.0])
    return inputs


def tiny_attention() -> dict:
    """Attention among the subnormals, its squares vanish beside eps, and a go of 2^120 brings it back."""
    inputs = usual(14, 1, 3, rows=8) | {"go": values([2.0**120] * 128, F32)}
    inputs["v"][...] = 0
    inputs["state"][:, :, :8] = spread(15, (1, 3, 8, 128), -126, -121, F32)
    return inputs


def special() -> dict:
    """A head each: infinite state, NaN state, NaN v, infinite k, NaN q, overflow of the update, betas of both infinities, a NaN gate before and
    one behind."""
    inputs = usual(16, 1, 10, rows=2)
    inputs["state"][0, 0, 0, 3], inputs["state"][0, 1, 1, 4] = np.inf, np.nan
    inputs["v"][0, 2, 1], inputs["k"][0, 3, 5], inputs["q"][0, 4, 6] = np.nan, np.inf, np.nan
    inputs["state"][0, 5, 0], inputs["v"][0, 5, 0] = 2.0**127, -(2.0**127)
    inputs["beta"][0, 6:8] = values([np.inf, -np.inf])
    inputs["gate"][0, 8, 7], inputs["g2"][0, 9, 8] = np.nan, np.nan
    return inputs


def contracted() -> dict:
    """Two equal columns whose states cancel in the prediction and are, but for the sign, the rounded product of update and key: fused, the
    rounding error remains; unfused, nothing does. A third key takes the prediction's error to a state of 0."""
    inputs = still(1, 1)
    inputs["k"][..., :2], inputs["k"][..., 2], inputs["beta"][...] = 1, 0.0625, 0.40625
    inputs["v"][..., :16] = ordinary(17, (1, 1, 16))
    update = mul(as_f32(inputs["v"]), sigmoid(as_f32(inputs["beta"])))
    product = mul(update, as_f32(values(0.70703125)))  # the landed 2^-0.5
    inputs["state"][..., 0], inputs["state"][..., 1] = -product, product
    inputs["state"][:, :, 16:32, :2] = inputs["state"][:, :, :16, :2]  # where v is 0
    return inputs


def any_bits(heads: int) -> dict:
    row = 1, heads, 128
    drawn = {name: patterns(20 + i, row) for i, name in enumerate(("q", "k", "v", "g2"))}
    rates = {"gate": patterns(25, row, F32), "dt_bias": patterns(26, (heads, 128), F32), "a_log": patterns(27, (heads,), F32)}
    return usual(18, 1, heads) | drawn | rates


def columns(*parts: dict) -> dict:
    """Heads side by side; go and eps, which they share, are the first part's."""
    axis = {"dt_bias": 0, "a_log": 0}
    return {name: value if name in ("go", "eps") else np.concatenate([part[name] for part in parts], axis.get(name, 1))
            for name, value in parts[0].items()}
