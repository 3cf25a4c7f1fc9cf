"""kda_core: one decode step of linear attention, with the head's norm and gate behind it.

    q, k, v bf16 [b, heads, 128], gate f32 [b, heads, 128], dt_bias f32 [heads, 128], a_log f32 [heads], beta bf16 [b, heads],
    state f32 [b, heads, 128, 128], go f32 [128], g2 bf16 [b, heads, 128], eps f32 -> o bf16 [b, heads, 128], next f32 [b, heads, 128, 128]

`state` is S[v][k]; `next` is another buffer, since decode keeps two. Sums are of fused products from +0. A row is a slot: rows that pad a
batch are computed like any.

S1  sq = bf16 square of x                          (S1 .. S4 for x = q, then for x = k)
S2  tot = bf(tree(64, 32, 16, 8, 4, 2, 1) of sq)   (the sum in f32)
S3  r = bf(rsqrt(tot + 1e-6))
S4  n = bf16 product of x and r: qn, kn
S5  gl = bf(0 + gate)                              (a -0 partial lands as +0)
S6  x = exp(a_log) * (gl + dt_bias)
S7  dec = exp(-5 * sigmoid(x)),  sigmoid(x) = 1 / (1 + exp(0 - x))
S8  w = S * dec_k; m_v = sum over k ascending of w * kn_k
S9  d_v = (v_v - m_v) * sigmoid(beta)
S10 S' = fma(d_v, kn_k, w)
S11 qs = qn * 128^-0.5
S12 attn_v = bf(sum over k ascending of S' * qs_k)
S13 r = rsqrt(tree(64, ..., 1) of attn^2 / 128 + eps); n = bf((attn * r) * go)
S14 sig = bf(sigmoid(g2))
S15 o = bf16 product of n and sig

Current form: a block a head, whose state passes through shared memory in 16-byte pieces; a thread takes row v. The retired form where state or
next is not 16-byte aligned. Retired: a thread walks row v where it lies.
"""

from collections.abc import Iterator

import numpy as np

from references import _kda_inputs, o_norm_gate
from references.arith import add, as_f32, bf, chain_fma, div, exp, fma, hmul, mul, rsqrt, sigmoid, sub, tree, zero
from references.contract import Case, schedule
from references.contract.inputs import BF16, F32, from_bits, hashed, near_ties, spread, values

INDEPENDENT = "heads"
BENCH = tuple({"b": b, "heads": 96, "eps": 1e-5} for b in (1, 16, 64, 128))
WIDTH = (64, 32, 16, 8, 4, 2, 1)  # offsets of the tree over a head's columns
QUERY = 128**-0.5
LOWEST = -5  # log of the least decay
TAIL = {"S3": "S13", "S4": "S13", "S5": "S13", "S6": "S14"}  # steps of o_norm_gate, by their names here
BLIND = {
    "S1.hmul:flushed": "a subnormal vanishes beside 1e-6",
    "S2.bf:flushed": "a subnormal vanishes beside 1e-6",
    "S3.add:flushed": "the sum is at least 1e-6",
    "S3.rsqrt:landed": "the root is landed at once",
    "S3.rsqrt:flushed": "the reciprocal root of a finite f32 is at least 2^-64",
    "S3.rsqrt:exact_rsqrt": "the roots of all 32,640 landed sums land on the same value",
    "S3.bf:half_away": "the root of none of the 32,640 landed sums is a tie",
    "S3.bf:flushed": "the reciprocal root of a finite f32 is at least 2^-64",
    "S5.zero:minus_zero": "exp(0 - x) is 1 for a zero of either sign",
    "S5.add:landed": "the partial is landed at once",
    "S6.mul:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S7.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S7.sigmoid.sub:fused": "0 - x is exact: the product is rounded once either way",
    "S7.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S7.sigmoid.add:flushed": "1 + exp is at least 1",
    "S7.sigmoid.div:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S7.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
    "S7.sigmoid:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S7.mul:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S7.exp:flushed": "the decay is at least exp(-5)",
    "S9.sigmoid.sub:landed": "0 - x of a bf16 is a bf16",
    "S9.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S9.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S9.sigmoid.add:flushed": "1 + exp is at least 1",
    "S9.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
    **{TAIL[key[:2]] + key[2:].replace("mul#2", "mul#3"): why for key, why in o_norm_gate.BLIND.items()},
}


