"""Reading goldens with suspicion: manifest, files and cases() must agree, and the emulator must still give every bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from goldens.files import MANIFEST, GoldenError, read_manifest
from goldens.regenerate import changes
from goldens.store import ROOT, as_case, assert_guards, emulated, load, searched
from references.contract import Case, Kernel
from references.contract.kernel import names

NOT_KERNELS = {"hardware", "k3"}  # recorded device results, step fixtures


def problems(kernel: Kernel, root: Path = ROOT, rebuild: bool = False) -> list[str]:
    """What is wrong with a kernel's goldens, one line each; `rebuild` also emulates every case, large ones included."""
    folder = root / kernel.name
    try:
        manifest = read_manifest(folder)
    except GoldenError as error:
        return [str(error)]
    return [*_disagreements(kernel, folder, manifest), *_damage(kernel.name, manifest, root), *(_drift(kernel, manifest, root) if rebuild else ())]


def strangers(root: Path = ROOT) -> list[str]:
    """Folders that belong to no kernel."""
    found = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
    return [f"{root / name} belongs to no kernel of references/: remove it" for name in sorted(found - {*names()} - NOT_KERNELS)]


def _disagreements(kernel: Kernel, folder: Path, manifest: dict) -> Iterator[str]:
    todo = f"run python -m goldens regenerate {kernel.name}"
    if manifest["version"] != kernel.version:
        yield f"{kernel.name}: goldens of schedule version {manifest['version']}, references/{kernel.name}.py has {kernel.version}: {todo}"
    wanted, listed = {case.name: case for case in kernel.cases()}, manifest["cases"]
    known = [*wanted, *searched(kernel).values()]
    for name in wanted:
        if name not in listed and not (folder / f"{name}.npz").exists():
            yield f"{kernel.name}/{name}: no golden: {todo}"
    for name in listed:
        if name not in known:
            yield f"{kernel.name}/{name}: an orphan, cases() has no such case: {todo}"
        elif name in wanted and (wanted[name].why, list(wanted[name].guards)) != (listed[name]["sentence"], listed[name].get("guards")):
            yield f"{kernel.name}/{name}: its sentence or guards are not those of cases(): {todo}"
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST and not (path.suffix == ".npz" and path.stem in listed):
            mine = path.suffix == ".npz" and path.stem in known
            yield f"{path}: {MANIFEST} does not name it: {todo}" if mine else f"{path}: an orphan, {MANIFEST} does not name it: remove it"


def _damage(kernel: str, manifest: dict, root: Path) -> Iterator[str]:
    for name in manifest["cases"]:
        try:
            load(kernel, name, root)
        except GoldenError as error:
            yield str(error)


def _drift(kernel: Kernel, manifest: dict, root: Path) -> Iterator[str]:
    for case in [*kernel.cases(), *_searched(kernel, manifest, root)]:
        golden = emulated(kernel, case)
        if case.name in manifest["cases"] and golden.entry()["sha256"] != manifest["cases"][case.name]["sha256"]:
            yield f"{kernel.name}/{case.name}: emulator != golden: {'; '.join(changes(golden, root))}"
            continue
        try:
            assert_guards(kernel, golden)
        except GoldenError as error:
            yield str(error)


def _searched(kernel: Kernel, manifest: dict, root: Path) -> Iterator[Case]:
    """The searched cases, but for damaged ones, which `_damage` names."""
    for name in searched(kernel).values():
        if name in manifest["cases"]:
            with contextlib.suppress(GoldenError):
                yield as_case(load(kernel.name, name, root))
