"""The gate on a toy kernel and a device that is a stand-in: what it finds, and what it says of it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from conformance import device
from conformance.gate import check_device, check_emulator, interior
from conformance.message import ALL_DIFFER, BOTH_CHANGED, EMULATOR_CHANGED, KERNEL_CHANGED, save
from conformance.toy import MANY, MINUS_ZERO, ORDINARY, drifted, inputs, right, toy
from goldens import make
from references.__main__ import read_inputs
from references.arith.site import Laboratory
from references.contract.mistakes import find, same_bits

LAYOUTS = ("aligned", "offset")
TRUNCATED = "S3.bf:truncated"


def stand_in(kernel, key="", places=None, spoil=None):
    """A device that makes the mistake `key` at some (form, layout) places (None: everywhere); `spoil(outputs, launch number)` edits."""
    launches = iter(range(1000))

    def prepare(inputs, layout, traced):
        def run(form):
            wrong = key and (places is None or (form, layout) in places)
            mistake = find(kernel, key, inputs) if wrong else None
            landed = {}

            def note(visit, result):
                if hasattr(visit.word, "lands"):
                    landed.setdefault(int(visit.name[1]), []).append(result.astype("bfloat16"))

            with Laboratory(faults={mistake.site: mistake.fault} if mistake else {}, watch=note):
                outputs = kernel.outputs(inputs)
            number = next(launches)
            if spoil:
                outputs = spoil({name: value.copy() for name, value in outputs.items()}, number)
            return SimpleNamespace(outputs=outputs, landings={tag: np.stack(landed[tag]) for tag in traced})

        return SimpleNamespace(run=run)

    return prepare


def check(kernel, case, prepare, trace=None, **options):
    return check_device(kernel, make(kernel, case), prepare, trace, LAYOUTS, **options)


@pytest.mark.parametrize("case", [ORDINARY, MINUS_ZERO, MANY], ids=lambda case: case.name)
def test_exact(case):
    kernel = toy()
    assert check_emulator(kernel, make(kernel, case)) is None
    assert check(kernel, case, stand_in(kernel), stand_in(kernel)) is None


def test_a_kernel_that_truncates():
    """Wrong in one form and layout only: found there, explained, and the places that are exact are named."""
    kernel = toy()
    found = check(kernel, ORDINARY, stand_in(kernel, TRUNCATED, [("current", "offset")]), stand_in(kernel, TRUNCATED))
    text = found.text("sm_90a", "saved.npz", "pytest x").splitlines()
    assert text[0].startswith("toy/ordinary current/offset: o differs in ") and "device 0x" in text[0] and "golden 0x" in text[0]
    said = {line[2:12].strip(): line[13:] for line in reversed(text[1:])}
    assert said["verdict"] == KERNEL_CHANGED
    assert said["first"].startswith("S3.bf is the first landing that differs (S3 changed, or a step before it): in ")
    assert said["diagnosis"] == "the device's bits are those of S3.bf: the landing truncates instead of rounding to nearest even"
    assert said["replays"] == "3 of 3 identical"
    assert said["elsewhere"] == "exact: current/aligned, retired/aligned, retired/offset"
    assert (said["build"], said["saved"], said["again"], said["the case"]) == ("sm_90a", "saved.npz", "pytest x", ORDINARY.why)


def test_only_a_landing_moves():
    """The outputs hide it: the trace build does not."""
    kernel = toy()
    found = check(kernel, MINUS_ZERO, stand_in(kernel), lambda *a: SimpleNamespace(run=lambda form: SimpleNamespace(landings=_positive(a))))
    assert found.place == "current/trace" and found.verdict == KERNEL_CHANGED
    assert found.headline.startswith("toy/minus_zero current/trace: S3.bf differs in 48 of 48 (100 %), worst 0 ulp")


def _positive(prepared):
    return {tag: np.zeros_like(landing) for tag, landing in prepared[2].items()}


def test_the_last_landing_is_the_schedule_s_last():
    """A loop that skips work may visit S9 before S6 and S10: S10 is still what leaves the kernel. Where no output is of its type, nothing does."""
    landings = {site: np.zeros(2, np.uint16) for site in ("S9.bf", "S6.bf", "S10.bf")}
    assert interior(SimpleNamespace(landings=landings, outputs={"o": np.zeros(2, np.uint16)})) == {"S6.bf": 6, "S9.bf": 9}
    assert interior(SimpleNamespace(landings=landings, outputs={"o": np.zeros(2, np.float32)})) == {"S6.bf": 6, "S9.bf": 9, "S10.bf": 10}


def test_no_mistake_explains_it():
    def spoil(outputs, number):
        outputs["o"].view(np.uint16)[0, 3] ^= 0x40
        return outputs

    kernel = toy()
    found = check(kernel, ORDINARY, stand_in(kernel, spoil=spoil))
    assert found.diagnosis[0].startswith("none of the ") and "replays" in found.text()


def test_a_race():
    def spoil(outputs, number):
        if number == 1:
            outputs["o"].view(np.uint16)[0, 0] += 1
        return outputs

    kernel = toy()
    found = check(kernel, ORDINARY, stand_in(kernel, spoil=spoil))
    assert found.replays == "1 of 3 differ from the first -> a RACE"
    assert check(kernel, ORDINARY, stand_in(kernel, spoil=spoil), replays=1) is not None, "the second place is the second launch"


def test_an_output_left_unwritten():
    kernel = toy()
    found = check(kernel, ORDINARY, stand_in(kernel, spoil=lambda outputs, number: outputs | {"top": None}))
    assert found.headline == "toy/ordinary current/aligned: top: unwritten, and should be written"


def test_a_result_that_is_not_landed():
    """No landing is blamed for it."""
    def spoil(outputs, number):
        outputs["top"].view(np.uint32)[0] ^= 1
        return outputs

    kernel = toy()
    found = check(kernel, ORDINARY, stand_in(kernel, spoil=spoil), stand_in(kernel))
    assert found.first == "" and found.landed == ["none of the landings before the result differs: S3.bf"]
    found = check(kernel, ORDINARY, stand_in(kernel, "S4.bf:truncated"), stand_in(kernel))
    assert found.first == "S4.bf" and found.landed == ["S4.bf, which lands the result, is the first landing that differs; S3.bf before it exact"]


def test_mistakes_that_a_case_cannot_tell_apart_are_all_named():
    kernel = toy()
    found = check(kernel, MINUS_ZERO, stand_in(kernel, "S1.zero:minus_zero"))
    assert any("S1.zero: the sum starts from its first term" in line for line in found.diagnosis)


def test_a_large_case_shows_the_slices_that_differ():
    def spoil(outputs, number):
        outputs["o"].view(np.uint16)[[17, 30], 5] ^= 1
        return outputs

    kernel = toy()
    found = check(kernel, MANY, stand_in(kernel, spoil=spoil))
    assert found.note == "2 of 40 along m differ; the rest of this message is about 2 of them: 17, 30"
    assert [row.index for row in found.differences[0].rows] == [(17, 5), (30, 5)]
    assert found.headline.startswith("toy/many current/aligned: o differs in 2 of 32 (6.2 %), worst 1 ulp, first at [17, 5]: device ")
    assert found.headline.endswith(" (2 of 40 along m differ)")
    assert found.verdict == KERNEL_CHANGED and found.arrays["in.x"].shape[0] == 2
    found = check(kernel, MANY, stand_in(kernel, TRUNCATED))
    assert found.diagnosis == ["the device's bits are those of S3.bf: the landing truncates instead of rounding to nearest even"]


# Verdicts, when the emulator is not what it was


@pytest.mark.parametrize("case", [ORDINARY, MANY], ids=lambda case: case.name)
def test_the_emulator_changed(case):
    found = check_emulator(toy(drifted()), make(toy(), case))
    assert found.verdict == EMULATOR_CHANGED and "emulator 0x" in found.headline
    assert "raise version= in references/toy.py" in found.text()


@pytest.mark.parametrize(("now", "then", "lands", "does_not"), [(drifted, right, "golden", "emulator"), (right, drifted, "emulator", "golden")],
                         ids=["removed", "added"])
def test_a_landing_of_one_side_is_the_first_that_differs(now, then, lands, does_not):
    """Where it moves an output, and where it moves none: then it is the headline, and not said twice."""
    said = f"S3.bf: the {lands} lands here, the {does_not} does not"
    found = check_emulator(toy(now()), make(toy(then(), cases=()), replace(ORDINARY, guards=())))
    assert found.headline.startswith("toy/ordinary: o differs in ") and (found.first, found.landed) == ("S3.bf", [said])
    assert found.summary.startswith("S3.bf, o differs in ") and "; first S3.bf (the whole message: ties)" in found.line("ties")
    found = check_emulator(toy(now()), make(toy(then()), MINUS_ZERO))
    assert found.headline == f"toy/minus_zero: {said}" and found.text().count("S3.bf") == 1
    assert found.summary == said and found.line("ties") == f"{found.headline} (the whole message: ties)"


def test_what_changed_in_the_emulator_is_named_once_a_kernel():
    diagnosed = set()
    one, two = (check_emulator(toy(drifted()), make(toy(), case), diagnosed=diagnosed) for case in (ORDINARY, MANY))
    assert one.diagnosis == ["the golden's bits are those of this emulator with S3.mul: the f32 result is rounded to bf16 on the way"]
    assert two.diagnosis == [] and diagnosed == {"toy"}
    alone = check_emulator(toy(drifted()), make(toy(), MANY), diagnosed=set())
    assert alone.diagnosis == one.diagnosis, "the slices of a large golden tell it, too"
    assert check_emulator(toy(drifted()), make(toy(), MINUS_ZERO), diagnosed=(untold := set())).diagnosis == [] and not untold


@pytest.mark.parametrize(("version", "said"), [(1, "raise version= in references/toy.py, then run python"), (2, "  if meant   run python")])
def test_a_version_that_is_raised_is_not_asked_for(version, said):
    now = toy(drifted(), version=version)
    for found in (check_emulator(now, make(toy(), ORDINARY)), check_device(now, make(toy(), ORDINARY), stand_in(now), None, LAYOUTS)):
        assert f"{said} -m goldens regenerate toy" in found.text()


def test_of_an_emulator_that_changed_the_slices_are_told():
    """Those that the golden keeps, counted in the whole case."""
    golden = make(toy(), MANY)
    found = check_emulator(toy(drifted()), golden, limit=1000)
    assert found.note == "the golden keeps 5 of 40 along m; the rest of this message is about them: 0, 1, 13, 20, 39"
    assert {row.index[0] for row in found.differences[0].rows} == set(golden.positions)


@pytest.mark.parametrize("case", [ORDINARY, MANY], ids=lambda case: case.name)
def test_both_changed_alike_or_apart(case):
    golden, now = make(toy(), case), toy(drifted())
    assert check_device(now, golden, stand_in(toy()), None, LAYOUTS) is None, "the device is held to the golden, not to the emulator"
    assert check_device(now, golden, stand_in(now), None, LAYOUTS).verdict == BOTH_CHANGED
    assert check_device(now, golden, stand_in(toy(), "S4.bf:truncated"), None, LAYOUTS).verdict == ALL_DIFFER


@pytest.mark.parametrize("device", [stand_in(toy(drifted())), stand_in(toy(), "S4.bf:truncated")], ids=["alike", "apart"])
def test_what_is_called_golden_is_the_golden(device):
    """Where the emulator is another, a large case shows the samples that the golden keeps."""
    golden = make(toy(), MANY)
    found = check_device(toy(drifted()), golden, device, None, LAYOUTS, limit=1000)
    assert found.note.startswith("the golden keeps 5 of 40 along m;") and found.headline.endswith("(the golden keeps 5 of 40 along m)")
    (difference,) = found.differences
    sample, place = golden.samples["o"].view(np.uint16), golden.positions.tolist().index
    assert difference.rows and all(row.want == sample[place(row.index[0]), row.index[1]] for row in difference.rows)
    assert same_bits(found.arrays["golden.o"], golden.samples["o"])


def test_rows_between_the_samples():
    """Where no sample shows it, what is known is which rows differ; whether device and emulator are alike is asked of every row."""

    def spoil(outputs, number):
        outputs["o"].view(np.uint16)[[17, 30], 5] ^= 1
        return outputs

    golden, now = make(toy(), MANY), toy(drifted())
    found = check_device(now, golden, stand_in(toy(), spoil=spoil), None, LAYOUTS)
    assert "o: 2 of 40 rows are not the golden's, the first is row 17 (" in found.headline and found.verdict == ALL_DIFFER
    assert check_device(now, golden, stand_in(now, spoil=spoil), None, LAYOUTS).verdict == ALL_DIFFER


def test_a_recipe_of_fewer_rows():
    """What the golden keeps beyond them is left out."""
    fewer = toy(cases=[replace(MANY, make=lambda: inputs(30, seed=2))])
    golden = make(toy(), MANY)
    found = check_device(fewer, golden, stand_in(fewer), None, LAYOUTS)
    assert found.headline.startswith("toy/many current/aligned: o: shape [4, 16], should be [5, 16]") and found.verdict == BOTH_CHANGED
    assert check_emulator(fewer, golden).note.startswith("the golden keeps 4 of 30 along m;")


# Planted mistakes, files


def test_a_planted_mistake_must_be_the_one_it_claims(monkeypatch):
    kernel = toy()
    made = {case.name: make(kernel, case) for case in (ORDINARY, MINUS_ZERO, MANY)}
    monkeypatch.setattr(device.goldens, "load", lambda name, case: made[case])
    monkeypatch.setattr(device.goldens, "case_names", lambda name: tuple(made))
    assert device.judge_mistake(kernel, TRUNCATED, stand_in(kernel, TRUNCATED)) == (["ordinary"], [])
    seen, wrong = device.judge_mistake(kernel, "S4.bf:truncated", stand_in(kernel, TRUNCATED))
    assert seen == ["ordinary"] and any("not the bits of S4.bf:truncated" in line for line in wrong)
    assert device.judge_mistake(kernel, TRUNCATED, stand_in(kernel))[0] == [], "a plant that does nothing is seen by no golden"


def test_saved_arrays_can_be_run_again(tmp_path):
    kernel = toy()
    found = check(kernel, ORDINARY, stand_in(kernel, TRUNCATED))
    path = save(found, tmp_path / "new")
    assert path.name == "toy-ordinary-device-current-aligned.npz"
    again = read_inputs(kernel, path)
    assert all(np.array_equal(again[name], value) for name, value in ORDINARY.make().items())
    with np.load(path) as stored:
        assert {"device.o", "golden.o", "emulator.o", "device.top"} <= set(stored.files)
        assert (stored["device.o"] != stored["golden.o"]).any() and (stored["emulator.o"] == stored["golden.o"]).all()
