"""Weights from raw integer hashes: the same bits on every machine, and no file.

Each is named by layer and role; the name seeds its hashes. Deviations are powers of two near 1 / sqrt(k), so that activations stay ordinary.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from math import log2, prod
from types import SimpleNamespace

import numpy as np

from references.contract.inputs import BF16, F32, from_bits, hashed, ordinary
from references.k3.config import HEAD, LATENT, ROW, TAPS, Config

Make = Callable[[int], np.ndarray]  # from a seed


def drawn(prefix: str, makers: dict[str, Make]) -> dict[str, np.ndarray]:
    return {name: make(zlib.crc32(f"{prefix}.{name}".encode()) % (1 << 24)) for name, make in makers.items()}


def layer(config: Config, i: int, upload: Callable = np.asarray) -> SimpleNamespace:
    """The weights of layer i by role, each uploaded as it is made."""
    mixer = mla(config) if i in config.mla else kda(config)
    made = drawn(f"layer {i}", residual(config) | mixer | (dense(config) if i == 0 else routed(config)))
    return SimpleNamespace(**{name: upload(array) for name, array in made.items()})


def ends(config: Config, upload: Callable = np.asarray) -> SimpleNamespace:
    """Embedding, last residual mix and norm, and the head."""
    makers = {"embedding": lambda seed: ordinary(seed, (config.vocab, config.hidden)), "mix": score(config.hidden),
              "norm": gamma(config.hidden), "head": lambda seed: head(seed, config.vocab, config.hidden)}
    return SimpleNamespace(**{name: upload(array) for name, array in drawn("ends", makers).items()})


def draft(config: Config, upload: Callable = np.asarray) -> SimpleNamespace:
    """The drafter's own: norms and projections of a token and, with half the weight, of the features before it. A head for each 128 columns."""
    columns = len(config.taps) * config.hidden // HEAD * 192
    makers = {"norm": gamma(config.hidden), "match": matrix(columns, config.hidden),
              "before_norm": gamma(config.hidden), "before": matrix(columns, config.hidden, 0.5)}
    return SimpleNamespace(**{name: upload(array) for name, array in drawn("draft", makers).items()})


# By kind of layer


def residual(c: Config) -> dict[str, Make]:
    return {"mix": score(c.hidden), "norm": gamma(c.hidden), "mlp_mix": score(c.hidden), "mlp_norm": gamma(c.hidden)}


def kda(c: Config) -> dict[str, Make]:
    return {
        "qkv": matrix(3 * c.inner, c.hidden),
        "taps": lambda seed: ordinary(seed, (3, c.inner, TAPS), 0.5, F32),
        "gate_beta_forget": matrix(c.inner + c.heads + HEAD, c.hidden),
        "forget": matrix(c.inner, HEAD),
        "dt_bias": lambda seed: between(seed, (c.heads, HEAD), 0xC080_0000, 22),  # -4 .. -6: a token fades over tens of tokens
        "a_log": lambda seed: ordinary(seed, (c.heads,), 0.25, F32),
        "go": lambda seed: between(seed, (HEAD,), 0x3F80_0000, 22),  # 1 .. 1.5
        "out": matrix(c.hidden, c.inner),
    }


def mla(c: Config) -> dict[str, Make]:
    return {
        "q_kv_gate": matrix(c.q_lora + ROW + c.inner, c.hidden),
        "q_norm": gamma(c.q_lora),
        "kv_norm": gamma(LATENT),
        "q_b": matrix(c.heads * 192, c.q_lora),
        "kv_b": lambda seed: ordinary(seed, (c.heads, 2 * HEAD, LATENT), deviation(LATENT)),
        "out": matrix(c.hidden, c.inner),
    }


def dense(c: Config) -> dict[str, Make]:
    return {"up": matrix(2 * c.dense, c.hidden), "down": matrix(c.hidden, c.dense, 0.5)}


def routed(c: Config) -> dict[str, Make]:
    held = c.window[1]
    return {
        "router": matrix(c.experts, c.hidden),
        "bias": lambda seed: ordinary(seed, (c.experts,), 0.0625, F32),
        "latent": matrix(c.routed, c.hidden),
        "w13": codes(held, 2 * c.inter, c.routed // 2),
        "s13": scales(held, 2 * c.inter, c.routed),
        "w2": codes(held, c.routed, c.inter // 2),
        "s2": scales(held, c.routed, c.inter),
        "moe_norm": gamma(c.routed),
        "unlatent": matrix(c.hidden, c.routed, 0.0625),
        "shared_up": matrix(2 * c.shared, c.hidden),
        "shared_down": matrix(c.hidden, c.shared, 0.5),
    }


# By kind of weight


def deviation(k: int) -> float:
    return 2.0 ** -round(log2(k) / 2)


def matrix(n: int, k: int, gain: float = 1.0) -> Make:
    return lambda seed: ordinary(seed, (n, k), gain * deviation(k))


def head(seed: int, n: int, k: int) -> np.ndarray:
    """Half of the tokens have logits of a deviation of 1, a quarter of 2, up to 64: so the largest mostly stands clear of the next."""
    draw = hashed(seed + 1, (n, 1)) | np.uint32(64)
    gain = draw & (~draw + np.uint32(1))  # its lowest bit: a power of two, so that the product rounds nothing
    return matrix(n, k)(seed) * gain.astype(BF16)


def gamma(n: int) -> Make:
    """bf16 from 1 to 1.5."""
    return lambda seed: from_bits(0x3F80 + hashed(seed, (n,)) % 0x40)


def score(n: int) -> Make:
    """f32 weights of a residual score, which then has a deviation of about 1."""
    return lambda seed: ordinary(seed, (n,), deviation(n), F32)


def between(seed: int, shape: tuple[int, ...], base: int, bits: int) -> np.ndarray:
    """f32 of the patterns from `base` on, `bits` of them free."""
    return from_bits(base + hashed(seed, shape) % (1 << bits), F32)


def codes(*shape: int) -> Make:
    """Pairs of e2m1 codes, all alike: a deviation of about 3."""
    return lambda seed: hashed(seed, (prod(shape) // 4,)).view(np.uint8).reshape(shape)


def scales(experts: int, n: int, k: int) -> Make:
    """e8m0 scales of 32 codes: two powers of two, so that the products have a deviation of about 1 / sqrt(k)."""
    middle = 127 - 2 + round(log2(deviation(k)))
    return lambda seed: (middle + hashed(seed, (experts, n, k // 32)) % 2).astype(np.uint8)
