"""What a kernel module must have, and how its signature is spelled: what is wrong is said with the kernel's name."""

import re

import pytest

from conformance.toy import toy
from references.contract import schedule
from references.contract.kernel import KernelError


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pool": None}, "references/toy.py has no pool"),
        ({"INDEPENDENT": None, "BENCH": ()}, "references/toy.py has no INDEPENDENT, BENCH"),
        ({"__doc__": None}, "references/toy.py must begin with a docstring that begins with 'toy: '"),
        ({"__doc__": "a sum"}, "references/toy.py must begin with a docstring that begins with 'toy: '"),
        ({"INDEPENDENT": "q"}, "references/toy.py: INDEPENDENT must be of the sizes m, k, n, got 'q'"),
    ],
)
def test_a_module_that_is_not_whole(changes, said):
    kernel = toy()
    vars(kernel.module).update(BENCH=({"m": 1, "k": 1, "n": 1, "off": 0},), __doc__="toy: a sum")
    kernel.refuse_unfinished()
    vars(kernel.module).update(changes)
    with pytest.raises(KernelError, match=re.escape(said)):
        kernel.refuse_unfinished()


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        ("x: bf17[m] -> o: bf16[m]", "x must be an array of bf16, f32, e4m3, u8, i32, i64, got 'bf17'"),
        ("x: int[m] -> o: bf16[m]", "x must be an array of bf16, f32, e4m3, u8, i32, i64, got 'int'"),
        ("x: bf16[m], eps: f64 -> o: bf16[m]", "eps must be a scalar of int, f32, bf16, form, got 'f64'"),
        ("x bf16[m] -> o: bf16[m]", "not an operand: 'x bf16[m]'"),
    ],
)
def test_a_signature_that_cannot_be_read(signature, said):
    with pytest.raises(KernelError, match=re.escape(f"{__name__}: {said}")):
        schedule(signature, version=1)(lambda x: x)
