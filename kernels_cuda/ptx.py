"""Compile kernels to PTX with bare nvcc, no torch and no GPU, and check what the schedules assume of the compiler.

Every instruction carries the source line it came from (-lineinfo), so an fma or an .approx is judged by the line: there it must be
spelled, or a libdevice function must be called. libdevice itself has no lines; its instructions count for the line of the call.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernels_cuda.build import COMPILE_SECONDS, FLAGS, SOURCES
from kernels_cuda.toolchain import BuildError, find_nvcc, refuse_hidden_flags

ARCH = "90a"
_LOC = re.compile(r"\.loc\s+(\d+) (\d+) \d+(?:, function_name \S+, inlined_at (\d+) (\d+))?")
_FILE = re.compile(r'\.file\s+(\d+) "([^"]+)"')
_OPCODE = re.compile(r"^\s*\{?\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.[a-z0-9_:]+)+)\s")
_CALLS_EXP = r"\b(expf|tanhf)\("
# What an opcode needs on its source line. The first rule that matches an opcode decides; what matches none is free.
_RULES = (
    (r"ex2\.approx\.ftz\.f32$", rf"{_CALLS_EXP}|ex2\.approx", "an approximate power that neither the line nor an expf or tanhf of it spells"),
    (r"rcp\.approx\.ftz\.f32$", rf"{_CALLS_EXP}|rcp\.approx", "an approximate reciprocal that neither the line nor an expf or tanhf of it spells"),
    (r"rsqrt\.approx\.f32$", r"\brsqrtf\(", "an approximate root that no rsqrtf asked for"),
    (r".*\.(approx|full)\b", None, "an approximate operation"),
    (r".*\.ftz\b", None, "a flush of subnormals"),
    (r"div\.(?!rn\.)[a-z]+\.?f(32|64)", None, "a division that is not IEEE"),
    (r"fma\.", r"fma|\b(expf|tanhf|logf)\(", "a fused multiply-add that the line does not spell"),
    (r"(add|sub|mul)\.bf16", None, "a bf16 operation that ptxas may fuse: it needs the _rn form"),
    (r".*\.f64", None, "arithmetic in double precision"),
    (r"(bar|barrier)(\.cta)?\.arrive", None, "an arrival without a wait, which racecheck does not take for a release"),
)


@dataclass(frozen=True)
class Finding:
    opcode: str
    line: str
    place: str
    complaint: str

    def __str__(self) -> str:
        return f"{self.place}: {self.opcode} is {self.complaint}: {self.line.strip()}"


def ptx(name: str, defines: tuple[str, ...] = (), sources: Path = SOURCES, flags: tuple[str, ...] = FLAGS) -> str:
    """The PTX of a kernel. BuildError carries nvcc's message."""
    refuse_hidden_flags()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, f"{name}.ptx")
        target = f"-gencode=arch=compute_{ARCH},code=compute_{ARCH}"
        command = [find_nvcc(), "-ptx", target, *flags, *(f"-D{d}" for d in defines), sources / f"{name}.cu", "-o", output]
        try:
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{name}: waited {COMPILE_SECONDS:g} s for nvcc to make its PTX") from None
        if done.returncode:
            raise BuildError(f"{name} does not compile to PTX:\n{done.stderr.strip()}")
        return output.read_text()


def findings(text: str) -> list[Finding]:
    """Every kind of instruction of a PTX text that its source line does not account for, once a line."""
    files = {number: Path(path) for number, path in _FILE.findall(text)}
    lines = {number: path.read_text().splitlines() for number, path in files.items() if path.suffix in (".cu", ".cuh")}
    found, chain, at = [], {}, ("", "0")
    for row in text.splitlines():
        loc = _LOC.search(row)
        if loc:
            at = loc.group(1), loc.group(2)
            chain[at] = (loc.group(3), loc.group(4)) if loc.group(3) else None
        opcode = _OPCODE.match(row)
        if opcode and not row.lstrip().startswith("."):
            place = _own_line(at, chain, lines)
            line = lines[place[0]][int(place[1]) - 1].partition("//")[0] if place else ""  # a comment asks for nothing
            where = f"{files[place[0]].name}:{place[1]}" if place else "no line"
            found += [Finding(opcode.group(1), line, where, complaint) for complaint in [_complaint(opcode.group(1), line)] if complaint]
    return list(dict.fromkeys(found))


def _own_line(at, chain, lines):
    """The innermost place that is in a source of ours: out of a CUDA header, by where it was inlined."""
    while at is not None and at[0] not in lines:
        at = chain.get(at)
    return at


def _complaint(opcode, line):
    for pattern, allowed, complaint in _RULES:
        if re.match(pattern, opcode):
            return None if allowed and re.search(allowed, line) else complaint
    return None


def main(names: tuple[str, ...]) -> int:
    """A line a kernel; 1 where one does not compile or holds an instruction its source does not account for."""
    failed = False
    for name in names:
        text = ptx(name)
        problems = findings(text)
        failed |= bool(problems)
        counts = ", ".join(f"{len(re.findall(pattern, text))} {word}" for word, pattern in (("div.rn", r"\bdiv\.rn\.f"), ("fma", r"\bfma\.r")))
        print(f"{name:16} ptx sm_{ARCH}  {counts}  {'ok' if not problems else f'{len(problems)} unaccounted'}", flush=True)
        for problem in problems:
            print(f"    {problem}")
    return 1 if failed else 0
