"""Outputs of more than 2^31 elements: made and compared on the device, for a golden of them would be gigabytes. Runs in the worker process."""

from __future__ import annotations

from types import SimpleNamespace

from kernels_cuda import build
from references.contract import Kernel

TOKENS, HEADS = 116_509, 96  # the fewest tokens whose keys are more than 2^31 elements


def expanded_keys() -> list[str]:
    """What is wrong with mla_expand_k's keys in any form, a line each. Every element is compared: bits of all kinds, NaN payloads among them."""
    import torch

    from kernels_cuda.launch import arguments, call, synchronise

    kernel, library = Kernel.load("mla_expand_k"), build.load("mla_expand_k")
    nope, rope = (torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, device="cuda") for shape in ((TOKENS, HEADS, 128), (TOKENS, 64)))
    k = torch.empty((TOKENS, HEADS, 192), dtype=torch.int16, device="cuda")
    buffers = {name: SimpleNamespace(pointer=x.data_ptr(), pitch=x[0].numel()) for name, x in (("nope", nope), ("rope", rope), ("k", k))}
    problems = []
    for form in kernel.forms:
        k.fill_(-1)
        call(library, kernel.name, kernel.signature, arguments(kernel.signature, buffers, {}, {"t": TOKENS, "h": HEADS}, form, 0))
        synchronise(kernel.name)
        for part, got, want in (("nope", k[..., :128], nope), ("rope", k[..., 128:], rope[:, None].expand(-1, HEADS, -1))):
            wrong = (got != want).flatten(1).any(1).nonzero()
            if len(wrong):
                problems.append(f"{form}: {part} of {len(wrong):,} tokens, the first {int(wrong[0])}")
    return problems
