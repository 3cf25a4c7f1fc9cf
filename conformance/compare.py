"""The one comparator: bits, not values. `==` and `allclose` pass -0 for +0 and one NaN for another; nothing here does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from references.arith.bits import NAN_DISTANCE, ulp_distance
from references.contract.signature import BITS, DTYPES

KINDS = ("1 ulp", "more ulp", "sign of zero", "NaN payload", "NaN vs number", "finite vs infinite", "value")  # value: of integers
BEYOND = ("", "NaN payload", "NaN vs number", "not comparable")  # what is worse than any distance, the worst last
BF16, F32, E4M3 = (DTYPES[name] for name in ("bf16", "f32", "e4m3"))
FLOATS = {BF16: 7, F32: 23, E4M3: 3}  # dtype -> stored significand bits


@dataclass(frozen=True)
class Row:
    """One element that differs: bit patterns, their distance in ulp or of integers (None where there is none) and the kind of difference."""

    index: tuple[int, ...]
    got: int
    want: int
    ulp: int | None
    kind: str


@dataclass(frozen=True)
class Difference:
    """How one array differs from what it should be.

    problem:   a sentence where elements cannot be compared (shape, dtype, unwritten); then there are no counts
    counts:    elements by kind, in the order of KINDS, none of them 0
    worst:     largest distance between numbers, in ulp; of integers their difference
    histogram: elements by signed power of two of their distance: +3 is 4..7 ulp above, -1 is 1 ulp below, 0 is a zero of the other sign
    rows:      the first few, in index order
    """

    name: str
    dtype: str
    elements: int
    problem: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    worst: int = 0
    histogram: Mapping[int, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    @property
    def severity(self) -> tuple[int, int]:
        """The worse, the larger: an index in BEYOND, 0 where nothing is beyond distances, then the largest distance."""
        found = {"not comparable"} if self.problem else self.counts.keys()
        return max((i for i, kind in enumerate(BEYOND) if kind in found), default=0), self.worst

    @property
    def worst_text(self) -> str:
        """`3 ulp`, of integers `off by 3`, or what is worse than any distance."""
        return BEYOND[self.severity[0]] or (f"{self.worst:,} ulp" if self.floats else f"off by {self.worst:,}")

    @property
    def floats(self) -> bool:
        """Whether distances are in ulp."""
        return self.dtype in {stored.name for stored in FLOATS}

    def headline(self, got: str = "device", want: str = "golden") -> str:
        """One self-sufficient line."""
        return f"{self.name}: {self.problem}" if self.problem else f"{self.name} differs {self.extent(got, want)}"

    def extent(self, got: str = "device", want: str = "golden") -> str:
        """In how many elements, how far, and the first of them."""
        first, worst = self.rows[0], f"worst {self.worst_text}" if self.floats else f"{self.worst_text} at most"
        return (
            f"in {self.count:,} of {self.elements:,} ({share(self.count, self.elements)}), {worst}, first at {list(first.index)}: "
            f"{got} {show(first.got, self.dtype)}, {want} {show(first.want, self.dtype)}"
        )

    def table(self, got: str = "device", want: str = "golden") -> list[str]:
        """The rows, one line each: index, both values, distance, of floats sign|exponent|significand of both."""
        if not self.rows:
            return []
        lines = [("index", got, want, *(("ulp", f"{got} s|exponent|significand", want) if self.floats else ("off by",)))]
        for row in self.rows:
            apart = f"{row.ulp:+,}" if row.ulp else row.kind
            parts = (fields(bits, self.dtype) for bits in (row.got, row.want)) if self.floats else ()
            lines.append((str(list(row.index)), show(row.got, self.dtype), show(row.want, self.dtype), apart, *parts))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def compare(name: str, got: np.ndarray | None, want: np.ndarray | None, limit: int = 8) -> Difference | None:
    """None where `got` has the dtype, shape and bits of `want`. None for an array stands for an output that is left unwritten.

    `limit` is the number of rows kept. Any dtype of the contract: bfloat16, float32, integers.
    """
    if got is None or want is None:
        unwritten = "unwritten, and should be written" if got is None else "written, and should be left alone"
        return None if got is want else _problem(name, got, want, f"{unwritten}")
    if got.dtype != want.dtype:
        return _problem(name, got, want, f"dtype {got.dtype.name}, should be {want.dtype.name}")
    if got.shape != want.shape:
        return _problem(name, got, want, f"shape {list(got.shape)}, should be {list(want.shape)}")
    view = BITS[got.itemsize]
    a, b = np.ascontiguousarray(got).view(view), np.ascontiguousarray(want).view(view)
    where = np.flatnonzero(a != b)
    if not where.size:
        return None
    a, b = a.ravel()[where], b.ravel()[where]
    kinds, ulp = _classify(a, b, got.dtype)
    counts = {kind: int(n) for i, kind in enumerate(KINDS) if (n := np.count_nonzero(kinds == i))}
    near = ulp[ulp != NAN_DISTANCE]
    rows = tuple(
        Row(tuple(int(axis[i]) for axis in np.unravel_index(where[:limit], got.shape)), int(a[i]), int(b[i]), _distance(ulp[i]), KINDS[kinds[i]])
        for i in range(min(limit, where.size))
    )
    return Difference(name, got.dtype.name, got.size, "", counts, int(np.abs(near).max(initial=0)), _histogram(near), rows)


def compare_all(got: Mapping[str, np.ndarray | None], want: Mapping[str, np.ndarray | None], limit: int = 8) -> list[Difference]:
    """Every difference, in the order of `want`. An array on one side only is a difference."""
    names = [*want, *(name for name in got if name not in want)]
    found = (compare(name, got.get(name), want.get(name), limit) for name in names)
    return [difference for difference in found if difference]


def _problem(name: str, got: np.ndarray | None, want: np.ndarray | None, sentence: str) -> Difference:
    present = got if want is None else want
    return Difference(name, present.dtype.name, present.size, sentence)


def _distance(ulp: np.int64) -> int | None:
    return None if ulp == NAN_DISTANCE else int(ulp)


def _classify(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Index in KINDS and signed ulp of each pair of unequal patterns."""
    if dtype not in FLOATS:
        return np.full(a.shape, KINDS.index("value")), a.view(dtype).astype(np.int64) - b.view(dtype).astype(np.int64)
    if dtype == E4M3:
        a, b, dtype = _as_steps(a), _as_steps(b), BF16
    ulp = ulp_distance(a, b, "bf16" if dtype == BF16 else "f32")
    infinity = int(np.array(np.inf, dtype).view(a.dtype))
    size_a, size_b = (x & (2 ** (8 * a.itemsize - 1) - 1) for x in (a, b))
    tests = [
        (size_a > infinity) & (size_b > infinity),
        (size_a > infinity) | (size_b > infinity),
        (size_a == infinity) != (size_b == infinity),
        ulp == 0,
        np.abs(ulp) == 1,
    ]
    names = ("NaN payload", "NaN vs number", "finite vs infinite", "sign of zero", "1 ulp")
    kinds = np.select(tests, [KINDS.index(name) for name in names], KINDS.index("more ulp"))
    return kinds, np.where(tests[0], NAN_DISTANCE, ulp)


