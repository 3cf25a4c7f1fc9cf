"""attnres_scores: how much of each candidate the attention residual takes, before its softmax.

    x bf16 [b, c, h], sw f32 [h], eps f32 -> score f32 [b, c]

The candidates of a row are the snapshots and then the running prefix; each is scored alone.

S1  sq = x * x              (a product, not fused into the sum)
S2  tot: 256 threads, thread t sums its columns t, t + 256, ... ascending from +0, then tree(128, 64, ..., 1)
S3  mean = tot / h + eps
S4  r = rsqrt(mean)
S5  term = (x * r) * sw     (two products, not fused into the sum)
S6  score: the terms summed as in S2

Current form: a warp a candidate, 16-byte loads, the next candidate on its way into registers where h is 7168; a block a candidate, column by
column, where x or sw is not 16-byte aligned. Retired: the latter.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, div, kept, lanes, mul, rsqrt, tree
from references.contract import Case, schedule
from references.contract.inputs import F32, ordinary, patterns, spread, values
from references.rms_norm import candidates

INDEPENDENT = "b"
BENCH = tuple({"b": b, "c": c, "h": 7168, "eps": 1e-5} for b, c in ((4096, 4), (4096, 9), (1, 9)))
OFFSETS = (128, 64, 32, 16, 8, 4, 2, 1)

BLIND = {"S4.rsqrt:flushed": "the reciprocal root of a finite f32 is at least 2^-64"}


@schedule("x: bf16[b, c, h], sw: f32[h], eps: f32 -> score: f32[b, c]", version=1, requires=("c >= 1", "h >= 1"))
def emulate(x, sw, eps):
    sq = mul(x, x)  # S1
    tot = tree(lanes(sq, 256), OFFSETS)  # S2
    mean = add(div(tot, x.shape[2]), eps)  # S3
    r = kept(rsqrt(mean))  # S4
    term = mul(mul(x, r[..., None]), sw)  # S5
    return kept(tree(lanes(term, 256), OFFSETS))  # S6


def cases() -> Iterator[Case]:
    yield Case("hidden", "a row of four candidates of 7168 columns, of very different size",
               lambda: scored(np.concatenate([ordinary(k, (1, 1, 7168), 2.0**k) for k in (1, 4, 8, 12)], axis=1)))
    yield Case("nine", "eight snapshots and the prefix, two rows", lambda: scored(ordinary(1, (2, 9, 512))))
    yield Case("cancelling", "terms of both signs cancel: what is left is rounding", lambda: scored(mirrored(), 1.0),
               ("S6.tree:mirrored", "S6.lanes:blocked"))
    yield Case("tiny", "squares, sums and terms among the subnormals, eps 0", tiny, ("S1.mul:flushed", "S3.div:flushed", "S5.mul#2:flushed"))
    yield Case("special", "infinities, NaN and squares that overflow: each spoils its own candidate and no other", special)
    yield Case("zeros", "zeros of both signs: the score is +0", lambda: scored(values([[[0.0, -0.0] * 128, [-0.0] * 256]]), 1.0))
    yield Case("zeros_eps_0", "zeros and eps 0: r is infinite, the score NaN", lambda: scored(values([[[0.0, -0.0] * 8]]), eps=0))
    yield Case("patterns", "every bit pattern alike", lambda: scored(patterns(2, (4, 3, 64)), patterns(3, (64,), F32)))
    for h in (1, 7, 8, 255, 257, 264, 1000, 1537):
        yield Case(f"ragged_{h}", f"candidates of {h}: threads without a column, candidates off the 16-byte grid or a last stride cut short",
                   lambda h=h: scored(ordinary(h, (3, 2, h))))
    yield Case("prefill", "1,024 rows of four candidates of 7168", lambda: scored(ordinary(4, (1024, 4, 7168))), large=True)


def scored(x: np.ndarray, sw: np.ndarray | float | None = None, eps: float = 1e-5) -> dict:
    h = x.shape[-1]
    sw = spread(9, (h,), -4, 0, F32) if sw is None else np.broadcast_to(np.asarray(sw, F32), (h,)).copy()
    return {"x": x, "sw": sw, "eps": eps}


def mirrored() -> np.ndarray:
    """The second half of each candidate is the first with the other sign, in another order."""
    first = ordinary(5, (2, 3, 640))
    return np.concatenate([first, -first[..., ::-1]], axis=-1)


def tiny() -> dict:
    """Squares of 2^-145 and about; then candidates whose terms are subnormal, since r is 2^-10 or sw is small."""
    low = np.stack([spread(k, (3, 512), -k, -k + 3) for k in (72, 70, 66)], axis=1)
    wide = np.concatenate([values(np.full((3, 1, 1), 2.0**13)), spread(1, (3, 1, 511), -126, -117)], axis=-1)
    wide[:, :, 1::3] *= -1
    sw = np.concatenate([values([2.0**-140], F32), spread(2, (511,), -20, 0, F32)])
    return scored(np.concatenate([low, wide], axis=1), sw, 0)


def special() -> dict:
    inf, nan = np.inf, np.nan
    lone = [[inf], [-inf], [nan], [inf, nan], [2.0**64], [2.0**63] * 4, [-(2.0**63)], [2.0**127], [1.0]]
    x = values([[[1.0, *start, *[0.5] * (15 - len(start))] for start in lone]])
    return scored(x, values([1.0, -1.0, 2.0, inf, *[1.0] * 12], F32))


def pool(seed: int) -> dict:
    """1024 candidates of 1280 = 5 * 256 columns, eps 0: five terms a thread, and a mean that is no power of two."""
    return scored(candidates(seed, 1280)[:, None], eps=0)
