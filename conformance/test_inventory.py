"""Every kernel is complete: source, CUDA, goldens, one schedule in all of them. Each check is shown a violation that it must find."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import goldens
from conformance import inventory
from conformance.gate import interior
from conformance.inventory import ROOT
from conformance.landings import tags
from conformance.laws import dependent, law, told
from goldens.verify import NOT_KERNELS
from kernels_cuda.build import includes, planted
from references.contract import Kernel, Signature
from references.contract.kernel import KernelError, names
from references.contract.mistakes import mistakes

SOURCES = [path for suffix in ("py", "cu", "cuh") for path in sorted(ROOT.rglob(f"*.{suffix}"))]
FILES = {place: path for path in SOURCES if not (place := str(path.relative_to(ROOT))).startswith((".", "build/", "venv/"))}
WORDS = [name for name in FILES if name.startswith("references/arith/")]


def read(kernel: str, wanted: str = "") -> tuple[str, str, str]:
    """Module, CUDA source, and the headers that it includes. KernelError where there is no CUDA source, with what is `wanted` there."""
    source = ROOT / "kernels_cuda" / f"{kernel}.cu"
    if not source.is_file():
        raise KernelError(f"kernels_cuda/{kernel}.cu is missing{wanted}")
    return module(kernel), source.read_text(), includes(source)


def module(kernel: str) -> str:
    return (ROOT / "references" / f"{kernel}.py").read_text()


def test_every_kernel_is_everywhere():
    sources = {path.stem for path in (ROOT / "kernels_cuda").glob("*.cu")}
    folders = {path.parent.name for path in (ROOT / "goldens").glob("*/MANIFEST.json")}
    told(inventory.place_problems({*names()}, sources, folders - NOT_KERNELS))
    assert "k3" in folders


def parts(kernel: str) -> dict[str, tuple[str, set[str]]]:
    """Of the modules of parts that a kernel module takes functions from: text and names."""
    return {part: (module(part), names) for part, names in inventory.parts(module(kernel)).items()}


def test_schedule(kernel_name):
    with law(kernel_name) as (_, problems):
        texts = [text for text, _ in parts(kernel_name).values()]
        problems += inventory.schedule_problems(kernel_name, *read(kernel_name), texts)


def test_launcher(kernel_name):
    with law(kernel_name) as (kernel, problems):
        wanted = f"; its launcher is {inventory.launcher(kernel_name, kernel.signature)}"
        problems += inventory.launcher_problems(kernel_name, read(kernel_name, wanted)[1], kernel.signature)


def test_independent(kernel_name):
    with law(kernel_name) as (kernel, problems):
        problems += dependent(kernel)


def test_planted_mistakes(kernel_name):
    """Each is named as the emulator's sites and faults are, and none of those that no golden can see."""
    with law(kernel_name) as (kernel, problems):
        _, cuda, headers = read(kernel_name)
        pairs = planted(kernel_name)
        problems += inventory.plant_problems(kernel_name, cuda, headers, pairs)
        present: set[str] = set()
        for case in kernel.cases():
            if not case.large and not present.issuperset(pairs.values()):
                present |= {key for mistake in mistakes(kernel, [case.make()]) for key in (mistake.key, mistake.pair)}
        problems += inventory.unseen_problems(kernel_name, pairs.values(), present)
        problems += [f"{kernel_name}.cu: {key} is planted, and no golden can see it: it is in BLIND" for key in pairs.values() if key in kernel.blind]


def test_interior_landings_are_traced(kernel_name):
    with law(kernel_name) as (kernel, problems):
        _, cuda, headers = read(kernel_name)
        small = {kernel.schedule_of(inputs): case for case in kernel.cases() if not case.large and (inputs := case.make())}
        problems += [f"{kernel_name}: no small case {form}".rstrip() for form in kernel.schedules if form not in small]
        landed: set[int] = set()
        for case in small.values():
            made = goldens.make(kernel, replace(case, guards=()))
            landed.update(tags(made).values())
            problems += inventory.landing_problems(kernel_name, cuda, headers, interior(made).values())
        problems += inventory.trace_problems(kernel_name, cuda, landed)


def test_spelling(kernel_name):
    with law(kernel_name) as (_, problems):
        problems += inventory.spelling_problems(kernel_name, module(kernel_name))
        for part, (text, taken) in parts(kernel_name).items():
            problems += inventory.spelling_problems(part, text, taken)


@pytest.mark.parametrize("place", WORDS)
def test_every_word_says_what_it_computes(place):
    told(inventory.docstring_problems(place, FILES[place].read_text()))


