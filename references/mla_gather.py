"""mla_gather: rows of the paged cache as dense matrices, one window of each sequence.

    cache bf16 [pool], table i32 [b, pages], start i32 [b], t, layer_offset, page_stride int -> latent bf16 [b, t, 512], rope bf16 [b, t, 64]

S1  row r of sequence i is token start[i] + r: row (token % 64) of physical page table[i, token // 64]. That row begins at element
    layer_offset + page * page_stride + (token % 64) * 576 of the cache; of a page below 0 it is zero.
S2  latent = its first 512 elements, rope = its last 64. Nothing is computed: every bit is kept, a NaN's payload too.

Current form: 16-byte loads and stores, four rows a thread; the retired form where a base, layer_offset or page_stride is off 16 bytes.
Retired: one element a thread. Element offsets are 64 bits wide.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import cached
from references.contract import Case, schedule
from references.contract.inputs import BF16, patterns

INDEPENDENT = "b"
BENCH = ({"pool": 128 * 36864, "b": 16, "pages": 130, "t": 8192, "layer_offset": 0, "page_stride": 36864},)
LATENT, PAGE = 512, 64
PAGE_ELEMENTS = 36864  # 64 rows of 576


def refuse(cache: np.ndarray, table: np.ndarray, start: np.ndarray, t: int, layer_offset: int, page_stride: int) -> None:
    """ValueError unless every token is in the table and every page that is read in the pool."""
    pages = table.shape[1]
    if start.size and (start.min() < 0 or int(start.max()) + t > PAGE * pages):
        raise ValueError(f"start must be 0 .. {PAGE * pages - t}, for t = {t} rows in a table of {pages} pages, got {start.tolist()}")
    for i in range(len(start)):
        used = table[i, start[i] // PAGE : -(-(int(start[i]) + t) // PAGE)]
        beyond = layer_offset + used.astype(np.int64) * page_stride + PAGE_ELEMENTS > cache.size
        if (beyond & (used >= 0)).any():
            raise ValueError(f"table must name pages inside the pool of {cache.size} elements, got {used[beyond & (used >= 0)][0]} in row {i}")


@schedule("cache: bf16[pool], table: i32[b, pages], start: i32[b], t: int, layer_offset: int, page_stride: int"
          " -> latent: bf16[b, t, 512], rope: bf16[b, t, 64]",
          version=1, requires=("t >= 0", "pages >= 1", "layer_offset >= 0", "page_stride >= 0", "layer_offset % 2 == 0", "page_stride % 2 == 0"),
          raw=("cache",), refuse=refuse)
def emulate(cache, table, start, t, layer_offset, page_stride):
    rows = cached(cache, table, start, t, layer_offset, page_stride)  # S1
    return rows[..., :LATENT], rows[..., LATENT:]  # S2


def cases() -> Iterator[Case]:
    yield Case("one_row", "the last row of the second page", lambda: gather([[1, 0]], [127], 1), ("S1.cached:row_late", "S1.cached:unmapped"))
    yield Case("padding", "a page id of -1 first, inside and last: zero rows, whatever page 0 and the last page hold",
               lambda: gather([[-1, 2, -1, 1, -1]], [60], 5 * 64 - 120), ("S1.cached:padding_read",))
    yield Case("across", "a page's last row and the next page's first, of two sequences at different rows",
               lambda: gather([[2, 0], [1, 2]], [63, 62], 3), ("S1.cached:row_late", "S1.cached:unmapped"))
    yield Case("layer", "a layer inside wider pages", lambda: gather([[2, 1]], [3], 67, layer_offset=36864, page_stride=3 * 36864),
               ("S1.cached:without_offset",))
    yield Case("unaligned", "an offset and a stride that are no multiples of 16 bytes",
               lambda: gather([[2, 1]], [40], 45, layer_offset=6, page_stride=36866), ("S1.cached:without_offset",))
    yield Case("exact_table", "as many pages as the window needs, and no row after it", lambda: gather([[0, 1]], [0], 128))
    yield Case("far", "pages 2.4e9 elements into a sparse pool: the offset needs more than 32 bits", far, large=True)


def gather(table: list[list[int]], start: list[int], t: int, layer_offset: int = 0, page_stride: int = PAGE_ELEMENTS) -> dict:
    """Pages 0 .. 2 of all kinds of bits, whose period of 4,099 elements fits no row and no page."""
    cache = np.resize(patterns(1, (4099,)), layer_offset + 2 * page_stride + PAGE_ELEMENTS)
    return {"cache": cache, "table": np.array(table, np.int32), "start": np.array(start, np.int32), "t": t, "layer_offset": layer_offset,
            "page_stride": page_stride}


def far() -> dict:
    """Page 3 lies behind 2^31 elements; what wraps at 32 bits finds other values or the zeros between the pages."""
    stride, offset = 3 << 28, 576
    cache = np.zeros(offset + 3 * stride + PAGE_ELEMENTS, BF16)  # untouched memory costs nothing
    for page in (0, 2, 3):
        cache[offset + page * stride :][:PAGE_ELEMENTS] = patterns(page + 2, (PAGE_ELEMENTS,))
    return {"cache": cache, "table": np.array([[3, 0], [2, 3]], np.int32), "start": np.array([0, 50], np.int32), "t": 70, "layer_offset": offset,
            "page_stride": stride}


def pool(seed: int) -> dict:
    """Four sequences whose windows cross a page that is there and one that is not."""
    return gather([[0, 1, 2, -1], [2, -1, 1, 0], [1, 2, -1, 0], [0, 2, 1, -1]], [17 + seed, 63, 64, 100], 90)
