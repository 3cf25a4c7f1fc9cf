"""Cases that the elementwise kernels of two operands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from references.contract import Case
from references.contract.inputs import from_bits, spread

RAGGED = (
    (1, 1, "one element"),
    (5, 37, "an odd width: no two rows share an alignment"),
    (3, 92, "a width of 4s: 46 pairs, only every second row is 16-byte aligned"),
    (17, 264, "rows that are not a multiple of a warp"),
)


def ragged(pair: Callable[[np.ndarray, np.ndarray], dict]) -> Iterator[Case]:
    """Sizes that leave the vector path; `pair` names the operands."""
    for m, n, why in RAGGED:
        yield Case(f"ragged_{m}x{n}", why, lambda m=m, n=n: pair(spread(5, (m, n), -4, 4), spread(6, (m, n), -4, 4)))


def every() -> np.ndarray:
    """All 65,536 bf16 patterns, [16, 4096]."""
    return from_bits(np.arange(65536)).reshape(16, 4096)
