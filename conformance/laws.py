"""How the laws of kernels fail: with what is wrong, a line each, and no traceback; of mistakes only where the emulator gives the goldens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from goldens import Golden, GoldenError
from goldens.rows import take
from goldens.search import smallest_first
from goldens.store import as_case, emulated
from references.contract import Kernel
from references.contract.kernel import KernelError
from references.contract.mistakes import moved


@contextmanager
def law(name: str) -> Iterator[tuple[Kernel, list[str]]]:
    """The kernel, and a list for problems: with any the test fails, as it does where the kernel or a golden cannot be read."""
    __tracebackhide__ = True
    problems: list[str] = []
    try:
        yield Kernel.load(name), problems
    except (KernelError, GoldenError) as error:
        problems.append(str(error))
    told(problems)


def told(problems: list[str]) -> None:
    """Fail with these lines, if there are any."""
    if problems:
        raise pytest.fail.Exception("\n".join(problems), pytrace=False) from None


def unless_drifted(kernel: Kernel, goldens: Iterable[Golden], problems: list[str]) -> list[str]:
    """These problems of mistakes and goldens; where the emulator is not that of the goldens, that alone, since obeying them would spoil both.

    So too where a small case has no golden, which might be what they miss.
    """
    if not problems:
        return []
    small = smallest_first(goldens)
    lacking = [case.name for case in kernel.cases() if not case.large and case.name not in {one.case for one in small}]
    if lacking:
        return [f"mend test_goldens first: the manifest of {kernel.name} does not name {', '.join(lacking)}"]
    case = next((one.case for one in small if emulated(kernel, as_case(one)).entry()["sha256"] != one.entry()["sha256"]), None)
    return problems if case is None else [f"mend test_emulator first: the emulator does not give golden {kernel.name}/{case}"]


def dependent(kernel: Kernel) -> list[str]:
    """Where the first or last slice along an INDEPENDENT size has other results alone than beside the rest of its small case."""
    inputs = {case.name: case.make() for case in kernel.cases() if not case.large}
    problems = []
    for dim in kernel.independents:
        wide = {case: size for case, one in inputs.items() if (size := kernel.signature.check(one)[dim]) > 1}
        problems += [] if wide else [f"INDEPENDENT of {kernel.name} names {dim}, and no small case has more than one"]
        for case, size in wide.items():
            whole = kernel.outputs(inputs[case])
            for position in (0, size - 1):
                alone = kernel.outputs(take(kernel.signature.inputs, inputs[case], dim, [position]))
                if moved(alone, take(kernel.signature.outputs, whole, dim, [position])):
                    problems.append(f"INDEPENDENT of {kernel.name} names {dim}, and in case {case} {dim} = {position} alone has other results")
    return problems
