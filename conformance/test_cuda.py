"""The kernels against every golden, on the GPU: both forms, every layout, several replays, then each landing. Not run where there is none."""

import ctypes

import pytest

import goldens
from conformance import device, offsets
from conformance.fixtures import CANNOT
from conformance.laws import law, told, unless_drifted
from conformance.plugin import report_finding, unmet
from goldens.search import shows, smallest_first
from kernels_cuda import build
from references.contract import Kernel
from references.contract.mistakes import mistakes


@pytest.mark.gate("device")
def test_cuda(golden, gpu, request):
    name, case = golden
    with unmet(f"{name}/{case}", *CANNOT):
        finding = gpu.call(device.gate, name, case, request.config.option.replays, request.config.option.max_mismatches)
    report_finding(finding, request, lambda: gpu.call(device.describe))


def stored(name: str) -> list[goldens.Golden]:
    return [goldens.load(name, case) for case in goldens.case_names(name)]


PLANTS = [(name, k) for name in build.names() for k in build.planted(name)]


@pytest.mark.parametrize("plant", PLANTS, ids=[f"{name}/{k}" for name, k in PLANTS])
def test_planted(plant, gpu):
    """A mistake compiled into the kernel is seen by its goldens, diagnosed as what it is, and has the bits the emulated mistake has."""
    name, k = plant
    with law(name) as (kernel, problems):
        with unmet(f"{name}, mistake {k}", *CANNOT):
            seen, wrong = gpu.call(device.mistaken, name, k)
        unseen = [] if seen else [f"no golden of {name} sees {build.planted(name)[k]}"]
        problems += unless_drifted(kernel, stored(name), unseen + wrong)


@pytest.mark.parametrize("check", [offsets.expanded_keys, offsets.far_states], ids=["mla_expand_k", "kda_core"])
def test_offsets_past_32_bits(check, gpu):
    with unmet("offsets past 32 bits", *CANNOT):
        told(gpu.call(check))


@pytest.mark.parametrize("plant", PLANTS, ids=[f"{name}/{k}" for name, k in PLANTS])
def test_planted_is_visible(plant):
    """On any machine: the mistake that the plant claims to be moves a golden. (Building it and comparing its bits takes a GPU.)"""
    name, k = plant
    with law(name) as (kernel, problems):
        pair, small = build.planted(name)[k], smallest_first(stored(name))
        seen = any(shows(kernel, golden, m) for golden in small for m in mistakes(kernel, [golden.inputs]) if m.among([pair]))
        problems += [] if seen else unless_drifted(kernel, small, [f"no golden of {name} sees {pair}"])


def test_refusals(kernel_name, gpu):
    """A bad argument comes back as an error that names it, before any launch."""
    with unmet(kernel_name, *CANNOT):
        told(gpu.call(device.refusals, kernel_name))


def test_refusals_are_seen():
    """A launcher that takes anything is found out, argument by argument."""

    class Careless:
        @staticmethod
        def land(*args):
            return 0

    class Right:
        @staticmethod
        def land(p, off, n, o, b, split_k, nt, form, stream):
            checks = (p.value, off.value >= 0, n.value >= 0, o.value, b.value >= 0, split_k.value >= 0, nt.value >= 0, form.value < 2)
            return next((-position for position, fine in enumerate(checks, 1) if not fine), 0)

    kernel = Kernel.load("land")
    assert device.accepted(kernel, Right) == []
    assert len(device.accepted(kernel, Careless)) == 8
    assert isinstance(device._bad(kernel)[0], ctypes.c_void_p)
