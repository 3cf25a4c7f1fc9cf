"""Inputs of both transports of the experts. Weights have a period, so that a stored golden is small; no two rows or blocks are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from references.arith import as_f32
from references.arith.quant import e2m1_pack
from references.contract import Case
from references.contract.inputs import BF16, F32, from_bits, hashed, ordinary, spread, values

PERIOD = 4099  # bytes: a prime, so that it fits no row
ONE, FOUR, HALF = 2, 6, 1  # e2m1 codes
FIRST = 5  # of the pool's window


def cases(transport: str) -> Iterator[Case]:
    chain = transport == "chain"
    yield Case("one_token", "one token, two experts", lambda: mixture(1, 2, 2))
    for b in (15, 16, 17, 33):
        yield Case(f"tokens_{b}", f"{b} tokens on 4 experts: tiles of 16 rows cut short, whole, or one over", lambda b=b: mixture(b, 3, 4))
    yield Case("one_expert", "70 entries of one expert, as many as it may have: two tiles of 32 and 6", one_expert, ("S1.members:last_lost",))
    yield Case("window", "ids before, after and far outside the window, -1 among them, their weights NaN", window,
               ("S1.local:clamped", "S1.local:unshifted") + (("S7.choose:never",) if chain else ()))
    yield Case("none_active", "no token has an expert here: +0", none_active, ("S7.zero:minus_zero",) if chain else ())
    yield Case("twice", "a token names an expert in two slots, whose weights cancel", twice,
               ("S7.asc:descending", "S7.fma:unfused") if chain else ("S7.asc:descending",))
    yield Case("nibbles", "codes 0..15, 0..15 in a block, rotated from row to row", nibbles,
               ("S3.mxfp4:high_first", "S3.mxfp4:halves", "S6.mxfp4:high_first", "S6.mxfp4:halves"))
    yield Case("deciding", "of all pairs of gate and up, ones whose activation lies so close to where its code turns that a last bit decides",
               deciding, ("S4.situ.sigmoid.exp:fast_exp", "S4.situ.sigmoid.div:approximate", "S4.situ.div#2:reciprocal", "S4.situ.bf:half_away"))
    yield Case("scales", "weight scales of 2^-127 to 2^125: subnormal weights, infinite sums, infinite activations", scales)
    yield Case("codes", "groups of zeros, of subnormals, at 448 and above it, and spread over 20 binades", codes,
               ("S2.quant:without_floor", "S2.quant.round_up_pow2:rounded_down", "S2.quant.e4m3:no_subnormals", "S2.quant.e4m3:ties_away"))
    yield Case("special", "NaN, infinities and the largest bf16, each in a token of its own", special)
    yield Case("poisoned", "neighbours in a tile, and tokens of no expert, that hold NaN and 3e38", poisoned)
    yield Case("many_groups", "several groups along both products, sized apart", many_groups,
               ("S2.upcast:next_scale", "S2.upcast:one_scale", "S3.mxfp4:next_block", "S5.upcast:next_scale", "S6.mxfp4:row_scale"))
    if not chain:
        yield Case("narrow", "h = 96, inter = 64: chunks of 128 do not fit", lambda: mixture(5, 2, 2, h=96, inter=64))
    yield Case("no_token", "b = 0", lambda: mixture(0, 2, 3))
    yield Case("wide", "40 tokens, 8 experts, h = 1024, inter = 512", lambda: mixture(40, 4, 8, h=1024, inter=512, cap=64), large=True)


def mixture(b: int, k: int, experts: int, h: int = 128, inter: int = 128, cap: int = 0, seed: int = 0) -> dict[str, Any]:
    """Ordinary operands. Of the ids a quarter is outside the window of `experts` from 8 on; every expert has room for all entries."""
    seed = 10 * (seed + b)
    ids = 8 - (experts + 2) // 3 + hashed(seed, (b, k)) % (experts + (experts + 2) // 3 * 2)
    return {"x": ordinary(seed + 1, (b, h)), "ids": ids.astype(np.int32), "w": ordinary(seed + 2, (b, k), 0.5, F32),
            "w13": periodic(seed + 3, (experts, 2 * inter, h // 2)), "s13": scale_codes(seed + 4, (experts, 2 * inter, h // 32)),
            "w2": periodic(seed + 5, (experts, h, inter // 2)), "s2": scale_codes(seed + 6, (experts, h, inter // 32)),
            "first": 8, "cap": cap or max(1, b * k)}


def periodic(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.resize((hashed(seed, (PERIOD,)) & 255).astype(np.uint8), shape)


def scale_codes(seed: int, shape: tuple[int, ...], low: int = 120, high: int = 125) -> np.ndarray:
    return np.resize((low + hashed(seed, (PERIOD,)) % (high - low + 1)).astype(np.uint8), shape)


def one_expert() -> dict:
    return mixture(70, 1, 2) | {"ids": np.full((70, 1), 9, np.int32), "cap": 70}


def window() -> dict:
    drawn = mixture(6, 4, 3)
    ids = np.array([[7, 8, 11, -1], [8, 9, 10, 10], [0, 1, 2, 9], [2**31 - 1, -(2**31), 10, 3], [11, 10, 7, 8], [895, 9, -1, 1]], np.int32)
    inside = (ids >= 8) & (ids < 11)
    return drawn | {"ids": ids, "w": np.where(inside, drawn["w"], F32.type(np.nan))}


def none_active() -> dict:
    return mixture(4, 3, 2) | {"ids": np.array([[-1, 7, 10], [0, 1, 2], [10, 11, 900], [-1, -1, -1]], np.int32)}


def twice() -> dict:
    """The second slot takes the first away, which is 2^18 times the third; in some tokens but for a little."""
    drawn = mixture(24, 3, 2)
    drawn["ids"][:, :2], drawn["ids"][:, 2] = 8, 9
    return drawn | {"w": opposed(drawn["w"])}


def opposed(w: np.ndarray) -> np.ndarray:
    w[:, 0] *= F32.type(2.0**18)
    w[:, 1] = -w[:, 0]
    w[: len(w) // 4, 1] *= F32.type(1 + 2.0**-6)
    return w


def nibbles() -> dict:
    drawn = mixture(4, 2, 2)
    for name in ("w13", "w2"):
        experts, rows, pairs = drawn[name].shape
        drawn[name] = e2m1_pack(((np.arange(2 * pairs) + np.arange(rows)[:, None] + np.zeros((experts, 1, 1), int)) % 16).astype(np.uint8))
    return drawn


def deciding() -> dict:
    """A pair a token, found by trying all: of 2^31 pairs, 2 tell the two exp apart, 2 the sigmoid's quotients, 12 the ones by 25, and 20 are ties."""
    drawn = mixture(4, 1, 1) | {"ids": np.full((4, 1), 8, np.int32), "w": np.ones((4, 1), F32), "x": np.zeros((4, 128), BF16)}
    pairs = from_bits([[0xC0E2, 0x3E5E], [0xBF9D, 0x42B5], [0x3CB0, 0x4157], [0x3BDE, 0x3F9D]])
    drawn["x"][:, :4] = values(halves(as_f32(pairs)))
    for name in ("w13", "w2"):
        drawn[name][:] = 0
    drawn["w13"][0, 0, 0], drawn["w13"][0, 128, 1], drawn["w2"][0, :, 0] = FOUR | HALF << 4, FOUR | HALF << 4, ONE
    drawn["s13"][:], drawn["s2"][:] = 127, 127
    return drawn


