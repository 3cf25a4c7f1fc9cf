"""The speed of the tensor-core emulation; with `--check N`, N random results of the compiled forms against the definition."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from references.arith import mma, mma_fast

SHAPES = {"prefill": (256, 512, 2048), "decode": (1, 7168, 7168)}
KINDS = ("normal", "subnormal", "zero", "infinite", "NaN")
# Exponent fields (first, how many) that a row draws from: ordinary, wide, any, subnormal, tiny, huge, the last finite ones beside inf and NaN.
WINDOWS = np.array([(118, 16), (64, 128), (0, 256), (0, 3), (0, 72), (184, 71), (250, 6)])
# Products below 2^-133, the alignment floor, beside subnormal accumulators: too rare in the above, so every fourth round has only them.
FLOOR_OPERANDS, FLOOR_ACCUMULATORS = np.array([(50, 12), (50, 4)]), np.array([(0, 1)])
SIDE = 256
SECONDS = 0.7


def main(argv: Sequence[str] | None = None) -> int:
    """Print rates in million products a second, or check; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m references bench", description=__doc__)
    parser.add_argument("--check", type=int, metavar="N", help="compare N random results of the compiled forms with the definition, and time nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the operands (default 0)")
    args = parser.parse_args(argv)
    if args.check is not None:
        if args.check < 1:
            parser.error(f"--check must be positive, not {args.check}")
        return _report_check(args.check, args.seed)
    rng = np.random.default_rng(args.seed)
    print(f"{'shape':8} {'m':>5} {'n':>5} {'k':>5}  {'form':9} {'cores':>5}  {'M products/s':>12}")
    for name, (m, n, k) in SHAPES.items():
        a, b = _gaussian(rng, m, k), _gaussian(rng, n, k)
        few = b[: 2**22 // (m * k)]  # the definition is slow: a few columns tell its rate
        _print_rate(name, (m, len(few), k), "NumPy", 1, lambda a=a, b=few: mma.define_gemm(a, b))
        for threads in sorted({1, mma_fast.cores()}):
            _print_rate(name, (m, n, k), "compiled", threads, lambda a=a, b=b, threads=threads: _compiled(a, b, threads))
    return 0


def draw(rng: np.random.Generator, rows: int, windows: np.ndarray = WINDOWS) -> np.ndarray:
    """bf16 operands [rows, 16]; each row draws its exponents from one window, and a third of the rows hold zeros of both signs."""
    first, count = windows[rng.integers(len(windows), size=rows)].T[:, :, None]
    field = first + rng.integers(1 << 16, size=(rows, 16)) % count
    bits = rng.integers(2, size=(rows, 16)) << 15 | field << 7 | rng.integers(128, size=(rows, 16))
    zeros = rng.random((rows, 16)) < rng.choice([0, 0, 0, 0, 0.5, 1], size=(rows, 1))
    bits[zeros] &= 0x8000
    bits[rows // 2 :, 8:] = bits[rows // 2 :, :8]  # with `mirror` on the other side the products cancel
    return bits.astype(np.uint16).view(ml_dtypes.bfloat16)


def mirror(x: np.ndarray) -> np.ndarray:
    """x [rows, 16] with the second half of every other row the first half negated."""
    bits = x.view(np.uint16).copy()
    bits[::2, 8:] = bits[::2, :8] ^ 0x8000
    return bits.view(ml_dtypes.bfloat16)


def draw_f32(rng: np.random.Generator, shape: tuple[int, ...], windows: np.ndarray = WINDOWS) -> np.ndarray:
    """Accumulators, each from a window of its own, with zeros of both signs."""
    first, count = np.moveaxis(windows[rng.integers(len(windows), size=shape)], -1, 0)
    field = first + rng.integers(1 << 16, size=shape) % count
    bits = rng.integers(2, size=shape) << 31 | field << 23 | rng.integers(1 << 23, size=shape)
    bits[rng.random(shape) < 0.1] &= 1 << 31
    return bits.astype(np.uint32).view(np.float32)


def check(results: int, seed: int = 0) -> tuple[int, int, dict[str, int]]:
    """Compare at least `results` random results; returns how many, how many differ in either compiled form, and how many of each kind there were."""
    rng = np.random.default_rng(seed)
    done, wrong, kinds = 0, 0, dict.fromkeys(KINDS, 0)
    for turn in range(-(-results // SIDE**2)):
        operands, accumulators = (WINDOWS, WINDOWS) if turn % 4 else (FLOOR_OPERANDS, FLOOR_ACCUMULATORS)
        a, b, c = draw(rng, SIDE, operands), mirror(draw(rng, SIDE, operands)), draw_f32(rng, (SIDE, SIDE), accumulators)
        want = mma.define_dot16(a[:, None], b, c).view(np.uint32)
        tile = c.copy()[None]
        mma_fast.accumulate(a.view(np.uint16), b.view(np.uint16), tile)
        single = mma.dot16(a[:, None], b, c)
        wrong += int(((tile[0].view(np.uint32) != want) | (single.view(np.uint32) != want)).sum())
        done += want.size
        for kind, count in zip(KINDS, _count_kinds(want), strict=True):
            kinds[kind] += count
    return done, wrong, kinds


def _count_kinds(bits: np.ndarray) -> list[int]:
    magnitude = bits & 0x7FFFFFFF
    edges = [(magnitude == 0), (magnitude > 0) & (magnitude < 0x800000), magnitude == 0x7F800000, magnitude > 0x7F800000]
    zero, subnormal, infinite, nan = (int(edge.sum()) for edge in edges)
    return [bits.size - zero - subnormal - infinite - nan, subnormal, zero, infinite, nan]


def _report_check(results: int, seed: int) -> int:
    start = time.perf_counter()
    done, wrong, kinds = check(results, seed)
    found = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    print(f"{done:,} results, {wrong:,} differ between the definition and a compiled form ({time.perf_counter() - start:.1f} s)")
    print(f"results: {found}")
    return 1 if wrong else 0


def _gaussian(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    return rng.standard_normal((rows, k), dtype=np.float32).astype(ml_dtypes.bfloat16)


def _compiled(a: np.ndarray, b: np.ndarray, threads: int) -> None:
    mma_fast.accumulate(a.view(np.uint16), b.view(np.uint16), np.zeros((1, len(a), len(b)), np.float32), threads)


def _print_rate(name: str, shape: tuple[int, int, int], form: str, threads: int, run: Callable[[], object]) -> None:
    """The fastest of the runs that fit in SECONDS; the first one compiles and does not count."""
    run()
    best, stop = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < stop or best == float("inf"):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    m, n, k = shape
    print(f"{name:8} {m:5} {n:5} {k:5}  {form:9} {threads:5}  {m * n * k / best / 1e6:12,.0f}")


if __name__ == "__main__":
    raise SystemExit(main())
