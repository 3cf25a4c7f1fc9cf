"""Writing goldens. Only the emulator writes them, only a raised schedule version changes one, and never inside a gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from goldens.diff import diff
from goldens.files import MANIFEST, GoldenError, assert_recorded, held_sha256, read_manifest, read_npz, recorded, stored_sha256
from goldens.search import search
from goldens.store import ROOT, Golden, as_case, assert_guards, cases, emulated, load, make, save, searched
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
    old = {"version": 0} | recorded(root / kernel.name, say)
    if kernel.version < old["version"]:
        raise GoldenError(f"{kernel.name}: version={kernel.version} in references/{kernel.name}.py is below {old['version']} of the goldens")
    built = [emulated(kernel, case) for case in kernel.cases()]
    found, unseen = _found(kernel, built, old, root, say)
    built += found
    entries = {golden.case: golden.entry() for golden in built}
    _judge(kernel, old, entries, built, root, say)
    for golden in built:
        assert_guards(kernel, golden)
    stale = [golden for golden in built if stored_sha256(root / kernel.name / f"{golden.case}.npz") != entries[golden.case]["sha256"]]
    gone = old["cases"].keys() - entries.keys()
    saved = stale or gone or old != {**old, "version": kernel.version, "cases": entries}
    if saved:
        save(kernel.name, kernel.version, stale, entries, root)
    for case in sorted(gone):
        (root / kernel.name / f"{case}.npz").unlink(missing_ok=True)
        say(f"{kernel.name}/{case}: removed, cases() no longer has it")
    say(f"{kernel.name}: {len(stale)} of {len(built)} files written{f', {MANIFEST} written' if saved else ''}")
    return unseen


def search_again(kernel: Kernel, root: Path = ROOT, say: Say = print) -> tuple[str, ...]:
    """Search anew and write what is found alone. GoldenError where a golden does not reproduce. Returns what stays unseen."""
    old = read_manifest(root / kernel.name)
    if old["version"] != kernel.version:
        raise GoldenError(f"{kernel.name}: goldens are of version {old['version']}, not {kernel.version}: regenerate first")
    names = searched(kernel).values()
    if unlisted := [name for name in names if name not in old["cases"] and (root / kernel.name / f"{name}.npz").exists()]:
        raise GoldenError(f"{kernel.name}: {MANIFEST} does not name {', '.join(unlisted)}, which is there: regenerate first")
    built = [emulated(kernel, case) for case in cases(kernel, root)]
    for golden in built:
        if load(kernel.name, golden.case, root).entry()["sha256"] != golden.entry()["sha256"]:
            raise GoldenError(f"{kernel.name}/{golden.case} does not reproduce: a search against a drifted emulator shows nothing")
    found, unseen = _search(kernel, built, kernel.schedules, say)
    entries = {name: entry for name, entry in old["cases"].items() if name not in names}
    save(kernel.name, kernel.version, found, entries | {golden.case: golden.entry() for golden in found}, root)
    for name in {*names} - {golden.case for golden in found}:
        (root / kernel.name / f"{name}.npz").unlink(missing_ok=True)
    return unseen


def _found(kernel: Kernel, built: Sequence[Golden], old: dict, root: Path, say: Say) -> tuple[list[Golden], tuple[str, ...]]:
    """The searched goldens from their stored inputs, or from a search where there are none or a new schedule makes them show less."""
    goldens, todo = [], []
    for schedule, name in searched(kernel).items():
        try:
            golden = emulated(kernel, as_case(load(kernel.name, name, root))) if name in old["cases"] else None
            if golden and kernel.version > old["version"]:
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


def _judge(kernel: Kernel, old: dict, entries: dict, built: Sequence[Golden], root: Path, say: Say) -> None:
    """Show which present goldens reproduce and how the others change; GoldenError if they may not."""
    held = held_sha256(root / kernel.name, old["cases"], entries)
    present = [golden for golden in built if golden.case in held]
    changed = [golden for golden in present if held[golden.case] != entries[golden.case]["sha256"]]
    new = [golden.case for golden in built if golden.case not in held]
    say(f"{kernel.name}: {len(present) - len(changed)} of {len(present)} present goldens reproduce, {len(new)} are new")
    if new and present:
        say(f"{kernel.name}: neither {MANIFEST} nor a file has {', '.join(new)}")
    for golden in changed:
        say(f"{kernel.name}/{golden.case}: {held[golden.case][:12]} -> {entries[golden.case]['sha256'][:12]}")
        for line in changes(golden, root):
            say(f"  {line}")
    names = [golden.case for golden in changed]
    assert_recorded(root / kernel.name, names)
    if unlisted := [name for name in names if name not in old["cases"]]:
        say(f"{kernel.name}: {MANIFEST} does not name {', '.join(unlisted)}: restore it with git checkout")
    if changed and kernel.version == old["version"]:
        raise GoldenError(
            f"{kernel.name}: {', '.join(names)} would change, but the schedule is still version {kernel.version}; nothing was written. "
            f"If the emulator should give what it gave, mend it. If the schedule or a case's inputs are meant to change, raise version= in "
            f"references/{kernel.name}.py to {kernel.version + 1} (or give the case a new name) and run this again")


def changes(golden: Golden, root: Path = ROOT) -> list[str]:
    """How a golden made now differs from its file."""
    try:
        return diff(read_npz(root / golden.kernel / f"{golden.case}.npz"), golden.arrays())
    except GoldenError as error:
        return [str(error)]
