"""The mma form of mla_paged: the landings of `references.mla_paged` on tensor cores, all heads of a row together.

Products are tensor-core chains (`references.arith.mma`): blocks of 16 ascending from +0. A context of n pages is cut into splits of 8 pages where
n <= 64, of 4 where n <= 512, else of ceil(n / 128), whatever the batch or the table: short contexts come in batches, a long one must fill the device.

S1  q_abs[j < 512] = bf(sum of q[d] * UK[d, j]), a chain over d; q_abs[512 ..] = q's rope half
S2  dot(t) = bf(sum of q_abs[d] * row(t)[d]), a chain over the 576
S3  scl(t) = bf16 product of dot(t) and scale
S4  A split in 32 slots, 4 warps of 8: slot (w, r) takes keys 16w + r and 16w + r + 8 of each page, ascending, from m = lowest f32 and den = +0:
    m_new = max(m, a, b); den = den * exp(m - m_new) + (exp(a - m_new) + exp(b - m_new)), product and sums rounded separately; a key past the
    context is a score of -inf. The split has the largest m of its slots; den * exp(m_slot - m) by tree(4, 2, 1) a warp, then the warps ascending.
    The context has the largest m of its splits; den * exp(m_split - m) over 8 lanes, lane i taking splits i, i + 8, ... ascending, then
    tree(4, 2, 1)
S5  p(t) = bf(exp(scl(t) - m) / den)
S6  part[j] of a split = sum of p(t) * row(t)[j], a chain over its keys; o_lat[j] = bf(sum of the parts over 4 lanes, lane i taking parts
    i, i + 4, ... ascending, then tree(2, 1))
S7  o[v] = bf(sum of UV[v, j] * o_lat[j]), a chain over j

A split, not a key, is what the partial sums are of, so no score is stored: S2 and S3 are computed once for S4, and again, bit for bit, for S5.
"""

import numpy as np

from references.arith import add, amax, asc, bf, chain, div, exp, gemm_from, hmul, kept, lanes, maximum, mul, sub, tree
from references.arith.move import full, hide, join, tiles, visible, zero

LOWEST = float(np.finfo(np.float32).min)


def split_pages(n: int) -> int:
    """Pages of a split of a context of n pages."""
    return 8 if n <= 64 else max(4, (n + 127) // 128)


def mma(q, w_kv_b, rows, scale):
    """q [heads, 192], w_kv_b [heads, 256, 512], rows [context, 576] -> o [heads, 128]."""
    latent = bf(gemm_from(0, q[:, None, :128], w_kv_b[:, :128].swapaxes(1, 2)))  # S1
    q_abs = join([latent[:, 0], q[:, 128:]], axis=1)  # S1
    dot = bf(gemm_from(0, q_abs, rows))  # S2
    scl = hmul(dot, scale)  # S3
    size = split_pages((len(rows) + 63) // 64)
    m, den = softmax(tiles(scl, 64, 1), visible(range(len(q)), 1, len(rows), 0), size)  # S4
    kept([m, den])  # S4
    p = bf(div(exp(sub(scl, m[:, None])), den[:, None]))  # S5
    parts = attended(tiles(p, 64, 1), tiles(rows[:, :512], 64, 0), size)  # S6
    o_lat = bf(tree(lanes(parts, 4), (2, 1)))  # S6
    return bf(gemm_from(0, o_lat[:, None], w_kv_b[:, 128:]))[:, 0]  # S7


def softmax(pages, seen, size: int):
    """Maximum and denominator of each head. pages [n, heads, 64], of which head h sees the keys below seen[h]; splits of `size` pages."""
    tops, dens = [], []
    for first in range(0, len(pages), size):
        top, den = split_softmax(pages[first : first + size], seen, first)
        tops.append(top)
        dens.append(den)
    tops, dens = np.transpose(tops), np.transpose(dens)
    m = amax(tops)
    return m, tree(lanes(mul(dens, exp(sub(tops, m[:, None]))), 8), (4, 2, 1))


def split_softmax(pages, seen, first: int):
    """Those of the split whose first page is `first`."""
    slots = pages[0].reshape(len(seen), 4, 2, 8)[:, :, 0]
    m, den = full(slots, LOWEST), zero(slots)
    for i in asc(len(pages)):
        page = hide(pages[i], seen, 64 * (first + i)).reshape(len(seen), 4, 2, 8)
        a, b = page[:, :, 0], page[:, :, 1]
        top = maximum(m, maximum(a, b))
        both = add(exp(sub(a, top)), exp(sub(b, top)))
        den = add(mul(den, exp(sub(m, top))), both)
        m = top
    largest = amax(m.reshape(len(seen), 32))
    return largest, chain(tree(mul(den, exp(sub(m, largest[:, None, None]))), (4, 2, 1)))


def attended(p, rows, size: int):
    """The parts [heads, 512, splits]. p [n, heads, 64], rows [n, 64, 512], zeros past the context."""
    parts = []
    for first in range(0, len(p), size):
        part = 0
        for i in asc(min(size, len(p) - first)):
            part = gemm_from(part, p[first + i], rows[first + i].transpose())
        parts.append(part)
    return np.transpose(parts, (1, 2, 0))