def scales() -> dict:
    drawn = mixture(8, 2, 2)
    drawn["ids"] = np.tile(np.array([8, 9], np.int32), (8, 1))
    drawn["s13"][0, ::3], drawn["s13"][0, 1::3] = 0, 60
    drawn["s13"][1, ::2] = 252
    drawn["s2"][0, ::4], drawn["s2"][0, 1::4], drawn["s2"][1, ::2] = 0, 1, 252
    drawn["x"][:3] = spread(7, (3, 128), -126, -100)
    drawn["x"][3:5] = spread(8, (2, 128), 100, 126)
    return drawn


def codes() -> dict:
    """Tokens 0: zeros of both signs; 1: subnormals; 2, 3: 448 and the next bf16, beside ties of e4m3; 4..: spread."""
    drawn = mixture(12, 2, 2)
    drawn["ids"] = np.tile(np.array([8, 9], np.int32), (12, 1))
    x = np.concatenate([from_bits(hashed(9, (2, 128)) & 0x807F), ordinary(10, (2, 128)), spread(11, (8, 128), -16, 4)])
    x[0] = from_bits(hashed(12, (128,)) & 0x8000)
    x[2:4] = values(np.where(np.arange(128) % 2, 1.0625, -1.1875) * 2.0 ** (np.arange(128) % 9))  # ties: 1.0625 to 1, 1.1875 to 1.25
    x[2, ::32], x[3, ::32] = 448, 450
    return drawn | {"x": x}


def special() -> dict:
    drawn = mixture(8, 2, 2)
    drawn["ids"] = np.tile(np.array([8, 9], np.int32), (8, 1))
    for token, number in enumerate(from_bits([0x7FC1, 0x7F80, 0xFF80, 0x7F7F, 0xFF78])):
        drawn["x"][token, 37] = number
    drawn["w"][6, 0], drawn["w"][7, 0] = np.nan, np.inf
    return drawn


def poisoned() -> dict:
    """Tokens 1, 2 and 5 of 8: NaN, 3e38 and infinity. The others share experts with them."""
    drawn = mixture(8, 2, 2)
    drawn["ids"] = np.tile(np.array([8, 9], np.int32), (8, 1))
    drawn["ids"][5] = -1
    drawn["x"][1], drawn["x"][2], drawn["x"][5] = np.nan, values(2.0**127), np.inf
    return drawn


