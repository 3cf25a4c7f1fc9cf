"""rms_norm: root mean square norm, rounded before the scale.

    x bf16 [b, h], gamma bf16 [h], eps f32 -> o bf16 [b, h]

S1  sq = x * x              (a product, not fused into the sum)
S2  tot: 256 threads, thread t sums its columns t, t + 256, ... ascending from +0, then tree(128, 64, ..., 1)
S3  mean = tot / h + eps
S4  r = rsqrt(mean)
S5  n = bf(x * r)
S6  o = bf(n * gamma)

Current form: a warp a row, 16-byte loads and stores; a block a row, column by column, where a row is not 16-byte aligned. Retired: the latter.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, bf, div, lanes, mul, rsqrt, tree
from references.contract import Case, schedule
from references.contract.inputs import from_bits, hashed, ordinary, patterns, spread, values

INDEPENDENT = "b"
BENCH = ({"b": 16896, "h": 7168, "eps": 1e-5}, {"b": 16896, "h": 512, "eps": 1e-5})

BLIND = {
    "S4.rsqrt:flushed": "the reciprocal root of a finite f32 is at least 2^-64",
    "S5.mul:landed": "S5 lands the product anyway, and landing twice is landing once",
    "S6.mul:landed": "S6 lands the product anyway, and landing twice is landing once",
    "S6.bf:skipped": "the store to bf16 lands it",
}


@schedule("x: bf16[b@ldx, h], gamma: bf16[h], eps: f32 -> o: bf16[b, h]", version=1, requires=("h >= 1",))
def emulate(x, gamma, eps):
    sq = mul(x, x)  # S1
    tot = tree(lanes(sq, 256), (128, 64, 32, 16, 8, 4, 2, 1))  # S2
    mean = add(div(tot, x.shape[1]), eps)  # S3
    r = rsqrt(mean)  # S4
    n = bf(mul(x, r[:, None]))  # S5
    return bf(mul(n, gamma))  # S6


def cases() -> Iterator[Case]:
    yield Case("cast_before_weight", "6.375 among ones, gamma 0.75: 0x3ffa, and 0x3ffb where the weight comes before the cast",
               lambda: row([6.375, 1, 1, 1, 1, 1, 1, 1], gamma=0.75, eps=1e-6), ("S5.bf:skipped",))
    yield Case("ties", "r is 1.5, so every odd significand lies on a tie of S5; the products with 1.5 on one of S6",
               ties, ("S5.bf:half_away", "S5.bf:truncated", "S6.bf:half_away", "S6.bf:truncated"))
    yield Case("tiny", "squares, mean and sums among the subnormals, eps 0",
               tiny, ("S1.mul:flushed", "S2.lanes:fused_squares", "S3.div:flushed", "S3.add:flushed"))
    yield Case("subnormal", "subnormal values and products beside a row's large one, on both landings", subnormal,
               ("S5.mul:flushed", "S5.bf:flushed", "S6.mul:flushed", "S6.bf:flushed"))
    yield Case("special", "infinities, NaN and squares that overflow: each poisons its own row and no other", special)
    yield Case("zeros", "zeros of both signs: r is finite by eps", lambda: row([0.0, -0.0] * 8, gamma=-1, eps=1e-5))
    yield Case("zeros_eps_0", "zeros of both signs and eps 0: r is infinite, the row NaN", lambda: row([0.0, -0.0] * 8, eps=0))
    yield Case("patterns", "rows and gamma of every bit pattern", lambda: norm(patterns(1, (8, 64)), patterns(2, (64,)), 1e-5))
    for h in (7168, 3584, 512):
        yield Case(f"width_{h}", f"two rows of {h}", lambda h=h: norm(ordinary(h, (2, h)), ordinary(h + 1, (h,)), 1e-5))
    for h in (1, 7, 8, 255, 257, 264, 1000, 1537):
        yield Case(f"ragged_{h}", f"five rows of {h}: threads without a column, rows off the 16-byte grid or a last stride cut short",
                   lambda h=h: norm(ordinary(h, (5, h)), spread(h, (h,), -2, 1), 1e-5))
    yield Case("eps", "eps of the size of the middle row's mean, three rows of very different size",
               lambda: norm(np.concatenate([ordinary(3, (1, 512), 2.0**k) for k in (-8, 0, 8)]), ordinary(4, (512,)), 0.3), ("S3.add:landed",))
    yield Case("prefill", "16,896 rows of the latent's 512 columns",
               lambda: norm(ordinary(5, (16896, 512)), ordinary(6, (512,)), 1e-5), large=True)


def norm(x: np.ndarray, gamma: np.ndarray, eps: float) -> dict:
    return {"x": x, "gamma": gamma, "eps": eps}


def row(numbers: list[float], eps: float, gamma: float = 1.0) -> dict:
    return norm(values([numbers]), values([gamma] * len(numbers)), eps)


def ties() -> dict:
    """36 columns whose squares sum to 16: the mean is 4/9 and r is 1.5. The small columns vanish beside the 4."""
    odd = from_bits(np.uint16(0x3581) + 2 * np.arange(35, dtype=np.uint16))
    x = np.concatenate([values([4.0]), odd])
    return norm(np.stack([x, -x]), values([1.0, 1.5] * 18), 0)


def tiny() -> dict:
    """Row 0: a thread sums 1.125 and 0.5 units of 2^-149, each rounded alone to 1 and 0, fused to 2; the mean is 0.5, fused 1, of these."""
    fused = values([1.5 * 2.0**-75] * 256 + [2.0**-75] * 256)[None]
    return norm(np.concatenate([fused, *(spread(-k, (1, 512), k, k) for k in (-76, -74, -72, -70, -66, -63))]), values([1.0] * 512), 0)


def subnormal() -> dict:
    """Row 0: r is about 1 and the rest subnormal. Row 1: r is 2^-10, which takes normal values there. gamma takes n = 1 there, too."""
    x = np.stack([np.concatenate([values([8.0]), from_bits(np.arange(1, 64) * 2 - 1)]),
                  np.concatenate([values([2.0**13]), spread(1, (63,), -125, -117)]), values([1.0] * 64)])
    return norm(x, np.concatenate([values([1.0, 2.0**-130, 0.5]), spread(2, (61,), -126, 1)]), 0)


def special() -> dict:
    inf, nan = np.inf, np.nan
    lone = [[inf], [-inf], [nan], [inf, nan], [2.0**64], [2.0**63, 2.0**63, 2.0**63, 2.0**63], [-(2.0**63)], [2.0**127], [1.0]]
    x = values([[1.0, *start, *[0.5] * (15 - len(start))] for start in lone])
    return norm(x, values([1.0, -1.0, 0.0, -0.0, inf, -inf, nan, *[1.0] * 9]), 1e-5)


def pool(seed: int) -> dict:
    """1024 rows of 1280 = 5 * 256 columns, eps 0: five terms a thread, and a mean that is no power of two."""
    gamma = np.where(np.arange(1280) % 2, spread(0, (1280,), -2, 1), values(1.0))
    return norm(candidates(seed, 1280), gamma, 0)


def candidates(seed: int, h: int) -> np.ndarray:
    """1024 bf16 rows: ordinary ones; spreads; stairs, where all squares but a thread's first are just below half an ulp of it; squares among
    the subnormals; subnormal values. A moved r shows where a product lies next to a tie: of 128 significands times r, once in 512 rows."""
    first = from_bits(0x3F80 + hashed(6 * seed, (384, 256)) % 0x35)  # 1 .. 1.41
    rest = from_bits(0x3970 + hashed(6 * seed + 1, (384, h - 256)) % 0x10)  # just below 2^-12
    return np.concatenate([ordinary(6 * seed + 2, (256, h)), spread(6 * seed + 3, (256, h), -12, 0), np.concatenate([first, rest], axis=1),
                           spread(6 * seed + 4, (64, h), -76, -62), spread(6 * seed + 5, (64, h), -126, 3)])
