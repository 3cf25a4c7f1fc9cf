"""`references.arith.mufu` and `.libdevice` against recorded H200 results, their own readable form, and float64."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from references.arith import libdevice, mufu
from references.arith.bits import ulp_distance
from references.arith.site import Laboratory

F32, U32 = np.float32, np.uint32
HARDWARE = Path(__file__).parents[1] / "goldens" / "hardware" / "sm_90"
RECORDED = {"exp": "expf", "tanh": "tanhf", "rsqrt": "rsqrtf", "log": "logf", "sigmoid": "sigmoid", "exp_fast": "__expf"}
COMPILED = [(libdevice, name) for name in ("exp", "exp_fast", "tanh", "log")]
COMPILED += [(mufu, name) for name in ("rcp_approx", "rsqrt_approx", "rsqrt_approx_ftz", "ex2_approx")]
QUIET = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def f32(*bits: int) -> np.ndarray:
    return np.array(bits, U32).view(F32)


def mismatches(got: np.ndarray, want: np.ndarray) -> int:
    """Elements that differ in bits; two NaNs are alike."""
    assert got.dtype == want.dtype == F32 and got.shape == want.shape
    return int(np.count_nonzero((got.view(U32) != want.view(U32)) & ~(np.isnan(got) & np.isnan(want))))


@functools.cache
def samples() -> dict[str, np.ndarray]:
    with np.load(HARDWARE / "unary_samples.npz") as file:
        return {key: file[key].view(F32) for key in file.files}


@functools.cache
def patterns() -> np.ndarray:
    """2^20 random patterns, 2^20 of |x| in [2^-24, 2^8), and every exponent and sign with significands at and beside its ends."""
    rng = np.random.default_rng(0)
    anything, moderate = rng.integers(0, 1 << 32, (2, 1 << 20), dtype=U32)
    moderate = moderate & U32(0x807FFFFF) | rng.integers(103, 135, 1 << 20).astype(U32) << U32(23)
    fractions = U32([0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF])
    ends = np.arange(512, dtype=U32)[:, None] << U32(23) | fractions
    return np.concatenate([anything, moderate, ends.reshape(-1)]).view(F32)


def recorded_mismatches(function: Callable, name: str) -> int:
    z = samples()
    return sum(mismatches(function(z[f"x_{part}"]), z[f"{RECORDED[name]}_{part}"]) for part in "rs")


def test_the_recording_is_the_one_in_the_manifest():
    manifest = json.loads((HARDWARE / "MANIFEST.json").read_text())
    assert manifest["arch"] == "sm_90"
    assert hashlib.sha256((HARDWARE / "unary_samples.npz").read_bytes()).hexdigest() == manifest["files"]["unary_samples.npz"]["sha256"]


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_result(name):
    assert recorded_mismatches(getattr(libdevice, name), name) == 0


# ---- must fail: the recording sees one wrong bit of a table and each wrong instruction


def entry_read(table: str) -> tuple[str, int]:
    """A function that reads a table, and an entry that it reads at a recorded sample."""
    x = samples()["x_s"]
    if table == "ex2":
        return "exp", 0  # t = 0 next to x = 0, where many samples lie
    if table == "rsqrt":
        return "rsqrt", int(x[x > 0].view(U32)[0] ^ 0x800000) & 0xFFFFFF
    size = x[(x > 0.6) & (x < 0.8)][:1]
    return "tanh", int((mufu.ex2_approx(size * libdevice.TWO_LOG2E) + F32(1)).view(U32)[0]) & 0x7FFFFF


@pytest.mark.parametrize("table, bit", [("ex2", 0), ("rsqrt", 0), ("rcp", 2)])  # 1 - 2 / y rounds the lowest bits of 1 / y away
def test_one_wrong_bit_of_a_table_is_seen(table, bit, monkeypatch):
    function, index = entry_read(table)
    whole = mufu.table

    def corrupted(name):
        base, step = whole(name)
        if name == table:
            step = step.copy()
            step[index] ^= 1 << bit
        return base, step

    monkeypatch.setattr(mufu, "table", corrupted)
    monkeypatch.setattr(libdevice, "table", corrupted)
    assert recorded_mismatches(getattr(libdevice, function), function) > 0


STEPS = {  # how far a constant can move, in ulp, before the recording sees it: the high coefficients hardly reach the result
    "exp": {"LOG2E": 1, "LOG2E_LOW": -16, "LOG2E_PART": 128},
    "tanh": {"TWO_LOG2E": 1, "LARGE": -(2**13), "SATURATED": -(2**14), "T9": 2, "T7": -1, "T5": 1, "T3": 1},
    "log": {"LN2": 1, "L10": -256, "L9": -64, "L8": -32, "L7": -8, "L6": -2, "L5": 1, "L4": 1, "L3": 1, "L2": 1},
}


@QUIET
@pytest.mark.parametrize("name, constant", [(name, constant) for name in STEPS for constant in STEPS[name]])
def test_a_wrong_constant_is_seen(name, constant, monkeypatch):
    moved = getattr(libdevice, constant).view(np.int32) + np.int32(STEPS[name][constant])
    monkeypatch.setattr(libdevice, constant, moved.view(F32))
    assert recorded_mismatches(getattr(libdevice, f"{name}_defined"), name) > 0


@QUIET
@pytest.mark.parametrize("name, right, wrong", [
    ("exp", "fma_rm_defined", libdevice.fma_defined),
    ("exp", "fma_defined", lambda a, b, c: a * b + c),
    ("exp_fast", "LOWEST_EX2", F32(-np.inf)),
    ("tanh", "fma_defined", lambda a, b, c: a * b + c),
    ("log", "fma_defined", lambda a, b, c: a * b + c),
    ("log", "TWO_THIRDS", libdevice.TWO_THIRDS + np.int32(1 << 16)),
    ("log", "UP", F32(1)),
])  # fmt: skip
def test_a_wrong_instruction_is_seen(name, right, wrong, monkeypatch):
    monkeypatch.setattr(libdevice, right, wrong)
    assert recorded_mismatches(getattr(libdevice, f"{name}_defined"), name) > 0


# ---- the two derivations


@QUIET
@pytest.mark.parametrize("module, name", COMPILED)
def test_compiled_equals_readable(module, name):
    x = patterns()
    assert x.size > 2_000_000
    assert mismatches(getattr(module, name)(x), getattr(module, f"{name}_defined")(x)) == 0


TRUE = {"rcp": lambda v: 1 / (1 + v), "ex2": np.exp2, "rsqrt": lambda v: 1 / np.sqrt(1 + v)}


@pytest.mark.parametrize("name", TRUE)
def test_tables(name):
    """Unpacked, a table is the file's running sum; each entry is within 2 ulp of the function."""
    with np.load(mufu.TABLES) as file:
        expected = int(file[f"{name}_first"]) + np.concatenate([[0], np.cumsum(file[f"{name}_diff"], dtype=np.int64)])
    fraction = np.arange(1 << 23) / (1 << 23)
    v = np.concatenate([fraction, 1 + 2 * fraction]) if name == "rsqrt" else fraction
    assert np.array_equal(mufu.entry(name, np.arange(v.size)), expected)
    assert np.abs(expected - TRUE[name](v).astype(F32).view(np.int32)).max() <= 2


