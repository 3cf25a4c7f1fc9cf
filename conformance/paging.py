"""The gates on the paged cache, on either side: which physical page holds a row must not matter, and how far a context reaches must not either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.steps import backend, flips, model, quantiles
from goldens import steps
from goldens.walks import PLANS, Result
from references.contract.inputs import BF16, from_bits, hashed, ordinary
from references.contract.mistakes import same_bits
from references.floor import distances
from references.k3 import prefill
from references.k3.config import PAGE, SMALL
from references.k3.engine import Engine

POOL = 8
TRANSPORT = "moe_chain"
SCRAMBLED = [5, 2, 7, 0, 3, 6, 1, 4]


@dataclass(frozen=True)
class Layout:
    """free: pages in the order they are handed out. fill: what pages hold that nobody wrote. guest: another sequence, which takes the first page."""

    free: list[int]
    fill: str
    guest: bool = False


LAYOUTS = {
    "as_they_come": Layout(list(range(POOL)), "nan"),
    "scrambled": Layout(SCRAMBLED, "nan"),
    "large": Layout(SCRAMBLED[::-1], "large"),
    "others_data": Layout([0, *range(POOL - 1, 0, -1)], "random", guest=True),
    "page_0_of_another": Layout(list(range(POOL)), "nan", guest=True),
}
FILLS: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {
    "nan": lambda shape: np.full(shape, np.nan, BF16),
    "large": lambda shape: np.broadcast_to(from_bits([0x7F7F]), shape),
    "random": lambda shape: ordinary(3, shape),
}


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in hashed(seed, (count,)) % SMALL.vocab]


def served(side: str, layout: Layout, prompt: int = 70, stepped: int = 4, spoil: Callable[[Engine], None] | None = None) -> list[np.ndarray]:
    """The logits of a sequence after its prefill and each of its steps. spoil: is done between the two."""
    given, guest = tokens(1, prompt + stepped), tokens(2, 5 + stepped)
    engine = Engine(model(side, TRANSPORT), slots=2, pool=POOL, free=layout.free)
    device = engine.model.backend
    device.write(engine.cache.rows, FILLS[layout.fill](tuple(engine.cache.rows.shape)))
    if layout.guest:
        engine.prefill(1, guest[:5])
        assert engine.pages.table[1, 0] == layout.free[0] == 0
    found = [device.download(engine.prefill(0, given[:prompt])[0])[0].copy()]
    if spoil:
        spoil(engine)
    for step in range(stepped):
        fed = {0: given[prompt + step]} | ({1: guest[5 + step]} if layout.guest else {})
        found.append(device.download(engine.step(fed)[0])[0].copy())
    return found


def permuted(side: str) -> list[str]:
    """Every layout gives the logits of the first, bit for bit."""
    want, *others = ((name, served(side, layout)) for name, layout in LAYOUTS.items())
    return [
        f"{name}: the logits differ from those of {want[0]} at result {i}"
        for name, got in others for i, (a, b) in enumerate(zip(got, want[1], strict=True)) if not same_bits(a, b)
    ]


def mismapped(side: str) -> bool:
    """Whether two pages of a table, exchanged, change the logits: they must."""

    def exchange(engine: Engine) -> None:
        engine.pages.table[0, :2] = engine.pages.table[0, 1::-1].copy()

    first, second = served(side, LAYOUTS["scrambled"]), served(side, LAYOUTS["scrambled"], spoil=exchange)
    return not same_bits(first[1], second[1])


def long(side: str, last: int, graph: bool = False) -> list[str]:
    """Contexts up to `last`, the last few stepped: finite, the same again on scrambled pages, the same through graphs."""
    given, pool = tokens(4, last), SMALL.pages + 1
    orders = (list(range(pool)), [int(page) for page in np.argsort(hashed(5, (pool,)), kind="stable")])
    runs = [reached(side, given, order, graph and order is orders[1]) for order in orders]
    problems = [f"context {last - 3 + i}: not finite" for i, row in enumerate(runs[0]) if not np.isfinite(row.astype(np.float32)).all()]
    return problems + [f"context {last - 3 + i}: other bits" for i, (a, b) in enumerate(zip(*runs, strict=True)) if not same_bits(a, b)]


def reached(side: str, given: list[int], order: list[int], graph: bool) -> list[np.ndarray]:
    """The logits at the last four contexts."""
    engine = Engine(model(side, TRANSPORT), slots=1, pool=len(order), free=order)
    download = engine.model.backend.download
    found = [download(engine.prefill(0, given[:-3], cap=512)[0])[0].copy()]
    return found + [download(engine.step({0: token}, graph=graph)[0])[0].copy() for token in given[-3:]]


def full(side: str) -> str:
    """What is said where a sequence outgrows its table."""
    engine = Engine(model(side, TRANSPORT), slots=1, pool=SMALL.pages + 1)
    engine.admit(0)
    engine.pages.append(0, SMALL.pages * PAGE)
    try:
        engine.step({0: 1})
    except ValueError as error:
        return str(error)
    return "nothing"


def expanded(side: str) -> tuple[list[str], list[str], str, np.ndarray]:
    """The golden's tokens through expanded attention: tokens beyond the floor, spent on it, the distance of the logits, the bits of both."""
    golden = steps.load(TRANSPORT)
    both = [list(fed(side, golden.tokens.tolist(), attention)) for attention in (None, prefill.mla)]
    absorbed, other = (np.stack([one.logits for one in results]) for results in both)
    told = f"absorbed against expanded attention, {side}, {len(other)} steps: logits apart by {quantiles(distances(other, absorbed))}"
    return *flips(TRANSPORT, both[1]), told, np.stack([absorbed, other]).view(np.uint16)


def fed(side: str, given: list[int], attention: Callable | None):
    engine = Engine(model(side, PLANS[TRANSPORT].transport), slots=1, attention=attention)
    engine.admit(0)
    for step, token in enumerate(given):
        logits, ids = engine.step({0: token})
        yield Result(step, token, backend(side).download(logits)[0].copy(), engine.greedy(ids, 0), {})
