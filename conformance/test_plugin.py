"""The pytest side of the gate, run by pytest itself in a folder of its own: states, table, reports, options, and the same under -n 2."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conformance.message import KERNEL_CHANGED
from conformance.report_html import bucket_text, histogram_svg
from references.contract.kernel import names

KERNELS = len(names())
SECONDS = 120
ROOT = Path(__file__).resolve().parent.parent
CONFTEST = """
def cases(kernel):
    return {"land": {"exact": False, "off": False, "large": True}, "situ": {"exact": False}}.get(kernel, {})
"""
TESTS = """
import numpy as np, pytest
from conformance.compare import compare_all
from conformance.message import KERNEL_CHANGED, Finding, arrays
from conformance.plugin import BUILT, report_finding, unmet

@pytest.mark.gate("emulator")
def test_emulator(golden):
    pass

@pytest.mark.gate("device")
def test_cuda(golden, request):
    kernel, case = golden
    request.config.stash[BUILT]["land"] = 12.5
    if case == "large":
        pytest.skip("no CUDA device: none")
    if case == "off":
        got, want = np.arange(1, 4, dtype=np.float32), np.array([1, 5, 3], np.float32)
        found = compare_all({"o": got}, {"o": want})
        saved = arrays({"n": 3}, device={"o": got}, golden={"o": want})
        report_finding(Finding(kernel, case, "so that", "device", "current/aligned", found, KERNEL_CHANGED, "S3.bf", arrays=saved), request)
    with unmet(f"{kernel}/{case}", RuntimeError):
        if kernel == "situ":
            raise RuntimeError("it does not compile")
"""
TABLE = """\
kernel           lane      cases  exact  mismatch  error  not run   worst ulp   build
land             emulator      3      3         0      0        0           0       -
land             device        3      1         1      0        1  10,485,760  12.5 s"""


@pytest.fixture
def project(pytester, monkeypatch):
    return prepared(pytester, monkeypatch, TESTS)


def prepared(pytester, monkeypatch, tests):
    """These tests in a folder of their own, with the options of this project and a few goldens."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("GITHUB_ACTIONS", "CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest((ROOT / "conftest.py").read_text() + CONFTEST)
    pytester.makepyfile(tests)
    return pytester


def run(project, *args):
    return project.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=SECONDS)


def gate_section(result) -> list[str]:
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if line.strip("= ") == "gate")
    return lines[start + 1 : next(i for i, line in enumerate(lines) if line.startswith("GATE")) + 1]


@pytest.fixture
def both(project):
    """The same run alone and spread over two workers."""
    return [run(project, "--report-json", f"{n}.json", "--junitxml", f"{n}.xml", "-n", n) for n in "02"]


def test_alike_in_one_process_and_in_two_workers(both, project):
    alone, spread = both
    assert gate_section(alone) == gate_section(spread)
    assert Path("0.json").read_text() == Path("2.json").read_text()
    assert alone.ret == spread.ret == pytest.ExitCode.TESTS_FAILED
    assert "2 failed, 5 passed, 1 not run" in alone.outlines[-1]
    section = "\n".join(gate_section(alone))
    assert TABLE.splitlines()[0] in section and all(line in section for line in TABLE.splitlines())
    assert "not run (1): no CUDA device: none" in section
    assert f"goldens: 4 of {KERNELS} kernels (1 large: sampled slices in the emulator lane), 4 compared in this run" in section
    said = f"GATE  emulator 2/{KERNELS} kernels exact; device 0/{KERNELS} kernels exact (1 mismatch, 1 error, 1 of 4 cases not run)"
    assert said in section


def test_a_failure_reads_from_its_first_line(both):
    text = both[0].outlines
    at = text.index(next(line for line in text if line.startswith("land/off current/aligned: o differs in 1 of 3 (33.3 %)")))
    assert text[at + 1].split() == ["verdict", *KERNEL_CHANGED.split()]
    assert not any("report_finding(" in line or "Traceback" in line for line in text), "no traceback"
    assert any(line.startswith("FAILED") and "::test_cuda[land/off] - S3.bf, current/aligned, o differs in 1 of 3" in line for line in text)


MANY = """
import numpy as np, pytest
from conformance.compare import compare_all
from conformance.message import EMULATOR_CHANGED, Finding
from conformance.plugin import report_finding

@pytest.mark.gate("emulator")
def test_emulator(golden, request):
    kernel, case = golden
    found = compare_all({"o": np.ones(2, np.float32)}, {"o": np.zeros(2, np.float32)})
    why = ["the golden's bits"] if case == "large" else []
    report_finding(Finding(kernel, case, "so that", "emulator", "", found, EMULATOR_CHANGED, "S3.bf", diagnosis=why), request)
"""


