"""No launch of the experts that meets more entries than an expert may have stores anything but NaN. Not run where there is no GPU."""

import pytest

from conformance import capacity
from conformance.fixtures import CANNOT
from conformance.plugin import unmet


@pytest.mark.parametrize("name", ["moe_chain", "moe_mega"])
def test_overfull(name, gpu):
    with unmet(name, *CANNOT):
        assert gpu.call(capacity.overfull, name) == []
