"""Build kernels_cuda/<kernel>.cu through torch.utils.cpp_extension.load.

A library lies in a folder named by a digest of all that decides its bits: sources, headers, flags, defines, arch, torch, nvcc. So what
is there is right whatever the file times say, and nothing is ever rebuilt in place. It is published whole, by one rename.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from kernels_cuda.toolchain import BuildError, Toolchain, jobs, refuse_hidden_flags, require_ninja, toolchain

SOURCES = Path(__file__).resolve().parent
FLAGS = ("-O3", "-fmad=false", "-lineinfo")  # lines change no instruction; profilers, the sanitizer and the check of the PTX read them
COMPILE_SECONDS = 540
LOCK_SECONDS = 600  # longer than a compiler is waited for, so who waits for a build hears of its end
SHOWN_LINES = 40

_failed: dict[Path, BuildError] = {}  # the same sources fail the same way: one compiler run a process, not one a test


def cache_root() -> Path:
    """Where libraries are kept; torch's own variable moves it."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions").expanduser() / "k3_conformance"


@dataclass(frozen=True)
class Plan:
    """One library to be: a kernel, its defines (`TRACE`, `MISTAKE=2`) and what builds it."""

    name: str
    defines: tuple[str, ...]
    toolchain: Toolchain
    sources: Path = SOURCES
    root: Path = field(default_factory=cache_root)

    def __post_init__(self):
        require(self.name, self.sources)

    @property
    def source(self) -> Path:
        return self.sources / f"{self.name}.cu"

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS, self.toolchain.gencode, *(f"-D{define}" for define in self.defines))

    @functools.cached_property
    def digest(self) -> str:
        """Every header counts for every kernel: which ones a source includes would take a preprocessor to know."""
        digest = hashlib.sha256(repr((self.name, self.flags, self.toolchain)).encode())
        for path in (self.source, *sorted(self.sources.glob("*.cuh"))):
            digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:16]

    @property
    def module(self) -> str:
        return f"{self.name}_{self.digest}"

    @property
    def folder(self) -> Path:
        return self.root / self.module

    @property
    def library(self) -> Path:
        return self.folder / f"{self.module}.so"

    @property
    def published(self) -> bool:
        return self.library.is_file() and self.library.stat().st_size > 0


@dataclass(frozen=True)
class Built:
    plan: Plan
    seconds: float
    cached: bool
    error: BuildError | None = None


def names(sources: Path = SOURCES) -> tuple[str, ...]:
    """Every kernel that has a CUDA source."""
    return tuple(sorted(path.stem for path in sources.glob("*.cu")))


def require(name: str, sources: Path = SOURCES) -> None:
    """ValueError where a kernel has no CUDA source: it is still to be written, or there is no such kernel."""
    if name in names(sources):
        return
    from references.contract.kernel import names as kernels

    if name in kernels():
        raise ValueError(f"{sources.name}/{name}.cu is missing")
    raise ValueError(f"KERNEL must be one of {', '.join(names(sources))}, got {name!r}")


def includes(source: Path) -> str:
    """The text of the headers of its own folder that a source includes, directly or not, without common.cuh, which every kernel includes."""
    seen, todo = {}, [source]
    while todo:
        for header in re.findall(r'^#include "(\S+)"', todo.pop().read_text(), re.MULTILINE):
            path = source.parent / header
            if header not in seen and header != "common.cuh":
                seen[header] = path.read_text()
                todo.append(path)
    return "\n".join(seen.values())


def planted(name: str, sources: Path = SOURCES) -> dict[int, str]:
    """The mistakes compiled in by -DMISTAKE=k, k -> `site:fault` or `form/site:fault`, as the source and the headers it includes state them."""
    source = sources / f"{name}.cu"
    stated = re.findall(r"MISTAKE (\d+) = ((?:\w+/)?[\w.#]+:\w+)", f"{source.read_text()}\n{includes(source)}")
    return dict(sorted((int(k), key) for k, key in stated))


