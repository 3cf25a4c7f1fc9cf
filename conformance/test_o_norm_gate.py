"""What the eight sigmoids of a thread rest on: kernels_cuda/common.cuh, sigmoid8."""

import numpy as np
import pytest

from references.arith import div, fma
from references.arith.mufu import rcp_approx


@pytest.mark.parametrize("exponent", [0, 1, 125])
def test_one_newton_step_divides_one_by_every_significand(exponent):
    """1 <= d < 2^126; between the ends a power of two changes no rounding."""
    d = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 + exponent << 23)).view(np.float32)
    start = rcp_approx(d)
    error = fma(-d, start, 1)
    quotient = div(1, d)
    assert np.array_equal(fma(start, error, start), quotient)
    assert np.count_nonzero(start != quotient) > 1 << 20, "the approximation alone would do: the test sees nothing"
