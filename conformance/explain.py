"""Why a launch differs from its golden: which of emulator, device and golden agree, where the schedule parts, which mistake gives these bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.compare import Difference
from conformance.landings import first_landing, last_landing
from conformance.message import ALL_DIFFER, BOTH_CHANGED, KERNEL_CHANGED, Finding, Run, arrays
from conformance.sides import Arrays, sides
from goldens import Golden
from references.contract import Kernel
from references.contract.mistakes import Mistake, emulate_with, mistakes, moved


def explain(
    kernel: Kernel, golden: Golden, inputs: Mapping[str, Any], wrong: tuple[str, str, Arrays], runs: list[Run], landings: Mapping, limit: int
) -> Finding:
    """What to say of `wrong` (form, layout, outputs). `landings`: the interior ones that differ, by site, in the order of the schedule."""
    form, layout, got = wrong
    of = sides(kernel, golden, inputs, got, limit)
    shown, differing = of.differences, list(landings.values())
    first, landed = first_landing(differing, shown[0], "device") if differing else last_landing(golden, shown)
    return Finding(
        kernel=kernel.name,
        case=golden.case,
        why=golden.why,
        got="device",
        place=f"{form}/{layout}",
        differences=shown,
        verdict=verdict(of.drift, of.alike),
        first=first,
        landed=landed,
        diagnosis=diagnose(kernel, of.inputs, of.device) if moved(of.device, of.emulator) else [],
        replays=replays(runs, form, layout),
        elsewhere=elsewhere(runs, form, layout),
        note=of.note,
        raised=raised(kernel, golden),
        arrays=arrays(of.inputs, device=of.device, golden=of.golden, emulator=of.emulator),
    )


def diagnose(kernel: Kernel, inputs: Mapping[str, Any], bits: Arrays, whose: str = "device") -> list[str]:
    """Which single mistakes, planted in the emulator on these inputs, give exactly these bits. Those that give the golden's undo what changed."""
    present = mistakes(kernel, [inputs])
    same = reproducing(kernel, inputs, bits, present)
    if not same:
        return [f"none of the {len(present)} single mistakes that can be planted on this case gives the {whose}'s bits"]
    said = f"the {whose}'s bits are those of" + (" this emulator with" if whose == "golden" else "")
    if len(same) == 1:
        return [f"{said} {same[0].sentence}"]
    return [f"{said} each of these, which this case cannot tell apart:", *(mistake.sentence for mistake in same)]


def reproducing(kernel: Kernel, inputs: Mapping[str, Any], got: Arrays, present: Sequence[Mistake]) -> list[Mistake]:
    """Those of `present` whose outputs are `got`."""
    return [mistake for mistake in present if not moved(emulate_with(kernel, mistake, inputs), got)]


def verdict(drift: Sequence[Difference], device_is_emulator: bool | None) -> str:
    """`drift`: how the emulator differs from the golden; the device does in any case."""
    if not drift:
        return KERNEL_CHANGED
    return BOTH_CHANGED if device_is_emulator else ALL_DIFFER


def raised(kernel: Kernel, golden: Golden) -> bool:
    """Whether the schedule's version is above that of the golden: it is meant to change."""
    return kernel.version > golden.version


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
