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
from references.contract.signature import DTYPES, FORMS, Signature, holds

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("emulate", "cases", "pool", "INDEPENDENT", "BENCH")  # what every kernel module has
CANONICAL_NAN = np.uint32(0x7FFFFFFF).view(np.float32)


class KernelError(ValueError):
    """A kernel is not whole; the message names it and what it lacks."""


def schedule(
    signature: str,
    *,
    version: int,
    requires: tuple[str, ...] = (),
    forms: tuple[str, ...] = FORMS,
    raw: tuple[str, ...] = (),
    refuse: Callable[..., None] | None = None,
) -> Callable:
    """Turn the body of an emulator, written in f32 arrays, into the public `emulate`.

    The public form takes NumPy arrays (or torch tensors) of the signature's dtypes, checks them, and returns the outputs in the
    signature's dtypes: one array, or a tuple where there are several. An output the schedule leaves unwritten is None.
    Raises ValueError naming the argument and its value; KernelError for a signature that cannot be read.

    forms:  the kernel's forms, the current one first; with an operand `form: form` each follows its own schedule and has its own goldens
    raw:    bf16 operands that reach the body as they are stored, since little of a large pool is read, or a copy keeps a NaN's payload
    refuse: see `Signature`
    """

    def decorate(body: Callable) -> Callable:
        parameters = inspect.signature(body)
        try:
            parsed = Signature.parse(signature, requires, forms, refuse)
        except ValueError as error:
            raise KernelError(f"{body.__module__}: {error}") from None

        @functools.wraps(body)
        def checked(*args, **kwargs):
            bound = parameters.bind(*args, **kwargs)
            bound.apply_defaults()
            values = {name: to_numpy(value) for name, value in bound.arguments.items()}
            sizes = parsed.check(values)
            widened = {o.name: values[o.name] if o.name in raw else _widen(o, values[o.name]) for o in parsed.inputs}
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
    if operand.dtype in ("f32", "bf16") and not operand.is_array:
        return np.float32(value)
    return as_f32(value) if operand.dtype == "bf16" else value


def _store(operand, result, sizes):
    if (result is not None) != holds(operand.when, sizes):
        raise AssertionError(f"{operand.name} is {'un' * (result is None)}written, signature says: if {operand.when}")
    if result is None:
        return None
    if result.shape != operand.shape(sizes):
        raise AssertionError(f"{operand.name}: emulated shape {result.shape}, signature says {operand.shape(sizes)}")
    return stored(result, operand.dtype)


def stored(result: np.ndarray, dtype: str) -> np.ndarray:
    """An array of an emulator as it is stored. Of f32 a NaN gets the one pattern of its dtype; bf16 was copied and keeps its bits."""
    if dtype == "bf16" and result.dtype != DTYPES["bf16"]:
        return as_bf16(bf.word(result) if planted() else result)
    if dtype == "f32":
        result = np.where(np.isnan(result), CANONICAL_NAN, result)
    return np.ascontiguousarray(result, DTYPES[dtype])


@dataclass(frozen=True)
class Kernel:
    """One kernel as its module states it.

    name:         the stem shared by references/, kernels_cuda/ and goldens/
    independents: the sizes along which results do not influence each other; searches keep single slices of each
    blind:        mistakes that no golden can see, each with the reason
    inplace:      outputs that may lie where an input does, with that input
    """

    name: str
    module: ModuleType

    @classmethod
    def load(cls, name: str) -> Kernel:
        """The kernel of references/<name>.py. ValueError where there is none, KernelError where it is not whole."""
        if name not in names():
            raise ValueError(f"KERNEL must be one of {', '.join(names())}, got {name!r}")
        kernel = cls(name, importlib.import_module(f"references.{name}"))
        kernel.refuse_unfinished()
        return kernel

    def refuse_unfinished(self) -> None:
        file = f"references/{self.name}.py"
        lacking = [part for part in PARTS if not getattr(self.module, part, None)]
        if lacking:
            raise KernelError(f"{file} has no {', '.join(lacking)}")
        if not (self.module.__doc__ or "").startswith(f"{self.name}: "):
            raise KernelError(f"{file} must begin with a docstring that begins with '{self.name}: ' and what it computes")
        strange = [dim for dim in self.independents if dim not in self.signature.dims]
        if strange:
            raise KernelError(f"{file}: INDEPENDENT must be of the sizes {', '.join(self.signature.dims)}, got {strange[0]!r}")

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
        return self.signature.forms

    @property
    def independent(self) -> str:
        return self.independents[0]

    @property
    def independents(self) -> tuple[str, ...]:
        named = self.module.INDEPENDENT
        return (named,) if isinstance(named, str) else named

    @property
    def inplace(self) -> Mapping[str, str]:
        return getattr(self.module, "INPLACE", {})

    @property
    def blind(self) -> Mapping[str, str]:
        return getattr(self.module, "BLIND", {})

    def pool(self, seed: int, schedule: str = "") -> dict[str, Any]:
        """Candidates for the search; `schedule` is one of `schedules`, by which a module with several may choose."""
        return self.module.pool(seed, *([schedule] if schedule else [])) | self.choice(schedule)

    @property
    def schedules(self) -> tuple[str, ...]:
        """The forms, where each follows a schedule of its own; else the one schedule of all forms, which has no name."""
        return self.forms if self.signature.form else ("",)

    def choice(self, schedule: str) -> dict[str, str]:
        """The operand that asks for this schedule."""
        return {self.signature.form: schedule} if schedule else {}

    def schedule_of(self, inputs: Mapping[str, Any]) -> str:
        return inputs[self.signature.form] if self.signature.form else ""

    def forms_for(self, inputs: Mapping[str, Any]) -> tuple[str, ...]:
        """The forms that must give the bits which the emulator gives for these inputs."""
        return (self.schedule_of(inputs),) if self.signature.form else self.forms

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
