"""8- and 4-bit codecs and the activation quantiser.

Codes are uint8; decoding gives float32. Values of a small format travel as the f32 they stand for, like bf16. The rules stand here and
not in ml_dtypes, which rounds f64 to e4m3 twice, overflows e4m3 to NaN and casts 0 to e8m0 255.

| format | sign, exponent, fraction bits | smallest normal | largest | NaN        |
|--------|-------------------------------|-----------------|---------|------------|
| e4m3   | 1, 4, 3                       | 2^-6            | 448     | 0x7f, 0xff |
| e2m1   | 1, 2, 1                       | 1               | 6       | none       |
| e8m0   | 0, 8, 0                       | 2^-127          | 2^127   | 0xff       |
"""

from __future__ import annotations

import numpy as np

from references.arith.ieee import absolute, amax, div, maximum
from references.arith.site import landing, site


def _encode(x: np.ndarray, lowest: int, fraction: int, largest: float) -> np.ndarray:
    """Code without sign of |x|: nearest even, saturating; one rounding, because steps of 2^k are counted exactly in f64."""
    size = np.fmin(np.abs(np.asarray(x, np.float64)), largest)
    exponent = np.where(size == 0, lowest, np.maximum(np.frexp(size)[1] - 1, lowest))
    steps = np.rint(np.ldexp(size, fraction - exponent)).astype(np.int64)
    return (((exponent - lowest) << fraction) + steps).astype(np.uint8)  # a carry out of the fraction is the next exponent


def _decode(code: np.ndarray, lowest: int, fraction: int) -> np.ndarray:
    """f32 value of a code without sign."""
    exponent, rest = np.asarray(code, np.int64) >> fraction, np.asarray(code, np.int64) & ((1 << fraction) - 1)
    whole = rest + ((exponent > 0) << fraction)
    return np.ldexp(whole.astype(np.float32), np.maximum(exponent, 1) - 1 + lowest - fraction)


def _floats(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float64):
        raise ValueError(f"x: float32 or float64 expected, got {x.dtype}")
    return x


def _codes(code: np.ndarray, limit: int = 255) -> np.ndarray:
    code = np.asarray(code)
    if code.dtype != np.uint8 or (code.size and code.max() > limit):
        raise ValueError(f"code: uint8 up to {limit} expected, got {code.dtype} up to {code.max(initial=0)}")
    return code


def e4m3_encode(x: np.ndarray) -> np.ndarray:
    """f32 or f64 -> e4m3 codes as `__nv_cvt_float_to_fp8(SATFINITE, E4M3)`: +-448 at most (inf too), nearest even, every NaN 0x7f."""
    x = _floats(x)
    code = _encode(x, -6, 3, 448.0) | (np.signbit(x).astype(np.uint8) << np.uint8(7))
    return np.where(np.isnan(x), np.uint8(0x7F), code)


def e4m3_decode(code: np.ndarray) -> np.ndarray:
    """e4m3 codes -> f32."""
    code = _codes(code)
    value = np.where((code & 0x7F) == 0x7F, np.float32(np.nan), _decode(code & 0x7F, -6, 3))
    return np.where(code >> 7, -value, value)


def e2m1_encode(x: np.ndarray) -> np.ndarray:
    """f32 or f64 -> e2m1 codes 0..15, nearest even, +-6 at most. The format has no NaN: ValueError."""
    x = _floats(x)
    if np.isnan(x).any():
        raise ValueError("x: NaN has no e2m1 code")
    return _encode(x, 0, 1, 6.0) | (np.signbit(x).astype(np.uint8) << np.uint8(3))


def e2m1_decode(code: np.ndarray) -> np.ndarray:
    """e2m1 codes 0..15 -> f32."""
    code = _codes(code, 15)
    value = _decode(code & 7, 0, 1)
    return np.where(code >> 3, -value, value)


def e2m1_pack(code: np.ndarray) -> np.ndarray:
    """Codes [..., 2n] -> bytes [..., n]: element 2i in the low nibble of byte i, element 2i + 1 in the high one."""
    code = _codes(code, 15)
    if code.shape[-1] % 2:
        raise ValueError(f"code: an even last axis expected, got {code.shape[-1]}")
    return code[..., 0::2] | (code[..., 1::2] << np.uint8(4))


def e2m1_unpack(pairs: np.ndarray) -> np.ndarray:
    """Bytes [..., n] -> codes [..., 2n], low nibble first."""
    pairs = _codes(pairs)
    return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], -1).reshape(*pairs.shape[:-1], -1)


def e8m0_encode(scale: np.ndarray) -> np.ndarray:
    """f32 or f64 powers of two 2^-127..2^127 -> codes; NaN -> 255. Anything else is a ValueError: a scale is never rounded here."""
    scale = _floats(scale)
    half, exponent = np.frexp(scale)
    fits = (half == 0.5) & (exponent >= -126) & (exponent <= 128)
    if np.any(~fits & ~np.isnan(scale)):
        raise ValueError(f"scale: a power of two in 2^-127..2^127 expected, got {scale[~fits & ~np.isnan(scale)].flat[0]!r}")
    return np.where(fits, exponent + 126, 255).astype(np.uint8)


def e8m0_decode(code: np.ndarray) -> np.ndarray:
    """e8m0 codes -> f32 2^(code - 127), code 0 a subnormal; 255 is NaN."""
    code = _codes(code)
    return np.where(code == 255, np.float32(np.nan), np.ldexp(np.float32(1), np.minimum(code, 254).astype(np.int32) - 127))


@landing
def e4m3(x: np.ndarray) -> np.ndarray:
    """f32 -> the f32 values of its e4m3 codes; clamped to +-448, NaN kept."""
    return e4m3_decode(e4m3_encode(x))


@site
def round_up_pow2(x: np.ndarray) -> np.ndarray:
    """Smallest power of two >= x, for normal positive f32; inf stays."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFFFF)) & np.uint32(0x7F800000)).view(np.float32)


@site
def quant(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """x f32 [..., n] -> (q f32 [..., n] of e4m3 values, scale f32 [..., n / group] of powers of two); x is about q * scale.

    scale = round_up_pow2(max(amax, 1e-10) / 448) per group of neighbours, q = e4m3(x / scale). All-zero groups get 2^-42.
    ValueError where `group` does not divide n.
    """
    if group < 1 or x.shape[-1] % group:
        raise ValueError(f"group: a divisor of {x.shape[-1]} expected, got {group}")
    grouped = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scale = round_up_pow2(div(maximum(amax(absolute(grouped)), 1e-10), 448))
    return e4m3(div(grouped, scale[..., None])).reshape(x.shape), scale
