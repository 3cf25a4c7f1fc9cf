"""The gate: one golden against the emulator, or against a launched kernel, and all that a reader needs to know where it is not exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from conformance.compare import Difference, compare, compare_all
from conformance.explain import diagnose, explain, raised, verdict
from conformance.landings import compare_landings, first_landing, tags
from conformance.message import EMULATOR_CHANGED, Finding, Run, arrays
from conformance.sides import agrees, in_place, sampled_slices
from goldens import Golden, inputs_of
from goldens.rows import take
from goldens.store import as_case, emulated
from references.contract import Kernel
from references.contract.mistakes import moved


class Prepared(Protocol):
    """A kernel with its inputs in place: what `kernels_cuda.launch.Prepared` is, and what a test can stand in for."""

    def run(self, form: str) -> Any:
        """Outputs by name (None where unwritten) in `.outputs`; of a trace build, landings by number of schedule tag in `.landings`."""


Prepare = Callable[[Mapping[str, Any], str, Mapping[int, np.ndarray]], Prepared]  # inputs, layout, arrays like the landings to trace


# The emulator lane


def check_emulator(kernel: Kernel, golden: Golden, limit: int = 8, diagnosed: set[str] | None = None) -> Finding | None:
    """Every landing and output of a small case; the sampled slices of a large one.

    `diagnosed`: kernels of which no more cases are to be diagnosed, since that takes time; this one joins them where a case of it is. None: none is.
    """
    inputs, landings, note = inputs_of(kernel, golden), [], ""
    if golden.large:
        positions, note = sampled_slices(kernel, golden, inputs)
        inputs = take(kernel.signature.inputs, inputs, kernel.independent, positions)
        got, want = kernel.outputs(inputs), golden.samples
        differences = in_place(kernel, compare_all(got, want, limit), positions)
    else:
        again = emulated(kernel, as_case(golden))
        got, want = again.outputs, golden.outputs
        landings = compare_landings(again.landings, golden.landings, limit)
        differences = compare_all(got, want, limit) or landings
    if not differences:
        return None
    none_differs = "", ["no landing differs"] if golden.landings else []
    first, landed = first_landing(landings, differences[0], "emulator") if landings else none_differs
    diagnosis = []
    if diagnosed is not None and kernel.name not in diagnosed and moved(got, want):
        diagnosed.add(kernel.name)
        diagnosis = diagnose(kernel, inputs, want, "golden")
    return Finding(kernel.name, golden.case, golden.why, "emulator", "", differences, EMULATOR_CHANGED, first, landed, diagnosis,
                   note=note, raised=raised(kernel, golden), arrays=arrays(inputs, emulator=got, golden=want))


# The device lane


def check_device(
    kernel: Kernel, golden: Golden, prepare: Prepare, trace: Prepare | None, layouts: Sequence[str], replays: int = 3, limit: int = 8
) -> Finding | None:
    """Every form that this golden is of, in every layout, `replays` times, then the interior landings of the trace build. None where all is exact."""
    inputs = inputs_of(kernel, golden)
    runs, wrong = [], None
    for layout in layouts:
        prepared = prepare(inputs, layout, {})
        for form in kernel.forms_for(inputs):
            first = None
            for _ in range(replays):
                outputs = prepared.run(form).outputs
                first = outputs if first is None else first
                runs.append(Run(form, layout, agrees(golden, outputs), first is outputs or not moved(outputs, first)))
                if not runs[-1].exact and wrong is None:
                    wrong = form, layout, outputs
    landings = _traced(kernel, golden, trace, wrong[1] if wrong else "aligned", limit) if trace and not golden.large else {}
    if wrong is not None:
        return explain(kernel, golden, inputs, wrong, runs, landings.get(wrong[0], {}), limit)
    for form, differing in landings.items():
        if differing:
            drift = compare_all(emulated(kernel, as_case(golden)).landings, golden.landings)
            found = list(differing.values())
            first, landed = first_landing(found, found[0], "device")
            return Finding(kernel.name, golden.case, golden.why, "device", f"{form}/trace", found, verdict(drift, None), first, landed,
                           raised=raised(kernel, golden))
    return None


def interior(golden: Golden) -> dict[str, int]:
    """The landings that do not leave the kernel, with the number of their schedule tag: all but the last, if an output is of its type."""
    inside = tags(golden)
    types = {output.dtype for output in golden.outputs.values() if output is not None}
    return {site: tag for site, tag in inside.items() if site != [*inside][-1] or golden.landings[site].dtype not in types}


def _traced(kernel: Kernel, golden: Golden, trace: Prepare, layout: str, limit: int) -> dict[str, dict[str, Difference]]:
    """Per form, the interior landings that differ; one that the kernel never stores keeps its poison, and so differs."""
    inside = interior(golden)
    if not inside:
        return {}
    found: dict[str, dict[str, Difference]] = {}
    prepared = trace(golden.inputs, layout, {tag: golden.landings[site] for site, tag in inside.items()})
    for form in kernel.forms_for(golden.inputs):
        got = prepared.run(form).landings
        compared = {site: compare(site, got[tag], golden.landings[site], limit) for site, tag in inside.items()}
        found[form] = {site: difference for site, difference in compared.items() if difference}
    return found
