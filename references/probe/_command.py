"""python -m references probe: measure this GPU's arithmetic and hold the emulator to it."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import time
from pathlib import Path

import numpy as np

from references.contract.files import write_whole
from references.probe import tensor_core, units, vendor
from references.probe.device import Device

HARDWARE = Path(__file__).resolve().parents[2] / "goldens" / "hardware"


def probe_tables(device: Device) -> dict[str, int]:
    measured = units.tables(device)
    moved = {name: int(np.count_nonzero(bits != units.shipped(name))) for name, bits in measured.items()}
    for name, count in moved.items():
        print(f"table {name:6} {measured[name].size:>10,} entries measured, {count} differ from the shipped table")
    return moved


def probe_units(device: Device, threads: int) -> dict[str, int]:
    wrong = {}
    for name in units.FUNCTIONS:
        start = time.perf_counter()
        wrong[name], first = units.mismatches(device, name, threads)
        witness = "" if first is None else f", first at 0x{first:08x}"
        print(f"{name:17} 4,294,967,296 inputs, {wrong[name]} mismatches{witness}  ({time.perf_counter() - start:.1f} s)", flush=True)
    return wrong


def probe_tensor_core(device: Device, results: int, threads: int) -> dict[str, dict[str, int]]:
    counts = {}
    for regime in tensor_core.REGIMES:
        compared, wrong = tensor_core.mismatches(device, regime, results // len(tensor_core.REGIMES) + 1, threads)
        counts[regime] = {"compared": compared, "mismatches": wrong}
        print(f"mma {regime:19} {compared:>12,} results, {wrong} mismatches", flush=True)
    print(f"mma {'total':19} {sum(c['compared'] for c in counts.values()):>12,} results, {sum(c['mismatches'] for c in counts.values())} mismatches")
    return counts


def probe_vendor(device: Device) -> list[vendor.Product]:
    found = list(vendor.sweep(device))
    print("vendor GEMM, bf16 x bf16: the parts of k whose f32 chains, added in order, reproduce it")
    print(f"(4: equal parts; 7u64: whole tiles of 64, the last part shorter; '-': none of 1..{vendor.SPLITS} parts of whole tiles does;")
    print(" '*': the bf16 output is not the landed f32 output)")
    rows = sorted({one.m for one in found})
    print(f"{'projection':20} {'n':>6} {'k':>6}  " + "".join(f"{f'm={m}':>7}" for m in rows))
    for name, (n, k) in vendor.PROJECTIONS.items():
        print(f"{name:20} {n:>6} {k:>6}  " + "".join(f"{one.cell():>7}" for one in found if one.name == name))
    return found


def record(device: Device, summary: dict, found: list[vendor.Product]) -> None:
    """Write goldens/hardware/<arch>/: samples that CPU tests hold the emulator to, and probe.json last."""
    folder = HARDWARE / device.arch
    folder.mkdir(parents=True, exist_ok=True)
    files = {"probe_units.npz": units.samples(device), "probe_mma.npz": tensor_core.samples(device), "probe_vendor.npz": vendor.samples(found)}
    for name, arrays in files.items():
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        write_whole(folder / name, file.getvalue())
        summary.setdefault("sha256", {})[name] = hashlib.sha256(file.getvalue()).hexdigest()
    write_whole(folder / "probe.json", (json.dumps(summary, indent=1) + "\n").encode())
    print(f"recorded {', '.join(files)} and probe.json in {folder}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m references probe", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write goldens/hardware/<arch>/")
    parser.add_argument("--results", type=int, default=1 << 27, help="tensor-core results to compare (default 2^27)")
    args = parser.parse_args(argv)
    threads = os.cpu_count() or 1
    device = Device()
    summary: dict = device.describe()
    print(", ".join(f"{key} {value}" for key, value in summary.items()))
    summary["table_entries_moved"] = probe_tables(device)
    summary["mismatches_of_2^32"] = probe_units(device, threads)
    summary["mma"] = probe_tensor_core(device, args.results, threads)
    found = probe_vendor(device)
    summary["vendor"] = [one.summary() for one in found]
    if args.record:
        record(device, summary, found)
    wrong = sum(summary["table_entries_moved"].values()) + sum(summary["mismatches_of_2^32"].values())
    return 1 if wrong + sum(one["mismatches"] for one in summary["mma"].values()) else 0
