"""python -m references k3 bisect A B: where two sets of kernels part. python -m references k3 cp: a prompt prefilled by several ranks."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from references.contract import Kernel
from references.contract.inputs import hashed
from references.contract.mistakes import mistakes
from references.k3.backend import Backend, Emulators
from references.k3.bisect import bisect
from references.k3.config import SMALL, TRANSPORTS, WIDE
from references.k3.cp import check, even, prefill
from references.k3.distributed import KINDS
from references.k3.model import Model
from references.k3.processes import spawned
from references.k3.ranks import SECONDS, Link, RankLost, in_process

MODELS = {"small": SMALL, "wide": WIDE}
CARRIED = {"gloo": "emulator", "nccl": "cuda"}  # whose arrays a link between processes carries
RANKS, TOKENS = 4, 516
LONGEST = 1_000_000  # seconds: the whole run may take twice that, and a poll waits 2^31 ms at most


def chosen(text: str) -> tuple[str, dict[str, str]]:
    """`emulator`, `cuda`, and with mistakes: `emulator+land=S3.bf:truncated`, `cuda+land=1` (as planted in land.cu)."""
    kind, *given = text.split("+")
    planted = dict(one.split("=", 1) for one in given if "=" in one)
    if kind not in ("emulator", "cuda") or len(planted) != len(given):
        raise ValueError(f"kernels must be emulator or cuda, with +KERNEL=MISTAKE for each planted one, got {text!r}")
    for name, mistake in planted.items():
        known = numbered(Kernel.load(name)) if kind == "cuda" else named(Kernel.load(name))
        if mistake not in known:
            raise ValueError(f"MISTAKE of {name} must be one of {', '.join(known.values())}, got {mistake!r} in {text!r}")
    return kind, planted


def named(kernel: Kernel) -> dict[str, str]:
    """The mistakes of the schedule that steps follow: how each may be written, with or without the form, and how it is listed."""
    schedule = kernel.schedules[0]
    made = (case.make() for case in kernel.cases() if not case.large)
    found = mistakes(kernel, [inputs for inputs in made if kernel.schedule_of(inputs) == schedule])
    return {text: mistake.key for mistake in found for text in (mistake.pair, mistake.key)}


def numbered(kernel: Kernel) -> dict[str, str]:
    """As `named`, of those in the .cu: by number."""
    from kernels_cuda import build

    schedule, found = kernel.schedules[0], build.planted(kernel.name)
    return {str(number): f"{number} ({key})" for number, key in found.items() if key.rpartition("/")[0] in ("", schedule)}


def backend(kind: str, planted: Mapping[str, str]) -> Backend:
    if kind == "emulator":
        return Emulators(planted)
    from references.k3.device import Cuda

    return Cuda({kernel: int(number) for kernel, number in planted.items()})


def bisected(args: argparse.Namespace) -> int:
    """Where two sets of kernels part; exits with 1 where they do."""
    at_least(1, "--steps", args.steps)
    config, both = MODELS[args.model], [chosen(text) for text in (args.base, args.other)]  # all is read before a GPU is asked for
    tokens = [int(token) for token in hashed(1, (args.steps,)) % config.vocab]
    planted = [kernel for _, mistaken in both for kernel in mistaken]
    lines = list(bisect(config, *(backend(*one) for one in both), args.transport, tokens, planted))
    print("\n".join(lines) or f"{args.steps} steps: every call gives the same bits")
    return int(bool(lines))


def prefilled(link: Link, kernels: str, transport: str, segments: Sequence[int]) -> str:
    """A rank's work: the boundary token, a digest of its logits, the time."""
    model = Model(SMALL, backend(kernels, {}), transport)
    start = time.perf_counter()
    last = prefill(link, model, prompt(sum(segments)), segments)
    if last is None:
        return ""
    (token,), row = model.backend.download(last.ids), model.backend.download(last.logits)
    digest = hashlib.blake2b(row.view(np.uint8), digest_size=8).hexdigest()
    return f"token {token}, logits {digest}, {time.perf_counter() - start:.2f} s on the last rank"


