"""Where a step's arrays live and what runs its kernels. Engine code only cuts, reshapes and assigns them, which NumPy and torch spell alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from references.contract import Kernel
from references.contract.landings import emulate_landings
from references.contract.mistakes import find

Array = Any  # a NumPy array, or a torch tensor on the device
Landings = dict[str, np.ndarray]


class Backend(Protocol):
    def upload(self, array: np.ndarray) -> Array:
        """A copy that kernels can read and the engine can write."""

    def write(self, target: Array, source: np.ndarray) -> None:
        """Overwrite an uploaded array, or a part of one."""

    def download(self, array: Array) -> np.ndarray:
        """In the dtype it was uploaded in, or that of the operand it came from."""

    def stack(self, arrays: Sequence[Array]) -> Array:
        """[b, h] each -> [b, len(arrays), h]."""

    def run(self, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, Array] | None = None) -> dict[str, Array | None]:
        """Outputs by name; one named in `into` is written there, one that the schedule leaves unwritten is None."""

    def landed(self, kernel: Kernel, inputs: Mapping[str, Any], like: Landings | None = None) -> tuple[dict[str, Array], Landings]:
        """Outputs, and what the kernel lands on its way, by site; on a device without the last site, and traced by landings of the same shapes."""


class Emulators:
    """The emulated kernels. `planted`: a mistake, `S3.bf:truncated`, by the name of the kernel that makes it."""

    def __init__(self, planted: Mapping[str, str] | None = None):
        self.planted, self.faults = dict(planted or {}), {}

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def write(self, target: np.ndarray, source: np.ndarray) -> None:
        target[...] = source

    def download(self, array: np.ndarray) -> np.ndarray:
        return array

    def stack(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(arrays, axis=1)

    def run(self, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        return self.written(self.landed(kernel, inputs)[0] if kernel.name in self.planted else kernel.outputs(inputs), into)

    @staticmethod
    def written(outputs: dict[str, np.ndarray], into: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        for name, target in (into or {}).items():
            if outputs[name] is not None:
                target[...] = outputs[name]
                outputs[name] = target
        return outputs

    def landed(self, kernel: Kernel, inputs: Mapping[str, Any], like: Landings | None = None) -> tuple[dict[str, np.ndarray], Landings]:
        if kernel.name in self.planted and kernel.name not in self.faults:
            mistake = find(kernel, self.planted[kernel.name], inputs)
            self.faults[kernel.name] = {mistake.site: mistake.fault}
        return emulate_landings(kernel, inputs, self.faults.get(kernel.name))


class Mixture:
    """One backend with the kernels of another in place of some: `swapped` names them."""

    def __init__(self, base: Backend, other: Backend, swapped: Sequence[str]):
        self.base, self.other, self.swapped = base, other, frozenset(swapped)
        self.upload, self.write, self.download, self.stack = base.upload, base.write, base.download, base.stack

    def run(self, kernel: Kernel, inputs: Mapping[str, Any], into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        if kernel.name not in self.swapped:
            return self.base.run(kernel, inputs, into)
        outputs = self.other.run(kernel, carried(inputs, self.base, self.other))
        for name, value in outputs.items():
            if value is None:
                continue
            if into and name in into:
                self.base.write(into[name], self.other.download(value))
                outputs[name] = into[name]
            else:
                outputs[name] = self.base.upload(self.other.download(value))
        return outputs


def carried(inputs: Mapping[str, Any], source: Backend, target: Backend) -> dict[str, Any]:
    """Operands of one backend as those of another; numbers and names stay."""
    return {name: target.upload(source.download(value)) if hasattr(value, "shape") else value for name, value in inputs.items()}
