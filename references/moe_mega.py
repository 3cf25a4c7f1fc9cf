"""moe_mega: the local experts of a mixture, the production form: the routing weight is applied between the products.

    x bf16 [b, h], ids i32 [b, k], w f32 [b, k], first, cap int -> o bf16 [b, h]
    w13 u8 [experts, 2 * inter, h / 2], s13 u8 [experts, 2 * inter, h / 32]: rows gate, then up
    w2 u8 [experts, h, inter / 2], s2 u8 [experts, h, inter / 32]

Weights are MXFP4: e2m1, two a byte, low nibble first, times an e8m0 scale for each 32 along k. h and inter are multiples of 32.

S1  entry token * k + slot goes to expert ids - first, or nowhere where that is not one of the experts held here. The rank of an entry
    inside its expert is the number of active entries before it. More than `cap` entries for one expert is refused.
S2  q, scale of x in groups of 32: scale = round_up_pow2(max(amax, 1e-10) / 448), q = e4m3(x / scale), saturating
S3  gate_up = bf(the tensor-core chain of q * scale and the expert's w13 over h, blocks of 16 ascending from +0)
S4  act = bf(((4 * tanh(gate / 4)) * sigmoid(gate)) * (25 * tanh(up / 25)))        (as kernel situ)
S5  q, scale of w * act, an f32 product that is not landed, in groups of 32, as S2
S6  out = bf(the chain of q * scale and the expert's w2 over inter)
S7  acc = +0, acc = acc + out over the slots ascending, where an inactive one has an out of +0, o = bf(acc)

Not bit-equal to moe_chain by design: groups are smaller, and the weight is rounded with the codes. Ranges, refusals and forms are moe_chain's.
"""

from collections.abc import Iterator

from references import _moe, _moe_cases
from references._moe import situ
from references.arith import add, asc, bf, gemm_from, local, members, mul, mxfp4, returned, select, upcast, zero
from references.arith.quant import quant
from references.contract import Case, schedule

INDEPENDENT = "b"
BENCH, cost, bench_inputs = _moe.BENCH, _moe.cost, _moe.bench_inputs
BLIND = _moe.BLIND | {
    "S5.mul:flushed": _moe.TINY,
    "S7.zero:minus_zero": "every slot adds +0 or a tensor core's sum, neither of which is -0",
}


@schedule("x: bf16[b, h], ids: i32[b, k], w: f32[b, k], w13: u8[experts, rows13, pairs_h], s13: u8[experts, rows13, groups_h],"
          " w2: u8[experts, h, pairs_i], s2: u8[experts, h, groups_i], first: int, cap: int -> o: bf16[b, h]",
          version=1, requires=_moe.SIZES, refuse=_moe.refuse)
def emulate(x, ids, w, w13, s13, w2, s2, first, cap):
    expert = local(ids, first, len(w13))  # S1
    a = upcast(*quant(x, 32))  # S2
    rows, tokens, slots = [], [], []
    for e in range(len(w13)):
        token, slot = members(expert, e)  # S1
        if len(token):
            gate_up = bf(gemm_from(0, select(a, token), mxfp4(w13[e], s13[e])))  # S3
            act = situ(gate_up, w2.shape[2] * 2)  # S4
            middle = upcast(*quant(mul(w[token, slot, None], act), 32))  # S5
            out = bf(gemm_from(0, middle, mxfp4(w2[e], s2[e])))  # S6
            rows, tokens, slots = [*rows, out], [*tokens, token], [*slots, slot]
    entries = returned(rows, tokens, slots, expert, x.shape[1])  # S7
    acc = zero(x)  # S7
    for slot in asc(ids.shape[1]):  # S7
        acc = add(acc, entries[:, slot])  # S7
    return bf(acc)  # S7


def cases() -> Iterator[Case]:
    yield from _moe_cases.cases("mega")


def pool(seed: int) -> dict:
    return _moe_cases.pool(seed)
