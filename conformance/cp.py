"""The gates on context-parallel prefill, on either side: against one rank, against the goldens, in any order of ranks, in processes of their own."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from unittest import mock

import numpy as np

from conformance.steps import FLOOR, backend, quantiles
from goldens import steps
from goldens.walks import MORE, PLANS, Plan, digest, parallel, walk
from references.contract.mistakes import same_bits
from references.k3 import attention, striped
from references.k3.backend import Array, Emulators
from references.k3.bisect import Lockstep
from references.k3.config import SMALL, Config
from references.k3.cp import Rank, adopt, prefill, prefill_cp
from references.k3.engine import Engine
from references.k3.model import Model
from references.k3.processes import spawned
from references.k3.ranks import Link, Pick, in_process

REL_L2 = 4e-2  # times the root of the layers: what logits may be apart
STATE = 1e-4  # what states may be apart that saw the same tokens: kda_chunk multiplies two bf16 pieces of a number, kda_affine f32


@functools.cache
def model(side: str, config: Config) -> Model:
    return Model(config, backend(side), "moe_chain")


def seat(side: str, plan: Plan) -> Engine:
    return Engine(model(side, plan.config), slots=1, pool=plan.config.pages)


# Against one rank


@dataclass(frozen=True)
class Fed:
    """Logits bf16 [n, vocab] and greedy tokens of a prefill and of the steps after it; the state of layer 0 and its last inputs after the prefill."""

    logits: np.ndarray
    tokens: list[int]
    state: np.ndarray
    inputs: np.ndarray


def fed(side: str, segments: tuple[int, ...]) -> Fed:
    """The plan's prompt, then the tokens that follow it. One segment: by the engine alone, in one chunk."""
    plan = parallel(segments)
    engine, given, first, download = seat(side, plan), plan.tokens(), plan.first + 1, backend(side).download
    alone = len(segments) == 1
    results = [engine.prefill(0, given[:first], first) if alone else prefill_cp(engine, 0, given[:first], segments)]
    state, inputs = (download(held[0][engine.state.parity]).copy() for held in (engine.state.memory, engine.state.carry))
    for token in given[first:]:
        results.append(engine.step({0: token}))
    return Fed(np.stack([download(logits)[0] for logits, _ in results]), [engine.greedy(ids, 0) for _, ids in results], state, inputs)


@functools.cache
def alone(side: str, tokens: int) -> Fed:
    return fed(side, (tokens,))


def against_one(side: str, segments: tuple[int, ...]) -> tuple[list[str], str]:
    """What is wrong with the boundary and the steps after it, and how far the logits are apart.

    Layer 0 has the same inputs on any number of ranks, so its state shows by itself what halos and packages do to it.
    """
    want, got = alone(side, sum(segments)), fed(side, segments)
    bound, state = REL_L2 * np.sqrt(SMALL.layers), rel_l2(got.state, want.state)
    apart = [rel_l2(a, b) for a, b in zip(got.logits, want.logits, strict=True)]
    flips = {i: float(ulps(want.logits[i], want.logits[i].max())[token])
             for i, (token, same) in enumerate(zip(got.tokens, want.tokens, strict=True)) if token != same}
    found = [] if same_bits(got.inputs, want.inputs) else ["layer 0: other inputs are carried"]
    found += [] if state < STATE else [f"layer 0: states apart by {state:.2g} of {STATE:g} (rel_l2)"]
    found += [f"result {i}: logits apart by {one:.2g} of {bound:.2g} (rel_l2)" for i, one in enumerate(apart) if not one < bound]
    found += [] if got.logits[0].argmax() == want.logits[0].argmax() else ["boundary: another argmax"]
    for i, margin in flips.items():
        if i == 0 or margin > FLOOR:
            found.append(f"{f'step {i}' if i else 'boundary'}: token {got.tokens[i]}, of one rank {want.tokens[i]} by {margin:.1f} ulp")
    about = f"{len(segments)} ranks, {sum(segments)} tokens, {side}: boundary logits apart by {apart[0]:.4f} of {bound:.2g} (rel_l2), "
    about += f"{quantiles(ulps(got.logits[0], want.logits[0].max(), want.logits[0]))} of the largest; layer 0's state by {state:.1g}; "
    spent = "".join(f", a flip at a margin of {margin:.1f} ulp" for margin in flips.values())
    return found, f"{about}{len(apart) - 1} steps after it within {max(apart[1:]):.4f}{spent}"


def rel_l2(got: np.ndarray, want: np.ndarray) -> float:
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def ulps(got: np.ndarray, largest: float, want: np.ndarray | None = None) -> np.ndarray:
    """Distances from `want`, or from the largest logit, in its ULP."""
    return np.abs(got.astype(np.float64) - np.float64(largest if want is None else want)) / 2.0 ** (np.frexp(np.float64(largest))[1] - 8)


# Against the emulated schedule


