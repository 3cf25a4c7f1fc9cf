"""What the forms of the KDA recurrence share: the log decay of a token, normed heads, and a tile of 16 tokens.

Of one head the recurrence is, token by token, S = S * diag(exp g); S = S + (beta * (v - S k)) k^T; o = S q, with the state S[v][k]. Over a tile,
with c_i the sum of g up to token i, the delta of token i is d_i = beta_i * (v_i - S (k_i exp c_i)) - sum over j < i of
beta_i * ((k_i exp c_i) . (k_j exp(-c_j))) * d_j: a triangular system. g is -5 at least, so exp(80) bounds the powers and none of them overflows.
"""

from __future__ import annotations

import numpy as np

from references.arith import add, asc, bf, choose, ex2_approx, exp, fma, full, gemm_pieces, join, mul, rsqrt, sigmoid, tree, zero

TILE = 16
WIDTH = (64, 32, 16, 8, 4, 2, 1)  # offsets of the tree over a head's columns
EPS = 1e-6
QUERY = 128**-0.5
LOWEST = -5.0  # log of the least decay
LOG2E, MINUS_LOG2E = float.fromhex("0x1.715476p+0"), float.fromhex("-0x1.715476p+0")
ROW = np.arange(TILE)[:, None]
NOTHING = np.float32(0)


def log_decay(gate: np.ndarray, dt_bias: np.ndarray, a_log: np.ndarray) -> np.ndarray:
    """gate f32 [..., heads, 128] (a partial), dt_bias f32 [heads, 128], a_log f32 [heads] -> f32 [..., heads, 128] of -5 .. 0."""
    raw = add(bf(add(zero(gate), gate)), dt_bias)
    return mul(LOWEST, sigmoid(mul(exp(a_log)[:, None], raw)))


def unit(x: np.ndarray) -> np.ndarray:
    """x [..., 128] divided by its length, in f32."""
    return mul(x, rsqrt(add(tree(mul(x, x), WIDTH), EPS))[..., None])


def sums(g: np.ndarray) -> np.ndarray:
    """g [heads, 16, 128] summed up to each token, ascending from +0."""
    total, found = zero(g[:, :1]), []
    for i in asc(TILE):
        total = add(total, g[:, i : i + 1])
        found = [*found, total]
    return join(found, axis=1)


def powers(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(c) and exp(-c), by the special-function unit."""
    return ex2_approx(mul(c, LOG2E)), ex2_approx(mul(c, MINUS_LOG2E))


def system(kd: np.ndarray, ku: np.ndarray, b: np.ndarray) -> np.ndarray:
    """n [heads, i, j] = -b_i * (kd_i . ku_j), of which what is below the diagonal counts. kd, ku [heads, 16, 128], b [heads, 16]."""
    return mul(gemm_pieces(0, kd, ku), mul(b, -1)[..., None])


def inverse(n: np.ndarray) -> np.ndarray:
    """The inverse of I - n, n [heads, 16, 16] taken as strictly lower: row j, once complete, is added n_ij times to each row i below it."""
    t = choose(ROW == ROW.T, full(n, 1), NOTHING)
    for j in asc(TILE):
        below = fma(n[:, j + 1 :, j : j + 1], t[:, j : j + 1], t[:, j + 1 :])
        t = join([t[:, : j + 1], below], axis=1)
    return t
