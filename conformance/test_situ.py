"""situ: saturation, and the two functions of one bf16 whose tables the current form keeps."""

import numpy as np
import pytest

from references.arith import as_bf16, as_f32, bf, div, mul, sigmoid, tanh
from references.contract import Kernel
from references.contract.inputs import from_bits, values
from references.contract.mistakes import emulate_with, find, same_bits

SITU = Kernel.load("situ")
every = as_f32(from_bits(np.arange(65536)))
GATE = mul(mul(4, tanh(div(every, 4))), sigmoid(every))
UP = mul(25, tanh(div(every, 25)))


@pytest.mark.parametrize("g, u, bits", [(178, 1112, 0x42C8), (-200, 1, 0x8000), (-200, -1, 0x0000), (-np.inf, 1, 0x8000), (np.inf, np.inf, 0x42C8)])
def test_saturates_with_the_right_sign(g, u, bits):
    inputs = {"g": values([[g]]), "u": values([[u]])}
    assert SITU.emulate(**inputs).view(np.uint16)[0, 0] == bits
    wrong = emulate_with(SITU, find(SITU, "S1.tanh:tanh_by_exp", inputs), inputs)["o"]
    assert g < 0 or wrong.view(np.uint16)[0, 0] == 0x7FFF  # inf / inf


def test_each_factor_is_a_function_of_one_operand():
    """What lets the current form look factors up: the landed product of the two is the output, for every gate and every up."""
    for shift in (0, 1, 4099, 32768):
        u = np.roll(np.arange(65536), shift)
        alike = same_bits(SITU.emulate(from_bits(np.arange(65536))[None], from_bits(u)[None])[0], as_bf16(bf(mul(GATE, UP[u]))))
        assert alike, f"u shifted by {shift}"


@pytest.mark.parametrize("name, function, limit", [("gate", GATE, 128.0), ("up", UP, 256.0)])
def test_tables_end_where_their_function_is_constant(name, function, limit):
    """From 2^7 and 2^8 on (the tables' HIGH) a factor is its limit, so what lies above is rare by the data and not by the range."""
    beyond = every >= limit
    assert len(set(function[beyond].view(np.uint32))) == 1, name
    assert len(set(function[every >= limit / 64].view(np.uint32))) > 1
