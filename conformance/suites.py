"""The suites of whole steps at the end of a run: which of their numbered gates held on which side, and what tests only report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

STATES = ("failed", "not run", "exact")  # of a gate's tests the first of these decides
LANES = {"emulator": "emulator", "cuda": "device"}


class Suites:
    """Like the gate's table: a worker attaches plain data to pytest's reports, whoever prints collects it."""

    def __init__(self):
        self.tests: dict[str, dict[str, Counter]] = {}  # by suite and lane, of each gate: how many there are
        self.states: dict[str, dict[str, dict[int, list[str]]]] = {}  # and how those that ran came out
        self.lines: list[str] = []

    # Where tests run

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before some are deselected: a part of a suite must not read as the whole."""
        for suite, lane, number in filter(None, map(gate_of, items)):
            self.tests.setdefault(suite, {}).setdefault(lane, Counter())[number] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        made = yield
        gate = gate_of(item)
        if gate and (made.when == "call" or (made.when == "setup" and not made.passed)):
            made.gate_of, made.tests_of = gate, {lane: dict(counts) for lane, counts in self.tests[gate[0]].items()}
        return made

    # Where results are collected

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.lines += [line for key, line in report.user_properties if key == "report"]
        if hasattr(report, "gate_of"):
            suite, lane, number = report.gate_of
            state = "exact" if report.passed else "not run" if report.skipped else "failed"
            self.states.setdefault(suite, {}).setdefault(lane, {}).setdefault(number, []).append(state)
            self.tests[suite] = report.tests_of

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.lines:
            terminalreporter.section("reports: shown, not held to anything")
            for line in sorted(self.lines):
                terminalreporter.line(line)
        if self.states:
            terminalreporter.section("whole steps")
            for suite, lanes in sorted(self.states.items()):
                for lane in (lane for lane in LANES.values() if lane in lanes):
                    terminalreporter.line(told(suite, lane, *self._gates(suite, lane)))

    def _gates(self, suite: str, lane: str) -> tuple[dict[int, set[str]], int, int]:
        """The states of every gate of the suite, how many of the lane's tests ran, and how many there are. What is in no result is not run."""
        tests, states = self.tests[suite].get(lane, {}), self.states[suite][lane]
        gates = {number: states.get(number, []) for every in self.tests[suite].values() for number in every}
        ran = sum(state != "not run" for its in gates.values() for state in its)
        missing = {number for number, its in gates.items() if len(its) < tests.get(number, 1)}
        return {number: {*its, "not run"} if number in missing else {*its} for number, its in gates.items()}, ran, sum(tests.values())


def gate_of(item: pytest.Item) -> tuple[str, str, int] | None:
    """Suite, lane and number of a numbered test. One without a side is the device's where it asks for the GPU."""
    number = re.search(r"(?:test_|\[|-)(\d\d)_", item.name)
    if not number or not item.get_closest_marker("steps"):
        return None
    params = item.callspec.params if hasattr(item, "callspec") else {}
    lane = LANES[params["side"]] if "side" in params else "device" if "gpu" in item.fixturenames else "emulator"
    return item.path.stem.removeprefix("test_"), lane, int(number[1])


def told(suite: str, lane: str, gates: Mapping[int, set[str]], ran: int, tests: int) -> str:
    """`golden_decode  emulator  11/13 gates hold; not run: 5, 6 (30 of 34 tests ran)`. A gate holds where all of its tests ran and passed."""
    worst = {number: next(state for state in STATES if state in states) for number, states in sorted(gates.items())}
    by_state = {state: [number for number, its in worst.items() if its == state] for state in STATES}
    others = "".join(f"; {state}: {', '.join(map(str, by_state[state]))}" for state in ("failed", "not run") if by_state[state])
    part = f" ({ran} of {tests} tests ran)" if ran < tests else ""
    return f"{suite:14} {lane:9} {len(by_state['exact'])}/{len(gates)} gates hold{others}{part}"
