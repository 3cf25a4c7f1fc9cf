"""A process of its own for everything that touches the GPU: an error that sticks, a crash or a hang ends that process and no other test."""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 600
GRACE_SECONDS = 10  # for a process to end, once it should


class WorkerLost(RuntimeError):
    """The process ended or was ended while it worked."""


class Worker:
    """Runs functions in one child process, which is started at the first call and again after it was lost.

    lasting: errors after which the child cannot go on; it is ended, and the error raised here.
    probe: called in the child with the name of what raised another RuntimeError; what it raises takes the place of that.
    """

    def __init__(self, lasting: tuple[type[Exception], ...] = (), probe: Callable[[str], None] | None = None):
        self.lasting, self.probe = lasting, probe
        self._process = self._pipe = None

    def call(self, function: Callable, *args: Any, seconds: float = SECONDS) -> Any:
        """function(*args) in the child. Its exception is raised here; WorkerLost where it dies, or takes longer than `seconds`."""
        self._start()
        begin = time.monotonic()
        ender = threading.Timer(seconds, self._process.kill)  # so that sending and receiving end, too
        ender.start()
        try:
            self._pipe.send((function, args))
            if not self._pipe.poll(seconds + GRACE_SECONDS):
                raise EOFError
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(GRACE_SECONDS)
            code = self._process.exitcode
            self.stop()
            late = time.monotonic() - begin >= seconds
            how = f"had not finished after {seconds:g} s and was ended" if late else f"ended its process (exit code {code})"
            raise WorkerLost(f"{_name(function, args)} {how}") from None
        finally:
            ender.cancel()
        if isinstance(error, self.lasting):
            self.stop()
        if error is not None:
            raise error
        return result

    def _start(self) -> None:
        if self._process is not None and not self._process.is_alive():  # died between two calls
            self.stop()
        if self._process is None:
            context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self.lasting, self.probe), daemon=True)
            self._process.start()
            theirs.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(GRACE_SECONDS)
            self._pipe.close()
            self._process = self._pipe = None


def _serve(pipe: Connection, lasting: tuple[type[Exception], ...], probe: Callable[[str], None] | None) -> None:
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:  # the parent is gone
            return
        try:
            reply = _run(function, args, lasting, probe), None
        except Exception as error:
            error.add_note(traceback.format_exc())  # a traceback does not survive the pipe, a note does
            reply = None, error
        pipe.send(reply)


def _run(function: Callable, args: tuple, lasting: tuple[type[Exception], ...], probe: Callable[[str], None] | None) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        if probe and not isinstance(error, lasting):
            probe(_name(function, args))
        raise


def _name(function: Callable, args: tuple) -> str:
    return f"{function.__name__}{args[:2]}"
