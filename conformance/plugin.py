"""What becomes of the gate's tests: the state "not run" (pytest's skip), the header, the table, the reports. It works alike under -n.

A worker attaches plain data to pytest's own reports, which travel; whoever prints (the controller, or the only process) collects it there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance import machine, report
from conformance.message import Finding, save
from conformance.report_html import write_html

TOLD = pytest.StashKey[dict]()  # (kernel, lane) -> the finding that was told whole in this process
BUILT = pytest.StashKey[dict]()  # seconds of each kernel's plain build in this process, None where it was there


class Unmet(pytest.fail.Exception):
    """A golden is not met, or could not be compared. The message is written to be read, so there is no traceback."""

    __module__ = "builtins"  # as pytest does it: the name is printed without one

    def __init__(self, text: str, finding: Finding | None = None, whole: str = ""):
        super().__init__(text, pytrace=False)
        self.finding, self.whole = finding, whole or text


class Gate:
    """`counts`: goldens on disk by kernel, `large`: how many of them are."""

    def __init__(self, config: pytest.Config, counts: Mapping[str, int], large: int):
        self.config, self.counts, self.large = config, counts, large
        self.records: list[dict] = []
        self.idle: dict[str, int] = {}
        self.built: dict[str, float | None] = {}
        config.stash[BUILT], config.stash[TOLD] = {}, {}

    def pytest_report_header(self) -> list[str]:
        seed = self.config.option.shuffle
        order = [] if seed is None else [f"shuffled: --shuffle {seed}"]
        return [*(f"{title}: {text}" for title, text in machine.lines().items()), report.goldens_line(self.counts, self.large), *order]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """--shuffle: ordered by a digest of seed and id, so every worker of -n, and a run of fewer tests, has the same order."""
        seed = self.config.option.shuffle
        if seed is not None:
            items.sort(key=lambda item: hashlib.blake2b(f"{seed} {item.nodeid}".encode()).digest())

    # Where tests run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        made = yield
        if made.skipped and not hasattr(made, "wasxfail"):
            made.not_run = str(call.excinfo.value)
        mark = item.get_closest_marker("gate")
        if mark and (made.when == "call" or (made.when == "setup" and not made.passed)):
            made.gate = _record(item, mark.args[0], made, call)
            made.built = dict(self.config.stash[BUILT])
            if getattr(call.excinfo and call.excinfo.value, "finding", None):
                made.longrepr.reprcrash.message = call.excinfo.value.finding.summary  # what the short summary shows beside the test's id
            item.user_properties += [(key, made.gate[key]) for key in ("kernel", "case", "lane", "state", "worst_text") if key in made.gate]
        return made

    # Where results are collected

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("not run", "n", "NOT RUN") if hasattr(report, "not_run") else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "gate"):
            self.records.append(report.gate)
            self.built |= {kernel: seconds for kernel, seconds in report.built.items() if self.built.get(kernel) is None}
        if hasattr(report, "not_run"):
            self.idle[report.not_run] = self.idle.get(report.not_run, 0) + 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The reports are written where no kernel golden was compared, too: those of an earlier run would be taken for this one's."""
        self.records.sort(key=lambda one: (one["kernel"], one["case"], one["lane"]))
        table = report.rows(self.records, self.counts)
        gate = report.gate_line(table, self._why_not()) if self.records else "GATE  no kernel golden was compared"
        if self.records:
            self._show(terminalreporter, table)
        terminalreporter.line(gate)
        self._write(report.document(self.records, table, machine.lines(), gate, self.built))
        if os.environ.get("GITHUB_ACTIONS"):
            for line in report.annotations(self.records):
                terminalreporter.line(line)

    def _show(self, terminalreporter: pytest.TerminalReporter, table: Sequence[Mapping]) -> None:
        terminalreporter.section("gate")
        for line in report.table_lines(report.shown(table, self.records), self.built):
            terminalreporter.line(line)
        for line in report.first_lines(self.records):
            terminalreporter.line(line)
        for why, count in sorted(self.idle.items()):
            terminalreporter.line(f"not run ({count}): {why}")
        terminalreporter.line(report.goldens_line(self.counts, self.large, self.records))

    def _why_not(self) -> str:
        reasons = {one["text"] for one in self.records if one["lane"] == "device" and one["state"] == "not run"}
        return reasons.pop() if len(reasons) == 1 else ""

    def _write(self, made: dict) -> None:
        for option, writer in (("report_json", report.write_json), ("report_html", write_html)):
            path: Path | None = self.config.getoption(option)
            if path is not None:
                writer(path, made)


def _record(item: pytest.Item, lane: str, made: pytest.TestReport, call: pytest.CallInfo) -> dict:
    error = call.excinfo.value if call.excinfo else None
    finding = getattr(error, "finding", None)
    state = "exact" if made.passed else "not run" if made.skipped else "mismatch" if finding else "error"
    text = "" if error is None else getattr(error, "whole", str(error)) or type(error).__name__
    return report.record(*item.callspec.params["golden"], lane, state, finding, text)


@contextmanager
def unmet(what: str, *errors: type[Exception]) -> Iterator[None]:
    """These errors as one message without a traceback: they say by themselves what is wrong."""
    __tracebackhide__ = True
    try:
        yield
    except errors as error:
        raise Unmet(f"{what}: {type(error).__name__}: {error}") from None


def report_finding(finding: Finding | None, request: pytest.FixtureRequest, build: Callable[[], str] = str) -> None:
    """Fail with all that is known of a golden that is not met: of the first of a kernel that this process meets; of others with a line.

    A diagnosis is always shown once: the first that has one is told whole as well.
    """
    __tracebackhide__ = True
    if finding is None:
        return
    folder = request.config.option.save_failures
    saved = str(save(finding, folder)) if folder else ""
    whole = finding.text(build(), saved, f'pytest "{request.node.nodeid}"')
    told, lane = request.config.stash[TOLD], (finding.kernel, finding.got)
    before = told.get(lane)
    if before is None or (finding.diagnosis and not before.diagnosis):
        told[lane] = finding
        raise Unmet(whole, finding)
    raise Unmet(finding.line(before.case), finding, whole)