@schedule(
    "q: bf16[b, heads, 128], k: bf16[b, heads, 128], v: bf16[b, heads, 128], gate: f32[b, heads, 128], dt_bias: f32[heads, 128], a_log: f32[heads],"
    " beta: bf16[b, heads], state: f32[b, heads, 128, 128], go: f32[128], g2: bf16[b, heads, 128], eps: f32"
    " -> o: bf16[b, heads, 128], next: f32[b, heads, 128, 128]",
    version=1,
)
def emulate(q, k, v, gate, dt_bias, a_log, beta, state, go, g2, eps):
    qn, kn = l2norm(q), l2norm(k)
    return step(qn, kn, v, decay(gate, dt_bias, a_log), beta, state, go, g2, eps)


def l2norm(x):
    sq = hmul(x, x)  # S1
    tot = bf(tree(sq, WIDTH))  # S2
    r = bf(rsqrt(add(tot, 1e-6)))  # S3
    return hmul(x, r[..., None])  # S4


def decay(gate, dt_bias, a_log):
    gl = bf(add(zero(gate), gate))  # S5
    x = mul(exp(a_log)[:, None], add(gl, dt_bias))  # S6
    return exp(mul(LOWEST, sigmoid(x)))  # S7


def step(qn, kn, v, dec, beta, state, go, g2, eps):
    w = mul(state, dec[..., None, :])  # S8
    m = chain_fma(w, kn[..., None, :])  # S8
    d = mul(sub(v, m), sigmoid(beta)[..., None])  # S9
    after = fma(d[..., None], kn[..., None, :], w)  # S10
    qs = mul(qn, QUERY)  # S11
    attn = bf(chain_fma(after, qs[..., None, :]))  # S12
    r = rsqrt(add(div(tree(mul(attn, attn), WIDTH), 128), eps))  # S13
    n = bf(mul(mul(attn, r[..., None]), go))  # S13
    sig = bf(sigmoid(g2))  # S14
    return hmul(n, sig), after  # S15


def cases() -> Iterator[Case]:
    yield Case("one_head", "one head of one row", lambda: _kda_inputs.usual(1, 1, 1))
    yield Case("heads", "3 rows of 5 heads: each its own decay and state", lambda: _kda_inputs.usual(2, 3, 5, rows=2))
    yield Case("poisoned", "rows that pad the batch hold NaN, one of them in its state, too: no bit of the live row changes", poisoned)
    yield Case("fresh", "the first token of a sequence: a state of zeros", lambda: fresh(0.0))
    yield Case("stale", "a state that was not cleared, NaN, is the caller's mistake and shows in every element", lambda: fresh(np.nan))
    yield Case("zeros", "zeros of both signs: sums of -0 are +0, and the sign of d is that of v - m", _kda_inputs.zeros,
               ("S8.chain_fma:unseeded", "S12.chain_fma:unseeded"))
    yield Case("ties", "gate partials, the attention and a sum of squares on and beside midpoints of bf16", _kda_inputs.landing_ties,
               ("S2.bf:half_away", "S5.bf:half_away", "S5.bf:truncated", "S12.bf:half_away", "S12.bf:truncated"))
    yield Case("contracted", "an update that cancels against the state but for the product's rounding error", _kda_inputs.contracted,
               ("S10.fma:unfused", "S8.chain_fma:unfused_steps"))
    yield Case("saturated", "gates of 2^127 and infinity, rates of exp(80): decays of exactly 1 and of exp(-5), finite states",
               _kda_inputs.saturated)
    yield Case("subnormal", "subnormal gates, rates, states, updates, queries, keys and betas", _kda_inputs.subnormal,
               ("S4.hmul:flushed", "S5.bf:flushed", "S6.exp:flushed", "S8.mul:flushed", "S9.sigmoid.div:flushed", "S10.fma:flushed",
                "S11.mul:flushed"))
    yield Case("tiny_attention", "subnormal attention and sums of it", _kda_inputs.tiny_attention, ("S12.bf:flushed", "S12.chain_fma:flushed_steps"))
    yield Case("special", "infinities, NaN and overflow: each poisons its own row of its own head, and through the norm that head's output",
               _kda_inputs.special)
    yield Case("patterns", "every bit pattern alike", lambda: _kda_inputs.any_bits(2))
    yield Case("norm_ties", "an attention whose norm and gated products lie on ties", lambda: tail(o_norm_gate.ties()),
               ("S13.bf:half_away", "S13.bf:truncated", "S15.hmul:half_away", "S15.hmul:truncated"))
    yield Case("norm_tiny", "an attention whose squares and mean are subnormal, eps 0", lambda: tail(o_norm_gate.tiny()),
               ("S13.mul:flushed", "S13.div:flushed", "S13.add:flushed"))
    yield Case("norm_subnormal", "subnormal attention and products beside a large one", lambda: tail(o_norm_gate.subnormal()),
               ("S13.mul#2:flushed", "S13.mul#3:flushed", "S13.bf:flushed", "S15.hmul:flushed"))
    yield Case("norm_zero", "an attention of zeros and eps 0: a NaN head", lambda: _kda_inputs.still(1, 1))
    yield Case("gates", "output gates of all sizes, and those whose sigmoid is subnormal", gates,
               ("S14.bf:truncated", "S14.bf:flushed", "S14.sigmoid.div:flushed"))
    yield Case("batch", "99 rows of 2 heads: many blocks at once", lambda: _kda_inputs.usual(4, 99, 2, rows=1), large=True)
    yield Case("width", "the 96 heads of a row, dense states", lambda: _kda_inputs.usual(8, 1, 96, rows=128), large=True)


