"""Time current and retired forms against a device copy of the same bytes: python -m kernels_cuda bench [KERNEL ...]

A kernel module names what is timed: `BENCH = ({"m": 16896, "n": 6144}, ...)`, each with all sizes and scalar arguments. Operands that random
contents do not suit (a block table) come from its `bench_inputs(sizes)`, arrays by name. One with `cost(sizes)` is timed by kernels_cuda/floors.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from kernels_cuda import build
from kernels_cuda.buffers import DEVICE, Buffer
from kernels_cuda.launch import arguments, call, synchronise
from references.contract.kernel import Kernel
from references.contract.signature import DTYPES, Operand

SAMPLES = 40
CACHES = 4  # the inputs of one round fill the L2 this many times over, so no launch finds its own there
COPY_PAGES, COPY_LARGEST = 4 << 20, 768 << 20  # read and written, in 2 MiB pages
ROUND_BYTES = 4 << 30  # moved between two events: about a millisecond, against which a launch is nothing
ROUND_US = 1e4  # and no longer than this: a slow form would take minutes


@dataclass(frozen=True)
class Row:
    """One line of the table; times in us a launch, the current form first. `same` says that both forms gave the same bits."""

    kernel: str
    shape: str
    bytes: int
    times: Mapping[str, float]
    copy: float
    same: bool

    @property
    def fraction(self) -> float:
        return self.copy / next(iter(self.times.values()))

    def __str__(self) -> str:
        current, *others = self.times.values()
        retired = others[-1] if others else current
        numbers = f"{self.bytes / 1e6:9.1f} {retired:10.1f} {current:10.1f} {retired / current:6.2f} {self.copy:9.1f} {self.fraction:8.1%}"
        return f"{self.kernel:16} {self.shape:44} {numbers}  {'same bits' if self.same else 'BITS DIFFER'}"


HEADER = f"{'kernel':16} {'shape':44} {'MB':>9} {'retired us':>10} {'current us':>10} {'ratio':>6} {'copy us':>9} {'of copy':>8}"


class InputSet:
    """Random inputs and the outputs of one launch, on the device."""

    def __init__(self, kernel: Kernel, values: Mapping[str, Any]):
        signature = kernel.signature
        self.kernel, self.values = kernel, values
        given = getattr(kernel.module, "bench_inputs", lambda sizes: {})(values)
        buffers = {o.name: Buffer(o, o.shape(values), guard_bytes=0) for o in signature.inputs if o.is_array}
        self.inputs = {name: buffer.upload(given[name]) if name in given else _random(buffer) for name, buffer in buffers.items()}
        self.outputs = {o.name: Buffer(o, o.shape(values), guard_bytes=0) for o in signature.outputs}

    @property
    def bytes(self) -> int:
        """Each input read once, of a wide one the columns that are used; each output written once."""
        return sum(self._bytes(operand) for operand in (*self.kernel.signature.inputs, *self.kernel.signature.outputs) if operand.is_array)

    def _bytes(self, operand: Operand) -> int:
        shape = operand.shape(self.values)
        columns = self.values[operand.window[1]] if operand.window else shape[-1]
        return prod(shape[:-1]) * columns * DTYPES[operand.dtype].itemsize

    def launcher(self, library, form: str) -> Callable[[], None]:
        import torch

        def launch() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            signature = self.kernel.signature
            call(library, self.kernel.name, signature, arguments(signature, self.inputs | self.outputs, self.values, self.values, form, stream))

        return launch

    def results(self, library, form: str) -> list:
        for buffer in self.outputs.values():
            buffer.poison()
        self.launcher(library, form)()
        return [buffer.raw.clone() for buffer in self.outputs.values()]


def _random(buffer: Buffer) -> Buffer:
    """Bell-shaped floats, any bits for integers."""
    import torch

    floats = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    if buffer.dtype.name in floats:
        drawn = torch.randn(buffer.shape, device=buffer.raw.device).to(floats[buffer.dtype.name]).view(buffer.raw.dtype)
    else:
        drawn = torch.randint(0, 128, buffer.shape, device=buffer.raw.device).to(buffer.raw.dtype)
    buffer.body.copy_(drawn)
    return buffer


def measure(kernel: Kernel, library, values: Mapping[str, Any]) -> Row:
    """Time one shape: every round goes through enough input sets to leave the L2 behind, and the three things timed take turns."""
    import torch

    first = InputSet(kernel, check(kernel, values))
    copied = copy_bytes(kernel, values, first.bytes)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = [first, *(InputSet(kernel, values) for _ in range(ceil(CACHES * cache / first.bytes) - 1))]
    same = same_bits(first, library)
    rounds = {form: [one.launcher(library, form) for one in sets] for form in kernel.forms} | copies(copied, len(sets))
    most = len(sets) * ceil(ROUND_BYTES / (len(sets) * first.bytes))
    launches = {name: min(most, ceil(ROUND_US / median_us(work[0], turns=1, warm=1))) for name, work in rounds.items()}
    medians = timed({name: (capture(work, launches[name]), launches[name]) for name, work in rounds.items()})
    shape = " ".join(f"{name}={value}" for name, value in values.items())
    copy = min(medians["memcpy"], medians["pass"]) * first.bytes / copied
    return Row(kernel.name, shape, first.bytes, {form: medians[form] for form in kernel.forms}, copy, same)


def same_bits(inputs: InputSet, library) -> bool:
    import torch

    first, *others = (inputs.results(library, form) for form in inputs.kernel.forms)
    return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def copies(size: int, sets: int) -> dict[str, list[Callable]]:
    """What moves `size` bytes, read and written, in as many pairs of arrays: the driver's copy, and a kernel that passes words through."""
    import torch

    pairs = [[torch.randint(0, 128, (size // 8,), dtype=torch.int32, device=DEVICE) for _ in range(2)] for _ in range(sets)]
    return {"memcpy": [lambda pair=pair: pair[1].copy_(pair[0]) for pair in pairs],
            "pass": [lambda pair=pair: torch.bitwise_not(pair[0], out=pair[1]) for pair in pairs]}


def copy_bytes(kernel: Kernel, values: Mapping[str, Any], moved: float) -> int:
    """Bytes (read and written) of the copy that stands for the bytes a BENCH entry moves, in whole pages and of no more than COPY_LARGEST.

    The driver's copy of larger or odd arrays falls from 4.2 to 2.7 TB/s on an H200, which would flatter a kernel: for the same reason a kernel
    that passes words through is timed beside it, and the faster of the two is what a kernel is compared with. ValueError for less than a word.
    """
    if moved < 8:
        raise ValueError(f"BENCH of {kernel.name} must move at least 8 bytes, moves {moved:g} at {dict(values)}")
    return min(int(moved) // COPY_PAGES * COPY_PAGES or int(moved) // 8 * 8, COPY_LARGEST)


def check(kernel: Kernel, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A BENCH entry must give every size and scalar of the signature. ValueError names what is missing."""
    signature = kernel.signature
    wanted = (*(o.name for o in signature.arguments if not o.is_array), *signature.dims)
    missing = [name for name in wanted if name not in values]
    if missing:
        raise ValueError(f"BENCH of {kernel.name} must give {', '.join(missing)}, got {dict(values)}")
    return values


def capture(work: list[Callable], launches: int):
    """A CUDA graph of that many launches, over the sets in turn: replays have no gaps between launches."""
    import torch

    for one in work:  # warm-up: modules load and attributes are set outside the capture
        one()
    synchronise("the launches before a capture")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for i in range(launches):
            work[i % len(work)]()
    return graph


def timed(graphs: Mapping[str, tuple[Any, int]], turns: int = SAMPLES) -> dict[str, float]:
    """Median us a launch of each graph, given with its number of launches."""
    import torch

    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(turns + 3):
        for name, (graph, launches) in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            synchronise(f"{launches} launches of {name}")
            if turn >= 3:  # the first turns warm the clocks
                samples[name].append(begin.elapsed_time(end) * 1e3 / launches)
    return {name: statistics.median(times) for name, times in samples.items()}


def median_us(work: Callable[[], Any], turns: int = SAMPLES, warm: int = 3) -> float:
    """Median us of single calls."""
    import torch

    times = []
    for turn in range(turns + warm):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        synchronise("a call that is timed")
        if turn >= warm:
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main(names: list[str], floor: float = 0.0) -> int:
    """Print the tables. 1 where forms differ in bits or the current form stays under `floor` of the copy rate, or of its own floor."""
    import torch

    from kernels_cuda import floors

    chosen = [Kernel.load(name) for name in names or build.names()]
    build.build_all(build.Plan(kernel.name, (), build.toolchain()) for kernel in chosen)
    print(f"{torch.cuda.get_device_name()}, median of {SAMPLES}, inputs rotated through {CACHES} times the L2\n{HEADER}")
    failed = []
    for kernel in sorted(chosen, key=lambda kernel: hasattr(kernel.module, "cost")):
        if hasattr(kernel.module, "cost"):
            print(floors.header(kernel))
        for values in kernel.module.BENCH:
            row = (floors.measure if hasattr(kernel.module, "cost") else measure)(kernel, build.load(kernel.name), values)
            torch.cuda.empty_cache()
            print(row, flush=True)
            if not row.same or row.fraction < floor:
                failed.append(row)
    return 1 if failed else 0
