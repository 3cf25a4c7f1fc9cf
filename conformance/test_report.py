"""What stands in the table and in the records for many differences: the worst."""

import pytest

from conformance.compare import compare
from conformance.message import KERNEL_CHANGED, Finding
from conformance.report import record, rows
from references.contract.inputs import from_bits

ONE = from_bits([0x3F80])
NEXT, FAR, NAN, OTHER_NAN = (from_bits([bits]) for bits in (0x3F81, 0x7F00, 0x7FFF, 0x7FC0))
PAIRS = [(NEXT, ONE), (FAR, ONE), (OTHER_NAN, NAN), (NAN, ONE), (None, ONE)]  # each worse than those before
TEXTS = ["1 ulp", "16,256 ulp", "NaN payload", "NaN vs number", "not comparable"]


def of(*pairs):
    differences = [compare(f"o{i}", got, want) for i, (got, want) in enumerate(pairs)]
    return record("land", "case", "device", "mismatch", Finding("land", "case", "", "device", "", differences, KERNEL_CHANGED, ""))


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_the_worst_is_shown(order):
    """Of the outputs of a golden and of the goldens of a kernel, wherever it stands."""
    for worse, text in enumerate(TEXTS, 1):
        upto = PAIRS[:worse][::order]
        assert of(*upto)["worst_text"] == text
        (_, row) = rows([of(pair) for pair in upto], {"land": len(PAIRS)})
        assert row["worst"] == text
