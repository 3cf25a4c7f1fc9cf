"""o_finalize: the merged attention lands.

    acc f32 [t, h, 128] -> o bf16 [t, h, 128]

S1  o = bf(acc)

Current form: 8 columns a thread, 16-byte loads and stores, one column a thread where a base is not 16-byte aligned. Retired: the latter.
"""

from collections.abc import Iterator

import numpy as np

from references.arith import bf
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, ordinary, patterns

INDEPENDENT = "t"
BENCH = ({"t": 4096, "h": 96},)
BLIND = {"S1.bf:skipped": "the store to bf16 lands it"}


@schedule("acc: f32[t, h, 128] -> o: bf16[t, h, 128]", version=1, requires=("h >= 1",))
def emulate(acc):
    return bf(acc)  # S1


def cases() -> Iterator[Case]:
    yield Case("ties", "midpoints of every exponent and both parities, of both signs, subnormals among them, and an f32 step to either side", ties,
               ("S1.bf:half_away", "S1.bf:truncated", "S1.bf:flushed"))
    yield Case("special", "NaN payloads, infinities, zeros and overflow in the rounding", special)
    yield Case("patterns", "every bit pattern alike", lambda: {"acc": patterns(1, (8, 4, 128), F32)})
    for t, h, why in ((1, 1, "one row"), (3, 5, "an odd number of rows"), (1, 96, "one token of the 96 heads")):
        yield Case(f"ragged_{t}x{h}", why, lambda t=t, h=h: {"acc": ordinary(2, (t, h, 128), dtype=F32)})
    yield Case("prefill", "1,024 tokens of 96 heads", lambda: {"acc": ordinary(3, (1024, 96, 128), dtype=F32)}, large=True)


def ties() -> dict:
    high = np.arange(0, 0x7F80, 0x33, dtype=np.uint32) << np.uint32(16)
    around = high[:, None] + np.array([0x7FFF, 0x8000, 0x8001], np.uint32)
    both = np.stack([around, around | np.uint32(0x8000_0000)]).reshape(-1)
    return {"acc": from_bits(np.resize(both, (-(-both.size // 128), 1, 128)), F32)}


def special() -> dict:
    """0x7f7f7fff is the last f32 that rounds to a finite bf16."""
    bits = [0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF80FFFF, 0x7F800000, 0xFF800000, 0, 0x80000000, 0x7F7F7FFF, 0x7F7F8000, 0xFF7FFFFF, 0x00000001]
    return {"acc": from_bits(np.resize(bits, (1, 1, 128)), F32)}


def pool(seed: int) -> dict:
    return {"acc": patterns(seed, (64, 1, 128), F32)}
