"""What is shown of the sanitizer's output, from a stand-in for the tool."""

from __future__ import annotations

import pytest

from kernels_cuda import sanitize

HAZARD = "========= Error: Race reported between Read access at k()+0x8b30 in kda_chunk.cu:64"
TAIL = "========= RACECHECK SUMMARY: 44 hazards displayed (44 errors, 0 warnings)"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Write a compute-sanitizer that does this."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(script: str):
        path = tmp_path / "compute-sanitizer"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


def test_first_report_is_shown_and_the_count_of_all(tool):
    rest = "\n".join(f"=========     and Write access at k()+{i:#x} in kda_tile.cuh:147 [256 hazards]" for i in range(100))
    tool(f"cat <<END\n========= COMPUTE-SANITIZER\n{HAZARD}\nruns 24\n{rest}\n{TAIL}\nEND\nexit {sanitize.FAULT}")
    clean, said = sanitize.sanitize("racecheck", "land")
    first, *lines = said.splitlines()
    assert not clean and first.split() == ["land", "racecheck", "FOUND"]
    assert lines[0].strip() == HAZARD and "kda_tile.cuh:147" in lines[1] and lines[-1].strip() == TAIL and len(lines) == sanitize.SHOWN_LINES


def test_what_failed_by_itself_is_shown_by_its_end(tool):
    tool("seq 1 100; echo 'ValueError: k' >&2; exit 1")
    clean, said = sanitize.sanitize("memcheck", "land")
    assert not clean and "FAILED" in said.splitlines()[0] and said.splitlines()[-1].strip() == "ValueError: k"


@pytest.mark.parametrize("count, clean", [(0, True), (1, False)])
def test_summary_decides_where_the_tool_ends_well(tool, count, clean):
    tool(f"echo 'runs 4'; echo '========= ERROR SUMMARY: {count} errors'")
    assert sanitize.sanitize("memcheck", "land") == (clean, f"{'land':16} memcheck   runs 4, ERROR SUMMARY: {count} errors")


def test_tool_that_does_not_end_is_ended(tool, monkeypatch):
    monkeypatch.setattr(sanitize, "SECONDS", 0.2)
    tool("exec sleep 60")
    assert sanitize.sanitize("memcheck", "land") == (False, f"{'land':16} memcheck   NOT FINISHED in 0.2 s")
