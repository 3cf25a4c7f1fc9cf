"""o_norm_gate: norm each head's output and gate it.

    x bf16 [m, heads, 128], go f32 [128], g2 bf16 [m, heads, 128], eps f32 -> o bf16 [m, heads, 128]

S1  sq = x * x              (squares first, unfused)
S2  tot = tree(64, 32, 16, 8, 4, 2, 1) over the 128 columns
S3  mean = tot / 128 + eps
S4  r = rsqrt(mean)
S5  n = bf((x * r) * go)
S6  sig = bf(sigmoid(g2)),  sigmoid(x) = 1 / (1 + exp(0 - x))
S7  o = bf16 product of n and sig

Current form: sixteen lanes a head, eight columns each. Retired: a block of 128 threads a head.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, bf, div, hmul, mul, rsqrt, sigmoid, tree
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, hashed, ordinary, patterns, spread, values

INDEPENDENT = "m"
BENCH = ({"m": 16896, "heads": 96, "eps": 1e-5},)

BLIND = {
    "S3.div:reciprocal": "1/128 is exact: quotient and product are one real number, rounded once",
    "S3.div:approximate": "rcp.approx(128) is exactly 1/128, and the product with it is the quotient",
    "S4.rsqrt:flushed": "the reciprocal root of a finite f32 is at least 2^-64",
    "S5.mul#2:landed": "S5 lands the product anyway, and landing twice is landing once",
    "S6.sigmoid.sub:landed": "0 - x of a bf16 is a bf16",
    "S6.sigmoid.sub:flushed": "exp of a subnormal and of zero are both 1",
    "S6.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S6.sigmoid.exp:fast_exp": "all 65,536 gates land on the same value",
    "S6.sigmoid.add:flushed": "1 + exp is at least 1",
    "S6.sigmoid.div:landed": "S6 lands the quotient anyway, and landing twice is landing once",
    "S6.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
    "S6.sigmoid:landed": "S6 lands the sigmoid anyway, and landing twice is landing once",
}


@schedule("x: bf16[m, heads, 128], go: f32[128], g2: bf16[m, heads, 128], eps: f32 -> o: bf16[m, heads, 128]", version=1)
def emulate(x, go, g2, eps):
    sq = mul(x, x)  # S1
    tot = tree(sq, (64, 32, 16, 8, 4, 2, 1))  # S2
    mean = add(div(tot, 128), eps)  # S3
    r = rsqrt(mean)  # S4
    n = bf(mul(mul(x, r[..., None]), go))  # S5
    sig = bf(sigmoid(g2))  # S6
    return hmul(n, sig)  # S7


def cases() -> Iterator[Case]:
    yield Case("ties", "r is 1.5: odd significands lie on ties of S5, their products with a gate of 0.75 on ties of S7", ties,
               ("S5.bf:half_away", "S5.bf:truncated", "S7.hmul:half_away", "S7.hmul:truncated"))
    yield Case("gate", "n is 1 and the gate every 3rd bf16 pattern: saturation at both ends, subnormal gates, exp's overflow, NaN", gate,
               ("S6.bf:truncated", "S6.bf:flushed", "S6.sigmoid.div:flushed", "S6.sigmoid.exp:landed"))
    yield Case("tiny", "squares, mean and sum among the subnormals, eps 0", tiny, ("S1.mul:flushed", "S3.div:flushed", "S3.add:flushed"))
    yield Case("subnormal", "subnormal values and products beside a head's large one, on every landing", subnormal,
               ("S5.mul:flushed", "S5.mul#2:flushed", "S5.bf:flushed", "S7.hmul:flushed"))
    yield Case("special", "infinities, NaN and squares that overflow: each poisons its own head and no other", special)
    yield Case("zeros", "heads of zeros of both signs: r is finite by eps, the sign of zero comes from all three factors", zeros)
    yield Case("eps_0", "a head of zeros and eps 0: r is infinite, the head NaN", lambda: zeros() | {"eps": 0})
    yield Case("patterns", "every operand of every bit pattern",
               lambda: gated(patterns(1, (4, 3, 128)), patterns(2, (128,), F32), patterns(3, (4, 3, 128)), 1e-5))
    yield Case("eps", "eps of the size of the middle head's mean, three heads of very different size",
               lambda: gated(np.concatenate([ordinary(4, (1, 1, 128), 2.0**k) for k in (-8, 0, 8)], axis=1), scale(5), ordinary(6, (1, 3, 128)), 0.3),
               ("S3.add:landed",))
    yield Case("heads_96", "one row of 96 heads", lambda: gated(ordinary(7, (1, 96, 128)), scale(8), ordinary(9, (1, 96, 128), 4.0), 1e-5))
    for m, heads in ((1, 1), (3, 1), (1, 7), (5, 3)):
        yield Case(f"heads_{m}x{heads}", f"{m} x {heads} heads: a last warp or block with idle lanes",
                   lambda m=m, heads=heads: gated(ordinary(m, (m, heads, 128)), scale(heads), ordinary(heads, (m, heads, 128), 4.0), 1e-5))
    yield Case("prefill", "16,896 rows of one head",
               lambda: gated(ordinary(10, (16896, 1, 128)), scale(11), ordinary(12, (16896, 1, 128), 4.0), 1e-5), large=True)


def gated(x: np.ndarray, go: np.ndarray, g2: np.ndarray, eps: float) -> dict:
    return {"x": x, "go": go, "g2": g2, "eps": eps}


def scale(seed: int) -> np.ndarray:
    """go with all bits of f32 in use."""
    return spread(seed, (128,), -1, 0, F32)


def ones(*shape: int) -> np.ndarray:
    return np.broadcast_to(values(1.0), shape).copy()


def ties() -> dict:
    """eps 4/9 makes r 1.5: the columns are odd significands around 2^-20, whose squares vanish beside it. 0x3f8c is a gate of 0.75, 64 of 1."""
    x = from_bits(0x3581 + 2 * np.arange(128)).reshape(1, 1, 128)
    g2 = np.where(np.arange(128) % 4 < 2, from_bits(0x3F8C), values(64.0)).reshape(1, 1, 128)
    return gated(np.concatenate([x, from_bits(x.view(np.uint16) ^ 0x8000)]), values([1.0] * 128, F32), np.repeat(g2, 2, axis=0), 4 / 9)


def gate() -> dict:
    g2 = from_bits(3 * np.arange(171 * 128) % 65536).reshape(57, 3, 128)
    return gated(ones(57, 3, 128), values([1.0] * 128, F32), g2, 0)


def tiny() -> dict:
    scales = (-76, -75, -74, -72, -70, -66, -63)
    x = np.concatenate([spread(-k, (1, 1, 128), k, k) for k in scales])
    return gated(x, values([1.0] * 128, F32), np.full(x.shape, values(64.0)), 0)


def subnormal() -> dict:
    """Head 0: r is about 1 and the rest subnormal. Head 1: r is 2^-10 and go 2^10, so only x * r is subnormal. Head 2: n is 1 and the gate small."""
    x = np.concatenate([values([8.0]), from_bits(2 * np.arange(127) + 1), values([2.0**13]), spread(1, (127,), -126, -117), values([1.0] * 128)])
    go = np.where(np.arange(128) % 2, values(2.0**10, F32), spread(2, (128,), -126, 0, F32))
    g2 = np.where(np.arange(384) < 256, values(64.0), spread(3, (384,), 6, 6))
    return gated(x.reshape(1, 3, 128), go, g2.reshape(1, 3, 128), 0)


def special() -> dict:
    inf, nan = np.inf, np.nan
    lone = [[inf], [-inf], [nan], [inf, nan], [2.0**64], [2.0**63, 2.0**63, 2.0**63, 2.0**63], [-(2.0**63)], [2.0**127], [1.0]]
    x = values([[[1.0, *start, *[0.5] * (127 - len(start))]] for start in lone])
    go = values([1.0, -1.0, 0.0, -0.0, inf, -inf, nan, *[1.0] * 121], F32)
    return gated(x, go, np.broadcast_to(values([0.0, -inf, inf, nan] * 32), x.shape).copy(), 1e-5)


def zeros() -> dict:
    signs = values([0.0, -0.0] * 64)
    return gated(signs.reshape(1, 1, 128), values([1.0, 1.0, -1.0, -1.0] * 32, F32), values([1.0] * 64 + [-np.inf] * 64).reshape(1, 1, 128), 1e-5)


def pool(seed: int) -> dict:
    """1536 heads, eps 0. 512 of ones, with all bf16 patterns as gates between them; ordinary ones; stairs, where the squares past a first are
    just below half an ulp of it; spreads; squares among the subnormals. A moved r shows where a product lies next to a tie, once in 512 heads."""
    stairs = from_bits(0x3970 + hashed(5 * seed, (256, 1, 128)) % 0x10)
    stairs[np.arange(256), 0, hashed(5 * seed + 1, (256,)) % 128] = values(1.0)
    x = [ones(512, 1, 128), ordinary(5 * seed + 2, (384, 1, 128)), stairs, spread(5 * seed + 3, (256, 1, 128), -12, 0),
         spread(5 * seed + 4, (128, 1, 128), -76, -62)]
    gates = from_bits(np.arange(65536)).reshape(512, 1, 128)
    return gated(np.concatenate(x), values([1.0] * 128, F32), np.concatenate([gates, np.full((1024, 1, 128), values(64.0))]), 0)
