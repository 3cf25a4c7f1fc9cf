"""Inputs of mla_paged: what is refused, directed requests, and the pool that its searches draw from.

Weights and pages are mostly zeros, so that each step can be seen at the outputs. UV lets latent 64 + v through as output v ("values"; one key a
latent shows that key's probability), and UK speaks to latents 0 .. 15 ("keys").
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from references.arith.paged import PAGE, ROW
from references.contract import Case
from references.contract.inputs import BF16, from_bits, hashed, ordinary, patterns, spread, values

Part = tuple[np.ndarray, np.ndarray, np.ndarray]  # q, table [b, 5], context
PAGE_ELEMENTS = PAGE * ROW
SCALE = 0.072265625  # 192^-0.5 as bf16
KEYS, VALUES, MORE, ROPE = slice(0, 16), slice(64, 192), slice(256, 272), slice(512, 576)
SENTINEL = float(from_bits([0xFF7F])[0])  # the lowest finite bf16, -3.39e38


def refuse(table, context, cache, layer_offset, page_stride, **others) -> None:
    """ValueError unless every context fits the table and every page that it reads the pool. Entries behind a context may be anything."""
    pages = table.shape[1]
    for i, length in enumerate(context.tolist()):
        if not 1 <= length <= PAGE * pages:
            raise ValueError(f"context must be 1 .. {PAGE * pages} for a table of {pages} pages, got {length} in row {i}")
        used = table[i, : -(-length // PAGE)].astype(np.int64)
        beyond = used[layer_offset + used * page_stride + PAGE_ELEMENTS > cache.size]
        if (beyond >= 0).any():
            raise ValueError(f"table must name pages inside the pool of {cache.size} elements, got {beyond[beyond >= 0][0]} in row {i}")


def request(q, w_kv_b, cache, table, context, scale: float = SCALE, layer_offset: int = 0, page_stride: int = PAGE_ELEMENTS) -> dict:
    return {"q": q, "w_kv_b": w_kv_b, "cache": cache, "table": np.array(table, np.int32), "context": np.array(context, np.int32), "scale": scale,
            "layer_offset": layer_offset, "page_stride": page_stride}


# Parts


def weights(heads: int = 1, seed: int = 1) -> np.ndarray:
    """UK random to the key latents; UV lets the values through, its last 32 rows also sum the key latents."""
    w = np.zeros((heads, 256, 512), BF16)
    w[:, :128, KEYS] = ordinary(seed, (heads, 128, 16), 0.125)
    w[:, 128:, VALUES] = values(np.eye(128))
    w[:, 224:, KEYS] = ordinary(seed + 1, (heads, 32, 16))
    return w


def queries(seed: int, b: int, heads: int = 1, scale: float = 4.0) -> np.ndarray:
    """Scores of a deviation of about `scale`."""
    return ordinary(seed, (b, heads, 192), scale)


def asked(seed: int, b: int, scale: float) -> np.ndarray:
    """Queries of two heads whose first and last nope element are one number, so that UK can cancel them."""
    q = queries(seed, b, 2, scale)
    q[..., 127] = q[..., 0]
    return q


def lengths(seed: int, b: int, low: int, high: int) -> np.ndarray:
    return (low + hashed(seed, (b,)) % (high - low + 1)).astype(np.int32)


def pages(seed: int, n: int) -> np.ndarray:
    """[n, 64, 576]: random keys and rope of 16 elements each, values of three bits."""
    rows = np.zeros((n, PAGE, ROW), BF16)
    rows[..., KEYS] = ordinary(seed, (n, PAGE, 16))
    rows[..., VALUES] = from_bits(0x3F80 + 0x30 * (hashed(seed + 1, (n, PAGE, 128)) % 4) + 0x8000 * (hashed(seed + 2, (n, PAGE, 128)) % 2))
    rows[..., 512:528] = ordinary(seed + 3, (n, PAGE, 16))
    return rows


def probes(seed: int, n: int) -> np.ndarray:
    """As `pages`, but key r of page i has one value only: a 1 in latent 64 + 64 * (i % 2) + r, so that output shows its probability."""
    rows = pages(seed, n)
    rows[..., VALUES] = 0
    for i in range(n):
        rows[i, np.arange(PAGE), 64 + 64 * (i % 2) + np.arange(PAGE)] = 1
    return rows


def scattered(b: int, pages: int, tokens: int) -> dict:
    """Every row's pages drawn from all over the pool, none twice."""
    order = np.argsort(hashed(1, (b * pages,)), kind="stable")
    return {"table": order.reshape(b, pages).astype(np.int32), "context": np.full(b, tokens, np.int32)}


