"""What a reader is told about a golden that is not met: one line that suffices, then what to look at, then how to see it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from conformance.compare import Difference
from references.contract.signature import BITS

KERNEL_CHANGED = "emulator == golden, device != golden -> the KERNEL changed"
EMULATOR_CHANGED = "emulator != golden -> the EMULATOR changed"
BOTH_CHANGED = "emulator == device, golden != both -> the EMULATOR and the KERNEL changed alike"
ALL_DIFFER = "emulator != golden, device != golden, emulator != device -> all three differ"


@dataclass(frozen=True)
class Run:
    """One launch. exact: the golden's bits; steady: the bits of the first replay."""

    form: str
    layout: str
    exact: bool
    steady: bool


@dataclass(frozen=True)
class Finding:
    """Why a golden is not met.

    got:         which side is held to it, "device" or "emulator"
    place:       form and layout of the launch
    differences: of outputs; of landings where every output is exact
    first:       site of the first landing that differs, "" where none is known to
    landed:      what to say of it and of other landings
    diagnosis:   single mistakes that explain the bits
    note:        which slices of a large case the rest is about
    raised:      whether the schedule's version is above the golden's
    arrays:      by side and name, for --save-failures
    """

    kernel: str
    case: str
    why: str
    got: str
    place: str
    differences: list[Difference]
    verdict: str
    first: str
    landed: list[str] = field(default_factory=list)
    diagnosis: list[str] = field(default_factory=list)
    replays: str = ""
    elsewhere: str = ""
    note: str = ""
    raised: bool = False
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        place = f" {self.place}" if self.place else ""
        return f"{self.kernel}/{self.case}{place}: {self._difference}"

    @property
    def _difference(self) -> str:
        of_large = f" ({self.note.partition(';')[0]})" if self.note else ""
        return f"{self.differences[0].headline(self.got)}{of_large}"

    @property
    def summary(self) -> str:
        """For a line that names the case and may be cut: the first landing, then the rest of the headline."""
        return ", ".join(filter(None, (self._first, self.place, self._difference)))

    def line(self, whole: str) -> str:
        """In one line, where another case of the kernel, `whole`, has the whole message."""
        first = f"; first {self._first}" if self._first else ""
        return f"{self.headline}{first} (the whole message: {whole})"

    @property
    def _first(self) -> str:
        """Of what the headline does not begin with."""
        return "" if self.landings_alone else self.first

    @property
    def landings_alone(self) -> bool:
        """Whether every output is exact: then the first landing that differs is the first difference."""
        return self.first == self.differences[0].name

    @property
    def source(self) -> str:
        """The file an annotation points at."""
        return f"kernels_cuda/{self.kernel}.cu" if self.got == "device" else f"references/{self.kernel}.py"

    def text(self, build: str = "", saved: str = "", again: str = "") -> str:
        """The whole message. `build`: what the kernel was built with; `saved`: where the arrays are; `again`: the command to repeat it."""
        raise_it = "" if self.raised else f"raise version= in references/{self.kernel}.py, then "
        meant = f"{raise_it}run python -m goldens regenerate {self.kernel}" if self.verdict in (EMULATOR_CHANGED, BOTH_CHANGED) else ""
        parts = {
            "verdict": [self.verdict],
            "slices": [self.note],
            "first": [line for line in self.landed if line not in self.headline],
            "counts": [counts(difference) for difference in self.differences],
            "rows": [line for difference in self.differences for line in rows(difference, self.got, len(self.differences) > 1)],
            "diagnosis": self.diagnosis,
            "replays": [self.replays],
            "elsewhere": [self.elsewhere],
            "the case": [self.why],
            "build": [build],
            "saved": [saved],
            "if meant": [meant],
            "again": [again],
        }
        lines = [self.headline]
        for title, texts in parts.items():
            kept = [text for text in texts if text]
            lines += [f"  {title if i == 0 else '':10} {text}" for i, text in enumerate(kept)]
        return "\n".join(lines)


def counts(difference: Difference) -> str:
    if difference.problem:
        return ""
    return f"{difference.name}: " + ", ".join(f"{kind} {count:,}" for kind, count in difference.counts.items())


def rows(difference: Difference, got: str, named: bool) -> list[str]:
    table = difference.table(got)
    left_out = difference.count - len(difference.rows)
    title = [f"{difference.name}:"] if named and table else []
    return [*title, *table, *([f"... and {left_out:,} more"] if left_out > 0 else [])]


def save(finding: Finding, folder: Path) -> Path:
    """The arrays of a failure as unsigned bits: `device.o`, `golden.o`, `emulator.o`, and `in.p`, so that `references run` takes the file."""
    place = finding.place.replace("/", "-")
    path = folder / ("-".join(filter(None, (finding.kernel, finding.case, finding.got, place))) + ".npz")
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: stored(value) for name, value in finding.arrays.items()})
    return path


def stored(value: np.ndarray) -> np.ndarray:
    """Unsigned bits; an integer scalar or a name as itself."""
    value = np.asarray(value)
    if value.dtype == np.float64 and not value.ndim:
        value = value.astype(np.float32)
    return value if value.dtype.kind in "iuU" else np.ascontiguousarray(value).reshape(value.shape).view(BITS[value.itemsize])


def arrays(inputs: Mapping, **sides: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """`Finding.arrays` of these inputs and outputs by side."""
    by_name = {f"in.{name}": np.asarray(value) for name, value in inputs.items()}
    return by_name | {f"{side}.{name}": value for side, values in sides.items() for name, value in values.items() if value is not None}
