"""The CUDA kernels on torch tensors, launched on the current stream: nothing waits, so that a step can be captured."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernels_cuda import build
from kernels_cuda.launch import arguments, call, trace
from references.contract import Kernel, Operand
from references.contract.kernel import to_numpy
from references.contract.landings import emulate_landings, tag
from references.contract.signature import DTYPES, holds
from references.k3.backend import Array, Landings

TORCH = {"bf16": "bfloat16", "f32": "float32", "u8": "uint8", "i32": "int32", "i64": "int64"}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class Cuda:
    """`planted`: the number of a planted mistake, by the name of the kernel that is built with it."""

    def __init__(self, planted: Mapping[str, int] | None = None):
        build.toolchain()  # says what is missing, where torch would fail in its own words
        import torch

        self.torch, self.planted = torch, dict(planted or {})
        self.types = {DTYPES[name]: getattr(torch, known) for name, known in TORCH.items()}

    # Arrays

    def upload(self, array: np.ndarray) -> Array:
        return self._host(array).cuda()

    def write(self, target: Array, source: np.ndarray) -> None:
        target.copy_(self._host(source))

    def _host(self, array: np.ndarray) -> Array:
        bits = np.array(array, order="C").view(SIGNED[array.dtype.itemsize])  # torch has no bf16 of NumPy; bits are moved untouched
        return self.torch.from_numpy(bits).view(self.types[array.dtype])

    def download(self, array: Array) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else to_numpy(array.contiguous())  # kernels take operands of the host, too

    def stack(self, arrays: Sequence[Array]) -> Array:
        return self.torch.stack(list(arrays), dim=1)

    # Kernels

    def run(self, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """What the contents of an operand decide (a table, a context, ids) is not checked: that would wait for the device."""
        return self._launched(self._library(kernel), kernel, inputs, into or {})

    def landed(self, kernel: Kernel, inputs: Mapping[str, Any], like: Landings | None = None) -> tuple[dict[str, Array], Landings]:
        if like is None:
            host = {name: self.download(value) if hasattr(value, "data_ptr") else value for name, value in inputs.items()}
            like = emulate_landings(kernel, host)[1]
        sites = sorted(like, key=tag)[:-1]
        if not sites:
            return self.run(kernel, inputs), {}
        held = {site: self.upload(np.full_like(like[site], np.nan)) for site in sites}
        library = self._library(kernel, "TRACE")
        trace(library, kernel.name, {tag(site): array.data_ptr() for site, array in held.items()})
        outputs = self._launched(library, kernel, inputs, {})
        return outputs, {site: self.download(array) for site, array in held.items()}

    def _launched(self, library: ctypes.CDLL, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, Array]) -> dict[str, Array]:
        signature = kernel.signature
        held = {o.name: self._packed(o, inputs[o.name]) if o.is_array else inputs[o.name] for o in signature.inputs}
        sizes = replace(signature, refuse=None).check({o.name: self._like(o, held[o.name]) for o in signature.inputs})
        outputs = {o.name: self._target(o, into[o.name], sizes) if o.name in into else self._empty(o, sizes) for o in signature.outputs}
        arrays = {name: value for name, value in (held | outputs).items() if hasattr(value, "data_ptr")}
        places = {name: SimpleNamespace(pointer=value.data_ptr(), pitch=_pitch(value)) for name, value in arrays.items()}
        stream = self.torch.cuda.current_stream().cuda_stream
        call(library, kernel.name, signature, arguments(signature, places, held, sizes, kernel.forms_for(inputs)[0], stream))
        return {o.name: outputs[o.name] if holds(o.when, sizes) else None for o in signature.outputs}

    def _library(self, kernel: Kernel, *defines: str) -> ctypes.CDLL:
        planted = (f"MISTAKE={self.planted[kernel.name]}",) if kernel.name in self.planted else ()
        return build.load(kernel.name, (*defines, *planted))

    def _packed(self, operand: Operand, value: Array | np.ndarray) -> Array:
        """Rows that may lie apart stay where they are."""
        value = self.upload(value) if isinstance(value, np.ndarray) else value
        return value if operand.stride and len(value) and value[0].is_contiguous() else value.contiguous()

    def _like(self, operand: Operand, value: Any) -> Any:
        """An array of the value's dtype and shape and no memory, for checks of the host."""
        if not operand.is_array:
            return value
        dtype = next(known for known, torchs in self.types.items() if torchs == value.dtype)
        return np.broadcast_to(np.empty((), dtype), tuple(value.shape))

    def _target(self, operand: Operand, target: Array, sizes: Mapping[str, int]) -> Array:
        """Memory that a kernel may take for an output's: it is told nothing but where that begins."""
        shape, dtype = operand.shape(sizes), self.types[DTYPES[operand.dtype]]
        if tuple(target.shape) != shape or target.dtype != dtype or not target.is_contiguous():
            apart = "" if target.is_contiguous() else ", not contiguous"
            raise ValueError(f"into {operand.name} must be contiguous {dtype} {list(shape)}, got {target.dtype} {list(target.shape)}{apart}")
        return target

    def _empty(self, operand: Operand, sizes: Mapping[str, int]) -> Array:
        return self.torch.empty(operand.shape(sizes), dtype=self.types[DTYPES[operand.dtype]], device="cuda")

    # Graphs

    def capture(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """The graph of a step and what it will have written after each replay. The step runs once before, so that everything is loaded."""
        step()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            results = step()
        return graph, results


def _pitch(value: Array) -> int:
    """Elements from row to row; of a single row torch's stride says nothing."""
    return value.stride(0) if value.ndim and len(value) > 1 else prod(value.shape[1:])