# ---- edges

INF = float("inf")
EDGES = {
    "exp": [(0, 1), (0x80000000, 1), (0x7F800000, INF), (0xFF800000, 0), (0x42B17218, INF), (0xC2CFF1B4, 2.0**-149), (0xC2CFF1B5, 0), (1, 1)],
    "tanh": [(0, 0), (0x80000000, -0.0), (1, 2.0**-149), (0x807FFFFF, -(2.0**-126 - 2.0**-149)), (0x41102CB4, 1), (0xFF800000, -1), (0x7F7FFFFF, 1)],
    "rsqrt": [(0, INF), (0x80000000, -INF), (0x7F800000, 0), (0xFF800000, np.nan), (0x80000001, np.nan), (0x3F800000, 1), (0x00000002, 2.0**74)],
    "log": [(0, -INF), (0x80000000, -INF), (0x7F800000, INF), (0xBF800000, np.nan), (0x80000001, np.nan), (0x3F800000, 0)],
    "sigmoid": [(0, 0.5), (0x80000000, 0.5), (0x7F800000, 1), (0xFF800000, 0), (0xC2B17219, 0), (0x42C80000, 1)],
    "rsqrt_approx_ftz": [(1, INF), (0x80000001, -INF), (0x807FFFFF, -INF), (0x80800000, np.nan), (0x7F800000, 0)],
    "rcp_approx": [(0, INF), (0x807FFFFF, -INF), (0x7F800000, 0), (0xFF800000, -0.0), (0x7E800000, 2.0**-126), (0xFE800001, -0.0)],
    "ex2_approx": [(0xC2FC0000, 2.0**-126), (0xC2FC0001, 0), (0x43000000, INF), (0x42FE0000, 2.0**127), (0xB3FFFFFF, 1), (0xBF800000, 0.5)],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    """Exact values at thresholds, zeros of both signs, subnormals and infinities; NaN stays NaN."""
    word = getattr(libdevice, name, None) or getattr(mufu, name)
    bits, values = zip(*EDGES[name], (0x7F800001, np.nan), (0xFFFFFFFF, np.nan), strict=True)
    got, want = word(f32(*bits)), F32(values)
    assert mismatches(got, want) == 0, [(hex(b), g, w) for b, g, w in zip(bits, got, want, strict=True)]
    assert mismatches(np.where(np.isnan(got), got, -got), want) > 0  # a sign is seen, that of zero too


@QUIET
@pytest.mark.parametrize("name, true, bound", [("exp", np.exp, 2), ("tanh", np.tanh, 2), ("log", np.log, 1), ("rsqrt", lambda v: 1 / np.sqrt(v), 2)])
def test_within_the_bounds_of_the_cuda_manual(name, true, bound):
    """Against float64 rounded to f32. A table or a constant that is wrong in both forms would show here."""
    x = np.concatenate([samples()["x_r"], samples()["x_s"], patterns()[-4096:]])
    x = x[~np.isnan(x)]
    got, want = getattr(libdevice, name)(x), true(x.astype(np.float64)).astype(F32)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.isnan(got), ~numbers)
    assert np.abs(ulp_distance(got[numbers].view(U32), want[numbers].view(U32), "f32")).max() <= bound


