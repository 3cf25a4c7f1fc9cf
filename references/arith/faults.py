"""The mistakes a kernel can make at one site. A fault replaces one call of a word; its docstring is what the user is told.

`faults_of(word)` lists those that apply to a word; each is a function of a `Visit`. None of them rounds in a way of its own:
they are spelled with the words of `references.arith`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from references.arith.bits import bf, hadd, hmul
from references.arith.ieee import add, div, fma, mul, odd_sum, sqrt, sub
from references.arith.libdevice import exp, exp_fast, log, rsqrt, sigmoid, tanh
from references.arith.move import asc, choose, join, repeat, select, zero
from references.arith.mufu import rcp_approx
from references.arith.reduce import chain, down, lanes, tree
from references.arith.site import Visit

Fault = Callable[[Visit], np.ndarray]
_FAULTS: dict[str, list[Fault]] = {}


def fault(*words: Callable) -> Callable[[Fault], Fault]:
    """Register a fault for the words it applies to."""

    def register(function: Fault) -> Fault:
        for word in words:
            _FAULTS.setdefault(word.__name__, []).append(function)
        return function

    return register


def faults_of(word: Callable) -> tuple[Fault, ...]:
    return tuple(_FAULTS.get(word.__name__, ()))


# Landings


@fault(bf)
def skipped(visit: Visit) -> np.ndarray:
    """the landing to bf16 is left out"""
    return np.asarray(visit.args[0], np.float32)


@fault(bf, hadd, hmul)
def truncated(visit: Visit) -> np.ndarray:
    """the landing truncates instead of rounding to nearest even"""
    exact = _exact(visit)
    landed = visit.run()
    with np.errstate(all="ignore"):
        beyond = np.abs(landed.astype(np.float64)) > np.abs(exact)
    return np.where(beyond, _neighbour(landed, -1), landed)


@fault(bf, hadd, hmul)
def half_away(visit: Visit) -> np.ndarray:
    """the landing rounds ties away from zero instead of to even"""
    exact = _exact(visit)
    landed = visit.run()
    outward = _neighbour(landed, +1)
    with np.errstate(all="ignore"):
        tie = np.abs(exact) * 2 == np.abs(landed.astype(np.float64)) + np.abs(outward.astype(np.float64))
    return np.where(tie & np.isfinite(landed), outward, landed)


def _exact(visit: Visit) -> np.ndarray:
    """What a landing rounds, in f64; a sum that f64 cannot hold to odd, on the right side of every bf16 and of no tie."""
    a, *b = (np.asarray(x, np.float64) for x in visit.args)
    if not b:
        return a
    with np.errstate(all="ignore"):
        return odd_sum(a, 1, b[0])[1] if visit.word.__name__ == "hadd" else a * b[0]


def _neighbour(landed: np.ndarray, step: int) -> np.ndarray:
    """The next bf16 value away from zero (step +1) or toward it (-1)."""
    return (landed.view(np.uint32) + np.uint32(step * 0x10000 & 0xFFFFFFFF)).view(np.float32)


# Operations


@fault(add, sub, mul, div, fma, exp, log, tanh, rsqrt, sigmoid)
def landed(visit: Visit) -> np.ndarray:
    """the f32 result is rounded to bf16 on the way"""
    return bf(visit.run())


@fault(add, sub, mul, div, fma, bf, hadd, hmul, exp, log, tanh, rsqrt, sigmoid)
def flushed(visit: Visit) -> np.ndarray:
    """subnormal results are flushed to zero"""
    result = visit.run()
    subnormal = (result.view(np.uint32) & np.uint32(0x7F80_0000)) == 0
    return np.where(subnormal, np.copysign(np.float32(0), result), result)


@fault(add, sub)
def fused(visit: Visit) -> np.ndarray | None:
    """a product and the sum that takes it are contracted to one fma"""
    a, b = visit.args
    sign = np.float32(-1 if visit.word.__name__ == "sub" else 1)
    for product, other, factor, rest in ((a, b, np.float32(1), sign), (b, a, sign, np.float32(1))):
        source = visit.origin(product)
        if source is not None and source.word.__name__ == "mul":
            x, y = source.args
            return fma(np.multiply(x, factor, dtype=np.float32), y, np.multiply(other, rest, dtype=np.float32))
    return None


@fault(fma)
def unfused(visit: Visit) -> np.ndarray:
    """the fma is a product and a sum, rounded separately"""
    a, b, c = visit.args
    return add(mul(a, b), c)


@fault(div)
def reciprocal(visit: Visit) -> np.ndarray:
    """the division is a product with the rounded reciprocal"""
    a, b = visit.args
    return mul(a, div(np.float32(1), b))


@fault(div)
def approximate(visit: Visit) -> np.ndarray:
    """the division is a product with rcp.approx (as __fdividef or fast-math make it)"""
    a, b = visit.args
    return mul(a, rcp_approx(np.asarray(b, np.float32)))


@fault(exp)
def fast_exp(visit: Visit) -> np.ndarray:
    """expf is __expf (ex2.approx of one product)"""
    return exp_fast(*visit.args)


@fault(tanh)
def tanh_by_exp(visit: Visit) -> np.ndarray:
    """tanh is computed as (exp(2x) - 1) / (exp(2x) + 1), which overflows to NaN"""
    power = exp(mul(np.float32(2), visit.args[0]))
    return div(sub(power, np.float32(1)), add(power, np.float32(1)))


@fault(rsqrt)
def exact_rsqrt(visit: Visit) -> np.ndarray:
    """rsqrtf is 1 / sqrtf, both correctly rounded"""
    return div(np.float32(1), sqrt(visit.args[0]))


@fault(sigmoid)
def sigmoid_by_tanh(visit: Visit) -> np.ndarray:
    """the sigmoid is computed as 0.5 * tanh(0.5 x) + 0.5"""
    half = np.float32(0.5)
    return add(mul(half, tanh(mul(half, visit.args[0]))), half)


# Orders and seeds


@fault(zero)
def minus_zero(visit: Visit) -> np.ndarray:
    """the sum starts from its first term instead of +0 (adding to -0 changes nothing, so -0 stands for it)"""
    return np.full_like(visit.run(), -0.0)


@fault(asc)
def descending(visit: Visit) -> range:
    """the loop runs in descending order"""
    return visit.run()[::-1]


@fault(chain)
def pairwise(visit: Visit) -> np.ndarray:
    """the ascending sum is taken pairwise"""
    x = np.moveaxis(visit.args[0], visit.kwargs.get("axis", -1), 0)
    while len(x) > 1:
        pairs = add(x[0 : len(x) // 2 * 2 : 2], x[1::2])
        x = np.concatenate([pairs, x[len(x) // 2 * 2 :]])
    return x[0]


@fault(tree, down)
def mirrored(visit: Visit) -> np.ndarray:
    """the tree's offsets run the other way (1, 2, 4, ... instead of ..., 4, 2, 1)"""
    x, offsets = visit.args[:2]
    return tree(x, tuple(offsets)[::-1], **visit.kwargs)


