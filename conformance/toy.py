"""Small kernels for tests of what handles kernels: `o = bf(sum of bf(x[k] * w))`, whose schedule, cases and version can be changed, and others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from references.arith import add, amax, as_f32, asc, bf, kept, mul, select, zero
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


def forms(*, blind=None, pool=None, inplace=None) -> Kernel:
    """`o = bf((x + big[t]) * s)` by two schedules: `late` lands 0.75 of the sum first. Rows and heads are independent, `big` is raw."""

    def emulate(x, big, t, s, form):
        return early(x, big, t, s) if form == "early" else late(x, big, t, s)

    def early(x, big, t, s):
        top = kept(amax(x, axis=-1))  # S1
        return bf(mul(gathered(x, big, t), s)), top  # S2

    def late(x, big, t, s):
        top = kept(amax(x, axis=-1))  # S1
        part = bf(mul(gathered(x, big, t), 0.75))  # S2
        return bf(mul(part, s)), top  # S3

    def gathered(x, big, t):
        assert big.dtype == BF16
        return add(x, as_f32(select(big, t))[:, None, None])

    def refuse(*, big, t, **rest):
        if t.size and (t.min() < 0 or t.max() >= big.size):
            raise ValueError(f"t must be in 0..{big.size - 1}, got {t.min()}..{t.max()}")

    checked = schedule(
        "x: bf16[m, h, n], big: bf16[p], t: i32[m], s: bf16, form: form -> o: bf16[m, h, n], top: f32[m, h]",
        version=1, forms=("early", "late"), raw=("big",), refuse=refuse,
    )(emulate)
    blind = blind or {"S2.mul:landed": "its landing follows", "late/S3.mul:landed": "so it does here", "late/S3.bf:skipped": "a bf16 store rounds",
                      "early/S2.bf:skipped": "a bf16 store rounds"}
    cases = (Case("early", "the first form", lambda: form_inputs("early"), ("S2.bf:truncated",)),
             Case("late", "the second form", lambda: form_inputs("late"), ("S2.bf:truncated", "S3.bf:truncated")))
    return Kernel("forms", SimpleNamespace(emulate=checked, INDEPENDENT=("m", "h"), BLIND=blind, cases=lambda: iter(cases), pool=pool or form_pool,
                                           INPLACE=inplace or {}))


def form_inputs(form: str, rows: int = 2) -> dict:
    """`big` begins with zeros, so that entries are their x."""
    x = spread(5, (rows, 2, 8), -4, 4)
    return {"x": x, "big": values([0, 0, 1, 0.5]), "t": np.arange(rows, dtype=np.int32) % 4, "s": 0.75, "form": form}


def form_pool(seed: int, form: str) -> dict:
    x = np.concatenate([spread(seed, (8, 16, 8), -4, 4), spread(seed + 50, (8, 16, 8), -127, -125)])
    return {"x": x, "big": values([0, 0, 1, 0.5]), "t": np.arange(16, dtype=np.int32) % 4, "s": 0.75}
