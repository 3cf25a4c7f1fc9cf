"""The gates on what verify leaves behind, on either side: the state after every round, the rows that it replays, the lane of its drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.cp import REL_L2, rel_l2
from conformance.steps import backend, quantiles
from conformance.verify import CONFIG, PROMPT, SCRIPT, Run, model, oracle, played
from references.contract import Kernel
from references.contract.inputs import BF16
from references.contract.mistakes import same_bits
from references.floor import distances
from references.floor.kda_chunk import BOUNDS
from references.k3.backend import Array, Backend, Emulators
from references.k3.bisect import Lockstep
from references.k3.engine import Engine
from references.k3.model import Calls, State
from references.k3.prefill import chunk
from references.k3.verify import layout

FIRST = min(CONFIG.mla)  # below it a layer's rows hang on KDA layers alone
CARRIED = [BOUNDS[f"state: {kernel} ~ truth"] for kernel in ("kda_chunk", "kda_core")]  # their distance is at most the sum of both from the truth


class Segments:
    """A sequence prefilled in given segments."""

    def __init__(self, side: str):
        self.engine, self.state = Engine(model(side), slots=1), State.zeros(CONFIG, backend(side), 1)

    def feed(self, tokens: Sequence[int]) -> None:
        past, upload = int(self.engine.pages.length[0]), self.engine.model.backend.upload
        page, row = map(upload, self.engine.pages.append(0, len(tokens)))
        rows = SimpleNamespace(ids=upload(np.array(tokens, np.int32)), page=page, row=row, past=past, table=upload(self.engine.pages.table))
        chunk(self.engine.model, Calls(self.engine.model.backend), rows, self.state, self.engine.cache, sample=False)


def committed(side: str, rounds: int = len(SCRIPT)) -> tuple[list[str], list[str]]:
    """After every round the state against that of the accepted tokens prefilled in the same segments, and stepped: what is wrong, how far it is.

    Exact: below the first attention layer everything in the same segments, since a segment's rows hang on nothing later and on the state before it;
    and stepped what layer 0 convolves, the landed projections of the embedded tokens themselves. Layer 0's memory, of the same operands, is within
    the floors of kda_chunk and kda_core; in a deeper one the differences of the layers below add up.
    """
    engine, plain, segments = Engine(model(side), slots=1), Engine(model(side), slots=1), Segments(side)
    run, found, far = Run(0, oracle(side)), [], {i: [] for i in engine.state.memory}
    engine.prefill(0, run.tokens[:PROMPT])
    plain.prefill(0, run.tokens[:PROMPT])
    segments.feed(run.tokens[:PROMPT])
    for at in range(rounds):
        replayed = engine.rounds.tails[0].pending
        engine.verify({0: run.drafts(int(engine.pages.length[0]), at)})
        if not replayed:
            continue
        segments.feed(replayed)
        for token in replayed:
            plain.step({0: token})
        got, same, stepped = held(engine, engine.rounds.tails[0].parity), held(segments, segments.state.parity), held(plain, plain.state.parity)
        for i in far:
            if i < FIRST and not all(map(same_bits, got[i], same[i])):
                found.append(f"round {at}, layer {i}: not the state of the same segments")
            far[i].append((got[i][1], stepped[i][1]))
        if not same_bits(got[0][0], stepped[0][0]):
            found.append(f"round {at}, layer 0: not the carries of the same tokens")
    return found + [line for i in far for line in too_far(i, far[i])], [f"state, {side}, layer {i}: {apart(far[i])}" for i in far]


def held(of: Engine | Segments, parity: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Of slot 0, by layer: carries bf16 [3, 3, inner], memory f32 [heads, 128, 128]."""
    download = of.state.backend.download
    return {i: (download(of.state.carry[i][parity, :, 0]).copy(), download(of.state.memory[i][parity, 0]).copy()) for i in of.state.memory}


def too_far(layer: int, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Iterator[str]:
    for got, want in pairs:
        ulp, relative = in_ulp(got, want), rel_l2(got, want)
        common, most = (sum(limits) for limits in zip(*((one.ulp, one.largest) for one in CARRIED), strict=True))
        if layer == 0 and not (np.quantile(ulp, 0.9999) <= common and ulp.max() <= most):
            yield f"layer 0: the memory is {ulp.max():.3g} ulp from the stepped one"
        if not relative <= REL_L2 * max(layer, 1) ** 0.5:
            yield f"layer {layer}: the memory is {relative:.3g} of its length from the stepped one"


def in_ulp(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Of bf16: that of the operands a state is summed from."""
    return distances(got.astype(BF16), want)


def apart(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    return "from plain decoding by " + quantiles(np.concatenate([in_ulp(*pair).reshape(-1) for pair in pairs]))


# Replayed rows


class Outputs:
    """A watch that keeps the results with a row for each of b rows, by call."""

    def __init__(self, device: Backend, b: int):
        self.device, self.b, self.calls, self.seen = device, b, {}, {}

    def __call__(self, place: str, kernel: Kernel, inputs: Mapping[str, Any], outputs: Mapping[str, Array]) -> None:
        number = self.calls[place, kernel.name] = self.calls.get((place, kernel.name), 0) + 1
        for name, array in outputs.items():
            if array.shape[0] == self.b:
                self.seen[f"{place} {kernel.name}#{number} {name}"] = self.device.download(array).copy()


def replays(side: str, rounds: int = len(SCRIPT)) -> list[str]:
    """Replayed rows are bit for bit the rows of the round before that stayed, in every call that takes all rows: the segment begins at the same token
    and state, and later tokens change nothing."""
    engine, run, found, kept = Engine(model(side), slots=1), Run(0, oracle(side)), [], {}
    engine.prefill(0, run.tokens[:PROMPT])
    for at in range(rounds):
        drafts = {0: run.drafts(int(engine.pages.length[0]), at)}
        (part,) = layout(engine.rounds.tails, drafts)
        watch = Outputs(backend(side), part.stop)
        heard = engine.verify(drafts, watch=watch)[0]
        both = [name for name in kept if name in watch.seen]
        assert not part.replay or len(both) > 100, "too few calls are compared"
        found += [f"round {at}: {name} is another" for name in both if not same_bits(kept[name], watch.seen[name][: part.replay])]
        kept = {name: array[part.anchor : part.anchor + 1 + heard.accepted] for name, array in watch.seen.items()}
    return found


def every_landing(side: str) -> list[str]:
    """Every landing within every kernel of four rounds, two sequences beside each other, against the emulator on the same operands."""
    watch, tokens = Lockstep(backend(side), Emulators(), landings=True), oracle(side)
    played(Engine(model(side), slots=2), [Run(0, tokens, SCRIPT[:4]), Run(1, tokens, ((0, None), (6, None), (2, 0), (1, None)), 62)], watch=watch)
    return [str(one) for one in watch.found]
