"""The gate's command line: its options and which tests there are. What is done with results is in conformance/plugin.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.plugin import Gate
from conformance.suites import Suites
from goldens.files import MANIFEST, GoldenError, read_manifest
from goldens.store import ROOT
from references.contract.kernel import names

pytest_plugins = ["pytester", "conformance.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gate", "kernel gate")
    group.addoption("--require-gpu", action="store_true", help="fail, not 'not run', where a test needs a GPU and there is none")
    group.addoption("--emulate", action="store_true", help="leave the GPU alone even where there is one")
    group.addoption("--kernel", action="append", default=[], metavar="NAME", help="only the tests of this kernel (repeatable)")
    group.addoption("--replays", type=int, default=3, metavar="N", help="launches of each case, form and layout (default 3)")
    group.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in an order drawn from this number")
    group.addoption("--save-failures", type=Path, metavar="DIR", help="store the arrays of each mismatch as DIR/<kernel>-<case>-....npz")
    group.addoption("--dump", type=Path, metavar="DIR", help="store the logits of absorbed and of expanded attention in DIR")
    group.addoption("--max-mismatches", type=int, default=8, metavar="N", help="elements shown of each mismatch (default 8)")
    group.addoption("--update-goldens", action="store_true", help="run `python -m goldens regenerate` instead of the tests; never a pass")
    group.addoption("--report-json", type=Path, metavar="PATH", help="write every result as JSON")
    group.addoption("--report-html", type=Path, metavar="PATH", help="write every result as one HTML file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gate(lane): compares a golden; counted in the table")
    config.addinivalue_line("markers", "kernels(name, ...): whose laws these are; --kernel asks, where neither an id nor the file is named after one")
    config.addinivalue_line("markers", "steps: runs whole steps; gates are numbered by their names and counted at the end")
    option = config.option
    for kernel in option.kernel:
        if kernel not in names():
            raise pytest.UsageError(f"--kernel must be one of {', '.join(names())}, got {kernel!r}")
    for name in ("replays", "max_mismatches"):
        if getattr(option, name) < 1:
            raise pytest.UsageError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(option, name)}")
    if option.require_gpu and option.emulate:
        raise pytest.UsageError("--require-gpu and --emulate contradict each other")
    found = {kernel: cases(kernel) for kernel in selected(config)}
    gate = Gate(config, {kernel: len(of) for kernel, of in found.items()}, sum(sum(of.values()) for of in found.values()))
    config.pluginmanager.register(gate, "gate")
    config.pluginmanager.register(Suites(), "suites")


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """--update-goldens, by the rules of the command. Nothing was tested, so even a success is pytest's "no tests ran"."""
    if not config.option.update_goldens:
        return None
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--update-goldens is refused under -n: several workers would write the same files")
    from goldens.__main__ import main

    status = main(["regenerate", *config.option.kernel])
    return {0: pytest.ExitCode.NO_TESTS_COLLECTED, 2: pytest.ExitCode.USAGE_ERROR}.get(status, status)


def selected(config: pytest.Config) -> tuple[str, ...]:
    return tuple(dict.fromkeys(config.option.kernel)) or names()


def cases(kernel: str) -> dict[str, bool]:
    """The goldens of a kernel and whether each is large; none where it has no manifest. Nothing is emulated or imported for it."""
    folder = ROOT / kernel
    try:
        return {case: entry["large"] for case, entry in read_manifest(folder)["cases"].items()} if (folder / MANIFEST).exists() else {}
    except GoldenError:
        return {MANIFEST: False}  # reading it as a golden says what is wrong


# Which tests there are


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `golden` gets every golden as (kernel, case), with ids like `land/minus_zero`; `kernel_name` every kernel."""
    chosen = selected(metafunc.config)
    if "golden" in metafunc.fixturenames:
        pairs = [(kernel, case) for kernel in chosen for case in cases(kernel)]
        metafunc.parametrize("golden", pairs, ids=["/".join(pair) for pair in pairs])
    if "kernel_name" in metafunc.fixturenames:
        metafunc.parametrize("kernel_name", chosen)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--kernel: the tests of the kernel, by `_kernels_of`."""
    if config.option.kernel:
        keep = [item for item in items if not _kernels_of(item).isdisjoint(config.option.kernel)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(keep)])
        items[:] = keep


def _kernels_of(item: pytest.Item) -> set[str]:
    """The kernel that the id names, or else those of the mark `kernels`, or else that of test_<kernel>.py."""
    tail = item.name.partition("[")[2].rstrip("]")
    named = [word for part in tail.split("/") for word in part.split("-") if word in names()]
    mark = item.get_closest_marker("kernels")
    return {*named[:1]} or {*(mark.args if mark else [item.path.stem.removeprefix("test_")])}