def landings(side: str, case: str) -> list[str]:
    """Every landing within every kernel of every rank, against the emulator on the same operands."""
    plan, watches = PLANS[case], [Lockstep(backend(side), Emulators(), landings=True) for _ in PLANS[case].segments]
    prefill_cp(seat(side, plan), 0, plan.tokens()[: plan.first + 1], plan.segments, watch=watches.__getitem__)
    return [f"rank {rank}, {one}" for rank, watch in enumerate(watches) for one in watch.found]


def orders(side: str, segments: Sequence[int], seeds: int) -> list[str]:
    """Ranks that go on in other orders give other bits."""
    want = boundaries(side, segments, min)
    picks = {"the last first": max} | {f"seed {seed}": random.Random(seed).choice for seed in range(seeds)}
    return [f"{name}: {what}" for name, pick in picks.items() for what in differing(boundaries(side, segments, pick), want)]


def verified(side: str, segments: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The tokens of a few steps after the boundary, and those that rounds with them as drafts commit."""
    plan = parallel(segments)
    stepped, rounds = seat(side, plan), seat(side, plan)
    for engine in (stepped, rounds):
        _, ids = prefill_cp(engine, 0, plan.tokens()[: plan.first + 1], segments)
    own = [stepped.greedy(ids, 0)]
    for _ in range(MORE):
        own.append(stepped.greedy(stepped.step({0: own[-1]})[1], 0))
    given = rounds.verify({0: own[1:4]})[0].tokens
    return own[1:], given + rounds.verify({0: own[5:MORE]})[0].tokens


# In processes of their own


def boundary(link: Link, side: str, segments: tuple[int, ...]) -> dict[str, int] | None:
    """A rank's work: digests of what the last one has."""
    plan = parallel(segments)
    last = prefill(link, model(side, plan.config), plan.tokens()[: plan.first + 1], segments)
    if last is None:
        return None
    engine = seat(side, plan)
    adopt(engine, 0, last)
    return digests(side, engine, last.logits, last.ids)


def digests(side: str, engine: Engine, logits: Array, ids: Array) -> dict[str, int]:
    """Of what a prefill gave and left."""
    arrays, parity = {"logits": logits, "token": ids, "pages": engine.cache.rows}, engine.state.parity
    for i, memory in engine.state.memory.items():
        arrays |= {f"layer {i} inputs": engine.state.carry[i][parity], f"layer {i} state": memory[parity]}
    return {name: digest(backend(side).download(array)) for name, array in arrays.items()}


def boundaries(side: str, segments: Sequence[int], pick: Pick = min) -> dict[str, int]:
    return in_process(lambda link: boundary(link, side, tuple(segments)), len(segments), pick)[-1]


def one_rank(side: str, tokens: int) -> list[str]:
    """One rank gives other bits than the engine alone, in one chunk."""
    plan = parallel((tokens,))
    engine = seat(side, plan)
    return differing(boundaries(side, plan.segments), digests(side, engine, *engine.prefill(0, plan.tokens()[:tokens], tokens)))


def distributed(kind: str, side: str, segments: Sequence[int]) -> dict[str, int]:
    return spawned(boundary, len(segments), kind, side, tuple(segments), seconds=120)[-1]


def gpus() -> int:
    return backend("cuda").torch.cuda.device_count()


def differing(got: dict[str, int], want: dict[str, int]) -> list[str]:
    return [f"{name} differs" for name in want if got[name] != want[name]]


# What must not pass


def transposed(self: Rank, mm: Array, d: Array, start: Array) -> Array:
    """M . S in place of S . M."""
    for rank in range(len(mm)):
        start = self.call("kda_fold", mm=start[None], d=d[rank : rank + 1], state=mm[rank])
    return start


def zeroed(halo: Callable) -> Callable:
    def missing(self: Rank, i: int, p: Array) -> Array:
        before = halo(self, i, p)
        before[:] = 0
        return before

    return missing


def shortened(run: Callable, q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
    return attention.attend(run, q, k, v, scale, causal) if causal else attention.attend(run, q, k[:-1], v[:-1], scale, causal)


PLANTS: dict[str, Callable[[], AbstractContextManager]] = {
    "transposed merge": lambda: mock.patch.object(Rank, "fold", transposed),
    "missing halo": lambda: mock.patch.object(Rank, "halo", zeroed(Rank.halo)),
    "another order of merges": lambda: mock.patch.object(striped, "kept", lambda rank: range((rank + 1) % 2, rank, 2)[::-1]),
    "a window one token short": lambda: mock.patch.object(striped, "attend", shortened),
}


def planted(side: str, plant: str, case: str) -> tuple[str, list[str], str]:
    """What the golden says of a schedule with this mistake, and what the comparison with one rank."""
    with PLANTS[plant]():
        named = steps.load(case).problem(next(walk(PLANS[case], backend(side), PLANS[case].tokens())))
        found, told = against_one(side, PLANS[case].segments)
    return named, found, f"{plant}: {told}"
