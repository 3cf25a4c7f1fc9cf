"""Step goldens, goldens/k3: what a sequence alone gives, step by step, and a digest of everything its kernels land on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from goldens import files
from goldens.files import MANIFEST, SCHEMA, GoldenError, manifest_bytes, npz_bytes, payload_sha256, read_manifest, read_npz, stored_sha256, write_all
from goldens.store import ROOT
from goldens.walked import Walk
from goldens.walks import PLANS, Landed, digest, walk
from references.contract import Kernel
from references.contract.inputs import BF16
from references.contract.kernel import names as kernel_names
from references.k3.backend import Emulators

NAME = "k3"
VERSION = 1  # of the model and the order of its kernels; the kernels have versions of their own
TOP = 5


@functools.cache
def make(case: str) -> tuple[Walk, dict[str, int]]:
    """A walk of the emulators, and the versions of the kernels it took. A plan that begins later takes the tokens of the one it continues."""
    plan, kernels = PLANS[case], {}
    tokens = plan.tokens()
    if plan.steps > len(tokens) and plan.first:
        tokens = [int(token) for token in make(plan.transport)[0].tokens]
    results = list(walk(plan, Emulators() if plan.long else Landed(), tokens, kernels))
    names = tuple(dict.fromkeys(name for one in results for name in one.seen))
    top = np.array([np.argsort(-one.logits.astype(np.float32), kind="stable")[:TOP] for one in results], np.int32)
    fed = tokens if plan.rounds else tokens[: plan.first] + [one.token for one in results]
    return Walk(
        np.array(plan.first), np.array(fed, np.int32),
        np.array([one.greedy for one in results], np.int32), top,
        np.array([one.logits[best] for one, best in zip(results, top, strict=True)]).view(np.uint16),
        np.array([digest(one.logits) for one in results], np.uint64), names,
        np.array([[one.seen.get(name, 0) for name in names] for one in results], np.uint64),
    ), kernels


def load(case: str, root: Path = ROOT) -> Walk:
    """GoldenError where anything is wrong with it."""
    entries, path = read_manifest(root / NAME)["cases"], root / NAME / f"{case}.npz"
    if case not in entries:
        raise GoldenError(f"{NAME} has no golden {case!r}; it has {', '.join(entries)}")
    arrays = read_npz(path)
    walked = Walk.of(arrays)
    if walked is None or payload_sha256(arrays) != entries[case]["sha256"]:
        raise GoldenError(f"{path} does not hold what {MANIFEST} says: it was edited; run python -m goldens regenerate {NAME}")
    return walked


def entry(case: str, made: Walk) -> dict:
    return {"sentence": PLANS[case].why, "sha256": payload_sha256(made.arrays()), "source": "emulator"}


def regenerate(root: Path = ROOT, say: Callable[[str], None] = print) -> None:
    """Rebuild, write what changed and remove what PLANS no longer has.

    GoldenError, with nothing written, where a walk changes and neither the model's version nor a kernel's is raised, or where one falls.
    """
    made, versions = {}, {}
    for case in PLANS:
        made[case], kernels = make(case)
        versions |= kernels
    cases = {case: entry(case, one) for case, one in made.items()}
    manifest = {"schema": SCHEMA, "kernel": NAME, "version": VERSION, "kernels": dict(sorted(versions.items())), "cases": cases}
    folder = root / NAME
    old = manifest | files.recorded(folder, say, kernels=dict)
    held = files.held_sha256(folder, old["cases"], cases)
    changed = [case for case, one in cases.items() if held.get(case, one["sha256"]) != one["sha256"]]
    files.assert_recorded(folder, changed)
    _judge(old, manifest, changed)
    stale = {f"{case}.npz": npz_bytes(one.arrays()) for case, one in made.items() if stored_sha256(folder / f"{case}.npz") != cases[case]["sha256"]}
    saved = stale or old != manifest
    if saved:
        write_all(folder, stale | {MANIFEST: manifest_bytes(manifest)})
    for case in sorted(old["cases"].keys() - cases.keys()):
        (folder / f"{case}.npz").unlink(missing_ok=True)
        say(f"{NAME}/{case}: removed, PLANS no longer has it")
    say(f"{NAME}: {len(stale)} of {len(made)} files written{f', {MANIFEST} written' if saved else ''}")


def _judge(old: dict, new: dict, changed: Sequence[str]) -> None:
    """GoldenError where a version falls, or walks change and no version rises; a kernel that comes or goes is neither."""
    before, now = ({NAME: manifest["version"]} | manifest["kernels"] for manifest in (old, new))
    both = sorted(before.keys() & now.keys())
    for name in both:
        if now[name] < before[name]:
            raise GoldenError(f"{NAME}: version {now[name]} of {name} is below {before[name]} of the goldens; nothing was written")
    if changed and not any(now[name] > before[name] for name in both):
        raise GoldenError(f"{NAME}: {', '.join(changed)} would change, but no version rose; nothing was written. See python -m references k3 bisect; "
                          f"if the model should change, raise VERSION in goldens/steps.py to {VERSION + 1}")


def problems(root: Path = ROOT, rebuild: bool = False) -> Iterator[str]:
    """What is wrong with the step goldens, one line each; `rebuild` also walks again."""
    todo = f"run python -m goldens regenerate {NAME}"
    try:
        manifest = read_manifest(root / NAME, kernels=dict)
    except GoldenError as error:
        yield str(error)
        return
    for case in manifest["cases"]:
        try:
            load(case, root)
        except GoldenError as error:
            yield str(error)
    versions = {name: Kernel.load(name).version for name in kernel_names() if name in manifest["kernels"]}
    if (manifest["version"], manifest["kernels"]) != (VERSION, versions):
        yield f"{NAME}: made by other versions of the model or its kernels: {todo}"
    yield from _disagreements(root / NAME, manifest["cases"], todo)
    for case in [case for case in PLANS if case in manifest["cases"]] if rebuild else ():
        if entry(case, make(case)[0])["sha256"] != manifest["cases"][case]["sha256"]:
            yield f"{NAME}/{case}: the emulators give other steps: see python -m references k3 bisect, or {todo}"


def _disagreements(folder: Path, listed: Mapping[str, Mapping], todo: str) -> Iterator[str]:
    for case in PLANS:
        if case not in listed and not (folder / f"{case}.npz").exists():
            yield f"{NAME}/{case}: no golden: {todo}"
    for case, one in listed.items():
        if case not in PLANS:
            yield f"{NAME}/{case}: an orphan, PLANS has no such walk: {todo}"
        elif one["sentence"] != PLANS[case].why:
            yield f"{NAME}/{case}: its sentence is not that of PLANS: {todo}"
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST and not (path.suffix == ".npz" and path.stem in listed):
            mine = path.suffix == ".npz" and path.stem in PLANS
            yield f"{path}: {MANIFEST} does not name it: {todo}" if mine else f"{path}: an orphan, there is no such walk: remove it"


def describe(case: str, root: Path = ROOT) -> Iterator[str]:
    """A walk for reading: of each step its token, the largest logits and the margin."""
    one = load(case, root)
    yield f"{NAME}/{case} (version {VERSION}): {PLANS[case].why}; {len(one.names)} landings a step"
    for at, greedy in enumerate(one.greedy):
        step = at + int(one.first)
        best = ", ".join(f"{token} {float(value):g}" for token, value in zip(one.top[at], one.bits[at].view(BF16), strict=True))
        what = f"round {step - PLANS[case].first}:" if PLANS[case].rounds and at else f"step {step}: token {one.tokens[step]}"
        yield f"{what} -> {greedy}; {best}; margin {one.margin(step):.1f} ulp"
