"""The links of `references.k3.ranks` between processes: torch.distributed with gloo for NumPy arrays, with NCCL for tensors on a GPU each.

Between two ranks everything is received in the order in which it was sent, so no tags are needed; NCCL has none. What goes up and what goes down the
ranks are groups of their own: on one communicator two ranks that send to each other first would wait for each other.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from references.k3.backend import Array
from references.k3.ranks import SECONDS, Link, RankLost

T = TypeVar("T")
KINDS = ("gloo", "nccl")
NOBODY = -1
START = 120.0  # seconds that a process may take to begin
GRACE = 2.0  # seconds in which other ranks may still say what they know of a loss


class Distributed:
    """A rank's end of all its links. waits: shared by all ranks, whom each waits for."""

    def __init__(self, kind: str, rank: int, ranks: int, store: Path, waits: MutableSequence[int], seconds: float):
        import torch
        import torch.distributed as group

        self.kind, self.rank, self.ranks, self.waits, self.seconds, self.torch, self.group = kind, rank, ranks, waits, seconds, torch, group
        self.sent: list[_Sending] = []
        held = group.FileStore(str(store), ranks)
        self._meet(held)
        if kind == "nccl":
            torch.cuda.set_device(rank)
        # NCCL's own watchdog would end the process; the deadlines are kept here.
        group.init_process_group(kind, store=held, rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds + START))
        self.up, self.down = (group.new_group(backend=kind) for _ in range(2))
        self._greet()

    def _meet(self, store: Any) -> None:
        """Everyone is there, before anything is set up that waits in ways of its own."""
        store.set(f"rank {self.rank}", "here")
        until = time.monotonic() + START
        for other in range(self.ranks):
            try:
                store.wait([f"rank {other}"], timedelta(seconds=max(until - time.monotonic(), 0.001)))
            except RuntimeError as error:
                raise RankLost(other, f"did not begin within {START:g} s") from error

    def _greet(self) -> None:
        """One message each way over each link, in one order for all: a communicator is made by both of its ends at once."""
        word = self.torch.zeros(1, dtype=self.torch.uint8, device="cuda" if self.kind == "nccl" else "cpu")
        for low in range(self.ranks):
            for high in range(low + 1, self.ranks):
                for source, to in ((low, high), (high, low)):
                    if source == self.rank:
                        self.send(to, "greeting", word).wait()
                    elif to == self.rank:
                        self.receive(source, "greeting", word)

    def send(self, to: int, what: str, array: Array) -> _Sending:
        self.sent = [one for one in self.sent if not one.taken()]
        content = self._bytes(array)
        with self.waiting(to, f"which is to take {what}"):
            work = self.group.isend(content, to, group=self.up if to > self.rank else self.down)
        self.sent.append(_Sending(self, to, what, work, content))
        return self.sent[-1]

    def receive(self, source: int, what: str, into: Array) -> Array:
        with self.waiting(source, f"{what} of it"):
            self.finish(self.group.irecv(self._bytes(into), source, group=self.up if source < self.rank else self.down))
        return into

    def _bytes(self, array: Array) -> Any:
        """A contiguous array's own memory as a tensor of bytes: gloo lacks dtypes, and bits travel untouched. A copy of any other."""
        if isinstance(array, np.ndarray):
            array = self.torch.from_numpy(np.require(array, requirements="CW").reshape(-1).view(np.uint8))
        return array.contiguous().reshape(-1).view(self.torch.uint8)

    @contextmanager
    def waiting(self, other: int, what: str) -> Iterator[None]:
        """What torch says of a lost rank is a RankLost, of the one at the end of those that wait for each other."""
        self.waits[self.rank], start = other, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self._lost(other, what, time.monotonic() - start) from error
        self.waits[self.rank] = NOBODY

    def finish(self, work: Any) -> None:
        """RuntimeError within `seconds`."""
        if self.kind == "gloo":
            work.wait(timedelta(seconds=self.seconds))
            return
        until = time.monotonic() + self.seconds  # NCCL's wait holds up the stream, not the host
        while not work.is_completed():
            if time.monotonic() > until:
                raise RuntimeError("deadline")
            time.sleep(2e-5)
        work.wait()

    def _lost(self, other: int, what: str, seconds: float) -> RankLost:
        chain = [self.rank, other]
        while self.waits[chain[-1]] != NOBODY and self.waits[chain[-1]] not in chain:
            chain.append(self.waits[chain[-1]])
        through = "" if chain[-1] == other else f", which waits for {' for '.join(f'rank {rank}' for rank in chain[2:])}"
        return RankLost(chain[-1], f"is lost: rank {self.rank} waited {seconds:.1f} s for rank {other}, {what}{through}")

    def drain(self) -> None:
        """Until all that was sent is taken."""
        for one in self.sent:
            one.wait()


