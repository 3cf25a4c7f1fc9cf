"""Launch a kernel on NumPy inputs and hand back its outputs, with everything around them checked.

The argument list follows from the signature: inputs, outputs, sizes, row strides, form, stream. torch is used for device memory only.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels_cuda.buffers import GUARD_BYTES, INPLACE, LAYOUTS, Buffer, MemoryFault, Overwritten, layouts_of
from references.contract.kernel import Kernel
from references.contract.signature import DTYPES, Operand, Signature

__all__ = ["LAYOUTS", "CudaError", "DeviceLost", "MemoryFault", "Outcome", "Prepared", "layouts_of"]

KERNEL_SECONDS = 120  # under the sanitizer, too
TAGS = 16  # landings a TRACE build has room for: `traced` of common.cuh
_SCALARS = {"int": ctypes.c_int64, "f32": ctypes.c_float, "bf16": ctypes.c_float}
_lost: list[str] = []  # why the device is lost, once it is


class CudaError(RuntimeError):
    """The runtime refused or failed a launch; the device is usable."""


class DeviceLost(CudaError):
    """A sticky error: nothing more can run on the GPU in this process."""


@dataclass(frozen=True)
class Outcome:
    """outputs: by name, None where the kernel wrote nothing; landings: of a TRACE build, by the number of the schedule tag."""

    outputs: dict[str, np.ndarray | None]
    landings: dict[int, np.ndarray] = field(default_factory=dict)


def argument_names(signature: Signature) -> tuple[str, ...]:
    """The launcher's parameters, in order."""
    operands = (operand.name for operand in (*signature.arguments, *signature.outputs))
    return (*operands, *signature.dims, *signature.strides, "form", "stream")


def arguments(signature: Signature, buffers: Mapping[str, Any], values: Mapping[str, Any], sizes: Mapping[str, int], form: str, stream: int) -> list:
    """The launcher's arguments as ctypes values; a buffer has a `pointer` and a `pitch` (elements from row to row)."""
    operands = (*signature.arguments, *signature.outputs)
    return [
        *(ctypes.c_void_p(buffers[o.name].pointer) if o.is_array else _SCALARS[o.dtype](values[o.name]) for o in operands),
        *(ctypes.c_int64(sizes[dim]) for dim in signature.dims),
        *(ctypes.c_int64(buffers[o.name].pitch) for o in operands if o.stride),
        ctypes.c_int(signature.forms.index(form)),
        ctypes.c_void_p(stream),
    ]


def call(library: ctypes.CDLL, name: str, signature: Signature, args: list) -> None:
    """Call a launcher. Its -k is a ValueError naming argument k, a cudaError_t is a CudaError."""
    try:
        launcher = getattr(library, name)
    except AttributeError:
        raise ValueError(f'{name}.cu must export extern "C" int {name}(...)') from None
    launcher.restype = ctypes.c_int
    status = launcher(*args)
    if status > 0:
        raise CudaError(f"{name}: {error_text(library, status)}")
    if status < 0:
        names = argument_names(signature)
        if -status > len(names):
            raise RuntimeError(f"{name} returned {status}, but has {len(names)} arguments")
        said = [f"{n} = {hex(a.value or 0) if isinstance(a, ctypes.c_void_p) else a.value}" for n, a in zip(names, args, strict=True)]
        raise ValueError(f"{name} refuses argument {-status}: {said[-status - 1]} (called with {', '.join(said[:-1])})")


def trace(library: ctypes.CDLL, name: str, pointers: Mapping[int, int]) -> None:
    """Tell a TRACE build where each tag lands: every tag, so that no buffer of an earlier run is left in the library."""
    for tag in range(TAGS):
        status = library.trace(tag, ctypes.c_void_p(pointers.get(tag)))
        if status:
            raise CudaError(f"{name}: trace({tag}): {error_text(library, status)}")


def error_text(library: ctypes.CDLL, status: int) -> str:
    """Name and sentence of a cudaError_t, from the runtime the library is linked to."""
    texts = []
    for function in ("cudaGetErrorName", "cudaGetErrorString"):
        asked = getattr(library, function)
        asked.restype, asked.argtypes = ctypes.c_char_p, [ctypes.c_int]
        texts.append(asked(status).decode())
    return f"{texts[0]} ({status}): {texts[1]}"


