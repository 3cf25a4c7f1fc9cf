"""The search for inputs that show every mistake. Random inputs see a quarter of them; a few dozen kept slices see all.

Along a kernel's independent size results do not influence each other, so a batch of candidates is emulated at once and only the slices
that show something are kept. Together they are the inputs of the case `searched`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from goldens.files import GoldenError
from goldens.rows import take
from goldens.store import Golden, searched
from references.contract import Case, Kernel
from references.contract.mistakes import Mistake, emulate_with, mistakes, moved
from references.contract.signature import BITS

SEEDS = 64
VECTOR = 8  # bf16 elements of a 16-byte access


@dataclass(frozen=True)
class Found:
    """name: of the case; inputs: the kept slices side by side, None where nothing had to be kept; shown, unseen: mistakes by key."""

    name: str
    inputs: dict[str, Any] | None
    shown: tuple[str, ...]
    unseen: tuple[str, ...]

    @property
    def case(self) -> Case:
        why = f"slices found by search, which show {len(self.shown)} mistakes that no other case shows"
        return Case(self.name, why, lambda: self.inputs, self.shown)


def possible(kernel: Kernel, goldens: Iterable[Golden], more: Iterable[Mapping[str, Any]] = ()) -> dict[str, Mistake]:
    """Every mistake that can be made on the inputs of these goldens' small cases, and on `more`, by key."""
    return {mistake.key: mistake for mistake in mistakes(kernel, [*(golden.inputs for golden in smallest_first(goldens)), *more])}


def unshown(kernel: Kernel, goldens: Iterable[Golden], more: Iterable[Mapping[str, Any]] = ()) -> dict[str, Mistake]:
    """Those that move the outputs of none of the goldens."""
    small = smallest_first(goldens)
    found = possible(kernel, small, more)
    return {key: mistake for key, mistake in found.items() if not any(shows(kernel, golden, mistake) for golden in small)}


def shows(kernel: Kernel, golden: Golden, mistake: Mistake) -> bool:
    """Whether the golden moves under a mistake; one of another form's schedule does not."""
    return kernel.schedule_of(golden.inputs) == mistake.schedule and moved(emulate_with(kernel, mistake, golden.inputs), golden.outputs)


def smallest_first(goldens: Iterable[Golden]) -> list[Golden]:
    """The small cases, the fastest to emulate first."""
    return sorted((golden for golden in goldens if not golden.large), key=lambda golden: sum(map(np.size, golden.inputs.values())))


def search(kernel: Kernel, goldens: Iterable[Golden], seeds: int = SEEDS, say: Callable[[str], None] = print, schedule: str = "") -> Found:
    """Go through pool(0), pool(1), ... until every mistake of a schedule is shown that is not blind, keeping the slices that show new ones."""
    first, name = kernel.pool(0, schedule), searched(kernel)[schedule]
    mine = [golden for golden in goldens if golden.case != name and not golden.large and kernel.schedule_of(golden.inputs) == schedule]
    unseen = unshown(kernel, mine, [first])
    kept: list[dict[str, Any]] = []
    shown: list[str] = []
    for seed in range(seeds):
        if not _left(kernel, unseen):
            break
        inputs = kernel.pool(seed, schedule)
        _assert_shared(kernel, first, inputs)
        picked = fewest(showing(kernel, inputs, unseen.values()))
        kept += [take(kernel.signature.inputs, inputs, kernel.independent, [position]) for position, _ in picked]
        new = [key for _, keys in picked for key in keys]
        shown += new
        unseen = {key: mistake for key, mistake in unseen.items() if key not in new}
        if new:
            say(f"{kernel.name}: pool({seed}): {len(picked)} slices show {len(new)} more mistakes, {len(_left(kernel, unseen))} left")
    return Found(name, _narrowed(kernel, _joined(kernel, kept), shown) if kept else None, tuple(shown), _left(kernel, unseen))


def _left(kernel: Kernel, unseen: Mapping[str, Mistake]) -> tuple[str, ...]:
    return tuple(key for key, mistake in unseen.items() if not mistake.among(kernel.blind))


def _narrowed(kernel: Kernel, inputs: dict[str, Any], shown: Iterable[str]) -> dict[str, Any]:
    """Of the kernel's other independent sizes, the fewest slices that still show the same."""
    for dim in kernel.independents[1:]:
        planted = [mistake for mistake in mistakes(kernel, [inputs]) if mistake.key in shown]
        picked = fewest(showing(kernel, inputs, planted, dim))
        inputs = take(kernel.signature.inputs, inputs, dim, sorted(position for position, _ in picked))
    return inputs


def showing(kernel: Kernel, inputs: Mapping[str, Any], planted: Iterable[Mistake], dim: str = "") -> dict[str, np.ndarray]:
    """For each mistake, which slices along an independent size (the first) move under it: bool [size]."""
    dim, clean = dim or kernel.independent, kernel.outputs(inputs)
    size = kernel.signature.check(inputs)[dim]
    return {mistake.key: _moved_slices(kernel, emulate_with(kernel, mistake, inputs), clean, dim, size) for mistake in planted}


def _moved_slices(kernel: Kernel, got: Mapping, want: Mapping, dim: str, size: int) -> np.ndarray:
    moves = np.zeros(size, bool)
    for operand in kernel.signature.outputs:
        a, b = got[operand.name], want[operand.name]
        if a is not None and b is not None:
            differ = a.view(BITS[a.itemsize]) != b.view(BITS[b.itemsize])
            moves |= np.moveaxis(differ, operand.dims.index(dim), 0).reshape(size, -1).any(axis=1)
    return moves


def fewest(shown: Mapping[str, np.ndarray]) -> list[tuple[int, list[str]]]:
    """Greedily, (position, mistakes it is kept for): the slice that shows most of what is left, the lowest among equals."""
    left = {key: slices for key, slices in shown.items() if slices.any()}
    picked = []
    while left:
        best = int(np.argmax(np.sum(list(left.values()), axis=0)))
        keys = [key for key, slices in left.items() if slices[best]]
        picked.append((best, keys))
        left = {key: slices for key, slices in left.items() if key not in keys}
    return picked


def _joined(kernel: Kernel, kept: list[dict[str, Any]]) -> dict[str, Any]:
    """Kept slices side by side. Where they are columns, some repeat to fill a vector, or the current form would take its scalar path."""
    dim = kernel.independent
    if kernel.signature.outputs[0].dims[-1] == dim:
        kept = [*kept, *(kept[i % len(kept)] for i in range(-len(kept) % VECTOR))]
    joined = dict(kept[0])
    for operand in kernel.signature.inputs:
        if operand.axis(dim) is not None:
            joined[operand.name] = np.concatenate([one[operand.name] for one in kept], operand.axis(dim))
    return joined


def _assert_shared(kernel: Kernel, first: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Slices of different seeds lie side by side, so what they share must be the same for every seed."""
    for operand in kernel.signature.inputs:
        if operand.axis(kernel.independent) is None and np.asarray(first[operand.name]).tobytes() != np.asarray(inputs[operand.name]).tobytes():
            raise GoldenError(f"{kernel.name}: pool(seed) must give the same {operand.name} for every seed: it has no axis {kernel.independent}")