@dataclass
class _Sending:
    """Keeps what is sent until it is taken."""

    link: Distributed
    to: int
    what: str
    work: Any
    content: Any
    done: bool = False

    def taken(self) -> bool:
        """What is known without waiting; gloo says it only where it is waited for."""
        return self.done or (self.link.kind == "nccl" and self.work.is_completed())

    def wait(self) -> None:
        if not self.done:
            with self.link.waiting(self.to, f"which is to take {self.what}"):
                self.link.finish(self.work)
            self.done = True


def spawned(work: Callable[..., T], ranks: int, kind: str, *args: Any, seconds: float = SECONDS, total: float = 2 * SECONDS) -> list[T]:
    """work(link, *args) of every rank in a process of its own, its results by rank; function, arguments and results are pickled.

    RankLost where a rank dies, fails, or keeps another waiting for longer than `seconds`, or has not ended after `total`. No process is left behind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    waits = context.Array("i", [NOBODY] * ranks, lock=False)
    with tempfile.TemporaryDirectory() as folder:
        ours, processes = [], []
        try:
            for rank in range(ranks):
                end, theirs = context.Pipe()
                process = context.Process(target=_rank, args=(theirs, kind, rank, ranks, Path(folder) / "store", waits, seconds, work, args))
                process.start()
                theirs.close()
                ours.append(end)
                processes.append(process)
            return _gathered(ours, time.monotonic() + total, total)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _gathered(pipes: list[Connection], until: float, total: float) -> list:
    results, losses = {}, {}
    while len(results) + len(losses) < len(pipes):
        left = [pipe for rank, pipe in enumerate(pipes) if rank not in results and rank not in losses]
        ready = wait(left, max(until - time.monotonic(), 0))
        if not ready:
            break
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                result, error = pipe.recv()
            except EOFError:
                result, error = None, RankLost(rank, "ended without a word")
            if error is None:
                results[rank] = result
            else:
                losses[rank] = error
                until = min(until, time.monotonic() + GRACE)
    if losses:
        raise _told(losses)
    if len(results) < len(pipes):
        raise RankLost(min(set(range(len(pipes))) - results.keys()), f"had not ended after {total:g} s")
    return [results[rank] for rank in range(len(pipes))]


def _told(losses: dict[int, Exception]) -> RankLost:
    """Of what ranks say: one's own failure before what others say of it."""
    for rank, error in losses.items():
        if not isinstance(error, RankLost):
            lost = RankLost(rank, f"failed: {type(error).__name__}: {error}")
            lost.__cause__ = error
            return lost
    return next((error for rank, error in losses.items() if error.rank == rank), next(iter(losses.values())))


def _rank(pipe: Connection, kind: str, rank: int, ranks: int, store: Path, waits: MutableSequence[int], seconds: float, work: Callable, args: tuple):
    try:
        link: Link = Distributed(kind, rank, ranks, store, waits, seconds)
        result = work(link, *args)
        link.drain()
        reply = result, None
    except Exception as error:
        error.add_note(traceback.format_exc())  # a traceback does not survive the pipe, a note does
        reply = None, error
    pipe.send(reply)
    if reply[1] is None:
        pipe.poll(None)  # others may still read what was sent; the parent ends this process, or is gone itself
    os._exit(0)  # what torch still waits for is nobody's concern
