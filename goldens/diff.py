"""What differs between two goldens, array by array, in bits and ulps; and what one golden holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from goldens.store import Golden
from goldens.walked import Walk
from references.arith.bits import NAN_DISTANCE, from_bits, ulp_distance

ROWS = 8


def diff(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> list[str]:
    """One line for each array that differs: `out.o: 3 of 512 elements changed, worst 1 ulp`. Of walks, where they part."""
    walks = Walk.of(old), Walk.of(new)
    if all(walks):
        return walks_diff(*walks)
    off = [key for key in sorted({*old, *new}) if not _same(old.get(key), new.get(key))]
    return [f"{key}: {_changed(old.get(key), new.get(key), 'rows' if key.startswith('digest.') else 'elements')}" for key in off]


def walks_diff(old: Walk, new: Walk) -> list[str]:
    """The steps that two walks have, where they have others; then the first step of both that differs, with the first of its landings that does."""
    lines = [] if old.steps == new.steps else [f"steps {old.steps[0]} .. {old.steps[-1]} -> {new.steps[0]} .. {new.steps[-1]}"]
    lines += [line] if (line := old.parted(new)) else []
    return lines or [f"{key} differs" for key, array in old.arrays().items() if not _same(array, new.arrays()[key])]


def first_rows(old: np.ndarray, new: np.ndarray, limit: int = ROWS) -> Iterator[str]:
    """The first differing elements of two arrays of one shape: index, old -> new in hex and value."""
    for index in np.argwhere(old != new)[:limit]:
        at = tuple(index)
        yield f"  {list(map(int, at))}  {shown(old[at])} -> {shown(new[at])}"


def shown(bits: np.generic) -> str:
    """One element: `0x3f80 (1)`. Two bytes are taken for bf16, four for f32."""
    hexed = f"0x{int(bits):0{2 * bits.itemsize}x}"
    if bits.itemsize == 2:
        return f"{hexed} ({from_bits(np.asarray(bits))[()]:.9g})"
    return f"{hexed} ({bits.view(np.float32):.9g})" if bits.itemsize == 4 else hexed


def describe(golden: Golden) -> Iterator[str]:
    """A golden for reading: its sentence, what it guards against, every array with its first values."""
    yield f"{golden.kernel}/{golden.case} (schedule version {golden.version}): {golden.why}"
    if golden.guards:
        yield f"guards against {', '.join(golden.guards)}"
    dtypes = golden.entry()["dtypes"]
    for key, dtype in dtypes.items():
        if dtype in (None, "str"):
            yield f"{key}: {golden.values()[key] or 'unwritten'}"
            continue
        array = golden.arrays()[key]
        values = ", ".join(shown(bits) if dtype != "int64" else str(bits) for bits in array.reshape(-1)[:ROWS])
        yield f"{key}: {dtype}{list(array.shape) if array.ndim else ''} {values}{', ...' if array.size > ROWS else ''}"


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)


def _changed(old: np.ndarray | None, new: np.ndarray | None, unit: str) -> str:
    if old is None or new is None:
        return "new" if old is None else "gone"
    if old.dtype != new.dtype:
        return f"{old.dtype}{list(old.shape)} -> {new.dtype}{list(new.shape)}, as bits"
    if old.shape != new.shape:
        return f"shape {list(old.shape)} -> {list(new.shape)}"
    count = f"{np.count_nonzero(old != new)} of {old.size} {unit} changed"
    kind = {2: "bf16", 4: "f32"}.get(old.itemsize)
    if kind is None:
        return count
    apart = np.abs(ulp_distance(new, old, kind)[old != new])
    nans = np.count_nonzero(apart == NAN_DISTANCE)
    finite = apart[apart != NAN_DISTANCE]
    worst = f", worst {finite.max()} ulp" if finite.size else ""
    return count + worst + (f", {nans} to or from NaN" if nans else "")
