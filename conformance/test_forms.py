"""Kernels whose forms follow schedules of their own: operands, goldens, mistakes, searches and launches know which form is meant."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from conformance import device
from conformance.gate import check_device
from conformance.test_gate import stand_in
from conformance.test_mistakes import complaints
from conformance.toy import form_inputs, form_pool, forms
from goldens import load, make
from goldens.diff import describe
from goldens.regenerate import regenerate
from goldens.search import shows
from kernels_cuda import buffers, launch
from references.__main__ import read_inputs
from references.arith import asc, bf, mul
from references.arith.site import Laboratory
from references.contract import Case, Signature, schedule
from references.contract.inputs import BF16, from_bits, values
from references.contract.mistakes import find, mistakes

PAIRS = ("S2.mul:landed", "S2.bf:skipped", "S3.bf:skipped")
EARLY, LATE = form_inputs("early"), form_inputs("late")


def quiet(line):
    pass


# Operands


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"form": "retired"}, "form must be one of early, late, got 'retired'"),
        ({"form": 0}, "form must be one of early, late, got 0"),
        ({"s": 0.1}, r"s must be a number that bf16 holds, got 0\.1"),
        ({"s": True}, "s must be a number that bf16 holds, got True"),
        ({"t": np.array([0, 4], np.int32)}, r"t must be in 0\.\.3, got 0\.\.4"),
        ({"t": np.array([0, 1])}, "t must be a int32 array, got int64"),
    ],
)
def test_refusals(change, said):
    with pytest.raises(ValueError, match=said):
        forms().emulate(**EARLY | change)
    with pytest.raises(ValueError, match=said):
        launch.Prepared(forms(), SimpleNamespace(), EARLY | change)


def test_scalars_that_bf16_holds():
    for s in (0.75, 1, -0.0, float("inf"), float("nan"), np.float32(2**-133), BF16.type(0.1)):
        assert forms().emulate(**EARLY | {"s": s})[0].dtype == BF16


def test_forms_differ_and_each_is_its_function():
    assert forms().forms == forms().schedules == ("early", "late")
    early, late = (forms().outputs(inputs) for inputs in (EARLY, LATE))
    assert np.array_equal(early["top"], late["top"]) and not np.array_equal(early["o"], late["o"])
    assert forms().forms_for(LATE) == ("late",)


# Sites


def test_tags_are_those_of_the_function_chosen():
    seen = []
    with Laboratory(watch=lambda visit, result: seen.append(visit.name)):
        forms().emulate(**EARLY)
    assert seen == ["S1.amax", "S1.kept", "S2.gathered.select", "S2.gathered.add", "S2.mul", "S2.bf"]


def test_a_mistake_belongs_to_one_form():
    found = {mistake.key: mistake for mistake in mistakes(forms(), [EARLY, LATE])}
    assert {"early/S2.bf:truncated", "late/S2.bf:truncated", "late/S3.bf:truncated"} <= found.keys() and "early/S3.bf:truncated" not in found
    early, late = (make(forms(), case) for case in forms().cases())
    assert shows(forms(), early, found["early/S2.bf:truncated"]) and not shows(forms(), late, found["early/S2.bf:truncated"])
    assert find(forms(), "S2.bf:truncated", LATE) == find(forms(), "late/S2.bf:truncated", LATE) == found["late/S2.bf:truncated"]
    with pytest.raises(ValueError, match=r"got .early/S2\.bf:truncated."):
        find(forms(), "early/S2.bf:truncated", LATE)


# Goldens


def test_goldens_of_forms(tmp_path):
    """Each form's mistakes are searched for, its slices cut along both independent sizes, and its golden says whose it is."""
    kernel = forms()
    assert regenerate(kernel, tmp_path, quiet) == ()
    early = load("forms", "searched_early", tmp_path)
    assert early.inputs["form"] == "early" and early.inputs["s"] == 0.75 and load("forms", "searched_late", tmp_path).inputs["form"] == "late"
    rows, heads = early.inputs["x"].shape[:2]
    assert rows < 16 and heads < 16 and len(early.inputs["t"]) == rows
    assert "in.form: early" in [*describe(early)]
    goldens = [load("forms", name, tmp_path) for name in ("early", "late", "searched_early", "searched_late")]
    assert complaints(kernel, goldens) == []
    unseen = complaints(kernel, goldens[:2])
    assert any(line.endswith("(early/S2.bf:flushed)") for line in unseen) and any(line.endswith("(late/S3.bf:flushed)") for line in unseen)
    assert any(line.endswith("(late/S3.bf:flushed)") for line in complaints(kernel, goldens[:3])), "the other form's golden does not count"
    before = {path.name: path.read_bytes() for path in (tmp_path / "forms").iterdir()}
    regenerate(forms(pool=lambda seed, form: form_pool(seed + 100, form)), tmp_path, quiet)
    assert {path.name: path.read_bytes() for path in (tmp_path / "forms").iterdir()} == before


