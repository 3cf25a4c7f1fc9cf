"""The noise floor: forms that may differ stay within their bounds, the record is of what is here, and no bound outlives its reason."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.report_html import floor_section
from conformance.toy import form_inputs, forms
from references.contract.inputs import ordinary, values
from references.contract.mistakes import find
from references.floor import Bound, Deviation, Distribution, distances, study, subjects
from references.floor._command import planting, present
from references.floor._record import entry, needless, problems, read, write
from references.floor._study import EDGES, beyond, outputs


@pytest.mark.parametrize("subject", subjects())
def test_floor(subject):
    assert [*problems(subject, subjects()[subject], read())] == []


@pytest.mark.parametrize("subject", ["fmha", "mla_paged"])
def test_what_the_floor_sees(subject):
    """Scores that are scaled, landed or rounded wrongly leave it. A landing left out or cut after them does not: only a form's own bits tell."""
    of = subjects()[subject]
    planted = {key: planting(subject, mistake) for (_, key), mistake in present(of).items() if key in SEES[subject]}
    assert {key: bool([*beyond(of, study(of, range(2), emulate))]) for key, emulate in planted.items()} == SEES[subject]

    def misscaled(kernel, inputs):
        return outputs(kernel, inputs | ({"scale": 0.0732421875} if inputs.get("form") != "three_sweep" else {}))  # 1.4 % more

    assert [*beyond(of, study(of, range(2), misscaled))] and not [*beyond(of, study(of, range(2)))]


SEES = {
    "fmha": {"S4.sub#2:landed": True, "S7.mul:landed": True, "S6.bf:skipped": False, "S6.bf:truncated": False, "S9.bf:truncated": False},
    "mla_paged": {"two_pass/S2.bf:skipped": True, "two_pass/S3.hmul:truncated": True, "two_pass/S5.bf:skipped": False,
                  "two_pass/S6.bf:truncated": False, "two_pass/S7.bf:truncated": False},
}


# The unit


def test_ulp_of_an_element_and_of_its_row():
    long = [8.0] + [0.0] * 63  # RMS 1
    assert distances(values([[*long[:-1], 2**-20]]), np.array([long]))[0, -1] == 2**-20 / 2**-6, "an element near 0: twice the RMS, 2, has the unit"
    assert distances(values([[8 + 2**-4, *long[1:]]]), np.array([long]))[0, 0] == 1, "a large one: its own ULP"
    assert distances(values([[8, *long[1:]]]), np.array([[8 - 2**-4, *long[1:]]]))[0, 0] == 1, "the larger of the two, 8"
    assert distances(values([[2**-133]]), np.array([[2.0**-132]]))[0, 0] == 1, "subnormal numbers are 2^-133 apart"
    assert distances(np.float32([[8 + 2**-20, *long[1:]]]), np.float32([long]))[0, 0] == 1


def test_what_is_not_finite():
    inf, nan = np.inf, np.nan
    got = distances(values([[inf, -inf, nan, nan, 1, inf]]), np.array([[inf, inf, nan, 1, nan, 1]]))
    assert got.tolist() == [[0, inf, 0, inf, inf, inf]]
    assert distances(values([[inf, 1 + 2**-7]]), np.array([[inf, 1]])).tolist() == [[0, 0.5]], "an infinity does not hide its row"
    with pytest.raises(ValueError, match=r"want must have shape \[1, 2\], got \[2\]"):
        distances(values([[1, 2]]), np.ones(2))


def test_distribution():
    one = Distribution.of(np.array([0, 0, 0, 0.05, 1, 1, 1.5, 2, 3, 1000]))
    assert (one.elements, one.median, one.p90, one.max) == (10, 1, 1000, 1000)
    rare = Distribution.of(np.array([0.0] * 19_999 + [3.0]))
    assert (rare.p99, rare.p9999, rare.max) == (0, 0, 3)
    assert dict(zip((*EDGES, "beyond"), one.histogram, strict=True)) == dict.fromkeys(EDGES, 0) | {0: 3, 2**-4: 1, 1: 2, 2: 2, 4: 1, "beyond": 1}


# Bounds


def subject(bound: float = 40.0, pairs=("early ~ late",)) -> SimpleNamespace:
    """Two forms that differ by a landing on the way; `twice`, a pair of equals."""

    def deviations(seed, emulate):
        x = {"x": ordinary(seed, (4, 2, 64)), "big": values([0.0]), "t": np.zeros(4, np.int32)}
        early, late = (emulate(forms(), form_inputs(form) | x | {"s": s})["o"] for form, s in (("early", 0.5625), ("late", 0.75)))
        for pair in pairs:
            yield Deviation(pair, "ordinary", late, late if pair == "twice" else early)

    return SimpleNamespace(BOUNDS={pair: Bound(bound, "a landing on the way") for pair in pairs}, SEEDS=3, KERNELS=(), deviations=deviations)


