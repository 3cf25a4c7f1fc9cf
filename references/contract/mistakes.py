"""The mistakes of a kernel: every site of its emulator with every fault that applies there; where forms differ, of each form.

Nothing is listed by hand: the sites are those its cases reach, the faults those `references.arith.faults` has for the word.
A pair that no input can show is named in the kernel's `BLIND` with the reason, and a test holds that list to be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from references.arith.faults import Fault, faults_of
from references.arith.site import Laboratory, Visit
from references.contract.kernel import Kernel
from references.contract.signature import BITS


@dataclass(frozen=True)
class Mistake:
    """One fault at one site; `key` is how it is written: `S3.bf:truncated`, or `two_pass/S3.bf:truncated` where forms have their own schedules."""

    site: str
    fault: Fault
    schedule: str = ""

    @property
    def pair(self) -> str:
        return f"{self.site}:{self.fault.__name__}"

    @property
    def key(self) -> str:
        return f"{self.schedule}/{self.pair}" if self.schedule else self.pair

    def among(self, keys: Iterable[str]) -> bool:
        """Whether one of the keys means it; a key without a form means that mistake in every form."""
        return not {self.key, self.pair}.isdisjoint(keys)

    @property
    def sentence(self) -> str:
        return f"{self.site}: {self.fault.__doc__}"


def mistakes(kernel: Kernel, inputs: Iterable[Mapping[str, Any]]) -> tuple[Mistake, ...]:
    """Every mistake that can be planted while emulating these inputs, in the order of the schedule."""
    found: dict[str, Mistake] = {}

    for one in inputs:
        schedule = kernel.schedule_of(one)

        def note(visit: Visit, result: Any, schedule: str = schedule) -> None:
            for fault in faults_of(visit.word):
                mistake = Mistake(visit.name, fault, schedule)
                if mistake.key not in found and _applies(fault, visit):
                    found[mistake.key] = mistake

        with Laboratory(watch=note):
            kernel.emulate(**one)
    return tuple(found.values())


def _applies(fault: Fault, visit: Visit) -> bool:
    """A fault answers None where it has nothing to replace (a sum that takes no product cannot be fused)."""
    with np.errstate(all="ignore"):
        return fault(visit) is not None


def emulate_with(kernel: Kernel, mistake: Mistake, inputs: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
    """The outputs of a kernel that makes this mistake."""
    with Laboratory(faults={mistake.site: mistake.fault}):
        return kernel.outputs(inputs)


def moved(got: Mapping[str, np.ndarray | None], want: Mapping[str, np.ndarray | None]) -> bool:
    """Whether any output differs in any bit."""
    return any(not same_bits(got[name], want[name]) for name in want)


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and np.array_equal(a.view(BITS[a.itemsize]), b.view(BITS[b.itemsize]))


def find(kernel: Kernel, key: str, inputs: Mapping[str, Any]) -> Mistake:
    """The mistake written `site:fault` that these inputs can show. ValueError lists what there is."""
    present = mistakes(kernel, [inputs])
    for mistake in present:
        if mistake.among([key]):
            return mistake
    raise ValueError(f"mistake must be one of {', '.join(m.key for m in present)}, got {key!r}")
