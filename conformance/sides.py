"""What a message shows of device, golden and emulator: a small case whole, of a large one the slices that differ or those that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.compare import Difference, Row, compare_all
from goldens import Golden
from goldens.rows import digest_rows, emulate_in_slices, size_along, take
from goldens.store import as_case, emulated
from references.contract import Kernel
from references.contract.mistakes import moved
from references.contract.signature import BITS

EXPLAINED_SLICES = 64  # of a large case: enough to tell mistakes apart, few enough to emulate each of them

Arrays = Mapping[str, np.ndarray | None]


@dataclass(frozen=True)
class Sides:
    """Inputs, and outputs by side, of the slices that are shown.

    differences: how the device differs from the golden
    drift:       how the emulator does
    alike:       whether device and emulator agree, in every slice
    note:        which slices of a large case these are
    """

    inputs: Mapping[str, Any]
    device: Arrays
    golden: Arrays
    emulator: Arrays
    differences: list[Difference]
    drift: list[Difference]
    alike: bool
    note: str = ""


def agrees(golden: Golden, outputs: Arrays) -> bool:
    """Whether these outputs are the golden's, bit for bit; of a large case the digest of every row is."""
    return not (_digests_off(golden, outputs) if golden.large else compare_all(outputs, golden.outputs))


def sides(kernel: Kernel, golden: Golden, inputs: Mapping[str, Any], got: Arrays, limit: int) -> Sides:
    """`got`: the device's outputs, which are not the golden's; `limit`: rows kept of each difference."""
    return (_large if golden.large else _small)(kernel, golden, inputs, got, limit)


def _small(kernel: Kernel, golden: Golden, inputs: Mapping[str, Any], got: Arrays, limit: int) -> Sides:
    again = emulated(kernel, as_case(golden))
    drift = compare_all(again.outputs, golden.outputs) or compare_all(again.landings, golden.landings)
    differences = compare_all(got, golden.outputs, limit)
    return Sides(inputs, got, golden.outputs, again.outputs, differences, drift, not moved(got, again.outputs))


def _large(kernel: Kernel, golden: Golden, inputs: Mapping[str, Any], got: Arrays, limit: int) -> Sides:
    """An emulator that is still the golden stands for it, in the slices that differ; else the golden's own samples are all there is of it."""
    emulator = emulate_in_slices(kernel, inputs)
    drift, alike = _digests_off(golden, emulator), not moved(got, emulator)
    positions, note = sampled_slices(kernel, golden, inputs) if drift else differing_slices(kernel, inputs, got, emulator)
    inputs = take(kernel.signature.inputs, inputs, kernel.independent, positions)
    device, emulator = (take(kernel.signature.outputs, side, kernel.independent, positions) for side in (got, emulator))
    want = golden.samples if drift else emulator
    shown = {one.name: one for one in in_place(kernel, compare_all(device, want, limit), positions)}
    differences = {one.name: one for one in _digests_off(golden, got)} | shown
    return Sides(inputs, device, want, emulator, list(differences.values()), drift, alike, note)


def _digests_off(golden: Golden, outputs: Arrays) -> list[Difference]:
    """A large case has no golden elements, so what is known is which rows differ."""
    found = {name: _rows_off(outputs[name], want) for name, want in golden.digests.items()}
    return [Difference(name, "", 0, problem) for name, problem in found.items() if problem]


def _rows_off(output: np.ndarray | None, digests: np.ndarray | None) -> str:
    if output is None or digests is None:
        return "" if output is digests else "written on one side only"
    if len(output) != len(digests):
        return f"{len(output)} rows, golden {len(digests)}"
    rows = np.flatnonzero(digest_rows(output) != digests)
    return f"{rows.size:,} of {len(digests):,} rows are not the golden's, the first is row {rows[0]}" if rows.size else ""


def sampled_slices(kernel: Kernel, golden: Golden, inputs: Mapping[str, Any]) -> tuple[np.ndarray, str]:
    """Positions of the slices that a large golden keeps, as far as these inputs go; a sentence."""
    size = size_along(kernel, inputs)
    positions = golden.positions[golden.positions < size]
    listed = ", ".join(map(str, positions))
    return positions, f"the golden keeps {positions.size} of {size:,} along {kernel.independent}; the rest of this message is about them: {listed}"


def differing_slices(kernel: Kernel, inputs: Mapping[str, Any], got: Arrays, want: Arrays) -> tuple[np.ndarray, str]:
    """Positions of the first slices that differ, along the size that keeps results apart (the first of all where none does); a sentence."""
    dim = kernel.independent
    differs = np.zeros(size_along(kernel, inputs), bool)
    for operand in kernel.signature.outputs:
        a, b = got[operand.name], want[operand.name]
        if dim in operand.dims and a is not None and b is not None:
            view = BITS[a.itemsize]
            unequal = np.moveaxis(a.view(view) != b.view(view), operand.dims.index(dim), 0)
            differs |= unequal.reshape(len(differs), -1).any(axis=1)
    count = np.count_nonzero(differs)
    positions = np.flatnonzero(differs)[:EXPLAINED_SLICES] if count else np.arange(min(len(differs), EXPLAINED_SLICES))
    listed = ", ".join(map(str, positions[:6])) + (", ..." if positions.size > 6 else "")
    return positions, f"{count:,} of {len(differs):,} along {dim} differ; the rest of this message is about {positions.size} of them: {listed}"


def in_place(kernel: Kernel, differences: Sequence[Difference], positions: np.ndarray) -> list[Difference]:
    """Indices counted in the whole array, not in the slices that were compared."""
    axes = {o.name: o.dims.index(kernel.independent) for o in kernel.signature.outputs if kernel.independent in o.dims}

    def move(row: Row, axis: int) -> Row:
        return replace(row, index=(*row.index[:axis], int(positions[row.index[axis]]), *row.index[axis + 1 :]))

    return [replace(d, rows=tuple(move(row, axes[d.name]) for row in d.rows)) if d.name in axes else d for d in differences]
