"""A walk as a golden keeps it, and how another walk, or a step of one, differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from goldens.walks import Result, digest
from references.contract.inputs import BF16


@dataclass(frozen=True)
class Walk:
    """Steps first .. first + n - 1 of one sequence.

    tokens: i32, all that it was fed; of rounds those that their drafts are cut from. greedy: i32 [n], what each step gives.
    top, bits: i32 and u16 [n, 5], the largest logits. row: u64 [n], of all.
    names: of every output and landing of a step, in order. landings: u64 [n, names], their digests, 0 where a step has none.
    """

    first: np.ndarray
    tokens: np.ndarray
    greedy: np.ndarray
    top: np.ndarray
    bits: np.ndarray
    row: np.ndarray
    names: tuple[str, ...]
    landings: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        names = np.frombuffer("\n".join(self.names).encode(), np.uint8)
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"names": names}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Walk | None:
        """The walk of the arrays of a file; None where they are another golden's."""
        if arrays.keys() != {one.name for one in fields(cls)}:
            return None
        return cls(**arrays | {"names": tuple(arrays["names"].tobytes().decode().split("\n"))})

    @property
    def steps(self) -> range:
        return range(int(self.first), int(self.first) + len(self.greedy))

    def at(self, step: int) -> int:
        """The row of a step."""
        return step - int(self.first)

    def seen(self, step: int) -> dict[str, int]:
        """Digests of what a step landed, by name."""
        return {name: int(one) for name, one in zip(self.names, self.landings[self.at(step)], strict=True) if one}

    def margin(self, step: int) -> float:
        """By how much the largest logit exceeds the next, in ULP of the largest."""
        first, second = (float(value) for value in self.bits[self.at(step), :2].view(BF16))
        return (first - second) / 2.0 ** (np.frexp(first)[1] - 8)

    def problem(self, got: Result, landings: bool = False) -> str:
        """How a step differs; empty where it does not. Of what it landed everything is compared that it has; `landings`: and that the golden has."""
        return self._problem(got.step, got.seen, digest(got.logits), got.greedy, landings)

    def parted(self, new: Walk) -> str:
        """The first step of both that differs in anything landed or given; empty where there is none."""
        both = range(max(self.steps.start, new.steps.start), min(self.steps.stop, new.steps.stop))
        found = (self._problem(step, new.seen(step), new.row[new.at(step)], new.greedy[new.at(step)], True) for step in both)
        return next(filter(None, found), "")

    def _problem(self, step: int, seen: Mapping[str, int], row: int, greedy: int, landings: bool) -> str:
        want = self.seen(step)
        off = [name for name in want if (landings or name in seen) and seen.get(name) != want[name]]
        off += [name for name in seen if name not in want]
        if off:
            return f"step {step}: {off[0]} differs, and {len(off) - 1} after it"
        if row != self.row[self.at(step)]:
            return f"step {step}: the logits differ"
        return f"step {step}: token {greedy}, golden {self.greedy[self.at(step)]}" if greedy != self.greedy[self.at(step)] else ""
