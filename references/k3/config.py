"""The model's numbers: K3, and a small model with the kernels' own geometry."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Integral

from references.contract.inputs import F32, values

HEAD, LATENT, ROPE, TAPS, PAGE = 128, 512, 64, 4, 64  # fixed in the kernels
ROW = LATENT + ROPE  # of the paged cache
TRANSPORTS = ("moe_chain", "moe_mega")


@dataclass(frozen=True)
class Config:
    """block: layers between snapshots of the residual. window: first and number of the experts held here.

    split: partials of a projection that is landed; one that a kernel reads as f32 has a single one. pages: of a slot's table.
    tokens: the most a prefill chunk takes. past: tokens of a window of the past in prefill attention.
    taps: layers whose outputs are the features of a draft lane. drafts: the most that a round verifies of a sequence.
    """

    layers: int
    hidden: int
    heads: int
    q_lora: int
    dense: int
    experts: int
    top_k: int
    window: tuple[int, int]
    routed: int
    inter: int
    shared: int
    vocab: int
    block: int
    split: int
    pages: int
    tokens: int
    past: int
    taps: tuple[int, ...]
    drafts: int = 6
    buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
    eps: float = float(F32.type(1e-5))
    routing: float = 2.5  # scale of the routing weights
    scale: float = float(values(0.072265625))  # 192^-0.5 as bf16

    @property
    def inner(self) -> int:
        """Columns of all heads."""
        return self.heads * HEAD

    @property
    def mla(self) -> tuple[int, ...]:
        """The layers that attend to the cache; the others carry a state."""
        return tuple(i for i in range(self.layers) if i % 4 == 3 or i == self.layers - 1)

    def check_tokens(self, tokens: Collection[int]) -> None:
        """ValueError where one is not of the vocabulary."""
        integers = all(issubclass(kind, Integral) for kind in {*map(type, tokens)})  # asked once a type: a prompt has 10^5 tokens
        for token in tokens:
            if not (integers or isinstance(token, Integral)) or not 0 <= token < self.vocab:
                raise ValueError(f"token must be an integer of 0 .. {self.vocab - 1}, got {token}")

    def bucket(self, rows: int) -> int:
        """The smallest bucket of at least this many rows. ValueError where there is none."""
        for bucket in self.buckets:
            if rows <= bucket:
                return bucket
        raise ValueError(f"rows must be at most {self.buckets[-1]}, got {rows}")


K3 = Config(
    layers=93, hidden=7168, heads=96, q_lora=1536, dense=33792, experts=896, top_k=16, window=(0, 896), routed=3584, inter=3072, shared=6144,
    vocab=163840, block=12, split=4, pages=4096, tokens=8192, past=8192, taps=(2, 46, 89),
)
# One layer of each kind at K3's width (dense KDA, routed KDA, routed MLA), a quarter of 224 experts held.
WIDE = replace(K3, layers=3, experts=224, window=(56, 56), vocab=4096, pages=4, taps=(0, 1, 2), buckets=(1,))
# KDA KDA KDA MLA; the first layer is dense; two snapshots; every expert width a whole number of quantisation groups.
SMALL = Config(
    layers=4, hidden=256, heads=2, q_lora=128, dense=512, experts=16, top_k=4, window=(0, 16), routed=128, inter=128, shared=256,
    vocab=512, block=2, split=2, pages=17, tokens=64, past=32, taps=(1, 3),
)
