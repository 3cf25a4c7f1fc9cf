"""gemm: the projections' product of activations and weights, as partials of a split k range.

    a bf16 [m, k], w bf16 [n, k], split_k -> p f32 [m, split_k, n]

S1  p[i, s, j] = the tensor-core chain of row i of a and row j of w over columns s k / split_k .. (s + 1) k / split_k, in ascending blocks of
    16 from +0. The partials are not merged: `land` does that.

split_k belongs to the projection. It, the order and the blocks are the same for every m: a row has the same bits alone and among others.

Current form: wgmma on slabs brought by the bulk copy engine, the batch as the left operand, the weights as the right one: up to 64 rows in tiles of
8 to 64 weights, of the width that deals them out most evenly; the retired form where a or w does not start on 16 bytes. Retired: mma.sync.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import gemm
from references.contract import Case, schedule
from references.contract.inputs import BF16, from_bits, hashed, ordinary, patterns, spread, values

INDEPENDENT = ("m", "n")
PROJECTIONS = {"qkv": (36864, 7168, 1), "gate_beta_forget": (12512, 7168, 4), "q_kv_gate": (14400, 7168, 4), "q_b": (18432, 1536, 4),
               "out": (7168, 12288, 4), "dense_down": (7168, 33792, 4), "shared_up": (12288, 7168, 4), "shared_down": (7168, 6144, 4),
               "latent": (3584, 7168, 4), "unlatent": (7168, 3584, 4), "router": (896, 7168, 1)}  # of a K3 step: n, k, split_k
BENCH = tuple(
    {"m": m, "n": n, "k": k, "split_k": split_k}
    for m, names in ((1, PROJECTIONS), (16, PROJECTIONS), (64, ("out", "latent")), (128, ("out", "latent")), (4096, ("q_kv_gate", "out", "qkv")),
                     (16384, ("out",)))
    for n, k, split_k in map(PROJECTIONS.get, names)
)
BATCHES = (1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257)  # which fill a tile's rows of a, and one more
TILES = range(8, 65, 8)  # rows of w in a tile
MULTIPROCESSORS = 132  # of an H200


def cost(sizes: dict) -> dict[str, float]:
    """Each operand read once, each partial written once; every product."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    return {"bytes": 2 * k * (m + n) + 4 * m * n * sizes["split_k"], "flops": 2 * m * n * k}


@schedule("a: bf16[m, k], w: bf16[n, k], split_k: int -> p: f32[m, split_k, n]", version=1,
          requires=("m >= 0", "n >= 1", "k >= 1", "split_k >= 1", "k % (16 * split_k) == 0"))
def emulate(a, w, split_k):
    return gemm(a, w, split_k).swapaxes(0, 1)  # S1


def cases() -> Iterator[Case]:
    for m in BATCHES:
        yield Case(f"batch_{m}", f"the first {m} of 257 rows", lambda m=m: batch(m))
    for split_k in range(1, 9):
        yield Case(f"split_{split_k}", f"{split_k} splits of five blocks, a slab of 64 columns and a quarter",
                   lambda split_k=split_k: splits(split_k, 80))
    yield Case("one_block", "k = 16, and one column of the result", lambda: product(ordinary(5, (3, 16)), ordinary(6, (1, 16))))
    yield Case("short_splits", "3 splits of one block each", lambda: splits(3, 16), ("S1.gemm:splits_reversed", "S1.gemm:carried"))
    yield Case("ragged_n", "131 columns of the result: two tiles and 3", lambda: product(ordinary(7, (3, 64)), ordinary(8, (131, 64))))
    yield Case("large_ragged_n", "130 rows, 131 columns of the result", lambda: product(ordinary(9, (130, 48)), ordinary(10, (131, 48))))
    yield Case("truncation", "1 and 1.5 half ulps in every later block: each is cut off, together they are 12 ulps", truncation,
               ("S1.gemm:rounded", "S1.gemm:by_fma", "S1.gemm:k_descending", "S1.gemm:two_chains"))
    yield Case("within_a_block", "2^24, 1 and -2^24: in one block their sum is exact, in the second half or not; in two blocks the 1 is lost",
               within_a_block, ("S1.gemm:blocks_of_8", "S1.gemm:by_fma"))
    yield Case("cancellation", "a sum that cancels but for what the truncations left", cancellation,
               ("S1.gemm:k_descending", "S1.gemm:rounded", "S1.gemm:two_chains"))
    yield Case("minus_zero", "products that are all -0 sum to +0",
               lambda: product(values([[-0.0] * 32, [-1.0] * 32]), values([[1.0] * 32, [0.0] * 32])))
    yield Case("subnormal", "subnormal operands, and products that are", subnormal, ("S1.gemm:operands_flushed", "S1.gemm:flushed"))
    yield Case("overflow", "sums that overflow to inf, to -inf, and one after the other, which is NaN", overflow)
    yield Case("special", "an infinity or a NaN in one row of a or w: it poisons that row or column alone, a zero opposite it or not", special)
    yield Case("patterns", "every bit pattern, 2 splits", lambda: product(patterns(11, (8, 32)), patterns(12, (12, 32)), 2))
    yield Case("scales", "magnitudes 2^-12 .. 2^12 in all rows", lambda: product(spread(13, (9, 256), -12, 12), spread(14, (12, 256), -12, 12), 2))
    for name, m in (("q_kv_gate", 2), ("q_b", 17), ("out", 5), ("router", 16)):
        yield Case(f"step_{name}", f"{m} rows of this projection", lambda m=m, name=name: drawn(m, *PROJECTIONS[name]), large=True)
    for rows in TILES:
        yield Case(f"tiles_of_{rows}", f"weights that {MULTIPROCESSORS} multiprocessors share evenly in tiles of {rows} rows, the last one short",
                   lambda rows=rows: drawn(3, MULTIPROCESSORS * rows - 4, 80, 1), large=True)
    yield Case("odd_tiles", "tiles of 64 rows whose results do not lie on 16 bytes", lambda: drawn(20, MULTIPROCESSORS * 64 - 5, 80, 1), large=True)
    yield Case("walk_narrow", "more tiles of one row of the batch than blocks run at once", lambda: drawn(1, 40005, 48, 1), large=True)
    yield Case("walk_wide", "more tiles of 256 rows than blocks run at once, in two bands", lambda: drawn(2100, 4100, 80, 1), large=True)


