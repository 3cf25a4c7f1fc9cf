"""Ranks in processes of their own on this machine, linked by torch.distributed: started, heard, and ended whatever becomes of them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, MutableSequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from references.k3.distributed import KINDS, NOBODY, Distributed
from references.k3.ranks import SECONDS, RankLost

T = TypeVar("T")
GRACE = 2.0  # seconds in which other ranks may still say what they know of a loss


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
        link = Distributed(kind, rank, ranks, store, waits, seconds)
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
