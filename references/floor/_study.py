"""Distributions of deviations: drawn, gathered, described."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from references.contract.kernel import Kernel
from references.floor._distance import distances

EDGES = (0.0, *(2.0**k for k in range(-4, 7)))  # buckets end there; the first holds equal elements, one more what is beyond
Emulate = Callable[[Kernel, Mapping[str, Any]], dict[str, np.ndarray | None]]


@dataclass(frozen=True)
class Bound:
    """How far the elements of a pair may lie apart.

    ulp:  all but one in 10,000, in every regime
    why:  what makes the two differ at all, and so far
    most: any element; `ulp` unless said
    """

    ulp: float
    why: str
    most: float = 0.0

    @property
    def largest(self) -> float:
        return self.most or self.ulp


@dataclass(frozen=True)
class Deviation:
    """One comparison. regime: what the inputs are like; got: bf16 or f32, rows on the last axis; want: the same, or f64 truth."""

    pair: str
    regime: str
    got: np.ndarray
    want: np.ndarray


@dataclass(frozen=True)
class Distribution:
    """Of all distances of a pair in a regime, in ULP. histogram: elements in the buckets that EDGES end, and beyond."""

    elements: int
    median: float
    p90: float
    p99: float
    p9999: float
    max: float
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, apart: np.ndarray) -> Distribution:
        quantiles = (float(np.quantile(apart, q, method="higher")) for q in (0.5, 0.9, 0.99, 0.9999))
        counts = np.bincount(np.searchsorted(EDGES, apart, "left"), minlength=len(EDGES) + 1)
        return cls(apart.size, *quantiles, float(apart.max()), tuple(map(int, counts)))


def subjects() -> dict[str, ModuleType]:
    """Every subject by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    return {name: importlib.import_module(f"references.floor.{name}") for name in names}


def outputs(kernel: Kernel, inputs: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
    return kernel.outputs(inputs)


def study(subject: ModuleType, seeds: Iterable[int], emulate: Emulate = outputs) -> dict[tuple[str, str], Distribution]:
    """Distribution by (pair, regime) over these seeds. ValueError for a pair that has no bound, or a bound that no pair has."""
    apart: dict[tuple[str, str], list[np.ndarray]] = {}
    for seed in seeds:
        for one in subject.deviations(seed, emulate):
            apart.setdefault((one.pair, one.regime), []).append(distances(one.got, one.want).reshape(-1))
    pairs = {pair for pair, _ in apart}
    if pairs != subject.BOUNDS.keys():
        raise ValueError(f"BOUNDS must be of the pairs {', '.join(sorted(pairs))}, got {', '.join(subject.BOUNDS)}")
    return {key: Distribution.of(np.concatenate(parts)) for key, parts in apart.items()}


def beyond(subject: ModuleType, found: Mapping[tuple[str, str], Distribution]) -> Iterator[str]:
    """Pairs that leave their bound, a line each."""
    for (pair, regime), one in found.items():
        bound = subject.BOUNDS[pair]
        for got, limit, what in ((one.p9999, bound.ulp, "one in 10,000 elements is"), (one.max, bound.largest, "an element is")):
            if not got <= limit:
                yield f"{pair}, {regime}: {what} {got:.3g} ULP off, at most {limit:g} are allowed (median {one.median:.3g}, p90 {one.p90:.3g})"
