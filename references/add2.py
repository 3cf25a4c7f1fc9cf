"""add2: one bf16 addition.

    a bf16 [m, n], b bf16 [m, n] -> o bf16 [m, n]

S1  o = bf(f(a) + f(b)), the exact sum rounded once

Current form: 8 columns a thread, 16-byte loads and stores, scalar where a row is not 16-byte aligned. Retired: one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references import _elementwise
from references.arith import hadd
from references.contract import Case, schedule
from references.contract.inputs import from_bits, ordinary, patterns, spread, values

INDEPENDENT = "n"
BENCH = ({"m": 16896, "n": 7168},)


@schedule("a: bf16[m@lda, n], b: bf16[m@ldb, n] -> o: bf16[m, n]", version=1, requires=("n >= 1",))
def emulate(a, b):
    return hadd(a, b)  # S1


def cases() -> Iterator[Case]:
    yield Case("ties", "exact sums on a bf16 midpoint of even and odd neighbours and beside it, of both signs", ties,
               ("S1.hadd:half_away", "S1.hadd:truncated"))
    yield Case("signed_zero", "-0 + -0 alone is -0; x - x and mixed zeros are +0",
               lambda: pair(values([-0.0, 0.0, -0.0, 1.5, -1.5]), values([-0.0, -0.0, 0.0, -1.5, 1.5])))
    yield Case("subnormal", "sums that stay below 2^-126, fall below it or leave it", subnormal, ("S1.hadd:flushed",))
    yield Case("special", "NaN payloads, inf - inf, overflow in the addition and in its rounding", special)
    yield Case("patterns", "every bit pattern alike", lambda: pair(patterns(1, (16, 512)), patterns(2, (16, 512))))
    yield Case("residual", "2 rows of the hidden size 7168", lambda: pair(ordinary(3, (2, 7168)), ordinary(4, (2, 7168), 0.25)))
    yield from _elementwise.ragged(pair)
    yield Case("prefill", "16,896 rows of 7168", lambda: pair(ordinary(7, (16896, 7168)), ordinary(8, (16896, 7168), 0.25)), large=True)


def pair(a: np.ndarray, b: np.ndarray) -> dict:
    """Operands as rows; a single row may be given flat."""
    return {"a": np.atleast_2d(a), "b": np.atleast_2d(b)}


def ties() -> dict:
    """b is half a unit of a's last place (a bf16 has 7 bits below its first), and one bf16 to either side of that half.

    Of 0x0100 and 0x0181, just above 2^-126, the half is the smallest subnormal.
    """
    a = np.repeat(from_bits([0x3F80, 0x3F81, 0x3FFF, 0x4049, 0x7F00, 0x0100, 0x0181]), 3)
    half = (a.view(np.uint16) & 0x7F80) - (8 << 7)
    half = np.where(a.view(np.uint16) < 0x0400, 0x0001, half) + np.tile([-1, 0, 1], 7)
    b = from_bits(half)
    return pair(np.concatenate([a, from_bits(a.view(np.uint16) | 0x8000)]), np.concatenate([b, from_bits(b.view(np.uint16) | 0x8000)]))


def subnormal() -> dict:
    a = from_bits([0x0001, 0x007F, 0x0080, 0x0081, 0x00FF, 0x8001, 0x8080, 0x0040, 0x0100])
    b = from_bits([0x0001, 0x0001, 0x8001, 0x8080, 0x8080, 0x8001, 0x0001, 0x0040, 0x80FF])
    return pair(a, b)


def special() -> dict:
    """0x7F7F is the largest bf16; 0x7B80, half its last place, takes it to the tie with infinity, 0x7B7F not."""
    a = from_bits([0x7FFF, 0x7F81, 0xFFC0, 0x7F80, 0xFF80, 0x7F80, 0x7F7F, 0x7F7F, 0x7F7F, 0xFF7F, 0xFF7F, 0x0000])
    b = from_bits([0x3F80, 0x0000, 0xFFFF, 0xFF80, 0x7F80, 0x7F80, 0x7F7F, 0x7B00, 0x7AFF, 0xFB00, 0xFAFF, 0xFF80])
    return pair(a, b)


def pool(seed: int) -> dict:
    """Operands up to 9 binades apart, whose sums are ties every 512th time, and every bit pattern."""
    a, b = (np.concatenate([spread(4 * seed + i, (1, 4096), -9, 0), patterns(4 * seed + i + 2, (1, 4096))], axis=1) for i in range(2))
    return pair(a, b)
