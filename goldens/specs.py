"""What commands are given: a golden as KERNEL/CASE, or a file of arrays, whoever wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from goldens import steps
from goldens.files import MANIFEST, GoldenError, read_manifest, read_npz
from goldens.store import ROOT, load
from goldens.walked import Walk
from references.contract.files import unpacked
from references.contract.kernel import names
from references.contract.signature import BITS


def stored_pair(old: str, new: str, root: Path = ROOT) -> list[dict[str, np.ndarray]]:
    """The arrays, as bits, of two of `KERNEL/CASE`, a walk `k3/CASE` or an .npz file.

    A file that is no whole golden (`as_golden`) is compared in the parts that both have. ValueError where there are none.
    """
    found = [stored(spec, root) for spec in (old, new)]
    both = [as_golden(arrays) for arrays in found]
    if all(map(_whole, found)):
        return both
    parts = set.intersection(*({_part(key) for key in arrays} for arrays in both))
    if not parts:
        raise ValueError(f"A and B must have arrays in common, got {old!r} with {', '.join(found[0])} and {new!r} with {', '.join(found[1])}")
    return [{key: array for key, array in arrays.items() if _part(key) in parts} for arrays in both]


def stored(spec: str, root: Path = ROOT) -> dict[str, np.ndarray]:
    if spec.endswith(".npz"):
        return _of_file(Path(spec), root)
    kernel, case = split(spec, root)
    return (steps.load(case, root) if kernel == steps.NAME else load(kernel, case, root)).arrays()


def _of_file(path: Path, root: Path) -> dict[str, np.ndarray]:
    """GoldenError where a golden is damaged, ValueError where another file is."""
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    if path.resolve().is_relative_to(root.resolve()):
        return read_npz(path)
    try:
        return unpacked(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no .npz ({error})") from None


def split(spec: str, root: Path = ROOT) -> tuple[str, str]:
    """Kernel, or k3, and case of a golden that the manifests name. ValueError where none does; GoldenError where its file is there."""
    kernel, _, case = spec.partition("/")
    if not (kernel and case):
        raise ValueError(f"a golden is named KERNEL/CASE, got {spec!r}")
    folders = sorted({path.parent.name for path in root.glob(f"*/{MANIFEST}")} | {*names(), steps.NAME})
    if kernel not in folders:
        raise ValueError(f"no kernel {kernel!r}, {_meant(kernel, folders)}")
    cases = read_manifest(root / kernel)["cases"]
    if case not in cases:
        if (path := root / kernel / f"{case}.npz").exists():
            raise GoldenError(f"{path} is there, but {MANIFEST} does not name it: python -m goldens verify {kernel} says what to do")
        raise ValueError(f"{kernel} has no golden {case!r}, {_meant(case, [*cases])}")
    return kernel, case


def _meant(name: str, there: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, there, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(there)}"


def as_golden(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of a file by the names, and in the bits, that a golden has for them.

    `o` of `references run` is `out.o`, and so is of --save-failures what was held to the golden, `device.o` or else `emulator.o`.
    """
    if _whole(arrays):
        return dict(arrays)
    side = "device" if any(_part(key) == "device" for key in arrays) else "emulator"
    outputs = {f"out.{key.removeprefix(f'{side}.')}": _bits(array) for key, array in arrays.items() if _part(key) in (key, side)}
    return outputs | {key: _bits(array) for key, array in arrays.items() if _part(key) == "in"}


def _whole(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether they are a golden's or a walk's."""
    return Walk.of(arrays) is not None or any(_part(key) in ("land", "out", "digest") for key in arrays)


def _part(key: str) -> str:
    return key.partition(".")[0]


def _bits(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind == "U":
        return np.frombuffer(str(value).encode(), np.uint8)
    return value.view(BITS.get(value.itemsize, value.dtype)) if value.ndim else value
