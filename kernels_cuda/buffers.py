"""Device memory that catches a wrong access: every array lies between guard bands, and all that is not input is poison."""

from __future__ import annotations

from math import prod

import numpy as np

from references.contract.signature import DTYPES, Operand

GUARD_BYTES = 256
DEVICE = "cuda"
LAYOUTS = ("aligned", "offset", "strided", "ragged")
INPLACE = "inplace"  # aligned, and outputs lie where the kernel allows it: on an input
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}  # torch has these for every width, and they move bits untouched
# A NaN that no kernel stores (theirs is 0x7fff), as bf16 and as f32; 0xff is the e4m3 NaN.
POISON = {1: 0xFF, 2: 0xFFA5, 4: 0xFFA5FFA5, 8: 0xFFA5FFA5FFA5FFA5}
_ROW_GAP = {"strided": 8, "ragged": 3}  # elements between rows: the first keeps rows of bf16 on 16 bytes, the second moves them off


class MemoryFault(RuntimeError):
    """A kernel touched memory it must not touch, or left a part of an output unwritten."""


def layouts_of(kernel) -> tuple[str, ...]:
    """The layouts that differ for this kernel: rows spread apart only where its signature names a row stride."""
    return (LAYOUTS if kernel.signature.strides else LAYOUTS[:2]) + ((INPLACE,) if kernel.inplace else ())


class Buffer:
    """One array on the device. `pointer` is its first element; `pitch` the elements from row to row.

    aligned: 16-byte base; offset: one element past it; strided, ragged: rows spread where the operand names a stride.
    """

    def __init__(self, operand: Operand, shape: tuple[int, ...], layout: str = "aligned", guard_bytes: int = GUARD_BYTES):
        import torch

        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        self.name, self.shape, self.dtype = operand.name, tuple(shape), DTYPES[operand.dtype]
        width = prod(shape[1:])
        self.pitch = width + (_ROW_GAP.get(layout, 0) if operand.stride else 0)
        item = self.dtype.itemsize
        self._poison = int(np.array(POISON[item], f"u{item}").astype(SIGNED[item]))
        self._start = guard_bytes // item + (layout == "offset")
        rows = shape[0] if shape else 1
        size = self._start + max(0, rows - 1) * self.pitch + min(rows, 1) * width + guard_bytes // item
        self.raw = torch.full((size,), self._poison, dtype=getattr(torch, SIGNED[item].__name__), device=DEVICE)
        self.body = self._body(self.raw)
        self.pointer = self.raw.data_ptr() + self._start * item
        self._pristine = None

    def _body(self, raw):
        inner = [prod(self.shape[axis + 1 :]) for axis in range(1, len(self.shape))]
        return raw.as_strided(self.shape, (self.pitch, *inner)[: len(self.shape)], self._start)

    def upload(self, values: np.ndarray) -> Buffer:
        """Fill with an input; from now on `check_unchanged` holds it to these bits."""
        import torch

        values = np.ascontiguousarray(values)
        values = values if values.flags.writeable else values.copy()  # torch warns of arrays it could write to but must not
        self.body.copy_(torch.from_numpy(values.view(SIGNED[self.dtype.itemsize])))
        self._pristine = self.raw.clone()
        return self

    def poison(self) -> None:
        self.raw.fill_(self._poison)

    def restore(self) -> None:
        """The input again as it was uploaded."""
        self.raw.copy_(self._pristine)

    def check_around(self) -> None:
        """MemoryFault for a write beside the array."""
        changed = self.raw != self._pristine
        self._body(changed).fill_(False)
        if changed.any():
            raise MemoryFault(f"{self.name} was written outside its array: {self._place(changed)}")

    def check_unchanged(self) -> None:
        import torch

        if not torch.equal(self.raw, self._pristine):
            raise MemoryFault(f"{self.name} is an input and was written: {self._place(self.raw != self._pristine)}")

    def download(self) -> np.ndarray | None:
        """The output, or None where nothing was written. MemoryFault for a partly written one or a write outside it."""
        if self.body.numel() == 0:
            return np.empty(self.shape, self.dtype)
        written = self.raw != self._poison
        inside = self._body(written)
        count = int(inside.sum())
        if int(written.sum()) != count:
            inside.fill_(False)
            raise MemoryFault(f"{self.name} was written outside its array: {self._place(written)}")
        if count == 0:
            return None
        if count < inside.numel():
            first = tuple(int(i) for i in (~inside).nonzero()[0])
            raise MemoryFault(f"{self.name}{list(first)} is the first of {inside.numel() - count:,} elements of {inside.numel():,} left unwritten")
        return self.landed()

    def landed(self) -> np.ndarray:
        """The array as it is, poison included."""
        return self.body.contiguous().cpu().numpy().view(self.dtype)

    def _place(self, changed):
        """Where the first changed element lies, counted from the first of the array."""
        spots = changed.nonzero()
        at = int(spots[0]) - self._start
        row, column = divmod(at, max(1, self.pitch))
        where = f"{-at} elements before it" if at < 0 else f"row {row}, column {column} of rows {prod(self.shape[1:])} wide, {self.pitch} apart"
        return f"{len(spots):,} elements, the first {where}; shape {list(self.shape)}"


class Overwritten:
    """An output on top of an input. What the kernel leaves unwritten holds the input, so only other bits tell."""

    def __init__(self, buffer: Buffer):
        self.buffer, self.pointer, self.pitch = buffer, buffer.pointer, buffer.pitch

    def poison(self) -> None:
        self.buffer.restore()

    def download(self) -> np.ndarray:
        self.buffer.check_around()
        return self.buffer.landed()
