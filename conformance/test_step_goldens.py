"""The goldens of whole steps: verified, refused where they are not what they were, and a gate that sees what differs."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from conformance import steps as gates
from goldens import GoldenError, steps
from goldens.__main__ import main
from goldens.diff import walks_diff
from goldens.files import MANIFEST, npz_bytes, read_manifest
from goldens.store import ROOT
from goldens.walks import PLANS, Result


@pytest.fixture
def root(tmp_path):
    shutil.copytree(ROOT / steps.NAME, tmp_path / steps.NAME)
    return tmp_path


@pytest.fixture(scope="module")
def walked():
    return steps.load("moe_chain")


@pytest.fixture(scope="module")
def versions():
    return read_manifest(ROOT / steps.NAME)["kernels"]


def test_step_goldens():
    assert list(steps.problems()) == []


def edit_manifest(root, change):
    path = root / steps.NAME / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def contents(root):
    return {path.name: path.read_bytes() for path in (root / steps.NAME).iterdir()}


def rebuilt(monkeypatch, kernels, **changed):
    """The emulators give what the goldens hold, but for these walks, of kernels of these versions."""
    made = {case: (steps.load(case), kernels) for case in PLANS} | {case: (walk, kernels) for case, walk in changed.items()}
    monkeypatch.setattr(steps, "make", made.__getitem__)


def test_what_is_wrong_is_said(root, walked, versions):
    folder = root / steps.NAME
    (folder / "stray.npz").write_bytes(b"")
    assert list(steps.problems(root)) == [f"{folder / 'stray.npz'}: an orphan, there is no such walk: remove it"]
    (folder / "stray.npz").unlink()
    edit_manifest(root, lambda manifest: manifest["kernels"].update(land=0))
    assert "made by other versions of the model or its kernels" in next(steps.problems(root))
    edit_manifest(root, lambda manifest: manifest["kernels"].update(land=versions["land"], no_kernel=1))
    assert "made by other versions of the model or its kernels" in next(steps.problems(root))
    changed = replace(walked, greedy=walked.greedy + 1)
    (folder / "moe_chain.npz").write_bytes(npz_bytes(changed.arrays()))
    assert "it was edited" in next(steps.problems(root))
    (folder / "moe_chain.npz").unlink()
    assert "is missing" in next(steps.problems(root))
    edit_manifest(root, lambda manifest: manifest.pop("kernels"))
    assert "MANIFEST.json is damaged (it must have a version, kernels, a" in next(steps.problems(root))


def test_walks_that_are_not_those_of_plans_are_named(root):
    """One order each, and not that a file should go which PLANS has."""
    folder, todo = root / steps.NAME, "run python -m goldens regenerate k3"
    edit_manifest(root, lambda manifest: [manifest["cases"].pop(case) for case in ("cp_2", "cp_4")])
    edit_manifest(root, lambda manifest: manifest["cases"]["deep"].update(sentence="another"))
    (folder / "cp_4.npz").unlink()
    assert list(steps.problems(root)) == [f"k3/cp_4: no golden: {todo}", f"k3/deep: its sentence is not that of PLANS: {todo}",
                                          f"{folder}/cp_2.npz: MANIFEST.json does not name it: {todo}"]


def test_a_walk_that_drifts_is_not_blessed(root, walked, versions, monkeypatch):
    """Only a raised version changes a walk, not a kernel that comes or goes."""
    rebuilt(monkeypatch, versions)
    steps.regenerate(root, say=lambda line: None)
    assert list(steps.problems(root, rebuild=True)) == []
    drifted, before = replace(walked, greedy=walked.greedy + 1), contents(root)
    rebuilt(monkeypatch, versions, moe_chain=drifted)
    assert list(steps.problems(root, rebuild=True)) == [
        "k3/moe_chain: the emulators give other steps: see python -m references k3 bisect, or run python -m goldens regenerate k3"]
    (root / steps.NAME / "deep.npz").rename(root / "deep.npz")
    assert ["deep.npz is missing" in line or "the emulators give other steps" in line for line in steps.problems(root, rebuild=True)] == [True, True]
    (root / "deep.npz").rename(root / steps.NAME / "deep.npz")
    for kernels in (versions, versions | {"new_kernel": 1}, {name: version for name, version in versions.items() if name != "argmax"}):
        rebuilt(monkeypatch, kernels, moe_chain=drifted)
        with pytest.raises(GoldenError, match="k3: moe_chain would change, but no version rose"):
            steps.regenerate(root, say=lambda line: None)
    assert contents(root) == before


def test_a_file_is_known_without_its_entry(root, walked, versions, monkeypatch):
    """Nor is drift blessed where the manifest lost a walk, or is missing, though a version rises then; what reproduces is named again."""
    said, whole = [], read_manifest(root / steps.NAME)
    edit_manifest(root, lambda manifest: manifest["cases"].pop("moe_chain"))
    drifted = replace(walked, greedy=walked.greedy + 1)
    rebuilt(monkeypatch, versions, moe_chain=drifted)
    with pytest.raises(GoldenError, match="k3: moe_chain would change, but no version rose"):
        steps.regenerate(root, say=said.append)
    (root / steps.NAME / MANIFEST).unlink()
    rebuilt(monkeypatch, versions | {"land": versions["land"] + 1}, moe_chain=drifted)
    with pytest.raises(GoldenError, match=r"moe_chain would change, and .*MANIFEST\.json, .* is missing; nothing was written"):
        steps.regenerate(root, say=said.append)
    rebuilt(monkeypatch, versions)
    steps.regenerate(root, say=said.append)
    assert said[-1] == f"k3: 0 of {len(PLANS)} files written, MANIFEST.json written" and "git checkout" in said[0]
    assert read_manifest(root / steps.NAME) == whole


@pytest.mark.parametrize("raised", [steps.NAME, "land"])
def test_a_raised_version_changes_a_walk(root, walked, versions, monkeypatch, raised):
    """That of the model, or of a kernel."""
    rebuilt(monkeypatch, versions | {"land": versions["land"] + (raised == "land")}, moe_chain=replace(walked, greedy=walked.greedy + 1))
    monkeypatch.setattr(steps, "VERSION", steps.VERSION + (raised == steps.NAME))
    steps.regenerate(root, say=lambda line: None)
    assert steps.load("moe_chain", root).greedy[0] == walked.greedy[0] + 1


def test_versions_cannot_fall(root, versions, monkeypatch):
    """Not of a kernel, though another's rises, and not of the model."""
    before = contents(root)
    rebuilt(monkeypatch, versions | {"land": 0, "situ": versions["situ"] + 1})
    with pytest.raises(GoldenError, match=f"k3: version 0 of land is below {versions['land']} of the goldens"):
        steps.regenerate(root, say=lambda line: None)
    rebuilt(monkeypatch, versions)
    monkeypatch.setattr(steps, "VERSION", steps.VERSION - 1)
    with pytest.raises(GoldenError, match=f"k3: version {steps.VERSION} of k3 is below {steps.VERSION + 1} of the goldens"):
        steps.regenerate(root, say=lambda line: None)
    assert contents(root) == before


