"""A case: inputs with a purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One golden.

    name:   the golden's file name
    why:    the purpose, one sentence
    make:   returns the inputs by argument name, in the dtypes of the signature
    guards: `site:fault` mistakes this case exists for, in the form it is for; making its golden fails unless each of them moves an output
    large:  the golden keeps a digest of every row and a sample instead of the arrays
    """

    name: str
    why: str
    make: Callable[[], dict[str, Any]]
    guards: tuple[str, ...] = ()
    large: bool = False
