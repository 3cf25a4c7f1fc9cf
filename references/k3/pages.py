"""Pages of 64 cached rows: which slot owns which, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from references.k3.config import PAGE

UNMAPPED = -1


class Pages:
    """A pool of pages and a table row for each slot, unmapped where it owns none.

    free: the order in which pages are handed out, each of the pool once; ascending where it is not given.
    """

    def __init__(self, slots: int, pages: int, pool: int, free: Sequence[int] | None = None):
        self.pool = pool
        self.free = list(range(pool) if free is None else free)
        if sorted(self.free) != list(range(pool)):
            raise ValueError(f"free must hold each of {pool} pages once, got {self.free}")
        self.table = np.full((slots, pages), UNMAPPED, np.int32)
        self.length = np.zeros(slots, np.int32)  # rows of each slot

    def check(self, rows: Mapping[int, int]) -> None:
        """ValueError, with nothing changed, where the tables or the pool have no room for so many more rows of each slot."""
        for slot, count in rows.items():
            if self._needed(slot, count) > self.table.shape[1]:
                raise ValueError(f"rows must fit the {self.table.shape[1]} pages of slot {slot}, got {self.length[slot]} + {count}")
        more = sum(self._needed(slot, count) - self._held(slot) for slot, count in rows.items())
        if more > len(self.free):
            raise ValueError(f"rows of slots {sorted(rows)} need {more} more pages, {len(self.free)} of {self.pool} are free")

    def append(self, slot: int, rows: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Page and row in it, int64 [rows] each, of the slot's next rows. ValueError as of `check`."""
        self.check({slot: rows})
        at = self.length[slot] + np.arange(rows)
        for logical in range(self._held(slot), self._needed(slot, rows)):
            self.table[slot, logical] = self.free.pop(0)
        self.length[slot] += rows
        return self.table[slot, at // PAGE].astype(np.int64), (at % PAGE).astype(np.int64)

    def shorten(self, slot: int, rows: int) -> None:
        """Keep only so many of the slot's rows. Pages left empty go to the front of the pool, which is then as if the others had never been."""
        first, held = -(-rows // PAGE), self._held(slot)
        self.free[:0] = [int(page) for page in self.table[slot, first:held]]
        self.table[slot, first:held] = UNMAPPED
        self.length[slot] = rows

    def _needed(self, slot: int, rows: int) -> int:
        return -(-(int(self.length[slot]) + rows) // PAGE)

    def _held(self, slot: int) -> int:
        return int(np.count_nonzero(self.table[slot] != UNMAPPED))

    def release(self, slot: int) -> None:
        self.free += [int(page) for page in self.table[slot] if page != UNMAPPED]
        self.table[slot], self.length[slot] = UNMAPPED, 0
