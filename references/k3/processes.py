"""Ranks in processes of their own on this machine, linked by torch.distributed: started, heard, and ended whatever becomes of them."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, MutableSequence, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from references.k3.distributed import KINDS, NOBODY, Distributed
from references.k3.ranks import SECONDS, RankLost

T = TypeVar("T")
GRACE = 2.0  # seconds in which other ranks may still say what they know of a loss


def spawned(work: Callable[..., T], ranks: int, kind: str, *args: Any, seconds: float = SECONDS) -> list[T]:
    """work(link, *args) of every rank in a process of its own, its results by rank; function, arguments and results are pickled.

    ValueError where this machine cannot do it. RankLost where a rank dies, fails, or keeps another waiting for longer than `seconds`, or has not
    ended after twice that, 20 minutes at least. No process is left behind.
    """
    _check(kind, ranks)
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    waits = context.Array("i", [NOBODY] * ranks, lock=False)
    with tempfile.TemporaryDirectory() as folder:
        ours, processes = [], []
        try:
            for rank in range(ranks):
                end, theirs = context.Pipe()
                process = context.Process(target=_rank, args=(theirs, kind, rank, ranks, Path(folder), waits, seconds, work, args))
                process.start()
                theirs.close()
                ours.append(end)
                processes.append(process)
            return _gathered(ours, Path(folder), waits, 2 * max(seconds, SECONDS))
        finally:
            for process in processes:
                process.kill()
                process.join()


def _check(kind: str, ranks: int) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    if not importlib.util.find_spec("torch"):
        raise ValueError(f"kind {kind} needs torch, which is not installed: pip install -e '.[cuda]'")
    if kind == "nccl":
        import torch

        if ranks > torch.cuda.device_count():
            raise ValueError(f"ranks over nccl must be at most the GPUs of this machine, {torch.cuda.device_count()}, got {ranks}")


def _gathered(pipes: list[Connection], folder: Path, waits: Sequence[int], total: float) -> list:
    """RankLost at once where a rank failed, after a while where others say so: it may be still to say it."""
    results, losses, until = {}, {}, time.monotonic() + total
    while silent := set(range(len(pipes))) - results.keys() - losses.keys():
        ready = wait([pipes[rank] for rank in silent], max(until - time.monotonic(), 0))
        if not ready:
            break
        for rank in map(pipes.index, ready):
            result, lost = _reply(pipes[rank], folder, rank)
            if lost is None:
                results[rank] = result
            elif lost.rank == rank:
                raise lost
            else:
                losses[rank] = lost
                until = min(until, time.monotonic() + GRACE)
    if losses:
        raise named(losses, silent)
    if silent:
        raise RankLost(min(silent, key=lambda rank: (waits[rank] != NOBODY, rank)), f"had not ended after {total:g} s")
    return [results[rank] for rank in range(len(pipes))]


def _reply(pipe: Connection, folder: Path, rank: int) -> tuple[Any, RankLost | None]:
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        return None, RankLost(rank, "ended without a word")
    return pickle.loads(_file(folder, rank).read_bytes())


def named(losses: dict[int, RankLost], silent: set[int]) -> RankLost:
    """Of what ranks say of others: of one that says nothing itself, where there is such."""
    rank, lost = next(((rank, lost) for rank, lost in losses.items() if lost.rank in silent), next(iter(losses.items())))
    return lost if lost.rank != NOBODY else RankLost(min(silent, default=rank), f"is lost: rank {rank} {lost.why}")


def _file(folder: Path, rank: int) -> Path:
    """What a rank replies: of any size, so that no one waits for the other at a full pipe."""
    return folder / f"reply of rank {rank}"


def _rank(pipe: Connection, kind: str, rank: int, ranks: int, folder: Path, waits: MutableSequence[int], seconds: float, work: Callable, args: tuple):
    try:
        link = Distributed(kind, rank, ranks, folder / "store", waits, seconds)
        result = work(link, *args)
        link.drain()
        lost, reply = None, pickle.dumps((result, None))
    except Exception as error:
        lost = error if isinstance(error, RankLost) else RankLost(rank, f"failed: {type(error).__name__}: {error}")
        lost.add_note(traceback.format_exc())  # neither a traceback nor every exception survives pickling, a note does
        reply = pickle.dumps((None, lost))
    _file(folder, rank).write_bytes(reply)
    pipe.send_bytes(b"done")
    if lost is None:
        pipe.poll(None)  # others may still read what was sent; the parent ends this process, or is gone itself
    os._exit(0)  # what torch still waits for is nobody's concern
