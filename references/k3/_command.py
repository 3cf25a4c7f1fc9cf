"""python -m references k3 bisect A B: where two sets of kernels part."""

from __future__ import annotations

import argparse
import sys

from references.contract.inputs import hashed
from references.k3.backend import Backend, Emulators
from references.k3.bisect import bisect
from references.k3.config import SMALL, TRANSPORTS, WIDE

MODELS = {"small": SMALL, "wide": WIDE}


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


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m references k3", description="The engine that strings kernels into steps.")
    one = parser.add_subparsers(required=True).add_parser("bisect", help=main.__doc__, description=backend.__doc__)
    one.add_argument("base", metavar="A", help="the kernels that give the steps")
    one.add_argument("other", metavar="B", help="those that are held to them")
    one.add_argument("--model", choices=MODELS, default="small", help="small, or one layer of each kind at K3's width (default %(default)s)")
    one.add_argument("--transport", choices=TRANSPORTS, default=TRANSPORTS[0])
    one.add_argument("--steps", type=int, default=8, metavar="N", help="tokens to feed (default %(default)s)")
    args = parser.parse_args(argv)
    config = MODELS[args.model]
    tokens = [int(token) for token in hashed(1, (args.steps,)) % config.vocab]
    lines = list(bisect(config, backend(args.base), backend(args.other), args.transport, tokens))
    print("\n".join(lines) or f"{args.steps} steps: every call gives the same bits")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
