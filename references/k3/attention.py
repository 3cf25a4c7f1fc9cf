"""Prefill attention from windows: each is attended alone and merged into what the earlier ones gave.

`run(kernel, inputs) -> outputs by name` runs the kernels fmha, lse_merge and o_finalize; `emulators` is one such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from references.contract import Kernel
from references.contract.inputs import BF16, F32

WIDTH = 128  # columns of a head's attention
Run = Callable[[Kernel, Mapping[str, Any]], Mapping[str, np.ndarray]]


def emulators(kernel: Kernel, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return kernel.outputs(inputs)


def attend(run: Run, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """q bf16 [t_q, h, 192], k bf16 [t_kv, h, 192], v bf16 [t_kv, h, 128] -> o bf16 [t_q, h, 128], lse f32 [h, t_q].

    Where there is no key or no query nothing is run: o is +0, lse -inf.
    """
    if not len(q) or not len(k):
        return np.zeros((*q.shape[:2], WIDTH), BF16), np.full(q.shape[1::-1], -np.inf, F32)
    outputs = run(Kernel.load("fmha"), {"q": q, "k": k, "v": v, "scale": scale, "causal": int(causal)})
    return outputs["o"], outputs["lse"]


class Merged:
    """The attention of t queries over all windows merged so far."""

    def __init__(self, run: Run, t: int, h: int):
        self._run, self._first = run, True
        self.acc, self.lse = np.full((t, h, WIDTH), np.nan, F32), np.full((h, t), np.nan, F32)  # the first merge looks at neither

    def merge(self, o: np.ndarray, lse: np.ndarray) -> None:
        inputs = {"acc": self.acc, "lse": self.lse, "o": o, "lw": lse, "reset": int(self._first)}
        outputs = self._run(Kernel.load("lse_merge"), inputs)
        self.acc, self.lse, self._first = outputs["acc_out"], outputs["lse_out"], False

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """o bf16 [t, h, 128], lse f32 [h, t]."""
        return self._run(Kernel.load("o_finalize"), {"acc": self.acc})["o"], self.lse


def cut(tokens: int, size: int) -> tuple[int, ...]:
    """Windows of `size` tokens, the last one shorter where they do not come out even."""
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    whole, rest = divmod(tokens, size)
    return (size,) * whole + (rest,) * (rest > 0)


def windowed(run: Run, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, windows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Causal attention of the last t_q of t_kv tokens: the past in dense windows of these sizes, oldest first, then the causal window.

    q bf16 [t_q, h, 192], k bf16 [t_kv, h, 192], v bf16 [t_kv, h, 128] -> o bf16 [t_q, h, 128], lse f32 [h, t_q].
    ValueError unless the windows are the t_kv - t_q tokens before the queries.
    """
    past = len(k) - len(q)
    if min(windows, default=1) < 1 or sum(windows) != past:
        raise ValueError(f"windows must be positive and sum to t_kv - t_q = {past}, got {list(windows)}")
    merged = Merged(run, *q.shape[:2])
    start = 0
    for size in windows:
        window = slice(start, start + size)
        merged.merge(*attend(run, q, k[window], v[window], scale, causal=False))
        start += size
    merged.merge(*attend(run, q, k[past:], v[past:], scale, causal=True))
    return merged.result()
