"""python -m references list | run KERNEL in.npz -o out.npz | k3 bisect | k3 cp | floor | probe | bench"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import numpy as np

from references.contract import Kernel, kernels
from references.contract.files import unpacked, write_whole
from references.contract.signature import BITS, DTYPES


def list_kernels(args: argparse.Namespace) -> int:
    for kernel in kernels():
        print(f"{kernel.name:16} v{kernel.version}  {kernel.module.__doc__.splitlines()[0].split(': ', 1)[1]}")
    return 0


def run(args: argparse.Namespace) -> int:
    kernel = Kernel.load(args.kernel)
    inputs = read_inputs(kernel, args.inputs)
    outputs = {name: value for name, value in kernel.outputs(inputs).items() if value is not None}
    file = io.BytesIO()
    np.savez(file, **{name: value.view(BITS[value.itemsize]) for name, value in outputs.items()})
    write_whole(args.output, file.getvalue())
    for name, value in outputs.items():
        print(f"{args.output}: {name} {value.dtype.name}{list(value.shape)} as {BITS[value.itemsize].__name__} bits")
    return 0


def read_inputs(kernel: Kernel, path: Path) -> dict:
    """Arguments by name from an .npz; 8- and 16-bit floats as unsigned bit views, `in.x` of a golden as well as `x`."""
    stored = {name.removeprefix("in."): value for name, value in read_arrays(path).items()}
    inputs = {}
    for operand in kernel.signature.inputs:
        if operand.name not in stored:
            raise ValueError(f"{path} must hold {operand.name} ({kernel.name} takes {', '.join(o.name for o in kernel.signature.inputs)})")
        value = stored[operand.name]
        if operand.is_array and value.dtype == BITS[DTYPES[operand.dtype].itemsize]:
            value = value.view(DTYPES[operand.dtype])
        elif operand.dtype == "form":
            value = value.tobytes().decode() if value.dtype == np.uint8 else str(value)
        elif not operand.is_array:
            value = value[()].view(np.float32) if value.dtype == np.uint32 else value[()]
        inputs[operand.name] = value
    return inputs


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name. ValueError where it is damaged or something else."""
    content = path.read_bytes()
    try:
        return unpacked(content)
    except ValueError:  # what numpy says of these is of pickles
        raise ValueError(f"{path} is damaged or not an .npz of arrays ({len(content)} bytes): write it with numpy.savez") from None


def bench(args: argparse.Namespace) -> int:
    from references.arith import bench

    return bench.main(args.rest)


def probe(args: argparse.Namespace) -> int:
    from references.probe._command import main as measure

    return measure(args.rest)


def floor(args: argparse.Namespace) -> int:
    from references.floor._command import main as measure

    return measure(args.rest)


def k3(args: argparse.Namespace) -> int:
    from references.k3._command import main as command

    return command(args.rest)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m references", description="Emulate the kernels without a GPU.")
    commands = parser.add_subparsers(required=True)
    commands.add_parser("list", help="the kernels and what they compute").set_defaults(call=list_kernels)
    one = commands.add_parser("run", help="emulate one kernel on inputs from an .npz")
    one.add_argument("kernel", metavar="KERNEL")
    one.add_argument("inputs", type=Path, metavar="in.npz")
    one.add_argument("-o", "--output", type=Path, required=True, metavar="out.npz")
    one.set_defaults(call=run)
    others = (
        (k3, "where two sets of kernels part in a step; a prompt prefilled by several ranks"),
        (floor, "how far apart forms, and forms and truth, lie"),
        (probe, "measure this GPU's arithmetic and hold the emulator to it"),
        (bench, "products/s of the tensor-core model"),
    )
    for call, about in others:
        more = commands.add_parser(call.__name__, help=about, add_help=False)
        more.set_defaults(call=call)
    args, rest = parser.parse_known_args(argv)
    if rest and args.call not in [call for call, _ in others]:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        return args.call(args) or 0
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
