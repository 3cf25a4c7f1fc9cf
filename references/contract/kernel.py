"""Kernels are found, never registered: `references/<kernel>.py` is the contract of `kernels_cuda/<kernel>.cu`."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from references.arith import as_bf16, as_f32, bf
from references.arith.site import planted
from references.contract.case import Case
from references.contract.signature import DTYPES, Signature

ROOT = Path(__file__).resolve().parent.parent
CANONICAL_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def schedule(signature: str, *, version: int, requires: tuple[str, ...] = ()) -> Callable:
    """Turn the body of an emulator, written in f32 arrays, into the public `emulate`.

    The public form takes NumPy arrays (or torch tensors) of the signature's dtypes, checks them, and returns the outputs in the
    signature's dtypes: one array, or a tuple where there are several. An output the schedule leaves unwritten is None.
    Raises ValueError naming the argument and its value.
    """
    parsed = Signature.parse(signature, requires)

    def decorate(body: Callable) -> Callable:
        parameters = inspect.signature(body)

        @functools.wraps(body)
        def checked(*args, **kwargs):
            bound = parameters.bind(*args, **kwargs)
            bound.apply_defaults()
            values = {name: to_numpy(value) for name, value in bound.arguments.items()}
            sizes = parsed.check(values)
            widened = {operand.name: _widen(operand, values[operand.name]) for operand in parsed.inputs}
            with np.errstate(all="ignore"):
                results = body(**widened)
            results = results if isinstance(results, tuple) else (results,)
            stored = tuple(_store(operand, result, sizes) for operand, result in zip(parsed.outputs, results, strict=True))
            return stored if len(stored) > 1 else stored[0]

        checked.signature, checked.version, checked.body = parsed, version, body
        return checked

    return decorate


def to_numpy(value: Any) -> Any:
    """A torch tensor as a NumPy array of the same bits (NumPy has no bfloat16 of its own, so bits travel as int16)."""
    if not hasattr(value, "__dlpack__") or isinstance(value, np.ndarray | np.generic):
        return value
    tensor = value.detach().cpu()
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    import torch

    return tensor.view(torch.int16).numpy().view(DTYPES["bf16"])


def _widen(operand, value):
    if operand.dtype == "f32" and not operand.is_array:
        return np.float32(value)
    return as_f32(value) if operand.dtype == "bf16" else value


def _store(operand, result, sizes):
    if result is None:
        return None
    if result.shape != operand.shape(sizes):
        raise AssertionError(f"{operand.name}: emulated shape {result.shape}, signature says {operand.shape(sizes)}")
    if operand.dtype == "bf16":
        return as_bf16(bf.word(result) if planted() else result)
    if operand.dtype == "f32":
        result = np.where(np.isnan(result), CANONICAL_NAN, result)
    return np.ascontiguousarray(result, DTYPES[operand.dtype])


@dataclass(frozen=True)
class Kernel:
    """One kernel as its module states it.

    name:        the stem shared by references/, kernels_cuda/ and goldens/
    independent: the size along which results do not influence each other; searches keep single slices of it
    blind:       (site, fault) pairs that no golden can see, each with the reason
    """

    name: str
    module: ModuleType

    @classmethod
    def load(cls, name: str) -> Kernel:
        if name not in names():
            raise ValueError(f"KERNEL must be one of {', '.join(names())}, got {name!r}")
        return cls(name, importlib.import_module(f"references.{name}"))

    @property
    def emulate(self) -> Callable:
        return self.module.emulate

    @property
    def signature(self) -> Signature:
        return self.emulate.signature

    @property
    def version(self) -> int:
        return self.emulate.version

    @property
    def forms(self) -> tuple[str, ...]:
        return getattr(self.module, "FORMS", ("current", "retired"))

    @property
    def independent(self) -> str:
        return self.module.INDEPENDENT

    @property
    def blind(self) -> Mapping[str, str]:
        return getattr(self.module, "BLIND", {})

    @property
    def pool(self) -> Callable[[int], dict]:
        return self.module.pool

    def cases(self) -> Iterator[Case]:
        yield from self.module.cases()

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
        """Emulate; results by name."""
        results = self.emulate(**inputs)
        results = results if isinstance(results, tuple) else (results,)
        return {operand.name: result for operand, result in zip(self.signature.outputs, results, strict=True)}


@functools.cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_")))


def kernels() -> tuple[Kernel, ...]:
    """Every kernel, by name."""
    return tuple(Kernel.load(name) for name in names())
