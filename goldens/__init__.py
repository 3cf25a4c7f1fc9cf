"""Goldens: what the emulators gave, as bits. `python -m goldens regenerate | verify | show | diff | search`."""

from goldens.files import GoldenError
from goldens.store import Golden, case_names, cases, inputs_of, load, make

__all__ = ["Golden", "GoldenError", "case_names", "cases", "inputs_of", "load", "make"]
