"""The mistakes of a product of f32 matrices. They register themselves beside those of `faults`."""

from __future__ import annotations

import numpy as np

from references.arith.bits import bf
from references.arith.faults import fault
from references.arith.ieee import add, mul
from references.arith.linear import chain_matmul
from references.arith.site import Visit


@fault(chain_matmul)
def swapped(visit: Visit) -> np.ndarray:
    """the factors are exchanged: b . a instead of a . b"""
    a, b = visit.args
    return chain_matmul(b, a)


@fault(chain_matmul)
def transposed(visit: Visit) -> np.ndarray:
    """the second factor is read by rows: a . b^T instead of a . b"""
    a, b = visit.args
    return chain_matmul(a, b.swapaxes(-1, -2))


@fault(chain_matmul)
def j_descending(visit: Visit) -> np.ndarray:
    """the products are summed in descending order"""
    a, b = visit.args
    return chain_matmul(a[..., ::-1], b[..., ::-1, :])


@fault(chain_matmul)
def j_halves(visit: Visit) -> np.ndarray:
    """the products are summed in two halves"""
    a, b = visit.args
    half = a.shape[-1] // 2
    return add(chain_matmul(a[..., :half], b[..., :half, :]), chain_matmul(a[..., half:], b[..., half:, :]))


@fault(chain_matmul)
def products_apart(visit: Visit) -> np.ndarray:
    """each fma is a product and a sum, rounded separately"""
    a, b = visit.args
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for j in range(a.shape[-1]):
        total = add(total, mul(a[..., j : j + 1], b[..., j : j + 1, :]))
    return total


@fault(chain_matmul)
def from_first_product(visit: Visit) -> np.ndarray:
    """the sum starts from its first product instead of +0"""
    a, b = visit.args
    signs = np.stack([mul(a[..., j : j + 1], b[..., j : j + 1, :]).view(np.uint32) == 0x80000000 for j in range(a.shape[-1])])
    return np.where(signs.all(axis=0), np.float32(-0.0), visit.run())


@fault(chain_matmul)
def landed_factors(visit: Visit) -> np.ndarray:
    """the factors are rounded to bf16, as a tensor core takes them"""
    return chain_matmul(*(bf(x) for x in visit.args))


@fault(chain_matmul)
def flushed_sums(visit: Visit) -> np.ndarray:
    """subnormal results are flushed to zero"""
    result = visit.run()
    return np.where((result.view(np.uint32) & np.uint32(0x7F80_0000)) == 0, np.copysign(np.float32(0), result), result)
