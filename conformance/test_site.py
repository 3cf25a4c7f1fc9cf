"""Sites: what they are called, what a laboratory sees and replaces, and what they cost when there is none."""

import threading
import timeit

import numpy as np
import pytest

from references.arith import add, asc, bf, chain, mul, sigmoid, zero
from references.arith.site import Laboratory, Visit, site
from references.contract import kernels

X = np.array([1.0, 2.0, 3.0], np.float32)


def visits(emulate):
    seen = []
    with Laboratory(watch=lambda visit, result: seen.append(visit.name)):
        emulate()
    return seen


def test_names_are_call_paths():
    """A word inside a word is named under it, a helper's name stands between, an untagged line of one statement takes the tag after it."""

    def gate(x):
        return sigmoid(x)

    def emulate():
        g = gate(X)  # S4
        return mul(
            g,
            X,
        )  # S5b

    inner = ["sub", "exp", "add", "div"]
    assert visits(emulate) == [*(f"S4.gate.sigmoid.{word}" for word in inner), "S4.gate.sigmoid", "S5b.mul"]


def test_equal_words_are_told_apart_and_loops_are_not():
    def emulate():
        acc = zero(X)  # S1
        for _ in asc(2):  # S2
            acc = add(mul(X, X), mul(acc, X))  # S3
        return add(acc, mul(acc, X))  # S3

    loop = ["S3.mul", "S3.mul#2", "S3.add"]
    assert visits(emulate) == ["S1.zero", "S2.asc", *loop, *loop, "S3.mul#3", "S3.add#2"]
    assert visits(emulate) == visits(emulate)


def test_words_of_a_word_are_numbered_in_it():
    def emulate():
        return add(chain(X), chain(X[:2]))  # S1

    inside = ["zero", "add", "add", "add"]
    assert visits(emulate) == [*(f"S1.chain.{word}" for word in inside), "S1.chain",
                               *(f"S1.chain#2.{word}" for word in inside[:3]), "S1.chain#2", "S1.add"]


def test_a_fault_replaces_its_site_alone():
    def emulate():
        return add(mul(X, X), mul(X, X))  # S1

    def nothing_to_do(visit):
        return None

    def tenfold(visit):
        return np.float32(10) * visit.run()  # its own words are no part of the emulator

    with Laboratory(faults={"S1.mul#2": tenfold}) as laboratory:
        assert emulate().tolist() == [11.0, 44.0, 99.0]
    assert laboratory.reached == {"S1.mul", "S1.mul#2", "S1.add"}
    with Laboratory(faults={"S1.mul": nothing_to_do}):
        assert emulate().tolist() == [2.0, 8.0, 18.0]
    assert emulate().tolist() == [2.0, 8.0, 18.0]


def test_origin_of_an_operand():
    origins = {}

    def emulate():
        product = mul(X, X)  # S1
        return add(product, X)  # S2

    def note(visit: Visit, result):
        origins[visit.name] = [visit.origin(arg) for arg in visit.args]

    with Laboratory(watch=note):
        emulate()
    assert origins["S1.mul"] == [None, None]
    assert origins["S2.add"][0].name == "S1.mul" and origins["S2.add"][1] is None


def test_a_laboratory_is_of_one_thread():
    """Another has its own, or none."""
    found = []

    def emulate():
        return bf(X)  # S1

    def other():
        found.append((bf(X).tolist(), visits(emulate)))

    with Laboratory(faults={"S1.bf": lambda visit: X + 1}) as laboratory:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert not laboratory.reached and emulate().tolist() == [2.0, 3.0, 4.0]
    assert found == [([1.0, 2.0, 3.0], ["S1.bf"])]


def test_what_cannot_be_named():
    def emulate():
        return bf(X)

    with Laboratory(), pytest.raises(RuntimeError, match="calls a word and has no # S tag"):
        emulate()
    with Laboratory(), pytest.raises(RuntimeError, match="bf was called in a laboratory, but not from an emulate"):
        bf(X)
    with Laboratory(), pytest.raises(RuntimeError, match="already active"), Laboratory():
        pass
    assert bf(X).tolist() == X.tolist()  # none of these left a laboratory open


def test_cost():
    """Below 3 % on the slowest emulator, on the largest inputs that are stored: its calls, times what one costs."""

    @site
    def word(x):
        return x

    def seconds(call):
        return min(timeit.repeat(lambda: call(X), number=20_000, repeat=5)) / 20_000

    each = seconds(word) - seconds(word.word)
    assert 0 < each < 1e-6
    taken, kernel, inputs = max((measured(kernel) for kernel in kernels()), key=lambda one: one[0])
    calls = len(visits(lambda: kernel.emulate(**inputs)))
    assert calls * each < 0.03 * taken, f"{kernel.name}: {calls} calls of {each * 1e9:.0f} ns in {taken * 1e3:.1f} ms"


def measured(kernel):
    """(seconds, kernel, inputs) of the largest case that is stored whole."""
    inputs = max((case.make() for case in kernel.cases() if not case.large), key=lambda one: sum(map(np.size, one.values())))
    return min(timeit.repeat(lambda: kernel.emulate(**inputs), number=1, repeat=3)), kernel, inputs
