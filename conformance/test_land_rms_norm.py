"""land_rms_norm is land, then rms_norm of what was landed."""

import numpy as np
import pytest

from references import land, land_rms_norm, rms_norm
from references.contract.inputs import F32, ordinary, values
from references.contract.mistakes import same_bits

pytestmark = pytest.mark.kernels("land_rms_norm", "land", "rms_norm")


@pytest.mark.parametrize(("off", "h"), [(0, 1536), (5, 37), (2112, 512)])
def test_is_its_two_halves(off, h):
    p, gamma = ordinary(1, (3, 2, 2624), dtype=F32), ordinary(2, (h,))
    landed = land.emulate(p, off, h)
    got = land_rms_norm.emulate(p, gamma, off, 1e-5)
    whole = same_bits(got, rms_norm.emulate(landed, gamma, 1e-5))
    of_one_split = same_bits(got, rms_norm.emulate(land.emulate(p[:, :1], off, h), gamma, 1e-5))
    assert whole and not of_one_split


@pytest.mark.parametrize(
    ("first", "second", "column", "bits"),
    [(2, 2.0**-7, 0, 0x3FDA), (5, 2.0**-6, 1, 0x3F00)],  # 0x3fdb and 0x3eff where the norm sees the sum itself
)
def test_norm_sees_the_landed_sum(first, second, column, bits):
    p = values([[[first, *[1.0] * 7], [second, *[0.0] * 7]]], F32)
    assert land_rms_norm.emulate(p, values([1.0] * 8), 0, 1e-6).view(np.uint16)[0, column] == bits


def test_cast_comes_before_the_weight():
    x, gamma = values([[6.375, *[1.0] * 7]]), values([0.75] * 8)
    assert rms_norm.emulate(x, gamma, 1e-6).view(np.uint16)[0, 0] == 0x3FFA  # 0x3ffb the other way round