def tail(norm: dict) -> dict:
    """Inputs of o_norm_gate as what the attention shows."""
    return _kda_inputs.shown(norm["x"], norm["go"], norm["g2"], norm["eps"])


def poisoned() -> dict:
    inputs = _kda_inputs.usual(6, 3, 1, rows=2)
    for name in ("q", "k", "v", "gate", "beta", "state", "g2"):
        inputs[name][1:] = np.nan
    inputs["state"][2] = inputs["state"][0]
    return inputs


def fresh(before: float) -> dict:
    inputs = _kda_inputs.usual(7, 1, 2, rows=8)
    inputs["state"][...] = before
    return inputs


def gates() -> dict:
    g2 = from_bits(np.concatenate([0xC280 + np.arange(128), 128 * np.arange(512) + 0x3F]).reshape(1, 5, 128))
    return _kda_inputs.shown(o_norm_gate.ones(1, 5, 128), values([1.0] * 128, F32), g2, 0)


def pool(seed: int) -> dict:
    """Heads that compute, of ordinary states, of spread ones and of keys that `hang`; and heads that show attention to the norm: an eighth of
    o_norm_gate's pool, and what `restless` finds. A go of 1 and eps 0 serve all."""
    n, s = 32, 100 + 3 * seed
    heads = [_kda_inputs.usual(s + i, 1, n, rows=24) for i in range(3)]
    heads[1]["state"][:, :, :24] = spread(16 * s + 10, (1, n, 24, 128), -8, 8, F32)
    heads[1]["k"][...], heads[1]["q"][...] = spread(16 * s + 11, (1, n, 128), -12, 0), spread(16 * s + 12, (1, n, 128), -12, 0)
    heads[2]["k"][0] = hanging(16 * s + 13, n)
    norm, more = o_norm_gate.pool(seed), restless(16 * s + 14, 8192)
    picked = slice(seed % 8, None, 8)
    g2 = np.concatenate([norm["g2"][picked, 0], np.full(more.shape, values(64.0))])
    x = np.concatenate([norm["x"][picked, 0], more])
    return _kda_inputs.columns(_kda_inputs.shown(x[None], norm["go"], g2[None], 0), *heads)


def hanging(seed: int, n: int) -> np.ndarray:
    """n rows whose squares are 1, its tie 2^-8 and two of half an ulp of 1, at any places: these count if they meet before they meet the 1."""
    x = np.zeros((n, 128), BF16)
    for size, place in zip((2.0**-12, 2.0**-12, 2.0**-4, 1), hashed(seed, (4, n)) % 128, strict=True):
        x[np.arange(n), place] = size
    return x


def restless(seed: int, n: int) -> np.ndarray:
    """Of n attentions, a 1 among smaller values, those with a normed value within an f32 step of a bf16 midpoint: a last bit of the root shows."""
    x = spread(seed, (n, 128), -14, -8)
    x[np.arange(n), hashed(seed + 1, (n,)) % 128] = 1
    wide = as_f32(x)
    root = rsqrt(div(tree(mul(wide, wide), WIDTH), 128))
    return x[np.unique(near_ties(mul(wide, root[:, None]).reshape(-1), 1) // 128)]
