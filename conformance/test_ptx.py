"""What nvcc makes of the kernels, read from their PTX: nothing fused, approximate or flushed that no source line spells."""

from __future__ import annotations

import re

import pytest

from kernels_cuda import build, ptx, toolchain
from kernels_cuda.toolchain import BuildError


@pytest.fixture
def nvcc():
    try:
        return toolchain.find_nvcc()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", build.names())
def test_ptx_holds_only_what_the_source_spells(name, nvcc):
    assert ptx.findings(ptx.ptx(name)) == []


def compiled(expression, flags, folder):
    source = f"#include <cuda_bf16.h>\n__global__ void k(float x, float y, float* o) {{\n  *o = {expression};\n}}\n"
    (folder / "toy.cu").write_text(source)
    return ptx.findings(ptx.ptx("toy", sources=folder, flags=("-O3", "-lineinfo", *flags)))


@pytest.mark.parametrize(
    "expression, flag, complaint",
    [
        ("x * y + 1.0f", "-fmad=true", "a fused multiply-add that the line does not spell"),
        ("x * y + 1.0f;  // no fma, no logf()", "-fmad=true", "a fused multiply-add that the line does not spell"),
        ("__expf(x)", "-fmad=false", "an approximate operation"),
        ("__fdividef(x, y)", "-fmad=false", "an approximate operation"),
        ("x / y", "-prec-div=false", "an approximate operation"),
        ("x + y", "-ftz=true", "a flush of subnormals"),
        ("__hmul(__float2bfloat16_rn(x), __float2bfloat16_rn(y))", "-fmad=false", "a bf16 operation that ptxas may fuse: it needs the _rn form"),
        ("x * 0.1", "-fmad=false", "arithmetic in double precision"),
    ],
)
def test_ptx_check_sees_what_no_source_spells(expression, flag, complaint, nvcc, tmp_path):
    found = compiled(expression, [flag], tmp_path)
    assert {(finding.place, finding.complaint) for finding in found} == {("toy.cu:3", complaint)}


def test_ptx_check_sees_an_arrival_without_a_wait(nvcc, tmp_path):
    (tmp_path / "toy.cu").write_text('__global__ void k() {\n  asm("bar.arrive 1, 64;");\n  asm("bar.sync 1, 64;");\n}\n')
    found = ptx.findings(ptx.ptx("toy", sources=tmp_path))
    assert [(finding.place, finding.opcode) for finding in found] == [("toy.cu:2", "bar.arrive")]


def test_ptx_check_knows_libdevice(nvcc, tmp_path):
    assert compiled("__fdiv_rn(expf(x), tanhf(y)) + rsqrtf(x) + logf(y) + __fmaf_rn(x, y, x)", ["-fmad=false"], tmp_path) == []


def test_ptx_check_wants_an_approximate_reciprocal_spelled(nvcc, tmp_path):
    rcp = 'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(*o++) : "f"(x))'
    (tmp_path / "toy.cu").write_text(f"#define RCP {rcp}\n__global__ void k(float x, float* o) {{\n  {rcp};\n  RCP;  // rcp.approx of expf(x)\n}}\n")
    found = ptx.findings(ptx.ptx("toy", sources=tmp_path))
    assert [(finding.place, finding.opcode) for finding in found] == [("toy.cu:4", "rcp.approx.ftz.f32")]


def test_the_approximate_reciprocal_is_for_sigmoid8_alone():
    """The PTX of an inlined helper names the helper's line, whoever calls it."""
    code = [(path.name, line.partition("//")[0].strip()) for path in sorted(build.SOURCES.glob("*.cu*")) for line in path.read_text().splitlines()]
    assert [use for use in code if re.search("rcp[._]approx", use[1])] == [
        ("common.cuh", "__device__ __forceinline__ float rcp_approx(float d) {"),
        ("common.cuh", 'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));'),
        ("common.cuh", "const float r = rcp_approx(d[i]);"),
    ]


def test_source_that_does_not_compile_to_ptx(nvcc, tmp_path):
    (tmp_path / "toy.cu").write_text("int toy(in64_t n);")
    with pytest.raises(BuildError, match='identifier "in64_t" is undefined'):
        ptx.ptx("toy", sources=tmp_path)
