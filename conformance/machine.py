"""What the header says of this machine, without importing torch: collecting tests must stay quick, and emulating needs no torch."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence

from kernels_cuda.toolchain import BuildError, find_nvcc, nvcc_version

PACKAGES = ("numpy", "ml_dtypes", "numba", "pytest")
ASK = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version,uuid", "--format=csv,noheader")


def versions() -> str:
    return ", ".join([f"python {platform.python_version()}", *(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)])


def toolkit() -> str:
    """`13.0`, or why there is none."""
    try:
        return re.search(r"release ([\d.]+)", nvcc_version(find_nvcc()))[1]
    except BuildError as error:
        return str(error)


@functools.cache
def gpu() -> tuple[str, str]:
    """The GPU that device tests will use, and why they cannot run; one of the two is empty."""
    name, why = find_gpu()
    if why:
        return "", f"no CUDA device: {why}"
    if importlib.util.find_spec("torch") is None:
        return "", f"there is a {name}, but torch is not installed: pip install '.[cuda]'"
    return name, ""


def find_gpu(environment: Mapping[str, str] = os.environ, ask: tuple[str, ...] = ASK) -> tuple[str, str]:
    """The GPU that CUDA takes first, as `NVIDIA H200, sm_90, driver 580.65`, and why there is none."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    first = "0" if visible is None else visible.split(",")[0].strip()
    if first in ("", "-1"):
        return "", f"CUDA_VISIBLE_DEVICES is {visible!r}"
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "", f"{ask[0]} is not on the PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{ask[0]} does not run: {error}"
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.strip().splitlines()]
    if done.returncode or not rows:
        said = (done.stdout + done.stderr).strip() or "no GPU"
        return "", f"{ask[0]}: {said.splitlines()[0]}"
    named = _named(first, rows)
    if named is None:
        return "", f"CUDA_VISIBLE_DEVICES is {visible!r}, {ask[0]} lists {len(rows)}"
    name, capability, driver, _ = named
    return f"{name}, sm_{capability.replace('.', '')}, driver {driver}", ""


def _named(first: str, rows: Sequence[list[str]]) -> list[str] | None:
    """By its number, as nvidia-smi counts, or by the start of its UUID. Parts of GPUs (MIG) are not listed: the first GPU stands for one."""
    if first.startswith("MIG-"):
        return rows[0]
    return next((row for i, row in enumerate(rows) if first == str(i) or row[-1].startswith(first)), None)


def lines() -> dict[str, str]:
    """The header, by title."""
    name, why = gpu()
    return {"versions": versions(), "GPU": name or f"none: device tests will not run ({why})", "toolkit": f"nvcc {toolkit()}"}
