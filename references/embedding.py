"""embedding: the rows of a table that tokens name.

    ids i32 [b], table bf16 [vocab, h] -> o bf16 [b, h]

S1  o = table[id]. Nothing is computed: every bit is kept, a NaN's payload too. An id outside the table is refused.

Current form: 16-byte loads and stores, four a thread; the retired form where a row is not 16-byte aligned. Retired: one element a thread.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import select
from references.contract import Case, schedule
from references.contract.inputs import BF16, patterns

INDEPENDENT = "b"
BENCH = ({"b": 16896, "vocab": 16896, "h": 7168},)


def bench_inputs(sizes) -> dict:
    """Each row of the table once, out of order: 7919 shares no factor with the vocabulary."""
    return {"ids": (np.arange(sizes["b"]) * 7919 % sizes["vocab"]).astype(np.int32)}


def refuse(ids: np.ndarray, table: np.ndarray) -> None:
    """ValueError unless every id names a row of the table."""
    wrong = (ids < 0) | (ids >= len(table))
    if wrong.any():
        raise ValueError(f"ids must be 0 .. {len(table) - 1}, got {ids[wrong][0]} in row {np.flatnonzero(wrong)[0]}")


@schedule("ids: i32[b], table: bf16[vocab, h] -> o: bf16[b, h]", version=1, requires=("vocab >= 1", "h >= 1"), raw=("table",), refuse=refuse)
def emulate(ids, table):
    return select(table, ids)  # S1


def cases() -> Iterator[Case]:
    yield Case("ends", "the first and the last row of the table", lambda: embed([0, 4, 4, 0, 2], 5, 64), ("S1.select:early", "S1.select:late"))
    yield Case("one_row", "a table of one row", lambda: embed([0, 0], 1, 8))
    yield Case("hidden", "rows of the hidden size 7168", lambda: embed([2, 0], 3, 7168))
    for h, why in ((1, "one column"), (37, "an odd width"), (264, "a block past its columns"), (4104, "a second block, one thread of it used")):
        yield Case(f"ragged_{h}", why, lambda h=h: embed([1, 2, 0], 3, h))
    yield Case("far", "a row 2.1e9 elements into the table: the offset needs more than 32 bits", far, large=True)


def embed(ids: list[int], vocab: int, h: int) -> dict:
    return {"ids": np.array(ids, np.int32), "table": patterns(h, (vocab, h))}


def far() -> dict:
    """Row 299,999 of 300,000 lies behind 2^31 elements; what wraps at 32 bits finds other values or the zeros between."""
    table = np.zeros((300000, 7168), BF16)  # untouched memory costs nothing
    for row in (0, 406, 299592, 299999):
        table[row] = patterns(row, (7168,))
    return {"ids": np.array([299999, 0, 299592, 406], np.int32), "table": table}


def pool(seed: int) -> dict:
    return embed([seed % 5, 4, 0, 2], 5, 8)
