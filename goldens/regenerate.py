"""Writing goldens. Only the emulator writes them, only a raised schedule version changes one, and never inside a gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from goldens.diff import diff
from goldens.files import MANIFEST, GoldenError, read_manifest, read_npz, stored_sha256
from goldens.search import search
from goldens.store import ROOT, Golden, as_case, assert_guards, emulated, load, make, save, searched
from references.contract import Kernel

REFUSED = 4
Say = Callable[[str], None]


def refusal() -> str | None:
    """Why goldens must not be written here, if so: what judges them must not be able to write them."""
    if os.environ.get("CI"):
        return "CI is set, and a gate must not bless its own goldens: regenerate on your own machine and commit the result"
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return "this is a pytest-xdist worker, and several would write the same files: regenerate without -n"
    return None


def regenerate(kernel: Kernel, root: Path = ROOT, say: Say = print) -> tuple[str, ...]:
    """Rebuild a kernel's goldens and write those that changed. Returns the mistakes that nothing shows (none, in a finished kernel).

    GoldenError, with nothing written, where a present golden changes and the schedule's version does not.
    """
    recorded = _recorded(kernel, root)
    if kernel.version < (recorded["version"] or 0):
        raise GoldenError(f"{kernel.name}: version={kernel.version} in references/{kernel.name}.py is below {recorded['version']} of the goldens")
    built = [emulated(kernel, case) for case in kernel.cases()]
    found, unseen = _found(kernel, built, recorded, root, say)
    built += found
    entries = {golden.case: golden.entry() for golden in built}
    _judge(kernel, recorded, entries, built, root, say)
    for golden in built:
        assert_guards(kernel, golden)
    stale = [golden for golden in built if stored_sha256(root / kernel.name / f"{golden.case}.npz") != entries[golden.case]["sha256"]]
    gone = recorded["cases"].keys() - entries.keys()
    if stale or gone or recorded != {**recorded, "version": kernel.version, "cases": entries}:
        save(kernel.name, kernel.version, stale, entries, root)
    for case in sorted(gone):
        (root / kernel.name / f"{case}.npz").unlink(missing_ok=True)
        say(f"{kernel.name}/{case}: removed, cases() no longer has it")
    say(f"{kernel.name}: {len(stale)} of {len(built)} files written")
    return unseen


def search_again(kernel: Kernel, root: Path = ROOT, say: Say = print) -> tuple[str, ...]:
    """Search anew and write what is found alone. GoldenError where another small golden does not reproduce. Returns what stays unseen."""
    recorded = _recorded(kernel, root)
    if recorded["version"] != kernel.version:
        raise GoldenError(f"{kernel.name}: goldens are of version {recorded['version']}, not {kernel.version}: regenerate first")
    small = [emulated(kernel, case) for case in kernel.cases() if not case.large]
    for golden in small:
        if load(kernel.name, golden.case, root).entry()["sha256"] != golden.entry()["sha256"]:
            raise GoldenError(f"{kernel.name}/{golden.case} does not reproduce: a search against a drifted emulator shows nothing")
    found, unseen = _search(kernel, small, kernel.schedules, say)
    names = searched(kernel).values()
    entries = {name: entry for name, entry in recorded["cases"].items() if name not in names}
    save(kernel.name, kernel.version, found, entries | {golden.case: golden.entry() for golden in found}, root)
    for name in {*names} - {golden.case for golden in found}:
        (root / kernel.name / f"{name}.npz").unlink(missing_ok=True)
    return unseen


def _recorded(kernel: Kernel, root: Path) -> dict:
    folder = root / kernel.name
    return read_manifest(folder) if (folder / MANIFEST).exists() else {"version": None, "cases": {}}


def _found(kernel: Kernel, built: Sequence[Golden], recorded: dict, root: Path, say: Say) -> tuple[list[Golden], tuple[str, ...]]:
    """The searched goldens from their stored inputs, or from a search where there are none or a new schedule makes them show less."""
    goldens, todo = [], []
    for schedule, name in searched(kernel).items():
        try:
            golden = emulated(kernel, as_case(load(kernel.name, name, root))) if name in recorded["cases"] else None
            if golden and kernel.version > recorded["version"]:
                assert_guards(kernel, golden)
        except GoldenError as error:
            say(f"{error}; searching again")
            golden = None
        if golden:
            goldens.append(golden)
        else:
            todo.append(schedule)
    more, unseen = _search(kernel, built, todo, say)
    return goldens + more, unseen


def _search(kernel: Kernel, built: Sequence[Golden], schedules: Sequence[str], say: Say) -> tuple[list[Golden], tuple[str, ...]]:
    found = [search(kernel, built, say=say, schedule=schedule) for schedule in schedules]
    return [make(kernel, one.case) for one in found if one.inputs], tuple(key for one in found for key in one.unseen)


def _judge(kernel: Kernel, recorded: dict, entries: dict, built: Sequence[Golden], root: Path, say: Say) -> None:
    """Show which present goldens reproduce and how the others change; GoldenError if they may not."""
    present = [golden for golden in built if golden.case in recorded["cases"]]
    changed = [golden for golden in present if recorded["cases"][golden.case]["sha256"] != entries[golden.case]["sha256"]]
    say(f"{kernel.name}: {len(present) - len(changed)} of {len(present)} present goldens reproduce, {len(built) - len(present)} are new")
    for golden in changed:
        old, new = recorded["cases"][golden.case]["sha256"], entries[golden.case]["sha256"]
        say(f"{kernel.name}/{golden.case}: {old[:12]} -> {new[:12]}")
        for line in changes(golden, root):
            say(f"  {line}")
    if changed and kernel.version == recorded["version"]:
        names = ", ".join(golden.case for golden in changed)
        raise GoldenError(
            f"{kernel.name}: {names} would change, but the schedule is still version {kernel.version}; nothing was written. If the emulator "
            f"should give what it gave, mend it. If the schedule or a case's inputs are meant to change, raise version= in "
            f"references/{kernel.name}.py to {kernel.version + 1} (or give the case a new name) and run this again")


def changes(golden: Golden, root: Path = ROOT) -> list[str]:
    """How a golden made now differs from its file."""
    try:
        return diff(read_npz(root / golden.kernel / f"{golden.case}.npz"), golden.arrays())
    except GoldenError as error:
        return [str(error)]
