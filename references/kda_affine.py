"""kda_affine: what a segment of tokens does to the state of linear attention, S_out = S_in . M + D for each head.

    k, v bf16 [t, heads, 128], gate f32 [t, heads, 128], dt_bias f32 [heads, 128], a_log f32 [heads], beta bf16 [t, heads]
    -> mm f32 [heads, 128, 128], d f32 [heads, 128, 128]

M is what the recurrence makes of an identity with v = 0, D what it makes of zeros with the segment's v: 256 rows of one state. kda_core's
recurrence in f32, token by token, with the keys normed in f32 as kda_chunk norms them. Sums are of fused products from +0.

S1  S = 128 rows of the identity over 128 of zeros; their v is +0 over v
S2  dec = exp(-5 * sigmoid(exp(a_log) * (bf(0 + gate) + dt_bias))),  sigmoid(x) = 1 / (1 + exp(0 - x))
S3  kn = k * rsqrt(tree(64, 32, 16, 8, 4, 2, 1) of k * k + 1e-6)
S4  for each token, ascending: w = S * dec_k; m_v = sum over k ascending of w * kn_k
S5  d_v = (v_v - m_v) * sigmoid(beta)
S6  S = fma(d_v, kn_k, w)
S7  M and D: the upper and the lower half of S

Current form: a block for each half of a head, a row of S in the registers of each thread; 16 tokens' keys, decays and v at a time in shared
memory. The retired form where mm or d is not 16-byte aligned. Retired: the rows in shared memory, a token at a time.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, asc, bf, chain_fma, exp, fma, join, mul, repeat, rsqrt, sigmoid, sub, tree, zero
from references.contract import Case, schedule
from references.contract.inputs import BF16, F32, from_bits, hashed, ordinary, patterns, spread, values

INDEPENDENT = "heads"
BENCH = ({"t": 512, "heads": 96}, {"t": 2112, "heads": 96})
SEED = np.eye(256, 128, dtype=F32)
WIDTH = (64, 32, 16, 8, 4, 2, 1)  # offsets of the tree over a head's columns
LOWEST = -5  # log of the least decay
KEEP = -200.0  # a dt_bias that makes the decay exactly 1: the sigmoid is 1 / (1 + inf)
BLIND = {
    "S1.join:reversed_first": "zeros are the same from either end",
    "S2.zero:minus_zero": "exp(0 - x) is 1 for a zero of either sign",
    "S2.add:landed": "the partial is landed at once",
    "S2.mul:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S2.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S2.sigmoid.sub:fused": "0 - x is exact: the product is rounded once either way",
    "S2.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S2.sigmoid.add:flushed": "1 + exp is at least 1",
    "S2.sigmoid.div:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S2.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
    "S2.sigmoid:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S2.mul#2:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S2.exp#2:flushed": "the decay is at least exp(-5)",
    "S3.mul:flushed": "a subnormal vanishes beside 1e-6",
    "S3.add:flushed": "the sum is at least 1e-6",
    "S3.rsqrt:flushed": "the reciprocal root of a finite f32 is at least 2^-64",
    "S5.sigmoid.sub:landed": "0 - x of a bf16 is a bf16",
    "S5.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S5.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S5.sigmoid.add:flushed": "1 + exp is at least 1",
    "S5.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
}


@schedule(
    "k: bf16[t, heads, 128], v: bf16[t, heads, 128], gate: f32[t, heads, 128], dt_bias: f32[heads, 128], a_log: f32[heads], beta: bf16[t, heads]"
    " -> mm: f32[heads, 128, 128], d: f32[heads, 128, 128]",
    version=1,
)
def emulate(k, v, gate, dt_bias, a_log, beta):
    s = repeat(SEED, len(a_log), axis=0)  # S1
    v = join([zero(v), v], axis=2)  # S1
    gl = bf(add(zero(gate), gate))  # S2
    dec = exp(mul(LOWEST, sigmoid(mul(exp(a_log)[:, None], add(gl, dt_bias)))))  # S2
    kn = mul(k, rsqrt(add(tree(mul(k, k), WIDTH), 1e-6))[..., None])  # S3
    for i in asc(len(k)):  # S4
        w = mul(s, dec[i, :, None])  # S4
        m = chain_fma(w, kn[i, :, None])  # S4
        update = mul(sub(v[i], m), sigmoid(beta[i])[:, None])  # S5
        s = fma(update[..., None], kn[i, :, None], w)  # S6
    return s[:, :128], s[:, 128:]  # S7


def cases() -> Iterator[Case]:
    yield Case("no_token", "a segment without tokens: the identity and zeros", lambda: segment(1, 0, 2), ("S1.repeat:first_only",))
    yield Case("one_token", "one token of one head, a dense key", lambda: segment(2, 1, 1, live=128))
    yield Case("order", "three tokens do not commute", lambda: segment(3, 3, 2), ("S4.asc:descending",))
    for t in (15, 16, 17, 33):
        yield Case(f"tokens_{t}", f"{t} tokens: tiles of 16, full and not", lambda t=t: segment(4, t, 1))
    yield Case("zeros", "zeros of both signs in keys, v and gates", zeros)
    yield Case("minus_zero", "an update that underflows to -0, then a key of +0 whose d is +0 since +0 - +0 is", minus_zero,
               ("S1.zero:minus_zero", "S4.chain_fma:unseeded"))
    yield Case("saturated", "a log decay of -5, then of 0; gates of 2^127 and infinity: finite, and the second token keeps all", saturated)
    yield Case("subnormal", "subnormal gates, rates, keys, betas and updates", subnormal,
               ("S2.bf:flushed", "S2.exp:flushed", "S3.mul#2:flushed", "S5.sigmoid.div:flushed", "S6.fma:flushed"))
    yield Case("ties", "gate partials on and beside midpoints of bf16", ties, ("S2.bf:half_away", "S2.bf:truncated"))
    yield Case("special", "NaN in v, an infinite key, a NaN gate, infinite betas: each poisons its own head", special)
    yield Case("patterns", "every bit pattern alike", any_bits)
    yield Case("long", "200 tokens of 3 heads, dense", lambda: segment(5, 200, 3, live=128), large=True)


def segment(seed: int, t: int, heads: int, live: int = 12) -> dict:
    """Tokens as prefill sees them; of keys and v only `live` columns, so that M stays a diagonal elsewhere."""
    row, s = (t, heads, 128), 8 * seed
    mask = (np.arange(128) * 37 % 128 < live).astype(BF16)
    return {"k": ordinary(s, row) * mask, "v": ordinary(s + 1, row) * mask, "gate": ordinary(s + 2, row, dtype=F32),
            "dt_bias": ordinary(s + 3, (heads, 128), dtype=F32), "a_log": ordinary(s + 4, (heads,), dtype=F32), "beta": ordinary(s + 5, (t, heads))}


def zeros() -> dict:
    inputs = segment(6, 2, 4)
    signs = np.broadcast_to(values([0.0, -0.0] * 64), (2, 2, 128))
    inputs["k"][:, 1:3], inputs["v"][:, 2:4], inputs["gate"][...] = signs, signs, -0.0
    return inputs


def minus_zero() -> dict:
    """Token 0: products of two keys of 2^-90 underflow, in head 1 those of key and v, too. Token 1: keys of +0, v of +0 and of -0."""
    inputs = segment(7, 2, 2) | {"dt_bias": np.full((2, 128), KEEP, F32)}
    inputs["gate"][...], inputs["v"][...] = 0, 0
    inputs["k"][0], inputs["k"][1] = 2.0**-90, 0
    inputs["v"][0, 1], inputs["v"][1, 1] = -(2.0**-90), -0.0
    return inputs


def saturated() -> dict:
    inputs = segment(8, 3, 3)
    inputs["gate"][0], inputs["gate"][1:] = 90, -90
    inputs["gate"][:, 1], inputs["a_log"][1] = spread(9, (3, 128), -30, 100, F32), 80
    inputs["gate"][:, 2] = np.resize(values([np.inf, -np.inf, 2.0**127, -(2.0**127)], F32), (3, 128))
    return inputs


def subnormal() -> dict:
    """Heads: 0 gates that a rate of exp(88) brings back, 1 a rate of exp(-100) that gates of 2^127 bring back, 2 keys and 3 a sigmoid of beta
    that are subnormal beside large v, 4 keys whose products with v and with each other are."""
    inputs = segment(10, 2, 5)
    live = np.flatnonzero(inputs["k"][0, 0])
    inputs["a_log"][:2], inputs["dt_bias"][:2] = values([88.0, -100.0], F32), 0
    inputs["gate"][:, 0] = from_bits(hashed(11, (2, 128)) & 0x807FFFFF, F32)
    inputs["gate"][:, 1] = spread(12, (2, 128), 120, 127, F32)
    inputs["k"][:, 2][:, live] = from_bits(hashed(13, (2, live.size)) & 0x800F)
    inputs["k"][:, 2, live[0]], inputs["beta"][:, 3] = 1, -88
    inputs["v"][:, 2:4][..., live] = spread(14, (2, 2, live.size), 110, 120)
    inputs["k"][:, 4][:, live], inputs["v"][:, 4][:, live] = spread(15, (2, live.size), -76, -70), spread(16, (2, live.size), -76, -62)
    return inputs


def ties() -> dict:
    upper = np.array([0x3F80, 0x3F81, 0x3FFF, 0x4049, 0xBF80, 0xBF81, 0xBFFF, 0xC049])
    inputs = segment(17, 1, 1, live=1)
    inputs["gate"][0, 0, :24] = from_bits((upper[:, None] << 16 | np.array([0x7FFF, 0x8000, 0x8001])).reshape(-1), F32)
    inputs["dt_bias"][...] = 0.25
    return inputs


def special() -> dict:
    inputs = segment(18, 2, 6, live=2)
    column = np.flatnonzero(inputs["k"][0, 0])[0]
    inputs["v"][0, 0, column], inputs["k"][1, 1, column], inputs["gate"][0, 2, column] = np.nan, np.inf, np.nan
    inputs["beta"][0, 3:5] = values([np.inf, -np.inf])
    return inputs


def any_bits() -> dict:
    shape = 2, 2, 128
    drawn = {"k": patterns(30, shape), "v": patterns(31, shape), "gate": patterns(32, shape, F32)}
    return segment(19, 2, 2) | drawn | {"dt_bias": patterns(33, (2, 128), F32), "a_log": patterns(34, (2,), F32), "beta": patterns(35, (2, 2))}


def pool(seed: int) -> dict:
    """Two tokens of 32 heads: ordinary keys and spread ones."""
    inputs = segment(100 + seed, 2, 32)
    inputs["k"][:, 16:] *= spread(seed, (2, 16, 128), -10, 0)
    return inputs
