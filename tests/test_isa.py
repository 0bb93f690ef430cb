"""The same tests under every instruction set that this processor runs; which one is read when the engine is loaded."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import run_python, run_with_isa

from onepass import _engine


@pytest.mark.parametrize(
    "tests",
    [
        "test_numbers.py",
        "test_algorithms.py",
        "test_columns.py",
        "test_shapes.py",
        "test_streams.py",
        "test_gradients.py",
        "test_gradient_numbers.py",
        "test_joined_rows.py",
        "test_gathered.py",
    ],
)
def test_results_are_right_under_the_others(tests):
    """Side by side: most of the time of these tests goes into references."""
    others = [isa for isa in _engine.isas() if isa != _engine.isa()]
    with ThreadPoolExecutor() as pool:
        for run in [pool.submit(run_with_isa, isa, tests) for isa in others]:
            run.result()


@pytest.mark.parametrize("isa", _engine.isas())
def test_the_environment_forces_one(isa):
    code = "from onepass import _engine; print(_engine.isa(), _engine.vector_bytes())"
    name, vector_bytes = run_python(code, env={"ONEPASS_ISA": isa}).split()
    assert name == isa
    assert int(vector_bytes) == {"v2": 16, "v3": 32, "generic": 16}.get(isa, 64)


def test_one_that_does_not_exist_is_an_error():
    code = """
try:
    import onepass
except ImportError as error:
    print(error)
"""
    message = run_python(code, env={"ONEPASS_ISA": "v9"})
    assert "ONEPASS_ISA=v9" in message
    assert _engine.isas()[0] in message
