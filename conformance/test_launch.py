"""What surrounds a launch, on host memory with stand-in launchers: guard bands, poison, layouts, unchanged inputs. Needs torch, no GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from kernels_cuda import buffers, launch
from kernels_cuda.launch import LAYOUTS, DeviceLost, MemoryFault, Prepared
from references.contract import Signature
from references.contract.inputs import BF16, from_bits

SIGNATURE = Signature.parse("x: bf16[m@ldx, n], k: int -> o: bf16[m, n]")
KERNEL = SimpleNamespace(name="toy", signature=SIGNATURE, forms=("current",), inplace={})
M, N = 3, 8
INPUTS = {"x": from_bits(np.arange(M * N).reshape(M, N)), "k": 1}


@pytest.fixture(autouse=True)
def host(monkeypatch):
    torch = pytest.importorskip("torch", reason="device memory is held by torch")
    monkeypatch.setattr(buffers, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(launch, "synchronise", lambda name: None)


def elements(pointer, count=1):
    return (ctypes.c_uint16 * count).from_address(pointer.value)


def copies(x, k, o, m, n, ldx, form, stream):
    for row in range(m.value):
        for column in range(n.value):
            put(o, row * n.value + column, get(x, row * ldx.value + column))
    return 0


def get(pointer, index):
    return elements(ctypes.c_void_p(pointer.value + 2 * index))[0]


def put(pointer, index, value):
    elements(ctypes.c_void_p(pointer.value + 2 * index))[0] = value


def run(toy, layout="aligned", traced=None, **library):
    return Prepared(KERNEL, SimpleNamespace(toy=toy, **library), INPUTS, layout, traced).run("current")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_output_comes_back_from_every_layout(layout):
    seen = {}

    def notes(x, k, o, m, n, ldx, form, stream):
        seen.update(x=x.value % 16, pitch=ldx.value, gap=get(x, n.value))
        return copies(x, k, o, m, n, ldx, form, stream)

    output = run(notes, layout).outputs["o"]
    assert output.dtype == INPUTS["x"].dtype and np.array_equal(output.view(np.uint16), INPUTS["x"].view(np.uint16))
    assert seen["x"] == (2 if layout == "offset" else 0)
    assert seen["pitch"] == {"strided": N + 8, "ragged": N + 3}.get(layout, N)
    assert (seen["gap"] == buffers.POISON[2]) == (layout in ("strided", "ragged"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index, said", [(-1, "the first 1 elements before it"), (M * N, "the first row 3, column 0")])
def test_write_beside_the_output_is_seen(layout, index, said):
    def strays(x, k, o, *rest):
        put(o, index, 0)
        return copies(x, k, o, *rest)

    with pytest.raises(MemoryFault, match=f"o was written outside its array: 1 elements, {said}"):
        run(strays, layout)


@pytest.mark.parametrize("layout, index", [("aligned", N), ("offset", -1), ("strided", N), ("ragged", N + 1)])
def test_write_to_an_input_or_between_its_rows_is_seen(layout, index):
    def strays(x, *rest):
        put(x, index, 0xABCD)
        return copies(x, *rest)

    with pytest.raises(MemoryFault, match="x is an input and was written: 1 elements"):
        run(strays, layout)


def test_partly_written_output_is_an_error_and_an_unwritten_one_is_none():
    def all_but_two(x, k, o, *rest):
        copies(x, k, o, *rest)
        put(o, 13, buffers.POISON[2])
        put(o, 20, buffers.POISON[2])
        return 0

    with pytest.raises(MemoryFault, match=r"o\[1, 5\] is the first of 2 elements of 24 left unwritten"):
        run(all_but_two)
    assert run(lambda *_: 0).outputs == {"o": None}


def test_outputs_are_poisoned_anew_for_every_run():
    prepared = Prepared(KERNEL, SimpleNamespace(toy=copies), INPUTS)
    assert prepared.run("current").outputs["o"] is not None
    prepared.library.toy = lambda *_: 0
    assert prepared.run("current").outputs["o"] is None


def test_no_rows_is_an_empty_output():
    inputs = {"x": INPUTS["x"][:0], "k": 1}
    assert Prepared(KERNEL, SimpleNamespace(toy=copies), inputs, "strided").run("current").outputs["o"].shape == (0, N)


def test_landings_come_back_by_tag_and_no_buffer_stays_named():
    named = {}

    def trace(tag, pointer):
        named[tag] = pointer
        return 0

    def stores(*args):
        if named[2].value:
            put(named[2], 1, 0x3F80)
        return copies(*args)

    landing = run(stores, traced={2: np.empty((2, 2), BF16)}, trace=trace).landings[2]
    assert landing.view(np.uint16).tolist() == [[buffers.POISON[2], 0x3F80], [buffers.POISON[2]] * 2]
    assert run(stores, trace=trace).landings == {} and not any(pointer.value for pointer in named.values())
    with pytest.raises(ValueError, match="traced needs a library of toy built with TRACE"):
        run(copies, traced={2: np.empty((2, 2), BF16)})


def test_bad_inputs_form_and_layout_are_refused_before_any_launch():
    def never(*_):
        raise AssertionError("launched")

    library = SimpleNamespace(toy=never)
    with pytest.raises(ValueError, match=r"k must be an integer, got 1\.5"):
        Prepared(KERNEL, library, INPUTS | {"k": 1.5})
    with pytest.raises(ValueError, match="layout must be one of aligned, offset, strided, ragged, got 'odd'"):
        Prepared(KERNEL, library, INPUTS, "odd")
    with pytest.raises(ValueError, match="form must be one of current, got 'retired'"):
        Prepared(KERNEL, library, INPUTS).run("retired")


def test_lost_device_is_told_apart_from_a_failed_launch(monkeypatch):
    fails = {"cudaGetErrorName": lambda _: b"cudaErrorX", "cudaGetErrorString": lambda _: b"x"}
    import torch

    monkeypatch.setattr(launch, "_lost", [])

    def sticky(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda size, device: ones(size))
    with pytest.raises(launch.CudaError, match=r"^toy: cudaErrorX \(9\): x$"):
        run(lambda *_: 9, **fails)
    monkeypatch.setattr(torch, "ones", sticky)
    for _ in range(2):  # the second is refused before it touches the device
        with pytest.raises(DeviceLost, match=r"toy left the GPU unusable for this process: CUDA error: an illegal memory access was encountered$"):
            run(lambda *_: 9, **fails)