class Prepared:
    """A kernel with its inputs on the device, to be run any number of times in any form."""

    def __init__(
        self,
        kernel: Kernel,
        library: ctypes.CDLL,
        inputs: Mapping[str, Any],
        layout: str = "aligned",
        traced: Mapping[int, np.ndarray] | None = None,
        guard_bytes: int = GUARD_BYTES,
    ):
        if _lost:
            raise DeviceLost(_lost[0])
        self.kernel, self.library, self.values = kernel, library, dict(inputs)
        self.sizes = kernel.signature.check(inputs)
        self._guard_bytes, self._place = guard_bytes, "aligned" if layout == INPLACE else layout
        self.inputs = {o.name: self._buffer(o).upload(inputs[o.name]) for o in kernel.signature.inputs if o.is_array}
        over = kernel.inplace if layout == INPLACE else {}
        self.outputs = {o.name: Overwritten(self.inputs[over[o.name]]) if o.name in over else self._buffer(o) for o in kernel.signature.outputs}
        self._overwritten = {*over.values()}
        if traced and not hasattr(library, "trace"):
            raise ValueError(f"traced needs a library of {kernel.name} built with TRACE")
        self.traced = {tag: Buffer(Operand(f"landing S{tag}", _contract_name(like.dtype)), like.shape) for tag, like in (traced or {}).items()}

    def _buffer(self, operand: Operand) -> Buffer:
        return Buffer(operand, operand.shape(self.sizes), self._place, self._guard_bytes)

    def enqueue(self, form: str) -> None:
        """Launch on the current stream; no check, no wait."""
        import torch

        if form not in self.kernel.forms:
            raise ValueError(f"form must be one of {', '.join(self.kernel.forms)}, got {form!r}")
        stream = torch.cuda.current_stream().cuda_stream
        signature = self.kernel.signature
        call(self.library, self.kernel.name, signature, arguments(signature, self.inputs | self.outputs, self.values, self.sizes, form, stream))

    def run(self, form: str) -> Outcome:
        """Launch on poisoned outputs, wait, check the memory around and hand back what was written."""
        for buffer in (*self.outputs.values(), *self.traced.values()):
            buffer.poison()
        try:
            if hasattr(self.library, "trace"):
                trace(self.library, self.kernel.name, {tag: buffer.pointer for tag, buffer in self.traced.items()})
            self.enqueue(form)
            synchronise(self.kernel.name)
        except DeviceLost:
            raise
        except CudaError:
            probe(self.kernel.name)
            raise
        for name, buffer in self.inputs.items():
            if name not in self._overwritten:
                buffer.check_unchanged()
        outputs = {name: buffer.download() for name, buffer in self.outputs.items()}
        return Outcome(outputs, {tag: buffer.landed() for tag, buffer in self.traced.items()})


def _contract_name(dtype: np.dtype) -> str:
    return next(name for name, known in DTYPES.items() if known == dtype)


def synchronise(name: str, seconds: float = KERNEL_SECONDS) -> None:
    """Wait for the current stream; what failed while a kernel ran is known only then. DeviceLost where it does not end."""
    import torch

    begin = time.monotonic()
    try:
        done = torch.cuda.Event()
        done.record()
        while not (ended := done.query()) and time.monotonic() - begin < seconds:
            time.sleep(1e-4)
    except RuntimeError as error:
        raise CudaError(f"{name}: {str(error).splitlines()[0]}") from error
    if not ended:
        _lost.append(f"{name} had not finished on the GPU after {seconds:g} s")
        raise DeviceLost(_lost[0])


def probe(name: str) -> None:
    """DeviceLost unless the device still computes."""
    import torch

    try:
        torch.ones(2, device="cuda").sum().item()
    except RuntimeError as error:
        _lost.append(f"{name} left the GPU unusable for this process: {str(error).splitlines()[0]}")
        raise DeviceLost(_lost[0]) from error
