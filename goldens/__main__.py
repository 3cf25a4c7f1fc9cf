"""python -m goldens regenerate | verify [--regenerate] | show KERNEL/CASE | diff A B | search

Exit codes: 0 all is well, 1 something is wrong with the goldens, 2 a wrong argument, 4 refused (in CI or in a pytest-xdist worker).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from goldens import diff as differences
from goldens import specs, steps
from goldens.files import GoldenError
from goldens.regenerate import REFUSED, refusal, regenerate, search_again
from goldens.store import ROOT, case_names, load
from goldens.verify import problems, strangers
from references.contract import Kernel, kernels


def write(args: argparse.Namespace) -> int:
    """regenerate, search: one kernel's error does not keep the others from being done."""
    if reason := refusal():
        print(f"refused: {reason}", file=sys.stderr)
        return REFUSED
    if args.write is search_again and steps.NAME in args.kernels:
        raise ValueError(f"KERNEL of a search must be a kernel, got {steps.NAME!r}: walks have the inputs of their plans")
    failed = False
    for kernel in _chosen(args):
        try:
            unseen = args.write(kernel, args.folder)
        except GoldenError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
        else:
            if unseen:
                todo = "give pool() slices that do, or name them in BLIND"
                print(f"error: {kernel.name}: no golden shows {', '.join(unseen)}: {todo}", file=sys.stderr)
            failed |= bool(unseen)
    if args.write is regenerate and _with_steps(args):
        steps.regenerate(args.folder)
    return int(failed)


def verify(args: argparse.Namespace) -> int:
    chosen = _chosen(args)
    found = [line for kernel in chosen for line in problems(kernel, args.folder, args.regenerate)]
    found += [] if args.kernels else strangers(args.folder)
    found += steps.problems(args.folder, args.regenerate) if _with_steps(args) else []
    for line in found:
        print(line)
    folders = [kernel.name for kernel in chosen] + ([steps.NAME] if _with_steps(args) else [])
    count = sum(len(case_names(name, args.folder)) for name in folders)
    how = "rebuilt and compared" if args.regenerate else "checked against their manifests"
    whose = ", ".join(args.kernels) or f"{len(chosen)} kernels and {steps.NAME}"
    print(f"{count} goldens of {whose} {how}, {len(found)} problem{'s' * (len(found) != 1)}")
    return int(bool(found))


def show(args: argparse.Namespace) -> int:
    kernel, case = specs.split(args.golden, args.folder)
    described = steps.describe(case, args.folder) if kernel == steps.NAME else differences.describe(load(kernel, case, args.folder))
    for line in described:
        print(line)
    return 0


def diff(args: argparse.Namespace) -> int:
    """Exit 1 where they differ, as diff(1) does."""
    old, new = specs.stored_pair(args.old, args.new, args.folder)
    lines = differences.diff(old, new)
    for line in lines:
        print(line)
        key = line.split(": ", 1)[0]
        if " changed" in line:
            print(*differences.first_rows(old[key], new[key]), sep="\n")
    return int(bool(lines))


def _chosen(args: argparse.Namespace) -> tuple[Kernel, ...]:
    return tuple(Kernel.load(name) for name in args.kernels if name != steps.NAME) if args.kernels else kernels()


def _with_steps(args: argparse.Namespace) -> bool:
    """k3, the goldens of whole steps, can be named as a kernel can."""
    return not args.kernels or steps.NAME in args.kernels


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m goldens", description="The bits that emulators and kernels are held to.")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where the goldens are (default: %(default)s)")
    commands = parser.add_subparsers(required=True)
    many = argparse.ArgumentParser(add_help=False)
    many.add_argument("kernels", metavar="KERNEL", nargs="*", help="all where none is named; k3: those of whole steps")
    one = commands.add_parser("regenerate", parents=[many], help="rebuild; write what changed, which needs a raised schedule version")
    one.set_defaults(call=write, write=regenerate)
    one = commands.add_parser("search", parents=[many], help="search anew for slices that show every mistake; writes what is found only")
    one.set_defaults(call=write, write=search_again)
    one = commands.add_parser("verify", parents=[many], help="check files, manifests and cases against each other")
    one.add_argument("--regenerate", action="store_true", help="also emulate every case again and compare the bits; writes nothing")
    one.set_defaults(call=verify)
    one = commands.add_parser("show", help="what a golden is for and what it holds")
    one.add_argument("golden", metavar="KERNEL/CASE")
    one.set_defaults(call=show)
    one = commands.add_parser("diff", help="two goldens, array by array, in bits and ulps; of walks k3/CASE the first landing that differs")
    one.add_argument("old", metavar="A", help="KERNEL/CASE, or an .npz: of a golden, of `references run`, of --save-failures")
    one.add_argument("new", metavar="B")
    one.set_defaults(call=diff)
    args = parser.parse_args(argv)
    try:
        if not args.folder.is_dir() and (args.call is not write or args.folder.exists()):
            raise ValueError(f"--folder must be a folder, got {str(args.folder)!r}")
        return args.call(args)
    except GoldenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
