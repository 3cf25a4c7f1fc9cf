"""Waits have limits and say what they waited for; what dies, hangs or breaks the device fails its own call and nothing after it."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from conformance import broken, device
from conformance.worker import Worker, WorkerLost
from kernels_cuda import launch, ptx, toolchain
from kernels_cuda.launch import CudaError, DeviceLost
from kernels_cuda.toolchain import BuildError


@pytest.fixture
def held():
    worker = Worker(lasting=(KeyError,))
    yield worker
    worker.stop()


def test_a_worker_outlives_what_it_runs(held):
    first = held.call(os.getpid)
    with pytest.raises(ValueError, match="invalid literal"):
        held.call(int, "x")
    assert held.call(os.getpid) == first != os.getpid()
    with pytest.raises(KeyError):
        held.call({}.__getitem__, "gone")
    second = held.call(os.getpid)
    assert second != first, "an error that lasts ends the process"
    with pytest.raises(WorkerLost, match="exit code 3"):
        held.call(os._exit, 3)
    with pytest.raises(WorkerLost, match="had not finished"):
        held.call(time.sleep, 60, seconds=0.5)
    assert held.call(os.getpid) not in (first, second)


def fails(why):
    raise RuntimeError(why)


def unusable(name):
    raise KeyError(f"{name} left nothing usable")


def test_what_a_failure_leaves_is_probed():
    """Where it lasts, the process ends; what is refused leaves it alone."""
    worker = Worker((KeyError,), probe=unusable)
    try:
        first = worker.call(os.getpid)
        with pytest.raises(ValueError, match="invalid literal"):
            worker.call(int, "x")
        assert worker.call(os.getpid) == first
        with pytest.raises(KeyError, match=r"fails\('sticky',\) left nothing usable"):
            worker.call(fails, "sticky")
        assert worker.call(os.getpid) != first
    finally:
        worker.stop()


def test_a_device_that_was_not_used_is_not_probed(monkeypatch):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: used))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(launch, "probe", fails)
    used = False
    device.probe("build_all")
    used = True
    with pytest.raises(RuntimeError, match="forced"):
        device.probe("forced")


def test_a_worker_that_died_between_two_calls_is_started_anew(held):
    first = held.call(os.getpid)
    os.kill(first, signal.SIGKILL)
    held._process.join(5)
    assert held.call(os.getpid) != first


def test_sending_has_the_same_limit(held):
    """To a process that does not read, more than a pipe holds."""
    os.kill(held.call(os.getpid), signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match=r"len\(.*had not finished after 0\.5 s and was ended"):
        held.call(len, bytes(1 << 22), seconds=0.5)
    assert time.monotonic() - begin < 5 and held.call(len, "abc") == 3


# On a device


class Event:
    """One that is done at its third look, or never."""

    ends, looks = True, 0

    def record(self):
        pass

    def query(self):
        self.looks += 1
        return self.ends and self.looks > 2


def test_a_kernel_that_does_not_end_is_named(monkeypatch):
    torch = pytest.importorskip("torch", reason="the wait is torch's")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(launch, "_lost", [])
    launch.synchronise("toy", seconds=5)
    monkeypatch.setattr(Event, "ends", False)
    with pytest.raises(DeviceLost, match=r"^toy had not finished on the GPU after 0\.2 s$"):
        launch.synchronise("toy", seconds=0.2)
    with pytest.raises(DeviceLost, match=r"^toy had not finished"):  # nothing is launched behind it
        launch.Prepared(SimpleNamespace(name="next"), None, {})


@pytest.mark.parametrize("kind, said", [("traps", "unusable"), ("faults", "unusable"), ("hangs", "after 2 s")])
def test_a_kernel_that_breaks_the_device_fails_its_own_call_only(kind, said, gpu):
    begin = gpu.call(os.getpid)
    with pytest.raises(DeviceLost, match=rf"{kind}.* {said}"):
        gpu.call(broken.run, kind)
    assert gpu.call(os.getpid) != begin, "a process that lost its device was used again"
    assert gpu.call(device.gate, "land", "ties", 1, 8) is None


def test_a_kernel_that_is_refused_leaves_the_device_usable(gpu):
    begin = gpu.call(os.getpid)
    with pytest.raises(CudaError, match="refused: cudaErrorInvalid"):
        gpu.call(broken.run, "refused")
    assert gpu.call(os.getpid) == begin and gpu.call(device.gate, "land", "ties", 1, 8) is None


# Programs that are called


@pytest.fixture
def slow(tmp_path):
    path = tmp_path / "nvcc"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    return path


def test_an_nvcc_that_does_not_answer(slow, monkeypatch):
    monkeypatch.setattr(toolchain, "VERSION_SECONDS", 0.2)
    with pytest.raises(BuildError, match=r"nvcc does not run \(Command .*--version.* timed out after 0\.2 seconds"):
        toolchain.nvcc_version(slow)


def test_an_nvcc_that_does_not_end(slow, monkeypatch):
    monkeypatch.setattr(ptx, "find_nvcc", lambda: slow)
    monkeypatch.setattr(ptx, "COMPILE_SECONDS", 0.2)
    with pytest.raises(BuildError, match=r"^land: waited 0\.2 s for nvcc to make its PTX$"):
        ptx.ptx("land")
