"""What is promised in words: examples that run, an import that brings nothing along."""

import doctest
import inspect
import re
from pathlib import Path

import pytest
from helpers import run_python

import onepass
import onepass.reference

HERE = Path(__file__).resolve().parents[1]
PUBLIC = [getattr(onepass, name) for name in onepass.__all__]


@pytest.mark.parametrize("function", PUBLIC, ids=onepass.__all__)
def test_the_example_of_every_public_function_runs(function):
    tests = doctest.DocTestFinder().find(function, function.__name__, globs={})
    assert any(test.examples for test in tests), f"{function.__name__} has no example"
    for test in tests:
        failures = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=failures.append)
        assert not failures, "".join(failures)


def test_the_examples_of_the_reference_run():
    result = doctest.testmod(onepass.reference)
    assert result.attempted >= 7
    assert result.failed == 0


def test_the_examples_of_the_tour_run():
    result = doctest.testfile(str(HERE / "docs" / "how-it-works.md"), module_relative=False)
    assert result.attempted >= 15
    assert result.failed == 0


@pytest.mark.parametrize("text", ["README.md", "CONTRIBUTING.md", "docs/how-it-works.md", "benchmarks/README.md"])
def test_every_source_file_that_a_text_names_is_there(text):
    named = set(re.findall(r"`([\w./-]+\.(?:h|py|cpp|sh|html|csv))`", (HERE / text).read_text()))
    folders = ("src", "csrc", "tests", "tools", "benchmarks", "examples")
    there = [path.as_posix() for folder in folders for path in (HERE / folder).rglob("*.*")]
    assert named
    assert [name for name in sorted(named) if not any(path.endswith("/" + name) for path in there)] == []


@pytest.mark.parametrize("function", PUBLIC, ids=onepass.__all__)
def test_every_parameter_is_described(function):
    text = inspect.getdoc(function)
    first = text.splitlines()[0]
    assert first.endswith((".", ":")) or "." in first, "one sentence first"
    for name in inspect.signature(function).parameters:
        assert name in text or "Parameters are those of" in text or "as in softmax" in text, f"{name} is not described"


def test_the_public_names_are_these():
    assert sorted(onepass.__all__) == sorted(
        ["softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin"]
        + ["explain", "set_num_threads", "get_num_threads", "empty_cache", "memory_stats"]
        + ["softmax_backward", "log_softmax_backward", "logsumexp_backward"]
        + ["install", "uninstall", "installed", "installed_stats"]
    )
    assert onepass.__version__


def test_importing_brings_no_framework():
    code = """
import sys
import numpy
before = set(sys.modules)
import onepass
new = {name.partition(".")[0] for name in set(sys.modules) - before}
heavy = {"torch", "jax", "jaxlib", "cupy", "cuda", "ml_dtypes", "scipy", "typer", "rich", "click", "matplotlib"}
print(sorted(new & heavy))
"""
    assert run_python(code).strip() == "[]"


def test_ml_dtypes_comes_with_the_first_bfloat16():
    code = """
import sys
import numpy as np, onepass
for dtype in (np.float16, np.float32, np.float64, np.int64):
    onepass.softmax(np.ones(3, dtype))
onepass.explain("softmax", (3, 4))
assert "ml_dtypes" not in sys.modules
y = onepass.softmax(np.zeros(4, np.float32), dtype="bfloat16")
import ml_dtypes
assert y.dtype == ml_dtypes.bfloat16
assert (y == 0.25).all()
assert onepass.softmax(np.zeros(4, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
print("torch" in sys.modules)
"""
    assert run_python(code).strip() == "False"


def test_torch_may_come_before_or_after():
    for first, second in (("torch", "onepass"), ("onepass", "torch")):
        code = f"""
import {first}
import {second}
x = torch.tensor([[0.0, 0.0], [0.0, float("-inf")]])
y = onepass.softmax(x)
assert type(y) is torch.Tensor
assert y.tolist() == [[0.5, 0.5], [1.0, 0.0]]
"""
        run_python(code)


def test_explain_prints_and_compares():
    report = onepass.explain("softmax", (128, 262144))
    text = str(report)
    assert "128" in text
    assert "262144" in text
    assert "float32" in text
    assert report.plan.algorithm in text
    assert report == onepass.explain("softmax", (128, 262144))
    assert report != onepass.explain("softmax", (128, 262145))
    assert report != onepass.explain("log_softmax", (128, 262144))
