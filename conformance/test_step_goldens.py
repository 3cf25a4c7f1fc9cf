"""The goldens of whole steps: verified, refused where they are not what they were, and a gate that sees what differs."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from conformance import steps as gates
from conformance.suites import told
from goldens import GoldenError, steps
from goldens.__main__ import main
from goldens.files import MANIFEST, npz_bytes
from goldens.store import ROOT
from goldens.walks import PLANS, Result


@pytest.fixture
def root(tmp_path):
    shutil.copytree(ROOT / steps.NAME, tmp_path / steps.NAME)
    return tmp_path


@pytest.fixture(scope="module")
def walked():
    return steps.load("moe_chain")


def test_step_goldens():
    assert list(steps.problems()) == []


def edit_manifest(root, change):
    path = root / steps.NAME / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_what_is_wrong_is_said(root, walked):
    folder = root / steps.NAME
    (folder / "stray.npz").write_bytes(b"")
    assert list(steps.problems(root)) == [f"{folder / 'stray.npz'}: an orphan, there is no such walk: remove it"]
    (folder / "stray.npz").unlink()
    edit_manifest(root, lambda manifest: manifest["kernels"].update(land=0))
    assert "made by other versions of the model or its kernels" in next(steps.problems(root))
    changed = replace(walked, greedy=walked.greedy + 1)
    (folder / "moe_chain.npz").write_bytes(npz_bytes(changed.arrays()))
    assert "it was edited" in next(steps.problems(root))
    (folder / "moe_chain.npz").unlink()
    assert "is missing" in next(steps.problems(root))


def test_a_walk_that_drifts_is_not_blessed(root, walked, monkeypatch):
    """Only a raised version of the model, or of a kernel, changes a walked."""
    made = {case: (steps.load(case), {"land": 1}) for case in PLANS}
    edit_manifest(root, lambda manifest: manifest.update(kernels={"land": 1}))
    monkeypatch.setattr(steps, "make", made.__getitem__)
    steps.regenerate(root, say=lambda line: None)
    assert list(steps.problems(root, rebuild=True)) == []
    made["moe_chain"] = replace(walked, greedy=walked.greedy + 1), {"land": 1}
    assert "k3/moe_chain: the emulators give other steps" in next(steps.problems(root, rebuild=True))
    with pytest.raises(GoldenError, match="k3: moe_chain would change, but no version did"):
        steps.regenerate(root, say=lambda line: None)
    monkeypatch.setattr(steps, "VERSION", steps.VERSION + 1)
    steps.regenerate(root, say=lambda line: None)
    assert steps.load("moe_chain", root).greedy[0] == walked.greedy[0] + 1


def test_command(capsys):
    assert main(["verify", "k3"]) == 0
    assert main(["show", "k3/moe_chain"]) == 0
    assert "step 0: token" in capsys.readouterr().out
    assert main(["show", "k3/no_such_walk"]) == 1 and "k3 has no golden 'no_such_walk'" in capsys.readouterr().err


# What a gate sees


def result(walked, step=3, **changes):
    """A step as the golden has it, the logits left out of it."""
    seen = {name: int(one) for name, one in zip(walked.names, walked.landings[step], strict=True) if one}
    return replace(Result(step, int(walked.tokens[step]), np.zeros(4, np.float32), int(walked.greedy[step]), seen), **changes)


@pytest.fixture
def plain(walked):
    """The walked, its logits those of `result`."""
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


def test_a_gate_holds_where_all_its_tests_do():
    gates_of = {1: {"exact"}, 2: {"exact", "not run"}, 3: {"exact", "failed", "not run"}}
    assert told("paged_kv", "device", gates_of) == "paged_kv       device    1/3 gates hold; failed: 3; not run: 2"
