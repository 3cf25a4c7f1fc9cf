"""conv_silu: one token a row through the four-tap convolution, and silu.

    p f32 [b, nt], columns [off, off + inner); taps f32 [inner, 4]; carry bf16 [b, 3, inner], oldest input first
    -> y bf16 [b, inner]; next bf16 [b, 3, inner], the carry of the row's next token

S1  x = bf(0 + p)                        (a -0 partial lands as +0)
S2  w_0..w_2 = carry, w_3 = x
S3  ca = +0; for j = 0..3: ca = fma(f(w_j), tap_j, ca)
S4  sb = bf(ca)
S5  sig = 1 / (1 + exp(0 - sb))
S6  y = bf(sb * sig)
S7  next = w_1..w_3

Current form: 8 channels a thread with their taps in registers, rows side by side, 16-byte loads and stores; one channel a thread where they are
not 16-byte aligned. Retired: one channel of one row a thread.
"""

from collections.abc import Iterator

import numpy as np

from references import _conv
from references.arith import add, asc, bf, fma, join, mul, select, sigmoid, zero
from references.contract import Case, schedule
from references.contract.inputs import F32, ordinary, patterns, values

INDEPENDENT = "inner"
BENCH = ({"b": 16896, "nt": 36864, "inner": 12288, "off": 12288},)
BLIND = _conv.BLIND


@schedule(
    "p: f32[b, nt:off+inner], taps: f32[inner, 4], carry: bf16[b, 3, inner], off: int -> y: bf16[b, inner], next: bf16[b, 3, inner]",
    version=1,
    requires=("inner >= 1", "off >= 0", "off + inner <= nt"),
)
def emulate(p, taps, carry, off):
    p = p[:, off : off + len(taps)]
    x = bf(add(zero(p), p))  # S1
    w = join([carry, x[:, None]], axis=1)  # S2
    ca = zero(x)  # S3
    for j in asc(4):  # S3
        ca = fma(w[:, j], taps[:, j], ca)  # S3
    sb = bf(ca)  # S4
    sig = sigmoid(sb)  # S5
    y = bf(mul(sb, sig))  # S6
    return y, select(w, [1, 2, 3], axis=1)  # S7


def cases() -> Iterator[Case]:
    yield Case("minus_zero", "a -0 partial lands as +0; four products of -0 sum to +0", lambda: token(*_conv.minus_zero()),
               ("S1.zero:minus_zero", "S3.zero:minus_zero"))
    yield Case("ties", "partials and sums on a bf16 midpoint and beside it, of even and odd neighbours and both signs", lambda: token(*_conv.ties()),
               ("S1.bf:half_away", "S1.bf:truncated", "S4.bf:half_away", "S4.bf:truncated"))
    yield Case("fused", "products that underflow or overflow unless the sum takes them whole", lambda: token(*_conv.fused()), ("S3.fma:unfused",))
    yield Case("order", "products that cancel or hang by half an ulp: no order but the ascending one lands there", lambda: token(*_conv.order()),
               ("S3.asc:descending",))
    yield Case("subnormal", "subnormal partials, products, sums and results", lambda: token(*_conv.subnormal()),
               ("S1.bf:flushed", "S3.fma:flushed", "S4.bf:flushed"))
    yield Case("special", "NaN payloads that narrow to inf or 0 when cut, overflow in each step, inf - inf, inf * 0, silu of -inf",
               lambda: token(*_conv.special()))
    yield Case("every_silu", "all 65,536 landed sums", every_silu, ("S5.sigmoid:sigmoid_by_tanh", "S6.bf:half_away", "S6.bf:truncated"))
    yield Case("patterns", "every bit pattern alike in every operand", lambda: token(*_conv.any_bits(1, 512)))
    yield Case("stream", "the last 12288 columns of the q, k and v projection's 36864", lambda: drawn(4, 1, 36864, 12288, 24576))
    for name, b, nt, inner, off, why in RAGGED:
        yield Case(name, why, lambda b=b, nt=nt, inner=inner, off=off: drawn(5, b, nt, inner, off))
    yield Case("bucket", "128 rows, the largest decode batch", lambda: drawn(6, 128, 72, 64, 8))
    yield Case("rows", "16,896 rows of 12288 channels, half activations, half any bits: sums of which the silu saturates or not", rows, large=True)


RAGGED = (
    ("ragged", 5, 41, 37, 3, "odd offset, width and pitch: no row is 16-byte aligned"),
    ("off_unaligned", 5, 48, 40, 2, "a width of 8s read from an offset that is not a multiple of 4"),
    ("pitch_unaligned", 5, 41, 40, 0, "an odd pitch of p: only every fourth row is 16-byte aligned"),
    ("width_unaligned", 5, 48, 36, 4, "a width that is not a multiple of 8 at an aligned offset"),
    ("one_channel", 5, 1, 1, 0, "one channel"),
)


def token(carry: np.ndarray, p: np.ndarray, taps: np.ndarray) -> dict:
    """One row."""
    return {"p": p[None], "taps": taps, "carry": carry[None], "off": 0}


def drawn(seed: int, b: int, nt: int, inner: int, off: int) -> dict:
    return {"p": ordinary(3 * seed, (b, nt), dtype=F32), "taps": ordinary(3 * seed + 1, (inner, 4), 0.5, F32),
            "carry": ordinary(3 * seed + 2, (b, 3, inner)), "off": off}


def every_silu() -> dict:
    """Taps that let the newest input through, over a carry of zeros."""
    p = _conv.finite_first().reshape(64, 1024)
    return {"p": p, "taps": np.tile(values([0, 0, 0, 1], F32), (1024, 1)), "carry": np.zeros((64, 3, 1024), ordinary(0, (1,)).dtype), "off": 0}


def rows() -> dict:
    half = (16896 // 2, 12288)
    return drawn(7, 16896, 12288, 12288, 0) | {"p": np.concatenate([ordinary(8, half, dtype=F32), patterns(9, half, F32)])}


def pool(seed: int) -> dict:
    """Sums near a tie, where a last bit anywhere shows, and products around the smallest f32."""
    return token(*_conv.side_by_side(_conv.near(seed + 2, 1 << 18, 2), _conv.tiny(seed, 2048), _conv.any_bits(seed + 2, 1024)))
