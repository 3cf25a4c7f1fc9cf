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


ROWS = 1366  # the fewest rows of 96 states of 128 x 128 that are more than 2^31 elements


def far_states() -> list[str]:
    """What is wrong with the first, middle and last rows of a kda_core batch in any form: they must be what each is alone."""
    import torch

    kernel, library = Kernel.load("kda_core"), build.load("kda_core")
    shapes = {o.name: o.shape({"b": ROWS, "heads": HEADS}) for o in kernel.signature.inputs if o.is_array}
    types = {"bf16": torch.bfloat16, "f32": torch.float32}
    inputs = {o.name: torch.empty(shapes[o.name], dtype=types[o.dtype], device="cuda").normal_() for o in kernel.signature.inputs if o.is_array}
    batched = [o.name for o in kernel.signature.inputs if o.is_array and o.dims[0] == "b"]
    problems = []
    for form in kernel.forms:
        together = stepped(kernel, library, inputs, form)
        for row in (0, ROWS // 2, ROWS - 1):
            alone = stepped(kernel, library, inputs | {name: inputs[name][row : row + 1] for name in batched}, form)
            problems += [f"{form}: {name} of row {row}" for name in alone if not torch.equal(bits(together[name][row]), bits(alone[name][0]))]
        del together
    return problems


def bits(x):
    import torch

    return x.view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def stepped(kernel: Kernel, library, inputs: dict, form: str) -> dict:
    """The outputs of one launch of kda_core on device tensors."""
    import torch

    from kernels_cuda.launch import arguments, call, synchronise

    outputs = {"o": torch.full_like(inputs["q"], float("nan")), "next": torch.full_like(inputs["state"], float("nan"))}
    buffers = {name: SimpleNamespace(pointer=x.data_ptr(), pitch=0) for name, x in (inputs | outputs).items()}
    sizes = {"b": len(inputs["q"]), "heads": HEADS}
    call(library, kernel.name, kernel.signature, arguments(kernel.signature, buffers, {"eps": 1e-5}, sizes, form, 0))
    synchronise(kernel.name)
    return outputs
