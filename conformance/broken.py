"""Kernels that break, for tests of what is left of the device. They run in the worker process."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

from kernels_cuda import build
from kernels_cuda.launch import CudaError, error_text, synchronise

SOURCE = """
__global__ void traps() { asm volatile("trap;"); }
__global__ void faults() { *reinterpret_cast<volatile int*>(8) = 1; }
__global__ void hangs() { while (true) asm volatile("nanosleep.u32 1000;"); }
extern "C" int run(int kind, void* stream) {
  void (*const kernels[])() = {traps, faults, hangs, traps};
  kernels[kind]<<<1, kind == 3 ? 4096 : 1, 0, static_cast<cudaStream_t>(stream)>>>();
  return cudaGetLastError();
}
"""
KINDS = ("traps", "faults", "hangs", "refused")


def run(kind: str) -> None:
    """Launch one and wait for it as for any kernel. CudaError; DeviceLost where it hangs."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "broken.cu").write_text(SOURCE)
        plan = build.Plan("broken", (), build.toolchain(), Path(folder))
        build.build(plan)
    library = ctypes.CDLL(str(plan.library))
    status = library.run(KINDS.index(kind), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if status:
        raise CudaError(f"{kind}: {error_text(library, status)}")
    synchronise(kind, seconds=2)
