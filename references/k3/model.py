"""What a step works on: the weights, and the state that it reads and writes. All of it lies where the backend keeps arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from references.contract import Kernel
from references.contract.inputs import BF16, F32
from references.k3 import weights
from references.k3.backend import Array, Backend
from references.k3.config import HEAD, PAGE, ROW, TRANSPORTS, Config
from references.k3.pages import Pages

Watch = Callable[[str, Kernel, Mapping[str, Any], Mapping[str, Array]], None]
NAN = 0x7FA5  # fills pages that hold nothing: a NaN that no kernel stores


class Model:
    """The weights on a backend. transport: which kernel runs the experts."""

    def __init__(self, config: Config, backend: Backend, transport: str = "moe_chain"):
        if transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, got {transport!r}")
        self.config, self.backend, self.transport = config, backend, transport
        self.layers = [weights.layer(config, i, backend.upload) for i in range(config.layers)]
        self.ends = weights.ends(config, backend.upload)


class Calls:
    """Kernels by name, in their current forms: `call("land", p=p, off=0, n=n)`. watch(place, kernel, inputs, outputs): after each call."""

    def __init__(self, backend: Backend, watch: Watch | None = None):
        self.backend, self.watch, self.place = backend, watch, ""

    def __call__(self, name: str, into: Mapping[str, Array] | None = None, **inputs: Any) -> Any:
        """The output, or a tuple of them in the order of the signature, None for one that is left unwritten."""
        kernel = Kernel.load(name)
        outputs = tuple(self.run(kernel, inputs | kernel.choice(kernel.schedules[0]), into).values())
        return outputs if len(outputs) > 1 else outputs[0]

    def run(self, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, Array] | None = None) -> Mapping[str, Array]:
        outputs = self.backend.run(kernel, inputs, into)
        if self.watch:
            self.watch(self.place, kernel, inputs, {name: array for name, array in outputs.items() if array is not None})
        return outputs


@dataclass
class State:
    """What KDA layers carry from token to token, of each slot, twice: a step reads one parity and writes the other.

    carry: by layer, bf16 [2, 3, slots, 3, inner], the last inputs of the q, k and v streams; memory: f32 [2, slots, heads, 128, 128].
    """

    backend: Backend
    carry: dict[int, Array]
    memory: dict[int, Array]
    parity: int = 0

    @classmethod
    def zeros(cls, c: Config, backend: Backend, slots: int) -> State:
        kda = [i for i in range(c.layers) if i not in c.mla]
        carry = {i: backend.upload(np.zeros((2, 3, slots, 3, c.inner), BF16)) for i in kda}
        return cls(backend, carry, {i: backend.upload(np.zeros((2, slots, c.heads, HEAD, HEAD), F32)) for i in kda})

    def adopt(self, slot: int, other: State, source: int) -> None:
        """Take over what a slot of another state holds now."""
        for i in self.carry:
            self.carry[i][self.parity, :, slot] = other.carry[i][other.parity, :, source]
            self.memory[i][self.parity, slot] = other.memory[i][other.parity, source]

    def clear(self, slot: int) -> None:
        for i in self.carry:
            self.carry[i][self.parity, :, slot] = 0
            self.memory[i][self.parity, slot] = 0


class Cache:
    """The paged rows of all MLA layers, [pages + 1, layers, 64, 576] bf16. Padding rows write to the last page, which no table can name."""

    def __init__(self, c: Config, backend: Backend, pages: Pages):
        fill = np.full((pages.pool + 1, len(c.mla), PAGE, ROW), NAN, np.uint16).view(BF16)
        self.rows, self.layers, self.sink = backend.upload(fill), c.mla, pages.pool
        self.pool = self.rows[: pages.pool].reshape(-1)

    def place(self, layer: int) -> dict[str, int]:
        """Where a layer's rows are, as the attention kernels take it."""
        return {"layer_offset": self.layers.index(layer) * PAGE * ROW, "page_stride": len(self.layers) * PAGE * ROW}

    def append(self, layer: int, page: Array, row: Array, latent: Array, rope: Array) -> None:
        at = self.layers.index(layer)
        self.rows[page, at, row, : latent.shape[-1]] = latent
        self.rows[page, at, row, latent.shape[-1] :] = rope


def step_rows(c: Config, backend: Backend) -> SimpleNamespace:
    """A decode step's numbers for each row, where kernels read them; `page` and `row` are where it writes."""
    b = c.buckets[-1]
    shapes = {"ids": (b,), "table": (b, c.pages), "context": (b,)}
    held = {name: backend.upload(np.zeros(shape, np.int32)) for name, shape in shapes.items()}
    return SimpleNamespace(**held, **{name: backend.upload(np.zeros(b, np.int64)) for name in ("page", "row")})
