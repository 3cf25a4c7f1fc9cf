"""How far two ways of computing the same thing lie apart: `python -m references floor [SUBJECT ...] [--record | --mistakes]`.

A subject is a module of this package, found and never registered. It has
  BOUNDS      {"two_pass ~ three_sweep": Bound(2.0, why), ...}: every pair that is compared, and how far apart its elements may lie
  SEEDS       how many draws of inputs are recorded
  KERNELS     the kernels whose schedules it depends on, by name
  deviations  (seed, emulate) -> Deviation(pair, regime, got, want), ...: `emulate(kernel, inputs)` gives outputs by name, and is the only way to them
What was measured is kept in goldens/floor.json with its provenance; conformance/test_floor.py measures a part of it again.
"""

from references.floor._distance import distances
from references.floor._study import Bound, Deviation, Distribution, study, subjects

__all__ = ["Bound", "Deviation", "Distribution", "distances", "study", "subjects"]
