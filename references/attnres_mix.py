"""attnres_mix: the attention residual, candidates weighted by the softmax of their scores.

    score f32 [b, c], x bf16 [b, c, h] -> o bf16 [b, h]

The candidates of a row are the snapshots and then the running prefix.

S1  mx = the largest score     (fmaxf: NaN only where all are)
S2  e_c = exp(score_c - mx)
S3  den = e_0 + e_1 + ..., ascending from +0
S4  p_c = e_c / den
S5  acc = fma(p_c, f(x_c), acc), ascending from +0, the prefix last
S6  o = bf(acc)

A NaN or +inf among the scores, or nothing but -inf, makes the row NaN. A single candidate has weight 1: it comes back with -0 as +0.

Current form: eight columns a thread, 16-byte loads and stores, the weights once a block; the retired form where x or o is not 16-byte aligned, h is
no multiple of 8 or c above 256. Retired: one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import amax, asc, bf, chain, div, exp, fma, kept, sub, zero
from references.contract import Case, schedule
from references.contract.inputs import BF16, F32, ordinary, patterns, spread, values

INDEPENDENT = "b"
BENCH = tuple({"b": b, "c": c, "h": 7168} for b, c in ((4096, 4), (4096, 9), (1, 9)))

BLIND = {
    "S2.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S3.chain.zero:minus_zero": "an exponential is no -0",
    "S3.chain.add:flushed": "the largest score adds 1, beside which a subnormal vanishes",
    "S6.bf:skipped": "the store to bf16 lands it",
}


@schedule("score: f32[b, c], x: bf16[b, c, h] -> o: bf16[b, h]", version=1, requires=("c >= 1", "h >= 1"))
def emulate(score, x):
    mx = amax(score)[:, None]  # S1
    e = exp(sub(score, mx))  # S2
    den = chain(e)[:, None]  # S3
    p = kept(div(e, den))  # S4
    acc = zero(x[:, 0])  # S5
    for c in asc(x.shape[1]):  # S5
        acc = fma(p[:, c : c + 1], x[:, c], acc)  # S5
    return bf(acc)  # S6


def cases() -> Iterator[Case]:
    yield Case("one_candidate", "a lone candidate comes back, -0 as +0", lambda: mix([[-3.5], [0.0]], values([[[-0.0, 0.0, 1.5, -1.5] * 2]] * 2)),
               ("S5.zero:minus_zero",))
    yield Case("equal", "equal scores, -0 among them: a third each",
               lambda: mix([[0.0, -0.0, 0.0], [88.0] * 3, [-1e30] * 3], ordinary(1, (3, 3, 64))))
    yield Case("order", "beside 1, two candidates of half an ulp of bf16 sum first or last", order, ("S5.asc:descending",))
    yield Case("far", "scores 0 .. 120 apart: weights shrink to subnormals and to 0 beside values of 2^127", far,
               ("S2.exp:flushed", "S4.div:flushed", "S5.fma:flushed"))
    yield Case("cancelling", "candidates cancel, so the fused product shows", cancelling, ("S5.fma:unfused",))
    yield Case("special", "NaN and infinite scores, none but -inf, infinite values beside a weight of 0", special)
    yield Case("patterns", "every bit pattern alike", lambda: mix(patterns(1, (16, 3), F32), patterns(2, (16, 3, 64))))
    yield Case("hidden", "two rows of eight snapshots and the prefix, 7168 columns", lambda: usual(2, 9, 7168))
    for c, h, why in ((1, 1, "one element"), (2, 37, "an odd width"), (5, 264, "a block past its columns"), (16, 24, "more candidates than K3 has"),
                      (33, 8, "more candidates than a warp"),
                      (257, 8, "more candidates than the current form holds"), (3, 1800, "a second block, partly used")):
        yield Case(f"ragged_{c}x{h}", why, lambda c=c, h=h: usual(3, c, h))
    yield Case("prefill", "1,024 rows of four candidates of 7168", lambda: usual(1024, 4, 7168), large=True)


def mix(score, x: np.ndarray) -> dict:
    return {"score": np.asarray(score, F32), "x": x}


def usual(b: int, c: int, h: int) -> dict:
    return mix(ordinary(1, (b, c), dtype=F32), ordinary(2, (b, c, h)))


def order() -> dict:
    """Equal scores of four candidates: weights of 1/4."""
    return mix([[2.0] * 4], values([[[4.0] * 8, [2.0**-22] * 8, [2.0**-22] * 8, [2.0**-6] * 8]]))


def far() -> dict:
    """Row 0: subnormal weights show beside the large value. Row 1: a subnormal sum."""
    score = np.zeros((2, 40), F32)
    score[:, 1:] = -values(np.linspace(84, 120, 39).round(1).astype(np.float32), F32)
    x = np.zeros((2, 40, 40), np.float32)
    x[0, np.arange(1, 40), np.arange(1, 40)] = 2.0**127  # a column for each weight
    x[1, np.arange(1, 40), np.arange(1, 40)] = 1.0
    x[1, 0, 0] = 2.0**-130
    return mix(score, x.astype(BF16))


def cancelling() -> dict:
    """The last two candidates are x and -x, their weights nearly the same."""
    x = ordinary(3, (8, 1, 64))
    score = np.stack([np.zeros(8), np.arange(8) * 2.0**-20], axis=1)
    return mix(score, np.concatenate([x, -x], axis=1))


def special() -> dict:
    inf, nan = np.inf, np.nan
    score = [[nan, 0, 1], [0, 1, nan], [inf, 0, 1], [-inf, -inf, -inf], [-inf, 0, 1], [nan, nan, nan], [-inf, 0, -200], [0, 1, 2]]
    x = np.resize(values([1.0, inf, -inf, nan, -0.0, 2.0**127, -(2.0**-133), 3.0]), (8, 3, 8))
    x[6, 1] = values(0.5)
    return mix(score, x)


def pool(seed: int) -> dict:
    """1024 rows of five candidates: ordinary ones, close scores, values of very different size, subnormal ones."""
    score = np.concatenate([ordinary(6 * seed + i, (rows, 5), scale, F32) for i, (rows, scale) in enumerate(((512, 1.0), (256, 4.0), (256, 16.0)))])
    x = [ordinary(6 * seed + 3, (512, 5, 64)), spread(6 * seed + 4, (384, 5, 64), -20, 0), spread(6 * seed + 5, (128, 5, 64), -126, -110)]
    return mix(score, np.concatenate(x))
