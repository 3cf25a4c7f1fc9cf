"""Where the landings of two sides part, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from conformance.compare import Difference, compare
from goldens import Golden
from references.contract.landings import tag
from references.contract.signature import BITS


def tags(golden: Golden) -> dict[str, int]:
    """The landings in the order of the schedule, with the number of their tag: a loop may visit a later one first."""
    return {site: tag(site) for site in sorted(golden.landings, key=tag)}


def compare_landings(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], limit: int = 8) -> list[Difference]:
    """The emulator's landings against the golden's, in the order of the schedule. A landing that one of them makes alone is a difference."""
    found = []
    for site in sorted({**want, **got}, key=tag):
        if site in got and site in want:
            found.append(compare(site, got[site], want[site], limit))
        else:
            array, lands, does_not = (got[site], "emulator", "golden") if site in got else (want[site], "golden", "emulator")
            found.append(Difference(site, array.dtype.name, array.size, f"the {lands} lands here, the {does_not} does not"))
    return [difference for difference in found if difference]


def first_landing(differing: Sequence[Difference], shown: Difference, got: str) -> tuple[str, list[str]]:
    """Site of the first of these and what to say of it, then of those that cannot be compared. `shown`: what the headline tells already."""
    first, *rest = differing
    said = first.headline(got)
    if not first.problem:
        said = f"{first.name} is the first landing that differs (S{tag(first.name)} changed, or a step before it)"
        said += "" if not shown.problem and first.extent(got) == shown.extent(got) else f": {first.extent(got)}"
    return first.name, [said, *(f"{one.name}: {one.problem}" for one in rest if one.problem)]


def last_landing(golden: Golden, outputs: Sequence[Difference]) -> tuple[str, list[str]]:
    """Where the interior landings are exact: the one that lands a result which differs. A large case keeps no landings."""
    *before, last = [*tags(golden)] or [""]
    exact = f"{', '.join(before)} before it exact" if before else ""
    if any(_lands(golden, last, one.name) for one in outputs):
        return last, [f"{last}, which lands the result, is the first landing that differs" + (f"; {exact}" if exact else "")]
    return "", [f"none of the landings before the result differs: {', '.join(before)}"] if before else []


def _lands(golden: Golden, site: str, name: str) -> bool:
    """Whether this output is what is landed there, in whatever order."""
    landing, output = golden.landings.get(site), golden.outputs.get(name)
    if landing is None or output is None or landing.dtype != output.dtype:
        return False
    return np.array_equal(*(np.sort(array.view(BITS[array.itemsize]), axis=None) for array in (landing, output)))
