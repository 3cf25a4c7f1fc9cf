"""What a command of references says where it cannot do what it is asked: one line of what is missing, and status 2."""

from __future__ import annotations

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
