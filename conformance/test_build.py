"""Building kernels, as far as it goes without a GPU, torch or nvcc: caches and locks, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernels_cuda import __main__ as command
from kernels_cuda import build, doctor, ptx, toolchain
from kernels_cuda.build import Plan
from kernels_cuda.toolchain import BuildError, Toolchain

TOOLS = Toolchain(arch="90a", torch="2.11.0+cu130", cuda="13.0", nvcc="release 13.0, V13.0.88")


@pytest.fixture
def plan(tmp_path):
    """A kernel `toy` with a header, and nothing built."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "toy.cu").write_text('#include "toy.cuh"\nstatic const int kThreads = 256;\n// MISTAKE 2 = S3.bf:truncated\n')
    (sources / "toy.cuh").write_text("// MISTAKE 1 = S1.div:reciprocal\n")
    return Plan("toy", (), TOOLS, sources, tmp_path / "cache")


def again(plan, **changes):
    """The same plan read afresh, as a later process would."""
    return replace(plan, **changes)


def compiler(plan, folder):
    (folder / plan.library.name).write_bytes(plan.source.read_bytes())


# The key of the cache is the content


@pytest.mark.parametrize("file, old, new", [("toy.cu", "256", "128"), ("toy.cuh", "reciprocal", "flushed")])
def test_changed_source_is_built_anew_though_its_time_is_older(plan, file, old, new):
    assert build.build(plan, compiler)
    path = plan.sources / file
    path.write_text(path.read_text().replace(old, new))
    os.utime(path, (0, 0))
    changed = again(plan)
    assert changed.folder != plan.folder and build.build(changed, compiler)
    assert changed.library.read_bytes() == changed.source.read_bytes()


@pytest.mark.parametrize("change", ["arch", "torch", "cuda", "nvcc"])
def test_every_tool_is_in_the_digest(plan, change):
    assert again(plan, toolchain=replace(TOOLS, **{change: "other"})).digest != plan.digest


def test_defines_and_flags_are_in_the_digest(plan, monkeypatch):
    digests = {plan.digest, again(plan, defines=("TRACE",)).digest, again(plan, defines=("MISTAKE=1",)).digest}
    monkeypatch.setattr(build, "FLAGS", ("-O2", "-fmad=false"))
    assert len(digests | {again(plan).digest}) == 4


def test_same_content_is_cached_whatever_its_time(plan):
    assert build.build(plan, compiler)
    os.utime(plan.source)
    assert not build.build(again(plan), compiler)


# Many workers, one build


def test_eight_processes_build_once(plan):
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from kernels_cuda.build import Plan, build
        from kernels_cuda.toolchain import Toolchain
        sources, root = map(Path, sys.argv[1:])
        def compiler(plan, folder):
            with open(root / "compiled", "a") as log:
                log.write("once ")
            time.sleep(0.5)
            (folder / plan.library.name).write_bytes(b"library")
        plan = Plan("toy", (), Toolchain("90a", "t", "c", "n"), sources, root)
        print(build(plan, compiler), plan.library.read_bytes().decode())
    """)
    words = [sys.executable, "-c", script, str(plan.sources), str(plan.root)]
    workers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=toolchain.__file__.rsplit("/", 2)[0]) for _ in range(8)]
    said = sorted(worker.communicate(timeout=60)[0].strip() for worker in workers)
    assert said == ["False library"] * 7 + ["True library"]
    assert (plan.root / "compiled").read_text() == "once "


def test_leftovers_of_a_killed_build_are_removed(plan):
    partial = plan.folder.with_suffix(".partial")
    partial.mkdir(parents=True)
    (partial / "lock").touch()  # torch would wait for this file forever

    def sees_none(plan, folder):
        assert not list(folder.iterdir())
        compiler(plan, folder)

    assert build.build(plan, sees_none)
    assert not partial.exists()


def test_waiting_has_a_limit_and_says_for_whom(plan):
    with build.locked(plan, 1), pytest.raises(BuildError, match=rf"toy: waited 0\.1 s for .*toy_\w+\.lock, held by process {os.getpid()} since"):
        build.build(plan, compiler, seconds=0.1)
    assert build.build(plan, compiler, seconds=0.1)


def test_a_compiler_that_does_not_end_is_not_waited_for(plan, monkeypatch):
    monkeypatch.setattr(build, "COMPILE_SECONDS", 0.1)
    released = threading.Event()
    with pytest.raises(BuildError, match=r"^toy: waited 0\.1 s for its compiler in .*partial$"):
        build.build(plan, lambda plan, folder: released.wait(30))
    released.set()
    assert build.COMPILE_SECONDS < build.LOCK_SECONDS and not list(plan.root.glob("*.partial"))


@pytest.mark.parametrize("content, said", [(b"", "empty"), (None, "missing")])
def test_no_library_is_no_success(plan, content, said):
    def fails(plan, folder):
        if content is not None:
            (folder / plan.library.name).write_bytes(content)

    with pytest.raises(BuildError, match=f"reported success, but .* is {said}"):
        build.build(plan, fails)
    assert not plan.published and not list(plan.root.glob("*.partial"))


def test_empty_published_library_is_built_anew(plan):
    plan.folder.mkdir(parents=True)
    plan.library.touch()
    assert build.build(plan, compiler) and plan.published


def test_failed_build_is_reported_and_not_repeated(plan):
    calls = []

    def fails(plan, folder):
        calls.append(plan.name)
        raise BuildError("toy.cu(2): error: expected a declaration")

    for _ in range(2):
        with pytest.raises(BuildError, match="expected a declaration"):
            build.build(plan, fails)
    assert calls == ["toy"]


# What the user is told


def test_compiler_error_reaches_the_user_without_the_noise():
    log = """Error building extension 'toy_1': [1/2] /usr/local/cuda/bin/nvcc -DTORCH_EXTENSION_NAME=toy_1 -c toy.cu
