"""The striped triangle: what each rank attends, reads and hands back, and the attention that comes of it."""

import random
from itertools import pairwise

import numpy as np
import pytest

from references.contract.inputs import BF16, F32, ordinary
from references.contract.mistakes import same_bits
from references.floor import distances
from references.floor.fmha import SCALE
from references.floor.prefill import BOUNDS
from references.k3 import striped as module
from references.k3.attention import Merged, attend, emulators
from references.k3.striped import helped, kept, load, read_by, returns, slab_layout, slab_of, slots, striped

RANKS = range(1, 33)


# The schedule


def uncovered(ranks, kept=kept, helped=helped):
    """Pairs of a query and an earlier key segment that are not attended exactly once, with how often they are."""
    times = {(q, k): 0 for q in range(ranks) for k in range(q)}
    for rank in range(ranks):
        for pair in [*((rank, k) for k in kept(rank)), *((q, rank) for q in helped(ranks, rank))]:
            times[pair] += 1
    return {pair: count for pair, count in times.items() if count != 1}


@pytest.mark.parametrize("ranks", RANKS)
def test_every_pair_is_attended_once(ranks):
    assert not uncovered(ranks)
    for rank in range(ranks):
        assert [*kept(rank)] == [k for k in range(rank) if (rank - k) % 2]  # the owner attends the odd distances
        assert [*helped(ranks, rank)] == [q for q in range(rank + 1, ranks) if (q - rank) % 2 == 0]


def test_uncovered_pairs_are_seen():
    assert uncovered(4, kept=lambda rank: range(rank)) == {(2, 0): 2, (3, 1): 2}
    assert uncovered(4, helped=lambda ranks, rank: range(rank + 2, ranks - 1, 2)) == {(3, 1): 0}


@pytest.mark.parametrize("ranks", RANKS)
def test_sets_mirror_each_other(ranks):
    every = range(ranks)
    assert {(r, k) for r in every for k in kept(r)} == {(r, k) for k in every for r in read_by(ranks, k)}
    by_helper = {(helper, slot, owner) for helper in every for slot, owner in enumerate(helped(ranks, helper))}
    assert by_helper == {(helper, slot, owner) for owner in every for slot, helper in enumerate(returns(owner))}


@pytest.mark.parametrize("ranks", RANKS)
def test_slots(ranks):
    """(ranks - 1) / 2 is meant rounded down: it is what rank 0 helps, for even counts too."""
    assert slots(ranks) == (ranks - 1) // 2 == max(len(helped(ranks, rank)) for rank in range(ranks))
    assert all(len(returns(rank)) <= slots(ranks) for rank in range(ranks))


@pytest.mark.parametrize("ranks", RANKS)
def test_loads(ranks):
    """Every odd count is balanced; of an even one the odd ranks have half a pair more than the average of ranks / 2."""
    loads = [load(ranks, rank) for rank in range(ranks)]
    assert sum(loads) == ranks**2 / 2
    assert max(loads) == ((ranks + 1) / 2 if ranks % 2 == 0 else ranks / 2) <= (ranks + 3) / 2
    assert max(rank + 0.5 for rank in range(ranks)) == ranks - 0.5  # unstriped: each owner attends all of its pairs


def test_loads_of_8():
    assert [load(8, rank) for rank in range(8)] == [3.5, 4.5] * 4


@pytest.mark.parametrize("tokens, heads", [(0, 1), (1, 1), (3, 5), (4096, 96)])
def test_slabs_do_not_overlap(tokens, heads):
    edges = [edge for slab in slab_layout(tokens, heads) for edge in (slab.o, slab.lse, slab.end)]
    sizes = [tokens * heads * 256, tokens * heads * 4] * module.SLABS
    starts = [edge for slab in slab_layout(tokens, heads) for edge in (slab.o, slab.lse)]
    assert all(edge % 16 == 0 for edge in edges) and edges == sorted(edges)
    assert all(start + size <= after for (start, after), size in zip(pairwise([*starts, edges[-1]]), sizes, strict=True))
    assert all(slab_of(slot) != slab_of(slot + 1) for slot in range(16))


# The attention


