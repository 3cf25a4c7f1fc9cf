"""situ: the tanh-bounded gate times its sigmoid and the tanh-bounded up.

    g bf16 [m, n], u bf16 [m, n], which may be halves of one wide row -> o bf16 [m, n]

S1  gate = 4 * tanh(g / 4)
S2  sig = 1 / (1 + exp(0 - g))
S3  up = 25 * tanh(u / 25)
S4  o = bf((gate * sig) * up), all in f32, one landing

Current form: 8 columns a thread, 16-byte loads and stores, scalar where a row is not 16-byte aligned; from a few rows on, gate * sig and up
come from tables in shared memory that the same arithmetic filled. Retired: one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references import _elementwise
from references.arith import as_f32, bf, div, mul, sigmoid, tanh
from references.contract import Case, schedule
from references.contract.inputs import from_bits, near_ties, ordinary, patterns, spread, values

INDEPENDENT = "n"
BENCH = ({"m": 16896, "n": 6144}, {"m": 16896, "n": 33792})
BLIND = {
    "S1.div:reciprocal": "1 / 4 is a power of two: g * 0.25 is g / 4 for every bf16",
    "S1.div:approximate": "rcp.approx of 4 is 0.25, and g * 0.25 is g / 4 for every bf16",
    "S2.sigmoid.sub:landed": "0 - g is a bf16 already",
    "S2.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S2.sigmoid.exp:flushed": "a subnormal vanishes in 1 + exp",
    "S2.sigmoid.add:flushed": "1 + exp is never below 1",
    "S2.sigmoid.div:reciprocal": "a product with 1 is exact: 1 * (1 / x)",
    "S4.mul#2:landed": "the product is landed at once",
    "S4.bf:skipped": "the store rounds as the landing does",
}


@schedule("g: bf16[m@ldg, n], u: bf16[m@ldu, n] -> o: bf16[m, n]", version=1, requires=("n >= 1",))
def emulate(g, u):
    gate = mul(4, tanh(div(g, 4)))  # S1
    sig = sigmoid(g)  # S2
    up = mul(25, tanh(div(u, 25)))  # S3
    return bf(mul(mul(gate, sig), up))  # S4


def cases() -> Iterator[Case]:
    yield Case("every_gate", "all 65,536 gates, with an up of 1 and of -24",
               lambda: pair(_elementwise.every(), np.tile(values([1.0, -24.0]), (16, 2048))),
               ("S1.tanh:tanh_by_exp", "S2.sigmoid:sigmoid_by_tanh"))
    yield Case("every_up", "all 65,536 ups, with a gate of 1.5 and of -3",
               lambda: pair(np.tile(values([1.5, -3.0]), (16, 2048)), _elementwise.every()),
               ("S3.tanh:tanh_by_exp",))
    yield Case("ties", "products whose f32 is a bf16 midpoint or one step beside it", lambda: near(1, 1),
               ("S4.bf:half_away", "S4.bf:truncated", "S3.div:reciprocal", "S2.sigmoid.exp:fast_exp"))
    yield Case("saturation", "both tanh at 1, the gate's sigmoid at 0; a tanh by exp overflows to NaN", saturation, ("S1.tanh:tanh_by_exp",))
    yield Case("subnormal", "landings and factors below 2^-126", subnormal, ("S4.bf:flushed",))
    yield Case("special", "NaN, infinities and zeros of both signs in both operands", special)
    yield Case("patterns", "every bit pattern alike", lambda: pair(patterns(1, (16, 512)), patterns(2, (16, 512))))
    for n, of in ((3072, "an expert"), (6144, "the shared expert"), (33792, "the dense MLP")):
        yield Case(f"width_{n}", f"one row of {of}'s {n}", lambda n=n: pair(ordinary(n, (1, n), 2.0), ordinary(n + 1, (1, n), 4.0)))
    yield from _elementwise.ragged(pair)
    yield Case("prefill", "16,896 rows of 6144, half activations, half any bits: every entry of the tables and all that is not in them",
               prefill, large=True)


def pair(g: np.ndarray, u: np.ndarray) -> dict:
    """Operands as rows; a single row may be given flat."""
    return {"g": np.atleast_2d(g), "u": np.atleast_2d(u)}


def near(seed: int, within: int) -> dict:
    """Of 2^20 pairs those whose product lies within so many f32 steps of a bf16 midpoint: about 1 in 65,536 a step."""
    g, u = spread(2 * seed, (1 << 20,), -8, 6), spread(2 * seed + 1, (1 << 20,), -8, 7)
    wide_g, wide_u = as_f32(g), as_f32(u)
    product = mul(mul(mul(4, tanh(div(wide_g, 4))), sigmoid(wide_g)), mul(25, tanh(div(wide_u, 25))))
    found = near_ties(product, within)
    return pair(g[found], u[found])


def saturation() -> dict:
    """178 and 1112 give exactly 4 * 25; a gate of -200 has a sigmoid of 0, and the sign of the zero is that of -up."""
    g = values([178, -200, -200, 178, 36, 36.25, 17, 16.5, -88, -88.5, -89, -104, 0.0, -0.0])
    u = values([1112, 1, -1, -1112, 225, 226, 1112, 1112, 1112, 1112, 1112, 1112, 1112, 1112])
    return pair(g, u)


def subnormal() -> dict:
    g = from_bits([0x0001, 0x0080, 0x0003, 0x8001, 0x0100, 0x3F80, 0x3F80, 0x2000, 0x2000, 0xC2B1, 0xC2AE, 0x4180])
    u = from_bits([0x3F80, 0x3F80, 0x4000, 0x3F80, 0x0001, 0x0001, 0x8003, 0x2000, 0x1F00, 0x3F80, 0x3E00, 0x0001])
    return pair(g, u)


def special() -> dict:
    edge = from_bits([0x7FFF, 0xFF81, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F])
    g, u = np.broadcast_arrays(edge[:, None], edge[None])
    return pair(g.copy(), u.copy())


def prefill() -> dict:
    half = (16896 // 2, 6144)
    g, u = (np.concatenate([ordinary(7 + i, half, 4.0), patterns(9 + i, half)]) for i in range(2))
    return pair(g, u)


def pool(seed: int) -> dict:
    """Near-ties, where a last bit anywhere shows, and pairs whose factors or product are subnormal."""
    ties = near(seed + 2, 3)
    g, u = spread(3 * seed, (1, 1024), -126, 4), from_bits(patterns(3 * seed + 1, (1, 1024)).view(np.uint16) & 0x87FF)
    return pair(np.concatenate([ties["g"], g, u], axis=1), np.concatenate([ties["u"], u, g], axis=1))