@pytest.mark.parametrize("n", "02")
def test_a_kernel_is_told_whole_once_and_then_in_lines(pytester, monkeypatch, n):
    """By each process; a diagnosis is told whole, whenever it comes. The report keeps every message."""
    result = run(prepared(pytester, monkeypatch, MANY), "--kernel", "land", "--report-json", "made.json", "-n", n)
    lines = [line for line in result.outlines if line.startswith(("land/", "  verdict", "  diagnosis"))]
    heads = [line.split()[0] for line in lines]
    assert sorted(head for head in heads if head.startswith("land/")) == ["land/exact:", "land/large:", "land/off:"]
    assert heads[heads.index("land/large:") + 1 :][:2] == ["verdict", "diagnosis"]
    assert n != "0" or [line for line in lines if line.startswith("land/off")] == [
        "land/off: o differs in 2 of 2 (100 %), worst 1,065,353,216 ulp, first at [0]: emulator 0x3f800000 (1), golden 0x00000000 (0); "
        "first S3.bf (the whole message: exact)"]
    assert "land emulator: first S3.bf in exact, large, off" in gate_section(result)
    assert all("\n  verdict " in one["text"] for one in json.loads(Path("made.json").read_text())["records"])


def test_json_and_junit(both):
    made = json.loads(Path("2.json").read_text())
    states = {(one["kernel"], one["case"], one["lane"]): one["state"] for one in made["records"]}
    assert states["land", "off", "device"] == "mismatch" and states["land", "large", "device"] == "not run"
    assert states["situ", "exact", "device"] == "error" and states["land", "off", "emulator"] == "exact"
    assert made["gate"].startswith("GATE  ") and made["build_seconds"] == {"land": 12.5}
    case = next(e for e in ElementTree.parse("2.xml").iter("testcase") if e.get("name") == "test_cuda[land/off]")
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties == {"kernel": "land", "case": "off", "lane": "device", "state": "mismatch", "worst_text": "10,485,760 ulp"}


@pytest.mark.parametrize("options", [["-k", "no_such"], ["-k", "no_such", "-n", "2"], ["test_other.py"]], ids=["empty", "workers", "others"])
def test_reports_of_a_run_without_goldens_are_its_own(project, options):
    """What an earlier run wrote does not stay."""
    project.makepyfile(test_other="def test_other(): pass")
    for path in ("gate.json", "gate.html"):
        Path(path).write_text("GATE  emulator 2/2 kernels exact")
    run(project, "--report-json", "gate.json", "--report-html", "gate.html", *options)
    made = json.loads(Path("gate.json").read_text())
    assert made["gate"] == "GATE  no kernel golden was compared" and made["gate"] in Path("gate.html").read_text()
    assert not made["records"] and {row["not run"] for row in made["table"] if row["kernel"] == "land"} == {3}


def test_html_is_one_file(project):
    run(project, "--report-html", "out/gate.html")
    text = Path("out/gate.html").read_text()
    links = []

    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            links.extend(value for name, value in attributes if name in ("src", "href"))

    Links().feed(text)
    assert not links and "url(" not in text
    svg = text[text.index("<svg") : text.index("</svg>") + 6]
    assert [e.text for e in ElementTree.fromstring(svg).iter("text")] == ["1", "-2^23"]
    assert "situ/exact: RuntimeError: it does not compile" in text and "land/off current/aligned" in text


def test_histogram_bars():
    bars = list(ElementTree.fromstring(histogram_svg({"1": 1000, "-3": 2, "0": 1})).iter("rect"))
    assert len(bars) == 3 and float(bars[2].get("height")) > float(bars[0].get("height"))
    assert [bucket_text(bucket) for bucket in (0, 1, -2, 3, 9)] == ["±0", "+1", "-2..3", "+4..7", "+2^8"]


def test_annotations_on_github(project, monkeypatch):
    assert not any(line.startswith("::error") for line in run(project).outlines)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = [line for line in run(project).outlines if line.startswith("::error")]
    assert lines[0].startswith("::error file=kernels_cuda/land.cu,title=land/off::land/off current/aligned: o differs in 1 of 3 (33.3 %25)")
    assert lines[1] == "::error file=kernels_cuda/situ.cu,title=situ/exact::situ/exact: RuntimeError: it does not compile"


def test_save_failures(project):
    result = run(project, "--save-failures", "kept")
    assert [path.name for path in Path("kept").iterdir()] == ["land-off-device-current-aligned.npz"]
    assert any("saved" in line and "land-off-device-current-aligned.npz" in line for line in result.outlines)


def test_selected_kernels(project):
    result = run(project, "--kernel", "situ", "-k", "emulator")
    assert result.ret == pytest.ExitCode.OK and "1 passed" in result.outlines[-1]
    assert gate_section(result)[-1] == "GATE  emulator 1/1 kernels exact; device not run"
    assert not any(line.startswith("land ") for line in result.outlines)


