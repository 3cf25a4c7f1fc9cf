"""python -m references floor [SUBJECT ...] [--seeds N] [--record | --mistakes]"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from references.contract.kernel import Kernel
from references.contract.mistakes import Mistake, emulate_with, mistakes
from references.floor import _record
from references.floor._study import beyond, outputs, study, subjects

HEADER = f"{'subject':14} {'pair':28} {'regime':12} {'elements':>10} {'median':>7} {'p90':>7} {'p99':>7} {'p99.99':>7} {'max':>7} {'bound':>6}   ULP"


def main(argv: list[str]) -> int:
    """0 all bounds hold, 1 one does not."""
    parser = argparse.ArgumentParser(prog="python -m references floor", description="How far apart forms, and forms and truth, lie.")
    parser.add_argument("subjects", metavar="SUBJECT", nargs="*", help="all where none is named")
    parser.add_argument("--seeds", type=int, metavar="N", help="inputs drawn of each regime (default: the subject's SEEDS)")
    parser.add_argument("--record", action="store_true", help="write what was measured to goldens/floor.json")
    parser.add_argument("--mistakes", action="store_true", help="plant each mistake that can be made, and say which stay inside the bounds")
    args = parser.parse_args(argv)
    known = subjects()
    for name in args.subjects:
        if name not in known:
            raise ValueError(f"SUBJECT must be one of {', '.join(known)}, got {name!r}")
    if args.seeds is not None and args.seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {args.seeds}")
    chosen = {name: known[name] for name in args.subjects or known}
    if args.mistakes:
        for name, subject in chosen.items():
            print(*planted(name, subject, args.seeds or _record.LEAST), sep="\n")
        return 0
    print(HEADER)
    wrong = [line for name, subject in chosen.items() for line in measured(name, subject, args.seeds or subject.SEEDS, args.record)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


def measured(name: str, subject: ModuleType, seeds: int, record: bool) -> list[str]:
    """Print a subject's table, record it if nothing is wrong with it, and return what is."""
    found = study(subject, range(seeds))
    entry = _record.entry(name, subject, found, seeds)
    print(*table(name, entry), sep="\n", flush=True)
    wrong = [f"{name}: {line}" for line in (*beyond(subject, found), *_record.needless(entry))]
    if record and not wrong:
        _record.write({name: entry})
    return wrong


def table(name: str, entry: Mapping) -> Iterator[str]:
    for pair, kept in entry["pairs"].items():
        for regime, found in kept["regimes"].items():
            numbers = " ".join(f"{found[what]:7.3f}" for what in ("median", "p90", "p99", "p9999", "max"))
            yield f"{name:14} {pair:28} {regime:12} {found['elements']:10,} {numbers} {kept['ulp']:6g}"


def present(subject: ModuleType) -> dict[tuple[str, str], Mistake]:
    """Every mistake that the kernels of a subject can make on its first inputs, by kernel and key."""
    found: dict[tuple[str, str], Mistake] = {}

    def collect(kernel: Kernel, inputs: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
        for mistake in mistakes(kernel, [inputs]):
            found.setdefault((kernel.name, mistake.key), mistake)
        return kernel.outputs(inputs)

    study(subject, range(1), collect)
    return found


def planted(name: str, subject: ModuleType, seeds: int) -> Iterator[str]:
    """Each mistake of each kernel and form, planted alone, with the distance that is largest for its bound, and whether the bound sees it."""
    for (kernel_name, key), mistake in present(subject).items():
        found = study(subject, range(seeds), planting(kernel_name, mistake))
        seen = "leaves" if [*beyond(subject, found)] else "inside"
        _, worst, pair, regime = max((one.max / subject.BOUNDS[pair].ulp, one.max, pair, regime) for (pair, regime), one in found.items())
        yield f"{name:14} {kernel_name + '/' + key:48} {seen} {worst:12.3f} ULP ({pair}, {regime})"


def planting(kernel_name: str, mistake: Mistake):
    """An `emulate` in which one kernel, in one form, makes a mistake."""

    def emulate(kernel: Kernel, inputs: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
        mine = kernel.name == kernel_name and kernel.schedule_of(inputs) == mistake.schedule
        return emulate_with(kernel, mistake, inputs) if mine else outputs(kernel, inputs)

    return emulate