def test_blind_of_one_form_excuses_no_other():
    blind = {**forms().blind}
    del blind["late/S3.bf:skipped"], blind["S2.mul:landed"]
    blind["early/S2.mul:landed"] = "its landing follows"
    goldens = [make(forms(), case) for case in forms().cases()]
    lines = complaints(forms(blind=blind), goldens)
    said = {key for key in (f"{form}/{pair}" for form in ("early", "late") for pair in PAIRS) if any(f"({key})" in line for line in lines)}
    assert said == {"late/S2.mul:landed", "late/S3.bf:skipped"}


def test_kept_values_are_f32_landings():
    golden = make(forms(), next(forms().cases()))
    assert golden.landings["S1.kept"].dtype == np.float32 and golden.landings["S2.bf"].dtype == BF16
    nan = form_inputs("early") | {"x": from_bits(np.full((2, 2, 8), 0xFFC1))}
    golden = make(forms(), Case("nan", "NaN", lambda: nan))
    assert (golden.arrays()["land.S1.kept"] == 0x7FFFFFFF).all() and (golden.arrays()["out.top"] == 0x7FFFFFFF).all()


def test_visits_of_different_shapes_are_joined():
    def emulate(x):
        for j in asc(2):  # S1
            y = bf(mul(x[:, j:], x[:, j:]))  # S1
        return y  # S1

    kernel = SimpleNamespace(emulate=schedule("x: bf16[m, 2] -> o: bf16[m, 1]", version=1)(emulate), INDEPENDENT="m")
    golden = make(type(forms())("ragged", kernel), Case("ragged", "", lambda: {"x": values([[1, 2], [3, 4]])}))
    assert golden.landings["S1.bf"].astype(float).tolist() == [1, 4, 9, 16, 4, 16]


@pytest.mark.parametrize("rows, written", [(0, False), (2, True), (0, True), (2, False)])
def test_what_a_schedule_leaves_unwritten_is_in_its_signature(rows, written):
    def emulate(x, rows):
        return x, x if written else None

    emulated = schedule("x: f32[m], rows: int -> o: f32[m], next: f32[m] if rows > 0", version=1)(emulate)
    if written == (rows > 0):
        assert (emulated(np.ones(3, np.float32), rows)[1] is not None) == written
    else:
        with pytest.raises(AssertionError, match=f"next is {'' if written else 'un'}written, signature says: if rows > 0"):
            emulated(np.ones(3, np.float32), rows)


def test_inputs_from_a_file(tmp_path):
    golden = make(forms(), next(forms().cases()))
    np.savez(tmp_path / "golden.npz", **golden.arrays())
    np.savez(tmp_path / "typed.npz", **{k: v for k, v in golden.arrays().items() if k != "in.form"}, form="late")
    assert read_inputs(forms(), tmp_path / "golden.npz")["form"] == "early" and read_inputs(forms(), tmp_path / "typed.npz")["form"] == "late"


# The device


