"""What a command of references says where it cannot do what it is asked: one line of what is missing, and status 2."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kernels_cuda import toolchain
from references.__main__ import main

CPU = SimpleNamespace(__version__="2.13.0+cpu", version=SimpleNamespace(cuda=None))


def refused(capsys, *words: str) -> str:
    assert main([*words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    return said


@pytest.mark.parametrize(("torch", "said"), [(None, "torch cannot be imported"), (CPU, "torch 2.13.0+cpu is a build without CUDA")])
@pytest.mark.parametrize("words", [("probe",), ("k3", "bisect", "emulator", "cuda")], ids=" ".join)
def test_a_machine_without_cuda(words, torch, said, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    toolchain.toolchain.cache_clear()
    told = refused(capsys, *words)
    assert said in told and "pip install torch" in told


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "a byte is another", "no array", "one array alone"])
def test_damaged_inputs(damage, capsys, tmp_path):
    path = tmp_path / "in.npz"
    np.savez(path, p=np.arange(99))
    content, array = path.read_bytes(), path.read_bytes().index(b"\x93NUMPY")
    damaged = {"empty": b"", "text": b"text", "cut": content[: len(content) // 2], "a byte is another": content.replace(b"\x07", b"\x08", 1),
               "no array": content.replace(b"\x93NUMPY", b"\x93NUMPX"), "one array alone": content[array : content.index(b"PK", array)]}
    path.write_bytes(damaged[damage])
    said = f"error: {path} is damaged or not an .npz of arrays ({len(damaged[damage])} bytes): write it with numpy.savez\n"
    assert refused(capsys, "run", "land", str(path), "-o", str(tmp_path / "out.npz")) == said
    assert not (tmp_path / "out.npz").exists()


def test_outputs_that_cannot_be_written(capsys, tmp_path):
    np.savez(tmp_path / "in.npz", p=np.zeros((1, 1, 3), np.float32), off=0, n=3)
    reasons = {".": "Is a directory", "none/out.npz": "No such file or directory", "in.npz/out.npz": "Not a directory"}
    for path, why in ((tmp_path / place, why) for place, why in reasons.items()):
        assert refused(capsys, "run", "land", str(tmp_path / "in.npz"), "-o", str(path)).endswith(f"{why}: '{path}'\n")


def test_inputs_that_are_not_there(capsys, tmp_path):
    assert "No such file" in refused(capsys, "run", "land", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz"))


REFUSED = {  # what is asked, and what is said of it
    "bisect emulator emulator+bogus=S3.bf:truncated": r"KERNEL must be one of add2, .*, got 'bogus'",
    "bisect emulator+land=S9.bf:none emulator": r"MISTAKE of land must be one of S1.zero:minus_zero, .*, got 'S9.bf:none'",
    "bisect cuda emulator+fmha=1": r"MISTAKE of fmha must be one of S1.mul:landed, .*, got '1' in 'emulator\+fmha=1'",
    "bisect cuda cuda+land=99": r"MISTAKE of land must be one of 1 \(S1.zero:minus_zero\), 2 \(.*\), 3 \(.*\), got '99' in 'cuda\+land=99'",
    "bisect emulator cuda+mla_paged=1": r"MISTAKE of mla_paged must be one of 5 \(mma/.*\), 6 \(.*\), 7 \(.*\), got '1'",
    "bisect emulator emulator+mla_paged=two_pass/S4.add:fused": "MISTAKE of mla_paged must be one of mma/.*, got 'two_pass/S4.add:fused'",
    "bisect emulator emulator+fmha=S6.bf:truncated --steps 1": "fmha is never called in these steps, which call add2, .*, situ",
    "bisect emulator emulator --steps 0": "--steps must be at least 1, got 0",
    "bisect emulator emulator --steps -1": "--steps must be at least 1, got -1",
    "cp --seconds 0": "--seconds must be above 0 and at most 1000000, got 0",
    "cp --seconds -5": "--seconds must be above 0 and at most 1000000, got -5",
    "cp --seconds nan": "--seconds must be above 0 and at most 1000000, got nan",
    "cp --seconds inf": "--seconds must be above 0 and at most 1000000, got inf",
    "cp --ranks 9 --segments 2,1": "--ranks must be left out where --segments says it, got 9 beside 2,1",
    "cp --tokens 3 --segments 2,1": "--tokens must be left out where --segments says it, got 3 beside 2,1",
    "cp --segments a,b,c": "--segments must be integers of at least 1, with commas between them, got 'a,b,c'",
    "cp --segments 2,0": "--segments must be integers of at least 1, with commas between them, got '2,0'",
    "cp --segments=-1,2": "--segments must be integers of at least 1, with commas between them, got '-1,2'",
    "cp --ranks 0": "--ranks must be at least 1, got 0",
    "cp --tokens 0": "--tokens must be at least 4, one for each of 4 ranks, got 0",
    "cp --tokens -3 --ranks 2": "--tokens must be at least 2, one for each of 2 ranks, got -3",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_k3_refuses(words, capsys, monkeypatch):
    """Before torch is imported."""
    monkeypatch.setitem(sys.modules, "torch", None)
    toolchain.toolchain.cache_clear()
    assert re.match(f"error: {REFUSED[words]}", refused(capsys, "k3", *words.split()))


def test_a_mistake_that_steps_show(capsys):
    assert main(["k3", "bisect", "emulator", "emulator+land=S3.bf:truncated", "--steps", "1"]) == 1
    assert capsys.readouterr().out.startswith("first: step 0, layer 0: land (call 1) parts at S3.bf[0, 0]: ")
    assert main(["k3", "bisect", "emulator", "emulator", "--steps", "1"]) == 0
    assert capsys.readouterr().out == "1 steps: every call gives the same bits\n"
