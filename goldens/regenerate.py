"""Writing goldens. Only the emulator writes them, only a raised schedule version changes one, and never inside a gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from goldens.diff import diff
from goldens.files import MANIFEST, GoldenError, payload_sha256, read_manifest, read_npz
from goldens.search import search
from goldens.store import ROOT, SEARCHED, Golden, assert_guards, emulated, load, make, save
from references.contract import Case, Kernel

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
    searched, unseen = _searched(kernel, built, recorded, root, say)
    built += searched
    entries = {golden.case: golden.entry() for golden in built}
    _judge(kernel, recorded, entries, built, root, say)
    for golden in built:
        assert_guards(kernel, golden)
    stale = [golden for golden in built if _payload(root / kernel.name / f"{golden.case}.npz") != entries[golden.case]["sha256"]]
    gone = recorded["cases"].keys() - entries.keys()
    if stale or gone or recorded != {**recorded, "version": kernel.version, "cases": entries}:
        save(kernel.name, kernel.version, stale, entries, root)
    for case in sorted(gone):
        (root / kernel.name / f"{case}.npz").unlink(missing_ok=True)
        say(f"{kernel.name}/{case}: removed, cases() no longer has it")
    say(f"{kernel.name}: {len(stale)} of {len(built)} files written")
    return unseen


def search_again(kernel: Kernel, root: Path = ROOT, say: Say = print) -> tuple[str, ...]:
    """Search anew and write searched.npz alone. GoldenError where another small golden does not reproduce. Returns what stays unseen."""
    recorded = _recorded(kernel, root)
    if recorded["version"] != kernel.version:
        raise GoldenError(f"{kernel.name}: goldens are of version {recorded['version']}, not {kernel.version}: regenerate first")
    small = [emulated(kernel, case) for case in kernel.cases() if not case.large]
    for golden in small:
        if load(kernel.name, golden.case, root).entry()["sha256"] != golden.entry()["sha256"]:
            raise GoldenError(f"{kernel.name}/{golden.case} does not reproduce: a search against a drifted emulator shows nothing")
    searched, unseen = _search(kernel, small, say)
    entries = {name: entry for name, entry in recorded["cases"].items() if name != SEARCHED}
    save(kernel.name, kernel.version, searched, entries | {golden.case: golden.entry() for golden in searched}, root)
    if not searched:
        (root / kernel.name / f"{SEARCHED}.npz").unlink(missing_ok=True)
    return unseen


def _recorded(kernel: Kernel, root: Path) -> dict:
    folder = root / kernel.name
    return read_manifest(folder) if (folder / MANIFEST).exists() else {"version": None, "cases": {}}


def _searched(kernel: Kernel, built: Sequence[Golden], recorded: dict, root: Path, say: Say) -> tuple[list[Golden], tuple[str, ...]]:
    """The golden `searched` from its stored inputs, or from a search where there are none or a new schedule makes them show less."""
    if SEARCHED in recorded["cases"]:
        try:
            kept = load(kernel.name, SEARCHED, root)
            golden = emulated(kernel, Case(SEARCHED, kept.why, lambda: kept.inputs, kept.guards))
            if kernel.version > recorded["version"]:
                assert_guards(kernel, golden)
            return [golden], ()
        except GoldenError as error:
            say(f"{error}; searching again")
    return _search(kernel, built, say)


def _search(kernel: Kernel, built: Sequence[Golden], say: Say) -> tuple[list[Golden], tuple[str, ...]]:
    found = search(kernel, built, say=say)
    return ([make(kernel, found.case)] if found.inputs else []), found.unseen


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


def _payload(path: Path) -> str | None:
    try:
        return payload_sha256(read_npz(path))
    except GoldenError:
        return None
