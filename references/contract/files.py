"""Files that appear whole or not at all, and the arrays of an .npz."""

from __future__ import annotations

import io
import os
import zlib
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np


def write_whole(path: Path, content: bytes) -> None:
    """Write or replace a file of a folder that is there: what stops halfway leaves the old one. OSError names it where it cannot be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")  # two runs may write the same file
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # and not the partial file, which nobody asked for
    finally:
        with suppress(OSError):  # it is not there, or its folder is none
            partial.unlink()


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name. ValueError where it is damaged or something else."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (BadZipFile, zlib.error, EOFError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{len(content)} bytes: {error}") from None
