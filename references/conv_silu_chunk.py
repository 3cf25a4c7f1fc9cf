"""conv_silu_chunk: a segment of consecutive rows, read in place, through the four-tap convolution, and silu.

    p f32 [t, nt], columns [off, off + inner); taps f32 [inner, 4]; carry bf16 [3, inner], the inputs before row 0, oldest first
    -> y bf16 [t, inner]; next bf16 [3, inner], the inputs at positions commit_rows - 3 .. commit_rows - 1; unwritten where commit_rows is 0

S1  x = bf(0 + p)                        (a -0 partial lands as +0)
S2  w = carry, then x: row t's window is w[t .. t + 3]
S3  ca = +0; for j = 0..3: ca = fma(f(w[t + j]), tap_j, ca)
S4  sb = bf(ca)
S5  sig = 1 / (1 + exp(0 - sb))
S6  y = bf(sb * sig)
S7  next = w[commit_rows .. commit_rows + 2]

Current form: each thread walks a run of rows of 8 channels with window and taps in registers, 16-byte loads and stores; of one channel where
they are not 16-byte aligned. Retired: the composition of landing, window copies, batched decode and a copy of the carry.
"""

from collections.abc import Iterator

import numpy as np

from references import _conv
from references.arith import add, as_f32, asc, bf, fma, join, mul, select, sigmoid, zero
from references.contract import Case, schedule
from references.contract.inputs import F32, ordinary, patterns, values

INDEPENDENT = "inner"
BENCH = ({"t": 16896, "nt": 36864, "inner": 12288, "off": 12288, "commit_rows": 16896},)
BLIND = _conv.BLIND


@schedule(
    "p: f32[t, nt:off+inner], taps: f32[inner, 4], carry: bf16[3, inner], off: int, commit_rows: int"
    " -> y: bf16[t, inner], next: bf16[3, inner] if commit_rows > 0",
    version=1,
    requires=("inner >= 1", "off >= 0", "off + inner <= nt", "0 <= commit_rows <= t"),
)
def emulate(p, taps, carry, off, commit_rows):
    p = p[:, off : off + len(taps)]
    x = bf(add(zero(p), p))  # S1
    w = join([carry, x])  # S2
    ca = zero(x)  # S3
    for j in asc(4):  # S3
        ca = fma(select(w, range(j, j + len(x))), taps[:, j], ca)  # S3
    sb = bf(ca)  # S4
    sig = sigmoid(sb)  # S5
    y = bf(mul(sb, sig))  # S6
    return y, select(w, range(commit_rows, commit_rows + 3)) if commit_rows else None  # S7


def cases() -> Iterator[Case]:
    yield Case("minus_zero", "a -0 partial lands as +0; four products of -0 sum to +0", lambda: first_row(*_conv.minus_zero()),
               ("S1.zero:minus_zero", "S3.zero:minus_zero"))
    yield Case("ties", "partials and sums on a bf16 midpoint and beside it, of even and odd neighbours and both signs",
               lambda: segment(*_conv.ties()),
               ("S1.bf:half_away", "S1.bf:truncated", "S4.bf:half_away", "S4.bf:truncated"))
    yield Case("fused", "products that underflow or overflow unless the sum takes them whole", lambda: segment(*_conv.fused()), ("S3.fma:unfused",))
    yield Case("order", "products that cancel or hang by half an ulp: no order but the ascending one lands there", lambda: segment(*_conv.order()),
               ("S3.asc:descending",))
    yield Case("subnormal", "subnormal partials, products, sums and results", lambda: segment(*_conv.subnormal()),
               ("S1.bf:flushed", "S3.fma:flushed", "S4.bf:flushed"))
    yield Case("special", "NaN payloads that narrow to inf or 0 when cut, overflow in each step, inf - inf, inf * 0, silu of -inf",
               lambda: segment(*_conv.special()))
    yield Case("every_silu", "all 65,536 landed sums", every_silu, ("S5.sigmoid:sigmoid_by_tanh", "S6.bf:half_away", "S6.bf:truncated"))
    yield Case("patterns", "every bit pattern alike in every operand", lambda: segment(*_conv.any_bits(1, 512)))
    for t in (1, 2, 3, 15, 16, 17):
        for commit in sorted({0, 1, 2, 3, 4, t - 1, t} & {*range(t + 1)}):
            yield Case(f"rows_{t}_commit_{commit}", f"{t} rows, {commit} of them committed",
                       lambda t=t, commit=commit: drawn(t, t, 20, 16, 4, commit), ("S7.select:early", "S7.select:late") if commit else ())
    yield Case("rows_2000", "2000 rows, many threads' runs", lambda: drawn(2000, 2000, 16, 16, 0, 1999))
    yield Case("stream", "the last 12288 columns of the q, k and v projection's 36864", lambda: drawn(4, 1, 36864, 12288, 24576, 1))
    for name, t, nt, inner, off, why in RAGGED:
        yield Case(name, why, lambda t=t, nt=nt, inner=inner, off=off: drawn(5, t, nt, inner, off, 4))
    yield Case("prefill", "16,896 rows of 12288 channels, half activations, half any bits: sums of which the silu saturates or not", prefill,
               large=True)


RAGGED = (
    ("ragged", 5, 41, 37, 3, "odd offset, width and pitch: no row is 16-byte aligned"),
    ("off_unaligned", 5, 48, 40, 2, "a width of 8s read from an offset that is not a multiple of 4"),
    ("pitch_unaligned", 5, 41, 40, 0, "an odd pitch of p: only every fourth row is 16-byte aligned"),
    ("width_unaligned", 5, 48, 36, 4, "a width that is not a multiple of 8 at an aligned offset"),
    ("one_channel", 5, 1, 1, 0, "one channel"),
)


def segment(carry: np.ndarray, p: np.ndarray, taps: np.ndarray) -> dict:
    """Four rows: a window's inputs as rows, so that the last row convolves them, after a carry of their negatives."""
    return {"p": np.concatenate([as_f32(carry), p[None]]), "taps": taps, "carry": -carry, "off": 0, "commit_rows": 4}


def first_row(carry: np.ndarray, p: np.ndarray, taps: np.ndarray) -> dict:
    """One row, whose window is the carry."""
    return {"p": p[None], "taps": taps, "carry": carry, "off": 0, "commit_rows": 1}


def drawn(seed: int, t: int, nt: int, inner: int, off: int, commit_rows: int) -> dict:
    return {"p": ordinary(3 * seed, (t, nt), dtype=F32), "taps": ordinary(3 * seed + 1, (inner, 4), 0.5, F32),
            "carry": ordinary(3 * seed + 2, (3, inner)), "off": off, "commit_rows": commit_rows}


def every_silu() -> dict:
    """Taps that let the newest input through. What is not finite comes in the last row: it would meet a tap of 0 in the next."""
    p = _conv.finite_first().reshape(64, 1024)
    carry = np.zeros((3, 1024), ordinary(0, (1,)).dtype)
    return {"p": p, "taps": np.tile(values([0, 0, 0, 1], F32), (1024, 1)), "carry": carry, "off": 0, "commit_rows": 61}


def prefill() -> dict:
    half = (16896 // 2, 12288)
    return drawn(7, 16896, 12288, 12288, 0, 16896) | {"p": np.concatenate([ordinary(8, half, dtype=F32), patterns(9, half, F32)])}


def pool(seed: int) -> dict:
    """Sums near a tie, where a last bit anywhere shows, and products around the smallest f32."""
    return segment(*_conv.side_by_side(_conv.near(seed + 2, 1 << 18, 2), _conv.tiny(seed, 2048), _conv.any_bits(seed + 2, 1024)))
