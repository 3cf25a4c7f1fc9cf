"""mla_paged: absorbed attention of one query a row over a paged latent cache.

    q bf16 [b, heads, 192] = 128 nope | 64 rope; w_kv_b bf16 [heads, 256, 512] = 128 UK rows | 128 UV rows; cache bf16 [pool]: row r of page p
    starts at layer_offset + p * page_stride + r * 576 = 512 latent | 64 rope; table i32 [b, pages]; context i32 [b]; scale bf16
    -> o bf16 [b, heads, 128]

S1  q_abs[j < 512] = bf(sum of q[d] * UK[d, j]), d ascending by fma from +0; q_abs[512 ..] = q's rope half
S2  rows: key t is row t % 64 of page table[t // 64], a row of zeros where that is negative; dot(t) = bf(sum of q_abs[d] * row[d]) in the form's order
S3  scl(t) = bf16 product of dot(t) and scale
S4  m = largest score, den = sum of exp(scl - m), in the form's order; m starts from the lowest finite f32
S5  p(t) = bf(exp(scl(t) - m) / den)
S6  o_lat[j] = bf(sum of p(t) * row(t)[j]), t ascending by fma from +0
S7  o[v] = bf(sum of UV[v, j] * o_lat[j]), j ascending by fma from +0

two_pass: lane l of a warp takes the pairs l, l + 32, ... of S2 and adds s = fma(x, x', y * y') to its sum; then down(16 .. 1). S4 goes page by page:
den = den * exp(m_old - m_new) + page_sum, product and sum rounded separately. The second pass computes the scores again, bit for bit.
three_sweep (retired): S2 is one thread's sum, d ascending by fma. S4: m over all keys, then den.
Both: a sum of S4 over 128 threads, thread i taking i, i + 128, ... ascending; down(16 .. 1) a warp; the four warps ascending.
mma (current) has a schedule of its own: `references._mla_mma`.

The lowest f32 lies below every finite bf16, so a score at the finite sentinel of -3.39e38 still wins over it; and being finite it makes no
-inf - -inf where a page's scores are all -inf. If all are, den is 0 and o NaN. A maximum passes over a NaN, the sums do not.
"""

from collections.abc import Iterator

import numpy as np

from references import _mla, _mla_pool, _mla_splits
from references._mla_mma import mma
from references.arith import add, amax, asc, bf, chain, chain_fma, div, down, exp, fma, full, hmul, join, kept, lanes, maximum, mul, paged, sub, zero
from references.arith.site import Laboratory
from references.contract import Case, schedule
from references.contract.inputs import near_ties

