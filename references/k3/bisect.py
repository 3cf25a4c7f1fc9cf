"""Where two sets of kernels part: the same steps on the first, and each of its calls again, on the same operands, by the second."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from references.contract import Kernel
from references.contract.landings import tag
from references.contract.mistakes import same_bits
from references.contract.signature import BITS
from references.k3.backend import Array, Backend, Mixture, carried
from references.k3.config import Config
from references.k3.engine import Engine
from references.k3.model import Model


@dataclass(frozen=True)
class Parting:
    """One call whose results differ. landing: the first site that does, or the output where all before it agree."""

    step: int
    place: str
    kernel: str
    call: int
    landing: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.place}: {self.kernel} (call {self.call}) parts at {self.landing}"


class Lockstep:
    """A `watch` that has every call of `base` run again by `other`. found: the calls that differ, in order; `landings`: in a landing, too.

    Outputs are compared first; where they differ, the landings say from where on. seconds: what `other` took.
    """

    def __init__(self, base: Backend, other: Backend, landings: bool = False):
        self.base, self.other, self.landings, self.found, self.step, self.seconds = base, other, landings, [], 0, 0.0
        self.calls: dict[tuple, int] = {}

    def __call__(self, place: str, kernel: Kernel, inputs: Mapping[str, Any], outputs: Mapping[str, Array]) -> None:
        at = self.step, place, kernel.name
        self.calls[at] = self.calls.get(at, 0) + 1
        theirs = carried(inputs, self.base, self.other)
        start = time.perf_counter()
        again = self.other.run(kernel, theirs)
        self.seconds += time.perf_counter() - start
        off = self._differing(outputs, again)
        if off or self.landings:
            want = self.other.landed(kernel, theirs)[1]
            got = self.base.landed(kernel, inputs, want)[1]
            sites = sorted(got.keys() & want.keys(), key=tag)
            off = [first_element(site, want[site], got[site]) for site in sites if not same_bits(want[site], got[site])] + off
        if off:
            self.found.append(Parting(*at, self.calls[at], off[0]))

    def _differing(self, outputs: Mapping[str, Array], again: Mapping[str, Array | None]) -> list[str]:
        pairs = ((name, downloaded(self.other, theirs), downloaded(self.base, outputs.get(name))) for name, theirs in again.items())
        return [first_element(name, got, want) for name, got, want in pairs if not same_bits(got, want)]


def downloaded(backend: Backend, array: Array | None) -> np.ndarray | None:
    return None if array is None else backend.download(array)


def first_element(name: str, got: np.ndarray | None, want: np.ndarray | None) -> str:
    """`S3.bf[0, 17]: 0x3f81, not 0x3f80`"""
    if got is None or want is None:
        return f"{name}: written on one side only"
    a, b = (np.ascontiguousarray(array).view(BITS[array.itemsize]) for array in (got, want))
    if a.shape != b.shape:
        return f"{name}: shape {list(a.shape)}, not {list(b.shape)}"
    at = tuple(np.argwhere(a != b)[0])
    width = 2 * a.itemsize
    return f"{name}{[int(i) for i in at]}: 0x{int(a[at]):0{width}x}, not 0x{int(b[at]):0{width}x}"


def rows(config: Config, backend: Backend, transport: str, tokens: Iterable[int], watch: Any = None) -> list[np.ndarray]:
    """The logits after each token of a sequence alone."""
    engine = Engine(Model(config, backend, transport), slots=1)
    engine.admit(0)
    found = []
    for step, token in enumerate(tokens):
        if watch:
            watch.step = step
        found.append(backend.download(engine.step({0: token}, watch=watch)[0]).copy())
    return found


def bisect(config: Config, base: Backend, other: Backend, transport: str, tokens: list[int], planted: Sequence[str] = ()) -> Iterator[str]:
    """One line for the first call that differs, and one for each kernel that does: what it does to the logits when it alone is swapped.

    planted: kernels of which something is to be learnt. ValueError where one is never called: no bit of it would be seen.
    """
    watch = Lockstep(base, other)
    want = rows(config, base, transport, tokens, watch)
    called = {kernel for _, _, kernel in watch.calls}
    for kernel in planted:
        if kernel not in called:
            raise ValueError(f"{kernel} is never called in these steps, which call {', '.join(sorted(called))}")
    if not watch.found:
        return
    yield f"first: {watch.found[0]}"
    for kernel in dict.fromkeys(one.kernel for one in watch.found):
        calls = [one for one in watch.found if one.kernel == kernel]
        got = rows(config, Mixture(base, other, [kernel]), transport, tokens)
        moved = next((step for step, (a, b) in enumerate(zip(got, want, strict=True)) if not same_bits(a, b)), None)
        effect = "no logit moves" if moved is None else f"the logits move from step {moved} on"
        yield f"{kernel} differs in {len(calls)} calls, first in {calls[0]}; with it alone swapped {effect}"
