"""The tensor-core model against recorded H200 results, and its compiled form against its definition."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from references.arith import bench, mma, mma_fast

HARDWARE = Path(__file__).parents[1] / "goldens" / "hardware" / "sm_90"
INSTRUCTIONS = ("mma_m16n8k16_bf16", "mma_edge_bf16")
CUBLAS = {"1_7168_7168": 2, "8_12288_7168": 1, "16_1536_7168": 4, "64_7168_12288": 2, "4096_7168_7168": 1}  # m_n_k: splits


def bf16(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.uint16).view(ml_dtypes.bfloat16)


def recorded(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """a [n,16,1,16] and b [n,1,8,16] bf16, c [n,16,8] f32, d [n,16,8] as bits."""
    with np.load(HARDWARE / f"{name}.npz") as z:
        return bf16(z["a"])[:, :, None], bf16(z["b"])[:, None], z["c"].view(np.float32), z["d"]


def misses(name: str, form=mma.define_dot16) -> int:
    a, b, c, d = recorded(name)
    return int((form(a, b, c).view(np.uint32) != d).sum())


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def operands(seed: int, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(np.hstack([bench.draw(rng, rows) for _ in range(k // 16)]) for rows in (m, n))


def mild(seed: int, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((rows, k), dtype=np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))


# The device


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.parametrize("form", [mma.define_dot16, mma.dot16], ids=["definition", "compiled"])
def test_every_recorded_instruction(name, form):
    assert misses(name, form) == 0


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_every_recorded_instruction_in_lanes(name):
    a, b, c, d = recorded(name)
    for i in range(len(a)):
        tile = c[i : i + 1].copy()
        mma_fast.accumulate(a[i, :, 0].view(np.uint16), b[i, 0].view(np.uint16), tile)
        assert np.array_equal(tile[0].view(np.uint32), d[i]), f"{name}, instruction {i}"


@pytest.mark.parametrize("constant, value", [("FRACTION", 24), ("FRACTION", 26), ("FLOOR", -1000), ("FLOOR", -134), ("FLOOR", -132)])
def test_recorded_instructions_see_another_constant(monkeypatch, constant, value):
    monkeypatch.setattr(mma, constant, value)
    assert misses("mma_edge_bf16") > 0
    assert (misses("mma_m16n8k16_bf16") > 0) == (constant == "FRACTION")  # nothing there is near the floor


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_recorded_instructions_see_rounding_to_nearest(monkeypatch, name):
    monkeypatch.setattr(mma, "_toward_zero", lambda x: x.astype(np.float32) + np.float32(0))
    with np.errstate(over="ignore"):
        assert misses(name) > 0


def test_recorded_instructions_see_terms_rounded_to_nearest(monkeypatch):
    monkeypatch.setattr(mma, "_shift", lambda x, left: np.rint(np.ldexp(x.astype(np.float64), np.maximum(left, -99))).astype(np.int64))
    assert all(misses(name) > 0 for name in INSTRUCTIONS)


def test_recorded_instructions_see_the_sign_of_a_zero_sum(monkeypatch):
    whole = mma._toward_zero
    monkeypatch.setattr(mma, "_toward_zero", lambda x: np.where((x < 0) & (whole(x) == 0), np.float32(-0.0), whole(x)))
    assert misses("mma_edge_bf16") > 0


@pytest.mark.parametrize("shape", CUBLAS)
def test_cublas_is_the_chain_with_its_recorded_split(shape):
    with np.load(HARDWARE / "cublas_bf16_f32.npz") as z:
        a, b, c = bf16(z[f"a_{shape}"]), bf16(z[f"b_{shape}"]), z[f"c_{shape}"]
    merged = {}
    for splits in (1, 2, 4):
        parts = mma.gemm(a, b, splits)
        merged[splits] = parts[0]
        for part in parts[1:]:
            merged[splits] = merged[splits] + part
    assert [splits for splits, got in merged.items() if np.array_equal(got.view(np.uint32), c)] == [CUBLAS[shape]]
    few = slice(0, 2)
    assert_same_bits(mma.define_gemm(a[:1], b[few], CUBLAS[shape]), mma.gemm(a, b, CUBLAS[shape])[:, :1, few])


# The two forms


def test_forms_agree_on_random_results_of_every_kind():
    done, wrong, kinds = bench.check(1_000_000)
    assert wrong == 0
    assert min(kinds.values()) > done // 100, kinds


@pytest.mark.parametrize("constant, value", [("FRACTION", 24), ("FLOOR", -1000), ("FLOOR", -134), ("FLOOR", -132)])
def test_disagreeing_forms_are_seen(monkeypatch, constant, value):
    monkeypatch.setattr(mma, constant, value)
    assert bench.check(200_000)[1] > 5


@pytest.mark.parametrize("m, n, k, splits", [(1, 1, 16, 1), (3, 33, 96, 2), (40, 70, 128, 4), (5, 300, 64, 1)])
def test_gemm_forms_agree_on_edge_operands(m, n, k, splits):
    a, b = operands(m, m, n, k)
    assert_same_bits(mma.gemm(a, b, splits), mma.define_gemm(a, b, splits))


@pytest.mark.parametrize("threads", [1, 3])
def test_tiles_and_threads_change_nothing(threads):
    m, n, k = mma_fast.ROWS + 9, mma_fast.COLUMNS * 2 + 5, 64
    a, b = mild(0, m, n, k)
    assert m * n * k > mma_fast.THREADED
    out = np.zeros((2, m, n), np.float32)
    mma_fast.accumulate(a.view(np.uint16), b.view(np.uint16), out, threads)
    assert_same_bits(out, mma.define_gemm(a, b, 2))


def test_a_split_starts_from_plus_zero_and_keeps_its_part_of_k():
    a, b = mild(1, 4, 8, 96)
    parts = mma.gemm(a, b, 3)
    assert parts.shape == (3, 4, 8)
    for s in range(3):
        assert_same_bits(parts[s], mma.gemm(a[:, 32 * s : 32 * s + 32], b[:, 32 * s : 32 * s + 32])[0])
    assert not np.array_equal(parts.sum(axis=0), mma.gemm(a, b)[0])


def test_a_zero_takes_no_part_in_the_alignment():
    """0 * 2^127 beside 2^-40 * 1: counted, its exponent would push the live product out."""
    a, b = np.zeros((2, 16), np.float32), np.zeros((2, 16), np.float32)
    a[:, 0], b[:, 0], b[1, 1:] = 2.0**-40, 1, 2.0**127
    for form in (mma.define_dot16, mma.dot16):
        assert form(a, b, np.zeros(2, np.float32)).tolist() == [2.0**-40, 2.0**-40]
    assert mma.gemm(a, b)[0].tolist() == [[2.0**-40] * 2] * 2


def test_zero_padding_of_k_changes_nothing():
    a, b = operands(2, 20, 40, 32)
    pad = ((0, 0), (0, 32))
    assert_same_bits(mma.gemm(np.pad(a, pad), np.pad(b, pad)), mma.gemm(a, b))
    assert mma.gemm(a[:, :0], b[:, :0]).view(np.uint32).tolist() == np.zeros((1, 20, 40), int).tolist()


def test_operands_may_be_f32_read_only_or_strided():
    a, b = operands(3, 6, 10, 64)
    want = mma.gemm(a, b)
    wide = b.astype(np.float32)
    wide.flags.writeable = False
    assert_same_bits(mma.gemm(a.astype(np.float32), wide), want)
    assert_same_bits(mma.gemm(np.asfortranarray(a), np.repeat(b, 2, axis=0)[::2]), want)
    c = np.zeros((10, 6), np.float32).T
    assert_same_bits(mma.dot16(a[:, None, :16], b[:, :16], c), mma.gemm(a[:, :16], b[:, :16])[0])


# Refusals

X = np.zeros((2, 32), np.float32)
INEXACT = np.full((2, 32), 1 + 2.0**-8, np.float32)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((X[0], X), r"^a must be \[rows, k\], not \[32\]"),
        ((X, X[None]), r"^b must be \[rows, k\], not \[1, 2, 32\]"),
        ((X, X[:, :16]), r"^b has k = 16, but a has k = 32"),
        ((X, X, 4), r"^k = 32 of a is not a multiple of 16 \* splits = 64"),
        ((X[:, :24], X[:, :24]), r"^k = 24 .* = 16; pad"),
        ((X, X, 0), r"^splits must be a positive integer, not 0"),
        ((X, X, 2.0), r"^splits must be a positive integer, not 2.0"),
        ((X.astype(np.float64), X), r"^a must be bfloat16 or float32, not float64"),
        ((X, INEXACT), r"^b holds 1.00390625, which is not a bf16 value"),
    ],
)
@pytest.mark.parametrize("form", [mma.define_gemm, mma.gemm], ids=["definition", "compiled"])
def test_gemm_refuses(form, arguments, message):
    with pytest.raises(ValueError, match=message):
        form(*arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((X, X[:, :16], X[:, 0]), r"^a must be \[..., 16\], not \[2, 32\]"),
        ((X[:, :16], X[0, 0], X[:, 0]), r"^b must be \[..., 16\], not \[\]"),
        ((X[:, :16], X[:, :16], X[0, :3]), r"^a \[2, 16\], b \[2, 16\] and c \[3\] do not broadcast"),
        ((X[:, :16], X[:, :16], X[:, 0].astype(ml_dtypes.bfloat16)), r"^c must be float32, not bfloat16"),
    ],
)
@pytest.mark.parametrize("form", [mma.define_dot16, mma.dot16], ids=["definition", "compiled"])
def test_dot16_refuses(form, arguments, message):
    with pytest.raises(ValueError, match=message):
        form(*arguments)


# The bench


def test_bench_prints_every_shape_and_form(monkeypatch, capsys):
    monkeypatch.setattr(bench, "SHAPES", {"prefill": (4, 32, 64), "decode": (1, 64, 64)})
    monkeypatch.setattr(bench, "SECONDS", 0.01)
    assert bench.main([]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {(row[0], row[4]) for row in rows} == {(shape, form) for shape in bench.SHAPES for form in ("NumPy", "compiled")}
    assert all(float(row[-1].replace(",", "")) > 0 for row in rows)


def test_bench_check_fails_when_the_forms_differ(monkeypatch, capsys):
    assert bench.main(["--check", "65536"]) == 0
    assert "65,536 results, 0 differ" in capsys.readouterr().out
    monkeypatch.setattr(mma, "FRACTION", 26)
    assert bench.main(["--check", "65536"]) == 1


# Chains continued


def test_gemm_from_continues_what_gemm_begins():
    a, b = operands(7, 5, 6, 64)
    whole = mma.gemm(a, b)[0]
    assert_same_bits(mma.gemm_from(0, a, b), whole)
    assert_same_bits(mma.gemm_from(mma.gemm(a[:, :32], b[:, :32])[0], a[:, 32:], b[:, 32:]), whole)
    assert not np.array_equal(mma.gemm_from(mma.gemm(a[:, 32:], b[:, 32:])[0], a[:, :32], b[:, :32]).view(np.uint32), whole.view(np.uint32))


def test_gemm_from_takes_a_batch_and_refuses_two():
    pairs = [mild(seed, 3, 4, 16) for seed in range(6)]
    a, b = (np.stack(factors).reshape(2, 3, -1, 16) for factors in zip(*pairs, strict=True))
    acc = np.arange(72, dtype=np.float32).reshape(2, 3, 3, 4)
    got = mma.gemm_from(acc, a, b)
    assert_same_bits(got.reshape(6, 3, 4), np.stack([mma.gemm_from(c, *pair) for c, pair in zip(acc.reshape(6, 3, 4), pairs, strict=True)]))
    with pytest.raises(ValueError, match=r"b has the leading axes \[1, 3\], but a has \[2, 3\]"):
        mma.gemm_from(0, a, b[:1])
    with pytest.raises(ValueError, match="multiple of 16"):
        mma.gemm_from(0, a[..., :8], b[..., :8])
