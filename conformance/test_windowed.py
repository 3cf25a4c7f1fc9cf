"""The windowed walk: dense windows, then the causal one, against the single causal call."""

import numpy as np
import pytest

from references.arith import log
from references.contract.inputs import ordinary
from references.contract.mistakes import emulate_with, find, same_bits
from references.floor import distances
from references.floor.fmha import SCALE
from references.floor.prefill import BOUNDS
from references.k3 import attention
from references.k3.attention import Merged, attend, cut, emulators, windowed

pytestmark = pytest.mark.kernels("fmha", "lse_merge", "o_finalize")
FLOOR = BOUNDS["windowed ~ causal"].ulp


def operands(t_q, t_kv, seed=1):
    return ordinary(seed, (t_q, 2, 192), 2.0), ordinary(seed + 1, (t_kv, 2, 192)), ordinary(seed + 2, (t_kv, 2, 128))


def apart(walked, single):
    """Distance of the outputs in ULP, of the LSEs in absolute terms: the larger is told in units of what it may be."""
    return max(distances(walked[0], single[0]).max() / FLOOR, np.abs(walked[1] - single[1]).max() / 1e-5)


WALKS = [
    pytest.param(20, (), id="no_past"),
    pytest.param(20, (64,), id="one_window"),
    pytest.param(1, (1,), id="one_token_each"),
    pytest.param(1, cut(129, 128), id="one_query_and_a_tail_of_one"),
    pytest.param(33, cut(129, 64), id="a_tail_of_one"),
    pytest.param(130, cut(257, 128), id="queries_past_a_tile_and_a_tail_of_one"),
    pytest.param(5, (1, 130, 1, 64, 1), id="windows_of_one_between"),
]


@pytest.mark.parametrize("t_q, windows", WALKS)
def test_inside_the_floor_of_the_single_call(t_q, windows):
    q, k, v = operands(t_q, sum(windows) + t_q)
    walked, single = windowed(emulators, q, k, v, SCALE, windows), attend(emulators, q, k, v, SCALE, causal=True)
    assert apart(walked, single) <= 1
    if not windows:
        assert same_bits(walked[0], single[0]) and same_bits(walked[1], single[1])


def test_cut():
    assert cut(129, 64) == (64, 64, 1) and cut(128, 64) == (64, 64) and cut(3, 64) == (3,) and cut(0, 64) == ()
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        cut(4, 0)


def test_mistakes_leave_the_floor(monkeypatch):
    """A window attended twice, the causal window attended densely, an LSE in base 2."""
    q, k, v = operands(20, 149)
    single = attend(emulators, q, k, v, SCALE, causal=True)
    twice = windowed(emulators, q, np.concatenate([k[:64], k]), np.concatenate([v[:64], v]), SCALE, (64, 64, 64, 1))
    assert apart(twice, single) > 1
    with monkeypatch.context() as patch:
        patch.setattr(attention, "attend", lambda run, q, k, v, scale, causal: attend(run, q, k, v, scale, causal=False))
        assert apart(windowed(emulators, q, k, v, SCALE, (64, 65)), single) > 1

    def base_2(kernel, inputs):
        outputs = kernel.outputs(inputs)
        return outputs | {"lse": outputs["lse"] / log(np.float32(2))} if kernel.name == "fmha" else outputs

    assert apart(windowed(base_2, q, k, v, SCALE, (64, 65)), single) > 1


def test_windows_that_are_not_the_past():
    q, k, v = operands(4, 12)
    for windows in ((), (7,), (4, 5), (8, 0), (9, -1)):
        with pytest.raises(ValueError, match=r"windows must be positive and sum to t_kv - t_q = 8, got "):
            windowed(emulators, q, k, v, SCALE, windows)


# Windows without a key


def merged(windows, run=emulators):
    result = Merged(run, *windows[0][0].shape[:2])
    for o, lse in windows:
        result.merge(o, lse)
    return result.acc, result.lse


def windows_and_nothing():
    """Three windows of 6 tokens, and one that nobody sees a key of, its o stale."""
    drawn = [(ordinary(10 + i, (6, 2, 128)), ordinary(20 + i, (2, 6), 4.0, np.dtype(np.float32))) for i in range(3)]
    return drawn, (np.full_like(drawn[0][0], np.nan), np.full_like(drawn[0][1], -np.inf))


def test_an_empty_window_changes_no_bit():
    """Wherever it comes; as the first it leaves nothing that could be seen."""
    windows, nothing = windows_and_nothing()
    want = merged(windows)
    for place in range(4):
        for got, expected in zip(merged([*windows[:place], nothing, *windows[place:]]), want, strict=True):
            assert same_bits(got, expected)
    acc, lse = merged([nothing, nothing])
    assert same_bits(acc, np.zeros_like(acc)) and (lse == -np.inf).all()


def test_rows_without_a_key_do_not_depend_on_their_place():
    """Masked rows first, in the middle or last; the live rows keep their bits."""
    windows, nothing = windows_and_nothing()
    want = merged(windows)
    for masked in ([0, 1], [2, 3], [4, 5]):
        hidden = [(o.copy(), lse.copy()) for o, lse in windows]
        for o, lse in hidden:
            o[masked], lse[:, masked] = nothing[0][masked], -np.inf
        acc, lse = merged(hidden)
        live = [row for row in range(6) if row not in masked]
        assert not acc[masked].view(np.uint32).any() and (lse[:, masked] == -np.inf).all()
        assert same_bits(acc[live], want[0][live]) and same_bits(lse[:, live], want[1][:, live])


def test_a_merge_without_its_exceptions_is_seen():
    windows, nothing = windows_and_nothing()

    def careless(kernel, inputs):
        mistake = "S7.choose:never"
        return emulate_with(kernel, find(kernel, mistake, inputs), inputs)

    assert np.isnan(merged([windows[0], nothing], careless)[0]).all() and not np.isnan(merged([windows[0], nothing])[0]).any()