def segments(tokens, heads=2, seed=1):
    """q, k and v of each rank; scores as far apart as real ones."""
    drawn = [ordinary(seed + i, (sum(tokens), heads, width), size) for i, (width, size) in enumerate(((192, 2.0), (192, 1.0), (128, 1.0)))]
    ends = np.cumsum(tokens)[:-1]
    return [np.split(x, ends) for x in drawn]


def literal(q, k, v):
    """The merge order as it is stated: kept segments ascending, the own diagonal, helpers by slot."""
    results = []
    for rank in range(len(q)):
        merged = Merged(emulators, *q[rank].shape[:2])
        for segment in [*kept(rank), rank, *returns(rank)]:
            merged.merge(*attend(emulators, q[rank], k[segment], v[segment], SCALE, causal=segment == rank))
        results.append(merged.result())
    return results


def same(got, want):
    return all(same_bits(a, b) for one, other in zip(got, want, strict=True) for a, b in zip(one, other, strict=True))


def orders():
    """Ways to choose who goes on: one rank as far as it can, the last first, and by chance."""
    yield min
    yield max
    for seed in range(6):
        yield random.Random(seed).choice


def remembered():
    """The emulators, each fmha once: only the merges depend on the order."""
    known = {}

    def run(kernel, inputs):
        if kernel.name != "fmha":
            return kernel.outputs(inputs)
        key = tuple(inputs[name].tobytes() for name in "qkv")
        if key not in known:
            known[key] = kernel.outputs(inputs)
        return known[key]

    return run


TOKENS = [
    pytest.param([9] * 8, id="equal"),
    pytest.param([9, 1, 30, 2, 17, 1, 5, 21], id="unequal"),
    pytest.param([0, 9, 4, 0, 0, 11, 6, 0], id="empty"),  # a rank owning no tokens
    pytest.param([140, 3, 131, 20, 7], id="several_tiles"),
    pytest.param([0, 0, 0, 12], id="only_the_last"),
    pytest.param([12], id="alone"),
]


@pytest.mark.parametrize("tokens", TOKENS)
def test_any_order_gives_the_bits_of_the_merge_order(tokens):
    q, k, v = segments(tokens)
    want, run = literal(q, k, v), remembered()
    for pick in orders():
        assert same(striped(run, q, k, v, SCALE, pick), want)


@pytest.mark.parametrize("tokens", TOKENS)
def test_inside_the_floor_of_the_single_call(tokens):
    q, k, v = segments(tokens, seed=7)
    got = striped(emulators, q, k, v, SCALE)
    o, lse = attend(emulators, *map(np.concatenate, (q, k, v)), SCALE, causal=True)
    assert [len(part) for part, _ in got] == tokens
    assert distances(np.concatenate([part for part, _ in got]), o).max() <= BOUNDS["striped ~ causal"].ulp
    assert np.abs(np.concatenate([part for _, part in got], axis=1) - lse).max() < 1e-5


def differing_orders():
    q, k, v = segments([40] * 7)
    run, want = remembered(), literal(q, k, v)
    return [pick for pick in orders() if not same(striped(run, q, k, v, SCALE, pick), want)]


def test_mistakes_are_seen(monkeypatch):
    """Merges in another order, a slab that is written before its last return is merged, a rank that never returns."""
    assert not differing_orders()
    with monkeypatch.context() as patch:
        patch.setattr(module, "kept", lambda rank: kept(rank)[::-1])
        assert differing_orders()
    with monkeypatch.context() as patch:
        patch.setattr(module, "slab_of", lambda slot: 0)
        assert differing_orders()
    with monkeypatch.context() as patch:
        patch.setattr(module, "helped", lambda ranks, rank: helped(ranks, rank) if rank else range(0))
        with pytest.raises(RuntimeError, match="no rank can go on; rank 2 waits for layer 0 attention of rank 0; "):
            differing_orders()


def test_refusals():
    q, k, v = segments([3, 2])
    with pytest.raises(ValueError, match="q, k and v must have a segment of every rank, got 2, 1 and 2"):
        striped(emulators, q, k[:1], v, SCALE)
    with pytest.raises(ValueError, match=r"q, k and v of rank 1 must have the same tokens, got \[2, 3, 2\]"):
        striped(emulators, q, [k[0], k[0]], v, SCALE)
    assert q[0].dtype == BF16 and attend(emulators, q[0], k[0][:0], v[0][:0], SCALE, True)[1].dtype == F32
