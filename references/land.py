"""land: fold split-k partials and land them.

    p f32 [b, split_k, nt] -> o bf16 [b, n], columns [off, off + n)

S1  acc = +0                (a lone -0 partial lands as +0)
S2  for s ascending: acc = acc + p[s]
S3  o = bf(acc)

Current form: 8 columns a thread, 16-byte loads and stores, scalar where a row is not 16-byte aligned. Retired: one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, asc, bf, zero
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, ordinary, patterns, spread, values

INDEPENDENT = "b"
BENCH = ({"b": 16896, "split_k": 1, "nt": 12288, "off": 0, "n": 12288}, {"b": 16896, "split_k": 4, "nt": 7168, "off": 0, "n": 7168})

BLIND = {"S3.bf:skipped": "the store to bf16 lands it"}


@schedule(
    "p: f32[b, split_k, nt], off: int, n: int -> o: bf16[b, n]",
    version=1,
    requires=("split_k >= 1", "off >= 0", "n >= 1", "off + n <= nt"),
)
def emulate(p, off, n):
    p = p[:, :, off : off + n]
    acc = zero(p[:, 0])  # S1
    for s in asc(p.shape[1]):  # S2
        acc = add(acc, p[:, s])  # S2
    return bf(acc)  # S3


def cases() -> Iterator[Case]:
    yield Case("minus_zero", "a lone -0 partial lands as +0", lambda: one(values([-0.0, 0.0, -1.0, 1.0], F32)), ("S1.zero:minus_zero",))
    yield Case("ties", "f32 sums on a bf16 midpoint, and one f32 ulp to either side, of even and odd neighbours and both signs", ties,
               ("S3.bf:half_away", "S3.bf:truncated"))
    yield Case("order", "partials that cancel or hang by half an ulp: every order but the ascending one lands elsewhere", order,
               ("S2.asc:descending", "S2.add:landed"))
    yield Case("subnormal", "subnormal partials, sums and landings, down to the halves of the smallest bf16", subnormal,
               ("S2.add:flushed", "S3.bf:flushed"))
    yield Case("special", "NaN payloads that narrow to inf or 0 when cut, inf - inf, f32 overflow on the way, overflow in the landing", special)
    for splits in range(1, 9):
        yield Case(f"split_{splits}", f"{splits} partials of every bit pattern, and of magnitudes that meet",
                   lambda k=splits: window(np.concatenate([patterns(k, (1, k, 64), F32), spread(k, (1, k, 64), -9, 0, F32)]), 0, 64))
    for off, n in ((0, 1536), (1536, 576), (2112, 12288)):
        yield Case(f"fused_{n}", f"columns [{off}, {off + n}) of the fused MLA projection's 14400",
                   lambda off=off, n=n: window(ordinary(n, (1, 1, 14400), dtype=F32), off, n))
    for off in (0, 33792):
        yield Case(f"dense_{off}", f"columns [{off}, {off + 33792}) of the dense gate and up projection's 67584, 4 partials",
                   lambda off=off: window(ordinary(off, (2, 4, 67584), dtype=F32), off, 33792), large=True)
    for name, shape, off, n, why in RAGGED:
        yield Case(name, why, lambda shape=shape, off=off, n=n: window(spread(n, shape, -4, 4, F32), off, n))
    yield Case("prefill", "16,896 rows of the cached row's 576 columns, 3 partials",
               lambda: window(ordinary(6, (16896, 3, 576), dtype=F32), 0, 576), large=True)


RAGGED = (
    ("ragged", (5, 3, 37), 3, 29, "odd offset, width and pitch: no row is 16-byte aligned"),
    ("off_unaligned", (3, 2, 44), 2, 40, "a packed width of 8s read from an offset that is not a multiple of 4"),
    ("pitch_unaligned", (5, 2, 41), 0, 40, "an odd pitch: only every fourth row is 16-byte aligned"),
    ("width_unaligned", (3, 2, 48), 4, 36, "a width that is not a multiple of 8 at an aligned offset"),
    ("one_column", (1, 1, 1), 0, 1, "one row, one partial, one column"),
)


def window(p: np.ndarray, off: int, n: int) -> dict:
    return {"p": p, "off": off, "n": n}


def one(*partials: np.ndarray) -> dict:
    """One row; each argument is a partial."""
    p = np.stack(partials)[None]
    return window(p, 0, p.shape[2])


def ties() -> dict:
    """Upper halves from 1.0 on and in the last binade, lower halves around 0x8000, made by a partial that is exact in the sum."""
    upper = np.array([0x3F80, 0x3F81, 0x3FFF, 0x4000, 0x7F7E, 0x0080, 0x0001, 0x42C9])
    bits = (upper[:, None] << 16 | np.array([0x7FFF, 0x8000, 0x8001])).reshape(-1)
    total = from_bits(np.concatenate([bits, bits | 0x8000_0000]), F32)
    high = from_bits(total.view(np.uint32) & np.uint32(0xFFFF_0000), F32)
    return one(high, total - high)


def order() -> dict:
    """Columns of 8 partials. 2^-24 is half an ulp of 1: added to 1 one by one it is lost, added up first it is not."""
    big, half, tie = 2.0**60, 2.0**-24, 2.0**-8
    columns = [[big, 1, -big, 1, 0, 0, 0, 0], [1 + tie, *[half] * 7], [*[half] * 7, 1 + tie], [big, -big, 1, tie, 0, 0, 0, 0],
               [1, tie, -1, 0, 0, 0, 0, 0], [tie, tie, tie, tie, 1, -tie, -tie, -tie]]
    return one(*values(columns, F32).T)


def subnormal() -> dict:
    low = from_bits([0x0000_0001, 0x0000_8000, 0x0000_8001, 0x0001_8000, 0x0002_8000, 0x007F_8000, 0x007F_FFFF, 0x0080_0000, 0x8000_8001], F32)
    rest = from_bits([0x8000_0001, 0x0000_0000, 0x0000_0000, 0x0000_0000, 0x8000_0001, 0x0000_0000, 0x0000_0001, 0x8000_0001, 0x0001_0000], F32)
    return one(low, rest)


def special() -> dict:
    """NaN payloads that truncation or an increment would lose; 0x7F7F8000 is the tie between the largest bf16 and infinity."""
    first = [0x7F80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7F80_0000, 0x7F7F_FFFF, 0xFF7F_FFFF, 0x7F7F_8000, 0x7F7F_7FFF]
    second = [0, 0, 0, 0xFF80_0000, 0xFF80_0000, 0x3F80_0000, 0x7F7F_FFFF, 0xFF7F_FFFF, 0, 0]
    third = [0, 0, 0, 0, 0, 0, 0xFF7F_FFFF, 0x7F7F_FFFF, 0, 0]
    return one(from_bits(first, F32), from_bits(second, F32), from_bits(third, F32))


def pool(seed: int) -> dict:
    """Rows of 8 columns and 8 partials: cascades of half ulps, narrow spreads around a tie, every bit pattern."""
    cascade = spread(3 * seed, (256, 8, 8), -26, 0, F32)
    near = from_bits(spread(3 * seed + 1, (256, 8, 8), -9, 0, F32).view(np.uint32) & np.uint32(0xFFFF_8000), F32)
    return window(np.concatenate([cascade, near, patterns(3 * seed + 2, (256, 8, 8), F32)]), 0, 8)
