"""Links between ranks: what is sent is received in any order of ranks, in process and between processes; a rank that is lost is named in time."""

import importlib.util
import os
import random
import signal
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.fixtures import needs_torch
from references.k3 import processes
from references.k3._command import main
from references.k3.distributed import NOBODY, Distributed
from references.k3.processes import named, spawned
from references.k3.ranks import RankLost, in_process

WAIT = 2.0  # seconds that a rank may keep others waiting
SLOW = 30.0  # seconds that it does


class BadDay(Exception):
    """Is pickled, and cannot be unpickled."""

    def __init__(self, number, what):
        super().__init__(f"{number} {what}")


def ring(link, size=3):
    """Everyone sends twice to everyone, then receives: what came, by source."""
    for to in range(link.ranks):
        if to != link.rank:
            for part in range(2):
                link.send(to, f"part {part}", np.full(size, 10 * link.rank + part, np.float32))
    sources = [rank for rank in range(link.ranks) if rank != link.rank]
    return [[int(link.receive(source, f"part {part}", np.empty(size, np.float32))[-1]) for part in range(2)] for source in sources]


def all_sent(ranks):
    return [[[10 * source, 10 * source + 1] for source in range(ranks) if source != rank] for rank in range(ranks)]


def lost(link, how):
    """Rank 1 is lost; the last waits for rank 0, and that for rank 1."""
    if link.rank == 1:
        if how == "raises":
            raise BadDay(1, "bad day")
        if how == "sends something else":
            return link.send(0, "another word", np.zeros(1, np.uint8))
        if how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "dies":
            os._exit(1)
        if how == "sleeps":
            time.sleep(SLOW)
    waits_for = 1 if link.rank == 0 else 0
    return link.receive(waits_for, "a word", np.empty(1, np.uint8))


# In process


@pytest.mark.parametrize("pick", [min, max, random.Random(1).choice, random.Random(2).choice])
def test_any_order(pick):
    assert in_process(ring, 4, pick) == all_sent(4)


def test_alone():
    assert in_process(lambda link: (link.rank, link.ranks), 1) == [(0, 1)]


def test_one_works_at_a_time():
    at_work = []

    def work(link):
        for _ in range(20):
            at_work.append(link.rank)
            time.sleep(1e-4)
            assert at_work.pop() == link.rank and not at_work
            link.send((link.rank + 1) % 3, "turn", np.zeros(1))
            link.receive((link.rank + 2) % 3, "turn", np.zeros(1))

    in_process(work, 3, random.Random(5).choice)


def test_what_is_sent_may_change_once_it_is_taken():
    def work(link):
        if link.rank == 1:
            return [int(link.receive(0, "number", np.empty(1, np.int64))[0]) for _ in range(3)]
        held = np.zeros(1, np.int64)
        for number in range(3):
            held[0] = number
            link.send(1, "number", held).wait()

    for pick in (min, max):
        assert in_process(work, 2, pick)[1] == [0, 1, 2]


def test_a_rank_that_raises():
    with pytest.raises(RankLost, match="rank 1 failed: BadDay: 1 bad day") as caught:
        in_process(lambda link: lost(link, "raises"), 3)
    assert caught.value.rank == 1 and isinstance(caught.value.__cause__, BadDay)


def test_a_rank_that_sleeps():
    start = time.monotonic()
    with pytest.raises(RankLost, match=r"rank 1 has worked for 0\.3 s without a word; rank 0 waits for a word of rank 1; "):
        in_process(lambda link: lost(link, "sleeps"), 3, seconds=0.3)
    assert time.monotonic() - start < SLOW / 2


def test_ranks_that_wait_for_each_other():
    with pytest.raises(RuntimeError, match="no rank can go on; rank 0 waits for a word of rank 1; rank 1 waits for a word of rank 0"):
        in_process(lambda link: link.receive(1 - link.rank, "a word", np.empty(1)), 2)


def test_something_else_is_sent():
    def work(link, what, like):
        return link.send(1, "halo", np.zeros(3, np.float32)) if link.rank == 0 else link.receive(0, what, like)

    for what, like in (("state", np.zeros(3, np.float32)), ("halo", np.zeros(4, np.float32)), ("halo", np.zeros(3))):
        with pytest.raises(RankLost, match=rf"rank 0 sends halo float32\[3\] where {what} {like.dtype}\[{len(like)}\] is received"):
            in_process(lambda link, what=what, like=like: work(link, what, like), 2)


def test_something_is_not_taken():
    with pytest.raises(RankLost, match=r"^rank 1 ended and did not take halo of rank 0$"):
        in_process(lambda link: link.rank or link.send(1, "halo", np.zeros(3)), 2)


