"""The mistakes of a mixture of experts and of its small formats. They register themselves beside those of `faults`."""

from __future__ import annotations

import numpy as np

from references.arith.bits import F32
from references.arith.experts import BLOCK, PAIRS, local, members, mxfp4, returned, scaled, upcast
from references.arith.faults import fault
from references.arith.ieee import absolute, amax, div, maximum
from references.arith.quant import e4m3, quant, round_up_pow2
from references.arith.site import Visit

# Routing


@fault(local)
def clamped(visit: Visit) -> np.ndarray:
    """an id outside the window is taken for the nearest expert inside"""
    ids, first, experts = visit.args
    return np.clip(np.asarray(ids, np.int64) - first, 0, experts - 1)


@fault(local)
def unshifted(visit: Visit) -> np.ndarray:
    """the window is taken to begin at expert 0"""
    ids, _, experts = visit.args
    return local(ids, 0, experts)


@fault(members)
def last_lost(visit: Visit) -> tuple[np.ndarray, np.ndarray]:
    """the last entry of every expert is not computed"""
    token, slot = visit.run()
    return token[:-1], slot[:-1]


@fault(returned)
def in_order(visit: Visit) -> np.ndarray | None:
    """the experts' rows are taken for those of the entries in order"""
    rows, tokens, slots, expert, width = visit.args
    if not rows:
        return None
    order = np.lexsort((np.concatenate(slots), np.concatenate(tokens)))
    return returned([np.concatenate(rows)], [np.concatenate(tokens)[order]], [np.concatenate(slots)[order]], expert, width)


# Small formats


@fault(upcast)
def next_scale(visit: Visit) -> np.ndarray:
    """each group takes the scale of the next one"""
    q, scale = visit.args
    return upcast(q, np.roll(scale, -1, -1))


@fault(upcast)
def one_scale(visit: Visit) -> np.ndarray:
    """the scale of a row's first group serves the whole row"""
    q, scale = visit.args
    return upcast(q, np.broadcast_to(scale[..., :1], scale.shape))


@fault(mxfp4)
def next_block(visit: Visit) -> np.ndarray:
    """each block of weights takes the scale of the next one"""
    pairs, scales = visit.args
    return mxfp4(pairs, np.roll(scales, -1, -1))


@fault(mxfp4)
def row_scale(visit: Visit) -> np.ndarray:
    """the scale of a row's first block serves the whole row"""
    pairs, scales = visit.args
    return mxfp4(pairs, np.broadcast_to(scales[..., :1], scales.shape))


@fault(mxfp4)
def high_first(visit: Visit) -> np.ndarray:
    """the high nibble comes before the low one"""
    pairs, scales = visit.args
    return mxfp4(pairs << np.uint8(4) | pairs >> np.uint8(4), scales)


@fault(mxfp4)
def halves(visit: Visit) -> np.ndarray:
    """the low nibbles are the first half of a block, the high ones the second"""
    pairs, scales = visit.args
    values = PAIRS[pairs].reshape(*scales.shape, BLOCK // 2, 2).swapaxes(-1, -2)
    return scaled(values.reshape(len(pairs), -1), scales)


@fault(quant)
def row_group(visit: Visit) -> tuple[np.ndarray, np.ndarray] | None:
    """one scale is taken over the whole row"""
    x, group = visit.args
    groups = x.shape[-1] // group
    if groups == 1:
        return None
    q, scale = quant(x, x.shape[-1])
    return q, np.repeat(scale, groups, -1)


@fault(round_up_pow2)
def rounded_down(visit: Visit) -> np.ndarray:
    """the scale is rounded down to a power of two"""
    return (np.asarray(visit.args[0], F32).view(np.uint32) & np.uint32(0x7F800000)).view(F32)


@fault(round_up_pow2)
def unrounded(visit: Visit) -> np.ndarray:
    """the scale is not rounded to a power of two"""
    return np.asarray(visit.args[0], F32)


@fault(quant)
def without_floor(visit: Visit) -> tuple[np.ndarray, np.ndarray]:
    """the largest value has no lower bound: a group of zeros has the scale 0, and 0 / 0 is NaN"""
    x, group = visit.args
    grouped = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scale = round_up_pow2(div(maximum(amax(absolute(grouped)), 0), 448))
    return e4m3(div(grouped, scale[..., None])).reshape(x.shape), scale


@fault(e4m3)
def unclamped(visit: Visit) -> np.ndarray:
    """what is beyond 464 becomes NaN instead of 448"""
    x = np.asarray(visit.args[0])
    return np.where(np.abs(x) > 464, F32(np.nan), visit.run())


@fault(e4m3)
def cut_off(visit: Visit) -> np.ndarray:
    """the code is truncated instead of rounded to nearest even"""
    x, q = np.asarray(visit.args[0], F32), visit.run()
    return np.where(np.abs(q) > np.abs(x), _step(q, -1), q)


@fault(e4m3)
def ties_away(visit: Visit) -> np.ndarray:
    """ties of the code go away from zero instead of to even"""
    x, q = np.asarray(visit.args[0], F32), visit.run()
    outward = _step(q, +1)
    return np.where(np.abs(x) * F32(2) == np.abs(q) + np.abs(outward), outward, q)


@fault(e4m3)
def no_subnormals(visit: Visit) -> np.ndarray:
    """codes below 2^-6 are flushed to zero"""
    q = visit.run()
    return np.where(np.abs(q) < F32(2.0**-6), np.copysign(F32(0), q), q)


def _step(q: np.ndarray, step: int) -> np.ndarray:
    """The next e4m3 value away from zero (+1) or toward it (-1); 448 and NaN have none, and 0 none toward it."""
    size = np.abs(q)
    unit = np.where(size == 0, F32(2.0**-9), np.ldexp(F32(1), np.maximum(np.frexp(size)[1] - 4, -9)))
    below = (np.frexp(size)[0] == F32(0.5)) & (size > F32(2.0**-6))  # at a power of two the step down is half as long
    moved = size + step * np.where(below & (step < 0), unit / 2, unit)
    return np.where((size > 0) | (step > 0), np.copysign(np.minimum(moved, F32(448)).astype(F32), q), q)
