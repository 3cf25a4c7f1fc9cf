"""What both transports of the experts share: the sizes they take, what is refused, the activation between the two products."""

from __future__ import annotations

import numpy as np

from references.arith import bf, div, mul, sigmoid, tanh

SIZES = ("k >= 1", "experts >= 1", "experts <= 65535", "h >= 32", "pairs_i >= 16", "h == 2 * pairs_h", "h == 32 * groups_h",
         "rows13 == 4 * pairs_i", "rows13 == 64 * groups_i", "first >= 0", "first <= 2147483647 - experts", "1 <= cap <= 2147483647")
LARGEST_SCALE = 252  # 6 * 2^(252 - 127) is below 2^128, a 4 times the next scale is not

QUOTIENT = "the power of two above amax / 448 is the same: {}"
EXACT = "a quotient by a power of two: nothing is rounded but what the code drops anyway"
TINY = "an activation below 2^-52 has the code 0"
BLIND = {
    **{f"{step}.quant.div:{fault}": QUOTIENT.format("no last bit of a quotient crosses one") for step in ("S2", "S5")
       for fault in ("reciprocal", "approximate")},
    **{f"{step}.quant.div:flushed": QUOTIENT.format("1e-10 / 448 is no subnormal") for step in ("S2", "S5")},
    **{f"{step}.quant.div#2:{fault}": EXACT for step in ("S2", "S5") for fault in ("flushed", "reciprocal", "approximate")},
    **{f"{step}.quant.e4m3:unclamped": "the scale keeps every quotient within 448, but NaN" for step in ("S2", "S5")},
    "S2.quant.div:landed": QUOTIENT.format("a bf16 that is above 448 * 2^k is so by 2^-8 of it"),
    "S2.quant.div#2:landed": EXACT,
    "S3.gemm_from:apart": "the accumulator is +0, and no sum of a tensor core is -0",
    "S6.gemm_from:apart": "the accumulator is +0, and no sum of a tensor core is -0",
    **{f"{site}:flushed": TINY for site in ("S3.bf", "S4.situ.div", "S4.situ.div#2", "S4.situ.tanh", "S4.situ.tanh#2", "S4.situ.mul", "S4.situ.mul#2",
                                            "S4.situ.mul#3", "S4.situ.mul#4", "S4.situ.bf", "S4.situ.sigmoid", "S4.situ.sigmoid.div")},
    "S4.situ.div:landed": "g / 4 is a bf16, or its activation below 2^-52",
    "S4.situ.div:reciprocal": "1 / 4 is a power of two: g * 0.25 is g / 4 for every bf16",
    "S4.situ.div:approximate": "rcp.approx of 4 is 0.25, and g * 0.25 is g / 4 for every bf16",
    "S4.situ.sigmoid.sub:landed": "0 - g is a bf16 already",
    "S4.situ.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S4.situ.sigmoid.exp:flushed": "a subnormal vanishes in 1 + exp",
    "S4.situ.sigmoid.add:flushed": "1 + exp is never below 1",
    "S4.situ.sigmoid.div:reciprocal": "a product with 1 is exact: 1 * (1 / x)",
    "S4.situ.mul#4:landed": "the product is landed at once",
    "S7.bf:skipped": "the store rounds as the landing does",
}


def refuse(ids: np.ndarray, s13: np.ndarray, s2: np.ndarray, first: int, cap: int, **others) -> None:
    """ValueError where an expert has more than `cap` entries, or a scale takes a weight out of bf16."""
    at = ids.astype(np.int64) - first
    counts = np.bincount(at[(at >= 0) & (at < len(s13))], minlength=1)
    if counts.max() > cap:
        raise ValueError(f"ids must name no expert more than cap = {cap} times, got {counts.max()} entries for expert {first + counts.argmax()}")
    for name, scales in (("s13", s13), ("s2", s2)):
        if scales.max() > LARGEST_SCALE:
            raise ValueError(f"{name} must hold e8m0 codes up to {LARGEST_SCALE}, as bf16 ends at 2^128, got {scales.max()}")


def cost(sizes: dict) -> dict[str, float]:
    """Weights of the experts that `bench_inputs` names, rows in and out; three products of h * inter an entry."""
    at = bench_inputs(sizes)["ids"] - sizes["first"]
    active = at[(at >= 0) & (at < sizes["experts"])]
    weights = sizes["h"] * (sizes["rows13"] + 2 * sizes["pairs_i"])
    return {"bytes": len(np.unique(active)) * weights * (1 / 2 + 1 / 32) + 4 * sizes["b"] * sizes["h"], "flops": 2 * len(active) * weights}


def bench_inputs(sizes: dict) -> dict[str, np.ndarray]:
    """Every token names k different experts of 32 windows, all experts alike."""
    token, slot = np.indices((sizes["b"], sizes["k"]))
    everywhere = 32 * sizes["experts"]
    return {"ids": ((token * 401 + slot * (everywhere // sizes["k"] + 1)) % everywhere).astype(np.int32)}


def bench(b: int, cap: int) -> dict[str, int]:
    """K3: 28 of 896 experts here, 16 for each token."""
    return {"b": b, "h": 3584, "k": 16, "experts": 28, "rows13": 6144, "pairs_h": 1792, "groups_h": 112, "pairs_i": 1536, "groups_i": 96,
            "first": 0, "cap": cap}


BENCH = (bench(16, 16), bench(1024, 1024))


def situ(gate_up: np.ndarray, inter: int) -> np.ndarray:
    """The activation as kernel situ computes it; gate_up [m, 2 * inter], gates first."""
    gate, up = gate_up[:, :inter], gate_up[:, inter:]
    bounded = mul(4, tanh(div(gate, 4)))
    return bf(mul(mul(bounded, sigmoid(gate)), mul(25, tanh(div(up, 25)))))
