"""python -m kernels_cuda build | bench | sanitize [KERNEL ...] | doctor"""

from __future__ import annotations

import argparse
import sys

from kernels_cuda import build


def build_kernels(args: argparse.Namespace) -> int:
    """Build the plain library of each kernel, its TRACE build and its planted mistakes as asked."""
    if args.ptx:
        from kernels_cuda import ptx

        return ptx.main(args.kernels)
    tools = build.toolchain()
    plans = [build.Plan(name, defines, tools) for name in args.kernels for defines in variants(name, args.trace, args.planted)]
    failed = False
    for built in build.build_all(plans):
        state = "FAILED" if built.error else "cached" if built.cached else "built"
        print(f"{built.plan.name:16} {state:7} {built.seconds:6.1f} s  {' '.join(built.plan.flags)}")
        if built.error:
            print(built.error, file=sys.stderr)
            failed = True
    return 1 if failed else 0


def variants(name: str, trace: bool, planted: bool) -> list[tuple[str, ...]]:
    """The defines of each library wanted of a kernel."""
    mistakes = [(f"MISTAKE={k}",) for k in build.planted(name)] if planted else []
    return [(), *([("TRACE",)] if trace else []), *mistakes]


def bench(args: argparse.Namespace) -> int:
    from kernels_cuda import bench

    return bench.main(args.kernels, args.floor)


def sanitize(args: argparse.Namespace) -> int:
    from kernels_cuda import sanitize

    return sanitize.main(args.kernels)


def exercise(args: argparse.Namespace) -> int:
    from kernels_cuda import sanitize

    return max(sanitize.exercise(name) for name in args.kernels)


def doctor(args: argparse.Namespace) -> int:
    from kernels_cuda import doctor

    return doctor.main()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m kernels_cuda", description="Build, time and check the CUDA kernels.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    about = (
        (build_kernels, "build", "build kernels for this machine's GPU, or check their PTX"),
        (bench, "bench", "time both forms against a device copy of the same bytes"),
        (sanitize, "sanitize", "small cases under compute-sanitizer, memcheck and racecheck"),
        (exercise, "exercise", "the small cases alone: what sanitize runs"),
    )
    made = {}
    for call, name, says in about:
        made[name] = commands.add_parser(name, help=says)
        made[name].add_argument("kernels", nargs="*", metavar="KERNEL", help="all where none is named")
        made[name].set_defaults(call=call)
    made["build"].add_argument("--ptx", action="store_true", help="compile to PTX with bare nvcc and check it; needs no torch and no GPU")
    made["build"].add_argument("--trace", action="store_true", help="also the builds that store every landing")
    made["build"].add_argument("--planted", action="store_true", help="also the builds with a planted mistake")
    made["bench"].add_argument("--floor", type=float, default=0.0, metavar="FRACTION", help="fail below this fraction of the copy rate or floor")
    commands.add_parser("doctor", help="what this machine can build and run").set_defaults(call=doctor, kernels=[])
    return top


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        for name in args.kernels:
            build.require(name)
        args.kernels = args.kernels or list(build.names())
        return args.call(args)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
