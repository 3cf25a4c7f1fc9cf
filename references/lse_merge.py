"""lse_merge: one window of keys merged into the running attention of earlier windows.

    acc f32 [t, h, 128], lse f32 [h, t], o bf16 [t, h, 128], lw f32 [h, t], reset int (0 or 1) -> acc_out f32 [t, h, 128], lse_out f32 [h, t]

`o` and `lw` are the window's attention and its natural-log LSE. A reset starts a row: what `acc` and `lse` hold is not looked at.

S1  after a reset: merged = lw, wa = 0, ww = 1, acc = +0
S2  else m = max(lse, lw)
S3  merged = m + log(exp(lse - m) + exp(lw - m))
S4  wa = exp(lse - merged), ww = exp(lw - merged)
S5  acc = fma(acc, wa, f(o) * ww)                      (the product rounded, the sum fused)
S6  where lse is -inf and there is no reset: acc = f(o), merged = lw, whatever acc holds
S7  where lw is -inf: acc and merged as they were (+0 and -inf after a reset), whatever o holds

An empty side returns the other one bit for bit, a NaN as the NaN that is stored. The outputs may lie where acc and lse do; o and lw may
lie on another device.

Current form: 16 lanes a row, 16-byte loads and stores, the next row on its way; the retired form where acc, o or acc_out is not 16-byte aligned.
Retired: a block per (token, head), one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, as_f32, choose, exp, fma, full, log, maximum, mul, sub, zero
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, ordinary, patterns, spread, values

INDEPENDENT = "t"
INPLACE = {"acc_out": "acc", "lse_out": "lse"}
BENCH = ({"t": 4096, "h": 96, "reset": 0},)
EMPTY = np.float32(-np.inf)  # the LSE of a row that sees no key
BLIND = {
    "S3.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S3.sub#2:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S3.exp:flushed": "the other exponential is 1, beside which a subnormal vanishes",
    "S3.exp#2:flushed": "the other exponential is 1, beside which a subnormal vanishes",
    "S3.add:flushed": "the sum is 1 at least",
    "S3.log:flushed": "the logarithm of 1 .. 2 is 0 or 2^-23 at least",
    "S4.sub:flushed": "exp of a subnormal is 1, as exp(0) is",
    "S4.sub#2:flushed": "exp of a subnormal is 1, as exp(0) is",
}


@schedule("acc: f32[t, h, 128], lse: f32[h, t], o: bf16[t, h, 128], lw: f32[h, t], reset: int -> acc_out: f32[t, h, 128], lse_out: f32[h, t]",
          version=1, requires=("h >= 1", "0 <= reset <= 1"))
def emulate(acc, lse, o, lw, reset):
    if reset:
        acc, merged = zero(acc), lw  # S1
        wa, ww = zero(lw), full(lw, 1)  # S1
    else:
        m = maximum(lse, lw)  # S2
        merged = add(m, log(add(exp(sub(lse, m)), exp(sub(lw, m)))))  # S3
        wa, ww = exp(sub(lse, merged)), exp(sub(lw, merged))  # S4
    total = fma(acc, wa.transpose()[..., None], mul(o, ww.transpose()[..., None]))  # S5
    if not reset:
        total = choose((lse == EMPTY).transpose()[..., None], o, total)  # S6
        merged = choose(lse == EMPTY, lw, merged)  # S6
    total = choose((lw == EMPTY).transpose()[..., None], acc, total)  # S7
    return total, choose(lw == EMPTY, full(lw, EMPTY) if reset else lse, merged)  # S7


def cases() -> Iterator[Case]:
    yield Case("both_empty", "neither side has a key: acc and lse stay, however stale o is", both_empty, ("S7.choose:never",))
    yield Case("empty_window", "a window without a key changes no bit, whether its o is NaN, infinite, -0 or stale; -0 in acc stays", empty_window,
               ("S7.choose:never", "S7.choose#2:never"))
    yield Case("empty_accumulator", "nothing before: the window comes back bit for bit, whatever acc holds; -0 stays", empty_accumulator,
               ("S6.choose:never", "S6.choose#2:never"))
    yield Case("reset", "NaN in acc and lse is not looked at; acc starts from +0, so -0 in the window ends as +0", lambda: reset(0.5),
               ("S1.zero:minus_zero",))
    yield Case("reset_empty", "a first window without a key: +0 and -inf, though o, acc and lse are NaN", lambda: reset(-np.inf),
               ("S7.choose:never",))
    yield Case("equal", "LSEs equal or an ulp apart: both weights are about a half", equal)
    yield Case("far", "differences of 0 .. 120 of both signs: weights shrink to subnormals and to 0 beside an acc of 2^127", far,
               ("S4.exp:flushed", "S4.exp#2:flushed", "S5.mul:flushed", "S3.add#2:flushed"))
    yield Case("cancelling", "acc and window cancel, so the fused product shows", cancelling, ("S5.fma:unfused",))
    yield Case("special", "infinite and NaN LSEs, infinite acc beside a weight of 0", special)
    yield Case("patterns", "every bit pattern alike", lambda: merge(patterns(1, (4, 2, 128), F32), patterns(2, (2, 4), F32), patterns(3, (4, 2, 128)),
                                                                    patterns(4, (2, 4), F32)))
    yield Case("heads", "one token of the 96 heads", lambda: usual(1, 96))
    for t, h, why in ((1, 1, "one row"), (3, 5, "an odd number of rows: the last warp is half empty"), (37, 1, "lse of one head, 37 apart")):
        yield Case(f"ragged_{t}x{h}", why, lambda t=t, h=h: usual(t, h))
    yield Case("prefill", "1,024 tokens of 96 heads", lambda: usual(1024, 96), large=True)


def merge(acc: np.ndarray, lse: np.ndarray, o: np.ndarray, lw: np.ndarray, reset: int = 0) -> dict:
    return {"acc": acc, "lse": lse, "o": o, "lw": lw, "reset": reset}


def usual(t: int, h: int) -> dict:
    """LSEs as attention over some thousand keys has them."""
    return merge(ordinary(1, (t, h, 128), dtype=F32), ordinary(2, (h, t), 4.0, F32), ordinary(3, (t, h, 128)), ordinary(4, (h, t), 4.0, F32))


STALE = from_bits([0x7FC1, 0x7F80, 0xFF80, 0x8000, 0x0000, 0x7F7F, 0x0001, 0x3F80])  # NaN, infinities, zeros, the largest, the smallest, 1


def rows(lse: list[float], lw: list[float], acc: np.ndarray, o: np.ndarray) -> dict:
    """A token for each pair of LSEs, one head; acc and o repeat along the row."""
    t = len(lse)
    return merge(np.resize(acc, (t, 1, 128)), values([lse], F32), np.resize(o, (t, 1, 128)), values([lw], F32))


def both_empty() -> dict:
    acc = np.concatenate([values([0.0] * 128, F32), ordinary(5, (128,), dtype=F32), STALE.astype(F32)])
    return rows([-np.inf] * 3, [-np.inf] * 3, acc, STALE)


def empty_window() -> dict:
    return rows([3.5, -0.0, -200.0, 2.0**-130], [-np.inf] * 4, np.concatenate([values([-0.0, 0.0], F32), patterns(6, (126,), F32)]), STALE)


def empty_accumulator() -> dict:
    return rows([-np.inf] * 4, [3.5, -0.0, -200.0, 2.0**-130], STALE.astype(F32), np.concatenate([STALE, ordinary(7, (120,))]))


def reset(lw: float) -> dict:
    inputs = rows([np.nan, np.inf, 2.0, -np.inf], [lw, -0.0, -200.0, lw], STALE.astype(F32), np.concatenate([STALE[::-1], ordinary(8, (120,))]))
    return inputs | {"reset": 1}


def equal() -> dict:
    inputs = usual(8, 2)
    step = np.array([0, 0, 1, -1, 2, 0x4000, 0x10000, 0], np.int32)
    return inputs | {"lw": (inputs["lse"].view(np.int32) + step).view(F32)}


def far() -> dict:
    """Row 0 of each sign: a subnormal LSE stays beside one that is far below it."""
    apart = values([[120.0, 20.0, 60.0, 86.0, 87.5, 88.5, 95.0, 103.0, 104.0, 1.5]], F32)
    near = values([[2.0**-130] + [0.0] * 9], F32)
    acc, o = spread(9, (10, 1, 128), 120, 126, F32), spread(10, (10, 1, 128), 90, 126)
    acc[:, :, :64], o[:, :, 64:96] = 0, 0
    o[:, :, :32] = spread(11, (10, 1, 32), -20, 20)
    both = (near, near - apart), (near - apart, near)
    lse, lw = (np.concatenate(side, axis=1) for side in zip(*both, strict=True))
    return merge(np.tile(acc, (2, 1, 1)), lse, np.tile(o, (2, 1, 1)), lw)


def cancelling() -> dict:
    """acc is -o times the weights' quotient."""
    inputs = usual(8, 1)
    quotient = exp(sub(inputs["lw"], inputs["lse"])).transpose()[..., None]
    return inputs | {"acc": mul(as_f32(inputs["o"]), 0 - quotient)}


def special() -> dict:
    inf, nan = np.inf, np.nan
    lse, lw = [inf, 1, inf, nan, 1, nan, inf, -inf, nan, -inf, -200], [1, inf, inf, 1, nan, nan, -inf, inf, -inf, nan, 1]
    return rows(lse, lw, np.concatenate([STALE.astype(F32), ordinary(15, (120,), dtype=F32)]), np.concatenate([ordinary(16, (120,)), STALE]))


def pool(seed: int) -> dict:
    """LSEs up to 16 apart, beside values of every size."""
    t = 512
    lse = spread(8 * seed, (2, t), -6, 4, F32)
    acc = np.concatenate([spread(8 * seed + 1, (t // 2, 2, 128), -20, 20, F32), patterns(8 * seed + 2, (t // 2, 2, 128), F32)])
    o = np.concatenate([spread(8 * seed + 3, (t // 2, 2, 128), -20, 20), spread(8 * seed + 4, (t // 2, 2, 128), -126, 127)])
    return merge(acc, lse, o, lse + spread(8 * seed + 5, (2, t), -6, 4, F32))
