"""Sites: every call of an arithmetic word can be seen, recorded or replaced.

A *word* is a function of `references.arith` decorated with `@site`. Outside a laboratory a word costs one look at a dict.
Inside one, each call of its thread has a name, read from the code itself: the `# S4` tag of the emulator's line, then the functions between,
then the word. `sig = sigmoid(g)  # S4` visits `S4.sigmoid`, `S4.sigmoid.exp`, ...; a second `mul` on one line is `S4.mul#2`.
An emulate() that only chooses among functions has no tags; theirs count.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from types import CodeType
from typing import Any

_active: dict[int, Laboratory] = {}  # by thread: one that is left to itself disturbs no other
_TAG = re.compile(r"#\s*(S\d+\w*)")
_WORD = re.compile(r"(\w+)(?:#\d+)?$")
_HERE = __file__


def site(word: Callable) -> Callable:
    """Decorate an arithmetic word; `call.word` is the bare function."""

    @functools.wraps(word)
    def call(*args, **kwargs):
        if not _active or (laboratory := _active.get(get_ident())) is None:
            return word(*args, **kwargs)
        return laboratory.visit(word, args, kwargs)

    call.word = word
    return call


def landing(word: Callable, stored: str = "bf16") -> Callable:
    """A site whose result is rounded to the storage type: recorded in goldens and compared on the device."""
    word.lands = stored
    return site(word)


def planted() -> bool:
    """Whether a laboratory with faults is active: f32 may then reach a bf16 store, which lands it as the hardware would."""
    laboratory = _active.get(get_ident())
    return laboratory is not None and bool(laboratory.faults)


@dataclass(frozen=True)
class Visit:
    """One call of a word: what a fault may look at. `origin(x)` is the visit that produced the array x, or None."""

    name: str
    word: Callable
    args: tuple
    kwargs: dict
    origin: Callable[[Any], Visit | None]

    def run(self) -> Any:
        return self.word(*self.args, **self.kwargs)


class Laboratory:
    """Runs emulators of this thread with their sites watched.

    faults: site name -> function(Visit) -> result, which replaces the call.
    watch:  called as watch(visit, result) after every visit.

    >>> with Laboratory(watch=lambda visit, result: print(visit.name)):
    ...     emulate(x)
    """

    def __init__(self, faults: Mapping[str, Callable[[Visit], Any]] | None = None, watch: Callable[[Visit, Any], None] | None = None):
        self.faults = dict(faults or {})
        self.watch = watch
        self.reached: set[str] = set()  # sites visited, so that a fault planted nowhere is an error and not a pass
        self._open: list[str] = []
        self._ordinals: dict[tuple[str, ...], dict[tuple, int]] = {}
        self._produced: dict[int, tuple[Any, Visit]] = {}  # holds the arrays, so that an id is not used twice

    def __enter__(self) -> Laboratory:
        if get_ident() in _active:
            raise RuntimeError("a laboratory is already active")
        _active[get_ident()] = self
        return self

    def __exit__(self, *exc) -> None:
        _active.pop(get_ident(), None)
        self._produced.clear()

    def visit(self, word: Callable, args: tuple, kwargs: dict) -> Any:
        visit = Visit(self._name(word, sys._getframe(2)), word, args, kwargs, self._origin)
        self.reached.add(visit.name)
        fault = self.faults.get(visit.name)
        result = self._unwatched(fault, visit) if fault else None
        if result is None:  # no fault here, or nothing for it to replace
            self._open.append(visit.name)
            try:
                result = visit.run()
            finally:
                self._open.pop()
        self._produced[id(result)] = (result, visit)
        if self.watch is not None:
            self._unwatched(self.watch, visit, result)
        return result

    def _unwatched(self, function: Callable, *args) -> Any:
        """Faults and watchers use words of their own, which are no part of the emulator."""
        try:
            del _active[get_ident()]
            return function(*args)
        finally:
            _active[get_ident()] = self

    def _origin(self, array: Any) -> Visit | None:
        held = self._produced.get(id(array))
        return held[1] if held else None

    def _name(self, word: Callable, frame) -> str:
        """The call path. Ordinals tell apart equal words of one line by their place in the bytecode, so a loop keeps one name."""
        frames = [frame]
        while frame.f_code.co_filename != _HERE and frame.f_code.co_name != "emulate":
            frame = frame.f_back
            if frame is None:
                raise RuntimeError(f"{word.__name__} was called in a laboratory, but not from an emulate()")
            frames.append(frame)
        if frame.f_code.co_filename == _HERE:
            base = self._open[-1]
            outer = _WORD.search(base).group(1)
            inner = [one.f_code.co_name for one in frames].index(outer)  # from the open word's own body outwards
            places = [one.f_lasti for one in frames[:-1]]
        else:
            inner, base = _tagged(frames)
            places = [one.f_lasti for one in frames[: inner + 1]]
        between = (one.f_code.co_name for one in reversed(frames[:inner]))
        path = (base, *(name for name in between if not name.startswith("<")), word.__name__)
        seen = self._ordinals.setdefault(path, {})
        number = seen.setdefault(tuple(places), len(seen) + 1)
        return ".".join(path) + (f"#{number}" if number > 1 else "")


def _tagged(frames: list) -> tuple[int, str]:
    """Place and tag of the outermost of these frames, of which the last is an emulate(), whose statement has a tag."""
    for place in range(len(frames) - 1, -1, -1):
        tag = _tag(frames[place])
        if tag:
            return place, tag
    frame = frames[-1]
    raise RuntimeError(f"{frame.f_code.co_filename}:{frame.f_lineno}: a line of emulate() calls a word and has no # S tag")


def _tag(frame) -> str | None:
    """The schedule tag of the statement being run: on its line, or where a statement spans lines, on the first tagged one after."""
    last = _last_line(frame.f_code)
    for line in range(frame.f_lineno, min(frame.f_lineno + 4, last + 1)):
        found = _TAG.search(linecache.getline(frame.f_code.co_filename, line))
        if found:
            return found.group(1)
    return None


@functools.cache
def _last_line(code: CodeType) -> int:
    """Of a function's own source: beyond it a tag is another's."""
    return code.co_firstlineno + len(inspect.getsourcelines(code)[0]) - 1
