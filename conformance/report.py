"""The end of a run: one table, the golden counts, the GATE line, JSON, annotations. Made of records, which travel with pytest's reports.

A record is plain data, one a golden and lane: kernel, case, lane ("emulator" or "device"), state, and for a mismatch its headline, text,
source file, the site of the first landing that differs, worst, how severe that is (of outputs more than of landings alone, then
`Difference.severity`) and the histogram of its ulps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from conformance.message import Finding
from references.contract.files import write_whole

LANES = ("emulator", "device")
STATES = ("exact", "mismatch", "error", "not run")  # error: nothing could be compared (a build, a launch, a damaged golden)
SCHEMA = 1


def record(kernel: str, case: str, lane: str, state: str, finding: Finding | None = None, text: str = "") -> dict:
    made = {"kernel": kernel, "case": case, "lane": lane, "state": state, "text": text}
    if finding is None:
        return made
    worst = max(finding.differences, key=lambda difference: difference.severity)
    return made | {
        "headline": finding.headline,
        "source": finding.source,
        "first": finding.first,
        "worst": worst.worst,
        "severity": (int(not finding.landings_alone), *worst.severity),
        "worst_text": worst.worst_text,
        "counts": {difference.name: dict(difference.counts) for difference in finding.differences},
        "histograms": {difference.name: {str(k): n for k, n in difference.histogram.items()} for difference in finding.differences},
    }


def rows(records: Iterable[Mapping], counts: Mapping[str, int]) -> list[dict]:
    """The table: a row for each kernel of `counts` (its goldens on disk) and lane, whether anything of it ran or not."""
    records = list(records)
    table = []
    for kernel, goldens in counts.items():
        for lane in LANES:
            mine = [one for one in records if (one["kernel"], one["lane"]) == (kernel, lane)]
            row = {"kernel": kernel, "lane": lane, "cases": goldens, **{state: sum(one["state"] == state for one in mine) for state in STATES}}
            row["not run"] = goldens - row["exact"] - row["mismatch"] - row["error"]
            off = [one for one in mine if "severity" in one]
            row["worst"] = max(off, key=lambda one: one["severity"])["worst_text"] if off else "0" if row["exact"] else "-"
            table.append(row)
    return table


def shown(table: Sequence[Mapping], records: Iterable[Mapping]) -> list[Mapping]:
    """Without the kernels that have goldens of which this run has none; one that has no golden is always shown."""
    there = {one["kernel"] for one in records}
    return [row for row in table if row["kernel"] in there or not row["cases"]]


def table_lines(table: Sequence[Mapping], seconds: Mapping[str, float | None]) -> list[str]:
    """`seconds`: of the plain build of each kernel that was needed; None where it was built before."""
    heads = ("kernel", "lane", "cases", *STATES, "worst ulp", "build")
    lines = [heads]
    for row in table:
        built = "-" if row["lane"] == "emulator" or row["kernel"] not in seconds else _seconds(seconds[row["kernel"]])
        lines.append((row["kernel"], row["lane"], *(str(row[name]) for name in ("cases", *STATES)), row["worst"].removesuffix(" ulp"), built))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))) for line in lines]


def _seconds(value: float | None) -> str:
    return "cached" if value is None else f"{value:.1f} s"


def first_lines(records: Iterable[Mapping]) -> list[str]:
    """Which cases differ, a line for each kernel, lane and first landing: `situ emulator: first S3.bf in ties, special`."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in records:
        if one["state"] == "mismatch":
            says = f"first {one['first']} in" if one["first"] else "differs in"
            found.setdefault((one["kernel"], one["lane"], says), []).append(one["case"])
    return [f"{kernel} {lane}: {says} {', '.join(cases)}" for (kernel, lane, says), cases in found.items()]


def gate_line(table: Sequence[Mapping], why_not: str = "") -> str:
    """`GATE  emulator 9/9 kernels exact; device not run (no CUDA device)`. A kernel is exact when every golden it has was compared and is."""
    return "GATE  " + "; ".join(f"{lane} {_lane(lane, [row for row in table if row['lane'] == lane], why_not)}" for lane in LANES)


def _lane(lane: str, mine: Sequence[Mapping], why_not: str) -> str:
    cases, idle = sum(row["cases"] for row in mine), sum(row["not run"] for row in mine)
    if idle == cases:
        return "not run" + (f" ({why_not})" if why_not and lane == "device" else "")
    exact = sum(row["cases"] > 0 and row["exact"] == row["cases"] for row in mine)
    said = f"{exact}/{len(mine)} kernels exact"
    counted = {state: sum(row[state] for row in mine) for state in ("mismatch", "error")}
    details = [f"{count} {state}" for state, count in counted.items() if count] + ([f"{idle} of {cases} cases not run"] if idle else [])
    return said + (f" ({', '.join(details)})" if details else "")


def goldens_line(counts: Mapping[str, int], large: int, records: Iterable[Mapping] | None = None) -> str:
    sliced = ": sampled slices in the emulator lane" if large else ""
    there = f"goldens: {sum(counts.values())} of {len(counts)} kernels ({large} large{sliced})"
    if records is None:
        return there
    compared = {(one["kernel"], one["case"]) for one in records if one["state"] in ("exact", "mismatch")}
    return f"{there}, {len(compared)} compared in this run"


def annotations(records: Iterable[Mapping]) -> list[str]:
    """GitHub's workflow commands, one a golden that is not met."""
    lines = []
    for one in records:
        if one["state"] in ("mismatch", "error"):
            file = one.get("source", f"kernels_cuda/{one['kernel']}.cu" if one["lane"] == "device" else f"references/{one['kernel']}.py")
            said = one.get("headline") or one["text"].splitlines()[0]
            lines.append(f"::error file={_escape(file, True)},title={_escape(one['kernel'] + '/' + one['case'], True)}::{_escape(said)}")
    return lines


def _escape(text: str, in_property: bool = False) -> str:
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")] + ([(":", "%3A"), (",", "%2C")] if in_property else [])
    for raw, safe in pairs:
        text = text.replace(raw, safe)
    return text


def document(records: Sequence[Mapping], table: Sequence[Mapping], machine: Mapping[str, str], gate: str, seconds: Mapping) -> dict:
    """What --report-json writes and --report-html shows."""
    kept = [{key: value for key, value in one.items() if value != ""} for one in records]
    return {"schema": SCHEMA, "gate": gate, "machine": dict(machine), "table": list(table), "build_seconds": dict(seconds), "records": kept}


def write(path: Path, text: str) -> None:
    """Whole or not at all, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())


def write_json(path: Path, made: Mapping) -> None:
    write(path, json.dumps(made, indent=1) + "\n")
