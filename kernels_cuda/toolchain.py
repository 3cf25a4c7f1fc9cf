"""What a build depends on besides the sources: torch, nvcc, the GPU's arch, the environment. Each problem is said with its remedy."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REFUSED = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
INSTALL = "pip install torch --index-url https://download.pytorch.org/whl/cu130"
NO_NVCC = "install the CUDA toolkit, or set CUDA_HOME to the folder that holds bin/nvcc"
GIB_A_COMPILER = 2
VERSION_SECONDS = 60


class BuildError(RuntimeError):
    """A kernel cannot be built here; the message says why and what to do."""


@dataclass(frozen=True)
class Toolchain:
    """arch: `90a`, what the SASS is for; torch, cuda: versions; nvcc: all that `nvcc --version` prints."""

    arch: str
    torch: str
    cuda: str
    nvcc: str

    @property
    def gencode(self) -> str:
        """SASS for exactly this arch and no PTX: a gate must not run what the driver compiled."""
        return f"-gencode=arch=compute_{self.arch},code=sm_{self.arch}"


def arch_of(capability: tuple[int, int]) -> str:
    """Compute capability -> arch; from Hopper on the arch-specific target, which has all of the chip's instructions."""
    major, minor = capability
    return f"{major}{minor}" + ("a" if major >= 9 else "")


def refuse_hidden_flags(environment: Mapping[str, str] = os.environ) -> None:
    """nvcc reads these variables by itself, and they can turn fast-math on without a trace in any build log."""
    for name in REFUSED:
        if environment.get(name):
            raise BuildError(f"{name} is set to {environment[name]!r}: nvcc would add it silently to every build. Unset it.")


def require_torch():
    """The torch module, if it was built for CUDA. A CPU build would say that CUDA_HOME is not set, whatever it is set to."""
    try:
        import torch
    except ImportError as error:
        raise BuildError(f"torch cannot be imported ({error}). Install it: {INSTALL}") from error
    if torch.version.cuda is None:
        raise BuildError(f"torch {torch.__version__} is a build without CUDA, and cannot run kernels whatever CUDA_HOME says. Install: {INSTALL}")
    return torch


def nvcc_version(nvcc: str | Path) -> str:
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=VERSION_SECONDS).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"nvcc does not run ({error}): {NO_NVCC}") from error


def cuda_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The toolkit: CUDA_HOME if it is set, else where the nvcc of the PATH is, else /usr/local/cuda.

    torch takes the folder above any nvcc on the PATH, and where that is a script beside no toolkit, linking fails for want of cudart.
    """
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    on_path = shutil.which("nvcc", path=environment.get("PATH", ""))
    places = [Path(named)] if named else [*([Path(on_path).resolve().parent.parent] if on_path else []), Path("/usr/local/cuda")]
    for place in places:
        if (place / "bin/nvcc").is_file() and (place / "include/cuda_runtime.h").is_file():
            return place
    raise BuildError(f"no CUDA toolkit with bin/nvcc and include/cuda_runtime.h in {' or '.join(map(str, places))}: {NO_NVCC}")


def find_nvcc(environment: Mapping[str, str] = os.environ) -> Path:
    """nvcc of the toolkit; needs no torch."""
    return cuda_home(environment) / "bin/nvcc"


def require_ninja() -> None:
    """torch runs `ninja` from the PATH, where a virtual environment that was not activated does not put it."""
    beside = Path(sys.executable).with_name("ninja")
    if shutil.which("ninja") is None and beside.is_file():
        os.environ["PATH"] = f"{beside.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if shutil.which("ninja") is None:
        raise BuildError("ninja is not on the PATH: pip install ninja")


@functools.cache
def toolchain() -> Toolchain:
    """The toolchain of this machine. BuildError says what is missing."""
    refuse_hidden_flags()
    torch = require_torch()
    if not torch.cuda.is_available():
        raise BuildError(f"torch {torch.__version__} sees no GPU: `python -m kernels_cuda doctor` says more")
    os.environ["CUDA_HOME"] = str(cuda_home())  # read by torch when it imports cpp_extension
    require_ninja()
    arch = arch_of(torch.cuda.get_device_capability())
    return Toolchain(arch, torch.__version__, torch.version.cuda, nvcc_version(find_nvcc()))


def jobs(environment: Mapping[str, str] = os.environ) -> int:
    """Compilers to run at once: MAX_JOBS where it is set, else one a core, as far as memory goes."""
    if environment.get("MAX_JOBS"):
        if not environment["MAX_JOBS"].isdigit() or environment["MAX_JOBS"] == "0":
            raise ValueError(f"MAX_JOBS must be a positive integer, got {environment['MAX_JOBS']!r}")
        return int(environment["MAX_JOBS"])
    available = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return max(1, min(len(os.sched_getaffinity(0)), available // (GIB_A_COMPILER << 20)))
