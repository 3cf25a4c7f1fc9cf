"""router_topk: the experts of a token and their weights.

    s f32 [b, experts], bias f32 [experts], k int, rs bf16 -> ids i32 [b, k], w f32 [b, k]

S1  sig = 1 / (1 + exp(0 - s))
S2  biased = sig + bias
S3  k rounds: the winner is the expert of the greatest biased score that has not won yet, the lowest id among equals
S4  den = sig of the winners summed in the order of the rounds, from +0
S5  w = (sig / (den + 1e-20)) * f(rs)

The ids of a row are always k distinct ones, experts switched off by a bias of -inf among them where no others are left. (A mask of -1e30 on
winners, as kernels have it, is the same while more than k biased scores are above it, and then picks a winner twice.)
A NaN among the biased scores of a row is reported: all its ids are -1 and its weights NaN.

Current form: a warp a row, block-parallel argmax over keys in shared memory; the retired form where those do not fit. Retired: a serial scan.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, chain, div, kept, mul, picked, sigmoid, top
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, hashed, ordinary, patterns, spread, values

INDEPENDENT = "b"
BENCH = tuple({"b": b, "experts": 896, "k": 16, "rs": 2.5} for b in (4096, 1))

BLIND = {
    "S1.sigmoid.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S1.sigmoid.exp:flushed": "1 is added to the exponential, beside which a subnormal vanishes",
    "S1.sigmoid.add:flushed": "the sum is 1 at least",
    "S1.sigmoid.div:reciprocal": "a quotient of 1 is its reciprocal",
    "S3.top:by_bits": "the sum of a sigmoid and anything is no -0",
    "S4.chain.zero:minus_zero": "a sigmoid is no -0",
    "S4.chain.add:flushed": "1e-20 is added to the sum, beside which a subnormal vanishes",
    "S5.add:flushed": "the sum is 1e-20 at least",
}


@schedule("s: f32[b, experts], bias: f32[experts], k: int, rs: bf16 -> ids: i32[b, k], w: f32[b, k]", version=1, requires=("k >= 1", "experts >= k"))
def emulate(s, bias, k, rs):
    sig = sigmoid(s)  # S1
    biased = kept(add(sig, bias))  # S2
    ids = top(biased, k)  # S3
    won = picked(sig, ids)  # S4
    den = kept(chain(won))  # S4
    w = mul(div(won, add(den, 1e-20)[:, None]), rs)  # S5
    return ids, kept(w)  # S5


def cases() -> Iterator[Case]:
    yield Case("all_equal", "every score the same: ids 0 .. 15 in order", lambda: routed(np.zeros((1, 896), F32), 16), ("S3.top:ties_last",))
    yield Case("winners_last", "the 16 winners are the last of 896 experts, the greatest at the very end", winners_last, ("S3.top:by_place",))
    yield Case("one_lane", "all winners are neighbours, or 128 apart: one thread of a warp has them all", one_lane)
    yield Case("many_ties", "100 winners and 8,220 equals of 8,320, k 2,048: the equals by id", many_ties, ("S3.top:ties_last",))
    yield Case("switched_off", "a bias of -inf on all but five of 24: these five, then switched-off ones by id, none twice", switched_off,
               ("S3.top:masked", "S3.top:infinity_unfound"))
    yield Case("below_mask", "biased scores at and below -1e30: none twice, the lowest id among equals", below_mask, ("S3.top:masked",))
    yield Case("nan", "a NaN score first, inside or last: its row is reported, ids -1 and weights NaN, and no other", nan,
               ("S3.top:nan_skipped", "S3.top:nan_largest", "S4.picked:last_entry"))
    yield Case("nan_bias", "a NaN bias reports every row", lambda: routed(ordinary(3, (2, 40), dtype=F32), 4, values([0.0] * 39 + [np.nan], F32)))
    yield Case("special", "infinite scores and biases of both signs", special)
    yield Case("unbiased_weights", "the bias decides the order, not the scores, and is no part of a weight", unbiased,
               ("S4.picked:as_ranked", "S4.picked:by_position"))
    yield Case("order", "sigmoids of very different size: the sum of the winners depends on its order", order, ("S4.chain:pairwise",))
    yield Case("tiny", "sigmoids down to the subnormals beside 1e-20; weights and biased scores that are subnormal", tiny,
               ("S2.add:flushed", "S5.div:flushed", "S5.add:landed"))
    yield Case("tiny_scale", "a scale of 2^-126: the weights are subnormal", lambda: routed(ordinary(5, (4, 16), dtype=F32), 4, rs=2.0**-126),
               ("S5.mul:flushed",))
    yield Case("patterns", "every bit pattern alike: a NaN in half of the rows",
               lambda: routed(patterns(1, (32, 128), F32), 8, ordinary(2, (128,), 0.25, F32)))
    for experts, k, why in ((1, 1, "one expert"), (7, 7, "all of seven, by rank"), (33, 3, "a warp and one"), (130, 16, "rows off the 16-byte grid"),
                            (224, 16, "224 experts"), (256, 32, "as many winners as a warp"), (257, 33, "one more"), (896, 16, "896 experts")):
        yield Case(f"ragged_{experts}x{k}", why, lambda experts=experts, k=k: usual(5, experts, k))
    yield Case("prefill", "4,096 rows of 896 experts", lambda: usual(4096, 896, 16), large=True)


def routed(s: np.ndarray, k: int, bias: np.ndarray | None = None, rs: float = 2.5) -> dict:
    return {"s": s, "bias": np.zeros(s.shape[-1], F32) if bias is None else np.asarray(bias, F32), "k": k, "rs": rs}


def usual(b: int, experts: int, k: int) -> dict:
    return routed(ordinary(1, (b, experts), 2.0, F32), k, ordinary(2, (experts,), 0.25, F32))


def winners_last() -> dict:
    s = ordinary(3, (2, 896), dtype=F32)
    s[:, -16:] = values(np.arange(4.0, 8.0, 0.25), F32)
    return routed(s, 16)


def one_lane() -> dict:
    s = ordinary(4, (3, 896), dtype=F32)
    s[0, 500:516], s[1, 5::128], s[2, 36:40] = 6, 6, 6
    s[2, 164:168], s[2, 292:296], s[2, 420:424] = 7, 5, 7
    return routed(s, 16)


def many_ties() -> dict:
    s = np.full((1, 8320), -1, F32)
    s[0, np.argsort(hashed(5, (8320,)), kind="stable")[:100]] = values(np.arange(100) / 64, F32)
    return routed(s, 2048)


def switched_off() -> dict:
    bias = np.full(24, -np.inf)
    bias[[3, 7, 11, 12, 23]] = 0
    return routed(ordinary(6, (3, 24), dtype=F32), 9, bias)


def below_mask() -> dict:
    """-1e30 as f32 twice, its neighbours, and far below."""
    mask = np.float32(-1e30).view(np.uint32)
    levels = [*from_bits([mask, mask - 1, mask + 1, mask], F32), -3e38, -np.inf, -2e30, 0.5]
    return routed(ordinary(7, (2, 32), dtype=F32), 16, np.array(levels * 2 + [-np.inf] * 16, F32))


def nan() -> dict:
    s = ordinary(8, (8, 896), dtype=F32)
    for row, place in ((1, 0), (3, 445), (4, 895), (6, 31)):
        s[row, place] = np.nan
    s[6] = np.nan
    return routed(s, 16)


def special() -> dict:
    s = ordinary(9, (4, 32), dtype=F32)
    s[0, ::5], s[1, ::3], s[2], s[3] = np.inf, -np.inf, -np.inf, np.inf
    bias = ordinary(10, (32,), 0.25, F32)
    bias[[4, 9]], bias[[2, 10]] = np.inf, -np.inf
    return routed(s, 8, bias)


def unbiased() -> dict:
    s = values(np.arange(32)[None] / 8, F32)
    return routed(s, 8, values(-(np.arange(32.0) * 11 % 32), F32))


def order() -> dict:
    """The sigmoids of winners fall from 1 to 2^-24: their sum loses what comes late and alone."""
    s = np.concatenate([values([20.0], F32), np.full(15, -16.5, F32)])[None] + ordinary(11, (8, 16), 0.125, F32)
    return routed(s.astype(F32), 16)


def tiny() -> dict:
    """Row 0 picks by biased scores that are subnormal; rows 1 and 2 have a sum near 1e-20; row 3 a subnormal quotient."""
    s = np.full((4, 16), -np.inf, F32)
    s[0, 3:7] = values([-87.75, -88.0, -87.875, -88.125], F32)
    s[1, :4], s[2, :4] = values([-46.0, -46.5, -45.0, -47.0], F32), values([-80.0, -84.0, -87.0, -88.5], F32)
    s[3, :2] = values([3.0, -88.5], F32)
    return routed(s, 4)


def pool(seed: int) -> dict:
    """Rows of 48 experts: ordinary ones; spread ones, whose sums are near 1e-20 too; equals."""
    near, far = ordinary(4 * seed, (256, 48), 2.0, F32), ordinary(4 * seed + 1, (128, 48), 32.0, F32)
    wide, few = spread(4 * seed + 2, (64, 48), -2, 6, F32), (hashed(4 * seed + 3, (64, 48)) % 4).astype(F32)
    return routed(np.concatenate([near, far, wide, few]), 6, ordinary(1, (48,), 2.0**-8, F32))
