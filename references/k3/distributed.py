"""The links of `references.k3.ranks` between processes: torch.distributed with gloo for NumPy arrays, with NCCL for tensors on a GPU each.

Between two ranks everything is received in the order in which it was sent: NCCL has no tags. gloo has, so that there something else is not taken for
what is waited for. What goes up and what goes down the ranks are groups of their own: on one communicator two ranks that send to each other first
would wait for each other.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from references.k3.backend import Array
from references.k3.ranks import RankLost, said

KINDS = ("gloo", "nccl")
NOBODY = -1
START = 120.0  # seconds that a process may take to begin


class Distributed:
    """A rank's end of all its links. waits: shared by all ranks, whom each waits for."""

    def __init__(self, kind: str, rank: int, ranks: int, store: Path, waits: MutableSequence[int], seconds: float):
        import torch
        import torch.distributed as group

        self.kind, self.rank, self.ranks, self.waits, self.seconds, self.torch, self.group = kind, rank, ranks, waits, START, torch, group
        self.sent: list[_Sending] = []
        held = group.FileStore(str(store), ranks)
        self._meet(held)
        if kind == "nccl":
            torch.cuda.set_device(rank)
        limit = timedelta(seconds=seconds + START)  # NCCL's own watchdog would end the process; the deadlines are kept here
        try:
            group.init_process_group(kind, store=held, rank=rank, world_size=ranks, timeout=limit)
            self.up, self.down = (group.new_group(backend=kind, timeout=limit) for _ in range(2))
        except RuntimeError as error:
            raise RankLost(NOBODY, f"could not be linked: {error}") from error
        self._greet()
        self.seconds = seconds

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
            work = self.group.isend(content, to, group=self.up if to > self.rank else self.down, tag=self._tag(what, array))
        self.sent.append(_Sending(self, to, what, work, content))
        return self.sent[-1]

    def receive(self, source: int, what: str, into: Array) -> Array:
        if not (into.flags.carray if isinstance(into, np.ndarray) else into.is_contiguous()):
            raise ValueError(f"into must be contiguous and writable, to receive {what}")  # a copy would be received
        with self.waiting(source, f"{what} of it"):
            group = self.up if source < self.rank else self.down
            self.finish(self.group.irecv(self._bytes(into), source, group=group, tag=self._tag(what, into)))
        return into

    def _bytes(self, array: Array) -> Any:
        """A contiguous array's own memory as a tensor of bytes: gloo lacks dtypes, and bits travel untouched. A copy of any other."""
        if isinstance(array, np.ndarray):
            array = self.torch.from_numpy(np.require(array, requirements="CW").reshape(-1).view(np.uint8))
        return array.contiguous().reshape(-1).view(self.torch.uint8)

    def _tag(self, what: str, array: Array) -> int:
        return zlib.crc32(said(what, array).encode()) >> 1 if self.kind == "gloo" else 0

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
        while (after := self.waits[chain[-1]]) not in (NOBODY, *chain):  # looked at once: others write
            chain.append(after)
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
