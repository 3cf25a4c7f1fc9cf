"""kda_fold: the state a rank starts from, from the first rank's state and what the segments between do to it.

    mm f32 [r, heads, 128, 128], d f32 [r, heads, 128, 128], state f32 [heads, 128, 128] -> next f32 [heads, 128, 128]

State, M and D are indexed [v][k], [j][k] and [v][k]. A segment acts on the k axis, from the right.

S1  for rank = 0 .. r - 1, the upstream segments in the order of their tokens:
S2  S_vk = (sum over j ascending of S_vj * M_jk, fused, from +0) + D_vk

Current form: a block takes 32 rows of a head through all ranks, 32 rows of M at a time in shared memory, 32 elements a thread. The retired form
where an array is not 16-byte aligned. Retired: a block a row of the state, an element a thread.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import add, asc, select
from references.arith.linear import chain_matmul
from references.contract import Case, schedule
from references.contract.inputs import F32, ordinary, patterns, spread, values

INDEPENDENT = "heads"
BENCH = ({"r": 1, "heads": 96}, {"r": 7, "heads": 96})


@schedule("mm: f32[r, heads, 128, 128], d: f32[r, heads, 128, 128], state: f32[heads, 128, 128] -> next: f32[heads, 128, 128]", version=1)
def emulate(mm, d, state):
    for rank in asc(len(mm)):  # S1
        state = add(chain_matmul(state, select(mm, rank)), select(d, rank))  # S2
    return state


def cases() -> Iterator[Case]:
    yield Case("no_rank", "nothing upstream: the state as it is", lambda: packages(1, 0, 1, 4))
    yield Case("one_rank", "one package, dense, onto a few rows of two heads", lambda: packages(2, 1, 2, 4),
               ("S2.chain_matmul:swapped", "S2.chain_matmul:transposed", "S2.chain_matmul:landed_factors"))
    yield Case("three_ranks", "three packages do not commute", lambda: sparse(3, 3, 2), ("S1.asc:descending", "S2.select:early", "S2.select:late"))
    yield Case("identity", "packages of segments without tokens change no bit", identity)
    yield Case("zeros", "products of -0 sum to +0, which D's -0 leaves +0", zeros, ("S2.chain_matmul:from_first_product",))
    yield Case("order", "rows that cancel or hang by half an ulp: no order but the ascending one lands there", order,
               ("S2.chain_matmul:j_descending", "S2.chain_matmul:j_halves"))
    yield Case("contracted", "products whose rounding error is all that remains", contracted, ("S2.chain_matmul:products_apart",))
    yield Case("subnormal", "products and sums below 2^-126", subnormal, ("S2.chain_matmul:flushed_sums", "S2.add:flushed"))
    yield Case("special", "a head each: infinite state, NaN in M, overflow, infinite D; of no other head a bit changes", special)
    yield Case("ranks", "7 ranks of 3 heads, dense", lambda: packages(9, 7, 3, 128), large=True)


def packages(seed: int, r: int, heads: int, rows: int) -> dict:
    """M near a decaying identity, as segments have it; of the state and of D only the first rows."""
    shape = r, heads, 128, 128
    mm = ordinary(8 * seed, shape, 0.0625, F32)
    mm[..., np.arange(128), np.arange(128)] += F32.type(0.5)
    d, state = np.zeros(shape, F32), np.zeros(shape[1:], F32)
    d[:, :, :rows], state[:, :rows] = ordinary(8 * seed + 1, (r, heads, rows, 128), dtype=F32), ordinary(8 * seed + 2, (heads, rows, 128), dtype=F32)
    return {"mm": mm, "d": d, "state": state}


def sparse(seed: int, r: int, heads: int) -> dict:
    """The same with 8 live columns, whose M is dense; elsewhere M is a diagonal."""
    inputs = packages(seed, r, heads, 4)
    live = np.arange(128) % 16 == seed % 16
    inputs["mm"] *= (live[:, None] & live) | np.eye(128, dtype=bool)
    return inputs


def rows_by(mm: np.ndarray, rows: np.ndarray, d: float = 0.0) -> dict:
    """One head, one rank: M [128, 128], the first rows of the state, D of one value in these."""
    inputs = {"mm": mm.reshape(1, 1, 128, 128), "d": np.zeros((1, 1, 128, 128), F32), "state": np.zeros((1, 128, 128), F32)}
    inputs["state"][0, : len(rows)], inputs["d"][0, 0, : len(rows)] = rows, d
    return inputs


def column(head: list[float]) -> np.ndarray:
    """128 f32 that start so, the others 0."""
    return values([*head, *[0.0] * (128 - len(head))], F32)


def identity() -> dict:
    inputs = packages(4, 2, 1, 8)
    inputs["mm"][...], inputs["d"][...] = np.eye(128, dtype=F32), 0
    return inputs


def zeros() -> dict:
    return rows_by(np.ones((128, 128), F32), np.stack([column([-0.0] * 128), column([0.0] * 128), column([-0.0, 0.0] * 64)]), -0.0)


def order() -> dict:
    half = 2.0**-24
    starts = [[1, half, half], [half, half, 1], [2.0**30, 1, -(2.0**30), 1], [1, *[0] * 63, half, half], [half, *[0] * 63, half, 1]]
    return rows_by(np.ones((128, 128), F32), np.stack([column(start) for start in starts]))


def contracted() -> dict:
    """Row v of the state has -1 and x, column k of M the rounded x * y and y."""
    x, y = spread(5, (16,), 0, 0, F32), spread(6, (128,), 0, 0, F32)
    mm, rows = np.zeros((128, 128), F32), np.zeros((16, 128), F32)
    for i in range(16):
        rows[i, i], rows[i, 16 + i], mm[i], mm[16 + i] = -1, x[i], x[i] * y, y
    return rows_by(mm, rows)


def subnormal() -> dict:
    mm = spread(7, (128, 128), -66, -60, F32) * (np.arange(128) < 8)
    inputs = rows_by(mm, np.concatenate([spread(8, (6, 128), -72, -64, F32), np.zeros((2, 128), F32)]))
    inputs["d"][0, 0, 4:8, :8] = spread(9, (4, 8), -126, -124, F32) * F32.type(0.25)
    return inputs


def special() -> dict:
    inputs = sparse(5, 2, 5)
    inputs["state"][0, 0, 5], inputs["mm"][0, 1, 21, 5], inputs["d"][1, 3, 2, 7] = np.inf, np.nan, -np.inf
    inputs["state"][2, :2], inputs["mm"][0, 2, 5] = 2.0**127, 2.0
    return inputs


def pool(seed: int) -> dict:
    """Two ranks; 8 heads of sparse packages, 8 of every bit pattern in a few rows and columns."""
    inputs = sparse(16 * seed + 20, 2, 16)
    inputs["state"][8:, :2] = patterns(seed + 400, (8, 2, 128), F32)
    return inputs