def many_groups() -> dict:
    """256 columns: x and the weights grow from block to block."""
    drawn = mixture(6, 2, 2, h=256, inter=256)
    drawn["ids"] = np.tile(np.array([8, 9], np.int32), (6, 1))
    drawn["x"] = values(as_f32(drawn["x"]) * 2.0 ** (np.arange(256) // 32 * 2 - 12))
    drawn["s13"] = (drawn["s13"] - np.arange(8) // 2).astype(np.uint8)
    drawn["s13"][:, 128:256] -= 9
    return drawn


# Candidates for the search


def pool(seed: int) -> dict[str, Any]:
    """Two experts of 256 units. A unit below 64 of expert 0 has the gate and the up that a token of `exact` chooses, each the sum of two codes.
    Its other units, and expert 1, sum; some of the sums nearly cancel."""
    drawn = mixture(0, 3, 2, h=256, inter=256) | {"first": FIRST, "cap": 1 << 20}
    drawn |= dict(zip(("w13", "s13", "w2", "s2"), pool_weights(drawn), strict=True))
    parts = [exact(seed), scattered(seed, 192), cancelling(seed, 128)]
    return drawn | {name: np.concatenate([part[name] for part in parts]) for name in ("x", "ids", "w")}


def pool_weights(drawn: dict) -> tuple[np.ndarray, ...]:
    w13, s13, w2, s2 = (drawn[name].copy() for name in ("w13", "s13", "w2", "s2"))
    sums = (np.stack([w13 & 15, w13 >> 4], -1)).reshape(*w13.shape[:2], -1)
    downs = (np.stack([w2 & 15, w2 >> 4], -1)).reshape(*w2.shape[:2], -1)
    unit = np.arange(64)
    for half in (0, 1):
        sums[0, 256 * half + unit] = 0
        sums[0, 256 * half + unit, 128 * half + 2 * unit], sums[0, 256 * half + unit, 128 * half + 2 * unit + 1] = FOUR, HALF
        s13[0, 256 * half + unit] = 127
        near = 256 * half + np.arange(64, 128)  # block 7 takes block 0 away again, where x agrees
        sums[0, near, 224:] = sums[0, near, :32] ^ 8
        s13[0, near, 1:7], s13[0, near, 0], s13[0, near, 7] = 121, 137, 137
        small = 256 * half + np.arange(192, 224)
        s13[0, small] = 117
        copies = 256 * half + np.arange(224, 256)
        sums[0, copies], s13[0, copies] = sums[0, copies - 96], s13[0, copies - 96]
    alone = np.arange(128)
    downs[0, :128], s2[0, :128] = 0, 127
    downs[0, alone, alone] = ONE
    downs[0, 192:224, 224:] = downs[0, 192:224, 128:160] ^ 8
    s2[0, 192:224, 4], s2[0, 192:224, 7], s2[0, 192:224, 5:7] = 137, 137, 121
    downs[0, 224:] = 0
    downs[0, np.arange(224, 256), np.arange(192, 224)] = ONE
    s2[0, 224:] = 0
    return e2m1_pack(sums), s13, e2m1_pack(downs), s2


def exact(seed: int) -> dict:
    """Gates and ups of all sizes, each a bf16 that no sum has rounded."""
    g, u = (as_f32(spread(4 * seed + i, (32, 64), -6, 4)) for i in (1, 2))
    ids = np.tile(np.array([FIRST, -1, FIRST + 9], np.int32), (32, 1))
    return {"x": values(np.concatenate([halves(g), halves(u)], axis=1)), "ids": ids, "w": np.tile(F32.type([1, np.nan, 1]), (32, 1))}


def halves(v: np.ndarray) -> np.ndarray:
    """bf16 [m, n] -> [m, 2n] of at most 4 significant bits: v = 4 * first + second / 2, with the weights FOUR and HALF."""
    large = (v.view(np.uint32) & np.uint32(0xFFF00000)).view(np.float32)
    return np.stack([large / 4, (v - large) * 2], -1).reshape(len(v), -1)


def scattered(seed: int, b: int) -> dict:
    """Any ids near the window, x over many binades."""
    x = spread(4 * seed + 3, (b, 256), -9, 2)
    x[b // 2 :, 128:] = values(as_f32(x[b // 2 :, 128:]) * 2.0**-12)
    ids = (FIRST - 2 + hashed(4 * seed + 4, (b, 3)) % 6).astype(np.int32)
    return {"x": x, "ids": ids, "w": ordinary(1000 + 4 * seed, (b, 3), 1.0, F32)}


def cancelling(seed: int, b: int) -> dict:
    """The last block of x is its first; the second slot takes the first away; some weights are tiny."""
    x = ordinary(1001 + 4 * seed, (b, 256))
    x[:, 224:] = x[:, :32]
    w = opposed(ordinary(1002 + 4 * seed, (b, 3), 1.0, F32))
    w[-b // 8 :] *= F32.type(2.0**-126)
    return {"x": x, "ids": np.tile(np.array([FIRST, FIRST, FIRST + 1], np.int32), (b, 1)), "w": w}
