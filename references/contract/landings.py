"""What a kernel lands on its way, as the emulator does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from references.arith import bf
from references.arith.site import Laboratory, Visit
from references.contract.kernel import Kernel, stored


def emulate_landings(
    kernel: Kernel, inputs: Mapping[str, Any], faults: Mapping[str, Callable] | None = None
) -> tuple[dict[str, np.ndarray | None], dict[str, np.ndarray]]:
    """Outputs by name and landings by site. The visits of a loop are stacked on a new first axis, or joined flat where their shapes differ."""
    landings: dict[str, list] = {}

    def note(visit: Visit, result: np.ndarray) -> None:
        dtype = getattr(visit.word, "lands", None)
        if dtype:
            result = bf.word(result) if faults and dtype == "bf16" else result  # a skipped landing is no bf16
            landings.setdefault(visit.name, []).append(stored(result, dtype))

    with Laboratory(faults, watch=note):
        outputs = kernel.outputs(inputs)
    return outputs, {name: _visits(results) for name, results in landings.items()}


def tag(site: str) -> int:
    """Place in the schedule: 7 of `S7.bf` and of `S7b.bf`."""
    return int(re.match(r"S(\d+)", site)[1])


def _visits(results: list[np.ndarray]) -> np.ndarray:
    if len(results) == 1:
        return results[0]
    return np.stack(results) if len({result.shape for result in results}) == 1 else np.concatenate([result.reshape(-1) for result in results])
