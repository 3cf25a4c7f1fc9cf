"""The pool that the searches of mla_paged draw from: rows that make a last bit show, over weights and pages which all of them share."""

from __future__ import annotations

import numpy as np

from references._mla import KEYS, MORE, PAGE, ROPE, VALUES, Part, asked, lengths, pages, probes, request, weights
from references.contract.inputs import BF16, from_bits, hashed, ordinary, spread, values


def pool_weights() -> np.ndarray:
    """UV of head 0 lets values through; head 1 multiplies them by 1.5, which makes ties, and sums them where they cancel."""
    w = np.concatenate([weights(1, 61), weights(1, 63)])
    w[0, :128, MORE] = ordinary(65, (128, 16), 0.125)
    w[1, :128, KEYS] = 0
    w[1, range(16), range(16)], w[1, range(16, 32), range(16)] = 1, 2.0**-7
    w[1, 128:, VALUES] *= values(1.5)
    w[1, 224:, VALUES], w[1, 224:, MORE] = ordinary(66, (32, 128)), ordinary(67, (32, 16))
    w[1, 224:, 64], w[1, 224:, 256] = 2.0**12, -(2.0**12)
    w[0, 0, KEYS], w[0, 127, KEYS] = 2.0**10, -(2.0**10)
    return w


def pool_pages() -> np.ndarray:
    """0, 1, 8: probes; 2, 3: keys without values; 4: probes whose dot products cancel; 5, 6: stairs; 7: values that cancel; 9: subnormal values."""
    rows = np.concatenate([probes(70, 2), pages(74, 2), probes(78, 3), pages(82, 1), probes(86, 1), pages(90, 1)])
    rows[2:4, :, VALUES] = 0
    rows[4, :, 512] = spread(94, (PAGE,), 9, 12)
    rows[4, :, 522] = -rows[4, :, 512]
    rows[4, :, MORE], rows[7, :, MORE] = ordinary(95, (PAGE, 16)), ordinary(96, (PAGE, 16))
    rows[5:7, :, KEYS], rows[5:7, :, ROPE] = 0, 0
    rows[5:7, :, 552] = from_bits(0x3F78 + hashed(97, (2, PAGE)) % 8)  # just below 1
    rows[5:7, 40:, 552] = from_bits(0x3E00 + hashed(98, (2, 24)) % 0x100)  # 1/8 .. 1/2
    rows[5:7, 0, 552] = 0
    rows[7, 63] = rows[7, 0]
    rows[7, 0, VALUES], rows[7, 63, VALUES] = 2.0**12, -(2.0**12)
    rows[7, :, 256] = rows[7, :, 64]
    rows[8, :, KEYS], rows[8, :, 513:528] = 0, 0
    rows[9, :, VALUES] = from_bits(hashed(99, (PAGE, 128)) % 0x100 + 0x8000 * (hashed(100, (PAGE, 128)) % 2))
    return rows


def candidates(*parts: Part) -> dict:
    q, table, context = (np.concatenate(part) for part in zip(*parts, strict=True))
    return request(q, pool_weights(), pool_pages().reshape(-1), table, context)


def probing(seed: int, b: int) -> Part:
    """Two pages that show 128 probabilities, and up to three whose keys only weigh."""
    table = np.array([[0, 1, 2, 3, 2], [2, 0, 3, 1, 3], [8, 1, 2, 3, 3], [3, 2, 2, 0, 1]])[hashed(200 + 9 * seed, (b,)) % 4]
    return asked(201 + 9 * seed, b, 4.0), table, lengths(202 + 9 * seed, b, 129, 320)


def tiny(seed: int, b: int) -> Part:
    """Subnormal values under probabilities down to 2^-30."""
    return asked(203 + 9 * seed, b, 16.0), np.tile([9, 2, 9, 3, 9], (b, 1)), lengths(204 + 9 * seed, b, 64, 320)


def stairs(seed: int, b: int) -> Part:
    """A key of score 0 and many of about -16.7, whose weight is just below half an ulp of 1: each vanishes alone, together they do not."""
    q = np.zeros((b, 2, 192), BF16)
    q[..., 168] = from_bits(0xC360 + hashed(205 + 9 * seed, (b, 2)) % 0x10)  # -224 .. -239
    table = np.array([[5, 6, 6, 5, 6], [6, 5, 5, 6, 6]])[hashed(206 + 9 * seed, (b,)) % 2]
    return q, table, lengths(207 + 9 * seed, b, 100, 320)


def cancelling(seed: int, b: int) -> Part:
    """Dot products of which two terms cancel; values that do, under scores close together."""
    q = asked(208 + 9 * seed, b, 2.0)
    q[..., 138] = q[..., 128]
    q[1::2, :, 128:], q[1::2, 1, :128] = q[1::2, :, 128:] * values(0.25), 0
    table = np.array([[4, 2, 3, 4, 1], [7, 2, 3, 2, 3]])[np.arange(b) % 2]
    return q, table, lengths(209 + 9 * seed, b, 64, 200)