FORMS = ("mma", "two_pass", "three_sweep")
INDEPENDENT = ("b", "heads")
BENCH = tuple({"b": b, "tokens": tokens, "heads": 96, "pages": -(-tokens // 64), "pool": b * -(-tokens // 64) * _mla.PAGE_ELEMENTS,
               "scale": _mla.SCALE, "layer_offset": 0, "page_stride": _mla.PAGE_ELEMENTS} for b, tokens in ((16, 4096), (1, 32768), (1, 65)))
LOWEST = float(np.finfo(np.float32).min)
WARP = (16, 8, 4, 2, 1)

ZERO = "a zero of the other sign adds nothing to the sums that follow, which start from +0, and exp does not see it"
SUBNORMAL = "exp of a subnormal is exp of zero"
SMALL = "it vanishes beside the largest key's 1 in the denominator"
PAGE_OF_64 = "a page has 64 terms: no thread has two, and only two warps have any"
SEED = "the chain starts from +0, and adding that to its sum changes nothing"
OPERAND = "the tensor core takes it as bf16 and so lands it anyway"
BLIND = {
    "mma/S1.gemm_from:apart": SEED,
    "mma/S1.bf:skipped": OPERAND,
    "mma/S2.gemm_from:apart": SEED,
    "mma/S4.visible:one_more": "there is no key more than all",
    "mma/S4.softmax.split_softmax.zero:minus_zero": "the first page's sum is added to it",
    "mma/S4.softmax.split_softmax.sub:flushed": SUBNORMAL,
    "mma/S4.softmax.split_softmax.sub#2:flushed": SUBNORMAL,
    "mma/S4.softmax.split_softmax.sub#3:flushed": SUBNORMAL,
    "mma/S4.softmax.split_softmax.sub#4:flushed": SUBNORMAL,
    "mma/S4.softmax.split_softmax.exp:flushed": SMALL,
    "mma/S4.softmax.split_softmax.exp#2:flushed": SMALL,
    "mma/S4.softmax.split_softmax.exp#3:flushed": SMALL,
    "mma/S4.softmax.split_softmax.exp#4:flushed": SMALL,
    "mma/S4.softmax.split_softmax.mul:flushed": SMALL,
    "mma/S4.softmax.split_softmax.mul#2:flushed": SMALL,
    "mma/S4.softmax.split_softmax.add:flushed": SMALL,
    "mma/S4.softmax.split_softmax.add#2:flushed": SMALL,
    "mma/S4.softmax.split_softmax.chain.zero:minus_zero": "no exp is -0",
    "mma/S4.softmax.split_softmax.chain.add:flushed": SMALL,
    "mma/S4.softmax.sub:flushed": SUBNORMAL,
    "mma/S4.softmax.exp:flushed": SMALL,
    "mma/S4.softmax.mul:flushed": SMALL,
    "mma/S5.bf:skipped": OPERAND,
    "mma/S6.bf:skipped": OPERAND,
    "mma/S7.gemm_from:apart": SEED,
    "S1.absorbed.chain_fma:unseeded": ZERO,
    "two_pass/S2.warp_dot.zero:minus_zero": ZERO,
    "three_sweep/S2.chain_fma:unseeded": ZERO,
    "S3.hmul:flushed": SUBNORMAL,
    "two_pass/S4.zero:minus_zero": "the first page's sum is added to it",
    "S4.sub:flushed": SUBNORMAL,
    "two_pass/S4.sub#2:flushed": SUBNORMAL,
    "S4.exp:flushed": SMALL,
    "two_pass/S4.exp#2:flushed": SMALL,
    "two_pass/S4.mul:flushed": SMALL,
    "two_pass/S4.add:flushed": "a denominator is at least 1, or 0",
    "two_pass/S4.block_sum.lanes:blocked": PAGE_OF_64,
    "two_pass/S4.block_sum.lanes:reversed_lanes": PAGE_OF_64,
    "two_pass/S4.block_sum.chain:pairwise": PAGE_OF_64,
    "S4.block_sum.chain.zero:minus_zero": "no exp is -0",
    "S4.block_sum.chain.add:flushed": SMALL,
    "S5.sub:flushed": SUBNORMAL,
    "S5.div:landed": "S5 lands the quotient anyway, and landing twice is landing once",
    "S6.chain_fma:unseeded": ZERO,
    "S7.bf:skipped": "the store to bf16 lands it",
}


@schedule("q: bf16[b, heads, 192], w_kv_b: bf16[heads, 256, 512], cache: bf16[pool], table: i32[b, pages], context: i32[b], scale: bf16,"
          " layer_offset: int, page_stride: int, form: form -> o: bf16[b, heads, 128]",
          version=1, forms=FORMS, raw=("cache",), refuse=_mla.refuse,
          requires=("b >= 1", "heads >= 1", "pages >= 1", "layer_offset >= 0", "layer_offset % 2 == 0",
                    "page_stride >= 36864", "page_stride % 2 == 0"))
def emulate(q, w_kv_b, cache, table, context, scale, layer_offset, page_stride, form):
    o = [one_row(q[i], w_kv_b, cache, table[i], context[i], scale, layer_offset, page_stride, form) for i in range(len(q))]
    return np.reshape(o, (len(q), len(w_kv_b), 128))


def one_row(q, w_kv_b, cache, table, context, scale, layer_offset, page_stride, form):
    """q [heads, 192] -> o [heads, 128]; a form takes rows [context, 576]."""
    rows = paged(cache, table, context, layer_offset, page_stride)  # S2
    if form == "mma":
        return mma(q, w_kv_b, rows, scale)
    return two_pass(q, w_kv_b, rows, scale) if form == "two_pass" else three_sweep(q, w_kv_b, rows, scale)


def two_pass(q, w_kv_b, rows, scale):
    q_abs = absorbed(q, w_kv_b)  # S1
    dot = bf(warp_dot(q_abs, rows))  # S2
    scl = hmul(dot, scale)  # S3
    m, den = full(scl[:, 0], LOWEST), zero(scl[:, 0])  # S4
    for page in asc((scl.shape[1] + 63) // 64):  # S4
        part = scl[:, 64 * page : 64 * page + 64]
        top = maximum(m, amax(part))  # S4
        page_sum = block_sum(exp(sub(part, top[:, None])))  # S4
        den = add(mul(den, exp(sub(m, top))), page_sum)  # S4
        m = top
    return attended(scl, m, den, w_kv_b, rows)


def three_sweep(q, w_kv_b, rows, scale):
    q_abs = absorbed(q, w_kv_b)  # S1
    dot = bf(chain_fma(q_abs[:, None], rows[None]))  # S2
    scl = hmul(dot, scale)  # S3
    m = maximum(full(scl[:, 0], LOWEST), amax(scl))  # S4
    den = block_sum(exp(sub(scl, m[:, None])))  # S4
    return attended(scl, m, den, w_kv_b, rows)


def absorbed(q, w_kv_b):
    return join([bf(chain_fma(q[:, :128, None], w_kv_b[:, :128], axis=1)), q[:, 128:]], axis=1)


def warp_dot(q_abs, rows):
    q, c = q_abs[:, None], rows[None]
    total = zero(q[:, :, :32])
    for k in asc(9):
        second = mul(q[..., 64 * k + 1 : 64 * k + 64 : 2], c[..., 64 * k + 1 : 64 * k + 64 : 2])
        total = add(total, fma(q[..., 64 * k : 64 * k + 64 : 2], c[..., 64 * k : 64 * k + 64 : 2], second))
    return down(total, WARP)


def block_sum(terms):
    """[heads, keys] -> [heads]."""
    return chain(down(lanes(terms, 128).reshape(len(terms), 4, 32), WARP))


def attended(scl, m, den, w_kv_b, rows):
    kept([m, den])  # S4
    p = bf(div(exp(sub(scl, m[:, None])), den[:, None]))  # S5
    o_lat = bf(chain_fma(p[:, :, None], rows[None, :, :512], axis=1))  # S6
    return bf(chain_fma(w_kv_b[:, 128:], o_lat[:, None]))  # S7


def cases() -> Iterator[Case]:
    """Every case in every form."""
    for form in FORMS:
        for case in (*_mla.cases(), *(_mla_splits.cases() if form == "mma" else ())):
            guards = tuple(guard for guard in case.guards if "/" not in guard or guard.startswith(f"{form}/"))
            yield Case(f"{form}_{case.name}", case.why, lambda case=case, form=form: case.make() | {"form": form}, guards, case.large)


def pool(seed: int, form: str) -> dict:
    """Rows of two heads: of many candidates those that show a probability, or a latent, next to a tie, where a last bit moved anywhere shows."""
    if form == "mma":
        near = [_mla_splits.short(seed, 24576), _mla_splits.loud(seed, 24576), _mla_splits.long(seed, 4096)]
        others = [nearest(_mla_pool.tiny(seed, 128), "S6.tree", form), _mla_splits.opposed(seed, 8)]
        return _mla_splits.candidates(*near, *others, _mla_pool.stairs(seed, 24), _mla_pool.cancelling(seed, 24))
    near = [nearest(_mla_pool.probing(seed, 1536), "S5.div"), nearest(_mla_pool.tiny(seed, 512), "S6.chain_fma")]
    return _mla_pool.candidates(*near, _mla_pool.stairs(seed, 64), _mla_pool.cancelling(seed, 64))


def nearest(part: _mla_pool.Part, site: str, form: str = "three_sweep") -> _mla_pool.Part:
    """The rows in which a result of this site, of head 0, lies within an f32 step of a bf16 midpoint."""
    results, inputs = [], (_mla_splits if form == "mma" else _mla_pool).candidates(part)
    with Laboratory(watch=lambda visit, result: results.append(result) if visit.name == site else None):
        emulate(**inputs | {"q": inputs["q"][:, :1], "w_kv_b": inputs["w_kv_b"][:1], "form": form})
    chosen = [i for i, result in enumerate(results) if near_ties(result, 1).size]
    return tuple(array[chosen] for array in part)


def bench_inputs(sizes: dict) -> dict:
    """A table whose pages lie scattered over the pool, and the context; q, weights and cache are random."""
    return _mla.scattered(sizes["b"], sizes["pages"], sizes["tokens"])


def cost(sizes: dict) -> dict:
    b, heads, tokens = sizes["b"], sizes["heads"], sizes["tokens"]
    elements = b * heads * (192 + 128) + heads * 256 * 512 + b * tokens * 576
    return {"bytes": 2 * elements, "flops": 2 * b * heads * (2 * 128 * 512 + tokens * (576 + 512))}
