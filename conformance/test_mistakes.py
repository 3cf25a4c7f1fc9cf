"""The goldens see every mistake a kernel can make, or the kernel says why no input can show it."""

from conformance.laws import law, unless_drifted
from conformance.toy import BLIND, MINUS_ZERO, ORDINARY, drifted, pool, toy
from goldens import Golden, case_names, load, make
from goldens.search import possible, shows, smallest_first
from references.contract import Kernel
from references.contract.mistakes import Mistake


def complaints(kernel: Kernel, goldens: list[Golden]) -> list[str]:
    """What is wrong between the mistakes of a kernel, its small goldens' outputs and its BLIND, a line each."""
    if not smallest_first(goldens):
        return [f"{kernel.name} has no small golden: python -m goldens regenerate {kernel.name}"]
    found = possible(kernel, goldens, [kernel.pool(0, schedule) for schedule in kernel.schedules])
    seen = {key: first_to_show(kernel, goldens, mistake) for key, mistake in found.items()}
    unseen = [f"no golden sees {found[key].sentence} ({key})" for key in found if seen[key] is None and not found[key].among(kernel.blind)]
    meant = {key: [mistake for mistake in found.values() if mistake.among([key])] for key in kernel.blind}
    wrong = [f"BLIND has {key}, but golden {seen[m.key]} sees {m.key}" for key, listed in meant.items() for m in listed if seen[m.key]]
    unknown = [f"BLIND has {key}, which is no mistake of {kernel.name}; those are {', '.join(found)}" for key, listed in meant.items() if not listed]
    unsaid = [f"BLIND has {key} without a reason" for key, reason in kernel.blind.items() if not reason.strip()]
    return unless_drifted(kernel, goldens, unseen + wrong + unknown + unsaid)


def first_to_show(kernel: Kernel, goldens: list[Golden], mistake: Mistake) -> str | None:
    """The case whose outputs move under a mistake: one that is there for it, else the fastest."""
    likely = sorted(smallest_first(goldens), key=lambda golden: mistake.key not in golden.guards)
    return next((golden.case for golden in likely if shows(kernel, golden, mistake)), None)


def test_mistakes(kernel_name):
    with law(kernel_name) as (kernel, problems):
        problems += complaints(kernel, [load(kernel_name, case) for case in case_names(kernel_name)])


def test_of_an_emulator_that_drifted_nothing_else_is_told():
    """It has none of the mistakes of S3.bf, and whatever differs from its goldens would seem to be seen by them."""
    goldens = [make(toy(pool=pool), case) for case in (ORDINARY, MINUS_ZERO)]
    lines = complaints(toy(drifted(), pool=pool), goldens)
    assert lines == ["mend test_emulator first: the emulator does not give golden toy/minus_zero"]


def test_without_goldens_that_alone_is_told():
    assert complaints(toy(), []) == ["toy has no small golden: python -m goldens regenerate toy"]


def test_of_goldens_that_lack_a_case_nothing_else_is_told():
    """What only it shows would seem to be seen by none."""
    assert complaints(toy(), [make(toy(), ORDINARY)]) == ["mend test_goldens first: the manifest of toy does not name minus_zero"]


def test_complaints():
    """The toy's two cases show its seed and its cut landing, and not what only searched rows do."""
    goldens = [make(toy(), ORDINARY), make(toy(), MINUS_ZERO)]
    unseen = complaints(toy(), goldens)
    assert "no golden sees S3.mul: subnormal results are flushed to zero (S3.mul:flushed)" in unseen
    assert not any("S1.zero" in line or "truncated" in line for line in unseen)
    assert any("S1.zero:minus_zero" in line for line in complaints(toy(cases=(ORDINARY,)), goldens[:1]))
    named = {**BLIND, "S3.mul:flushed": "", "S1.zero:minus_zero": "wrong", "S9.bf:skipped": "no such line"}
    lines = complaints(toy(blind=named, pool=pool), goldens)
    assert "BLIND has S1.zero:minus_zero, but golden minus_zero sees S1.zero:minus_zero" in lines
    assert "BLIND has S3.mul:flushed without a reason" in lines
    assert any(line.startswith("BLIND has S9.bf:skipped, which is no mistake of toy; those are S1.zero:minus_zero, ") for line in lines)
