"""The parts of the bench that need no GPU: what is timed how often, what is drawn, what is printed."""

from types import SimpleNamespace

import numpy as np
import pytest

from conformance.toy import forms
from kernels_cuda import bench, buffers, floors
from kernels_cuda.floors import Rates, Row, plan, shape_text

RATES = Rates(copy=4e12, matrix=8e14)


def test_samples_are_long_enough_and_few_when_slow():
    for us, sets in ((3, 8), (90, 1), (500, 5), (1500, 4), (30_000, 2), (5_000_000, 1)):
        launches, samples = plan(us, sets)
        assert launches * us >= floors.SAMPLE_US and (launches == 1 or launches % sets == 0)
        assert floors.FEWEST <= samples <= bench.SAMPLES and (samples == floors.FEWEST or samples * launches * us <= floors.FORM_US)


def test_a_row_is_held_to_its_larger_floor():
    assert RATES.floor_us({"bytes": 4e8, "flops": 4e11}) == (100, 500) and RATES.floor_us({"bytes": 4e8}) == (100, 0)
    row = Row("mla", "b=1", (100, 500), 120, {"mma": 1000, "two_pass": 40_000}, True)
    assert row.fraction == 0.5
    assert str(row).split() == ["mla", "b=1", "100.0", "500.0", "120.0", "1000.0", "50.0%", "40000.0", "40.0"]
    assert str(Row("mla", "b=1", (1, 1), 1, {"a": 1}, False)).endswith("BITS DIFFER")


def test_forms_of_a_copy():
    assert bench.Row("land", "", 10**6, {"current": 2.0, "retired": 5.0}, 1.5, True).fraction == 0.75
    assert " 2.50 " in str(bench.Row("land", "", 10**6, {"current": 2.0, "retired": 5.0}, 1.5, True))
    assert " 1.00 " in str(bench.Row("gather", "", 10**6, {"current": 2.0}, 1.5, True))


def test_a_shape_is_told_by_what_differs():
    entries = ({"b": 1, "t": 65, "h": 96}, {"b": 16, "t": 65, "h": 96})
    assert shape_text(entries[0], entries) == "b=1" and shape_text(entries[0], entries[:1]) == "b=1 t=65 h=96"


def test_operands_that_a_module_gives(monkeypatch):
    torch = pytest.importorskip("torch", reason="device memory is held by torch")
    monkeypatch.setattr(buffers, "DEVICE", "cpu")
    kernel, sizes = forms(), {"m": 2, "h": 2, "n": 8, "p": 4, "s": 0.75}
    kernel.module.bench_inputs = lambda sizes: {"t": np.full(sizes["m"], 3, np.int32)}
    drawn = bench.InputSet(kernel, bench.check(kernel, sizes))
    assert drawn.inputs["t"].body.tolist() == [3, 3] and torch.unique(drawn.inputs["x"].body).numel() > 8
    with pytest.raises(ValueError, match="BENCH of forms must give s, got "):
        bench.check(kernel, {name: size for name, size in sizes.items() if name != "s"})
    seen = []
    library = SimpleNamespace(forms=lambda *args: seen.append(args[-2].value) or 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    drawn.launcher(library, "late")()
    assert seen == [1]


@pytest.mark.parametrize("cost", [{"flops": 1e6}, {"bytes": 0, "flops": 1e6}, {"bytes": 7.5}])
def test_a_cost_without_bytes_is_refused(cost):
    pytest.importorskip("torch", reason="the timer imports it")
    kernel, sizes = forms(), {"m": 0, "h": 2, "n": 8, "p": 4, "s": 0.75}
    kernel.module.cost = lambda sizes: cost
    with pytest.raises(ValueError, match=rf"BENCH of forms must move at least 8 bytes, moves {cost.get('bytes', 0)} at .*'m': 0"):
        floors.measure(kernel, None, sizes)


def test_a_copy_has_whole_pages_or_words():
    kernel, page = forms(), bench.COPY_PAGES
    copied = [bench.copy_bytes(kernel, {}, moved) for moved in (8, 15.5, page - 1, page, 2 * page + 9, 2 * bench.COPY_LARGEST)]
    assert copied == [8, 8, page - 8, page, 2 * page, bench.COPY_LARGEST]