@pytest.mark.parametrize("place", FILES)
def test_files(place):
    told(inventory.file_problems(place, FILES[place].read_text()))


# Violations


MODULE = '''"""toy: as small as it gets.

S1  acc = +0
S2  o = bf(acc + x)
"""
from references.arith import add, asc, bf, zero

@schedule("x: f32[n, m], off: int -> o: bf16[n]", version=1)
def emulate(x, off):
    acc = zero(x[:, 0])  # S1
    for j in asc(x.shape[1]):  # S2
        acc = add(acc, x[:, off + j - 1])  # S2
    return bf(acc)  # S2
'''
CUDA = """
__global__ void toy_scalar() {
  float acc = PLANT(1, 0.0f, -0.0f);   // S1  MISTAKE 1 = S1.zero:minus_zero
  o[i] = bf(PLANT(2, acc + x, x));     // S2  MISTAKE 2 = S2.bf:skipped
  LANDING(1, i, o[i]);
}
extern "C" int toy(const float* x, int64_t off, bf16 *o,
                   int64_t n, int64_t m, int form, cudaStream_t stream) {
"""
SIGNATURE = Signature.parse("x: f32[n, m], off: int -> o: bf16[n]")


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_the_toy_is_right():
    assert inventory.schedule_problems("toy", MODULE, CUDA, "") == []
    assert inventory.launcher_problems("toy", CUDA, SIGNATURE) == []
    assert inventory.plant_problems("toy", CUDA, "", {1: "S1.zero:minus_zero", 2: "S2.bf:skipped"}) == []
    assert inventory.landing_problems("toy", CUDA, "", [1]) == []
    assert inventory.spelling_problems("toy", MODULE) == []


@pytest.mark.parametrize(
    ("module", "cuda", "said"),
    [
        (changed(MODULE, "S1  acc", "Sx  acc"), CUDA, "the docstring must state S1, S2, ..., states [2]"),
        (changed(MODULE, "# S1", "#"), CUDA, "toy.py: no line is tagged S1"),
        (changed(MODULE, "# S1", "# S1 S3"), CUDA, "toy.py: S3 is no step of the docstring"),
        (MODULE, changed(CUDA, "// S2 ", "//"), "toy.cu: no line is tagged S2"),
        (MODULE, changed(CUDA, "// S2 ", "// S2, S4"), "toy.cu: S4 is no step of the docstring"),
    ],
)
def test_a_schedule_that_is_not_the_same_everywhere(module, cuda, said):
    assert any(said in problem for problem in inventory.schedule_problems("toy", module, cuda, ""))


def test_a_step_may_be_spelled_in_a_header():
    without = changed(CUDA, "// S2 ", "//")
    assert inventory.schedule_problems("toy", MODULE, without, "// S2, S9") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("const float* x", "float* x"), ("int64_t off", "int off"), ("n, int64_t m", "m, int64_t n"), ("int form, ", ""), ("int toy(", "int tow(")],
)
def test_a_launcher_with_other_parameters(old, new):
    assert inventory.launcher_problems("toy", changed(CUDA, old, new), SIGNATURE)


@pytest.mark.parametrize("cuda", ["", 'extern "C" int tow(int form)'])
def test_without_a_launcher_its_parameters_are_told(cuda):
    want = 'toy.cu: no extern "C" int toy(const float* x, int64_t off, bf16* o, int64_t n, int64_t m, int form, cudaStream_t stream)'
    assert inventory.launcher_problems("toy", cuda, SIGNATURE) == [want]


def test_without_a_source_its_launcher_is_told_once(monkeypatch):
    monkeypatch.setattr(Kernel, "load", lambda name: SimpleNamespace(signature=SIGNATURE))
    with pytest.raises(pytest.fail.Exception, match=r'^kernels_cuda/toy\.cu is missing; its launcher is extern "C" int toy\(const float\* x, '):
        test_launcher("toy")
    with pytest.raises(pytest.fail.Exception, match=r"^kernels_cuda/toy\.cu is missing$"):
        test_planted_mistakes("toy")


def test_kernels_that_are_in_one_place_only():
    assert inventory.place_problems({"a", "b"}, {"a", "b"}, {"a", "b"}) == []
    assert inventory.place_problems({"a", "b"}, {"a"}, {"b", "c"}) == [
        "kernels_cuda/b.cu is missing", "goldens/a/MANIFEST.json is missing", "goldens/c/MANIFEST.json is of no kernel: there is no references/c.py",
    ]


