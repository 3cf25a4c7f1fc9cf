"""The comparator has must-fail cases of its own: one for each kind of difference, and the comparisons that others get wrong."""

import ml_dtypes
import numpy as np
import pytest

from conformance.compare import KINDS, Difference, compare, compare_all, fields, share, show
from references.contract.inputs import BF16, F32, from_bits
from references.contract.signature import DTYPES

ONE, NEXT, BELOW_2, TWO = 0x3F80, 0x3F81, 0x3FFF, 0x4000
PAIRS = {  # bf16 got, want: kind, signed ulp
    (NEXT, ONE): ("1 ulp", 1),
    (BELOW_2, TWO): ("1 ulp", -1),
    (0x8001, 0x0001): ("more ulp", -2),  # the smallest subnormals, either side of zero
    (0x8001, 0x0000): ("1 ulp", -1),
    (0x8000, 0x0000): ("sign of zero", 0),
    (0x7FC0, 0x7FFF): ("NaN payload", None),
    (0xFFFF, 0x7FFF): ("NaN payload", None),
    (0x7FFF, ONE): ("NaN vs number", None),
    (0x7F80, 0x7FFF): ("NaN vs number", None),
    (0x7F80, 0x7F7F): ("finite vs infinite", 1),
    (0xFF80, 0x7F80): ("more ulp", -2 * 0x7F80),
    (TWO, ONE): ("more ulp", 128),
}


@pytest.mark.parametrize(("pair", "expected"), PAIRS.items(), ids=[f"{a:04x}_{b:04x}" for a, b in PAIRS])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
def test_kinds(pair, expected, dtype):
    """As bf16, and as the f32 with the same place in a larger format (where a step of bf16 is 2^16 steps)."""
    kind, ulp = expected
    scale = 16 if dtype == F32 else 0
    got, want = (from_bits([bits << scale], dtype) for bits in pair)
    found = compare("o", got, want)
    steps = ulp if ulp is None or dtype == BF16 else ulp << scale
    kind = "more ulp" if kind == "1 ulp" and dtype == F32 else kind
    assert (found.counts, found.rows[0].ulp) == ({kind: 1}, steps)
    assert found.worst == abs(steps or 0)
    assert compare("o", want, want) is None


def test_f32_neighbours():
    found = compare("s", np.nextafter(np.ones(1, F32), F32.type(2)), np.ones(1, F32))
    assert (found.counts, found.worst, found.rows[0].ulp) == ({"1 ulp": 1}, 1, 1)


def test_what_others_pass():
    """`==`, `array_equal` and `assert_allclose` take -0 for +0 and any NaN for any other."""
    minus, plus = np.array([-0.0, 1], F32), np.array([0.0, 1], F32)
    assert np.array_equal(minus, plus)
    assert compare("o", minus, plus).counts == {"sign of zero": 1}
    quiet, other = from_bits([0x7FC00000], F32), from_bits([0x7FFFFFFF], F32)
    np.testing.assert_allclose(quiet, other)
    assert compare("o", quiet, other).counts == {"NaN payload": 1}


def test_e4m3():
    """A landing of quantised values: steps of its codes, through zero; it has a NaN of either sign and no infinity."""
    def pair(a, b):
        found = compare("q", *(np.array([code], np.uint8).view(DTYPES["e4m3"]) for code in (a, b)))
        return found.counts, found.rows[0].ulp

    assert pair(0x39, 0x38) == ({"1 ulp": 1}, 1) and pair(0x81, 0x01) == ({"more ulp": 1}, -2) and pair(0x80, 0x00) == ({"sign of zero": 1}, 0)
    assert pair(0x7E, 0xFE) == ({"more ulp": 1}, 252) and pair(0x7F, 0xFF) == ({"NaN payload": 1}, None)
    assert pair(0x7E, 0x7F) == ({"NaN vs number": 1}, None)
    assert fields(0xB9, "float8_e4m3fn") == "1|0111|001" and show(0x38, "float8_e4m3fn") == "0x38 (1)"


