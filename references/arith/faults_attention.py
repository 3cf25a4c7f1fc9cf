"""The mistakes of attention on tensor cores. They register themselves beside those of `faults`."""

from __future__ import annotations

import numpy as np

from references.arith.faults import fault, flushed, landed
from references.arith.ieee import add, mul
from references.arith.libdevice import exp
from references.arith.mma import gemm_from
from references.arith.move import hide, visible
from references.arith.mufu import ex2_approx
from references.arith.site import Visit

LN2 = float.fromhex("0x1.62e430p-1")

fault(ex2_approx)(landed)
fault(ex2_approx)(flushed)


@fault(ex2_approx)
def by_exp(visit: Visit) -> np.ndarray:
    """2^x is expf(x ln 2)"""
    return exp(mul(visit.args[0], LN2))


@fault(gemm_from)
def apart(visit: Visit) -> np.ndarray:
    """the products are summed from +0, and that sum is added to the accumulator"""
    acc, a, b = visit.args
    return add(acc, gemm_from(0, a, b))


@fault(gemm_from)
def backwards(visit: Visit) -> np.ndarray:
    """the blocks of 16 are taken in descending order"""
    acc, *factors = visit.args
    return gemm_from(acc, *(x.reshape(*x.shape[:-1], -1, 16)[..., ::-1, :].reshape(x.shape) for x in factors))


@fault(visible)
def one_less(visit: Visit) -> np.ndarray:
    """every row sees one key too few"""
    return np.maximum(visit.run() - 1, 0)


@fault(visible)
def one_more(visit: Visit) -> np.ndarray:
    """every row sees one key too many, where there is one"""
    return np.minimum(visit.run() + 1, visit.args[2])


@fault(hide)
def in_sight(visit: Visit) -> np.ndarray:
    """no key is hidden: what lies past the last one seen takes part, too"""
    return visit.args[0]