def product(a: np.ndarray, w: np.ndarray, split_k: int = 1) -> dict:
    return {"a": a, "w": w, "split_k": split_k}


def drawn(m: int, n: int, k: int, split_k: int) -> dict:
    return product(ordinary(1, (m, k)), ordinary(2, (n, k), 2.0**-6), split_k)


def batch(m: int) -> dict:
    """The same rows and weights whatever m is."""
    return product(ordinary(3, (257, 96))[:m], ordinary(4, (24, 96)), 2)


def splits(split_k: int, part: int) -> dict:
    return product(ordinary(20 + split_k, (3, split_k * part)), ordinary(30 + split_k, (20, split_k * part)), split_k)


def blocks(*firsts: float) -> np.ndarray:
    """A row of which each block of 16 has one number that is not zero."""
    row = np.zeros(16 * len(firsts))
    row[::16] = firsts
    return row


def against_ones(rows: list) -> dict:
    rows = values(rows)
    return product(rows, values(np.ones((1, rows.shape[1]))))


def truncation() -> dict:
    small = 1.5 * 2.0**-24
    return against_ones([sign * blocks(1, *[small] * 16) for sign in (1, -1)])


def within_a_block() -> dict:
    large = 2.0**24
    together, halves, apart = np.zeros((3, 32))
    together[:3], halves[[0, 1, 8]], apart[[0, 1, 16]] = (large, 1, -large), (large, 1, -large), (large, 1, -large)
    return against_ones([together, halves, apart])


def cancellation() -> dict:
    """2^12 in the first block, -2^12 in the last, and small terms that an accumulator of 2^12 cuts off in between."""
    a, w = spread(15, (4, 192), -14, -8), spread(16, (6, 192), -1, 0)
    a[:, 0], a[:, -1], w[:, 0], w[:, -1] = 4096, -4096, 1, 1
    return product(a, w)


def subnormal() -> dict:
    """Rows of a: subnormal; 2^-70, whose products with w's first rows are. w: 2^-70; then ordinary."""
    a = np.concatenate([from_bits(hashed(17, (3, 64)) & 0x807F), spread(18, (3, 64), -72, -68)])
    return product(a, np.concatenate([spread(19, (6, 64), -72, -68), ordinary(20, (6, 64))]), 2)


def overflow() -> dict:
    top = 2.0**127
    return against_ones([blocks(*row) for row in ([top, top, 1, 1], [-top, -top, 1, 1], [top, top, -top, -top], [top, top, -np.inf, 1],
                                            [top, -top, top, 1])])


def special() -> dict:
    inputs = product(ordinary(41, (9, 64)), ordinary(42, (8, 64)), 2)
    poison = values([np.inf, -np.inf, np.nan])
    inputs["a"][:3, 5], inputs["w"][:3, 40], inputs["a"][3:6, 40], inputs["w"][3:, 5] = poison, poison, 0, 0
    return inputs


def pool(seed: int) -> dict:
    """64 rows against the same weights: ordinary, of many magnitudes, subnormal."""
    a = [ordinary(3 * seed + 50, (24, 192)), spread(3 * seed + 51, (32, 192), -14, 14), from_bits(hashed(3 * seed + 52, (8, 192)) & 0x807F)]
    return product(np.concatenate(a), spread(49, (24, 192), -8, 8, BF16), 3)
