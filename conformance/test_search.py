"""The search keeps few slices, and together they show what it says they show."""

import numpy as np
import pytest

from conformance.toy import BLIND, MINUS_ZERO, ORDINARY, columns, drifted, inputs, pool, toy
from goldens import GoldenError, load, make
from goldens.__main__ import main
from goldens.diff import diff, first_rows
from goldens.regenerate import regenerate, search_again
from goldens.search import fewest, search, shows, unshown
from references.contract.inputs import spread
from references.contract.mistakes import mistakes


def quiet(line):
    pass


def test_fewest():
    """One slice that shows much is kept before several that show little; a mistake that no slice shows is left out."""
    shown = {"a": [1, 0, 1, 0], "b": [0, 1, 1, 0], "c": [0, 0, 0, 1], "d": [0, 0, 0, 0]}
    picked = fewest({key: np.array(slices, bool) for key, slices in shown.items()})
    assert picked == [(2, ["a", "b"]), (3, ["c"])]


def test_everything_is_shown():
    goldens = [make(toy(), ORDINARY), make(toy(), MINUS_ZERO)]
    before = unshown(toy(), goldens, [pool(0)])
    found = search(toy(), goldens, say=quiet)
    assert found.unseen == () and {*found.shown} == before.keys() - BLIND.keys()
    assert len(found.inputs["x"]) <= len(found.shown) and np.array_equal(found.inputs["w"], inputs(1)["w"])
    golden = make(toy(), found.case)  # asserts each of `shown`
    assert unshown(toy(), [*goldens, golden], [pool(0)]).keys() == BLIND.keys()


def test_what_stays_unseen_is_said():
    found = search(toy(blind={}), [make(toy(), ORDINARY)], seeds=1, say=quiet)
    assert {"S3.mul:landed", "S4.bf:skipped"} <= {*found.unseen} and not {*found.unseen} & {*found.shown}
    assert search(toy(cases=()), [], seeds=0, say=quiet).inputs is None


def test_columns_fill_vectors():
    """Found columns are repeated up to a multiple of 8, so that the vector path meets them."""
    kernel = columns(lambda seed: {"x": spread(seed, (2, 256), -70, 60)})
    found = search(kernel, [], say=quiet)
    assert found.unseen == () and found.inputs["x"].shape[1] == 8 and len({*found.inputs["x"].view(np.uint16)[0]}) < 8
    golden = make(kernel, found.case)
    assert all(shows(kernel, golden, mistake) for mistake in mistakes(kernel, [found.inputs]) if not mistake.among(kernel.blind))


def test_pools_share_what_has_no_slices():
    moving = toy(cases=(), pool=lambda seed: pool(seed) | {"off": seed})
    with pytest.raises(GoldenError, match=r"pool\(seed\) must give the same off for every seed: it has no axis m"):
        search(moving, [], say=quiet)


def test_searched_inputs_are_kept(tmp_path):
    """Once found they are stored bits: regenerating does not search, and `search` writes its own file only."""
    def broken(seed):
        raise AssertionError("searched again")

    regenerate(toy(), tmp_path, quiet)
    before = {path.name: path.read_bytes() for path in (tmp_path / "toy").iterdir()}
    regenerate(toy(pool=broken), tmp_path, quiet)
    assert search_again(toy(), tmp_path, quiet) == ()
    assert {path.name: path.read_bytes() for path in (tmp_path / "toy").iterdir()} == before
    search_again(toy(pool=lambda seed: pool(seed + 100)), tmp_path, quiet)
    after = {path.name: path.read_bytes() for path in (tmp_path / "toy").iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"searched.npz", "MANIFEST.json"}
    assert "S3.mul:flushed" in load("toy", "searched", tmp_path).guards


def test_search_needs_an_undrifted_emulator(tmp_path):
    regenerate(toy(), tmp_path, quiet)
    with pytest.raises(GoldenError, match="goldens are of version 1, not 2: regenerate first"):
        search_again(toy(version=2), tmp_path, quiet)
    drift = toy(drifted())
    with pytest.raises(GoldenError, match="toy/ordinary does not reproduce"):
        search_again(drift, tmp_path, quiet)


def test_show_and_diff(tmp_path, capsys):
    regenerate(toy(), tmp_path, quiet)
    command = ["--folder", str(tmp_path)]
    assert main([*command, "show", "toy/minus_zero"]) == 0
    shown = capsys.readouterr().out
    assert "toy/minus_zero (schedule version 1): a sum of -0 is +0" in shown and "in.x: bfloat16[1, 3, 16] 0x8000 (-0), " in shown
    assert "in.off: int64 2" in shown and "out.o: bfloat16[1, 16] 0x0000 (0), " in shown
    assert main([*command, "diff", "toy/minus_zero", "toy/minus_zero"]) == 0
    assert capsys.readouterr().out == ""
    assert main([*command, "diff", "toy/minus_zero", str(tmp_path / "toy" / "ordinary.npz")]) == 1
    assert "in.x: shape [1, 3, 16] -> [2, 3, 16]" in capsys.readouterr().out
    assert main([*command, "show", "toy"]) == 2 and "a golden is named KERNEL/CASE, got 'toy'" in capsys.readouterr().err
    assert main([*command, "verify", "no_such_kernel"]) == 2


def test_diff_counts_bits():
    old, new = ({"o": np.array(bits, np.uint16)} for bits in ([0x3F80, 0x0000, 0x3F80, 0x7FFF], [0x3F82, 0x8000, 0x3F80, 0x3F80]))
    assert diff(old, new) == ["o: 3 of 4 elements changed, worst 2 ulp, 1 to or from NaN"]
    assert list(first_rows(old["o"], new["o"]))[:2] == ["  [0]  0x3f80 (1) -> 0x3f82 (1.015625)", "  [1]  0x0000 (0) -> 0x8000 (-0)"]