def by_score(scores: list[list[float]], seed: int = 1) -> dict:
    """Rows of a batch with these dot products, a key each; scale 1. Key t's value is latent 64 + t % 128, the rest of it random."""
    b, longest = len(scores), max(map(len, scores))
    n = -(-longest // PAGE)
    rows = probes(seed, b * n)
    rows[..., KEYS] = 0
    rows[..., 512:] = 0
    for i, row in enumerate(scores):
        rows[i * n : i * n + n].reshape(-1, ROW)[: len(row), 512] = values(row)
    q = np.zeros((b, 1, 192), BF16)
    q[..., 128] = 1
    return request(q, weights(), rows.reshape(-1), np.arange(b * n).reshape(b, n), [len(row) for row in scores], 1.0)


# Cases


def cases() -> Iterator[Case]:
    for n in (1, 63, 64, 65, 1023, 4096):
        yield Case(f"context_{n}", f"one row of {n} keys, in a table of as many pages as that takes", lambda n=n: drawn([n]))
    yield Case("ragged", "rows of 129, 1, 200 and 64 keys; the table's tails name no page", lambda: drawn([129, 1, 200, 64], tail=2**31 - 1))
    yield Case("in_order", "three pages, one after the other", lambda: permuted([0, 1, 2]))
    yield Case("shuffled", "the same rows in pages 2, 0, 1 of the pool: the same outputs", lambda: permuted([2, 0, 1]))
    yield Case("dead_rows", "the last page's rows past a context of 77 are NaN", lambda: poisoned(np.nan))
    yield Case("no_page", "pages of -1 first, inside and last among pages of live keys; page 0 is NaN", no_page,
               ("S2.paged:page_zero", "S2.paged:last_page", "S2.paged:left_out"))
    yield Case("no_page_at_all", "nothing but pages of -1: every score 0, every output +0", lambda: drawn([130], table=[[-1, -1, -1]]))
    yield Case("uniform", "13 keys of one score: each weighs 1/13, whatever lies past them",
               lambda: by_score([[2.0] * 13, [2.0] * 65]), ("S2.paged:whole_pages", "S2.paged:one_short"))
    yield Case("sentinel", "every key masked by value: the finite sentinel still wins over the start of the maximum",
               lambda: by_score([[SENTINEL] * 70, [SENTINEL] * 69 + [-3.0e38 // 2.0**120 * 2.0**120], [SENTINEL, 0.0] * 35]),
               ("two_pass/S4.full:from_zero", "three_sweep/S4.full:from_zero", "mma/S4.softmax.split_softmax.full:from_zero"))
    yield Case("infinite", "scores of -inf: a whole page of them first, all of them; of +inf; NaN among live keys", infinite)
    yield Case("one_hot", "one key outweighs all others: its value comes out as it is; the others weigh nothing, or less than 2^-126",
               lambda: by_score([[0.0] * 40 + [200.0] + [0.0] * 80, [0.0, *(-86.0 - k / 2 for k in range(18))]]),
               ("S5.exp:flushed", "S5.div:flushed", "S5.bf:flushed"))
    yield Case("zeros", "values of -0, tiny negative ones and zeros: which sign each sum's zero has", zeros,
               ("two_pass/S7.chain_fma:unseeded", "three_sweep/S7.chain_fma:unseeded"))
    yield Case("subnormal", "scores made of subnormal products and sums by a scale of 2^120", subnormal)
    yield Case("overflow", "products past the largest f32 that only an fma can take back", overflow)
    yield Case("layer", "a layer inside wider pages, at offsets that are no multiples of 16 bytes",
               lambda: drawn([100, 64], layer_offset=36866, page_stride=2 * PAGE_ELEMENTS + 2))
    yield Case("heads", "three heads of two rows", lambda: drawn([70, 66], heads=3))
    yield Case("any_bits", "queries and keys of every bit pattern", any_bits)
    for b in (31, 32, 33, 128):
        yield Case(f"batch_{b}", f"the row of context_65 first among {b}: the same bits",
                   lambda b=b: drawn([65] + [1 + 37 * i % 150 for i in range(1, b)]), large=True)
    yield Case("kimi", "96 heads of dense weights, 2000 keys", kimi, large=True)
    yield Case("far", "pages 2.4e9 elements into a sparse pool: the offset needs more than 32 bits", far, ("S2.paged:narrow",), large=True)


def drawn(context: list[int], heads: int = 1, table=None, tail: int = -1, layer_offset: int = 0, page_stride: int = PAGE_ELEMENTS) -> dict:
    """Rows of ordinary keys. Three pages serve all, row i's logical page j is page (i + 2 * j) % 3; the first row is the same in every batch."""
    needed = [-(-n // PAGE) for n in context]
    if table is None:
        table = [[(i + 2 * j) % 3 if j < n else tail for j in range(max(needed))] for i, n in enumerate(needed)]
    cache = from_bits(np.full(layer_offset + 2 * page_stride + PAGE_ELEMENTS, 0x7FFF))
    for page, rows in enumerate(pages(11, 3)):
        cache[layer_offset + page * page_stride :][:PAGE_ELEMENTS] = rows.reshape(-1)
    q = np.concatenate([queries(12 + i, 1, heads) for i in range(len(context))])
    return request(q, weights(heads), cache, table, context, layer_offset=layer_offset, page_stride=page_stride)


def permuted(order: list[int]) -> dict:
    """Logical page j is page order[j] of the pool and holds the same rows whatever the order."""
    rows = pages(21, 3)
    placed = np.empty_like(rows)
    placed[order] = rows
    return request(queries(22, 2), weights(), placed.reshape(-1), [order, [*order[:2], -1]], [170, 128])


def poisoned(dead) -> dict:
    """77 keys; what lies behind them in the second page is `dead`: a number, or rows."""
    rows = pages(23, 2)
    rows[1, 13:] = dead
    return request(queries(24, 1), weights(), rows.reshape(-1), [[0, 1]], [77])


def no_page() -> dict:
    rows = pages(25, 4)
    rows[0] = np.nan
    table = [[-1, 1, 2, -1], [1, -1, -1, 2], [2, 3, 1, -1], [-1, -1, -1, 1]]
    return request(queries(26, 4), weights(), rows.reshape(-1), table, [250, 256, 193, 200])


def infinite() -> dict:
    """Keys of -inf, by an overflowing product and as they are; a NaN that a maximum passes over."""
    inf = np.inf
    return by_score([[-inf] * 64 + [1.0, 2.0], [-inf] * 70, [1.0] * 10 + [inf] + [2.0] * 60, [1.0] * 64 + [np.nan, 2.0], [-inf, SENTINEL] * 33,
                     [np.nan] * 3, [inf, -inf]])


def zeros() -> dict:
    """Row 0: values of -0. Row 1: products with p below half of 2^-149. Row 2: zero scores of both signs."""
    inputs = by_score([[0.0] * 3, [-90.0, 0.0, -90.0], [0.0, -0.0, 0.0, -0.0]])
    rows = inputs["cache"].reshape(3, PAGE, ROW)
    rows[0, :, VALUES] = -0.0
    rows[1, :, VALUES] = values([2.0**-120])
    rows[1, 0, VALUES] = values([-(2.0**-60)])
    inputs["w_kv_b"][0, 128:160] *= -1
    return inputs | {"cache": rows.reshape(-1)}


def subnormal() -> dict:
    """Rows 0 .. 7: q_abs around 2^-130, keys of ordinary size. Others: keys and queries around 2^-66. A scale of 2^127 makes scores of both."""
    w = weights()
    w[:, :128, KEYS] = spread(31, (1, 128, 16), -74, -66)
    rows = probes(32, 2)
    rows[0, :, KEYS] = spread(33, (PAGE, 16), -2, 6)
    rows[1, :, ROPE] = spread(34, (PAGE, 64), -72, -62)
    q = np.concatenate([spread(35, (8, 1, 192), -70, -62), spread(36, (8, 1, 192), -72, -64)])
    q[:8, :, 128:], q[8:, :, :128] = 0, 0
    return request(q, w, rows.reshape(-1), [[0]] * 8 + [[1]] * 8, [49 + i for i in range(16)], 2.0**127)


def overflow() -> dict:
    """-3.39e38 and then 1.5 * 2^128, which only an fma takes back: in q_abs, in dot products of either order, in the output."""
    low, high = [SENTINEL, 1.5 * 2.0**64], [1.0, 2.0**64]
    w = np.zeros((1, 256, 512), BF16)
    w[0, :2, 0], w[0, 128:, 64:66] = values(low), values(low)
    q = np.zeros((4, 1, 192), BF16)
    q[0, 0, :2], q[1, 0, 128:130], q[2, 0, 128:130] = values(high), values(high), values(high[::-1])
    rows = np.zeros((4, PAGE, ROW), BF16)
    rows[:3, :2, 64] = values([2.0**-120, 2.0**-121])
    rows[0, 0, 0] = 2.0**-126
    rows[1, 0, 512:514], rows[2, 0, 512:514] = values(low), values(low[::-1])
    rows[3, 0, 64:66] = values(high)
    return request(q, w, rows.reshape(-1), [[0], [1], [2], [3]], [2, 2, 2, 1], 1.0)


def any_bits() -> dict:
    rows = pages(41, 1)
    rows[..., 64:96], rows[..., 512] = patterns(42, (1, PAGE, 32)), patterns(43, (1, PAGE))
    q = queries(44, 12)
    q[..., 128] = patterns(45, (12, 1))
    return request(q, weights(), rows.reshape(-1), [[0]] * 12, [1, 2, 3] * 4)


def kimi() -> dict:
    cache = ordinary(51, (8 * PAGE_ELEMENTS,))
    q, w = ordinary(52, (2, 96, 192)), ordinary(53, (96, 256, 512), 0.0625)
    return request(q, w, cache, [[(5 * j + i) % 8 for j in range(32)] for i in range(2)], [2000, 65])


def far() -> dict:
    """Page 3 lies behind 2^31 elements; what wraps at 32 bits finds the zeros between the pages."""
    stride, offset = 3 << 28, 576
    cache = np.zeros(offset + 3 * stride + PAGE_ELEMENTS, BF16)  # untouched memory costs nothing
    for page, rows in enumerate(pages(54, 4)):
        cache[offset + page * stride :][:PAGE_ELEMENTS] = rows.reshape(-1)
    return request(queries(55, 2), weights(), cache, [[3, 0], [2, 3]], [70, 128], layer_offset=offset, page_stride=stride)