def test_only_what_changed_is_written(root, versions, monkeypatch):
    """An edited walk is restored, a walk that PLANS no longer has is removed; the others stay as they lie."""
    said, folder, before = [], root / steps.NAME, contents(root)
    lying = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    rebuilt(monkeypatch, versions)
    (folder / "deep.npz").write_bytes(b"")
    steps.regenerate(root, say=said.append)
    assert contents(root) == before and said == [f"k3: 1 of {len(PLANS)} files written, MANIFEST.json written"]
    monkeypatch.setattr(steps, "PLANS", {case: plan for case, plan in PLANS.items() if case != "deep_prefill"})
    assert list(steps.problems(root)) == ["k3/deep_prefill: an orphan, PLANS has no such walk: run python -m goldens regenerate k3"]
    steps.regenerate(root, say=said.append)
    assert said[1:] == ["k3/deep_prefill: removed, PLANS no longer has it", f"k3: 0 of {len(PLANS) - 1} files written, MANIFEST.json written"]
    assert {path.name for path in folder.iterdir() if path.stat().st_mtime_ns != lying[path.name]} == {"deep.npz", MANIFEST}
    assert not (folder / "deep_prefill.npz").exists() and list(steps.problems(root)) == []


def test_command(capsys):
    assert main(["verify", "k3"]) == 0
    assert main(["show", "k3/moe_chain"]) == 0
    assert "step 0: token" in capsys.readouterr().out
    assert main(["show", "k3/no_such_walk"]) == 2 and "k3 has no golden 'no_such_walk'" in capsys.readouterr().err


