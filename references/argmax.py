"""argmax: the token of the greatest logit.

    x bf16 [b, n] -> id i32 [b]

S1  id = the lowest place among equal maxima; -0 equals +0. A row that holds a NaN is reported, never sampled: its id is -1.

Current form: a block a row, 16-byte loads, the maximum of eight logits at a time; one logit at a time where a row is not 16-byte aligned.
Retired: the latter.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import top
from references.contract import Case, schedule
from references.contract.inputs import from_bits, hashed, ordinary, patterns, values

INDEPENDENT = "b"
BENCH = tuple({"b": b, "n": 163840} for b in (128, 8, 1))


@schedule("x: bf16[b, n] -> id: i32[b]", version=1, requires=("n >= 1",))
def emulate(x):
    return top(x, 1).reshape(-1)  # S1


def cases() -> Iterator[Case]:
    yield Case("one", "a row of one logit; a lone NaN", lambda: rows([[-3.0], [np.nan], [-np.inf]]),
               ("S1.top:infinity_unfound", "S1.top:nan_largest"))
    yield Case("ties", "equal maxima: within eight neighbours, across threads, warps and rounds of a block; all equal", ties, ("S1.top:ties_last",))
    yield Case("signed_zero", "-0 before +0 and after it, among negative logits", signed_zero, ("S1.top:by_bits", "S1.top:ties_last"))
    yield Case("nan", "a NaN of any sign and payload first, inside or last, beside +inf, below the maximum's place and after it", nan,
               ("S1.top:nan_skipped", "S1.top:nan_largest"))
    yield Case("infinite", "+inf twice; nothing but -inf", lambda: rows([[1, np.inf, 2, np.inf] * 4, [-np.inf] * 16]), ("S1.top:infinity_unfound",))
    yield Case("patterns", "every bit pattern alike", lambda: {"x": patterns(1, (64, 24))})
    yield Case("last", "the maximum is the last logit of 9,000, or the first", last)
    for n in (2, 7, 8, 9, 255, 1032, 8200, 16392):
        yield Case(f"ragged_{n}", f"rows of {n}: threads without a logit, a last round cut short, or rows off the 16-byte grid",
                   lambda n=n: {"x": ordinary(n, (3, n))})
    yield Case("vocabulary", "32 rows of 163,840 logits, of which many are equal", lambda: {"x": ordinary(2, (32, 163840), 4.0)}, large=True)


def rows(numbers: list[list[float]]) -> dict:
    return {"x": values(numbers)}


def ties() -> dict:
    x = ordinary(3, (8, 20000))
    for row, places in enumerate(([3, 5], [7, 8], [255, 256], [1023, 1024], [8191, 8192], [19999, 19], [6000, 14000, 14001])):
        x[row, places] = 9
    x[7] = -2
    return {"x": x}


def signed_zero() -> dict:
    x = np.full((4, 9000), -1, np.float32)
    x[0, [2, 5]], x[1, [2, 5]], x[2, [100, 8500]], x[3] = (-0.0, 0.0), (0.0, -0.0), (-0.0, 0.0), -0.0
    x[3, 1] = 0
    return {"x": x.astype(values(0).dtype)}


def nan() -> dict:
    x = ordinary(4, (10, 9000))
    x[np.arange(8), [0, 4500, 8999, 12, 8999, 8, 7, 8192]] = from_bits([0x7FC0, 0xFFC1, 0x7F81, 0xFFFF, 0x7FFF, 0xFF81, 0x7FC0, 0xFFC0])
    x[3, [11, 13]], x[5, 9], x[8] = np.inf, 9, np.nan
    return {"x": x}


def last() -> dict:
    x = ordinary(5, (2, 9000))
    x[0, -1] = x[1, 0] = 9
    return {"x": x}


def pool(seed: int) -> dict:
    """Rows of few different values, zeros of both signs among them."""
    kinds = from_bits([0x8000, 0x0000, 0xBF80, 0xFF80])
    return {"x": kinds[hashed(seed, (64, 40)) % 4]}
