"""The goldens that are here: whole, complete, and nobody else's. What must not pass is shown on copies of a toy kernel."""

import shutil
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from conformance.toy import MANY, MINUS_ZERO, ORDINARY, columns, drifted, inputs, toy
from goldens import Golden, GoldenError, load, make
from goldens.__main__ import main
from goldens.files import MANIFEST, manifest_bytes, npz_bytes, read_manifest, read_npz
from goldens.regenerate import regenerate
from goldens.rows import digest_rows
from goldens.store import ROOT, save
from goldens.verify import problems, strangers
from references.contract import Case, Kernel, kernels
from references.contract.inputs import BF16, F32, from_bits


@pytest.fixture
def root(tmp_path):
    regenerate(toy(), tmp_path, say=lambda line: None)
    return tmp_path


def assert_none(lines):
    """These lines say what is wrong, so nothing else is printed."""
    __tracebackhide__ = True
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def test_goldens(kernel_name):
    assert_none(problems(Kernel.load(kernel_name)))


def test_lines_alone_are_shown():
    assert_none([])
    with pytest.raises(pytest.fail.Exception) as failed:
        assert_none(["one", "another"])
    assert (failed.value.msg, failed.value.pytrace) == ("one\nanother", False)


def test_every_folder_is_a_kernels(tmp_path):
    assert kernels()
    assert_none(strangers())
    (tmp_path / "renamed_kernel").mkdir()
    assert "renamed_kernel belongs to no kernel" in strangers(tmp_path)[0]


# What is wrong with a golden is said, with what to do


def edit(path):
    arrays = read_npz(path)
    arrays["out.o"].flat[0] ^= 1
    path.write_bytes(npz_bytes(arrays))


