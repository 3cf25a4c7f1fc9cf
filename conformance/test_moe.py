"""What the schedules of the experts promise beyond their goldens: an entry depends on its token, its expert and its weight, and on nothing else."""

import numpy as np
import pytest

from references import moe_chain, moe_mega
from references._moe_cases import mixture, periodic, poisoned, twice
from references.arith import bf, div, maximum, mul, round_up_pow2
from references.arith.mufu import rcp_approx
from references.arith.site import Laboratory
from references.contract import Kernel
from references.contract.inputs import F32
from references.contract.mistakes import find, same_bits

TRANSPORTS = pytest.mark.parametrize("transport", [moe_chain, moe_mega], ids=["moe_chain", "moe_mega"])
pytestmark = pytest.mark.kernels("moe_chain", "moe_mega")


def rows_of(inputs: dict, order) -> dict:
    return inputs | {name: inputs[name][order] for name in ("x", "ids", "w")}


@TRANSPORTS
def test_order_and_company_of_tokens(transport):
    """Reversed, cut and alone, a token has its bits; so no rank and no neighbour is in them."""
    inputs = mixture(33, 3, 4)
    whole = transport.emulate(**inputs)
    assert same_bits(transport.emulate(**rows_of(inputs, slice(None, None, -1))), whole[::-1].copy())
    for token in range(0, 33, 8):
        assert same_bits(transport.emulate(**rows_of(inputs, [token])), whole[[token]])


def test_rows_in_order_are_seen():
    inputs = mixture(33, 3, 4)
    mistake = find(Kernel.load("moe_chain"), "S7.returned:in_order", inputs)
    with Laboratory(faults={mistake.site: mistake.fault}):
        assert not same_bits(moe_chain.emulate(**rows_of(inputs, [8])), moe_chain.emulate(**inputs)[[8]])


@TRANSPORTS
def test_poisoned_neighbours(transport):
    """Only the tokens that hold NaN, infinity or 3e38 are any different."""
    inputs, others = poisoned(), [0, 3, 4, 6, 7]
    clean = inputs | {"x": mixture(8, 2, 2)["x"]}
    poison, fine = transport.emulate(**inputs), transport.emulate(**clean)
    assert same_bits(poison[others], fine[others]) and not same_bits(poison[[1]], fine[[1]])
    assert not poison[5].view(np.uint16).any()


@TRANSPORTS
def test_experts_and_windows(transport):
    """Two windows side by side give what each gives alone; of one token with one active slot, the sum is that slot's."""
    inputs = mixture(9, 1, 4)
    whole = transport.emulate(**inputs)
    for half in (0, 2):
        held = {name: inputs[name][half : half + 2] for name in ("w13", "s13", "w2", "s2")}
        mine = np.isin(inputs["ids"][:, 0], (8 + half, 9 + half))
        part = transport.emulate(**inputs | held | {"first": 8 + half})
        assert mine.any() and same_bits(part[mine], whole[mine]) and not part[~mine].view(np.uint16).any()


def test_transports_differ():
    """By design: smaller groups, and weights inside the codes."""
    assert not same_bits(moe_chain.emulate(**mixture(16, 3, 4)), moe_mega.emulate(**mixture(16, 3, 4)))
    assert not same_bits(moe_chain.emulate(**twice()), moe_mega.emulate(**twice()))


def scales_beside(amax: np.ndarray) -> list[np.ndarray]:
    """The scale of each amax, then as quotients by other means would have it: landed, by a reciprocal, by rcp.approx."""
    amax = maximum(amax, 1e-10)
    quotient = div(amax, 448)
    return [round_up_pow2(x) for x in (quotient, bf(quotient), mul(amax, div(F32.type(1), 448)), mul(amax, rcp_approx(np.array(448, F32))))]


def test_scales_that_no_quotient_moves():
    """What BLIND says of S2 and S5: for every bf16, and of f32 around 448 * 2^k all but the landed one."""
    every = (np.arange(0x7F81, dtype=np.uint32) << 16).view(F32)
    right, *others = scales_beside(every)
    assert all(same_bits(right, other) for other in others)
    around = (np.array(448 * 2.0 ** np.arange(-40, 100), F32).view(np.uint32)[:, None] + np.arange(-500, 501)).astype(np.uint32).view(F32)
    right, landed, *others = scales_beside(around)
    assert all(same_bits(right, other) for other in others) and not same_bits(right, landed)


@TRANSPORTS
@pytest.mark.parametrize(
    "wrong, said",
    [({"cap": 5}, "ids must name no expert more than cap = 5 times, got 6 entries for expert 9"), ({"cap": 0}, "1 <= cap"),
     ({"first": -1}, "first >= 0"), ({"s13": np.full((2, 256, 4), 253, np.uint8)}, "s13 must hold e8m0 codes up to 252"),
     ({"s2": np.full((2, 128, 4), 255, np.uint8)}, "s2 must hold e8m0 codes up to 252"),
     ({"s13": np.ones((2, 256, 4), F32)}, "s13 must be a uint8 array, got float32"),
     ({"w13": periodic(1, (2, 250, 64))}, "w13|s13|rows13"), ({"x": mixture(6, 1, 2, h=96)["x"]}, "w2|h ==")],
)
def test_refused(transport, wrong, said):
    """F32 scales are no e8m0. An expert's last free place may be taken, and no more."""
    inputs = mixture(6, 1, 2) | {"ids": np.full((6, 1), 9, np.int32)}
    transport.emulate(**inputs | {"cap": 6})
    with pytest.raises(ValueError, match=said):
        transport.emulate(**inputs | wrong)


def test_chain_refuses_what_no_group_of_128_fits():
    with pytest.raises(ValueError, match="groups_h % 4 == 0"):
        moe_chain.emulate(**mixture(2, 1, 1, h=96))
    moe_mega.emulate(**mixture(2, 1, 1, h=96))
