"""What every kernel must have and no file may have, as functions of source text that return problems, one line each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from references.contract import Signature

ROOT = Path(__file__).resolve().parent.parent
CTYPES = {"bf16": "bf16", "f32": "float", "e4m3": "uint8_t", "u8": "uint8_t", "i32": "int32_t", "i64": "int64_t"}
BUILTINS = {"len", "range", "min", "max", "zip", "enumerate"}
VIEWS = {"reshape", "transpose", "swapaxes", "append"}  # methods that move no bit
ROUNDING = {"sum", "cumsum", "mean", "dot", "matmul", "einsum", "inner", "exp", "log", "tanh", "power", "sqrt", "prod"}
LIMITS = {"test_": 400, "": 300}  # lines; a test's table of cases is read entry by entry
OUTSIDE = re.compile("(/" + "work|/" + "home|/" + "root|/" + r"tmp)/|\.\./")


def place_problems(kernels: set[str], sources: set[str], goldens: set[str]) -> list[str]:
    """Kernels of references/ that are not in kernels_cuda/ or goldens/, and what is there of no kernel."""
    problems = []
    for place, there in (("kernels_cuda/{}.cu", sources), ("goldens/{}/MANIFEST.json", goldens)):
        problems += [f"{place.format(name)} is missing" for name in sorted(kernels - there)]
        problems += [f"{place.format(name)} is of no kernel: there is no references/{name}.py" for name in sorted(there - kernels)]
    return problems


# The schedule: docstring, emulator, CUDA


def documented(docstring: str) -> list[int]:
    """The steps a module's docstring states: lines that begin with S1, S2, ...; forms with schedules of their own begin again at S1."""
    return [int(step) for step in re.findall(r"^S(\d+)\b", docstring or "", re.M)]


def tagged(text: str, mark: str) -> set[int]:
    """The steps named in comments; a site (`S3.bf` of a planted mistake) is no step."""
    comments = (line.partition(mark)[2] for line in text.splitlines())
    return {int(step) for comment in comments for step in re.findall(r"\bS(\d+)\b(?!\.)", comment)}


def schedule_problems(name: str, module: str, cuda: str, headers: str, parts: Iterable[str] = ()) -> list[str]:
    """`headers`: those the CUDA source includes; a step may be spelled there. `parts`: the modules of forms that the module imports."""
    modules = (module, *parts)
    steps = [step for text in modules for step in documented(ast.get_docstring(ast.parse(text)))]
    right = steps[:1] == [1] and all(step in (1, before + 1) for before, step in pairwise(steps))
    problems = [] if right else [f"{name}.py: the docstring must state S1, S2, ..., states {steps}"]
    in_python = set().union(*(tagged(text, "#") for text in modules))
    places = {f"{name}.py": in_python, f"{name}.cu": tagged(cuda, "//") | (tagged(headers, "//") & set(steps))}
    for place, tags in places.items():
        problems += [f"{place}: no line is tagged S{step}" for step in dict.fromkeys(steps) if step not in tags]
        problems += [f"{place}: S{step} is no step of the docstring" for step in sorted(tags - set(steps))]
    return problems


def parts(module: str) -> dict[str, set[str]]:
    """The modules of parts (`references._name`) a kernel module imports functions from, with their names."""
    nodes = [node for node in ast.parse(module).body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("references._")]
    return {node.module.removeprefix("references."): {alias.name for alias in node.names} for node in nodes}


# The launcher


def parameters(signature: Signature) -> list[str]:
    """The C parameters that follow from a signature."""
    scalars = {"int": "int64_t", "f32": "float", "bf16": "float"}
    inputs = [f"const {CTYPES[o.dtype]}* {o.name}" if o.is_array else f"{scalars[o.dtype]} {o.name}" for o in signature.arguments]
    outputs = [f"{CTYPES[o.dtype]}* {o.name}" for o in signature.outputs]
    sizes = [f"int64_t {name}" for name in (*signature.dims, *signature.strides)]
    return [*inputs, *outputs, *sizes, "int form", "cudaStream_t stream"]


def launcher(name: str, signature: Signature) -> str:
    return f'extern "C" int {name}({", ".join(parameters(signature))})'


def launcher_problems(name: str, cuda: str, signature: Signature) -> list[str]:
    found = re.search(rf'extern "C" int {name}\(([^)]*)\)', cuda)
    if not found:
        return [f"{name}.cu: no {launcher(name, signature)}"]
    got = [re.sub(r"\s*\*\s*", "* ", " ".join(part.split())) for part in found[1].split(",")]
    want = parameters(signature)
    if got == want:
        return []
    return [f"{name}.cu: the launcher takes ({', '.join(got)}), the signature says ({', '.join(want)})"]


# Planted mistakes and traced landings


def plant_problems(name: str, cuda: str, headers: str, planted: dict[int, str], least: int = 2) -> list[str]:
    problems = [] if len(planted) >= least else [f"{name}.cu: {len(planted)} planted mistakes, needs {least}"]
    spelled = {int(k) for k in re.findall(r"\bPLANT\((\d+),", cuda + headers)}
    problems += [f"{name}.cu: MISTAKE {k} has no PLANT({k}, ...)" for k in planted if k not in spelled]
    return problems + [f"{name}.cu: PLANT({k}, ...) does not say which mistake it is" for k in sorted(spelled - set(planted))]