@pytest.fixture
def host(monkeypatch):
    torch = pytest.importorskip("torch", reason="device memory is held by torch")
    monkeypatch.setattr(buffers, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(launch, "synchronise", lambda name: None)


def test_arguments(host):
    """The form is the trailing index and no argument of its own; a bf16 scalar is a float."""
    seen = {}

    def forms_launcher(x, big, t, s, o, top, m, h, n, p, form, stream):
        seen.update(s=s, form=form.value, sizes=(m.value, h.value, n.value, p.value))
        return 0

    kernel = forms()
    launch.Prepared(kernel, SimpleNamespace(forms=forms_launcher), LATE).run("late")
    assert (seen["form"], seen["sizes"], seen["s"].value, type(seen["s"])) == (1, (2, 2, 8, 4), 0.75, ctypes.c_float)
    with pytest.raises(ValueError, match="form must be one of early, late, got 'current'"):
        launch.Prepared(kernel, SimpleNamespace(forms=forms_launcher), LATE).run("current")


def test_traced_f32(host):
    def forms_launcher(*args):
        ctypes.c_float.from_address(named[1]).value = 1.5
        return 0

    def trace(tag, pointer):
        named[tag] = pointer.value
        return 0

    named, library = {}, SimpleNamespace(forms=forms_launcher)
    library.trace = trace
    landing = launch.Prepared(forms(), library, EARLY, traced={1: np.empty((2, 2), np.float32)}).run("early").landings[1]
    assert landing.dtype == np.float32 and landing[0, 0] == 1.5


def test_gate_launches_only_the_goldens_form():
    kernel, ran = forms(), []
    right = stand_in(kernel)

    def prepare(*args):
        return SimpleNamespace(run=lambda form: ran.append(form) or right(*args).run(form))

    late = make(kernel, [*kernel.cases()][1])
    assert check_device(kernel, late, prepare, None, ("aligned",)) is None and {*ran} == {"late"}
    wrong = check_device(kernel, late, stand_in(kernel, "late/S3.bf:truncated"), None, ("aligned",))
    assert wrong.place == "late/aligned"
    assert wrong.diagnosis == ["the device's bits are those of S3.bf: the landing truncates instead of rounding to nearest even"]


def test_a_mistake_planted_in_one_form_leaves_the_other_alone(monkeypatch):
    kernel = forms()
    made = {case.name: make(kernel, case) for case in kernel.cases()}
    monkeypatch.setattr(device.goldens, "load", lambda name, case: made[case])
    monkeypatch.setattr(device.goldens, "case_names", lambda name: tuple(made))

    def planted(in_form):
        return lambda inputs, layout, traced: stand_in(kernel, "S2.bf:truncated" if inputs["form"] in in_form else "")(inputs, layout, traced)

    assert device.judge_mistake(kernel, "late/S2.bf:truncated", planted(["late"])) == (["late"], [])
    assert device.judge_mistake(kernel, "S2.bf:truncated", planted(["early", "late"])) == (["early", "late"], [])
    _, wrong = device.judge_mistake(kernel, "late/S2.bf:truncated", planted(["early", "late"]))
    assert wrong and all(line.startswith("early: not the bits of late/S2.bf:truncated") for line in wrong)


# Outputs in place of inputs

INPLACE = Signature.parse("acc: f32[m, n], x: f32[m, n] -> acc_out: f32[m, n]")
SUMS = SimpleNamespace(name="sums", signature=INPLACE, forms=("current",), inplace={"acc_out": "acc"})
TWO = {"acc": np.array([[1, 2]], np.float32), "x": np.array([[3, 4]], np.float32)}


def sums(stray=None):
    def launcher(acc, x, out, m, n, form, stream):
        a, b, o = ((ctypes.c_float * 3).from_address(pointer.value) for pointer in (acc, x, out))
        for i in range(2):
            o[i] = a[i] + b[i]
        if stray is not None:
            {"acc": a, "x": b}[stray[0]][stray[1]] = 9
        return 0

    return SimpleNamespace(sums=launcher)


def test_an_output_in_place_of_an_input(host):
    assert buffers.layouts_of(SUMS) == ("aligned", "offset", "inplace") and buffers.layouts_of(forms()) == ("aligned", "offset")
    for layout in buffers.layouts_of(SUMS):
        prepared = launch.Prepared(SUMS, sums(), TWO, layout)
        assert (prepared.inputs["acc"].pointer == prepared.outputs["acc_out"].pointer) == (layout == "inplace")
        for _ in range(2):  # the input is there again for every run
            assert prepared.run("current").outputs["acc_out"].tolist() == [[4, 6]]


@pytest.mark.parametrize(
    ("stray", "said"), [(("acc", 2), "acc was written outside its array: 1 elements"), (("x", 0), "x is an input and was written: 1 elements")]
)
def test_in_place_still_sees_stray_writes(host, stray, said):
    with pytest.raises(buffers.MemoryFault, match=said):
        launch.Prepared(SUMS, sums(stray), TWO, "inplace").run("current")
