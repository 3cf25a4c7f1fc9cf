"""python -m references k3 bisect A B: where two sets of kernels part. python -m references k3 cp: a prompt prefilled by several ranks."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence

import numpy as np

from references.contract.inputs import hashed
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


def backend(text: str) -> Backend:
    """`emulator`, `cuda`, and with mistakes: `emulator+land=S3.bf:truncated`, `cuda+land=1` (as planted in land.cu)."""
    kind, *planted = text.split("+")
    mistakes = dict(one.split("=", 1) for one in planted if "=" in one)
    if kind not in ("emulator", "cuda") or len(mistakes) != len(planted):
        raise ValueError(f"kernels must be emulator or cuda, with +KERNEL=MISTAKE for each planted one, got {text!r}")
    if kind == "emulator":
        return Emulators(mistakes)
    if not all(number.isdecimal() for number in mistakes.values()):
        raise ValueError(f"a mistake of cuda must be the number it has in the .cu, got {text!r}")
    from references.k3.device import Cuda

    return Cuda({kernel: int(number) for kernel, number in mistakes.items()})


def bisected(args: argparse.Namespace) -> int:
    """Where two sets of kernels part."""
    config = MODELS[args.model]
    tokens = [int(token) for token in hashed(1, (args.steps,)) % config.vocab]
    lines = list(bisect(config, backend(args.base), backend(args.other), args.transport, tokens))
    print("\n".join(lines) or f"{args.steps} steps: every call gives the same bits")
    return int(bool(lines))


def prefilled(link: Link, kernels: str, transport: str, segments: Sequence[int]) -> str:
    """A rank's work: the boundary token, a digest of its logits, the time."""
    model = Model(SMALL, backend(kernels), transport)
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
    segments = args.segments or even(args.tokens, args.ranks)
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


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m references k3", description="The engine that strings kernels into steps.")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("bisect", help=bisected.__doc__, description=backend.__doc__)
    one.set_defaults(call=bisected)
    one.add_argument("base", metavar="A", help="the kernels that give the steps")
    one.add_argument("other", metavar="B", help="those that are held to them")
    one.add_argument("--model", choices=MODELS, default="small", help="small, or one layer of each kind at K3's width (default %(default)s)")
    one.add_argument("--steps", type=int, default=8, metavar="N", help="tokens to feed (default %(default)s)")
    two = commands.add_parser("cp", help=parallel.__doc__, description=parallel.__doc__)
    two.set_defaults(call=parallel)
    two.add_argument("--ranks", type=int, default=4, metavar="N")
    two.add_argument("--tokens", type=int, default=516, metavar="N")
    two.add_argument("--segments", type=sizes, metavar="A,B,..", help="tokens of each rank, in place of --ranks and --tokens")
    two.add_argument("--backend", choices=("threads", *KINDS), default="threads", help="how ranks are linked (default %(default)s)")
    two.add_argument("--kernels", choices=("emulator", "cuda"), help="those that run (default: cuda over nccl, else the emulator)")
    two.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="that a rank may keep another waiting (default %(default)s)")
    for command in (one, two):
        command.add_argument("--transport", choices=TRANSPORTS, default=TRANSPORTS[0])
    args = parser.parse_args(argv)
    return args.call(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
