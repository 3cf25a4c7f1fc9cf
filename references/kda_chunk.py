"""kda_chunk: the KDA recurrence over a segment of one sequence, in tiles of 16 tokens on tensor cores.

    q, k, v bf16 [t, heads, 128], gate f32 [t, heads, 128], dt_bias f32 [heads, 128], a_log f32 [heads], beta bf16 [t, heads],
    state f32 [heads, 128, 128] -> o bf16 [t, heads, 128], next f32 [heads, 128, 128]

`state` is S[v][k], `next` the state after the last token; of no tokens it is `state`. What is done is kda_core's recurrence, with q and k normed
in f32. A dot product `.` below is of f32 operands in two bf16 pieces each, three tensor-core steps for every 16 columns (`gemm_pieces`).

S1  g = -5 * sigmoid(exp(a_log) * (bf(0 + gate) + dt_bias)),  sigmoid(x) = 1 / (1 + exp(0 - x))
S2  kn = k * rsqrt(tree(64, 32, 16, 8, 4, 2, 1) of k * k + 1e-6); qn = the same of q, times 128^-0.5
S3  b = sigmoid(beta)
S4  tiles of 16 tokens, ascending; past the last token kn, qn, v, g and b are +0
S5  c_i = the sum of g up to token i, ascending from +0, for each column of k
S6  e = ex2(c * log2(e)), u = ex2(c * -log2(e))     (log2(e) as f32, 0x1.715476p+0; ex2 is ex2.approx.ftz)
    kd = kn * e, qd = qn * e, ku = kn * u, kl = ku * e_15
S7  n_ij = (kd_i . ku_j) * -b_i for j < i;  w_ij = qd_i . ku_j where j <= i, else 0
S8  t = the inverse of I - n: from the rows of I, for j ascending, every row i > j becomes fma(n_ij, t_j, t_i)
S9  m_vi = S_v . kd_i, a_vi = S_v . qd_i
S10 d_vi = (row v of b_j * (v_j - m_vj)) . t_i
S11 o_iv = bf(a_vi, continued by d_v . w_i)
S12 S_vk = S_vk * e_15k, continued by d_v . (column k of kl)

A token reaches none before it, as beyond i rows i of t and w are zero; except that one whose delta is not finite reaches its whole tile: 0 * NaN.

One form: a block a head; eight warps compute S1 .. S8 of the next tile while eight others, each with 16 rows of S in registers, compute S9 .. S12.
"""

from collections.abc import Iterator

import numpy as np

from references._kda import NOTHING, QUERY, ROW, TILE, inverse, log_decay, powers, sums, system, unit
from references.arith import asc, bf, choose, div, gemm_pieces, join, kept, mul, sigmoid, sub, tiles
from references.contract import Case, schedule
from references.contract.inputs import BF16, F32, from_bits, hashed, ordinary, spread, values

INDEPENDENT = "heads"
KEEP = -1000.0  # a gate that keeps all: its sigmoid is 1 / (1 + inf)
BENCH = tuple({"t": t, "heads": 96} for t in (16, 2048, 16384))
BLIND = {
    "S1.log_decay.zero:minus_zero": "exp(0 - x) is 1 for a zero of either sign",
    "S1.log_decay.add:landed": "the partial is landed at once",
    "S1.log_decay.mul:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S1.log_decay.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S1.log_decay.sigmoid.sub:fused": "0 - x is exact: the product is rounded once either way",
    "S1.log_decay.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S1.log_decay.sigmoid.add:flushed": "1 + exp is at least 1",
    "S1.log_decay.sigmoid.div:flushed": "a power of a subnormal is 1, as that of 0 is",
    "S1.log_decay.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
    "S1.log_decay.sigmoid:flushed": "a power of a subnormal is 1, as that of 0 is",
    "S1.log_decay.mul#2:flushed": "a power of a subnormal is 1, as that of 0 is",
    **{f"S2.unit.{site}:flushed": "a subnormal vanishes beside 1e-6" for site in ("mul", "mul#3")},
    **{f"S2.unit.{site}:flushed": "the sum is at least 1e-6" for site in ("add", "add#2")},
    **{f"S2.unit.{site}:flushed": "the reciprocal root of a finite f32 is at least 2^-64" for site in ("rsqrt", "rsqrt#2")},
    "S3.sigmoid.sub:landed": "0 - x of a bf16 is a bf16",
    "S3.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S3.sigmoid.exp:flushed": "1 + exp is 1 either way",
    "S3.sigmoid.add:flushed": "1 + exp is at least 1",
    "S3.sigmoid.div:reciprocal": "the dividend is 1: the product with the rounded reciprocal is the reciprocal",
    "S5.sums.zero:minus_zero": "a power of a zero of either sign is 1",
    "S5.sums.add:flushed": "a power of a subnormal is 1, as that of 0 is",
    "S5.sums.join:reversed_first": "the first of the joined is one row",
    **{f"S6.powers.{site}:flushed": "a power of a subnormal is 1, as that of 0 is" for site in ("mul", "mul#2")},
    **{f"S6.powers.{site}:flushed": "ex2.approx.ftz has no subnormal results" for site in ("ex2_approx", "ex2_approx#2")},
    "S11.bf:skipped": "the store to bf16 lands it",
}


