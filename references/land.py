"""land: fold split-k partials and land them.

    p f32 [b, split_k, nt] -> o bf16 [b, n], columns [off, off + n)

S1  acc = +0                (a lone -0 partial lands as +0)
S2  for s ascending: acc = acc + p[s]
S3  o = bf(acc)

Current form: 8 columns a thread, 16-byte loads and stores, scalar where a row is not 16-byte aligned. Retired: one column a thread.
"""

from collections.abc import Iterator

import numpy as np

from references.arith.bits import add, asc, bf, zero
from references.contract import Case, schedule
from references.contract.inputs import F32, from_bits, ordinary, patterns, spread, values

INDEPENDENT = "b"


@schedule(
    "p: f32[b, split_k, nt], off: int, n: int -> o: bf16[b, n]",
    version=1,
    requires=("split_k >= 1", "off >= 0", "n >= 1", "off + n <= nt"),
)
def emulate(p, off, n):
    p = p[:, :, off : off + n]
    acc = zero(p[:, 0])  # S1
    for s in asc(p.shape[1]):  # S2
        acc = add(acc, p[:, s])  # S2
    return bf(acc)  # S3
