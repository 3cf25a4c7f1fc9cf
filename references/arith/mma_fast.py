"""The compiled form of `mma`: the same bits, thousands of millions of products a second.

Lanes are output columns. Where the alignment exponent E of a lane is in [LOW, HIGH], f32 arithmetic is exact enough to do the work:
`int32((a * b) * 2^(25 - E))` is the aligned, truncated term, because the conversion truncates toward zero and
- a * b has 16 significant bits, so f32 holds it exactly unless it is below 2^-126, and then the term is 0 either way (2^(E - 25) >= 2^-125);
- 16 terms of at most 255 * 255 * 2^11 fit an int32; the accumulator's term joins them in f64;
- the total has at most 32 bits, and its result is neither subnormal nor infinite (66 * 2^HIGH < 2^128).
Every other lane (NaN, infinity, huge, tiny) is done by `_exact`, one at a time. All of it is one file, because Numba's cache watches only the
file of the function it compiled: a callee edited elsewhere would stay stale.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

COLUMNS = 256  # 16 rows of f32 values and int16 exponents: 24 KiB, within a first-level cache
ROWS = 256  # bounds the accumulators of a tile to 256 KiB
THREADED = 1 << 21  # products; below this a pool costs more than it saves

LOW, HIGH = -100, 121
ZERO, SPECIAL = -4000, 8000  # exponents of 0 and of inf or NaN: SPECIAL + ZERO > HIGH, and a sum with ZERO is below NOTHING
NOTHING = -300  # below every exponent of a product that is not zero (-252)

compiled = njit(cache=True, nogil=True)


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def frozen(x: np.ndarray) -> np.ndarray:
    """A contiguous read-only view: Numba compiles anew for every layout and mutability it meets."""
    view = np.ascontiguousarray(x).view()
    view.flags.writeable = False
    return view


def accumulate(a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int | None = None) -> None:
    """Continue the chains of out [splits, m, n] f32, in place, over the equal parts of k of a [m, k] and b [n, k] (u16); out is contiguous."""
    splits, m, n = out.shape
    part, a, b = a.shape[1] // splits, frozen(a), frozen(b)
    tiles = [(s, i, j) for s in range(splits) for i in range(0, m, ROWS) for j in range(0, n, COLUMNS)]

    def work(tile: tuple[int, int, int]) -> None:
        s, i, j = tile
        _chain(a[i : i + ROWS], b[j : j + COLUMNS], s * part, (s + 1) * part, out, s, i, j)

    threads = min(threads or cores(), len(tiles))
    if threads < 2 or m * n * a.shape[1] < THREADED:
        for tile in tiles:
            work(tile)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, tiles))


@compiled
def _chain(a, b, start, stop, out, s, row, column):
    m, n = len(a), len(b)
    width = (n + 31) // 32 * 32  # whole vectors; the columns added are zeros
    tile, acc = out[s, row : row + m, column : column + n], np.zeros((m, width), np.float32)
    acc[:, :n] = tile
    a_value, a_exponent = np.empty((m, 16), np.float32), np.empty((m, 16), np.int16)
    raw, value, exponent = np.zeros((16, width), np.uint16), np.empty((16, width), np.float32), np.empty((16, width), np.int16)
    align, scale, total, before = np.empty(width, np.int16), np.empty(width, np.float32), np.empty(width, np.int32), np.empty(width, np.float32)
    for k in range(start, stop, 16):
        _decode(a[:, k : k + 16], a_value, a_exponent)
        _transpose(b[:, k : k + 16], raw)
        _decode(raw, value, exponent)
        for r in range(m):
            _largest(a_exponent[r], exponent, align)
            rest = _scales(acc[r], align, scale)
            if rest:
                before[:] = acc[r]
            _totals(a_value[r], value, scale, total)
            _land(acc[r], scale, total)
            if rest:  # what the lanes outside held until here is arbitrary
                for j in range(n):
                    if _outside(align[j]):
                        acc[r, j] = _exact(a[r, k : k + 16], b[j, k : k + 16], before[j])
    tile[:, :] = acc[:, :n]


@compiled
def _transpose(x, to):
    for j in range(len(x)):
        for i in range(16):
            to[i, j] = x[j, i]


@compiled
def _decode(bits, value, exponent):
    for i in range(bits.shape[0]):
        for j in range(bits.shape[1]):
            x = np.uint32(bits[i, j])
            field = np.int16(x >> np.uint32(7) & np.uint32(255))
            e = np.int16(max(field, np.int16(1)) - np.int16(127))
            e = np.int16(SPECIAL) if field == np.int16(255) else e
            exponent[i, j] = np.int16(ZERO) if x & np.uint32(0x7FFF) == np.uint32(0) else e
            value[i, j] = np.uint32(x << np.uint32(16)).view(np.float32)


@compiled
def _largest(a, b, align):
    """align[j] = the largest exponent of a product of column j."""
    for j in range(align.size):
        e = np.int16(a[0] + b[0, j])
        for i in range(1, 16):
            e = max(e, np.int16(a[i] + b[i, j]))
        align[j] = e


@compiled
def _outside(e):
    return (e > HIGH) | ((e < LOW) & (e > NOTHING))


@compiled
def _scales(acc, align, scale):
    """Take the accumulators into align; scale[j] = 2^(25 - align[j]). Returns whether a lane is left to `_exact`."""
    rest = np.int32(0)
    for j in range(align.size):
        e = np.int32(((np.float32(acc[j]).view(np.int32) >> np.int32(23)) & np.int32(255)) - np.int32(127))
        e = np.int32(ZERO) if acc[j] == np.float32(0) else e
        e = max(e, np.int32(align[j]))
        align[j] = np.int16(e)
        rest |= np.int32(_outside(e))
        e = min(max(e, np.int32(LOW)), np.int32(HIGH))
        scale[j] = np.int32((np.int32(25 + 127) - e) << np.int32(23)).view(np.float32)
    return rest


@compiled
def _totals(a, b, scale, total):
    for j in range(total.size):
        t = np.int32(0)
        for i in range(16):
            t += np.int32((a[i] * b[i, j]) * scale[j])
        total[j] = np.int32(t)


@compiled
def _land(acc, scale, total):
    """acc[j] = (total + the aligned accumulator) / scale, truncated to 24 bits: the f64 holds the sum, its low 29 bits are cut off."""
    for j in range(total.size):
        x = np.float64(total[j]) + np.float64(np.int32(acc[j] * scale[j]))
        x = np.int64(np.float64(x).view(np.int64) & np.int64(-1 << 29)).view(np.float64)
        inverse = np.int32(np.int32(254 << 23) - np.float32(scale[j]).view(np.int32)).view(np.float32)
        acc[j] = np.float32(x) * inverse


@compiled
def _exact(a, b, c):
    """`define_dot16` of one result, in integers."""
    c_bits = np.int64(np.float32(c).view(np.int32)) & 0xFFFFFFFF
    if c_bits & 0x7FFFFFFF > 0x7F800000:
        return np.int32(0x7FFFFFFF).view(np.float32)
    sc, ec = _split(c_bits, 23)
    align = max(-133, ec) if sc else -133
    special = ec == 128
    for i in range(16):
        (sa, ea), (sb, eb) = _split(np.int64(a[i]), 7), _split(np.int64(b[i]), 7)
        special |= ea == 128 or eb == 128
        if sa * sb:
            align = max(align, ea + eb)
    if special:
        return _ieee_sum(a, b, c)
    total = _shift(sc, 25 - 23 + ec - align)
    for i in range(16):
        (sa, ea), (sb, eb) = _split(np.int64(a[i]), 7), _split(np.int64(b[i]), 7)
        total += _shift(sa * sb, 25 - 14 + ea + eb - align)
    x = math.ldexp(np.float64(total), align - 25)
    nearest = np.float32(x)
    if abs(np.float64(nearest)) > abs(x) and abs(x) < 2.0**128:
        nearest = np.int32(np.float32(nearest).view(np.int32) - 1).view(np.float32)
    return nearest + np.float32(0)  # -0, which the line above can make too, becomes +0


@compiled
def _split(bits, fraction):
    field = bits >> fraction & 255
    significand = bits & (1 << fraction) - 1
    if field:
        significand |= 1 << fraction
    return -significand if bits >> (fraction + 8) else significand, max(field, 1) - 127


@compiled
def _shift(x, left):
    magnitude = abs(x) << left if left > 0 else abs(x) >> min(-left, 63)
    return -magnitude if x < 0 else magnitude


@compiled
def _ieee_sum(a, b, c):
    total = np.float64(c)
    for i in range(16):
        x, y = np.uint32(np.uint32(a[i]) << 16).view(np.float32), np.uint32(np.uint32(b[i]) << 16).view(np.float32)
        total += np.float64(x) * np.float64(y)
    return np.int32(0x7FFFFFFF).view(np.float32) if math.isnan(total) else np.float32(total)


@compiled
def dots(a, b, c, out):
    """out[i] = dot16(a[i], b[i], c[i]); a, b [n, 16] u16, c, out [n] f32."""
    for i in range(out.size):
        out[i] = _exact(a[i], b[i], c[i])


@compiled
def narrow(x, bits):
    """f32 -> bf16 bits, NaN -> 0x7fff. Returns the index of the first value that is not bf16, or -1."""
    lost = np.uint32(0)
    for i in range(x.size):
        u = np.float32(x[i]).view(np.uint32)
        nan = (u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        lost |= np.uint32(0) if nan else u & np.uint32(0xFFFF)
        bits[i] = np.uint16(0x7FFF) if nan else np.uint16(u >> np.uint32(16))
    if lost:
        for i in range(x.size):
            if x[i] == x[i] and np.float32(x[i]).view(np.uint32) & np.uint32(0xFFFF):
                return i
    return -1
