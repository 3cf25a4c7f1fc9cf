"""What tests ask for: the GPU, which one worker process a session holds, a side to run whole steps on, and a place for what is only shown."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from conformance import device
from conformance.machine import gpu as find_gpu
from conformance.plugin import BUILT, unmet
from conformance.worker import Worker, WorkerLost
from goldens import GoldenError
from kernels_cuda.buffers import MemoryFault
from kernels_cuda.launch import CudaError, DeviceLost
from kernels_cuda.toolchain import BuildError
from references.contract.kernel import names

CANNOT = (BuildError, CudaError, MemoryFault, WorkerLost, GoldenError, ValueError)
Plan = tuple[str, tuple[str, ...]]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="session")
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A process that holds the GPU, with everything built that the collected tests need."""
    held = Worker(lasting=(DeviceLost,), probe=device.probe)
    wanted = {plan: None for item in request.session.items for plan in plans(item)}
    request.config.stash[BUILT].update(held.call(device.build_all, list(wanted), seconds=3600))
    yield held
    held.stop()


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Worker:
    """The worker; where there is no GPU the test is not run, or failed if one is required."""
    option = request.config.option
    why = "--emulate" if option.emulate else find_gpu()[1]
    if why and option.require_gpu:
        pytest.fail(f"--require-gpu: {why}", pytrace=False)
    if why:
        pytest.skip(why)
    with unmet("building the kernels", *CANNOT):
        return request.getfixturevalue("worker")


@pytest.fixture(params=["emulator", "cuda"])
def side(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def on(side: str, request: pytest.FixtureRequest) -> Callable:
    """Call a gate with this side as its first argument; the device's in the worker."""
    if side == "emulator":
        return partial(_here, side)
    held = request.getfixturevalue("gpu")

    def call(gate: Callable, *args):
        with unmet(gate.__name__, *CANNOT):
            return held.call(gate, side, *args)

    return call


def _here(side: str, gate: Callable, *args):
    with unmet(gate.__name__, GoldenError):
        return gate(side, *args)


@pytest.fixture
def reported(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Lines to show at the end, whatever the outcome."""
    return lambda *lines: request.node.user_properties.extend(("report", line) for line in lines)


def plans(item: pytest.Item) -> list[Plan]:
    """What a test needs built; those of whole steps need every kernel."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if item.get_closest_marker("steps"):
        wrong = [(params["kernel"], (*trace, f"MISTAKE={params['mistake']}")) for trace in ((), ("TRACE",)) if isinstance(params.get("mistake"), int)]
        return wrong + [(name, defines) for name in names() for defines in ((), ("TRACE",))]
    if item.path.stem != "test_cuda":
        return []
    if "golden" in params:
        return [(params["golden"][0], ()), (params["golden"][0], ("TRACE",))]
    return [(params["plant"][0], (f"MISTAKE={params['plant'][1]}",))] if "plant" in params else []
