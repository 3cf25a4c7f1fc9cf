"""Which chain a vendor GEMM is: the order that reproduces it, for the projections of K3 over batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from references.arith import add, as_bf16, bf, gemm
from references.probe.device import Device

ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096)
PROJECTIONS = {  # K3: output width, k
    "mla [q_a|kv_a|gate]": (14400, 7168),
    "mla q_b": (18432, 1536),
    "attention out": (7168, 12288),
    "kda q, k or v": (12288, 7168),
    "dense gate|up": (67584, 7168),
    "dense down": (7168, 33792),
    "moe latent down": (3584, 7168),
    "moe latent up": (7168, 3584),
    "router": (896, 7168),
    "q lora": (1536, 7168),
    "lm head": (163840, 7168),
}
SPLITS = 16  # the sweep tries 1 .. SPLITS parts
TILES = (64, 128, 32, 16)  # 64 first: it explains every product recorded on sm_90, and tiles that give the same parts are not told apart
KEPT_ROWS = (1, 16, 128, 1024)  # batch sizes recorded for tests
KEPT_EVEN, KEPT_COLUMNS = 16, 8


@dataclass(frozen=True)
class Order:
    """k is cut into `splits` consecutive parts of equally many tiles of `tile`, the last part shorter; their f32 chains are added in order.

    Measured on an H200: (m, n, k) = (16, 896, 7168) is 23, 23, 23, 23 and 20 tiles of 64; no other width of up to 16 parts reproduces it.
    """

    splits: int
    tile: int = 64

    def __post_init__(self) -> None:
        if self.splits < 1:
            raise ValueError(f"splits must be positive, not {self.splits}")
        if self.tile < 16 or self.tile % 16:
            raise ValueError(f"tile must be a positive multiple of 16, not {self.tile}")

    def part(self, k: int) -> int:
        """The width of every part but the last."""
        return -(-k // (self.tile * self.splits)) * self.tile

    def even(self, k: int) -> bool:
        """The last part is as wide as the others; then many tiles give this order."""
        return self.part(k) * self.splits == k

    def name(self, k: int) -> str:
        """`4`: four equal parts. `7u64`: seven unequal parts of whole tiles of 64."""
        return f"{self.splits}" if self.even(k) else f"{self.splits}u{self.tile}"


def orders(k: int) -> list[Order]:
    """Every way to cut k that the sweep tries, each once."""
    by_part: dict[int, Order] = {}
    for tile in TILES:
        for splits in range(1, SPLITS + 1):
            part = Order(splits, tile).part(k)
            if -(-k // part) == splits:  # else whole tiles fill fewer parts
                by_part.setdefault(part, Order(splits, tile))
    return list(by_part.values())


def merged(slices: dict[str, np.ndarray], order: Order) -> np.ndarray:
    """The product of slices a [rows, k] and b [columns, k] in this order: f32 [rows, columns]."""
    a, b = slices["a"], slices["b"]
    k, part = a.shape[1], order.part(a.shape[1])
    return reduce(add, (gemm(a[:, start : start + part], b[:, start : start + part])[0] for start in range(0, k, part)))


@dataclass(frozen=True)
class Product:
    """What one vendor GEMM turned out to be. `order` None: none of `orders` reproduces it. `lands`: bf16 output == landed f32 output."""

    name: str
    m: int
    n: int
    k: int
    order: Order | None
    compared: int
    lands: bool
    slices: dict[str, np.ndarray]

    def cell(self) -> str:
        """What the sweep prints: the order's name or `-`, and `*` where the bf16 output is not the landed f32 output."""
        return (self.order.name(self.k) if self.order else "-") + ("" if self.lands else "*")

    def summary(self) -> dict[str, str | int | bool]:
        """As in probe.json; split and tile are 0 where no order is known."""
        split, tile = (self.order.splits, self.order.tile) if self.order else (0, 0)
        shape = {"name": self.name, "m": self.m, "n": self.n, "k": self.k}
        return shape | {"split": split, "tile": tile, "compared": self.compared, "lands": self.lands}


def sweep(device: Device, rows: tuple[int, ...] = ROWS) -> Iterator[Product]:
    """Batch sizes over the projections; a few rows and 64 columns of each product are emulated."""
    for name, (n, k) in PROJECTIONS.items():
        for m in rows:
            picked = np.unique(np.array([0, m // 2, m - 1]))
            slices = device.vendor(m, n, k, picked, np.arange(0, n, n // 64)[:64])
            order = next((order for order in orders(k) if same(merged(slices, order), slices["f32"])), None)
            lands = same(as_bf16(bf(slices["f32"])), slices["bf16"])
            yield Product(name, m, n, k, order, slices["f32"].size, lands, slices)


def samples(found: list[Product]) -> dict[str, np.ndarray]:
    """Products kept for tests, as bits: `i.a`, `i.b` bf16, `i.f32`, `i.bf16`; splits[i] and tiles[i] are the order of the i-th."""
    known = [one for one in found if one.order and one.m in KEPT_ROWS]
    even = [one for one in known if one.order.even(one.k) and one.k <= 7168]  # wider ones would only fill the file
    kept = even[:KEPT_EVEN] + [one for one in known if not one.order.even(one.k)]
    cut = {"a": np.s_[:], "b": np.s_[:KEPT_COLUMNS], "f32": np.s_[:, :KEPT_COLUMNS], "bf16": np.s_[:, :KEPT_COLUMNS]}
    arrays = {f"{i}.{key}": bits(one.slices[key][part]) for i, one in enumerate(kept) for key, part in cut.items()}
    arrays["splits"] = np.array([one.order.splits for one in kept], np.uint8)
    arrays["tiles"] = np.array([one.order.tile for one in kept], np.uint8)
    return arrays


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(bits(a), bits(b))
