"""Every one of the 2^32 inputs of each scalar function, on the device and in the emulator; and the tables measured anew."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from references.arith import libdevice, mufu
from references.probe.device import Device

# In the order of probe.cu's enum: what the device runs, and the word that emulates it.
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rcp.approx.ftz": mufu.rcp_approx,
    "rsqrt.approx.ftz": mufu.rsqrt_approx_ftz,
    "rsqrt.approx": mufu.rsqrt_approx,
    "ex2.approx.ftz": mufu.ex2_approx,
    "expf": libdevice.exp,
    "tanhf": libdevice.tanh,
    "rsqrtf": libdevice.rsqrt,
    "logf": libdevice.log,
    "sigmoid": libdevice.sigmoid,
}
BLOCK = 1 << 24
SAMPLE = np.arange(1 << 16, dtype=np.uint32) * np.uint32(0x10001)  # recorded inputs: all high halves, each with another low half


def mismatches(device: Device, name: str, threads: int, inputs: int = 1 << 32) -> tuple[int, int | None]:
    """Compare all inputs; the count that differs and the first such input's bits. Two NaNs are equal whatever their payload."""
    emulated, function = FUNCTIONS[name], list(FUNCTIONS).index(name)

    def part(first: int, measured: np.ndarray) -> tuple[int, int | None]:
        x = np.arange(first, first + measured.size, dtype=np.uint64).astype(np.uint32).view(np.float32)
        wrong = np.flatnonzero(unequal(measured, emulated(x)))
        return wrong.size, first + int(wrong[0]) if wrong.size else None

    count, witness = 0, None
    with ThreadPoolExecutor(threads) as pool:
        for wrong, first in pool.map(lambda at: part(at, device.unary(function, at, min(BLOCK, inputs))), range(0, inputs, BLOCK)):
            count += wrong
            witness = first if witness is None else witness
    return count, witness


def unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))


def tables(device: Device) -> dict[str, np.ndarray]:
    """The three tables as this device has them: uint32 bits of rcp over [1, 2), rsqrt over [1, 4), ex2 over [0, 1) in steps of 2^-23."""
    one, two, octave = 0x3F80_0000, 0x4000_0000, 1 << 23
    steps = (np.arange(1 << 23) * 2.0**-23).astype(np.float32)  # exact
    return {
        "rcp": device.unary(0, one, octave).view(np.uint32),
        "rsqrt": np.concatenate([device.unary(1, start, octave) for start in (one, two)]).view(np.uint32),
        "ex2": device.unary_at(3, steps.view(np.uint32)).view(np.uint32),
    }


def shipped(name: str) -> np.ndarray:
    """The table the emulator uses, uint32 bits."""
    size = 1 << (24 if name == "rsqrt" else 23)
    return mufu.entry(name, np.arange(size)).astype(np.uint32)


def samples(device: Device) -> dict[str, np.ndarray]:
    """Device results at SAMPLE, uint32 bits by function: what tests on a CPU are held to."""
    return {name: device.unary_at(function, SAMPLE).view(np.uint32) for function, name in enumerate(FUNCTIONS)}