def _as_steps(codes: np.ndarray) -> np.ndarray:
    """e4m3 codes as bf16 patterns as many steps apart: subnormal ones, and a NaN for a NaN."""
    size = (codes & 0x7F).astype(np.uint16)
    return (codes.astype(np.uint16) & 0x80) << 8 | np.where(size == 0x7F, np.uint16(0x7FFF), size)


def _histogram(ulp: np.ndarray) -> dict[int, int]:
    exponent = np.frexp(np.abs(ulp).astype(np.float64))[1]
    buckets, counts = np.unique(np.where(ulp < 0, -exponent, exponent), return_counts=True)
    return {int(bucket): int(count) for bucket, count in zip(buckets, counts, strict=True)}


# Text


def share(count: int, total: int) -> str:
    """A percentage that is 0 only for a count of 0 and 100 only for all."""
    percent = 100 * count / max(total, 1)
    if count in (0, total):
        return f"{percent:.0f} %"
    if percent < 0.001 or percent > 99.9:
        return "< 0.001 %" if percent < 1 else "> 99.9 %"
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.1f} %"


def show(bits: int, dtype: str) -> str:
    """`0x3f81 (1.0078125)`."""
    stored = next((d for d in FLOATS if d.name == dtype), None) or np.dtype(dtype)
    value = np.array(bits, BITS[stored.itemsize]).view(stored)
    text = f"{int(value)}" if stored.kind in "iu" else f"{float(value):.9g}"
    return f"0x{bits:0{2 * stored.itemsize}x} ({text})"


def fields(bits: int, dtype: str) -> str:
    """Of a float: `0|01111111|0000001`."""
    stored, significand = next((d, significand) for d, significand in FLOATS.items() if d.name == dtype)
    text = f"{bits:0{8 * stored.itemsize}b}"
    return f"{text[0]}|{text[1:-significand]}|{text[-significand:]}"