def test_plants_and_traces_that_are_missing():
    pairs = {1: "S1.zero:minus_zero", 2: "S2.bf:skipped"}
    assert inventory.plant_problems("toy", CUDA, "", {1: pairs[1]}) != []
    assert "MISTAKE 2 has no PLANT(2, ...)" in inventory.plant_problems("toy", changed(CUDA, "PLANT(2", "PLANT(3"), "", pairs)[0]
    assert inventory.landing_problems("toy", changed(CUDA, "LANDING(1", "LANDING(2"), "", [1]) == ["toy.cu: landing S1 has no LANDING(1, ...)"]
    assert inventory.trace_problems("toy", CUDA, {1, 2}) == []
    assert inventory.trace_problems("toy", CUDA, {2}) == ["toy.cu: LANDING(1, ...) is of no landing of the emulator"]


def test_plants_that_no_small_case_can_show():
    present = {"S1.zero:minus_zero", "late/S1.zero:minus_zero"}
    assert inventory.unseen_problems("toy", present, present) == []
    assert inventory.unseen_problems("toy", ["S1.zero:skipped", "S2.bf:skipped", "late/S2.bf:skipped"], present) == [
        "toy.cu: S1.zero:skipped is planted, and no small case can show it", "toy.cu: S2.bf:skipped is planted, and the emulator has no S2.bf",
        "toy.cu: late/S2.bf:skipped is planted, and the emulator has no late/S2.bf"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("acc = acc + x[:, 0]", "`acc + x[:, 0]` is bare arithmetic"),
        ("acc += x[:, 0]", "is bare arithmetic"),
        ("acc = -acc", "is bare arithmetic"),
        ("acc = x @ x", "rounds in an order of NumPy's own"),
        ("acc = x.sum(0)", "x.sum rounds in an order"),
        ("acc = np.exp(acc)", "np.exp rounds in an order"),
        ("acc = np.add(acc, 1)", "np.add() is no word"),
        ("acc = abs(acc)", "abs() is no word"),
        ("acc = add(acc, off * 0.5)", "`off * 0.5` is bare arithmetic"),
    ],
)
def test_an_emulator_that_computes_by_itself(line, said):
    assert any(said in problem for problem in inventory.spelling_problems("toy", changed(MODULE, "    return", f"    {line}\n    return")))


FORMS = MODULE.replace("    acc = zero", "    return summed(x, off)\n\n\ndef summed(x, off: int):\n    acc = zero")


def test_what_emulate_calls_is_held_to_the_same():
    assert inventory.spelling_problems("toy", FORMS) == []
    assert any("bare arithmetic" in said for said in inventory.spelling_problems("toy", changed(FORMS, "add(acc,", "add(acc * 2,")))
    elsewhere = FORMS.partition("def summed")[0] + "\nfrom references._toy import summed"
    assert inventory.spelling_problems("toy", elsewhere) == [] and inventory.parts(elsewhere) == {"_toy": {"summed"}}
    assert inventory.spelling_problems("toy", elsewhere.replace("references._toy", "numpy")) != []


def test_forms_state_their_steps_one_after_the_other():
    again = changed(MODULE, "S2  o = bf(acc + x)\n", "S2  o = bf(acc + x)\n\nS1  acc = +0\n")
    assert inventory.schedule_problems("toy", again, CUDA, "") == []
    part = '"""S1  acc = +0\nS2  o\nS3  p\n"""\nx = 1  # S3\n'
    assert inventory.schedule_problems("toy", MODULE, CUDA + "// S3\n", "", [part]) == []
    assert inventory.schedule_problems("toy", MODULE, CUDA, "", [part]) == ["toy.cu: no line is tagged S3"]
    assert inventory.schedule_problems("toy", changed(MODULE, "S2  o", "S1  z\nS3  o"), CUDA, "") != []


def test_other_parts_of_a_module_do_not_sum_either():
    assert inventory.spelling_problems("toy", MODULE + "\ndef make():\n    return np.einsum('i->', x)\n")


def test_words_without_a_docstring():
    text = '@landing\ndef bf(x):\n    return x\n\n@site\ndef add(a):\n    """a"""\n\ndef helper(x):\n    return x\n'
    assert inventory.docstring_problems("bits.py", text) == ["bits.py:2: bf has no docstring"]


def test_long_files_and_ways_out():
    assert inventory.file_problems("a/b.py", "\n" * 300) == []
    assert "301 lines, at most 300" in inventory.file_problems("a/b.py", "\n" * 301)[0]
    assert inventory.file_problems("a/test_b.py", "\n" * 400) == [] != inventory.file_problems("a/test_b.py", "\n" * 401)
    for way in ("/" + "home/x", ".." + "/x"):
        assert "b.py:1: " in inventory.file_problems("b.py", f'open("{way}")')[0]