def unseen_problems(name: str, planted: Iterable[str], present: set[str]) -> list[str]:
    """Planted mistakes that are not among those `present` in the emulator on small cases, all written `site:fault`."""
    sites = {key.partition(":")[0] for key in present}
    problems = []
    for key in sorted({*planted} - present):
        site = key.partition(":")[0]
        why = "no small case can show it" if site in sites else f"the emulator has no {site}"
        problems.append(f"{name}.cu: {key} is planted, and {why}")
    return problems


def landing_problems(name: str, cuda: str, headers: str, interior: Iterable[int]) -> list[str]:
    """Landings that do not leave the kernel, and that no trace build would show."""
    traced = traces(cuda + headers)
    return [f"{name}.cu: landing S{tag} has no LANDING({tag}, ...)" for tag in interior if tag not in traced]


def trace_problems(name: str, cuda: str, landed: set[int]) -> list[str]:
    """Traces of what no emulator lands: nothing would compare them. `landed`: by any form; a header's may be of another kernel."""
    return [f"{name}.cu: LANDING({tag}, ...) is of no landing of the emulator" for tag in sorted(traces(cuda) - landed)]


def traces(cuda: str) -> set[int]:
    """The tags that a source traces."""
    return {int(tag) for tag in re.findall(r"\b(?:LANDING|KEPT)\((\d+),", cuda)}


# What emulators may be spelled with


def spelling_problems(name: str, module: str, start: Iterable[str] = ("emulate",)) -> list[str]:
    """Kernel modules: no order or rounding but that of the words. emulate(), and what it calls: words, views and index arithmetic, nothing else.

    `start`: of a module of parts, the functions that a kernel module imports.
    """
    tree = ast.parse(module)
    problems = [
        f"{name}.py:{node.lineno}: {ast.unparse(node)} rounds in an order of NumPy's own"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ROUNDING) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
    ]
    words = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names if _is_arith(node)}
    emulating = emulators(tree, start)
    known = words.union(*parts(module).values(), (function.name for function in emulating))
    for function in emulating:
        problems += [f"{name}.py:{line}: {said}" for line, said in _body_problems(function, known, _integers(function))]
    return problems


def emulators(tree: ast.Module, start: Iterable[str]) -> list[ast.FunctionDef]:
    """These functions and those of the same module that they call, directly or not."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found, todo = {}, [*start]
    while todo:
        name = todo.pop()
        if name in functions and name not in found:
            found[name] = functions[name]
            todo += [node.func.id for node in ast.walk(functions[name]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return list(found.values())


def _is_arith(node: ast.ImportFrom) -> bool:
    return (node.module or "").startswith("references.arith")


def _integers(function: ast.FunctionDef) -> set[str]:
    """Names that stand for integers: those of the signature, parameters that say `int`, loop variables over a range, and what is made of these."""
    text = next((ast.literal_eval(d.args[0]) for d in function.decorator_list if isinstance(d, ast.Call) and d.args), "-> o: f32[n]")
    known = {operand.name for operand in Signature.parse(text).inputs if operand.dtype == "int"} if text.split("->")[0].strip() else set()
    known |= {arg.arg for arg in function.args.args if arg.annotation and ast.unparse(arg.annotation) == "int"}
    loops = (node for node in ast.walk(function) if isinstance(node, ast.For) and isinstance(node.iter, ast.Call))
    known |= {node.target.id for node in loops if isinstance(node.target, ast.Name) and ast.unparse(node.iter.func) in ("asc", "range")}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_index(node.value, known):
            known.add(node.targets[0].id)
    return known


def _body_problems(emulate: ast.FunctionDef, words: set[str], integers: set[str]) -> Iterable[tuple[int, str]]:
    for node in (n for statement in emulate.body for n in ast.walk(statement)):
        if isinstance(node, ast.Call):
            allowed = node.func.id in words | BUILTINS if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "") in VIEWS
            if not allowed:
                yield node.lineno, f"{ast.unparse(node.func)}() is no word of references.arith"
        elif isinstance(node, ast.BinOp | ast.AugAssign | ast.UnaryOp) and not _is_index(node, integers):
            yield node.lineno, f"`{ast.unparse(node)}` is bare arithmetic"


def _is_index(node: ast.AST, integers: set[str]) -> bool:
    """Arithmetic on sizes and positions, which rounds nothing."""
    if isinstance(node, ast.BinOp):
        return _is_index(node.left, integers) and _is_index(node.right, integers)
    if isinstance(node, ast.UnaryOp):
        return _is_index(node.operand, integers)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Name):
        return node.id in integers
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max"):
        return all(_is_index(arg, integers) for arg in node.args)
    return isinstance(node, ast.Call | ast.Subscript) and bool(re.fullmatch(r"len\(\w+\)|\w+\.shape\[-?\d+\]", ast.unparse(node)))


# Every file


def docstring_problems(place: str, module: str) -> list[str]:
    """Words of references.arith that do not say what they compute."""
    words = (node for node in ast.parse(module).body if isinstance(node, ast.FunctionDef) and _decorated(node) & {"site", "landing"})
    return [f"{place}:{word.lineno}: {word.name} has no docstring" for word in words if not ast.get_docstring(word)]


def _decorated(node: ast.FunctionDef) -> set[str]:
    return {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}


def file_problems(place: str, text: str) -> list[str]:
    name, lines = Path(place).name, text.splitlines()
    limit = next(limit for start, limit in LIMITS.items() if name.startswith(start))
    problems = [f"{place}: {len(lines)} lines, at most {limit}"] if len(lines) > limit else []
    found = ((number, OUTSIDE.search(line)) for number, line in enumerate(lines, 1))
    return problems + [f"{place}:{number}: {match[0]} leads out of the repository" for number, match in found if match]