def cost(sizes: dict) -> dict[str, float]:
    """Each operand read once, each result written once; of a token and head the three products with the state, once in bf16."""
    t, heads = sizes["t"], sizes["heads"]
    return {"bytes": heads * (128 * t * (4 * 2 + 4) + 2 * t + 2 * 4 * 128 * 128), "flops": 2 * 3 * 128 * 128 * t * heads}


@schedule(
    "q: bf16[t, heads, 128], k: bf16[t, heads, 128], v: bf16[t, heads, 128], gate: f32[t, heads, 128], dt_bias: f32[heads, 128], a_log: f32[heads],"
    " beta: bf16[t, heads], state: f32[heads, 128, 128] -> o: bf16[t, heads, 128], next: f32[heads, 128, 128]",
    version=1,
    forms=("current",),
)
def emulate(q, k, v, gate, dt_bias, a_log, beta, state):
    if not len(q):
        return q, state
    g = log_decay(gate, dt_bias, a_log)  # S1
    kn, qn = unit(k), mul(unit(q), QUERY)  # S2
    b = sigmoid(beta)  # S3
    kn, qn, v, g, b = (tiles(x.swapaxes(0, 1), TILE, 1) for x in (kn, qn, v, g, b))  # S4
    o = []
    for i in asc(len(kn)):  # S4
        c = kept(sums(g[i]))  # S5
        e, u = powers(c)  # S6
        last = e[:, -1:]
        kd, qd, ku = mul(kn[i], e), mul(qn[i], e), mul(kn[i], u)  # S6
        kl = mul(ku, last)  # S6
        n = system(kd, ku, b[i])  # S7
        w = choose(ROW < ROW.T, NOTHING, gemm_pieces(0, qd, ku))  # S7
        t = kept(inverse(n))  # S8
        read = gemm_pieces(0, state, join([kd, qd], axis=1))  # S9
        rest = mul(b[i][:, None], sub(v[i].swapaxes(1, 2), read[..., :TILE]))  # S10
        d = kept(gemm_pieces(0, rest, t))  # S10
        o = [*o, bf(gemm_pieces(read[..., TILE:], d, w)).swapaxes(1, 2)]  # S11
        state = gemm_pieces(mul(state, last), d, kl.swapaxes(1, 2))  # S12
    return join(o, axis=1)[:, : len(q)].swapaxes(0, 1), state  # S11


def cases() -> Iterator[Case]:
    for t in (0, 1, 15, 16, 17):
        yield Case(f"segment_{t}", f"{t} tokens: {'nothing to do' if t == 0 else 'a tile cut short, whole, or one over'}", lambda t=t: segment(t, 1))
    yield Case("three_tiles", "40 tokens from a zero state, the last tile half full: tiles in order, each on the state before",
               lambda: segment(40, 1, state=False), ("S4.asc:descending",))
    yield Case("one_key", "the same key 16 times, weights near 1: the system is far from diagonal, and each delta undoes the one before", one_key,
               ("S8.inverse.asc:descending",))
    yield Case("steep", "the least decay, exp(-5) a token: powers from exp(-80) to exp(80) in a tile; then none, then one token alone", steep)
    yield Case("weights", "weights of exactly 0 and 1, zero keys and queries, whose length is 0.001", weights)
    yield Case("subnormal", "subnormal values on a subnormal state", subnormal)
    yield Case("binade", "a sum just below 0.125 that lo by hi takes over it, where hi by lo counts half: 0x3e00, and 0x3e01 exchanged",
               binade, ("S11.gemm_pieces:exchanged",))
    yield Case("special", "NaN and infinities, each in a head of its own: in a query, a key, a value, a gate, a weight", special)
    yield Case("heads", "every head of a layer", lambda: segment(18, 96, live=128), large=True)
    yield Case("prefill", "3,000 tokens", lambda: segment(3000, 2, live=16), large=True)


def segment(t: int, heads: int, seed: int = 0, state: bool = True, live: int = 12, **others) -> dict:
    """Ordinary operands, other ones where given; of v and of the state `live` rows, which do not influence each other, the rest is zero.
    A third of the decays are slow, near exp(-0.01), the others up to exp(-5)."""
    seed = 16 * (t + 10 * heads) + seed
    shape, square = (t, heads, 128), (heads, 128, 128)
    mask = np.arange(128) * 37 % 128 < live
    drawn = {
        "q": ordinary(seed, shape), "k": ordinary(seed + 1, shape), "v": ordinary(seed + 2, shape) * mask.astype(BF16),
        "gate": ordinary(seed + 3, shape, 2.0, F32), "dt_bias": values(hashed(seed + 4, shape[1:]) % 3 * -3.0, F32),
        "a_log": ordinary(seed + 5, (heads,), 0.5, F32), "beta": ordinary(seed + 6, shape[:2]),
        "state": np.where(mask[:, None] & state, ordinary(seed + 7, square, 0.125, F32), NOTHING),
    }
    return drawn | others


