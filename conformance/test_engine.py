"""The engine beside its kernels: slots, buckets, tokens, weights, and what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest

from goldens.walks import digest
from kernels_cuda.launch import CudaError
from references.contract import Kernel
from references.contract.inputs import BF16
from references.k3 import weights
from references.k3.backend import Emulators, Mixture
from references.k3.config import K3, SMALL, Config
from references.k3.engine import Engine, NotANumber
from references.k3.model import Model


@pytest.fixture(scope="module")
def model():
    return Model(SMALL, Emulators())


def test_the_layers_of_k3():
    assert K3.mla[:3] == (3, 7, 11) and K3.mla[-2:] == (91, 92) and len(K3.mla) == 24
    assert SMALL.mla == (3,) and SMALL.layers // SMALL.block == 2
    assert (K3.inner, K3.buckets) == (12288, (1, 2, 4, 8, 16, 32, 48, 64, 96, 128))


@pytest.mark.parametrize("config", [SMALL, K3], ids=["small", "k3"])
def test_every_split_is_whole(config: Config):
    """The k of each landed projection comes out even in blocks of 16."""
    for k in (config.hidden, config.inner, config.q_lora, config.dense, config.shared, config.routed, 512):
        assert k % (16 * config.split) == 0


def test_weights_are_the_same_bits_everywhere():
    """Recorded once: a change of any of them changes every step golden."""
    parts = [weights.ends(SMALL), *(weights.layer(SMALL, i) for i in range(SMALL.layers))]
    bits = np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for part in parts for array in vars(part).values()])
    assert f"{digest(bits):016x}" == "1d88f94847c1f831"


def test_weights_differ():
    first, second = (weights.layer(SMALL, i) for i in (1, 2))
    assert all(not np.array_equal(a, b) for a, b in zip(vars(first).values(), vars(second).values(), strict=True))


def test_buckets():
    assert [SMALL.bucket(rows) for rows in (1, 2, 3, 33, 128)] == [1, 2, 4, 48, 128]
    with pytest.raises(ValueError, match="rows must be at most 128, got 129"):
        SMALL.bucket(129)


@pytest.mark.parametrize(
    "tokens, bucket, said",
    [
        ({}, None, r"tokens must be one of each live slot \[1\], got slots \[\]"),
        ({0: 1, 1: 1}, None, r"tokens must be one of each live slot \[1\], got slots \[0, 1\]"),
        ({1: 1.9}, None, "token must be an integer of 0 .. 511, got 1.9"),
        ({1: 512}, None, "token must be an integer of 0 .. 511, got 512"),
        ({1: 1}, 4, "bucket must be at most 2, that of 2 slots, got 4"),
    ],
)
def test_steps_that_are_refused(model, tokens, bucket, said):
    engine = Engine(model, slots=2)
    engine.admit(1)
    with pytest.raises(ValueError, match=said):
        engine.step(tokens, bucket)
    assert engine.state.parity == 0 and not engine.pages.length.any()


def test_tokens_of_numpy():
    SMALL.check_tokens(np.arange(SMALL.vocab))


def test_emulators_have_no_graphs(model):
    engine = Engine(model, slots=1)
    engine.admit(0)
    with pytest.raises(ValueError, match="graph must be False where kernels are emulated, got True"):
        engine.step({0: 1}, graph=True)


def test_slots_that_are_refused(model):
    engine = Engine(model, slots=2)
    engine.admit(1)
    for slot in (1, 2, -1):
        with pytest.raises(ValueError, match=f"slot must be a free one of 2, got {slot}"):
            engine.admit(slot)
    with pytest.raises(ValueError, match="tokens must be at least one, got none"):
        engine.prefill(0, [])
    with pytest.raises(ValueError, match="transport must be one of moe_chain, moe_mega, got 'chain'"):
        Model(SMALL, Emulators(), "chain")


def test_a_nan_logit_is_reported(model):
    """And nothing is sampled: a NaN in what a sequence carries reaches its logits, and no other's."""
    engine = Engine(model, slots=2)
    for slot in (0, 1):
        engine.admit(slot)
    engine.state.memory[0][0, 1, 0, 0, 0] = np.nan
    _, ids = engine.step({0: 1, 1: 1})
    assert engine.greedy(ids, 0) >= 0
    with pytest.raises(NotANumber, match="slot 1 has a NaN logit"):
        engine.greedy(ids, 1)