# ---- the words as words


def test_any_shape_and_no_other_type():
    x = samples()["x_s"][:6000].reshape(20, 300)
    flat = libdevice.exp(x.reshape(-1))
    assert mismatches(libdevice.exp(x), flat.reshape(x.shape)) == 0
    assert mismatches(libdevice.exp(x[::2, ::3]), flat.reshape(x.shape)[::2, ::3]) == 0
    assert libdevice.exp(np.array(0, F32)).shape == () and libdevice.exp(np.zeros((0, 3), F32)).shape == (0, 3)
    with pytest.raises(ValueError, match="float32 expected, got float64"):
        libdevice.tanh(np.zeros(3))


def emulate(x):
    return libdevice.sigmoid(x)  # S1


def test_the_parts_of_a_sigmoid_are_sites():
    x = samples()["x_s"]
    with Laboratory() as laboratory:
        assert mismatches(emulate(x), samples()["sigmoid_s"]) == 0
    parts = {f"S1.sigmoid.{word}" for word in ("sub", "exp", "add", "div")}
    assert laboratory.reached == {"S1.sigmoid"} | parts
    for part, fault in (("exp", lambda v: libdevice.exp_fast(*v.args)), ("div", lambda v: mufu.rcp_approx(v.args[1]))):
        with Laboratory(faults={f"S1.sigmoid.{part}": fault}):
            assert mismatches(emulate(x), samples()["sigmoid_s"]) > 0
