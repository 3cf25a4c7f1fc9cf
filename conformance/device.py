"""What the device tests run in the worker process: build, launch, judge. Arguments and results are plain data."""

from __future__ import annotations

import ctypes
import re
import sys
from functools import partial

import goldens
from conformance.compare import compare_all
from conformance.explain import diagnose
from conformance.gate import Prepare, check_device, interior
from conformance.message import Finding
from kernels_cuda import build
from references.contract import Kernel
from references.contract.mistakes import emulate_with, mistakes, moved


def build_all(wanted: list[tuple[str, tuple[str, ...]]]) -> dict[str, float | None]:
    """Build these (kernel, defines), side by side. Seconds by kernel, of its plain build; None where it was there. Errors come with `load`."""
    done = build.build_all([build.Plan(name, defines, build.toolchain()) for name, defines in wanted])
    return {built.plan.name: None if built.cached else built.seconds for built in done if not built.plan.defines and not built.error}


def describe() -> str:
    """What kernels are built with and run on, for the build line of a message."""
    import torch

    tools = build.toolchain()
    release = re.search(r"release [\d.]+, (V[\d.]+)", tools.nvcc)
    gpu = torch.cuda.get_device_properties(0)
    return f"sm_{tools.arch}, nvcc {release[1] if release else tools.nvcc}, {' '.join(build.FLAGS)}, torch {tools.torch}, {gpu.name}"


def probe(name: str) -> None:
    """DeviceLost where what failed left the GPU unusable: torch says so in a RuntimeError as of any other failure. One not used yet is left alone."""
    from kernels_cuda import launch

    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        launch.probe(name)


def prepare(kernel: Kernel, defines: tuple[str, ...] = ()) -> Prepare:
    from kernels_cuda.launch import Prepared

    library = build.load(kernel.name, defines)
    return lambda inputs, layout, traced: Prepared(kernel, library, inputs, layout, traced)


def gate(name: str, case: str, replays: int, limit: int) -> Finding | None:
    """One golden on the device: all forms and layouts, then the landings of the trace build."""
    from kernels_cuda.launch import layouts_of

    kernel, golden = Kernel.load(name), goldens.load(name, case)
    layouts = ("aligned",) if golden.large else layouts_of(kernel)
    trace = prepare(kernel, ("TRACE",)) if interior(golden) else None
    return check_device(kernel, golden, prepare(kernel), trace, layouts, replays, limit)


def mistaken(name: str, k: int) -> tuple[list[str], list[str]]:
    """The goldens that see planted mistake k, and what is wrong with it: it must be the one that its comment names, in every bit."""
    kernel, pair, prepared = Kernel.load(name), build.planted(name)[k], prepare(Kernel.load(name), (f"MISTAKE={k}",))
    return judge_mistake(kernel, pair, prepared)


def judge_mistake(kernel: Kernel, pair: str, prepared: Prepare) -> tuple[list[str], list[str]]:
    stored = [golden for golden in map(partial(goldens.load, kernel.name), goldens.case_names(kernel.name)) if not golden.large]
    planted = {m.schedule: m for golden in stored for m in mistakes(kernel, [golden.inputs]) if m.among([pair])}
    if not planted:
        return [], [f"{pair} cannot happen on any golden"]
    seen, wrong = [], []
    for golden in stored:
        mistake = planted.get(kernel.schedule_of(golden.inputs))
        got = prepared(golden.inputs, "aligned", {}).run(kernel.forms_for(golden.inputs)[0]).outputs
        differences = compare_all(got, emulate_with(kernel, mistake, golden.inputs) if mistake else golden.outputs)
        wrong += [f"{golden.case}: not the bits of {pair}: {difference.headline('device', 'emulator')}" for difference in differences]
        if moved(got, golden.outputs):
            if mistake and not seen and not any(mistake.sentence in line for line in diagnose(kernel, golden.inputs, got)):
                wrong.append(f"{golden.case}: the diagnosis does not name {pair}")
            seen.append(golden.case)
    return seen, wrong


# Bad arguments


def refusals(name: str) -> list[str]:
    """What the launcher of a kernel lets pass, though it must refuse it before any launch; empty where it refuses all."""
    return accepted(Kernel.load(name), build.load(name))


def accepted(kernel: Kernel, library: ctypes.CDLL) -> list[str]:
    """Each argument in turn replaced by a bad one, in a call that is otherwise right: it must come back as a ValueError that names it.

    The pointers point nowhere: whoever launches in spite of a bad argument is found out as well. A bad size may be blamed on the argument
    that it contradicts.
    """
    from kernels_cuda.launch import argument_names

    signature = kernel.signature
    names, sizes = argument_names(signature), {*signature.dims}
    problems = []
    for position, bad in enumerate(_bad(kernel)):
        if bad is not None:
            said = _refusal(kernel, library, position, bad)
            named = f"refuses argument {position + 1}: {names[position]} = "
            if named not in said and not (names[position] in sizes and "refuses argument" in said):
                problems.append(f"{names[position]} = {bad.value}: {said}")
    return problems


def _good(kernel: Kernel) -> list:
    """A call of the smallest golden's sizes on memory that is not there."""
    from types import SimpleNamespace

    from kernels_cuda.launch import arguments

    stored = (goldens.load(kernel.name, case) for case in goldens.case_names(kernel.name))
    whole = (g.inputs for g in stored if not g.large and all(getattr(v, "size", 1) for v in g.inputs.values()))  # no pointer may be spare
    inputs = min(whole, key=lambda values: sum(getattr(v, "size", 1) for v in values.values()))
    sizes = kernel.signature.check(inputs)
    shapes = {o.name: o.shape(sizes) for o in (*kernel.signature.inputs, *kernel.signature.outputs) if o.is_array}
    buffers = {name: SimpleNamespace(pointer=4096 * (i + 1), pitch=shape[-1]) for i, (name, shape) in enumerate(shapes.items())}
    return arguments(kernel.signature, buffers, inputs, sizes, kernel.forms[0], 0)


def _bad(kernel: Kernel) -> list:
    """For each argument one that no call may have: no pointer, a negative number, a form there is not. None: any value is right."""
    wrong = {ctypes.c_void_p: None, ctypes.c_int64: -1, ctypes.c_int: len(kernel.forms)}
    return [type(value)(wrong[type(value)]) if type(value) in wrong else None for value in _good(kernel)[:-1]]


def _refusal(kernel: Kernel, library: ctypes.CDLL, position: int, bad) -> str:
    from kernels_cuda.launch import CudaError, call

    args = _good(kernel)
    args[position] = bad
    try:
        call(library, kernel.name, kernel.signature, args)
    except ValueError as error:
        return str(error)
    except CudaError as error:
        return f"launched: {error}"
    return "accepted"
