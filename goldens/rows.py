"""Cases too large to store: emulated slice by slice, kept as one digest a row and a few sampled slices."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from references.contract import Kernel, Operand
from references.contract.signature import DTYPES

_ELEMENTS = 1 << 19  # inputs of one block: its intermediates stay near the caches and off the page tables


def take(operands: Iterable[Operand], values: Mapping[str, Any], dim: str, positions) -> dict[str, Any]:
    """The slices `positions` (an index array or a slice) along `dim` of every operand that has it; the others as they are.

    An operand of which `dim` columns are used is cut to those first, and the argument that says where they start becomes 0.
    """
    taken: dict[str, Any] = {}
    for operand in operands:
        value = values[operand.name]
        if operand.window and operand.window[1] == dim:
            start = operand.window[0]
            value, taken[start] = value[..., values[start] :], 0
        taken.setdefault(operand.name, _take(operand, value, dim, positions))
    return taken


def _take(operand: Operand, value: Any, dim: str, positions) -> Any:
    axis = operand.axis(dim)
    return value if value is None or axis is None else value[(slice(None),) * axis + (positions,)]


def size_along(kernel: Kernel, inputs: Mapping[str, Any]) -> int:
    """The size of these inputs along the kernel's independent dimension."""
    return kernel.signature.check(inputs)[kernel.independent]


def sample_positions(kernel: Kernel, inputs: Mapping[str, Any]) -> np.ndarray:
    """Both ends, the second, and two between: where a block, a wave of blocks or a grid is cut wrongly, an end is wrong."""
    size = size_along(kernel, inputs)
    return np.unique([0, min(1, size - 1), size // 3, size // 2, size - 1]).astype(np.int64)


def emulate_in_slices(kernel: Kernel, inputs: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
    """The outputs of a large case, block by block along the independent dimension, on every core this process may use."""
    sizes = kernel.signature.check(inputs)
    size, dim = sizes[kernel.independent], kernel.independent
    carried = sum(inputs[o.name].size for o in kernel.signature.inputs if o.axis(dim) is not None)
    step = max(8, _ELEMENTS * size // max(1, carried))
    outputs = {o.name: np.empty(o.shape(sizes), DTYPES[o.dtype]) for o in kernel.signature.outputs}
    unwritten = set()

    def emulate(start: int) -> None:
        block = slice(start, start + step)
        results = kernel.outputs(take(kernel.signature.inputs, inputs, dim, block))
        for operand in kernel.signature.outputs:
            if results[operand.name] is None:
                unwritten.add(operand.name)
            else:
                _take(operand, outputs[operand.name], dim, block)[...] = results[operand.name]

    first, *rest = range(0, size, step)
    emulate(first)  # alone: two threads must not compile the same word
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(emulate, rest))
    return {name: None if name in unwritten else value for name, value in outputs.items()}


def digest_rows(output: np.ndarray) -> np.ndarray:
    """uint64 [rows]: blake2b-8 of the bytes of every slice along the first axis."""
    rows = np.ascontiguousarray(output).reshape(len(output), -1).view(np.uint8)
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, "<u8")