def recorded(of: SimpleNamespace, seeds: int = 3) -> dict:
    return {"toy": entry("toy", of, study(of, range(seeds)), seeds)}


def test_a_bound_that_fits():
    largest = study(subject(), range(3))["early ~ late", "ordinary"].max
    assert 0.5 <= largest <= 1
    assert [*problems("toy", subject(1.0), recorded(subject(1.0)))] == []


def test_a_rare_element_may_be_further_off():
    """One in 20,000: below what a bound is about, but not beyond the largest that is allowed."""
    found = {("a ~ b", "flat"): Distribution.of(np.array([0.5] * 19_999 + [3.0]))}
    of = SimpleNamespace(BOUNDS={"a ~ b": Bound(2.0, "", most=4.0)})
    assert [*beyond(of, found)] == []
    of.BOUNDS = {"a ~ b": Bound(2.0, "", most=2.5)}
    assert [*beyond(of, found)] == ["a ~ b, flat: an element is 3 ULP off, at most 2.5 are allowed (median 0.5, p90 0.5)"]
    of.BOUNDS = {"a ~ b": Bound(0.25, "", most=4.0)}
    assert [*beyond(of, found)] == ["a ~ b, flat: one in 10,000 elements is 0.5 ULP off, at most 0.25 are allowed (median 0.5, p90 0.5)"]


@pytest.mark.parametrize(("key", "leaves"), [("late/S3.bf:skipped", False), ("late/S3.mul:absent", True), ("late/S2.bf:skipped", False)])
def test_what_a_bound_sees(key, leaves):
    """A scale that is left out leaves any bound; a landing that is left out stays inside, which is why forms are held to bits of their own."""
    of, kernel = subject(1.0), forms()
    if key.endswith("absent"):
        def emulate(kernel, inputs):
            return outputs(kernel, inputs | ({"s": 1.0} if inputs["form"] == "late" else {}))
    else:
        emulate = planting(kernel.name, find(kernel, key, form_inputs("late")))
    assert bool([*beyond(of, study(of, range(3), emulate))]) == leaves


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda kept: kept.clear(), "toy: nothing recorded: run python -m references floor toy --record"),
        (lambda kept: kept["toy"]["schedules"].update(land=0), "toy: recorded of schedules {'land': 0}"),
        (lambda kept: kept["toy"]["pairs"]["early ~ late"].update(ulp=3), "toy: recorded with other bounds"),
        (lambda kept: kept["toy"]["pairs"]["early ~ late"].update(why="no reason"), "toy: recorded with other bounds"),
        (lambda kept: kept["toy"]["pairs"]["early ~ late"]["regimes"]["ordinary"].update(max=0.25), "ordinary: max 1 ULP, recorded 0.25"),
        (lambda kept: kept["toy"]["pairs"]["early ~ late"]["regimes"].update(flat=0), "regimes flat, ordinary are recorded, measured are ordinary"),
    ],
)
def test_a_record_that_is_not_of_this(change, said):
    kept = recorded(subject(1.0))
    change(kept)
    found = next(problems("toy", subject(1.0), kept))
    assert said in found


def test_bounds_that_nothing_comes_near():
    assert "is more than 4 times what is measured" in next(needless(recorded(subject(40.0))["toy"]))
    assert [*needless(recorded(subject(1.0, ("early ~ late", "twice")))["toy"])] == [
        "twice: exact, so it needs no bound: remove it from BOUNDS and compare bits"
    ]


def test_pairs_and_bounds_are_the_same():
    of = subject()
    of.BOUNDS = {**of.BOUNDS, "early ~ truth": Bound(1, "not compared")}
    with pytest.raises(ValueError, match="BOUNDS must be of the pairs early ~ late, got early ~ late, early ~ truth"):
        study(of, range(1))


# The file and the report


def test_file(tmp_path):
    path = tmp_path / "floor.json"
    assert read(path) == {}
    write(recorded(subject(1.0)), path)
    write({"other": recorded(subject(1.0))["toy"]}, path)
    assert [*read(path)] == ["other", "toy"] and read(path)["toy"]["command"] == "python -m references floor toy --record --seeds 3"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"schema": 0}))
    with pytest.raises(ValueError, match=r"floor\.json must be of schema 1"):
        read(path)


def test_report():
    page = floor_section(recorded(subject(1.0)))
    assert "<h2>Deviation distributions</h2>" in page and "early ~ late" in page and page.count("<svg") == 1 and "a landing on the way" in page
    assert floor_section({}) == ""