def test_integers_are_off_by_a_number():
    found = compare("id", np.array([3, 20000], np.int32), np.array([5, 9], np.int32))
    assert found.headline() == (
        "id differs in 2 of 2 (100 %), off by 19,991 at most, first at [0]: device 0x00000003 (3), golden 0x00000005 (5)")
    assert found.worst_text == "off by 19,991"
    head, first, second = found.table()
    assert head.split() == ["index", "device", "golden", "off", "by"] and first.split()[-1] == "-2" and second.split()[-1] == "+19,991"


def test_every_kind_has_a_case():
    """KINDS is the list of what can be found, so nothing in it may be beyond the tests."""
    integers = compare("n", np.array([3], np.int32), np.array([5], np.int32))
    assert (integers.counts, integers.rows[0].ulp) == ({"value": 1}, -2)
    assert {kind for kind, _ in PAIRS.values()} | {"value"} == set(KINDS)


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        (None, np.zeros(3, BF16), "unwritten, and should be written"),
        (np.zeros(3, BF16), None, "written, and should be left alone"),
        (np.zeros(3, F32), np.zeros(3, BF16), "dtype float32, should be bfloat16"),
        (np.zeros((3, 1), BF16), np.zeros(3, BF16), "shape [3, 1], should be [3]"),
        (np.zeros(0, BF16), np.zeros(3, BF16), "shape [0], should be [3]"),
    ],
)
def test_not_comparable(got, want, said):
    assert compare("o", got, want).headline() == f"o: {said}"


def test_nothing_to_compare_is_equal():
    assert compare("o", None, None) is None
    assert compare("o", np.zeros((0, 4), BF16), np.zeros((0, 4), BF16)) is None


def test_an_array_on_one_side_only():
    o = np.zeros(2, BF16)
    assert [d.name for d in compare_all({"o": o}, {"o": o, "next": o})] == ["next"]
    assert [d.name for d in compare_all({"o": o, "next": o}, {"o": o})] == ["next"]


def test_rows_counts_and_histogram():
    want = np.full((4, 100), ONE, np.uint16)
    got = want.copy()
    got[1, ::2] += 1  # 50 elements one ulp above
    got[3, 7] -= 6
    found = compare("o", got.view(BF16), want.view(BF16), limit=3)
    assert found.counts == {"1 ulp": 50, "more ulp": 1}
    assert (found.count, found.elements, found.worst) == (51, 400, 6)
    assert [row.index for row in found.rows] == [(1, 0), (1, 2), (1, 4)]
    assert found.histogram == {1: 50, -3: 1}
    assert found.headline() == (
        "o differs in 51 of 400 (12.8 %), worst 6 ulp, first at [1, 0]: device 0x3f81 (1.0078125), golden 0x3f80 (1)")
    assert found.table()[1].split()[-2:] == ["0|01111111|0000001", "0|01111111|0000000"]


def test_a_view_is_compared_by_its_elements():
    base = np.arange(12, dtype=np.uint16).reshape(3, 4)
    assert compare("o", base.view(BF16)[:, ::2], np.ascontiguousarray(base[:, ::2]).view(BF16)) is None
    assert compare("o", base.view(BF16)[:, ::2], np.ascontiguousarray(base[:, 1::2]).view(BF16)).count == 6


def test_a_difference_is_never_zero_percent():
    assert share(0, 10**9) == "0 %"
    assert share(1, 10**9) == "< 0.001 %"
    assert share(10**9 - 1, 10**9) == "> 99.9 %"
    assert share(5, 5) == "100 %"
    assert share(3, 12288) == "0.024 %"


def test_text_of_bits():
    assert show(0x8000, "bfloat16") == "0x8000 (-0)"
    assert show(0x3F800001, "float32") == "0x3f800001 (1.00000012)"
    assert show(0xFFFFFFFE, "int32") == "0xfffffffe (-2)"
    assert fields(0xC0490FDB, "float32") == "1|10000000|10010010000111111011011"
    assert fields(np.array(1.5, ml_dtypes.bfloat16).view(np.uint16).item(), "bfloat16") == "0|01111111|1000000"


def test_worst_is_a_nan_where_there_is_one():
    far = compare("o", from_bits([0x7FFF, NEXT]), from_bits([ONE, ONE]))
    assert far.worst_text == "NaN vs number" and far.worst == 1
    assert Difference("o", "", 0, "unwritten").worst_text == "not comparable"
