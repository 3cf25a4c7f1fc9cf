"""goldens/floor.json: what was measured, by what, and whether it still is what it was measured for."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np

from references.contract.files import write_whole
from references.contract.kernel import ROOT, Kernel
from references.floor._study import EDGES, Bound, Distribution, beyond, study

PATH = ROOT.parent / "goldens" / "floor.json"
SCHEMA = 1
PART, LEAST = 16, 2  # the gate measures the first of 16 of the seeds again, and two at least
SLACK = 4.0  # a bound this many times what is measured bounds nothing
SHIFT, STEP = 2.0, 0.5  # by chance the quantiles of a part are up to SHIFT times those of the whole, and a STEP more


def entry(name: str, subject: ModuleType, found: Mapping[tuple[str, str], Distribution], seeds: int) -> dict:
    """What the file says of a subject."""
    return {
        "command": f"python -m references floor {name} --record --seeds {seeds}",
        "seeds": seeds,
        "schedules": {kernel: Kernel.load(kernel).version for kernel in subject.KERNELS},
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__},
        "pairs": {pair: asdict(bound) | {"regimes": {r: asdict(one) for (p, r), one in found.items() if p == pair}}
                  for pair, bound in subject.BOUNDS.items()},
    }


def read(path: Path = PATH) -> dict[str, dict]:
    """Entries by subject; none where nothing was recorded. ValueError for a file of another schema."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    if stored.get("schema") != SCHEMA or stored.get("edges") != list(EDGES):
        raise ValueError(f"{path} must be of schema {SCHEMA} with edges {list(EDGES)}, got {stored.get('schema')} with {stored.get('edges')}")
    return stored["subjects"]


def write(entries: Mapping[str, dict], path: Path = PATH) -> None:
    """Replace these subjects' entries, whole or not at all."""
    made = {"schema": SCHEMA, "edges": list(EDGES), "subjects": dict(sorted({**read(path), **entries}.items()))}
    write_whole(path, (json.dumps(made, indent=1) + "\n").encode())


def problems(name: str, subject: ModuleType, recorded: Mapping[str, dict]) -> Iterator[str]:
    """Whether bounds hold on a part of the recorded seeds, that part is like the whole, and the record is of these schedules and bounds."""
    again = f"run python -m references floor {name} --record"
    if name not in recorded:
        yield f"{name}: nothing recorded: {again}"
        return
    kept = recorded[name]
    if kept["schedules"] != {kernel: Kernel.load(kernel).version for kernel in subject.KERNELS}:
        yield f"{name}: recorded of schedules {kept['schedules']}: {again}"
    if {pair: Bound(one["ulp"], one["why"], one["most"]) for pair, one in kept["pairs"].items()} != subject.BOUNDS:
        yield f"{name}: recorded with other bounds: {again}"
        return
    found = study(subject, range(min(max(LEAST, kept["seeds"] // PART), kept["seeds"])))
    yield from (f"{name}: {line}" for line in beyond(subject, found))
    yield from (f"{name}: {line}: {again}" for line in shifted(found, kept))
    yield from (f"{name}: {line}" for line in needless(kept))


def shifted(found: Mapping[tuple[str, str], Distribution], kept: Mapping) -> Iterator[str]:
    """Distributions that are no part of the recorded ones."""
    for pair, one in kept["pairs"].items():
        measured = sorted(regime for of, regime in found if of == pair)
        if measured != sorted(one["regimes"]):
            yield f"{pair}: regimes {', '.join(sorted(one['regimes']))} are recorded, measured are {', '.join(measured)}"
            return
    for (pair, regime), one in found.items():
        whole = kept["pairs"][pair]["regimes"][regime]
        limits = {"max": whole["max"] * (1 + 1e-9), "p90": SHIFT * whole["p90"] + STEP, "median": SHIFT * whole["median"] + STEP}
        for what, limit in limits.items():
            if not getattr(one, what) <= limit:
                yield f"{pair}, {regime}: {what} {getattr(one, what):.3g} ULP, recorded {whole[what]:.3g}"


def needless(kept: Mapping) -> Iterator[str]:
    """Bounds that nothing comes near."""
    for pair, one in kept["pairs"].items():
        largest = max(regime["max"] for regime in one["regimes"].values())
        if largest == 0:
            yield f"{pair}: exact, so it needs no bound: remove it from BOUNDS and compare bits"
        elif one["ulp"] > SLACK * largest:
            yield f"{pair}: the bound of {one['ulp']:g} ULP is more than {SLACK:g} times what is measured ({largest:.3g}): lower it"
