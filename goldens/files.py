"""Golden files: unsigned bit views in an .npz, a manifest beside them, both written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from references.contract.files import unpacked, write_whole

SCHEMA = 1
MANIFEST = "MANIFEST.json"
LFS = b"version https://git-lfs"


class GoldenError(ValueError):
    """A golden that cannot be trusted or must not be written; the message says which and what to do."""


def payload_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 of names, dtypes, shapes and little-endian bytes: of what is stored, not of the container zlib makes of it."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A compressed .npz with its members in order of name and no time stamps."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: arrays[name] for name in sorted(arrays)})
    return buffer.getvalue()


def stored_sha256(path: Path) -> str | None:
    """`payload_sha256` of a golden file, None where it is missing or damaged."""
    try:
        return payload_sha256(read_npz(path))
    except GoldenError:
        return None


def recorded(folder: Path, say: Callable[[str], None], **more: type) -> dict:
    """The manifest (`read_manifest`). Where there is none, which is said, just no cases: of what version its goldens are is not known."""
    path = folder / MANIFEST
    if path.exists():
        return read_manifest(folder, **more)
    if any(folder.glob("*.npz")):
        say(f"{path} is missing: nothing is known of goldens without a file. Where git has it, restore it with git checkout and run this again")
    else:
        say(f"{folder} has no goldens: all are new, and if git has some, git diff will show which change")
    return {"cases": {}}


def assert_recorded(folder: Path, changed: Iterable[str]) -> None:
    """GoldenError where goldens change and there is no manifest, for without their version no other can be above it."""
    if changed and not (folder / MANIFEST).exists():
        raise GoldenError(f"{', '.join(changed)} would change, and {folder / MANIFEST}, which says of what version they are, is missing; "
                          f"nothing was written. Restore it; only where git has none, remove the files that would change")


def held_sha256(folder: Path, listed: Mapping[str, Mapping], cases: Iterable[str]) -> dict[str, str]:
    """`payload_sha256` of the goldens that are there, by case: what the manifest's entries say, or the file of a case that has none.

    GoldenError where such a file is damaged: what it held is not known.
    """
    files = {case: folder / f"{case}.npz" for case in cases if case not in listed}
    unlisted = {case: payload_sha256(read_npz(path)) for case, path in files.items() if path.exists()}
    return {case: entry["sha256"] for case, entry in listed.items()} | unlisted


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a golden file. GoldenError where it is missing, a Git LFS pointer, or damaged."""
    content = _content(path)
    try:
        return unpacked(content)
    except ValueError as error:
        raise GoldenError(f"{path} is damaged or no golden ({error}): restore it with git checkout") from None


def read_manifest(folder: Path, **more: type) -> dict:
    """MANIFEST.json of a kernel. GoldenError where it is missing, damaged, or of another schema.

    It has a version, what `more` names, and by case an entry with its sentence and sha256 at least.
    """
    path, content = folder / MANIFEST, _content(folder / MANIFEST)
    try:
        manifest = json.loads(content)
    except ValueError as error:
        raise GoldenError(f"{path} is damaged ({error}): restore it with git checkout") from None
    if isinstance(manifest, dict) and manifest.get("schema") != SCHEMA:
        raise GoldenError(f"{path} has schema {manifest.get('schema')!r}, this code reads {SCHEMA}")
    whole = _has(manifest, version=int, cases=dict, **more) and all(_has(one, sentence=str, sha256=str) for one in manifest["cases"].values())
    if not whole or manifest["version"] < 1:
        wanted = ", ".join(["a version", *more, "a sentence and a sha256 of every case"])
        raise GoldenError(f"{path} is damaged (it must have {wanted}): restore it with git checkout")
    return manifest


def _has(entry: Any, **kinds: type) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())


def manifest_bytes(manifest: dict) -> bytes:
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        todo = f"restore it with git checkout; only where git has none, make it with python -m goldens regenerate {path.parent.name}"
        raise GoldenError(f"{path} is missing: {todo}") from None
    if content.startswith(LFS):
        raise GoldenError(f"{path} is a Git LFS pointer and not the golden itself: run git lfs pull")
    return content


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write or replace files in the order given, so the manifest goes last; what was replaced is put back if one of them fails.

    Each file appears whole, by temporary file and rename. A kill between two renames leaves a file ahead of its manifest: `verify`
    names it, and running the same command again finishes the work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replaced: dict[str, bytes | None] = {}
    try:
        for name, content in files.items():
            path = folder / name
            before = path.read_bytes() if path.exists() else None
            write_whole(path, content)
            replaced[name] = before
    except BaseException:
        for name, before in replaced.items():
            if before is None:
                (folder / name).unlink()
            else:
                write_whole(folder / name, before)
        raise
