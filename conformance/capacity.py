"""More entries than an expert may have, launched in spite of it, as a captured graph would. Runs in the worker process."""

from __future__ import annotations

import numpy as np

from kernels_cuda import build
from references._moe_cases import one_expert
from references.contract import Kernel

NAN = 0x7FFF


def overfull(name: str) -> list[str]:
    """What is wrong where 70 entries meet a room for 1 or 69, a line each: any output but NaN, any write beside it. All 70 fit into 70."""
    from kernels_cuda.buffers import Buffer
    from kernels_cuda.launch import arguments, call, synchronise

    kernel, library, inputs = Kernel.load(name), build.load(name), one_expert()
    signature, sizes = kernel.signature, kernel.signature.check(inputs)
    buffers = {o.name: Buffer(o, o.shape(sizes)).upload(inputs[o.name]) for o in signature.inputs if o.is_array}
    problems = []
    for form in kernel.forms:
        for cap in (1, 69, 70):
            o = Buffer(signature.outputs[0], signature.outputs[0].shape(sizes))
            o.poison()
            call(library, name, signature, arguments(signature, buffers | {"o": o}, inputs | {"cap": cap}, sizes, form, 0))
            synchronise(name)
            got = o.download()
            stored = None if got is None else np.unique(got.view(np.uint16) == NAN)
            if stored is None or stored.tolist() != [cap < 70]:
                problems.append(f"{form}, cap = {cap}: NaN at {stored}")
    return problems
