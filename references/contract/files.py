"""A file appears whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write or replace a file of a folder that is there: what stops halfway leaves the old one. OSError where it cannot be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")  # two runs may write the same file
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