DAMAGE = {
    "edited": (edit, "does not hold what MANIFEST.json says"),
    "lfs pointer": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"), "run git lfs pull"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-30]), "is damaged or no golden"),
    "cut short inside": (lambda path: path.write_bytes(path.read_bytes()[:100]), "is damaged or no golden"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged or no golden"),
    "missing": (lambda path: path.unlink(), "is missing: restore it"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_file(root, kind):
    damage, message = DAMAGE[kind]
    assert problems(toy(), root) == []
    damage(root / "toy" / "ordinary.npz")
    with pytest.raises(GoldenError, match=message):
        load("toy", "ordinary", root)
    found = problems(toy(), root)
    assert len(found) == 1 and message in found[0] and "ordinary.npz" in found[0]


@pytest.mark.parametrize("kind", ["lfs pointer", "truncated", "missing"])
def test_damaged_manifest(root, kind):
    DAMAGE[kind][0](root / "toy" / MANIFEST)
    assert len(problems(toy(), root)) == 1 and MANIFEST in problems(toy(), root)[0]


@pytest.mark.parametrize("content", [b"[]", b"3", b'{"schema": "\xff"}', b'{"schema": 1}', b'{"schema": 1, "version": 1, "cases": {"ordinary": {}}}'])
def test_manifest_that_is_none(root, content):
    (root / "toy" / MANIFEST).write_bytes(content)
    with pytest.raises(GoldenError, match=r"MANIFEST\.json is damaged"):
        load("toy", "ordinary", root)
    assert len(problems(toy(), root)) == 1


EDITS = {
    "output left out": lambda entry: entry["dtypes"].pop("out.o"),
    "array that is none": lambda entry: entry["dtypes"].update({"out.q": "bfloat16"}),
    "dtype that is none": lambda entry: entry["dtypes"].update({"out.o": "float16"}),
    "other dtype": lambda entry: entry["dtypes"].update({"out.top": "bfloat16"}),
    "part that is none": lambda entry: entry["dtypes"].update({"o": "bfloat16"}),
    "no dtypes": lambda entry: entry.pop("dtypes"),
    "dtypes that are none": lambda entry: entry.update(dtypes=3),
    "no guards": lambda entry: entry.pop("guards"),
    "another size": lambda entry: entry.update(large=True),
}


@pytest.mark.parametrize("kind", EDITS)
def test_edited_manifest(root, kind):
    """A golden that lost an output would be met by whatever a kernel gives for it."""
    manifest = read_manifest(root / "toy")
    EDITS[kind](manifest["cases"]["ordinary"])
    (root / "toy" / MANIFEST).write_bytes(manifest_bytes(manifest))
    message = "holds other arrays than MANIFEST.json says of ordinary, or that entry is not whole"
    with pytest.raises(GoldenError, match=message):
        load("toy", "ordinary", root)
    assert any(message in line for line in problems(toy(), root))


def test_container_is_not_content(root):
    """Another zlib compresses otherwise; the arrays are the golden."""
    path = root / "toy" / "ordinary.npz"
    arrays, before = read_npz(path), path.read_bytes()
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    assert path.read_bytes() != before and problems(toy(), root) == []


def test_orphans_and_missing(root):
    (root / "toy" / "left_over.npz").write_bytes(b"")
    assert problems(toy(), root) == [f"{root}/toy/left_over.npz: an orphan, MANIFEST.json does not name it: remove it"]
    (root / "toy" / "left_over.npz").unlink()
    assert "toy/many: an orphan, cases() has no such case" in problems(toy(cases=(ORDINARY, MINUS_ZERO)), root)[0]
    new = replace(MINUS_ZERO, name="new")
    assert problems(toy(cases=(ORDINARY, MINUS_ZERO, MANY, new)), root) == ["toy/new: no golden: run python -m goldens regenerate toy"]
    other = replace(ORDINARY, why="another purpose")
    assert "toy/ordinary: its sentence or guards are not those of cases()" in problems(toy(cases=(other, MINUS_ZERO, MANY)), root)[0]
    assert "goldens of schedule version 1, references/toy.py has 2" in problems(toy(version=2), root)[0]


@pytest.mark.parametrize("case", ["ordinary", "many", "searched"])
def test_deleted_entry(root, case):
    """One order, and not that the file should go."""
    manifest = read_manifest(root / "toy")
    del manifest["cases"][case]
    (root / "toy" / MANIFEST).write_bytes(manifest_bytes(manifest))
    assert problems(toy(), root) == [f"{root}/toy/{case}.npz: MANIFEST.json does not name it: run python -m goldens regenerate toy"]


def test_everything_wrong_is_listed(root):
    """A guard that fails, or a damaged file, does not hide the drift of later cases."""
    drift = replace(MANY, make=lambda: inputs(40, seed=3))
    (root / "toy" / "searched.npz").write_bytes(b"")
    found = problems(toy(cases=(replace(ORDINARY, guards=("S1.zero:minus_zero",)), MINUS_ZERO, drift)), root, rebuild=True)
    guard = "case toy/ordinary exists for S1.zero:minus_zero, but its outputs do not move under it: mend the emulator, or give the case inputs"
    assert found[0].startswith("toy/ordinary: its sentence or guards") and "searched.npz is damaged" in found[1] and found[2].startswith(guard)
    assert found[3].startswith("toy/many: emulator != golden: digest.o: ") and len(found) == 4


def test_one_problem(tmp_path, capsys):
    shutil.copytree(ROOT / "add2", tmp_path / "add2")
    command = ["--folder", str(tmp_path), "verify", "add2"]
    assert main(command) == 0 and capsys.readouterr().out.endswith(", 0 problems\n")
    (tmp_path / "add2" / "stray.npz").write_bytes(b"")
    assert main(command) == 1 and capsys.readouterr().out.endswith(", 1 problem\n")


def test_rebuilding_sees_a_drifted_emulator(root):
    assert problems(toy(), root, rebuild=True) == [] == problems(toy(drifted()), root)
    found = problems(toy(drifted()), root, rebuild=True)
    assert "toy/ordinary: emulator != golden: land.S3.bf: gone" in found[0]


# What a golden holds


def test_types_survive(tmp_path):
    """NumPy alone gives bf16 back as raw bytes, and a NaN's payload or a zero's sign is easily lost."""
    np.savez(tmp_path / "plain.npz", x=np.zeros(2, BF16))
    assert np.load(tmp_path / "plain.npz")["x"].dtype != BF16
    bits = np.array([0x0000, 0x8000, 0x0001, 0x7FC1, 0xFF81, 0x3F80], np.uint16)
    wide = np.array([0x7F800001, 0x80000000, 0x7FFFFFFF], np.uint32)
    golden = Golden("k", "c", "why", 3, ("S1.bf:skipped",), {"x": bits.view(BF16), "eps": 1e-5, "n": -7},
                    {"S1.bf": bits.view(BF16)}, {"o": wide.view(F32), "codes": bits.view(np.uint8).view(ml_dtypes.float8_e4m3fn), "next": None})
    save("k", 3, [golden], {"c": golden.entry()}, tmp_path)
    back = load("k", "c", tmp_path)
    assert back.inputs["x"].dtype == BF16 and back.outputs["codes"].dtype == ml_dtypes.float8_e4m3fn and back.outputs["next"] is None
    assert {key: array.tobytes() for key, array in back.arrays().items()} == {key: array.tobytes() for key, array in golden.arrays().items()}
    assert (back.inputs["eps"], back.inputs["n"]) == (float(np.float32(1e-5)), -7)
    assert (back.version, back.why, back.guards) == (golden.version, golden.why, golden.guards)


def test_landings_of_a_loop_are_stacked():
    golden = make(toy(), ORDINARY)
    x, w = golden.inputs["x"].astype(F32), golden.inputs["w"]
    assert golden.landings.keys() == {"S3.bf", "S4.bf"}
    assert np.array_equal(golden.landings["S3.bf"], np.moveaxis((x * w).astype(BF16), 1, 0))
    assert golden.landings["S4.bf"].tobytes() == golden.outputs["o"].tobytes()


def test_stored_nan():
    """An f32 NaN has one pattern once stored; the inputs' own are kept, for the device gets the same."""
    payload = from_bits(np.full((1, 3, 16), 0xFFC1))
    golden = make(toy(), Case("nan", "NaN", lambda: inputs(1) | {"x": payload}))
    assert (golden.arrays()["out.o"] == 0x7FFF).all() and (golden.arrays()["out.top"] == 0x7FFFFFFF).all()
    assert (golden.arrays()["in.x"] == 0xFFC1).all()


def test_guards_must_hold():
    with pytest.raises(GoldenError, match=r"toy/ordinary exists for S1\.zero:minus_zero, but its outputs do not move under it"):
        make(toy(), replace(ORDINARY, guards=("S1.zero:minus_zero",)))
    with pytest.raises(GoldenError, match=r"toy/ordinary exists for S9\.bf:skipped, which cannot happen on its inputs"):
        make(toy(), replace(ORDINARY, guards=("S9.bf:skipped",)))


def test_large_case(monkeypatch):
    """Emulated in blocks, it has the digests of the whole; one flipped bit moves one row's digest."""
    monkeypatch.setattr("goldens.rows._ELEMENTS", 1)  # the smallest blocks there are, the last one ragged
    golden, whole = make(toy(), replace(MANY, make=lambda: inputs(41))), toy().outputs(inputs(41))
    assert golden.positions.tolist() == [0, 1, 13, 20, 40]
    for name, output in whole.items():
        assert np.array_equal(golden.digests[name], digest_rows(output))
        assert golden.samples[name].tobytes() == output[golden.positions].tobytes()
    whole["o"].view(np.uint16)[7, 3] ^= 1
    assert np.flatnonzero(golden.digests["o"] != digest_rows(whole["o"])).tolist() == [7]


def test_large_case_with_independent_columns(monkeypatch):
    monkeypatch.setattr("goldens.rows._ELEMENTS", 1)
    kernel, case = columns(), Case("many", "", lambda: {"x": inputs(20)["x"].reshape(20, 48)}, large=True)
    whole = kernel.outputs(case.make())["o"]
    golden = make(kernel, case)
    assert np.array_equal(golden.digests["o"], digest_rows(whole)) and golden.samples["o"].tobytes() == whole[:, golden.positions].tobytes()