@functools.cache
def load(name: str, defines: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The library of a kernel, built on this machine if it is not yet. BuildError carries the compiler's own message."""
    refuse_hidden_flags()
    plan = Plan(name, tuple(defines), toolchain())
    build(plan)
    return ctypes.CDLL(str(plan.library))


def build_all(plans: Iterable[Plan]) -> list[Built]:
    """Build several libraries at once; a failure is in its `Built.error` and does not stop the others."""
    plans = list(plans)
    with ThreadPoolExecutor(min(jobs(), max(1, len(plans)))) as pool:
        return list(pool.map(_timed, plans))


def _timed(plan):
    begin = time.monotonic()
    try:
        cached = not build(plan)
    except BuildError as error:
        return Built(plan, time.monotonic() - begin, False, error)
    return Built(plan, time.monotonic() - begin, cached)


def build(plan: Plan, compiler: Callable[[Plan, Path], None] | None = None, seconds: float = LOCK_SECONDS) -> bool:
    """Publish the library of `plan`; False if it was there. One process on the machine compiles it, the others wait for that one."""
    if plan.published:
        return False
    if plan.folder in _failed:
        raise _failed[plan.folder]
    with locked(plan, seconds):
        if plan.published:
            return False
        partial = plan.folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a build that was killed; torch would wait forever for the `lock` in it
        partial.mkdir()
        try:
            _within(COMPILE_SECONDS, compiler or compile_with_torch, plan, partial)
            _publish(plan, partial)
        except BuildError as error:
            _failed[plan.folder] = error
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return True


def _within(seconds, compiler, plan, partial):
    """torch waits for the compiler without end; so a thread waits for torch, and is left behind where that does not end."""
    done = Future()

    def work():
        try:
            done.set_result(compiler(plan, partial))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    if not wait([done], seconds).done:
        raise BuildError(f"{plan.name}: waited {seconds:g} s for its compiler in {partial}")
    done.result()


def _publish(plan, partial):
    made = partial / plan.library.name
    if not made.is_file() or made.stat().st_size == 0:
        raise BuildError(f"{plan.name}: the compiler reported success, but {made.name} is {'empty' if made.is_file() else 'missing'}")
    shutil.rmtree(plan.folder, ignore_errors=True)  # holds no usable library, or this build had not begun
    partial.rename(plan.folder)


@contextmanager
def locked(plan: Plan, seconds: float) -> Iterator[None]:
    """Hold the lock of one library. The kernel drops the lock of a process that dies, so only a live build is ever waited for."""
    plan.root.mkdir(parents=True, exist_ok=True)
    holder = plan.folder.with_suffix(".holder")
    lock = FileLock(plan.folder.with_suffix(".lock"))
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        who = holder.read_text() if holder.is_file() else "an unknown process"
        raise BuildError(f"{plan.name}: waited {seconds:g} s for {lock.lock_file}, held by {who}; end that process or wait for it") from None
    try:
        holder.write_text(f"process {os.getpid()} since {time.strftime('%H:%M:%S')}")
        yield
    finally:
        lock.release()


def compile_with_torch(plan: Plan, folder: Path) -> None:
    """Compile into `folder`. torch adds include paths, -fPIC, --expt-relaxed-constexpr and macros that hide implicit bf16 conversions."""
    from torch.utils import cpp_extension

    require_ninja()
    try:
        cpp_extension.load(
            plan.module,
            [str(plan.source)],
            extra_cuda_cflags=list(plan.flags),
            build_directory=str(folder),
            with_cuda=True,
            is_python_module=False,
        )
    except RuntimeError as error:
        raise BuildError(f"{plan.name} does not compile ({' '.join(plan.flags)}):\n{compiler_says(str(error))}") from error


def compiler_says(log: str) -> str:
    """The compiler's own lines of a ninja log, without command lines and progress."""
    noise = ("[", "FAILED:", "ninja:", "Error building extension")
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(noise) and "TORCH_EXTENSION_NAME" not in line]
    return "\n".join(lines[:SHOWN_LINES] or log.splitlines()[-SHOWN_LINES:])