def test_diff_of_walks(root, walked, capsys):
    """The first step of both that differs; a file of a walk is one too."""
    moved, row = walked.landings.copy(), walked.row.copy()
    moved[5, 7:9] ^= 1
    row[3] ^= 1
    assert walks_diff(walked, walked) == []
    assert walks_diff(walked, replace(walked, landings=moved)) == [f"step 5: {walked.names[7]} differs, and 1 after it"]
    assert walks_diff(walked, replace(walked, landings=moved, row=row)) == ["step 3: the logits differ"]
    assert walks_diff(walked, replace(walked, bits=walked.bits + 1)) == ["bits differs"]
    (root / "moved.npz").write_bytes(npz_bytes(replace(walked, landings=moved).arrays()))
    assert main(["diff", "k3/moe_chain", str(root / "moved.npz")]) == 1 and "step 5: " in capsys.readouterr().out
    assert main(["diff", "k3/moe_chain", "k3/moe_chain"]) == 0 and capsys.readouterr().out == ""
    assert main(["diff", "k3/moe_chain", "k3/moe_chain_prefill"]) == 1
    assert capsys.readouterr().out.startswith("steps 0 .. 39 -> 15 .. 39\nstep 15: start embedding#1 o differs")
    assert main(["diff", "k3/deep", "land/minus_zero"]) == 1 and "landings: gone" in capsys.readouterr().out


def test_search_takes_no_walks(monkeypatch, capsys):
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["search", "k3"]) == 2 and "KERNEL of a search must be a kernel, got 'k3'" in capsys.readouterr().err


# What a gate sees


def result(walked, step=3, **changes):
    """A step as the golden has it, the logits left out of it."""
    seen = {name: int(one) for name, one in zip(walked.names, walked.landings[step], strict=True) if one}
    return replace(Result(step, int(walked.tokens[step]), np.zeros(4, np.float32), int(walked.greedy[step]), seen), **changes)


@pytest.fixture
def plain(walked):
    """The walk, its logits those of `result`."""
    return replace(walked, row=np.full_like(walked.row, steps.digest(np.zeros(4, np.float32))))


def test_a_step_that_differs(plain):
    good, name = result(plain), plain.names[7]
    assert plain.problem(good, landings=True) == ""
    assert plain.problem(replace(good, seen=good.seen | {name: 1})) == f"step 3: {name} differs, and 0 after it"
    assert plain.problem(replace(good, logits=np.ones(4, np.float32))) == "step 3: the logits differ"
    assert plain.problem(replace(good, greedy=-1)) == f"step 3: token -1, golden {good.greedy}"
    assert plain.problem(replace(good, seen={})) == "" and "differs" in plain.problem(replace(good, seen={}), landings=True)
    assert plain.problem(replace(good, seen={"of no golden": 1})) == "step 3: of no golden differs, and 0 after it"


def test_coin_flips_are_spent_only_within_the_floor(walked):
    """Another token is one only at a margin of at most 2 ulp, and only the golden's own next ones."""
    margins = [walked.margin(step) for step in range(len(walked.greedy))]
    close = replace(walked, bits=np.repeat(walked.bits[:, :1], steps.TOP, axis=1))  # all five alike: margin 0
    other = Result(3, 0, np.zeros(4, np.float32), int(walked.top[3, 1]), {})
    assert margins[3] > gates.FLOOR
    same, next_best, never = int(walked.greedy[3]), other.greedy, -1
    for base, token, verdict in ((walked, same, (0, 0)), (walked, next_best, (1, 0)), (close, next_best, (0, 1)), (close, never, (1, 0))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gates, "stepped", lambda case, base=base: base)
            beyond, spent = gates.flips("moe_chain", [replace(other, greedy=token)])
            assert (len(beyond), len(spent)) == verdict


def test_no_steps_flip_nothing(walked, monkeypatch):
    """They are not the stored golden's."""
    monkeypatch.setattr(gates, "stepped", lambda case: replace(walked, greedy=walked.greedy + 1))
    assert len(gates.flips("moe_chain")[0]) == len(walked.greedy) and gates.flips("moe_chain", []) == ([], [])