def one_key() -> dict:
    drawn = segment(16, 1, 1)
    return drawn | {"k": np.repeat(drawn["k"][:1], 16, axis=0), "gate": np.full((16, 1, 128), KEEP, F32), "beta": values(np.full((16, 1), 4.0))}


def steep() -> dict:
    """32 tokens: 16 of the least decay, then every other one of it, beside none."""
    gate = np.full((32, 1, 128), 1000, F32)
    gate[17::2] = KEEP
    return segment(32, 1, 2, gate=gate)


def weights() -> dict:
    drawn = segment(16, 1, 3)
    drawn["beta"][:4, 0] = values([np.inf, -np.inf, 0, 128])
    drawn["k"][4:6], drawn["q"][5:7] = 0, 0
    return drawn


def subnormal() -> dict:
    """What a flush would take. Heads: 0 gates that a rate of exp(88) brings back, 1 a rate of exp(-100) that gates of 2^127 bring back, 2 keys and
    queries beside a large state, 3 weights beside large values, 4 a system whose entries meet large values, 5 values and states."""
    drawn = segment(4, 6, 4)
    tiny = from_bits(hashed(9, (4, 128)) & 0x800F)
    drawn["a_log"][:2], drawn["dt_bias"][:2] = values([88.0, -100.0], F32), 0
    drawn["gate"][:, 0], drawn["gate"][:, 1] = from_bits(hashed(10, (4, 128)) & 0x807FFFFF, F32), spread(11, (4, 128), 120, 127, F32)
    drawn["gate"][:, 2:] = KEEP
    drawn["q"][:, 2], drawn["k"][:, 2], drawn["q"][:, 2, 0], drawn["k"][:, 2, 0] = tiny, tiny[::-1], 1, 1
    drawn["state"][2, :, 1:] *= F32.type(2.0**116)
    drawn["state"][2, :, 0], drawn["state"][3:5] = 0, 0
    drawn["v"][:, 2], drawn["v"][:, 3:5] = 0, drawn["v"][:, 3:5] * BF16.type(2.0**116)
    drawn["beta"][:, 3] = -88
    drawn["k"][0, 4], drawn["k"][:3, 4, 0], drawn["v"][1:, 4], drawn["beta"][2:, 4] = tiny[0], values([1, 0, 1]), 0, values([-88, -np.inf])
    drawn["v"][:, 5], drawn["state"][5] = from_bits(hashed(12, (4, 128)) & 0x807F), from_bits(hashed(13, (128, 128)) & 0x807F_0000, F32)
    return drawn


def binade() -> dict:
    """One token whose query meets two columns of the state and its own key."""
    drawn = segment(1, 1, 6, state=False, gate=np.full((1, 1, 128), KEEP, F32), beta=values([[-0.041259765625]]))
    drawn["q"][0, 0], drawn["k"][0, 0], drawn["v"][0, 0] = 0, 0, 0
    drawn["q"][0, 0, :3] = values([1, 0.0111083984375, 0.00286865234375])
    drawn["k"][0, 0, 1], drawn["v"][0, 0, 0] = 1, 1.015625
    drawn["state"][0, 0, [0, 2]] = from_bits([0x3FB5080C, 0xB99B27C2], F32)
    return drawn


def special() -> dict:
    """Seven heads: one without, then one with NaN or an infinity in token 17 of 18."""
    drawn = segment(18, 7, 5, state=False)
    for head, (name, value) in enumerate((("q", np.nan), ("k", np.inf), ("v", np.nan), ("v", -np.inf), ("gate", np.nan), ("gate", np.inf)), 1):
        drawn[name][17, head, 3] = value
    drawn["beta"][17, 6] = np.nan
    return drawn


def pool(seed: int) -> dict:
    """64 heads of 18 tokens: half of them ordinary; half with states that a query takes near ties of the output, plus what is 2^-16 of them."""
    drawn = segment(18, 64, 1000 + 16 * seed)
    drawn["q"][:, 32:], drawn["k"][:, 32:], drawn["gate"][:, 32:], drawn["state"][32:] = 0, 0, KEEP, 0
    drawn["q"][:, 32:, 0], drawn["q"][:, 32:, 1], drawn["k"][:, 32:, 1] = 1, values(2.0**-13), 1
    drawn["v"][:, 32:] = ordinary(seed, (18, 32, 128))
    ties = from_bits(hashed(seed, (32, 128)) & 0x807F_0000 | 0x3F80_8000, F32)
    drawn["state"][32:, :, 0] = div(ties, QUERY)
    return drawn
