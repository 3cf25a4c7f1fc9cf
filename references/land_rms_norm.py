"""land_rms_norm: fold split-k partials, land them, and norm what was landed.

    p f32 [b, split_k, nt], gamma bf16 [h], eps f32 -> o bf16 [b, h], columns [off, off + h)

S1  acc = +0
S2  for s ascending: acc = acc + p[s]
S3  x = bf(acc)             (the norm sees the landed value)
S4  sq = x * x
S5  tot: 256 threads, thread t sums its columns t, t + 256, ... ascending from +0, then tree(128, 64, ..., 1)
S6  mean = tot / h + eps
S7  r = rsqrt(mean)
S8  n = bf(x * r)
S9  o = bf(n * gamma)

Current form: a warp a row, 16-byte loads and stores; a block a row, column by column, where a row is not 16-byte aligned. Retired: the latter.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, as_f32, asc, bf, div, lanes, mul, rsqrt, tree, zero
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, ordinary, patterns, spread, values
from references.rms_norm import candidates

INDEPENDENT = "b"
BENCH = ({"b": 16896, "split_k": 1, "nt": 1536, "off": 0, "eps": 1e-5, "h": 1536},
         {"b": 16896, "split_k": 4, "nt": 1536, "off": 0, "eps": 1e-5, "h": 1536})

BLIND = {
    "S7.rsqrt:flushed": "the reciprocal root of a finite f32 is at least 2^-64",
    "S8.mul:landed": "S8 lands the product anyway, and landing twice is landing once",
    "S9.mul:landed": "S9 lands the product anyway, and landing twice is landing once",
    "S9.bf:skipped": "the store to bf16 lands it",
}


@schedule(
    "p: f32[b, split_k, nt], gamma: bf16[h], off: int, eps: f32 -> o: bf16[b, h]",
    version=1,
    requires=("split_k >= 1", "off >= 0", "h >= 1", "off + h <= nt"),
)
def emulate(p, gamma, off, eps):
    p = p[:, :, off : off + len(gamma)]
    acc = zero(p[:, 0])  # S1
    for s in asc(p.shape[1]):  # S2
        acc = add(acc, p[:, s])  # S2
    x = bf(acc)  # S3
    sq = mul(x, x)  # S4
    tot = tree(lanes(sq, 256), (128, 64, 32, 16, 8, 4, 2, 1))  # S5
    mean = add(div(tot, x.shape[1]), eps)  # S6
    r = rsqrt(mean)  # S7
    n = bf(mul(x, r[:, None]))  # S8
    return bf(mul(n, gamma))  # S9


def cases() -> Iterator[Case]:
    yield Case("minus_zero", "a lone -0 partial is +0 for the norm, too", lambda: one([[-0.0, 0.0, -1.0, 1.0]], eps=1e-5), ("S1.zero:minus_zero",))
    yield Case("landed_sum", "2 + 2^-7 among ones: the norm sees the landed 2, 0x3fda; of the sum itself it makes 0x3fdb",
               lambda: one([[2, 1, 1, 1, 1, 1, 1, 1], [2.0**-7, 0, 0, 0, 0, 0, 0, 0]], eps=1e-6), ("S3.bf:skipped",))
    yield Case("landed_sum_others", "5 + 2^-6 among ones: the other columns are 0x3f00, and 0x3eff of the unlanded sum",
               lambda: one([[5, 1, 1, 1, 1, 1, 1, 1], [2.0**-6, 0, 0, 0, 0, 0, 0, 0]], eps=1e-6), ("S3.bf:skipped",))
    yield Case("cast_before_weight", "6.375 among ones, gamma 0.75: 0x3ffa, and 0x3ffb where the weight comes before the cast",
               lambda: one([[6.375, 1, 1, 1, 1, 1, 1, 1]], eps=1e-6, gamma=0.75), ("S8.bf:skipped",))
    yield Case("ties", "r is 1.5, so odd significands lie on ties of S8 and products with 1.5 on ties of S9; the sums on ties of S3", ties,
               ("S3.bf:half_away", "S3.bf:truncated", "S8.bf:half_away", "S8.bf:truncated", "S9.bf:half_away"))
    yield Case("order", "partials that cancel by rows of eight: descending they leave other columns", order, ("S2.asc:descending", "S2.add:landed"))
    yield Case("tiny", "partials, squares, mean and sums among the subnormals, eps 0", tiny,
               ("S2.add:flushed", "S3.bf:flushed", "S4.mul:flushed", "S5.lanes:fused_squares", "S6.div:flushed", "S6.add:flushed"))
    yield Case("subnormal", "subnormal values and products beside a row's large one, on both landings of the norm", subnormal,
               ("S8.mul:flushed", "S8.bf:flushed", "S9.mul:flushed", "S9.bf:flushed"))
    yield Case("special", "NaN payloads, infinities, partials and squares that overflow: each poisons its own row and no other", special)
    for splits in range(1, 9):
        yield Case(f"split_{splits}", f"{splits} partials of magnitudes that meet",
                   lambda k=splits: normed(spread(k, (2, k, 64), -9, 0, F32), spread(k, (64,), -1, 1)))
    yield Case("fused_1536", "columns [0, 1536) of the fused MLA projection's 14400, two partials",
               lambda: normed(ordinary(1, (1, 2, 14400), dtype=F32), ordinary(2, (1536,))))
    yield Case("patterns", "every bit pattern, the norm's gamma too", lambda: normed(patterns(3, (8, 2, 64), F32), patterns(4, (64,))))
    for name, shape, off, h, why in RAGGED:
        yield Case(name, why, lambda shape=shape, off=off, h=h: normed(spread(h, shape, -4, 4, F32), spread(h, (h,), -1, 1), off, 0.25))
    yield Case("prefill", "16,896 rows of 512 columns, two partials",
               lambda: normed(ordinary(5, (16896, 2, 512), dtype=F32), ordinary(6, (512,))), large=True)


RAGGED = (
    ("ragged", (5, 3, 37), 3, 29, "odd offset, width and pitch: no row is 16-byte aligned"),
    ("off_unaligned", (3, 2, 300), 2, 296, "a packed width of 8s read from an offset that is not a multiple of 4"),
    ("pitch_unaligned", (5, 2, 265), 0, 264, "an odd pitch: only every fourth row is 16-byte aligned"),
    ("width_unaligned", (3, 2, 1540), 4, 1533, "a width that is not a multiple of 8 at an aligned offset"),
    ("one_column", (1, 1, 1), 0, 1, "one row, one partial, one column"),
)


def normed(p: np.ndarray, gamma: np.ndarray, off: int = 0, eps: float = 1e-5) -> dict:
    return {"p": p, "gamma": gamma, "off": off, "eps": eps}


def one(partials: list[list[float]], eps: float, gamma: float = 1.0) -> dict:
    """One row, a list a partial."""
    return normed(values([partials], F32), values([gamma] * len(partials[0])), eps=eps)


def ties() -> dict:
    """36 columns whose squares sum to 16: the mean is 4/9 and r is 1.5. Half a bf16 ulp rides on every third column as a second partial."""
    first = np.concatenate([values([4.0], F32), from_bits(0x3581_0000 + (np.arange(35) << 17), F32)])
    half = np.where(np.arange(36) % 3, np.float32(0), np.ldexp(np.float32(1), np.frexp(first)[1] - 9))
    p = np.stack([first, half])
    return normed(np.stack([p, -p]), values([1.0, 1.5, 1.0, 1.25] * 9), eps=0)


def order() -> dict:
    columns = [[2.0**60, 1, -(2.0**60), 1], [1, 2.0**-8, 2.0**-24, 2.0**-24], [2.0**-24, 2.0**-24, 2.0**-8, 1], [1, 2.0**-8, -1, 0]]
    return normed(values(columns, F32).T[None], values([1.0] * 4))


def tiny() -> dict:
    """Row 0 is rms_norm's: a thread sums 1.125 and 0.5 units of 2^-149. The others fall from there to the smallest bf16 and below."""
    fused = values([1.5 * 2.0**-75] * 256 + [2.0**-75] * 256, F32)[None, None]
    rest = [spread(-k, (1, 1, 512), k, k, F32) for k in (-76, -72, -66, -63)]
    units = from_bits(np.arange(1, 1025, 2).reshape(1, 1, 512) << 12, F32)
    p = np.concatenate([fused, *rest, units])
    return normed(np.concatenate([p, np.zeros_like(p)], axis=1), values([1.0] * 512), eps=0)


