"""moe_chain: the local experts of a mixture, the anchor: rows gathered by expert, combined by routing weight at the end.

    x bf16 [b, h], ids i32 [b, k], w f32 [b, k], first, cap int -> o bf16 [b, h]
    w13 u8 [experts, 2 * inter, h / 2], s13 u8 [experts, 2 * inter, h / 32]: rows gate, then up
    w2 u8 [experts, h, inter / 2], s2 u8 [experts, h, inter / 32]

Weights are MXFP4: e2m1, two a byte, low nibble first, times an e8m0 scale for each 32 along k. h and inter are multiples of 128.

S1  entry token * k + slot goes to expert ids - first, or nowhere where that is not one of the experts held here. The rank of an entry
    inside its expert is the number of active entries before it. More than `cap` entries for one expert is refused.
S2  q, scale of x in groups of 128: scale = round_up_pow2(max(amax, 1e-10) / 448), q = e4m3(x / scale), saturating
S3  gate_up = bf(the tensor-core chain of q * scale and the expert's w13 over h, blocks of 16 ascending from +0)
S4  act = bf(((4 * tanh(gate / 4)) * sigmoid(gate)) * (25 * tanh(up / 25)))        (as kernel situ)
S5  q, scale of act in groups of 128, as S2
S6  out = bf(the chain of q * scale and the expert's w2 over inter)
S7  acc = +0, acc = fma(w, out, acc) over the active slots ascending, o = bf(acc)

e4m3 * 2^s and e2m1 * 2^s are exact in bf16, so an 8-bit product with a bf16 tensor core has no rounding but the chain's; the 13-bit
accumulator of fp8 tensor cores plays no part. Scale codes above 252, which leave bf16, are refused. An activation of 1.9375 * 2^127 and more becomes
256 * 2^120, which is infinity; an infinite one has an infinite scale, and its group is NaN; a NaN stays alone, as amax passes over it.
A token without an active slot gets +0, whatever its weights are.

A launch that cannot ask first (a captured graph) and meets an expert with too many entries stores nothing but NaN.
Current form: a block streams 64 weight rows through shared memory and decodes them in registers, 16 entries at a time where an expert has no more,
else 32; the retired form where h or inter is no multiple of 128 or weights do not lie on 16 bytes. Retired: a warp for 8 columns, operands straight
from memory.
"""

from collections.abc import Iterator

from references import _moe, _moe_cases
from references._moe import situ
from references.arith import asc, bf, choose, fma, gemm_from, local, members, mxfp4, returned, select, upcast, zero
from references.arith.quant import quant
from references.contract import Case, schedule

INDEPENDENT = "b"
BENCH, cost, bench_inputs = _moe.BENCH, _moe.cost, _moe.bench_inputs
BLIND = _moe.BLIND | {
    "S5.quant.div:landed": _moe.BLIND["S2.quant.div:landed"],
    "S5.quant.div#2:landed": _moe.EXACT,
}


@schedule("x: bf16[b, h], ids: i32[b, k], w: f32[b, k], w13: u8[experts, rows13, pairs_h], s13: u8[experts, rows13, groups_h],"
          " w2: u8[experts, h, pairs_i], s2: u8[experts, h, groups_i], first: int, cap: int -> o: bf16[b, h]",
          version=1, requires=(*_moe.SIZES, "groups_h % 4 == 0", "groups_i % 4 == 0"), refuse=_moe.refuse)
def emulate(x, ids, w, w13, s13, w2, s2, first, cap):
    expert = local(ids, first, len(w13))  # S1
    a = upcast(*quant(x, 128))  # S2
    rows, tokens, slots = [], [], []
    for e in range(len(w13)):
        token, slot = members(expert, e)  # S1
        if len(token):
            gate_up = bf(gemm_from(0, select(a, token), mxfp4(w13[e], s13[e])))  # S3
            act = situ(gate_up, w2.shape[2] * 2)  # S4
            middle = upcast(*quant(act, 128))  # S5
            out = bf(gemm_from(0, middle, mxfp4(w2[e], s2[e])))  # S6
            rows, tokens, slots = [*rows, out], [*tokens, token], [*slots, slot]
    entries = returned(rows, tokens, slots, expert, x.shape[1])  # S7
    acc = zero(x)  # S7
    for slot in asc(ids.shape[1]):  # S7
        acc = choose(expert[:, slot, None] < 0, acc, fma(w[:, slot, None], entries[:, slot], acc))  # S7
    return bf(acc)  # S7


def cases() -> Iterator[Case]:
    yield from _moe_cases.cases("chain")


def pool(seed: int) -> dict:
    return _moe_cases.pool(seed)
