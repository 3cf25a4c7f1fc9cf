"""What stands in the table and in the records for many differences: the worst."""

import pytest

from conformance.compare import Difference, compare
from conformance.message import KERNEL_CHANGED, Finding
from conformance.report import first_lines, record, rows
from references.contract.inputs import from_bits

ONE = from_bits([0x3F80])
NEXT, FAR, NAN, OTHER_NAN = (from_bits([bits]) for bits in (0x3F81, 0x7F00, 0x7FFF, 0x7FC0))
PAIRS = [(NEXT, ONE), (FAR, ONE), (OTHER_NAN, NAN), (NAN, ONE), (None, ONE)]  # each worse than those before
TEXTS = ["1 ulp", "16,256 ulp", "NaN payload", "NaN vs number", "not comparable"]


def finding(first, *pairs):
    return Finding("land", "case", "", "device", "", [compare(f"o{i}", *pair) for i, pair in enumerate(pairs)], KERNEL_CHANGED, first)


def of(*pairs):
    return record("land", "case", "device", "mismatch", finding("", *pairs))


def test_cases_by_their_first_landing():
    """A line for each landing; a golden without landings has a line, too."""
    found = [("a", "S3.bf"), ("b", "S4.bf"), ("large", ""), ("c", "S3.bf")]
    off = [record("land", case, "emulator", "mismatch", finding(first, (NEXT, ONE))) for case, first in found]
    lines = first_lines([*off, record("land", "d", "emulator", "exact"), record("land", "e", "device", "error")])
    assert lines == ["land emulator: first S3.bf in a, c", "land emulator: first S4.bf in b", "land emulator: differs in large"]


def test_a_landing_is_worst_only_where_every_output_is_exact():
    """A landing that is gone cannot be compared; what an output is off by says more."""
    gone = Difference("S3.bf", "bfloat16", 1, "the golden lands here, the emulator does not")
    alone = record("land", "alone", "device", "mismatch", Finding("land", "alone", "", "device", "", [gone], KERNEL_CHANGED, "S3.bf"))
    worst = [rows(found, {"land": 2})[1]["worst"] for found in ([alone], [alone, of((NEXT, ONE))], [of((NEXT, ONE)), alone])]
    assert worst == ["not comparable", "1 ulp", "1 ulp"]


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_the_worst_is_shown(order):
    """Of the outputs of a golden and of the goldens of a kernel, wherever it stands."""
    for worse, text in enumerate(TEXTS, 1):
        upto = PAIRS[:worse][::order]
        assert of(*upto)["worst_text"] == text
        (_, row) = rows([of(pair) for pair in upto], {"land": len(PAIRS)})
        assert row["worst"] == text
