"""Why a launch differs from its golden: which of emulator, device and golden agree, where the schedule parts, which mistake gives these bits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.compare import Difference, Row, compare_all
from conformance.message import ALL_DIFFER, BOTH_CHANGED, KERNEL_CHANGED, Finding, Run, arrays
from goldens import Golden, make
from goldens.rows import digest_rows, emulate_in_slices, size_along, take
from references.contract import Case, Kernel
from references.contract.mistakes import Mistake, emulate_with, mistakes, moved
from references.contract.signature import BITS

EXPLAINED_SLICES = 64  # of a large case: enough to tell mistakes apart, few enough to emulate each of them

Arrays = Mapping[str, np.ndarray | None]


def emulated(kernel: Kernel, golden: Golden) -> Golden:
    """What the emulator makes now of a small golden's inputs."""
    return make(kernel, Case(golden.case, golden.why, lambda: golden.inputs))


def agrees(golden: Golden, outputs: Arrays) -> bool:
    """Whether these outputs are the golden's, bit for bit; of a large case the digest of every row is."""
    return not (_digests_off(golden, outputs) if golden.large else compare_all(outputs, golden.outputs))


def explain(
    kernel: Kernel, golden: Golden, inputs: Mapping[str, Any], wrong: tuple[str, str, Arrays], runs: list[Run], landings: Mapping, limit: int
) -> Finding:
    """What to say of `wrong` (form, layout, outputs). `landings`: the interior ones that differ, by site."""
    form, layout, got = wrong
    if golden.large:
        emulator = emulate_in_slices(kernel, inputs)
        drift = _digests_off(golden, emulator)
        positions, note = differing_slices(kernel, inputs, got, emulator)
        inputs = take(kernel.signature.inputs, inputs, kernel.independent, positions)
        got, emulator = (take(kernel.signature.outputs, side, kernel.independent, positions) for side in (got, emulator))
        want, differences = emulator, in_place(kernel, compare_all(got, emulator, limit), positions) or drift
    else:
        again = emulated(kernel, golden)
        emulator, want, note = again.outputs, golden.outputs, ""
        drift = compare_all(emulator, want) or compare_all(again.landings, golden.landings)
        differences = compare_all(got, want, limit)
    return Finding(
        kernel.name,
        golden.case,
        golden.why,
        "device",
        f"{form}/{layout}",
        differences,
        verdict(drift, not moved(got, emulator)),
        first_landing(golden, landings, "device"),
        diagnose(kernel, inputs, got) if moved(got, emulator) else [],
        replays(runs, form, layout),
        elsewhere(runs, form, layout),
        note,
        arrays(inputs, device=got, golden=want, emulator=emulator),
    )


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


def diagnose(kernel: Kernel, inputs: Mapping[str, Any], got: Arrays) -> list[str]:
    """Which single mistakes, planted in the emulator on these inputs, give exactly these bits."""
    present = mistakes(kernel, [inputs])
    same = reproducing(kernel, inputs, got, present)
    if not same:
        return [f"none of the {len(present)} single mistakes that can be planted on this case gives the device's bits"]
    if len(same) == 1:
        return [f"the device's bits are those of {same[0].sentence}"]
    return ["the device's bits are those of each of these, which this case cannot tell apart:", *(mistake.sentence for mistake in same)]


def reproducing(kernel: Kernel, inputs: Mapping[str, Any], got: Arrays, present: Sequence[Mistake]) -> list[Mistake]:
    """Those of `present` whose outputs are `got`."""
    return [mistake for mistake in present if not moved(emulate_with(kernel, mistake, inputs), got)]


def verdict(drift: Sequence[Difference], device_is_emulator: bool | None) -> str:
    """`drift`: how the emulator differs from the golden; the device does in any case."""
    if not drift:
        return KERNEL_CHANGED
    return BOTH_CHANGED if device_is_emulator else ALL_DIFFER


def tags(golden: Golden) -> dict[str, int]:
    """The landings in the order of the schedule, with the number of their tag: a loop may visit a later one first."""
    numbers = {site: int(re.match(r"S(\d+)", site)[1]) for site in golden.landings}
    return dict(sorted(numbers.items(), key=lambda item: item[1]))


def first_landing(golden: Golden, differing: Mapping[str, Difference], got: str) -> str:
    """In the order of the schedule; a large case keeps no landings."""
    sites = list(tags(golden))
    for site in sites:
        if site in differing:
            return f"{site} is the first landing that differs: {differing[site].headline(got).removeprefix(site).lstrip(': ')}"
    before = f"; {', '.join(sites[:-1])} before it exact" if sites[:-1] else ""
    return f"{sites[-1]}, which lands the result, is the first landing that differs{before}" if sites else ""


def replays(runs: Sequence[Run], form: str, layout: str) -> str:
    mine = [run for run in runs if (run.form, run.layout) == (form, layout)]
    moving = sum(not run.steady for run in mine)
    return f"{moving} of {len(mine)} differ from the first -> a RACE" if moving else f"{len(mine)} of {len(mine)} identical"


def elsewhere(runs: Sequence[Run], form: str, layout: str) -> str:
    """How the other forms and layouts did: one that is exact says where to look."""
    places = dict.fromkeys((run.form, run.layout) for run in runs)
    exact = {place: all(run.exact for run in runs if (run.form, run.layout) == place) for place in places if place != (form, layout)}
    groups = {"differ too": [place for place, fine in exact.items() if not fine], "exact": [place for place, fine in exact.items() if fine]}
    return "; ".join(f"{word}: {', '.join(map('/'.join, listed))}" for word, listed in groups.items() if listed)
