"""A file appears whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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
