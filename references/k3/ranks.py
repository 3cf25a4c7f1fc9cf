"""Links between ranks. What one rank sends to another is received by name, in the order in which it was sent: nothing hangs on who is early.

Here ranks are threads of one process, of which one works at a time; `references.k3.distributed` has the same links
between processes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from references.k3.backend import Array

T = TypeVar("T")
Pick = Callable[[list[int]], int]  # of the ranks that can go on, ascending, the one that does
SECONDS = 600.0  # that a rank may keep another waiting


class RankLost(RuntimeError):
    """A rank died, failed or kept another waiting for too long: `rank`, and what became of it."""

    def __init__(self, rank: int, why: str):
        super().__init__(rank, why)
        self.rank, self.why = rank, why

    def __str__(self) -> str:
        return f"rank {self.rank} {self.why}"


class Sent(Protocol):
    def wait(self) -> None:
        """Until the array may be overwritten. RankLost where it is not taken."""


class Link(Protocol):
    """A rank's end of all its links: `rank` of `ranks`."""

    rank: int
    ranks: int

    def send(self, to: int, what: str, array: Array) -> Sent:
        """At once, whether or not it is waited for. The array must stay as it is."""

    def receive(self, source: int, what: str, into: Array) -> Array:
        """`into`, contiguous, with what was sent: an array of its shape and dtype, the next that `source` sent here. RankLost where none comes."""


def empty(like: Array, *shape: int) -> Array:
    """Of the dtype of another array and where that lies."""
    return like.new_empty(shape) if hasattr(like, "new_empty") else np.empty(shape, like.dtype)


def said(what: str, array: Array) -> str:
    """halo float32[3, 64]"""
    return f"{what} {array.dtype}{list(array.shape)}"


def in_process(work: Callable[[Link], T], ranks: int, pick: Pick = min, seconds: float = SECONDS) -> list[T]:
    """work(link) of every rank, its results by rank. `pick` decides whenever one waits or receives.

    RankLost, which carries the exception, where a rank raises one, ends without taking what was sent to it, or works for longer than `seconds`
    without a word; that one's thread is left to itself and ends at its next word. RuntimeError where every rank waits for another.
    """
    return _Threads(ranks, pick).run(work, seconds)


@dataclass
class _Message:
    what: str
    array: Array
    taken: bool = False


@dataclass(frozen=True)
class _Wait:
    what: str
    over: Callable[[], bool]


class _Stopped(Exception):
    """Another rank ended the run."""


class _Threads:
    def __init__(self, ranks: int, pick: Pick):
        self.ranks, self.pick = ranks, pick
        self.queues: dict[tuple[int, int], deque[_Message]] = defaultdict(deque)  # by sender and receiver
        self.changed = threading.Condition()
        self.waits: dict[int, _Wait] = {rank: _Wait("its turn", lambda: True) for rank in range(ranks)}  # of those that do not work
        self.turn: int | None = None  # who works, and since when
        self.since = 0.0
        self.error: BaseException | None = None
        self.results: dict[int, object] = {}

    def run(self, work: Callable[[Link], T], seconds: float) -> list[T]:
        threads = [threading.Thread(target=self._rank, args=(work, rank), daemon=True) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        with self.changed:
            try:
                self._watch(seconds)
            except BaseException as error:  # an interrupt, say: no thread may be left waiting
                self._end(error)
                raise
        for rank, thread in enumerate(threads):
            if self.error is None or rank != self.turn:
                thread.join()
        if self.error:
            raise self.error
        for (source, to), queue in self.queues.items():
            if queue:
                raise RankLost(to, f"ended and did not take {queue[0].what} of rank {source}")
        return [self.results[rank] for rank in range(self.ranks)]

    def _watch(self, seconds: float) -> None:
        self._next()
        while len(self.results) < self.ranks and not self.error:
            left = self.since + seconds - time.monotonic()
            if left <= 0:
                self._end(RankLost(self.turn, f"has worked for {seconds:g} s without a word{self._waiting()}"))
            self.changed.wait(left)

    def _rank(self, work: Callable[[Link], T], rank: int) -> None:
        try:
            self._until_its_turn(rank)
            result = work(_Thread(self, rank, self.ranks))
            with self.changed:
                if not self.error:
                    self.results[rank] = result
                    self._next()
        except _Stopped:
            pass
        except BaseException as error:  # a thread's end would be no one's news
            lost = RankLost(rank, f"failed: {type(error).__name__}: {error}")
            lost.__cause__ = error
            with self.changed:
                self._end(lost)

    def wait(self, rank: int, what: str, over: Callable[[], bool]) -> None:
        """Let a rank go on that can, until it is this one's turn again."""
        with self.changed:
            if not self.error:
                self.waits[rank] = _Wait(what, over)
                self._next()
        self._until_its_turn(rank)

    def _until_its_turn(self, rank: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == rank or self.error)
            if self.error:
                raise _Stopped

    def _next(self) -> None:
        can = [rank for rank, wait in sorted(self.waits.items()) if wait.over()]
        if can:
            self.turn, self.since = self.pick(can), time.monotonic()
            del self.waits[self.turn]
        elif self.waits:
            self._end(RuntimeError(f"no rank can go on{self._waiting()}"))
        self.changed.notify_all()

    def _end(self, error: BaseException) -> None:
        self.error = self.error or error
        self.changed.notify_all()

    def _waiting(self) -> str:
        return "".join(f"; rank {rank} waits for {wait.what}" for rank, wait in sorted(self.waits.items()))


@dataclass(frozen=True)
class _Thread:
    """A link between threads."""

    threads: _Threads
    rank: int
    ranks: int

    def send(self, to: int, what: str, array: Array) -> _Receipt:
        message = _Message(what, array)
        self.threads.queues[self.rank, to].append(message)
        return _Receipt(self, to, message)

    def receive(self, source: int, what: str, into: Array) -> Array:
        queue = self.threads.queues[source, self.rank]
        self.threads.wait(self.rank, f"{what} of rank {source}", lambda: bool(queue))
        message = queue.popleft()
        if (message.what, message.array.shape, message.array.dtype) != (what, into.shape, into.dtype):
            raise ValueError(f"rank {source} sends {said(message.what, message.array)} where {said(what, into)} is received")
        into[...] = message.array
        message.taken = True
        return into


@dataclass(frozen=True)
class _Receipt:
    link: _Thread
    to: int
    message: _Message

    def wait(self) -> None:
        self.link.threads.wait(self.link.rank, f"rank {self.to} to take {self.message.what}", lambda: self.message.taken)
