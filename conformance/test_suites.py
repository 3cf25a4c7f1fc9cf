"""The lines on suites of whole steps: a gate holds where all of its tests ran and passed, and a part does not read as the whole."""

import pytest

from conformance.suites import told
from conformance.test_plugin import prepared, run

TESTS = """
import os, pytest
pytestmark = pytest.mark.steps

@pytest.mark.parametrize("side", ["emulator", "cuda"])
class TestSides:
    def test_01_first(self, side): pass
    def test_01_second(self, side): assert side == "emulator"
    def test_02_only(self, side): pass

@pytest.fixture
def gpu():
    pytest.skip("no GPU")

def test_03_graphs(gpu): pass
def test_04_neither(): pass
def test_unnumbered(): pass
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    return prepared(pytester, monkeypatch, TESTS)


@pytest.mark.parametrize("options, emulator, device", [
    ([], "3/4 gates hold; not run: 3", "1/4 gates hold; failed: 1; not run: 3, 4 (3 of 4 tests ran)"),
    (["-n", "2"], "3/4 gates hold; not run: 3", "1/4 gates hold; failed: 1; not run: 3, 4 (3 of 4 tests ran)"),
    (["-k", "first or only"], "1/4 gates hold; not run: 1, 3, 4 (2 of 4 tests ran)", "1/4 gates hold; not run: 1, 3, 4 (2 of 4 tests ran)"),
    (["-n", "2", "-k", "only and emulator"], "1/4 gates hold; not run: 1, 3, 4 (1 of 4 tests ran)", None),
], ids=["whole", "whole_by_workers", "part", "part_by_workers"])
def test_a_part_does_not_read_as_the_whole(suite, request, options, emulator, device):
    lines = [line.split(maxsplit=2) for line in run(suite, *options).outlines if "gates hold" in line]
    assert [(lane, said) for _, lane, said in lines] == [(lane, said) for lane, said in (("emulator", emulator), ("device", device)) if said]


def test_a_gate_holds_where_all_its_tests_do():
    gates_of = {1: {"exact"}, 2: {"exact", "not run"}, 3: {"exact", "failed", "not run"}}
    assert told("paged_kv", "device", gates_of, 3, 6) == "paged_kv       device    1/3 gates hold; failed: 3; not run: 2 (3 of 6 tests ran)"
    assert told("paged_kv", "device", {1: {"exact"}}, 2, 2) == "paged_kv       device    1/1 gates hold"
