"""One golden: the inputs, landings and outputs of one case, as the emulator made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from goldens.files import MANIFEST, SCHEMA, GoldenError, manifest_bytes, npz_bytes, payload_sha256, read_manifest, read_npz, write_all
from goldens.rows import digest_rows, emulate_in_slices, sample_positions, take
from references.contract import Case, Kernel
from references.contract.landings import emulate_landings
from references.contract.mistakes import emulate_with, mistakes, moved
from references.contract.signature import BITS, DTYPES

ROOT = Path(__file__).resolve().parent
_NUMPY = {dtype.name: dtype for dtype in (*DTYPES.values(), np.dtype(np.uint64))}


@dataclass(frozen=True)
class Golden:
    """Arrays are in the signature's dtypes, landings in bfloat16, `kept` values in float32; an output left unwritten is None.

    inputs:    by argument name; empty for a large case, whose recipe is the case's make()
    landings:  by site; the visits of a loop are stacked on a new first axis, or joined flat where their shapes differ
    outputs:   by name; empty for a large case
    digests:   large cases: uint64 of every slice along an output's first axis (`rows.digest_rows`)
    samples:   large cases: the outputs at `positions` along the kernel's independent size
    """

    kernel: str
    case: str
    why: str
    version: int
    guards: tuple[str, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict)
    landings: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, np.ndarray | None] = field(default_factory=dict)
    digests: dict[str, np.ndarray] = field(default_factory=dict)
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    positions: np.ndarray | None = None

    @property
    def large(self) -> bool:
        return self.positions is not None

    def values(self) -> dict[str, Any]:
        """Everything that is stored, by key: `in.p`, `land.S3.bf`, `out.o`, `digest.o`, `sample.o`, `positions`."""
        parts = {"in": self.inputs, "land": self.landings, "out": self.outputs, "digest": self.digests, "sample": self.samples}
        stored = {f"{part}.{name}": value for part, by_name in parts.items() for name, value in by_name.items()}
        return stored | ({"positions": self.positions} if self.large else {})

    def arrays(self) -> dict[str, np.ndarray]:
        """The payload: unsigned bit views; an integer scalar is a 0-d int64, a float scalar the 0-d bits of an f32, a name its bytes."""
        return {key: _bits(value) for key, value in self.values().items() if value is not None}

    def entry(self) -> dict:
        """What the manifest says of it."""
        dtypes = {key: None if value is None else _dtype(value) for key, value in self.values().items()}
        return {"sentence": self.why, "large": self.large, "sha256": payload_sha256(self.arrays()), "source": "emulator",
                "guards": list(self.guards), "dtypes": dtypes}


def make(kernel: Kernel, case: Case) -> Golden:
    """Emulate a case. GoldenError unless each mistake it guards against moves an output."""
    golden = emulated(kernel, case)
    assert_guards(kernel, golden)
    return golden


def emulated(kernel: Kernel, case: Case) -> Golden:
    """What the emulator makes of a case, whatever it shows."""
    about = {"kernel": kernel.name, "case": case.name, "why": case.why, "version": kernel.version, "guards": tuple(case.guards)}
    inputs = case.make()
    if case.large:
        outputs = emulate_in_slices(kernel, inputs)
        positions = sample_positions(kernel, inputs)
        digests = {name: None if value is None else digest_rows(value) for name, value in outputs.items()}
        return Golden(**about, digests=digests, samples=take(kernel.signature.outputs, outputs, kernel.independent, positions), positions=positions)
    outputs, landings = emulate_landings(kernel, inputs)
    return Golden(**about, inputs=inputs, landings=landings, outputs=outputs)


def assert_guards(kernel: Kernel, golden: Golden) -> None:
    """GoldenError unless each mistake this golden guards against moves its outputs (a large one's: at the sampled positions)."""
    if not golden.guards:
        return
    inputs, outputs = golden.inputs, golden.outputs
    if golden.large:
        inputs = take(kernel.signature.inputs, inputs_of(kernel, golden), kernel.independent, golden.positions)
        outputs = golden.samples
    name = f"case {golden.kernel}/{golden.case}"
    present = mistakes(kernel, [inputs])
    todo = "mend the emulator, or give the case inputs that show it, or take it from the case's guards"
    for key in golden.guards:
        guarded = next((mistake for mistake in present if mistake.among([key])), None)
        if guarded is None:
            possible = ", ".join(mistake.key for mistake in present)
            raise GoldenError(f"{name} exists for {key}, which cannot happen on its inputs: {todo}; what can happen: {possible}")
        if not moved(emulate_with(kernel, guarded, inputs), outputs):
            raise GoldenError(f"{name} exists for {key}, but its outputs do not move under it: {todo}")


def searched(kernel: Kernel) -> dict[str, str]:
    """The cases that the search makes, one for each schedule: `searched`, or `searched_two_pass` where forms have their own."""
    return {schedule: f"searched_{schedule}" if schedule else "searched" for schedule in kernel.schedules}


def cases(kernel: Kernel, root: Path = ROOT) -> Iterator[Case]:
    """The cases of the kernel's module, then those found by search: stored bits, whose guards are what they show."""
    yield from kernel.cases()
    for name in searched(kernel).values():
        if name in case_names(kernel.name, root):
            yield as_case(load(kernel.name, name, root))


def as_case(golden: Golden) -> Case:
    """The case of a small golden: its stored inputs."""
    return Case(golden.case, golden.why, lambda: golden.inputs, golden.guards)


def case_names(kernel: str, root: Path = ROOT) -> tuple[str, ...]:
    """The goldens a kernel has, by its manifest; none where it has no manifest."""
    return tuple(read_manifest(root / kernel)["cases"]) if (root / kernel / MANIFEST).exists() else ()


def load(kernel: str, case: str, root: Path = ROOT) -> Golden:
    """One golden, its payload checked against the manifest. GoldenError where anything is wrong with it."""
    manifest = read_manifest(root / kernel)
    if case not in manifest["cases"]:
        raise GoldenError(f"{kernel} has no golden {case!r}; it has {', '.join(manifest['cases'])}")
    entry = manifest["cases"][case]
    path = root / kernel / f"{case}.npz"
    arrays = read_npz(path)
    if payload_sha256(arrays) != entry["sha256"]:
        raise GoldenError(f"{path} does not hold what {MANIFEST} says (payload sha256 {payload_sha256(arrays)[:12]}, manifest "
                          f"{entry['sha256'][:12]}): it was edited, or a regeneration was interrupted; run python -m goldens regenerate {kernel}")
    try:
        golden = _built(kernel, case, manifest["version"], entry, arrays)
        agrees = golden.entry() == entry
    except (AttributeError, KeyError, TypeError, ValueError):  # an entry that names no such array, dtype or part
        agrees = False
    if not agrees:
        raise GoldenError(f"{path} holds other arrays than {MANIFEST} says of {case}, or that entry is not whole: restore both with git checkout")
    return golden


def _built(kernel: str, case: str, version: int, entry: Mapping, arrays: Mapping[str, np.ndarray]) -> Golden:
    parts: dict[str, dict] = {"in": {}, "land": {}, "out": {}, "digest": {}, "sample": {}}
    positions = arrays.get("positions")
    for key, dtype in entry["dtypes"].items():
        if key != "positions":
            part, name = key.split(".", 1)
            parts[part][name] = None if dtype is None else _value(arrays[key], dtype)
    return Golden(kernel, case, entry["sentence"], version, tuple(entry["guards"]),
                  parts["in"], parts["land"], parts["out"], parts["digest"], parts["sample"],
                  None if positions is None else positions.astype(np.int64))


def save(kernel: str, version: int, goldens: Iterable[Golden], entries: Mapping[str, dict], root: Path = ROOT) -> None:
    """Write these goldens, then the manifest with `entries` for every case of the kernel; all of it or nothing (`files.write_all`)."""
    files = {f"{golden.case}.npz": npz_bytes(golden.arrays()) for golden in goldens}
    files[MANIFEST] = manifest_bytes({"schema": SCHEMA, "kernel": kernel, "version": version, "cases": dict(entries)})
    write_all(root / kernel, files)


def inputs_of(kernel: Kernel, golden: Golden) -> dict[str, Any]:
    """A golden's inputs: the stored bits, or for a large case what its recipe makes."""
    if not golden.large:
        return golden.inputs
    return next(case for case in kernel.cases() if case.name == golden.case).make()


def _dtype(value: Any) -> str:
    if isinstance(value, str):
        return "str"
    return value.dtype.name if isinstance(value, np.ndarray) else "int64" if isinstance(value, int | np.integer) else "float32"


def _bits(value: Any) -> np.ndarray:
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8)
    array = np.ascontiguousarray(value, _NUMPY[_dtype(value)]).reshape(np.shape(value))
    return array if array.dtype == np.int64 and array.ndim == 0 else array.view(BITS[array.itemsize])


def _value(stored: np.ndarray, dtype: str) -> Any:
    if dtype == "str":
        return stored.tobytes().decode()
    array = stored.view(_NUMPY[dtype])
    return array if array.ndim else array.item()
