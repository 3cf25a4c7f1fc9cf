"""fmha: attention of dense queries over dense keys, for prefill.

    q bf16 [t_q, h, 192], k bf16 [t_kv, h, 192], v bf16 [t_kv, h, wv], scale f32, causal int (0 or 1) -> o bf16 [t_q, h, 128], lse f32 [h, t_q]

The values are the last 128 columns of v, so that [nope | v] rows of 256 serve as they are; its tokens may lie ldv elements apart. causal: the
queries are at the end of the keys, query i sees keys 0 .. t_kv - t_q + i. A query that sees no key gets +0 and an LSE of -inf.

S1  c = scale * log2(e)                             (log2(e) as f32, 0x1.715476p+0; scale is positive)
S2  blocks of 128 queries, each over the tiles of 128 keys that hold one that any of its queries sees, ascending; short blocks and tiles are
    filled up with zeros. Each query starts from m = -0x1.fffffep+127, l = +0, acc = +0
S3  s = q . k, a tensor-core chain over the 192 columns from +0; -inf where the query does not see the key
S4  n = max(m, s of the tile), alpha = ex2((m - n) * c), p = ex2((s - n) * c), m = n     (ex2 is ex2.approx.ftz)
S5  l, four partial sums: the i-th of columns 8j + 2i, 8j + 2i + 1 of the tile ascending from +0, then l = fma(l, alpha, that sum)
S6  P = bf(p)
S7  acc = acc * alpha, continued by the tensor-core chain of P . v
S8  l = tree(1, 2)
S9  o = bf(acc / max(l, 1))                         (l is 0 where no key is seen, else at least 1)
S10 lse = fma(m, scale, log(l))

The key with the largest score has p = 1 exactly, whatever the size of the scores. An unseen key of a tile has P = +0, so its row of v must be
finite: 0 * inf is NaN on a tensor core. Beyond t_kv nothing is read, and no tile is touched that no query of the block sees.

Current form: wgmma on tiles brought by the bulk copy engine; the retired form where a row does not lie on 16 bytes. Retired: mma.sync.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import amax, asc, bf, chain, div, ex2_approx, fma, full, gemm_from, join, log, maximum, mul, sub, tree, zero
from references.arith.move import hide, reached, tiles, visible
from references.contract import Case, schedule
from references.contract.inputs import BF16, from_bits, hashed, ordinary, patterns, spread, values

INDEPENDENT = "h"
BENCH = (
    {"t_q": 16384, "t_kv": 16384, "h": 16, "wv": 128, "scale": 192**-0.5, "causal": 1},
    {"t_q": 4096, "t_kv": 4096, "h": 16, "wv": 128, "scale": 192**-0.5, "causal": 0},
    {"t_q": 2048, "t_kv": 16384, "h": 16, "wv": 256, "scale": 192**-0.5, "causal": 1},
)
LOG2E = float.fromhex("0x1.715476p+0")
LOWEST = float.fromhex("-0x1.fffffep+127")

BLIND = {
    "S2.zero:minus_zero": "-0 times alpha plus the tile's sum is that sum; where no tile is seen, the logarithm of -0 is -inf, too",
    "S3.gemm_from:apart": "the accumulator is +0, and no sum of a tensor core is -0",
    "S4.mul:flushed": "the power of a subnormal is 1",
    "S4.mul#2:flushed": "the power of a subnormal is 1",
    "S4.ex2_approx:flushed": "ex2.approx.ftz has no subnormal results",
    "S4.ex2_approx#2:flushed": "ex2.approx.ftz has no subnormal results",
    "S5.chain.zero:minus_zero": "no power is -0",
    "S5.chain.add:flushed": "powers are 0 or 2^-126 at least",
    "S5.fma:flushed": "the four sums add up to 1 at least, beside which a subnormal vanishes",
    "S6.bf:skipped": "a tensor core takes bf16",
    "S6.bf:flushed": "powers are 0 or 2^-126 at least",
    "S9.div:landed": "S9 lands the quotient anyway, and landing twice is landing once",
    "S9.bf:skipped": "the store to bf16 lands it",
    "S10.log:flushed": "the logarithm of 1 or more is 0 or 2^-24 at least",
}


def cost(sizes: dict) -> dict[str, float]:
    """Each operand read once, each result written once; both products, over the keys that a query sees."""
    t_q, t_kv, h = sizes["t_q"], sizes["t_kv"], sizes["h"]
    seen = t_q * t_kv - (t_q * (t_q - 1) // 2 if sizes["causal"] else 0)  # where t_q <= t_kv
    return {"bytes": 2 * h * (192 * t_q + 320 * t_kv + 128 * t_q) + 4 * h * t_q, "flops": 2 * 320 * h * seen}


def refuse(scale: float, **others) -> None:
    if not 0 < scale <= 2.0**127:
        raise ValueError(f"scale must be positive and 2^127 at most, so that scale * log2(e) is finite, got {scale}")


@schedule("q: bf16[t_q, h, 192], k: bf16[t_kv, h, 192], v: bf16[t_kv@ldv, h, wv], scale: f32, causal: int -> o: bf16[t_q, h, 128], lse: f32[h, t_q]",
          version=1, requires=("t_q >= 1", "t_kv >= 1", "h >= 1", "wv >= 128", "0 <= causal <= 1"), refuse=refuse)
def emulate(q, k, v, scale, causal):
    c = mul(scale, LOG2E)  # S1
    blocks = tiles(q.transpose(1, 0, 2), 128, 1)  # S2
    keys = tiles(k.transpose(1, 0, 2), 128, 1)  # S2
    columns = tiles(v[..., v.shape[2] - 128 :].transpose(1, 0, 2), 128, 1).swapaxes(2, 3)  # S2
    o, lse = [], []
    for i in range(len(blocks)):
        seen = visible(range(128 * i, 128 * i + 128), q.shape[0], k.shape[0], causal)  # S2
        m, sums, acc = full(blocks[i][..., 0], LOWEST), zero(blocks[i][..., :4]), zero(blocks[i][..., :128])  # S2
        for j in asc(reached(seen, 128)):  # S2
            s = hide(gemm_from(0, blocks[i], keys[j]), seen, 128 * j)  # S3
            n = maximum(m, amax(s))  # S4
            alpha = ex2_approx(mul(sub(m, n), c))  # S4
            p = ex2_approx(mul(sub(s, n[..., None]), c))  # S4
            quads = p.reshape(-1, 128, 16, 4, 2).swapaxes(2, 3).reshape(-1, 128, 4, 32)
            sums = fma(sums, alpha[..., None], chain(quads))  # S5
            weights = bf(p)  # S6
            acc = gemm_from(mul(acc, alpha[..., None]), weights, columns[j])  # S7
            m = n
        total = tree(sums, (1, 2))  # S8
        o = [*o, bf(div(acc, maximum(total, 1)[..., None]))]  # S9
        lse = [*lse, fma(m, scale, log(total))]  # S10
    return join(o, axis=1)[:, : q.shape[0]].swapaxes(0, 1), join(lse, axis=1)[:, : q.shape[0]]  # S10


def cases() -> Iterator[Case]:
    for t_q, t_kv, causal in ((1, 1, 1), (1, 2, 0), (2, 63, 1), (63, 65, 0), (64, 64, 1), (65, 129, 1), (127, 128, 0), (128, 127, 0), (129, 257, 1)):
        name = f"{'causal' if causal else 'dense'}_{t_q}x{t_kv}"
        yield Case(name, f"{t_q} queries, {t_kv} keys: a block and a tile cut short, whole, or one over",
                   lambda t_q=t_q, t_kv=t_kv, causal=causal: attention(t_q, t_kv, 1, causal))
    yield Case("causal_300x300", "three blocks, three tiles, two heads", lambda: attention(300, 300, 2, 1), ("S2.asc:descending", "S5.fma:unfused"))
    yield Case("blind_rows", "causal, 200 queries on 65 keys: a block and seven rows that see no key give +0 and -inf",
               lambda: attention(200, 65, 1, 1), ("S2.zero#2:minus_zero", "S2.visible:one_less", "S2.visible:one_more"))
    yield Case("three_on_one", "causal, 3 queries on 1 key: only the last sees it, and returns its value", lambda: attention(3, 1, 1, 1))
    yield Case("padding", "all scores far below 0 in a tile of 13 keys: a zero key past the end would take all the weight", padding,
               ("S3.hide:in_sight",))
    yield Case("equal", "equal scores: every p is 1, l the number of keys, the output the mean", lambda: attention(5, 140, 1, 0, k=equal(140)))
    yield Case("ladder", "the maximum rises from tile to tile, by little, by much, past what ex2 can shrink by", ladder)
    yield Case("tiny_scores", "subnormal scores, scale 2^126: differences that a flush would lose", tiny_scores,
               ("S4.sub:flushed", "S4.sub#2:flushed"))
    yield Case("huge_scores", "scores near 2^126, scale 2^-128: the scale and its product with log2(e) are subnormal", huge_scores,
               ("S1.mul:flushed",))
    yield Case("tiny_lse", "one key with a score of 2^-130", tiny_lse, ("S10.fma:flushed",))
    yield Case("overflow", "scores that overflow to inf, to -inf and to both, beside an ordinary head", overflow)
    yield Case("subnormal", "subnormal values, and weights that make them so", subnormal, ("S9.bf:flushed", "S9.div:flushed"))
    yield Case("special", "infinities and NaN, each in a head of its own: in a query, a key, a value", special)
    yield Case("unseen_nan", "causal; keys that are NaN reach no row before them, values none before their block", unseen_nan)
    yield Case("interleaved", "values as the last 128 of [nope | v], NaN in between", interleaved)
    yield Case("patterns", "every bit pattern in all operands",
               lambda: operands(patterns(1, (4, 2, 192)), patterns(2, (9, 2, 192)), patterns(3, (9, 2, 128))))
    yield Case("prefill", "a chunk of 512 tokens at the end of 4,096, sixteen heads", lambda: attention(512, 4096, 16, 1), large=True)


def operands(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 192**-0.5, causal: int = 0) -> dict:
    return {"q": q, "k": k, "v": v, "scale": scale, "causal": causal}


def attention(t_q: int, t_kv: int, h: int, causal: int, **others) -> dict:
    """Ordinary operands, other ones where given."""
    seed = 3 * (t_q + 1000 * t_kv)
    drawn = ordinary(seed, (t_q, h, 192)), ordinary(seed + 1, (t_kv, h, 192)), ordinary(seed + 2, (t_kv, h, 128))
    return operands(*drawn, causal=causal) | others


def along_first(numbers: np.ndarray) -> np.ndarray:
    """[t, h, 192] whose first column is these numbers, the others 0: with queries of 1 they are the scores."""
    x = np.zeros((*numbers.shape, 192), BF16)
    x[..., 0] = numbers
    return x


def equal(t_kv: int) -> np.ndarray:
    return np.repeat(ordinary(7, (1, 1, 192)), t_kv, axis=0)


def scored(scores: np.ndarray, scale: float, v: np.ndarray | None = None) -> dict:
    """Two queries that see these scores [t_kv, h]."""
    shape = (*scores.shape, 128)
    return operands(along_first(values(np.ones((2, scores.shape[1])))), along_first(scores), ordinary(11, shape) if v is None else v, scale)


def padding() -> dict:
    return scored(values(-64.0 - np.arange(13))[:, None], 1.0)


def ladder() -> dict:
    """Three tiles, each raising the maximum: by 1, 8, 32 and 128 in the four heads."""
    drawn = scored(values(np.arange(260)[:, None] // 128 * np.array([1.0, 8, 32, 128])), 0.6875)
    drawn["q"][..., 1], drawn["k"][..., 1] = 1, values(hashed(8, (260, 4)) % 64 / -16.0)
    return drawn


def tiny_scores() -> dict:
    """1 .. 140 times 2^-133: the larger ones are in the second tile."""
    return scored(from_bits(1 + np.arange(140)[:, None]), 2.0**126)


def huge_scores() -> dict:
    return scored(spread(10, (140, 1), 124, 126), 2.0**-128)


def tiny_lse() -> dict:
    return scored(values([[2.0**-130]]), 1.0)


def overflow() -> dict:
    signs = np.ones((140, 4))
    signs[::3, 1], signs[:, 2], signs[1::2, 3] = -1, -1, -1
    scores = values(np.where(np.arange(4) == 0, 1.0, 2.0**100) * signs)
    return scored(scores, 1.0) | {"q": along_first(values(np.tile([1.0, 2.0**100, 2.0**100, 2.0**100], (2, 1))))}


def subnormal() -> dict:
    v = np.concatenate([from_bits(hashed(12, (140, 1, 128)) & 0x807F), spread(13, (140, 1, 128), -126, -124)], axis=1)
    return attention(5, 140, 2, 0, v=v)


def special() -> dict:
    """Heads 0..2: inf, -inf, NaN in query 1; 3..5: in key 2; 6..8: in the value of key 13; 9: none."""
    drawn = attention(3, 20, 10, 0)
    poison = values([np.inf, -np.inf, np.nan])
    drawn["q"][1, :3, 5], drawn["k"][2, 3:6, 6], drawn["v"][13, 6:9, 7] = poison, poison, poison
    return drawn


def unseen_nan() -> dict:
    """Key 100 is NaN in head 0; the value of key 250, in the second block's second tile, is NaN in head 1."""
    drawn = attention(256, 256, 2, 1)
    drawn["k"][100, 0], drawn["v"][250, 1] = np.nan, np.nan
    return drawn


def interleaved() -> dict:
    v = ordinary(14, (140, 2, 256))
    v[..., :128] = np.nan
    return attention(70, 140, 2, 1, v=v)


def pool(seed: int) -> dict:
    """16 heads of 64 queries and 144 keys: ordinary ones, and sharp ones, where few keys have all the weight. A moved f32 shows where the output
    lies next to a tie of its landing, once in 2^15 elements."""
    q = ordinary(3 * seed, (64, 16, 192))
    q[:, 8:] = values(q[:, 8:].astype(np.float32) * 8)
    return operands(q, ordinary(3 * seed + 1, (144, 16, 192)), ordinary(3 * seed + 2, (144, 16, 128)))
