"""How a law fails, on toys: in lines that can be read."""

import numpy as np
import pytest

from conformance.laws import dependent, law, told, unless_drifted
from conformance.toy import MINUS_ZERO, ORDINARY, drifted, toy
from goldens import GoldenError, load, make
from references.contract import Case
from references.contract.inputs import BF16, F32


def test_problems_are_lines_without_a_traceback():
    told([])
    with pytest.raises(pytest.fail.Exception) as failed, law("land") as (kernel, problems):
        problems += [f"{kernel.name} has no a", "nor has it b"]
    assert (failed.value.msg, failed.value.pytrace) == ("land has no a\nnor has it b", False)


def test_a_golden_that_cannot_be_read_is_a_line_too():
    with pytest.raises(pytest.fail.Exception, match="land has no golden 'none'; it has ") as failed, law("land"):
        load("land", "none")
    assert isinstance(failed.value.__context__, GoldenError) and failed.value.__suppress_context__


def test_where_the_emulator_drifted_that_alone_is_told():
    goldens = [make(toy(), case) for case in (ORDINARY, MINUS_ZERO)]
    assert unless_drifted(toy(), goldens, ["no golden sees S3.bf"]) == ["no golden sees S3.bf"]
    lines = unless_drifted(toy(drifted()), goldens, ["no golden sees S3.bf"])
    assert lines == ["mend test_emulator first: the emulator does not give golden toy/minus_zero"]
    assert unless_drifted(toy(drifted()), goldens, []) == []


def test_sizes_that_are_not_independent():
    assert dependent(toy()) == []
    said = "INDEPENDENT of toy names k, and in case ordinary k = {} alone has other results"
    assert dependent(toy(independent=("m", "k"))) == [said.format(0), said.format(2)]
    one = Case("one", "one row", lambda: {"x": np.zeros((1, 3, 16), BF16), "w": np.ones(16, F32), "off": 0})
    assert dependent(toy(cases=(one,))) == ["INDEPENDENT of toy names m, and no small case has more than one"]
