"""The emulator against every golden, landings and outputs, bit for bit; of a large case the sampled slices."""

import pytest

import goldens
from conformance.gate import check_emulator
from conformance.plugin import report_finding, unmet
from references.contract import Kernel


@pytest.fixture(scope="session")
def diagnosed() -> set[str]:
    """Kernels whose change is diagnosed: one case is enough."""
    return set()


@pytest.mark.gate("emulator")
def test_emulator(golden, diagnosed, request):
    name, case = golden
    with unmet(f"{name}/{case}", goldens.GoldenError, ValueError):
        finding = check_emulator(Kernel.load(name), goldens.load(name, case), request.config.option.max_mismatches, diagnosed)
    report_finding(finding, request)
