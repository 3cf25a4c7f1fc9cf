"""Calling a launcher, without a GPU or torch: the argument list that follows from the signature, and what its status says."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from kernels_cuda.launch import CudaError, argument_names, arguments, call
from references.contract import Signature

SIGNATURE = Signature.parse("x: bf16[m@ldx, n], gamma: f32[n], eps: f32, off: int -> o: bf16[m, n]")
NAMES = ("x", "gamma", "eps", "off", "o", "m", "n", "ldx", "form", "stream")
BUFFERS = {name: SimpleNamespace(pointer=address, pitch=11) for name, address in (("x", 0x100), ("gamma", 0x200), ("o", 0x300))}


def toy_arguments():
    return arguments(SIGNATURE, BUFFERS, {"eps": 0.5, "off": 4}, {"m": 2, "n": 8}, "retired", 0x400)


def test_argument_list_follows_from_the_signature():
    assert argument_names(SIGNATURE) == NAMES
    assert [argument.value for argument in toy_arguments()] == [0x100, 0x200, 0.5, 4, 0x300, 2, 8, 11, 1, 0x400]
    pointer, long = ctypes.c_void_p, ctypes.c_int64
    assert [type(a) for a in toy_arguments()] == [pointer, pointer, ctypes.c_float, long, pointer, long, long, long, ctypes.c_int, pointer]


@pytest.mark.parametrize("position, said", [(4, r"off = 4"), (1, r"x = 0x100"), (8, "ldx = 11"), (9, "form = 1")])
def test_refused_argument_is_named_with_its_value(position, said):
    with pytest.raises(ValueError, match=rf"^toy refuses argument {position}: {said} \("):
        call(SimpleNamespace(toy=lambda *_: -position), "toy", SIGNATURE, toy_arguments())


def test_status_beyond_the_arguments_is_an_error_of_the_launcher():
    with pytest.raises(RuntimeError, match="toy returned -11, but has 10 arguments"):
        call(SimpleNamespace(toy=lambda *_: -11), "toy", SIGNATURE, toy_arguments())


def test_runtime_error_has_its_name():
    library = SimpleNamespace(toy=lambda *_: 9, cudaGetErrorName=lambda _: b"cudaErrorInvalid", cudaGetErrorString=lambda _: b"invalid")
    with pytest.raises(CudaError, match=r"toy: cudaErrorInvalid \(9\): invalid"):
        call(library, "toy", SIGNATURE, toy_arguments())


def test_success_is_silent_and_a_missing_launcher_is_not():
    call(SimpleNamespace(toy=lambda *_: 0), "toy", SIGNATURE, toy_arguments())
    with pytest.raises(ValueError, match=r'toy\.cu must export extern "C" int toy'):
        call(SimpleNamespace(), "toy", SIGNATURE, [])
