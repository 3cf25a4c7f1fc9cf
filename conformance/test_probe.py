"""The probe on stand-in devices, and the emulator held to what the probe recorded on real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from references.arith import as_bf16, bf, gemm
from references.probe import tensor_core, units, vendor
from references.probe.regimes import REGIMES

HARDWARE = Path(__file__).resolve().parents[1] / "goldens" / "hardware"
RECORDED = sorted(path.parent for path in HARDWARE.glob("*/probe.json"))


class StandIn:
    """A device that is the emulator, wrong by one bit at `wrong_input` and in the tensor-core result `wrong_result` of every batch."""

    def __init__(self, wrong_input: int | None = None, wrong_result: int | None = None):
        self.wrong_input, self.wrong_result = wrong_input, wrong_result

    def unary(self, function: int, first: int, count: int) -> np.ndarray:
        x = np.arange(first, first + count, dtype=np.uint32)
        y = list(units.FUNCTIONS.values())[function](x.view(np.float32))
        y.view(np.uint32)[x == self.wrong_input] ^= np.uint32(1)
        return y

    def mma(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        d = tensor_core.emulated(a, b, c)
        if self.wrong_result is not None:
            d.view(np.uint32).reshape(-1)[self.wrong_result] ^= np.uint32(1)
        return d


@pytest.mark.parametrize("name", units.FUNCTIONS)
def test_one_wrong_input_is_found(name):
    assert units.mismatches(StandIn(), name, 2, 1 << 16) == (0, None)
    assert units.mismatches(StandIn(wrong_input=0x1234), name, 2, 1 << 16) == (1, 0x1234)


@pytest.mark.parametrize("regime", REGIMES)
def test_one_wrong_tensor_core_result_is_found(regime, monkeypatch):
    monkeypatch.setattr(tensor_core, "TILES", 8)
    assert tensor_core.mismatches(StandIn(), regime, 2000, 2) == (2048, 0)
    assert tensor_core.mismatches(StandIn(wrong_result=77), regime, 2000, 2) == (2048, 2)


def test_regimes_reach_what_they_are_for():
    results = {name: tensor_core.emulated(*make(0, 64)) for name, make in REGIMES.items()}
    low = {name: np.count_nonzero((d != 0) & (np.abs(d) < 2.0**-126)) for name, d in results.items()}
    assert low["tiny"] > 100 and low["subnormal"] > 100
    assert np.isposinf(results["huge"]).any() and np.isneginf(results["huge"]).any()
    assert np.isinf(results["brink"]).any() and (results["brink"] == np.finfo(np.float32).max).any()
    assert (results["cancelling"] == 0).any() and not (np.signbit(results["cancelling"]) & (results["cancelling"] == 0)).any()
    for name in ("every_pattern", "sprinkled"):
        assert np.isnan(results[name]).any() and np.isfinite(results[name]).any()


K = 896  # 14 tiles of 64: 4 parts of 64 are not the equal ones; of 128 in 3, of 32 in 6 and of 16 in 3 give parts that no other tile gives


class Vendor:
    """A vendor whose GEMM adds the chains of k's parts as listed by their widths; its bf16 output is landed from f32 scaled by `bf16_scale`."""

    def __init__(self, *widths: int, descending: bool = False, bf16_scale: float = 1.0):
        stops = np.cumsum(widths)
        self.parts = [slice(stop - width, stop) for width, stop in zip(widths, stops, strict=True)][:: -1 if descending else 1]
        self.bf16_scale = np.float32(bf16_scale)

    def vendor(self, m: int, n: int, k: int, rows: np.ndarray, columns: np.ndarray) -> dict[str, np.ndarray]:
        drawn = np.random.default_rng(m)
        a, b = (as_bf16(bf(drawn.standard_normal((len(index), k)).astype(np.float32))) for index in (rows, columns))
        total = np.zeros((len(rows), len(columns)), np.float32)
        for part in self.parts:
            total = total + gemm(a[:, part], b[:, part])[0]
        return {"a": a, "b": b, "f32": total, "bf16": as_bf16(bf(total * self.bf16_scale))}