def test_an_empty_slot_is_not_released(model):
    with pytest.raises(ValueError, match=r"slot must be a live one of .*, got 0"):
        Engine(model, slots=1).release(0)


def test_a_slot_begins_empty(model):
    """Whatever its last tenant left."""
    fresh, used = Engine(model, slots=1), Engine(model, slots=1)
    fresh.admit(0)
    used.admit(0)
    for token in (5, 6, 7):
        used.step({0: token})
    used.release(0)
    for held in (*used.state.carry.values(), *used.state.memory.values()):
        held[:] = np.nan
    used.admit(0)
    assert used.pages.free and np.array_equal(*(engine.step({0: 9})[0].view(np.uint16) for engine in (fresh, used)))


def test_a_mixture_runs_the_kernels_it_names():
    ran = {"base": [], "other": []}

    class Noted(Emulators):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def run(self, kernel, inputs, into=None):
            ran[self.name].append(kernel.name)
            return super().run(kernel, inputs, into)

    engine = Engine(Model(SMALL, Mixture(Noted("base"), Noted("other"), ["land", "kda_core"])), slots=1)
    engine.admit(0)
    want = Engine(Model(SMALL, Emulators()), slots=1)
    want.admit(0)
    got = engine.step({0: 3})[0]
    assert got.dtype == BF16 and np.array_equal(got.view(np.uint16), want.step({0: 3})[0].view(np.uint16))
    assert {*ran["other"]} == {"land", "kda_core"} and not {"land", "kda_core"} & {*ran["base"]}


# The device's side, on the host


@pytest.fixture
def host(monkeypatch):
    """Its backend, with tensors of the host, up to a launch."""
    pytest.importorskip("torch", reason="its arrays are torch's")
    from references.k3.device import Cuda, build

    monkeypatch.setattr(build, "toolchain", lambda: None)
    monkeypatch.setattr(Cuda, "upload", Cuda._host)
    return Cuda()


def test_targets_that_are_refused(host):
    """Before a kernel writes where it is told."""
    kernel = Kernel.load("kda_fold")
    zeros = host.torch.zeros
    inputs = {name: zeros(shape) for name, shape in {"mm": (1, 2, 128, 128), "d": (1, 2, 128, 128), "state": (2, 128, 128)}.items()}
    for target, got in ((zeros(3, 128, 128), r"torch.float32 \[3, 128, 128\]$"), (zeros(2, 128, 128).int(), r"torch.int32 \[2, 128, 128\]$"),
                        (zeros(128, 2, 128).transpose(0, 1), r"torch.float32 \[2, 128, 128\], not contiguous$")):
        with pytest.raises(ValueError, match=rf"into next must be contiguous torch.float32 \[2, 128, 128\], got {got}"):
            host._launched(None, kernel, inputs, {"next": target})


def test_a_landing_that_cannot_be_traced(host, monkeypatch):
    def said(text):
        return lambda status: text

    library = SimpleNamespace(trace=lambda tag, pointer: 13, cudaGetErrorName=said(b"cudaErrorInvalidSymbol"), cudaGetErrorString=said(b"no symbol"))
    monkeypatch.setattr(host, "_library", lambda kernel, *defines: library)
    like = {"S3.bf": np.zeros(3, BF16), "S4.bf": np.zeros(3, BF16)}
    with pytest.raises(CudaError, match=r"land: trace\(0\): cudaErrorInvalidSymbol \(13\): no symbol"):
        host.landed(Kernel.load("land"), {}, like)


def test_a_pool_without_room_changes_nothing(model):
    """Two sequences of 64 rows and one page left: neither is fed; a prompt of three pages is not begun."""
    engine = Engine(model, 2, pool=3)
    for slot in range(2):
        engine.prefill(slot, [1] * 64)
    before = engine.pages.table.copy(), engine.pages.length.copy(), engine.state.parity
    with pytest.raises(ValueError, match=r"rows of slots \[0, 1\] need 2 more pages, 1 of 3 are free"):
        engine.step({0: 1, 1: 1})
    assert all(map(np.array_equal, (engine.pages.table, engine.pages.length, engine.state.parity), before))
    engine.release(0)
    with pytest.raises(ValueError, match=r"rows of slots \[0\] need 3 more pages, 2 of 3 are free"):
        engine.prefill(0, [1] * 129, cap=64)
    assert engine.live == {1} and not engine.pages.length[0]