def test_an_interrupt_leaves_no_thread():
    def interrupted(can):
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        in_process(ring, 3, interrupted)
    until = time.monotonic() + SLOW
    while threading.active_count() > before:
        assert time.monotonic() < until, f"{threading.active_count() - before} threads after {SLOW:g} s"
        time.sleep(1e-3)


# Between processes


@needs_torch
def test_processes():
    """Messages larger than what a socket takes at once: everyone sends before anyone receives."""
    assert spawned(ring, 2, "gloo", 1 << 20, seconds=60) == all_sent(2)


@needs_torch
@pytest.mark.parametrize("how, ranks, said", [
    ("raises", 2, "^rank 1 failed: BadDay: 1 bad day"), ("dies", 2, "^rank 1 ended without a word"),
    ("stops", 3, r"^rank 1 is lost: rank . waited [23]\.\d s for rank [01], a word of it"),
    ("sends something else", 2, r"^rank [01] is lost: rank [01] waited [23]\.\d s for rank [01], (a word of it|which is to take another word)"),
], ids=["raises", "dies", "stops", "sends something else"])
def test_a_process_that_is_lost(how, ranks, said):
    start = time.monotonic()
    with pytest.raises(RankLost, match=said):
        spawned(lost, ranks, "gloo", how, seconds=WAIT)
    assert time.monotonic() - start < SLOW


def test_who_says_nothing_is_named():
    """Rank 1 was stopped while it waited for rank 2, which waits for it since: to rank 0 it looks as if rank 2 were at the end."""
    said = {0: RankLost(2, "by rank 0"), 2: RankLost(1, "by rank 2")}
    assert str(named(said, {1, 3})) == "rank 1 by rank 2"
    assert str(named(said, set())) == "rank 2 by rank 0"
    assert str(named({0: RankLost(NOBODY, "could not be linked")}, {1, 2})) == "rank 1 is lost: rank 0 could not be linked"
    assert str(named({0: RankLost(NOBODY, "could not be linked")}, set())) == "rank 0 is lost: rank 0 could not be linked"


def test_who_is_lost_while_others_go_on():
    """Rank 1 stops waiting for rank 2 as soon as it was looked at."""

    class Waits(list):
        def __getitem__(self, rank):
            found, self[rank] = super().__getitem__(rank), NOBODY
            return found

    link = SimpleNamespace(rank=0, waits=Waits([1, 2, NOBODY]))
    assert str(Distributed._lost(link, 1, "a word", 0.5)) == "rank 2 is lost: rank 0 waited 0.5 s for rank 1, a word, which waits for rank 2"


def test_nothing_is_received_into_a_copy():
    with pytest.raises(ValueError, match="into must be contiguous and writable, to receive halo"):
        Distributed.receive(None, 0, "halo", np.zeros((4, 2))[:, 0])


def test_what_is_refused():
    with pytest.raises(ValueError, match="kind must be one of gloo, nccl, got 'mpi'"):
        spawned(ring, 2, "mpi")
    with pytest.raises(ValueError, match="ranks must be at least 1, got 0"):
        spawned(ring, 0, "gloo")


@pytest.mark.parametrize("link, kernels, fits", [("gloo", "cuda", "emulator"), ("nccl", "emulator", "cuda")])
def test_links_do_not_carry_the_arrays_of_other_kernels(link, kernels, fits):
    with pytest.raises(ValueError, match=f"--backend {link} must have --kernels {fits}, got {kernels}"):
        main(["cp", "--backend", link, "--kernels", kernels])


def test_a_rank_may_keep_others_waiting_for_as_long_as_it_is_told(monkeypatch):
    """The limit of the whole run does not come before."""
    limits = []
    monkeypatch.setattr(processes, "_gathered", lambda pipes, folder, waits, total: limits.append(total))
    monkeypatch.setattr(processes, "_check", lambda kind, ranks: None)
    for seconds in (1, 3600):
        spawned(ring, 0, "gloo", seconds=seconds)
    assert limits == [1200, 7200]


def test_a_prompt_by_threads(capsys):
    assert main(["cp", "--segments", "2,1"]) == 0
    assert capsys.readouterr().out.startswith("3 tokens by 2 ranks, emulator over threads: token ")


def test_what_a_machine_lacks(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="kind gloo needs torch, which is not installed"):
        spawned(ring, 2, "gloo")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1)))
    with pytest.raises(ValueError, match="ranks over nccl must be at most the GPUs of this machine, 1, got 2"):
        spawned(ring, 2, "nccl")
