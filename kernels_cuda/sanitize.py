"""Run small cases of every kernel under compute-sanitizer: python -m kernels_cuda sanitize [KERNEL ...]"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kernels_cuda import build
from kernels_cuda.launch import Prepared, layouts_of
from kernels_cuda.toolchain import BuildError
from references.contract.kernel import Kernel

# Of API calls memcheck would also report those that torch makes to see whether they fail; ours return a status that is checked.
TOOLS = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}
SHOWN_LINES = 40
FAULT = 9  # the exit code asked for where the tool finds something; a case that fails by itself ends with another
ELEMENTS = 1 << 20  # input elements of a case at most: under the tool a kernel runs some hundred times slower
SECONDS = 300
AT_ONCE = 4


def exercise(name: str) -> int:
    """Run the small cases in every form and layout, without guard bands, which would hide a small overrun from the tool."""
    kernel = Kernel.load(name)
    library, runs = build.load(name), 0
    for case in kernel.cases():
        inputs = None if case.large else case.make()
        if inputs is None or sum(np.size(value) for value in inputs.values()) > ELEMENTS:
            continue
        for form, layout in itertools.product(kernel.forms_for(inputs), layouts_of(kernel)):
            Prepared(kernel, library, inputs, layout, guard_bytes=0).run(form)
            runs += 1
    print(f"runs {runs}")
    return 0 if runs else 1


def sanitize(tool: str, name: str) -> tuple[bool, str]:
    """Whether the tool found nothing, and a line that says so (or what it found first)."""
    options = ["--tool", tool, *TOOLS[tool], "--show-backtrace", "device", "--error-exitcode", str(FAULT)]
    command = ["compute-sanitizer", *options, sys.executable, "-m", "kernels_cuda", "exercise", name]
    # torch's allocator would put many arrays into one block, in which the tool sees no overrun
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return False, f"{name:16} {tool:10} NOT FINISHED in {SECONDS} s"
    lines = done.stdout.splitlines()
    if done.returncode == FAULT:
        return False, "\n    ".join([f"{name:16} {tool:10} FOUND", *found(lines)])
    if done.returncode:
        return False, "\n    ".join([f"{name:16} {tool:10} FAILED", *(lines + done.stderr.splitlines())[-SHOWN_LINES:]])
    said = next((line.strip("= ") for line in reversed(lines) if "SUMMARY" in line), "the tool printed no summary")
    runs = next(line for line in lines if line.startswith("runs "))
    return "SUMMARY: 0 " in said, f"{name:16} {tool:10} {runs}, {said}"


def found(lines: list[str]) -> list[str]:
    """Of the tool's output its first reports, with their source lines, and its last line, the count of all."""
    said = [line for line in lines if line.startswith("=========")][1:]  # the first is its name
    return said if len(said) <= SHOWN_LINES else [*said[: SHOWN_LINES - 1], said[-1]]


def main(names: tuple[str, ...]) -> int:
    """A line a kernel and tool; 1 where one found something or did not run."""
    if shutil.which("compute-sanitizer") is None:
        raise BuildError("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit, in bin or in compute-sanitizer")
    plans = [build.Plan(name, (), build.toolchain()) for name in names]
    for built in build.build_all(plans):
        if built.error:
            raise built.error
    with ThreadPoolExecutor(AT_ONCE) as pool:
        clean = True
        for ok, line in pool.map(lambda pair: sanitize(*pair), itertools.product(TOOLS, names)):
            print(line, flush=True)
            clean &= ok
    return 0 if clean else 1