def subnormal() -> dict:
    """Row 0: r is about 1 and the rest subnormal. Row 1: r is about 2^-10, which takes normal values there. gamma takes n = 1 there."""
    x = np.stack([np.concatenate([values([8.0]), from_bits(np.arange(1, 64) * 2 - 1)]),
                  np.concatenate([values([2.0**13]), spread(1, (63,), -125, -117)]), values([1.0] * 64)])
    return normed(as_f32(x)[:, None], np.concatenate([values([1.0, 2.0**-130, 0.5]), spread(2, (61,), -126, 1)]), eps=0)


def special() -> dict:
    first = [0x7F80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7F80_0000, 0x7F7F_FFFF, 0x7F7F_8000, 0x5F80_0000, 0x3F80_0000]
    second = [0, 0, 0, 0xFF80_0000, 0xFF80_0000, 0x3F80_0000, 0x7F7F_FFFF, 0, 0x5F80_0000, 0x4000_0000]
    p = np.tile(values([1.0, 0.5, -0.5, 2.0], F32), (len(first), 2, 4))
    p[:, 0, 1], p[:, 1, 1] = from_bits(first, F32), from_bits(second, F32)
    return normed(p, values([1.0, -1.0, 0.0, -0.0, np.inf, -np.inf, np.nan, *[1.0] * 9]))


def pool(seed: int) -> dict:
    """rms_norm's rows as a first partial; a second one moves each by up to an ulp of bf16, ties included, and a third cancels some of it."""
    x = as_f32(candidates(seed, 1280))
    ride = from_bits(spread(7 * seed + 6, x.shape, -9, -8, F32).view(np.uint32) & np.uint32(0xFFC0_0000), F32)
    second = np.where(np.arange(1280) % 3 == 0, x * ride, np.float32(0))
    third = np.where(np.arange(1280) % 9 == 0, -second, np.float32(0))
    gamma = np.where(np.arange(1280) % 2, spread(0, (1280,), -2, 1), values(1.0))
    return normed(np.stack([x, second, third], axis=1), gamma, eps=0)
