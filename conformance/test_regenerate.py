"""Writing goldens: what it refuses, what it reports, and that it leaves the old ones whole when it fails."""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.toy import MANY, MINUS_ZERO, ORDINARY, drifted, inputs, right, toy
from goldens import GoldenError
from goldens.__main__ import main
from goldens.files import MANIFEST, manifest_bytes, npz_bytes, read_manifest, read_npz
from goldens.regenerate import REFUSED, refusal, regenerate, search_again
from goldens.store import ROOT
from goldens.verify import problems
from references.__main__ import main as emulate
from references.contract.files import write_whole


def quiet(line):
    pass


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    """As on a developer's machine, though this suite runs in CI and under -n."""
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path):
    regenerate(toy(), tmp_path, say=quiet)
    return tmp_path


def contents(root):
    return {path.name: path.read_bytes() for path in (root / "toy").iterdir()}


# Refusals


@pytest.mark.parametrize("command", ["regenerate", "search"])
@pytest.mark.parametrize("variable", ["CI", "PYTEST_XDIST_WORKER"])
def test_refused_where_goldens_are_judged(tmp_path, monkeypatch, capsys, command, variable):
    assert refusal() is None
    monkeypatch.setenv(variable, "gw0" if variable != "CI" else "true")
    assert main(["--folder", str(tmp_path), command]) == REFUSED == 4
    assert capsys.readouterr().err.startswith("refused: ") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("environment", "options"), [({"CI": "true"}, []), ({}, ["-n", "2"])])
