"""mul_sigmoid: a times the landed sigmoid of b.

    a bf16 [m, n], b bf16 [m, n] -> o bf16 [m, n]

S1  gate = bf(1 / (1 + exp(0 - f(b))))
S2  o = bf16 product of a and gate, the exact product rounded once

Current form: 8 columns a thread, 16-byte loads and stores, scalar where a row is not 16-byte aligned. Retired: one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references import _elementwise
from references.arith import as_f32, bf, hmul, mul, sigmoid
from references.contract import Case, schedule
from references.contract.inputs import from_bits, near_ties, ordinary, patterns, values

INDEPENDENT = "n"
BENCH = ({"m": 16896, "n": 12288},)
BLIND = {
    "S1.sigmoid.sub:landed": "0 - b is a bf16 already",
    "S1.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S1.sigmoid.exp:flushed": "a subnormal vanishes in 1 + exp",
    "S1.sigmoid.exp:fast_exp": "all 65,536 gates land on the same bf16",
    "S1.sigmoid.add:flushed": "1 + exp is never below 1",
    "S1.sigmoid.div:reciprocal": "a product with 1 is exact: 1 * (1 / x)",
    "S1.sigmoid.div:landed": "the quotient is landed at once",
    "S1.sigmoid:landed": "the sigmoid is landed at once",
}


@schedule("a: bf16[m@lda, n], b: bf16[m@ldb, n] -> o: bf16[m, n]", version=1, requires=("n >= 1",))
def emulate(a, b):
    gate = bf(sigmoid(b))  # S1
    return hmul(a, gate)  # S2


def cases() -> Iterator[Case]:
    yield Case("every_gate", "all 65,536 gates, times 1", lambda: pair(np.broadcast_to(values(1.0), (16, 4096)).copy(), _elementwise.every()),
               ("S1.sigmoid:sigmoid_by_tanh", "S1.bf:half_away", "S1.bf:truncated"))
    yield Case("ties", "products of significands that are bf16 midpoints, of both signs", ties, ("S2.hmul:half_away", "S2.hmul:truncated"))
    yield Case("saturation", "gates that land as 1, that shrink to subnormals and to 0; arguments of -6 to -8 beside them", saturation)
    yield Case("subnormal", "gates and products below 2^-126, ties among them", subnormal, ("S1.bf:flushed", "S2.hmul:flushed"))
    yield Case("special", "NaN, infinities and zeros of both signs in both operands: inf * 0 is NaN", special)
    yield Case("patterns", "every bit pattern alike", lambda: pair(patterns(1, (16, 512)), patterns(2, (16, 512))))
    yield Case("attention", "one row of the 96 heads' 12288", lambda: pair(ordinary(3, (1, 12288)), ordinary(4, (1, 12288), 2.0)))
    yield from _elementwise.ragged(pair)
    yield Case("prefill", "16,896 rows of 12288", lambda: pair(ordinary(7, (16896, 12288)), ordinary(8, (16896, 12288), 2.0)), large=True)


def pair(a: np.ndarray, b: np.ndarray) -> dict:
    """Operands as rows; a single row may be given flat."""
    return {"a": np.atleast_2d(a), "b": np.atleast_2d(b)}


def ties() -> dict:
    """Gates of sigmoid(0) to sigmoid(3) with every significand of a: the exact products with the low half 0x8000."""
    a, b = np.broadcast_arrays(from_bits(np.arange(0x3F80, 0x4000))[:, None], values(np.arange(0, 96) / 32.0)[None])
    found = near_ties(mul(as_f32(a), bf(sigmoid(as_f32(b)))).reshape(-1), 0)
    a, b = a.reshape(-1)[found], b.reshape(-1)[found]
    return pair(np.stack([a, from_bits(a.view(np.uint16) | 0x8000)]), np.stack([b, b]))


def saturation() -> dict:
    b = values([5.5, 6, 6.25, 6.5, 7, 8, 16, 17, -5.5, -6, -7, -8, -16, -17, -87, -87.5, -88, -88.5, -89, -92, -103, -104])
    return pair(np.stack([np.full_like(b, 1.0), np.full_like(b, -7.0)]), np.stack([b, b]))


def subnormal() -> dict:
    """The gate of 0 is one half: an odd subnormal times it is a tie. Below -87.33 the gate itself is subnormal."""
    a = from_bits([0x0001, 0x0003, 0x8001, 0x8003, 0x007F, 0x0080, 0x0081, 0x00FF, 0x3F80, 0x3F80, 0x3FC0, 0xBF80, 0x7F00, 0x0080])
    b = values([0, 0, 0, 0, 0, 0, 0, 0, -88.0, -88.5, -88.0, -88.5, -88.0, -88.0])
    return pair(a, b)


def special() -> dict:
    edge = from_bits([0x7FFF, 0xFF81, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F])
    a, b = np.broadcast_arrays(edge[:, None], edge[None])
    return pair(a.copy(), b.copy())


def pool(seed: int) -> dict:
    """All gates, times 1 (which shows whatever a gate can show) and times any bit pattern."""
    a = np.concatenate([np.broadcast_to(values(1.0), (1, 65536)), patterns(seed, (1, 65536))], axis=1)
    return pair(a, np.tile(_elementwise.every().reshape(1, -1), 2))
