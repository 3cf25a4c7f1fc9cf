"""The suites of whole steps at the end of a run: which of their numbered gates held on which side, and what tests only report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

STATES = ("failed", "not run", "exact")  # of a gate's tests the first of these decides
LANES = {"emulator": "emulator", "cuda": "device"}


class Suites:
    """Like the gate's table: a worker attaches plain data to pytest's reports, whoever prints collects it."""

    def __init__(self):
        self.states: dict[tuple[str, str], dict[int, set[str]]] = {}
        self.lines: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        made = yield
        number = re.search(r"(?:test_|\[|-)(\d\d)_", item.name)
        if number and item.get_closest_marker("steps") and (made.when == "call" or (made.when == "setup" and not made.passed)):
            made.gate_of = item.path.stem.removeprefix("test_"), int(number[1]), _lanes(item)
        return made

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.lines += [line for key, line in report.user_properties if key == "report"]
        if hasattr(report, "gate_of"):
            suite, number, lanes = report.gate_of
            state = "exact" if report.passed else "not run" if report.skipped else "failed"
            for lane in lanes:
                self.states.setdefault((suite, lane), {}).setdefault(number, set()).add(state)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.lines:
            terminalreporter.section("reports: shown, not held to anything")
            for line in sorted(self.lines):
                terminalreporter.line(line)
        if self.states:
            terminalreporter.section("whole steps")
            for (suite, lane), gates in sorted(self.states.items(), key=lambda item: (item[0][0], item[0][1] == "device")):
                every = {number for (of, _), its in self.states.items() if of == suite for number in its}
                terminalreporter.line(told(suite, lane, {number: gates.get(number, {"not run"}) for number in every}))


def _lanes(item: pytest.Item) -> tuple[str, ...]:
    """A test without a side is the device's where it asks for the GPU, else it counts for both."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if "side" in params:
        return (LANES[params["side"]],)
    return ("device",) if "gpu" in item.fixturenames else ("emulator", "device")


def told(suite: str, lane: str, gates: Mapping[int, set[str]]) -> str:
    """`golden_decode  emulator  11/13 gates hold; not run: 5, 6`. A gate holds where all of its tests ran and passed."""
    worst = {number: next(state for state in STATES if state in states) for number, states in sorted(gates.items())}
    by_state = {state: [number for number, its in worst.items() if its == state] for state in STATES}
    others = "".join(f"; {state}: {', '.join(map(str, by_state[state]))}" for state in ("failed", "not run") if by_state[state])
    return f"{suite:14} {lane:9} {len(by_state['exact'])}/{len(gates)} gates hold{others}"