def test_switch_of_the_gate_is_refused_too(environment, options):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--update-goldens", *options]
    result = subprocess.run(command, cwd=ROOT.parent, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == REFUSED and "refused" in result.stderr and "passed" not in result.stdout


def test_regenerating_is_no_pass(request, monkeypatch):
    """The switch left set in a shell must not turn a gate green, even where every golden was written."""
    gate = request.config.pluginmanager.get_plugin(str(ROOT.parent / "conftest.py"))
    options = SimpleNamespace(update_goldens=True, numprocesses=None, kernel=["land"])
    written = []
    monkeypatch.setattr("goldens.__main__.main", lambda argv: written.append(argv) or 0)
    assert gate.pytest_cmdline_main(SimpleNamespace(option=options)) == pytest.ExitCode.NO_TESTS_COLLECTED
    assert written == [["regenerate", "land"]]


def test_drift_cannot_be_blessed(root):
    before, lines = contents(root), []
    with pytest.raises(GoldenError, match=r"would change, but the schedule is still version 1; nothing was written.*toy.py to 2"):
        regenerate(toy(drifted()), root, lines.append)
    assert contents(root) == before
    assert "toy: 0 of 4 present goldens reproduce, 0 are new" in lines
    assert "  out.o: 4 of 32 elements changed, worst 5 ulp" in lines and "  land.S3.bf: gone" in lines


def edit_manifest(root, change):
    manifest = read_manifest(root / "toy")
    change(manifest)
    (root / "toy" / MANIFEST).write_bytes(manifest_bytes(manifest))


LOSSES = {
    "an entry": lambda root: edit_manifest(root, lambda manifest: manifest["cases"].pop("ordinary")),
    "that of a large case": lambda root: edit_manifest(root, lambda manifest: manifest["cases"].pop("many")),
    "that of a search": lambda root: edit_manifest(root, lambda manifest: manifest["cases"].pop("searched")),
    "all entries": lambda root: edit_manifest(root, lambda manifest: manifest["cases"].clear()),
    "the manifest": lambda root: (root / "toy" / MANIFEST).unlink(),
}


@pytest.mark.parametrize("lost", LOSSES)
def test_a_file_is_known_without_its_entry(root, lost):
    """Drift is refused against the file; what reproduces gets its entry again."""
    whole, lines = contents(root), []
    LOSSES[lost](root)
    before = contents(root)
    with pytest.raises(GoldenError, match=r"ordinary, minus_zero, many, searched would change, .* nothing was written"):
        regenerate(toy(drifted(), cases=(replace(ORDINARY, guards=()), MINUS_ZERO, MANY)), root, lines.append)
    assert contents(root) == before
    assert "toy: 0 of 4 present goldens reproduce, 0 are new" in lines and sum(line.count("git checkout") for line in lines) == 1
    for last in ("toy: 0 of 4 files written, MANIFEST.json written", "toy: 0 of 4 files written"):
        regenerate(toy(), root, lines.append)
        assert lines[-1] == last
    assert contents(root).keys() == whole.keys() and problems(toy(), root, rebuild=True) == []


def test_no_version_is_above_one_that_is_not_known(root):
    (root / "toy" / MANIFEST).unlink()
    with pytest.raises(GoldenError, match=r"would change, and .*MANIFEST\.json, which says of what version they are, is missing.* Restore it; "):
        regenerate(toy(drifted(), version=2, cases=(replace(ORDINARY, guards=()), MINUS_ZERO, MANY)), root, quiet)
    regenerate(toy(), root, quiet)
    edit_manifest(root, lambda manifest: manifest.update(version=0))
    with pytest.raises(GoldenError, match=r"MANIFEST\.json is damaged"):
        regenerate(toy(drifted()), root, quiet)


def test_damaged_file_without_an_entry(root):
    """What it held is not known, so nothing may take its place."""
    LOSSES["an entry"](root)
    (root / "toy" / "ordinary.npz").write_bytes(b"")
    with pytest.raises(GoldenError, match=r"ordinary\.npz is damaged .*restore it with git checkout"):
        regenerate(toy(), root, quiet)


def flushing():
    """Subnormal inputs are zeros, which of the goldens only the searched one shows."""
    whole = right()
    return lambda x, w, off: whole(x * (np.abs(x) >= 2.0**-126), w, off)


def test_a_search_blesses_no_drift(root):
    """Not even one that only the golden shows which it would replace, or a large one."""
    before = contents(root)
    assert [line.split(":")[0] for line in problems(toy(flushing()), root, rebuild=True)] == ["toy/searched"]
    with pytest.raises(GoldenError, match="toy/searched does not reproduce"):
        search_again(toy(flushing()), root, quiet)
    with pytest.raises(GoldenError, match="toy/many does not reproduce"):
        search_again(toy(cases=(ORDINARY, MINUS_ZERO, replace(MANY, make=lambda: inputs(40, seed=3)))), root, quiet)
    assert contents(root) == before
    LOSSES["that of a search"](root)
    with pytest.raises(GoldenError, match=r"MANIFEST\.json does not name searched, which is there: regenerate first"):
        search_again(toy(flushing()), root, quiet)
    LOSSES["the manifest"](root)
    with pytest.raises(GoldenError, match=r"MANIFEST\.json is missing: restore it with git checkout; only where git has none"):
        search_again(toy(), root, quiet)


def test_a_new_kernel_is_told_to_make_its_own(tmp_path):
    """By name, and then of nothing to restore."""
    assert problems(toy(), tmp_path) == [f"{tmp_path}/toy/MANIFEST.json is missing: restore it with git checkout; "
                                         "only where git has none, make it with python -m goldens regenerate toy"]
    lines = []
    regenerate(toy(), tmp_path, lines.append)
    assert lines[0] == f"{tmp_path}/toy has no goldens: all are new, and if git has some, git diff will show which change"


def test_new_goldens_are_named(root):
    """Where a file went with its entry, only its name is left to say."""
    lines = []
    LOSSES["an entry"](root)
    (root / "toy" / "ordinary.npz").unlink()
    regenerate(toy(), root, lines.append)
    assert "toy: neither MANIFEST.json nor a file has ordinary" in lines


def test_changed_inputs_are_drift_too(root):
    with pytest.raises(GoldenError, match="ordinary would change"):
        regenerate(toy(cases=(replace(ORDINARY, make=lambda: inputs(2, seed=5)), MINUS_ZERO, MANY)), root, quiet)


def test_version_cannot_fall(root):
    regenerate(toy(version=2), root, quiet)
    with pytest.raises(GoldenError, match=r"version=1 in references/toy.py is below 2"):
        regenerate(toy(version=1), root, quiet)


@pytest.mark.parametrize("command", [["verify"], ["show", "land/minus_zero"], ["diff", "land/minus_zero", "land/minus_zero"], ["regenerate"]])
def test_folder_that_is_none(tmp_path, capsys, command):
    """Only what writes may make it, and not where a file is."""
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.write_bytes(b"")
    for folder in [file] if command == ["regenerate"] else [missing, file]:
        assert main(["--folder", str(folder), *command]) == 2
        assert capsys.readouterr().err == f"error: --folder must be a folder, got {str(folder)!r}\n"


# Writing


def test_raised_version(root):
    """Guards of landings that are gone go with the cases that had them; the search is done anew."""
    lines = []
    new = toy(drifted(), version=2, cases=(replace(ORDINARY, guards=()), MINUS_ZERO, MANY))
    regenerate(new, root, lines.append)
    assert any(line.startswith("toy/ordinary: ") and " -> " in line for line in lines) and problems(new, root, rebuild=True) == []
    assert any(line.endswith("searching again") for line in lines)


def test_same_bytes_every_time(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    regenerate(toy(), other, quiet)
    assert contents(root) == contents(other)


def test_only_what_changed_is_written(root):
    before = {name: (root / "toy" / name).stat().st_ino for name in contents(root)}
    regenerate(toy(), root, quiet)
    assert {name: (root / "toy" / name).stat().st_ino for name in contents(root)} == before
    new = replace(MINUS_ZERO, name="new")
    regenerate(toy(cases=(ORDINARY, MINUS_ZERO, MANY, new)), root, quiet)
    after = {name: (root / "toy" / name).stat().st_ino for name in contents(root)}
    assert {name for name in after if after[name] != before.get(name)} == {"new.npz", "MANIFEST.json"}


def test_case_that_is_gone(root):
    fewer = toy(cases=(ORDINARY, MINUS_ZERO))
    regenerate(fewer, root, quiet)
    assert "many.npz" not in contents(root) and problems(fewer, root) == []


def test_edited_file_is_restored(root):
    before = contents(root)
    arrays = read_npz(root / "toy" / "ordinary.npz")
    arrays["out.o"].flat[0] ^= 1
    (root / "toy" / "ordinary.npz").write_bytes(npz_bytes(arrays))
    regenerate(toy(), root, quiet)
    assert contents(root) == before


# Interruption


def interrupted(monkeypatch, at):
    """os.replace raises KeyboardInterrupt at its `at`-th call and works again afterwards."""
    calls, replace_ = itertools.count(), os.replace

    def stopped(source, target):
        if next(calls) == at:
            raise KeyboardInterrupt
        replace_(source, target)

    monkeypatch.setattr(os, "replace", stopped)


def test_a_file_is_written_whole(tmp_path, monkeypatch):
    """Nothing is left of a write that was stopped, and the name of the part is no other file's."""
    path, other = tmp_path / "run.npz", tmp_path / "run.partial"
    other.write_bytes(b"mine")
    write_whole(path, b"old")
    interrupted(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and {*tmp_path.iterdir()} == {path, other}
    golden = str(ROOT / "land" / "minus_zero.npz")
    assert emulate(["run", "land", golden, "-o", str(path)]) == 0
    assert np.load(path)["o"].dtype == np.uint16 and other.read_bytes() == b"mine" and {*tmp_path.iterdir()} == {path, other}


@pytest.mark.parametrize("at", range(4))
def test_interrupted_write(root, monkeypatch, at):
    """Whichever rename fails (the last is the manifest's), the old goldens are back, whole."""
    before = contents(root)
    more = toy(cases=(ORDINARY, MINUS_ZERO, MANY, *(replace(MINUS_ZERO, name=f"new_{i}") for i in range(3))))
    interrupted(monkeypatch, at)
    with pytest.raises(KeyboardInterrupt):
        regenerate(more, root, quiet)
    assert contents(root) == before and problems(toy(), root) == []
    regenerate(more, root, quiet)
    assert problems(more, root) == []


def test_killed_between_file_and_manifest(root):
    """Nothing can be put back then: the file is ahead of its manifest. It is named, and the same command finishes the work."""
    manifest = contents(root)["MANIFEST.json"]
    new = toy(drifted(), version=2, cases=(replace(ORDINARY, guards=()), MINUS_ZERO, MANY))
    regenerate(new, root, quiet)
    finished = contents(root)
    (root / "toy" / "MANIFEST.json").write_bytes(manifest)
    assert any("ordinary.npz does not hold what MANIFEST.json says" in line for line in problems(new, root))
    regenerate(new, root, quiet)
    assert contents(root) == finished