def test_a_part_of_the_goldens_is_not_all_of_them(project):
    result = run(project, "-k", "emulator and exact")
    assert gate_section(result)[-1] == f"GATE  emulator 1/{KERNELS} kernels exact (2 of 4 cases not run); device not run"


def test_the_table_leaves_out_kernels_that_were_not_asked_for(project):
    """Both lanes of one that was are there; so is a kernel without goldens, which the GATE line counts as not exact."""
    rows = [line.split()[:2] for line in gate_section(run(project, "-k", "emulator and situ")) if " emulator " in line or " device " in line]
    assert ["situ", "emulator"] in rows and ["situ", "device"] in rows and ["add2", "device"] in rows and ["land", "emulator"] not in rows


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--kernel", "lnad"], "--kernel must be one of add2, argmax, "),
        (["--replays", "0"], "--replays must be at least 1, got 0"),
        (["--max-mismatches", "-1"], "--max-mismatches must be at least 1, got -1"),
        (["--require-gpu", "--emulate"], "--require-gpu and --emulate contradict each other"),
        (["--update-goldens", "-n", "2"], "--update-goldens is refused under -n"),
    ],
)
def test_usage_errors(project, args, said):
    result = run(project, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in "\n".join(result.outlines + result.errlines)


def test_update_goldens_is_refused_in_ci(project, monkeypatch):
    monkeypatch.setenv("CI", "1")
    result = run(project, "--update-goldens")
    assert result.ret == 4 and "refused: CI is set" in "\n".join(result.errlines)


@pytest.mark.parametrize(("status", "code"), [(0, pytest.ExitCode.NO_TESTS_COLLECTED), (1, 1), (2, pytest.ExitCode.USAGE_ERROR), (4, 4)])
def test_update_goldens_never_passes(project, status, code):
    project.makeconftest((ROOT / "conftest.py").read_text() + f"import goldens.__main__ as m\nm.main = lambda argv: print(argv) or {status}\n")
    result = run(project, "--update-goldens", "--kernel", "land")
    assert result.ret == code and "['regenerate', 'land']" in result.outlines and "passed" not in str(result.stdout)


# The tests of a kernel


def test_kernel_asks_ids_then_marks_then_files(project):
    project.makepyfile(test_laws="""
        import pytest
        pytestmark = pytest.mark.kernels("land", "situ")
        @pytest.mark.parametrize("kernel", ["land", "situ"])
        def test_one(kernel): pass
        def test_all(): pass
        """, test_situ="def test_file(): pass", test_land="def test_file(): pass")
    collected = run(project, "--collect-only", "-q", "--kernel", "situ", "test_laws.py", "test_situ.py", "test_land.py").outlines
    assert [line for line in collected if "::" in line] == ["test_laws.py::test_one[situ]", "test_laws.py::test_all", "test_situ.py::test_file"]


def test_laws_of_several_kernels_are_found(project):
    files = [str(ROOT / "conformance" / f"test_{name}.py") for name in ("moe", "windowed", "kda_affine")]
    for kernel, wanted in (("moe_chain", "test_moe.py"), ("lse_merge", "test_windowed.py"), ("kda_fold", "test_kda_affine.py")):
        result = run(project, "--rootdir", str(ROOT), "--collect-only", "-q", "--kernel", kernel, *files)
        found = [line for line in result.outlines if "::" in line]
        assert found and all(wanted in line and "moe_mega" not in line for line in found)


# Where there is no GPU


def test_a_gpu_that_is_required_and_missing_fails(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    test = str(ROOT / "conformance" / "test_cuda.py")
    result = run(project, "--rootdir", str(ROOT), "--require-gpu", "-k", "refusals[land]", test)
    assert result.ret == pytest.ExitCode.TESTS_FAILED and "--require-gpu: no CUDA device: CUDA_VISIBLE_DEVICES is ''" in str(result.stdout)
    result = run(project, "--rootdir", str(ROOT), "-k", "refusals[land]", test)
    assert result.ret == pytest.ExitCode.OK and "1 not run" in result.outlines[-1] and "passed" not in result.outlines[-1]


def test_collecting_imports_no_torch():
    code = "import sys, pytest; code = pytest.main(['--collect-only', '-q']); sys.exit(code or 9 * ('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120).returncode == 0


# The order of tests


def test_shuffling_is_by_the_seed_alone_and_told(project):
    orders = [
        [line for line in run(project, "--collect-only", "-q", *options).outlines if "::" in line]
        for options in ([], ["--shuffle", "1"], ["--shuffle", "1"], ["--shuffle", "2"])
    ]
    assert orders[1] == orders[2] and len({tuple(order) for order in orders}) == 3 and all(sorted(order) == sorted(orders[0]) for order in orders)
    for options in ([], ["-n", "2"]):
        result = run(project, "--shuffle", "7", "-k", "exact", *options)
        assert "shuffled: --shuffle 7" in result.outlines and "Different tests were collected" not in str(result.stdout)
