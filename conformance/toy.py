"""A small kernel for tests of what handles kernels: `o = bf(sum of bf(x[k] * w))`. Schedule, cases and version can be changed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from references.arith import add, asc, bf, mul, zero
from references.contract import Case, Kernel, schedule
from references.contract.inputs import BF16, F32, spread, values

SIGNATURE = "x: bf16[m, k, n], w: f32[n], off: int -> o: bf16[m, n], top: f32[m]"
WEIGHTS = np.tile(values([1, 1.5, 3, 0.75], F32), 4)  # few bits, so that products hit ties


def right() -> Callable:
    def emulate(x, w, off):
        acc = zero(x[:, 0])  # S1
        for k in asc(x.shape[1]):  # S2
            acc = add(acc, bf(mul(x[:, k], w)))  # S3
        return bf(acc), x[:, 0, off]  # S4

    return emulate


def drifted() -> Callable:
    """The product goes into the sum without its landing."""

    def emulate(x, w, off):
        acc = zero(x[:, 0])  # S1
        for k in asc(x.shape[1]):  # S2
            acc = add(acc, mul(x[:, k], w))  # S3
        return bf(acc), x[:, 0, off]  # S4

    return emulate


def inputs(rows: int, seed: int = 1) -> dict:
    return {"x": spread(seed, (rows, 3, 16), -4, 4), "w": WEIGHTS, "off": 2}


def minus_zero() -> dict:
    return inputs(1) | {"x": np.full((1, 3, 16), -0.0, BF16)}


def pool(seed: int) -> dict:
    """Ordinary rows, subnormal ones, and terms of which the first and the last cancel."""
    cancelling = spread(2000 + seed, (32, 3, 16), -24, 4)
    cancelling[:, 2] = -cancelling[:, 0]
    rows = [inputs(32, 10 + seed)["x"], spread(1000 + seed, (32, 3, 16), -127, -120), cancelling]
    return inputs(32) | {"x": np.concatenate(rows)}


ORDINARY = Case("ordinary", "values as they come", lambda: inputs(2), ("S3.bf:truncated",))
MINUS_ZERO = Case("minus_zero", "a sum of -0 is +0", minus_zero, ("S1.zero:minus_zero",))
MANY = Case("many", "more rows than are stored", lambda: inputs(40, seed=2), large=True)
BLIND = {"S3.mul:landed": "its landing follows anyway", "S4.bf:skipped": "a bf16 store rounds"}


def toy(emulate: Callable | None = None, *, version: int = 1, cases=(ORDINARY, MINUS_ZERO, MANY), blind=BLIND, pool=pool, independent="m") -> Kernel:
    checked = schedule(SIGNATURE, version=version)(emulate or right())
    return Kernel("toy", SimpleNamespace(emulate=checked, INDEPENDENT=independent, BLIND=blind, cases=lambda: iter(cases), pool=pool))


def columns(pool: Callable[[int], dict] | None = None, blind=None) -> Kernel:
    """`o = bf(x * x)`, whose columns are independent."""

    def emulate(x):
        return bf(mul(x, x))  # S1

    checked = schedule("x: bf16[m, n] -> o: bf16[m, n]", version=1)(emulate)
    blind = blind or {"S1.mul:landed": "its landing follows anyway", "S1.bf:skipped": "a bf16 store rounds"}
    return Kernel("columns", SimpleNamespace(emulate=checked, INDEPENDENT="n", BLIND=blind, cases=lambda: iter(()), pool=pool))