def prompt(tokens: int) -> list[int]:
    return [int(token) for token in hashed(7, (tokens,)) % SMALL.vocab]


def parallel(args: argparse.Namespace) -> int:
    """Prefill the small model's prompt by ranks, each with a segment of it; exits with 1 where one is lost."""
    segments = cut(args)
    if not 0 < args.seconds <= LONGEST:
        raise ValueError(f"--seconds must be above 0 and at most {LONGEST}, got {args.seconds:g}")
    check(SMALL, prompt(sum(segments)), segments)
    kernels = args.kernels or CARRIED.get(args.backend, "emulator")
    if kernels != CARRIED.get(args.backend, kernels):
        raise ValueError(f"--backend {args.backend} must have --kernels {CARRIED[args.backend]}, got {kernels}")
    try:
        if args.backend == "threads":
            results = in_process(lambda link: prefilled(link, kernels, args.transport, segments), len(segments), seconds=args.seconds)
        else:
            results = spawned(prefilled, len(segments), args.backend, kernels, args.transport, segments, seconds=args.seconds)
    except RankLost as lost:
        print(f"error: {lost}", file=sys.stderr)
        return 1
    print(f"{sum(segments)} tokens by {len(segments)} ranks, {kernels} over {args.backend}: {results[-1]}")
    return 0


def cut(args: argparse.Namespace) -> tuple[int, ...]:
    """The segments that are asked for, one by one or by their number and sum."""
    if args.segments is None:
        ranks, tokens = RANKS if args.ranks is None else args.ranks, TOKENS if args.tokens is None else args.tokens
        at_least(1, "--ranks", ranks)
        at_least(ranks, "--tokens", tokens, f", one for each of {ranks} ranks")
        return even(tokens, ranks)
    for name, given in (("--ranks", args.ranks), ("--tokens", args.tokens)):
        if given is not None:
            raise ValueError(f"{name} must be left out where --segments says it, got {given} beside {args.segments}")
    sizes = args.segments.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ValueError(f"--segments must be integers of at least 1, with commas between them, got {args.segments!r}")
    return tuple(map(int, sizes))


def at_least(least: int, name: str, given: int, why: str = "") -> None:
    if given < least:
        raise ValueError(f"{name} must be at least {least}{why}, got {given}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m references k3", description="The engine that strings kernels into steps.")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("bisect", help=bisected.__doc__, description=chosen.__doc__)
    one.set_defaults(call=bisected)
    one.add_argument("base", metavar="A", help="the kernels that give the steps")
    one.add_argument("other", metavar="B", help="those that are held to them")
    one.add_argument("--model", choices=MODELS, default="small", help="small, or one layer of each kind at K3's width (default %(default)s)")
    one.add_argument("--steps", type=int, default=8, metavar="N", help="tokens to feed (default %(default)s)")
    two = commands.add_parser("cp", help=parallel.__doc__, description=parallel.__doc__)
    two.set_defaults(call=parallel)
    two.add_argument("--ranks", type=int, metavar="N", help=f"(default {RANKS})")
    two.add_argument("--tokens", type=int, metavar="N", help=f"(default {TOKENS})")
    two.add_argument("--segments", metavar="A,B,..", help="tokens of each rank, in place of --ranks and --tokens")
    two.add_argument("--backend", choices=("threads", *KINDS), default="threads", help="how ranks are linked (default %(default)s)")
    two.add_argument("--kernels", choices=("emulator", "cuda"), help="those that run (default: cuda over nccl, else the emulator)")
    two.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="that a rank may keep another waiting (default %(default)s)")
    for command in (one, two):
        command.add_argument("--transport", choices=TRANSPORTS, default=TRANSPORTS[0])
    args = parser.parse_args(argv)
    return args.call(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
