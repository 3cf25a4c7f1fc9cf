"""The compiled chain of fma, and the tree that adds only what counts, equal their definitions in every bit, however operands broadcast."""

from itertools import permutations

import numpy as np
import pytest

from references.arith.reduce import chain_fma, chain_fma_defined, tree
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
    assert same(got, want)


def same(got, want):
    different = np.ascontiguousarray(got).view(np.uint32) != np.ascontiguousarray(want).view(np.uint32)
    return got.shape == want.shape and not (different & ~(np.isnan(got) & np.isnan(want))).any()


def butterfly(x, offsets):
    lane = np.arange(x.shape[-1])
    for offset in offsets:
        x = x + x[..., lane ^ offset]
    return x[..., 0]


@pytest.mark.parametrize("offsets", [*permutations((1, 2, 4)), (128, 64, 32, 16, 8, 4, 2, 1), (1, 2), (1,), ()], ids=str)
def test_tree(offsets):
    width, others = sum(offsets) + 1, [order for order in permutations(offsets[:3]) if order != offsets]
    for x in (spread(1, (40, 3, width), -3, 3, F32), patterns(2, (5, width), F32), np.zeros((0, width), F32)):
        with np.errstate(all="ignore"):
            assert same(tree(x, offsets), butterfly(x, offsets)) and same(tree(x.T, offsets, axis=0), butterfly(x, offsets).T)
    if len(offsets) == 3:
        x = spread(1, (40, width), -3, 3, F32)
        assert not any(same(tree(x, offsets), butterfly(x, order)) for order in others)


def test_the_order_can_be_seen():
    terms = np.array([1, 2.0**-24, 2.0**-24], F32)
    assert chain_fma(terms, np.ones(3, F32)) != chain_fma(terms[::-1], np.ones(3, F32))