@pytest.mark.parametrize(("device", "cell"), [
    (Vendor(896), "1"), (Vendor(224, 224, 224, 224), "4"), (Vendor(*[64] * 14), "14"), (Vendor(448, 448, bf16_scale=1.01), "2*"),
    (Vendor(256, 256, 256, 128), "4u64"), (Vendor(384, 384, 128), "3u128"), (Vendor(*[160] * 5, 96), "6u32"), (Vendor(304, 304, 288), "3u16"),
    (Vendor(256, 256, 256, 128, descending=True), "-"), (Vendor(128, 256, 256, 256), "-"), (Vendor(256, 192, 256, 192), "-"),
    (Vendor(*[16] * 56), "-"),
])
def test_an_accumulation_order_is_named(device, cell, monkeypatch):
    monkeypatch.setattr(vendor, "PROJECTIONS", {"small": (128, K)})
    assert [(one.m, one.cell()) for one in vendor.sweep(device, rows=(1, 64))] == [(1, cell), (64, cell)]


def test_every_order_is_tried_once():
    for _, k in vendor.PROJECTIONS.values():
        parts = [order.part(k) for order in vendor.orders(k)]
        assert len(parts) == len(set(parts)) and all(-(-k // part) <= vendor.SPLITS for part in parts)
        assert {k // splits for splits in range(1, vendor.SPLITS + 1) if k % (16 * splits) == 0} <= set(parts)


@pytest.mark.parametrize(("splits", "tile", "problem"), [(0, 64, "splits must be positive, not 0"), (4, 24, "16, not 24"), (4, 0, "16, not 0")])
def test_an_order_that_is_none(splits, tile, problem):
    with pytest.raises(ValueError, match=problem):
        vendor.Order(splits, tile)


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def recorded(request):
    def read(name: str) -> dict[str, np.ndarray]:
        with np.load(request.param / name) as file:
            return {key: file[key] for key in file.files}

    return read


def test_a_device_was_recorded():
    assert "sm_90" in [folder.name for folder in RECORDED]


@pytest.mark.parametrize("name", units.FUNCTIONS)
def test_recorded_functions(recorded, name):
    emulated = units.FUNCTIONS[name](units.SAMPLE.view(np.float32))
    assert not units.unequal(recorded("probe_units.npz")[name].view(np.float32), emulated).any()


def test_recorded_tensor_core(recorded):
    tiles = recorded("probe_mma.npz")
    emulated = tensor_core.emulated(*(as_f32_bits(tiles[name]) for name in "abc"))
    wrong = (emulated.view(np.uint32) != tiles["d"]).any(axis=(1, 2))
    assert not wrong.any(), [list(REGIMES)[number] for number in np.unique(tiles["regime"][wrong])]


def test_recorded_vendor(recorded):
    """Of all orders exactly the recorded one reproduces the product."""
    file, uneven = recorded("probe_vendor.npz"), 0
    for i, (splits, tile) in enumerate(zip(file["splits"], file["tiles"], strict=True)):
        slices, order = {name: as_f32_bits(file[f"{i}.{name}"]) for name in ("a", "b", "f32")}, vendor.Order(int(splits), int(tile))
        k = slices["a"].shape[1]
        assert [tried for tried in vendor.orders(k) if vendor.same(vendor.merged(slices, tried), slices["f32"])] == [order], i
        assert vendor.same(as_bf16(bf(slices["f32"])), file[f"{i}.bf16"]), i
        uneven += not order.even(k)
    assert uneven > 4 and len(file["splits"]) - uneven > 4


def as_f32_bits(bits: np.ndarray) -> np.ndarray:
    """bf16 (uint16) or f32 (uint32) patterns -> f32."""
    return (bits.astype(np.uint32) << np.uint32(8 * (4 - bits.itemsize))).view(np.float32)