@fault(tree, down)
def serial(visit: Visit) -> np.ndarray:
    """the tree is one ascending sum"""
    return chain(visit.args[0], **visit.kwargs)


@fault(lanes)
def blocked(visit: Visit) -> np.ndarray:
    """each thread sums a contiguous block instead of strided columns"""
    x, threads = visit.args
    width = -(-x.shape[-1] // threads) * threads
    padded = np.zeros((*x.shape[:-1], width), np.float32)
    padded[..., : x.shape[-1]] = x
    return chain(padded.reshape(*x.shape[:-1], threads, width // threads))


@fault(lanes)
def fused_squares(visit: Visit) -> np.ndarray | None:
    """the products are contracted into their sum (fma instead of a product and a sum)"""
    x, threads = visit.args
    source = visit.origin(x)
    if source is None or source.word.__name__ != "mul":
        return None
    a, b = np.broadcast_arrays(*source.args)
    partial = np.zeros((*x.shape[:-1], threads), np.float32)
    for start in range(0, x.shape[-1], threads):
        part = np.s_[..., start : start + threads]
        width = a[part].shape[-1]
        partial[..., :width] = fma(a[part], b[part], partial[..., :width])
    return partial


@fault(lanes)
def reversed_lanes(visit: Visit) -> np.ndarray:
    """each thread sums its columns in descending order"""
    x, threads = visit.args
    width = -(-x.shape[-1] // threads) * threads
    padded = np.zeros((*x.shape[:-1], width), np.float32)
    padded[..., : x.shape[-1]] = x
    columns = padded.reshape(*x.shape[:-1], width // threads, threads)
    return chain(columns[..., ::-1, :], axis=-2)


# Data movement


@fault(select)
def early(visit: Visit) -> np.ndarray:
    """every entry is taken one place early"""
    return _entries(visit, -1)


@fault(select)
def late(visit: Visit) -> np.ndarray:
    """every entry is taken one place late"""
    return _entries(visit, +1)


def _entries(visit: Visit, step: int) -> np.ndarray:
    x, index = visit.args
    axis = visit.kwargs.get("axis", 0)
    return np.take(x, np.clip(np.asarray(index) + step, 0, np.shape(x)[axis] - 1), axis)


@fault(join)
def reversed_first(visit: Visit) -> np.ndarray:
    """the first of the joined arrays is read back to front"""
    first, *rest = visit.args[0]
    axis = visit.kwargs.get("axis", 0)
    return np.concatenate([np.flip(first, axis), *rest], axis)


@fault(choose)
def never(visit: Visit) -> np.ndarray:
    """the exception is not made"""
    condition, a, b = visit.args
    return np.broadcast_to(b, np.broadcast_shapes(np.shape(condition), np.shape(a), np.shape(b))).copy()


@fault(repeat)
def first_only(visit: Visit) -> np.ndarray:
    """only the first of the copies is written, the others stay zero"""
    result = visit.run()
    np.moveaxis(result, visit.kwargs["axis"], 0)[1:] = 0
    return result


for _path in sorted(Path(__file__).parent.glob("faults_*.py")):  # the faults of further words, each file beside them
    importlib.import_module(f"references.arith.{_path.stem}")
