"""What the commands of goldens are given: names that are none, goldens, and files of whoever wrote them."""

import shutil

import numpy as np
import pytest

from conformance.message import arrays
from conformance.message import stored as as_saved
from conformance.toy import forms
from goldens import load
from goldens.__main__ import main
from goldens.diff import diff
from goldens.files import MANIFEST, manifest_bytes, read_manifest, read_npz
from goldens.regenerate import regenerate
from goldens.store import ROOT
from references.__main__ import main as emulate


@pytest.mark.parametrize(("spec", "message"), [
    ("lnad/minus_zero", "no kernel 'lnad', did you mean 'land'?"),
    ("hardware/x", "no kernel 'hardware', there are add2, "),
    ("land/minus_zer", "land has no golden 'minus_zer', did you mean 'minus_zero'?"),
    ("land/?", "land has no golden '?', there are minus_zero, "),
    ("land", "a golden is named KERNEL/CASE, got 'land'"),
    ("k3", "a golden is named KERNEL/CASE, got 'k3'"),
    ("/x", "a golden is named KERNEL/CASE, got '/x'"),
])
def test_golden_that_is_none(spec, message, capsys):
    for command in (["show", spec], ["diff", "land/ties", spec]):
        assert main(command) == 2 and capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("spec", ["k3/cp_2", "situ/ties"])
def test_golden_without_its_entry(tmp_path, capsys, spec):
    """It is there, so no other is meant."""
    kernel, case = spec.split("/")
    shutil.copytree(ROOT / kernel, tmp_path / kernel)
    manifest = read_manifest(tmp_path / kernel)
    del manifest["cases"][case]
    (tmp_path / kernel / MANIFEST).write_bytes(manifest_bytes(manifest))
    for command in (["show", spec], ["diff", spec, spec]):
        assert main(["--folder", str(tmp_path), *command]) == 1
        assert capsys.readouterr().err.startswith(f"error: {tmp_path}/{spec}.npz is there, but MANIFEST.json does not name it")


def test_file_that_is_none(tmp_path, capsys):
    assert main(["diff", "land/ties", str(tmp_path / "none.npz")]) == 2
    assert capsys.readouterr().err == f"error: there is no file '{tmp_path}/none.npz'\n"


def test_file_that_is_damaged(tmp_path, capsys):
    """Only a golden is git's to restore; another file is a wrong argument."""
    empty, golden = tmp_path / "empty.npz", tmp_path / "situ" / "ties.npz"
    empty.write_bytes(b"")
    assert main(["diff", "situ/ties", str(empty)]) == 2
    assert capsys.readouterr().err == f"error: {empty} is no .npz (0 bytes: No data left in file)\n"
    shutil.copytree(ROOT / "situ", tmp_path / "situ")
    golden.write_bytes(b"")
    assert main(["--folder", str(tmp_path), "diff", "situ/special", str(golden)]) == 1
    assert capsys.readouterr().err.endswith("restore it with git checkout\n")


def test_diff_takes_what_references_run_wrote(tmp_path, capsys):
    """Outputs alone are compared: it has no others."""
    path = tmp_path / "o.npz"
    assert emulate(["run", "situ", str(ROOT / "situ" / "ties.npz"), "-o", str(path)]) == 0
    capsys.readouterr()
    assert main(["diff", "situ/ties", str(path)]) == 0 == main(["diff", str(path), str(path)])
    np.savez(path, o=read_npz(path)["o"] ^ 1)
    assert main(["diff", "situ/ties", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "out.o: 39 of 39 elements changed, worst 1 ulp"
    assert main(["diff", "land/dense_0", str(path)]) == 2
    assert "A and B must have arrays in common, got 'land/dense_0' with digest.o" in capsys.readouterr().err


def test_diff_takes_saved_failures(tmp_path, capsys):
    """The side that was held to the golden is its output; names, scalars and integers are in the golden's bits."""
    regenerate(forms(), tmp_path, say=lambda line: None)
    golden, command = load("forms", "late", tmp_path), ["--folder", str(tmp_path), "diff", "forms/late", str(tmp_path / "f.npz")]
    moved = {name: value.copy() for name, value in golden.outputs.items()}
    moved["o"].view(np.uint16).flat[0] ^= 1
    for sides, lines in (({"emulator": golden.outputs}, 0), ({"emulator": moved}, 2), ({"device": moved, "emulator": golden.outputs}, 2)):
        saved = arrays(golden.inputs, golden=golden.outputs, **sides)
        np.savez(tmp_path / "f.npz", **{name: as_saved(value) for name, value in saved.items()})
        assert main(command) == bool(lines)
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == lines and shown[:1] == ["out.o: 1 of 32 elements changed, worst 1 ulp"][:lines]


def test_diff_says_what_it_counts():
    old, new = {"digest.o": np.arange(4, dtype=np.uint64)}, {"digest.o": np.zeros(4, np.uint64)}
    assert diff(old, new) == ["digest.o: 3 of 4 rows changed"]
    assert diff({"o": np.zeros((1, 4), np.uint16)}, {"o": np.zeros((2, 4), np.uint16)}) == ["o: shape [1, 4] -> [2, 4]"]
    assert diff({"o": np.zeros(4, np.uint16)}, {"o": np.zeros(4, np.uint32)}) == ["o: uint16[4] -> uint32[4], as bits"]
