"""mla_expand_k: the keys of every head, its own part and then the part all heads share.

    nope bf16 [t, h, 128], rope bf16 [t, 64] -> k bf16 [t, h, 192]

S1  k[:, head, :128] = nope of that head
S2  k[:, head, 128:] = rope of that token, the same for every head
S3  Nothing is computed: every bit is kept, a NaN's payload too.

Current form: a block a token, 16-byte loads and stores; the retired form where a row is not 16-byte aligned. Retired: one element a thread.
Element offsets are 64 bits wide: 116,509 tokens of 96 heads are more than 2^31 elements.
"""

from collections.abc import Iterator

from references.arith import join, repeat, select
from references.contract import Case, schedule
from references.contract.inputs import ordinary, patterns

INDEPENDENT = "t"
BENCH = ({"t": 16384, "h": 96},)


@schedule("nope: bf16[t@ld, h, 128], rope: bf16[t, 64] -> k: bf16[t, h, 192]", version=1, requires=("h >= 1",), raw=("nope", "rope"))
def emulate(nope, rope):
    own = select(nope, range(nope.shape[1]), axis=1)  # S1
    shared = repeat(select(rope, range(len(rope))), nope.shape[1], axis=1)  # S2
    return join([own, shared], axis=2)  # S3


def cases() -> Iterator[Case]:
    yield Case("two_heads", "heads and tokens that all differ: a head or a token taken for its neighbour shows", lambda: keys(2, 2),
               ("S1.select:early", "S1.select:late", "S2.select:early", "S2.select:late", "S2.repeat:first_only", "S3.join:reversed_first"))
    yield Case("patterns", "every bit pattern alike: NaN payloads are kept", lambda: {"nope": patterns(1, (6, 3, 128)), "rope": patterns(2, (6, 64))})
    for t, h, why in ((1, 1, "one row"), (5, 7, "odd counts"), (2, 96, "two tokens of the 96 heads"), (33, 2, "more tokens than heads")):
        yield Case(f"ragged_{t}x{h}", why, lambda t=t, h=h: keys(t, h))
    yield Case("prefill", "1,024 tokens of 96 heads", lambda: keys(1024, 96), large=True)


def keys(t: int, h: int) -> dict:
    return {"nope": ordinary(3, (t, h, 128)), "rope": ordinary(4, (t, 64))}


def pool(seed: int) -> dict:
    return {"nope": patterns(2 * seed, (16, 2, 128)), "rope": patterns(2 * seed + 1, (16, 64))}
