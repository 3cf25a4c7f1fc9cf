"""Inputs of the mma form of mla_paged: contexts about the ends of its splits, and a pool whose long rows have 17 of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from references import _mla, _mla_pool
from references._mla_mma import softmax, split_pages
from references.arith import as_f32, bf, div, exp, gemm_from, hmul, join, paged, sub, tiles, visible
from references.contract import Case
from references.contract.inputs import hashed, near_ties, spread, values

PAGES, SPLIT = 68, 8  # the longest rows of the pool: 17 splits of 4; pages of a split of a short context


def cases() -> Iterator[Case]:
    for n in (SPLIT * 64 - 1, SPLIT * 64, SPLIT * 64 + 1, 2 * SPLIT * 64 + 1):
        yield Case(f"split_{n}", f"{n} keys about the end of a split of 8 pages", lambda n=n: _mla.drawn([n]))
    yield Case("splits", "the longest context cut into splits of 8 pages, the shortest cut into splits of 4, and one with a key alone in its split",
               lambda: _mla.drawn([4096, 4097, 64 * 80 + 1]))
    yield Case("split_no_page", "splits of which one, or all, have nothing but pages of -1", without_pages)
    yield Case("split_sentinel", "splits of keys masked by value: one of -inf alone, one at the finite sentinel", masked)
    yield Case("many_heads", "97 heads: the last is alone in its block", lambda: _mla.drawn([130, 65], heads=97), large=True)
    yield Case("long", "32768 keys: 128 splits of 4 pages; 40000: 125 of 5", lambda: _mla.drawn([32768, 40000]), large=True)


def without_pages() -> dict:
    table = np.array([[-1] * 8 + [0, 1, 2], [0, 1, 2, 0, 1, 2, 0, 1, -1, -1, -1], [-1] * 11])
    return _mla.drawn([700, 641, 600], table=table)


def masked() -> dict:
    scores = [[-np.inf] * 512 + [1.0, 2.0], [_mla.SENTINEL] * 512 + [-np.inf] * 9, [3.0] * 512 + [_mla.SENTINEL] * 70, [-np.inf] * 600]
    return _mla.by_score(scores)


def candidates(*parts: _mla_pool.Part) -> dict:
    """The pool's pages and more, tables of 68 pages."""
    wide = ((q, np.pad(table, ((0, 0), (0, PAGES - table.shape[1])), constant_values=-1), context) for q, table, context in parts)
    inputs = _mla_pool.candidates(*wide)
    return inputs | {"cache": np.concatenate([inputs["cache"], more_pages().reshape(-1)])}


def more_pages() -> np.ndarray:
    """10, 11 of the pool: the same keys, with values of 2^14 and more, and their negatives. 12, 13: probes of which the keys of one slot a warp can
    outweigh all others by element 560."""
    rows = np.concatenate([np.repeat(_mla.pages(301, 1), 2, axis=0), _mla.probes(305, 2)])
    rows[0, :, _mla.VALUES] = spread(302, (64, 128), 14, 18)
    rows[1, :, _mla.VALUES] = -rows[0, :, _mla.VALUES]
    rows[2:, np.arange(64) % 8 > 0, 560] = 1
    return rows


def tied(q: np.ndarray, table: np.ndarray, context: int) -> _mla_pool.Part:
    """Of queries to the same keys those of which head 0 has a probability on a bf16 midpoint: it shows a last bit moved in the denominator."""
    used, asked, w = table[: -(-context // 64)], as_f32(q[:, 0]), as_f32(_mla_pool.pool_weights()[0])
    rows = paged(np.concatenate([_mla_pool.pool_pages(), more_pages()]).reshape(-1), used, context, 0, _mla.PAGE_ELEMENTS)
    q_abs = join([bf(gemm_from(0, asked[:, :128], w[:128].T)), asked[:, 128:]], axis=1)
    scl = hmul(bf(gemm_from(0, q_abs, rows)), _mla.SCALE)
    m, den = softmax(tiles(scl, 64, 1), visible(range(len(q)), 1, context, 0), split_pages(len(used)))
    chosen = np.unique(near_ties(div(exp(sub(scl, m[:, None])), den[:, None]), 0) // context)
    return q[chosen], np.tile(table, (len(chosen), 1)), np.full(len(chosen), context, np.int32)


def short(seed: int, b: int) -> _mla_pool.Part:
    """Pages that show 192 probabilities."""
    return tied(_mla_pool.asked(400 + 12 * seed, b, 4.0), np.array([0, 1, 3, 12, 2]), 193 + 37 * seed % 128)


def long(seed: int, b: int) -> _mla_pool.Part:
    """17 splits of pages that show probabilities, each key's as often as its page is there; with an odd seed the splits of lane 0 weigh most."""
    table, q = np.array([0, 1, 8, 12, 13])[hashed(401 + 12 * seed, (PAGES,)) % 5], _mla_pool.asked(402 + 12 * seed, b, 1.0)
    if seed % 2:
        table, q[..., 176] = np.where(np.arange(PAGES) // 4 % 8 > 0, 12, np.minimum(table, 8)), values(-112)
    return tied(q, table, 64 * PAGES - 37 * seed % 192)


def loud(seed: int, b: int) -> _mla_pool.Part:
    """A key in eight weighs as much as an ordinary one, the others 2^-11 of it: what rounds in a slot is not lost in the sum of the slots."""
    q = _mla_pool.asked(403 + 12 * seed, b, 2.0)
    q[..., 176] = values(-112)
    return tied(q, 12 + hashed(404 + 12 * seed, (8,)) % 2, 193 + 37 * seed % 320)


def opposed(seed: int, b: int) -> _mla_pool.Part:
    """17 splits, of which one cancels the large values of another."""
    table = np.array([0, 1, 8])[hashed(406 + 12 * seed, (b, PAGES)) % 3]
    first = hashed(407 + 12 * seed, (b,)) % 32
    table[np.arange(b), first], table[np.arange(b), first + 1 + hashed(408 + 12 * seed, (b,)) % 32] = 10, 11
    return _mla_pool.asked(409 + 12 * seed, b, 0.5), table, np.full(b, 64 * PAGES, np.int32)
