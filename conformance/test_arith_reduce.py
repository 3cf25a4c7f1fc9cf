"""The compiled chain of fma equals its definition in every bit, however its operands broadcast."""

import numpy as np
import pytest

from references.arith.reduce import chain_fma, chain_fma_defined
from references.contract.inputs import F32, patterns, spread

SHAPES = [  # a, b, axis
    ((7,), (7,), -1), ((5, 7), (7,), -1), ((4, 9), (4, 9), 0), ((4, 1), (4, 9), -1), ((3, 8, 1), (3, 8, 20), 1), ((3, 1, 30), (1, 11, 30), -1),
    ((3, 11, 1), (1, 11, 20), 1), ((3, 9, 20), (3, 1, 20), -1), ((2, 3, 5, 7), (5, 1), 2), ((1, 1, 9), (1, 1, 9), -1), ((3, 1), (3, 1), 0),
]


@pytest.mark.parametrize(("a", "b", "axis"), SHAPES)
@pytest.mark.parametrize("make", [lambda seed, shape: spread(seed, shape, -75, -60, F32), lambda seed, shape: spread(seed, shape, -2, 64, F32),
                                  lambda seed, shape: patterns(seed, shape, F32)], ids=["subnormal", "overflow", "any bits"])
def test_chain_fma(a, b, axis, make):
    a, b = make(1, a), make(2, b)
    with np.errstate(all="ignore"):
        got, want = chain_fma(a, b, axis=axis), chain_fma_defined(a, b, axis=axis)
    assert got.shape == want.shape
    different = got.view(np.uint32) != want.view(np.uint32)
    assert not (different & ~(np.isnan(got) & np.isnan(want))).any()


def test_the_order_can_be_seen():
    terms = np.array([1, 2.0**-24, 2.0**-24], F32)
    assert chain_fma(terms, np.ones(3, F32)) != chain_fma(terms[::-1], np.ones(3, F32))
