"""What this machine can and cannot do, one line a check: python -m kernels_cuda doctor"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels_cuda import toolchain
from kernels_cuda.build import cache_root
from kernels_cuda.toolchain import BuildError


@dataclass(frozen=True)
class Check:
    """ok is None for what is worth knowing and neither right nor wrong."""

    name: str
    ok: bool | None
    text: str


def checks() -> Iterator[Check]:
    """Every check, from what all else needs down to the GPU."""
    yield Check("python", sys.version_info >= (3, 11), f"{platform.python_version()} at {sys.executable}")
    for package in ("numpy", "ml_dtypes", "numba"):
        yield _package(package)
    yield _tried("environment", lambda: toolchain.refuse_hidden_flags() or f"{', '.join(toolchain.REFUSED)} are not set")
    archs = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if archs:
        yield Check("arch list", None, f"TORCH_CUDA_ARCH_LIST is set to {archs!r}, which is not read: kernels are built for the GPU")
    yield _tried("torch", lambda: "{0.__version__}, CUDA {0.version.cuda}".format(toolchain.require_torch()))
    yield _tried("ninja", lambda: toolchain.require_ninja() or shutil.which("ninja"))
    yield _tried("host compiler", _host_compiler)
    yield _tried("nvcc", _toolkit)
    yield _tried("GPU", _gpu)
    yield Check("driver", None, driver())
    yield Check("sanitizer", None, shutil.which("compute-sanitizer") or "compute-sanitizer is not on the PATH")
    yield _cache()


def _tried(name: str, look: Callable[[], object]) -> Check:
    try:
        return Check(name, True, str(look()))
    except (BuildError, RuntimeError) as error:
        return Check(name, False, str(error).splitlines()[0])


def _package(name):
    try:
        return Check(name, True, getattr(importlib.import_module(name), "__version__", "present"))
    except ImportError:
        return Check(name, False, f"not installed: pip install {name}")


def driver() -> str:
    """The version of the NVIDIA driver, or why it is not known."""
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])


def _first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} does not run: {error}"
    said = (done.stdout + done.stderr).strip() or f"{command[0]} says nothing and returns {done.returncode}"
    return said.splitlines()[0]


def _toolkit():
    """The nvcc of the toolkit, and whether it is of the CUDA version that torch was built for."""
    nvcc = toolchain.find_nvcc()
    release = toolchain.nvcc_version(nvcc).split("release ")[-1].split(",")[0]
    try:
        wanted = toolchain.require_torch().version.cuda
    except BuildError:
        return f"{release} at {nvcc}"
    if release.split(".")[0] != wanted.split(".")[0]:
        raise BuildError(f"{release} at {nvcc}, but torch was built for CUDA {wanted}: use a toolkit of that major version")
    return f"{release} at {nvcc}, torch's is {wanted}"


def _host_compiler():
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise BuildError(f"{compiler} is not on the PATH: install g++, or set CXX")
    return _first_line([compiler, "--version"])


def _gpu():
    try:
        torch = toolchain.require_torch()
    except BuildError:
        raise BuildError("not looked for: that takes a torch with CUDA") from None
    if not torch.cuda.is_available():
        raise BuildError("torch sees no GPU: is the driver loaded (nvidia-smi), and CUDA_VISIBLE_DEVICES not empty?")
    properties = torch.cuda.get_device_properties(0)
    torch.ones(2, device="cuda").sum().item()
    arch = toolchain.arch_of((properties.major, properties.minor))
    proven = "" if properties.major == 9 else "; the recorded arithmetic is that of sm_90, and this arch is not proven"
    return f"{properties.name}, {properties.total_memory >> 30} GiB, builds for sm_{arch}{proven}"


def _cache():
    root = cache_root()
    files = [path for path in root.rglob("*") if path.is_file()] if root.is_dir() else []
    libraries = sum(path.suffix == ".so" for path in files)
    return Check("build cache", None, f"{root}: {libraries} libraries, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")


def main() -> int:
    """0 where kernels can be built and run."""
    done = []
    for check in checks():
        done.append(check)
        print(f"{ {True: 'ok', False: 'NO', None: '--'}[check.ok]:3} {check.name:14} {check.text}", flush=True)
    able = all(check.ok is not False for check in done)
    emulate = all(check.ok for check in done if check.name in ("python", "numpy", "ml_dtypes", "numba"))
    print(f"emulate and verify goldens: {'yes' if emulate else 'no'}; build and run kernels: {'yes' if able else 'no'}")
    return 0 if able else 1