FAILED: [code=2] toy.cuda.o
/usr/local/cuda/bin/nvcc -DTORCH_EXTENSION_NAME=toy_1 -c toy.cu -o toy.cuda.o
toy.cu(6): error: identifier "in64_t" is undefined
  int toy(in64_t n)
          ^
ninja: build stopped: subcommand failed."""
    assert build.compiler_says(log) == 'toy.cu(6): error: identifier "in64_t" is undefined\n  int toy(in64_t n)\n          ^'
    assert build.compiler_says("ninja: error: no rule") == "ninja: error: no rule"


@pytest.mark.parametrize("name", toolchain.REFUSED)
def test_hidden_compiler_flags_are_refused(name, monkeypatch):
    monkeypatch.setenv(name, "-use_fast_math")
    for refuses in (lambda: build.load("land"), lambda: ptx.ptx("land"), toolchain.refuse_hidden_flags):
        with pytest.raises(BuildError, match=f"{name} is set to '-use_fast_math'.*Unset it"):
            refuses()
    monkeypatch.setenv(name, "")
    toolchain.refuse_hidden_flags()


def test_torch_without_cuda_is_named_as_such(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0+cpu", version=SimpleNamespace(cuda=None)))
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    with pytest.raises(BuildError, match=r"torch 2\.13\.0\+cpu is a build without CUDA.*pip install torch"):
        toolchain.require_torch()


def test_absent_torch_is_explained(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    toolchain.toolchain.cache_clear()
    assert command.main(["build"]) == 2
    assert "torch cannot be imported" in capsys.readouterr().err
    assert doctor.main() == 1
    said = capsys.readouterr().out
    assert "build and run kernels: no" in said and said.count("torch cannot be imported") == 1 and "GPU            not looked for" in said


@pytest.mark.parametrize("listed", ["garbage", "8.0", ""])
def test_the_arch_list_is_not_read(listed, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    said = [check for check in doctor.checks() if check.name == "arch list"]
    assert said == ([doctor.Check("arch list", None, f"TORCH_CUDA_ARCH_LIST is set to {listed!r}, which is not read: kernels are built for the GPU")]
                    if listed else [])


def test_absent_nvcc_is_explained(tmp_path):
    with pytest.raises(BuildError, match=r"nvcc does not run.*CUDA_HOME"):
        toolchain.nvcc_version(tmp_path / "nvcc")


def toolkit(folder):
    for name in ("bin/nvcc", "include/cuda_runtime.h"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch(mode=0o755)
    return folder


def test_toolkit_of_cuda_home_comes_first(tmp_path):
    named, on_path = toolkit(tmp_path / "named"), toolkit(tmp_path / "other")
    environment = {"PATH": str(on_path / "bin")}
    assert toolchain.cuda_home(environment) == on_path
    assert toolchain.cuda_home(environment | {"CUDA_HOME": str(named)}) == named


def test_absent_toolkit_is_explained(tmp_path):
    with pytest.raises(BuildError, match=rf"no CUDA toolkit .* in {tmp_path}: install the CUDA toolkit, or set CUDA_HOME"):
        toolchain.cuda_home({"CUDA_HOME": str(tmp_path)})


def test_script_named_nvcc_is_no_toolkit(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").touch(mode=0o755)
    try:
        assert toolchain.cuda_home({"PATH": str(tmp_path / "bin")}) != tmp_path
    except BuildError as error:
        assert str(tmp_path) in str(error)


def test_unknown_kernel_is_refused(plan, capsys):
    with pytest.raises(ValueError, match="KERNEL must be one of toy, got 'tyo'"):
        again(plan, name="tyo")
    assert command.main(["build", "tyo"]) == 2 and "got 'tyo'" in capsys.readouterr().err


def test_kernel_without_a_source_is_no_unknown_one(plan):
    with pytest.raises(ValueError, match=r"^sources/land\.cu is missing$"):
        again(plan, name="land")


@pytest.mark.parametrize("capability, arch", [((8, 0), "80"), ((8, 9), "89"), ((9, 0), "90a"), ((10, 0), "100a")])
def test_sass_is_for_the_exact_arch_alone(capability, arch):
    gencode = replace(TOOLS, arch=toolchain.arch_of(capability)).gencode
    assert gencode == f"-gencode=arch=compute_{arch},code=sm_{arch}"


def test_compilers_at_once():
    assert toolchain.jobs({"MAX_JOBS": "3"}) == 3 and 1 <= toolchain.jobs({}) <= os.cpu_count()
    with pytest.raises(ValueError, match="MAX_JOBS must be a positive integer, got '0'"):
        toolchain.jobs({"MAX_JOBS": "0"})


def test_planted_mistakes_are_read_from_source_and_headers(plan):
    assert build.planted("toy", plan.sources) == {1: "S1.div:reciprocal", 2: "S3.bf:truncated"}
    (plan.sources / "toy.cuh").write_text('#include "other.cuh"\n// MISTAKE 1 = S1.div:reciprocal\n')
    (plan.sources / "other.cuh").write_text('#include "toy.cuh"\n#include "common.cuh"\n// MISTAKE 3 = late/S2.bf:skipped\n')
    assert build.planted("toy", plan.sources) == {1: "S1.div:reciprocal", 2: "S3.bf:truncated", 3: "late/S2.bf:skipped"}
