"""What the header says of this machine, without importing torch: collecting tests must stay quick, and emulating needs no torch."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Mapping

from kernels_cuda.toolchain import BuildError, find_nvcc, nvcc_version

PACKAGES = ("numpy", "ml_dtypes", "numba", "pytest")
ASK = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")


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
    """The first GPU the driver knows, as `NVIDIA H200, sm_90, driver 580.65`, and why there is none."""
    hidden = environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.split(",")[0].strip() in ("", "-1"):
        return "", f"CUDA_VISIBLE_DEVICES is {hidden!r}"
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "", f"{ask[0]} is not on the PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{ask[0]} does not run: {error}"
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return "", f"{ask[0]}: {(done.stdout + done.stderr).strip().splitlines()[0] if done.stdout + done.stderr else 'no GPU'}"
    name, capability, driver = (word.strip() for word in lines[0].split(","))
    return f"{name}, sm_{capability.replace('.', '')}, driver {driver}", ""


def lines() -> dict[str, str]:
    """The header, by title."""
    name, why = gpu()
    return {"versions": versions(), "GPU": name or f"none: device tests will not run ({why})", "toolkit": f"nvcc {toolkit()}"}
