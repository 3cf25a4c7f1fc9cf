"""The device side of the probe: results of probe.cu and of the vendor's GEMM as NumPy arrays. Needs torch with CUDA."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from references.contract.kernel import to_numpy

FOLDER = Path(__file__).parent


class Device:
    """Raises what `kernels_cuda.build` raises where nothing can be built or run."""

    def __init__(self) -> None:
        from kernels_cuda import build

        plan = build.Plan("probe", (), build.toolchain(), FOLDER)
        build.build(plan)
        self.library = ctypes.CDLL(str(plan.library))
        import torch

        self.torch = torch

    @property
    def arch(self) -> str:
        return "sm_{}{}".format(*self.torch.cuda.get_device_capability())

    def describe(self) -> dict[str, str]:
        """What recorded results are recorded with."""
        from kernels_cuda import doctor

        return {"arch": self.arch, "gpu": self.torch.cuda.get_device_name(), "driver": doctor.driver(),
                "toolkit": f"CUDA {self.torch.version.cuda}", "torch": self.torch.__version__}

    def unary(self, function: int, first: int, count: int) -> np.ndarray:
        """f32 results of the bit patterns first .. first + count."""
        out = self._empty(count)
        self._call("unary", function, None, ctypes.c_uint32(first), ctypes.c_int64(count), out)
        return out.cpu().numpy()

    def unary_at(self, function: int, inputs: np.ndarray) -> np.ndarray:
        """f32 results of these bit patterns, uint32."""
        out = self._empty(inputs.size)
        self._call("unary", function, self._upload(inputs.view(np.int32)), ctypes.c_uint32(0), ctypes.c_int64(inputs.size), out)
        return out.cpu().numpy()

    def mma(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Tiles as in `regimes` -> d f32 [tiles, 16, 8]."""
        out = self._empty(c.size)
        operands = [self._upload(np.ascontiguousarray(x).view(kind)) for x, kind in ((a, np.int16), (b, np.int16), (c, np.float32))]
        self._call("mma", *operands, out, ctypes.c_int64(len(c)))
        return out.cpu().numpy().reshape(c.shape)

    def vendor(self, m: int, n: int, k: int, rows: np.ndarray, columns: np.ndarray) -> dict[str, np.ndarray]:
        """torch.mm of random bf16 a [m, k] and b [n, k], f32 and bf16 output: the slices at `rows` and `columns`, and their operands."""
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(m * 7 + n)
        a, b = (torch.randn(size, k, device="cuda", dtype=torch.bfloat16, generator=generator) for size in (m, n))
        rows, columns = (torch.from_numpy(index).cuda() for index in (rows, columns))
        f32 = torch.mm(a, b.T, out_dtype=torch.float32)[rows][:, columns]
        bf16 = torch.mm(a, b.T)[rows][:, columns]
        return {name: to_numpy(x) for name, x in (("a", a[rows]), ("b", b[columns]), ("f32", f32), ("bf16", bf16))}

    def _empty(self, count: int):
        return self.torch.empty(count, dtype=self.torch.float32, device="cuda")

    def _upload(self, array: np.ndarray):
        return self.torch.from_numpy(array).cuda()

    def _call(self, name: str, *args) -> None:
        """Tensors travel as pointers; the stream comes last."""
        from kernels_cuda.launch import synchronise

        tensors = [arg for arg in args if isinstance(arg, self.torch.Tensor)]  # alive until the launch is done
        passed = [ctypes.c_void_p(arg.data_ptr()) if isinstance(arg, self.torch.Tensor) else arg for arg in args]
        status = getattr(self.library, name)(*passed, ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream))
        if status:
            raise RuntimeError(f"probe.cu: {name} failed with cudaError {status}")
        synchronise(f"probe.cu: {name}")
        del tensors
