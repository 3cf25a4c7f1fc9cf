"""The signature of a kernel, one line: `x: bf16[m@ldx, n], gamma: bf16[n], eps: f32 -> o: bf16[m, n]`.

It is read by everything that handles a kernel's operands: the emulator's checks, the goldens, the CUDA launcher's argument list.
`m@ldx` says that rows may lie `ldx` elements apart; every other axis is packed. `p: f32[b, nt:off+inner]` says that of the last axis only
the `inner` columns from argument `off` on are used, so that p too can be cut along `inner`. `-> next: bf16[3, n] if rows > 0` is left unwritten
where that does not hold of the sizes and integer arguments. A scalar is `int`, `f32`, `bf16` (a number that bf16
holds) or, of a kernel whose forms follow schedules of their own, `form: form`: the name of one of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
          "u8": np.dtype(np.uint8), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64)}
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # itemsize -> the unsigned view that goldens store
SCALARS = ("int", "f32", "bf16", "form")
FORMS = ("current", "retired")  # of a kernel whose forms give the same bits
_OPERAND = re.compile(r"(\w+): (\w+)(?:\[([^\]]*)\](?: if (.+))?)?$")


@dataclass(frozen=True)
class Operand:
    """One argument or result.

    dims:   the names of the axes, None for a scalar
    stride: the name of the row stride where rows need not be packed
    window: of the last axis, the argument that says where its used columns start, and the size that says how many they are
    when:   of a result, the comparison where it does not hold nothing is written
    """

    name: str
    dtype: str
    dims: tuple[str, ...] | None = None
    stride: str | None = None
    window: tuple[str, str] | None = None
    when: str = "True"

    @property
    def is_array(self) -> bool:
        return self.dims is not None

    def axis(self, dim: str) -> int | None:
        """The axis that `dim` is the size of, or of whose columns it counts the used ones; None where there is none."""
        if not self.is_array:
            return None
        if self.window and self.window[1] == dim:
            return len(self.dims) - 1
        return self.dims.index(dim) if dim in self.dims else None

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(dim) if dim.isdigit() else sizes[dim] for dim in self.dims)

    def check(self, value: Any, sizes: dict[str, int]) -> Any:
        """Validate one value and add the sizes it fixes to `sizes`. ValueError names the argument and the value."""
        if not self.is_array:
            return self._scalar(value)
        if not isinstance(value, np.ndarray) or value.dtype != DTYPES[self.dtype]:
            raise ValueError(f"{self.name} must be a {DTYPES[self.dtype].name} array, got {getattr(value, 'dtype', type(value).__name__)}")
        if value.ndim != len(self.dims):
            raise ValueError(f"{self.name} must have shape [{', '.join(self.dims)}], got {list(value.shape)}")
        for dim, size in zip(self.dims, value.shape, strict=True):
            expected = int(dim) if dim.isdigit() else sizes.setdefault(dim, size)
            if size != expected:
                raise ValueError(f"{self.name} must have shape [{', '.join(self.dims)}] with {dim} = {expected}, got {list(value.shape)}")
        return value

    def _scalar(self, value: Any) -> int | float | str:
        if self.dtype == "form":
            return value
        number = isinstance(value, int | float | np.number | DTYPES["bf16"].type) and not isinstance(value, bool)
        if self.dtype == "int" and isinstance(value, int | np.integer) and number:
            return int(value)
        if self.dtype == "f32" and number:
            return float(np.float32(value))
        if self.dtype == "bf16" and number and np.array_equal(float(value), float(DTYPES["bf16"].type(value)), equal_nan=True):
            return float(value)
        wanted = {"int": "an integer", "f32": "a number", "bf16": "a number that bf16 holds"}[self.dtype]
        raise ValueError(f"{self.name} must be {wanted}, got {value!r}")


@dataclass(frozen=True)
class Signature:
    """The line, and what it cannot say.

    requires: Python comparisons over the sizes and integer arguments, all of which must hold
    forms:    the names of the kernel's forms, the one to be used first
    refuse:   called with all inputs by name, raises ValueError for contents that no launch may see (a table entry beyond its pool)
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    requires: tuple[str, ...] = ()
    forms: tuple[str, ...] = FORMS
    refuse: Callable[..., None] | None = None

    @classmethod
    def parse(cls, text: str, requires: tuple[str, ...] = (), forms: tuple[str, ...] = FORMS, refuse: Callable[..., None] | None = None) -> Signature:
        inputs, outputs = text.split("->")
        return cls(_operands(inputs), _operands(outputs), requires, forms, refuse)

    @property
    def form(self) -> str | None:
        """The operand that names the form; None where all forms give the same bits."""
        return next((operand.name for operand in self.inputs if operand.dtype == "form"), None)

    @property
    def arguments(self) -> tuple[Operand, ...]:
        """The inputs that a launcher takes at their place: all but the form."""
        return tuple(operand for operand in self.inputs if operand.dtype != "form")

    @property
    def dims(self) -> tuple[str, ...]:
        """The named sizes, in order of first appearance."""
        named = (dim for operand in self.inputs if operand.is_array for dim in operand.dims if not dim.isdigit())
        return tuple(dict.fromkeys(named))

    @property
    def strides(self) -> tuple[str, ...]:
        return tuple(operand.stride for operand in (*self.inputs, *self.outputs) if operand.stride)

    def check(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Validate all inputs; returns the sizes and integer arguments by name. ValueError names the argument and the value."""
        sizes: dict[str, int] = {}
        for operand in self.inputs:
            checked = operand.check(values[operand.name], sizes)
            if operand.dtype == "int":
                sizes[operand.name] = checked
            if operand.dtype == "form" and checked not in self.forms:
                raise ValueError(f"{operand.name} must be one of {', '.join(self.forms)}, got {checked!r}")
        for rule in self.requires:
            if not holds(rule, sizes):
                known = ", ".join(f"{name} = {sizes[name]}" for name in dict.fromkeys(re.findall(r"[a-z]\w*", rule)) if name in sizes)
                raise ValueError(f"{rule} is required, got {known}")
        if self.refuse:
            self.refuse(**{operand.name: values[operand.name] for operand in self.inputs})
        return sizes


def holds(rule: str, sizes: Mapping[str, int]) -> bool:
    """Whether a comparison of the signature does, of sizes and integer arguments."""
    return eval(_compiled(rule), {"__builtins__": {}}, sizes)


@functools.cache
def _compiled(rule: str) -> CodeType:
    return compile(rule, rule, "eval")


def _operands(text: str) -> tuple[Operand, ...]:
    return tuple(_operand(part.strip()) for part in re.split(r",\s*(?![^\[]*\])", text.strip()))


def _operand(text: str) -> Operand:
    found = _OPERAND.match(text)
    if not found:
        raise ValueError(f"not an operand: {text!r}")
    name, dtype, dims, when = found.groups()
    allowed = SCALARS if dims is None else DTYPES
    if dtype not in allowed:
        raise ValueError(f"{name} must be {'a scalar' if dims is None else 'an array'} of {', '.join(allowed)}, got {dtype!r}")
    if dims is None:
        return Operand(name, dtype)
    strides, windows = re.findall(r"@(\w+)", dims), re.findall(r":(\w+)\+(\w+)$", dims)
    named = tuple(re.sub(r"@\w+|:\w+\+\w+", "", dim).strip() for dim in dims.split(","))
    return Operand(name, dtype, named, strides[0] if strides else None, windows[0] if windows else None, when or "True")
