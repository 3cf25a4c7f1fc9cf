"""The compiled product of f32 matrices equals its definition in every bit."""

import numpy as np
import pytest

from references.arith.linear import chain_matmul, chain_matmul_defined
from references.contract.inputs import F32, patterns, spread

SHAPES = [((5, 7), (7, 3)), ((2, 3, 16, 9), (2, 3, 9, 33)), ((4, 1, 1), (4, 1, 20))]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("make", [lambda seed, shape: spread(seed, shape, -75, -60, F32), lambda seed, shape: spread(seed, shape, -2, 64, F32),
                                  lambda seed, shape: patterns(seed, shape, F32)], ids=["subnormal", "overflow", "any bits"])
def test_chain_matmul(a, b, make):
    a, b = make(1, a), make(2, b)
    with np.errstate(all="ignore"):
        got, want = chain_matmul(a, b), chain_matmul_defined(a, b)
    assert got.shape == want.shape
    different = got.view(np.uint32) != want.view(np.uint32)
    assert not (different & ~(np.isnan(got) & np.isnan(want))).any()


def test_the_order_can_be_seen():
    terms, ones = np.array([[1, 2.0**-24, 2.0**-24]], F32), np.ones((3, 1), F32)
    assert chain_matmul(terms, ones) != chain_matmul(terms[:, ::-1], ones)
