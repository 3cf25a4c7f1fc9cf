"""What is said of a machine's GPU, by stand-ins for nvidia-smi: which one CUDA takes, and why there is none."""

import pytest

from conformance.machine import find_gpu
from kernels_cuda import doctor

TWO = ("printf", r"NVIDIA A, 9.0, 580.65, GPU-aa11\nNVIDIA B, 8.0, 580.65, GPU-bb22\n")
FIRST, SECOND = "NVIDIA A, sm_90, driver 580.65", "NVIDIA B, sm_80, driver 580.65"


@pytest.mark.parametrize("visible, name", [(None, FIRST), ("0", FIRST), ("1", SECOND), (" 1 ,0", SECOND), ("GPU-bb", SECOND), ("MIG-cc33", FIRST)])
def test_the_gpu_that_cuda_takes(visible, name):
    assert find_gpu({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, TWO) == (name, "")


@pytest.mark.parametrize("visible", ["", "-1", "2", "none"])
def test_no_gpu_is_visible(visible):
    name, why = find_gpu({"CUDA_VISIBLE_DEVICES": visible}, TWO)
    assert not name and why.startswith(f"CUDA_VISIBLE_DEVICES is {visible!r}")


@pytest.mark.parametrize("ask, why", [
    (("true",), "true: no GPU"),
    (("echo",), "echo: no GPU"),
    (("sh", "-c", "echo; exit 9"), "sh: no GPU"),
    (("sh", "-c", "echo; echo no driver >&2; exit 9"), "sh: no driver"),
    (("no_such_program",), "no_such_program is not on the PATH"),
])
def test_no_gpu_is_listed(ask, why):
    """However little is said of it."""
    assert find_gpu({}, ask) == ("", why)


def test_a_program_that_says_nothing():
    assert doctor._first_line(["true"]) == "true says nothing and returns 0"
    assert doctor._first_line(["sh", "-c", "echo; exit 9"]) == "sh says nothing and returns 9"
    assert doctor._first_line(["sh", "-c", "echo; echo no driver >&2; exit 9"]) == "no driver"
