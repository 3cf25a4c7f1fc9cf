"""Time kernels that are no copy, against what they cannot do without: bytes at this GPU's copy rate, flops at its matrix rate.

A kernel module states both: `def cost(sizes) -> {"bytes": ..., "flops": ...}`, each input once and each product once, whatever the form does.
Both rates are measured in the same run, and for what is too small to reach one, the time of a copy of as many bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from kernels_cuda.bench import CACHES, COPY_LARGEST, SAMPLES, InputSet, capture, check, copies, copy_bytes, median_us, same_bits, timed
from kernels_cuda.buffers import DEVICE
from references.contract.kernel import Kernel

MATRIX = 8192  # rows and columns of the product that stands for the matrix rate: 1.1e12 flops, well past launch and tail effects
SAMPLE_US = 1000.0  # between two events: a launch is nothing against it
FORM_US = 2e6  # all samples of a form; slow ones get fewer
FEWEST = 5


@dataclass(frozen=True)
class Rates:
    """copy: bytes read and written a second; matrix: bf16 flops a second, f32 accumulation."""

    copy: float
    matrix: float

    def floor_us(self, cost: Mapping[str, float]) -> tuple[float, float]:
        """The time that the bytes take, and the flops."""
        return cost["bytes"] / self.copy * 1e6, cost.get("flops", 0) / self.matrix * 1e6


@dataclass(frozen=True)
class Row:
    """One line of the table; times in us a launch, the current form first. `copy`: of a copy of as many bytes. `same`: forms that must agree did."""

    kernel: str
    shape: str
    floors: tuple[float, float]
    copy: float
    times: Mapping[str, float]
    same: bool

    @property
    def fraction(self) -> float:
        return max(self.floors) / next(iter(self.times.values()))

    def __str__(self) -> str:
        current, *others = self.times.values()
        numbers = f"{self.floors[0]:9.1f} {self.floors[1]:9.1f} {self.copy:9.1f} {current:12.1f} {self.fraction:8.1%}"
        slower = "".join(f" {time:12.1f} {time / current:7.1f}" for time in others)
        return f"{self.kernel:16} {self.shape:36} {numbers}{slower}{'' if self.same else '  BITS DIFFER'}"


def header(kernel: Kernel) -> str:
    current, *others = kernel.forms
    rates = measure_rates()
    said = f"copy {rates.copy / 1e12:.2f} TB/s, bf16 {MATRIX}^3 product {rates.matrix / 1e12:.0f} Tflop/s; floors in us"
    names = "".join(f" {form + ' us':>12} {'ratio':>7}" for form in others)
    return f"{said}\n{'kernel':16} {'shape':36} {'bytes':>9} {'flops':>9} {'copy us':>9} {current + ' us':>12} {'of floor':>8}{names}"


def shape_text(values: Mapping[str, Any], among: tuple[Mapping[str, Any], ...]) -> str:
    """What tells this entry from the others of its kernel's BENCH."""
    told = [name for name in values if len(among) == 1 or any(other.get(name) != values[name] for other in among)]
    return " ".join(f"{name}={values[name]}" for name in told)


@functools.cache
def measure_rates() -> Rates:
    import torch

    source, target = (torch.empty(COPY_LARGEST // 2, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    a, b = (torch.randn(MATRIX, MATRIX, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    copy, matrix = (median_us(work) for work in (lambda: target.copy_(source), lambda: torch.matmul(a, b, out=out)))
    return Rates(COPY_LARGEST / copy * 1e6, 2 * MATRIX**3 / matrix * 1e6)


def plan(us: float, sets: int) -> tuple[int, int]:
    """Launches of a sample, whole rounds through the input sets unless one launch is a sample; and samples."""
    launches = 1 if us >= SAMPLE_US else sets * ceil(SAMPLE_US / (sets * us))
    return launches, max(FEWEST, min(SAMPLES, int(FORM_US / (launches * us))))


def measure(kernel: Kernel, library, values: Mapping[str, Any]) -> Row:
    """Time every form at one shape, on inputs that no launch finds in the L2."""
    import torch

    cost = kernel.module.cost(check(kernel, values))
    copied = copy_bytes(kernel, values, cost.get("bytes", 0))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = [InputSet(kernel, values) for _ in range(ceil(CACHES * cache / cost["bytes"]))]
    copy = min(launch_us(work) for work in copies(copied, len(sets)).values()) * cost["bytes"] / copied
    times = {form: launch_us([one.launcher(library, form) for one in sets]) for form in kernel.forms}
    same = bool(kernel.signature.form) or same_bits(sets[0], library)
    return Row(kernel.name, shape_text(values, kernel.module.BENCH), measure_rates().floor_us(cost), copy, times, same)


def launch_us(work: list[Callable]) -> float:
    """Median us of a launch, of launches that take turns."""
    launches, turns = plan(median_us(work[0], turns=1, warm=1), len(work))
    return timed({"": (capture(work, launches), launches)}, turns)[""]
