"""Calls that reach the engine before any Python of theirs is run (hot.py): whatever way arguments are passed, they mean
what they mean to the Python function."""

import functools
import inspect
import pickle
import sys
from types import FunctionType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import onepass
from onepass import _engine
from onepass.problem import UNSET

ELEMENTWISE = ("softmax", "log_softmax")
REDUCTIONS = ("logsumexp", "sum", "mean", "amax", "amin")
FUNCTIONS = ELEMENTWISE + REDUCTIONS
X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)


def by_python(name):
    """The same function, called as the interpreter calls all others."""
    function = getattr(onepass, name)
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def by_engine(name):
    """Called from C, where any CPython that onepass supports asks whom to call."""
    return functools.partial(getattr(onepass, name))


def frames_of(function, call):
    """How often `call` enters the Python of a public function."""
    entered = []
    code = function.__code__
    sys.setprofile(lambda frame, event, _: entered.append(1) if event == "call" and frame.f_code is code else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(entered)


def outcome(call):
    """A result, or what was raised."""
    try:
        y = call()
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return y.shape, y.dtype, y.tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_that_is_planned_runs_no_python(name):
    function = getattr(onepass, name)
    by_engine(name)(X, 1)
    assert frames_of(function, lambda: by_engine(name)(X, 1)) == 0
    assert frames_of(function, lambda: by_engine(name)(X, dim=1)) == 0
    assert frames_of(function, lambda: by_engine(name)(X, axis=1)) == 0


@pytest.mark.skipif(sys.version_info[:2] == (3, 11), reason="CPython 3.11 does not look whom to call")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nor_does_one_that_is_made_in_python(name):
    function = getattr(onepass, name)

    def calls():
        for _ in range(200):  # so many that the interpreter makes a way of its own for them
            function(X, dim=1)

    calls()
    assert frames_of(function, calls) == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_that_is_not_planned_goes_to_python(name):
    x = np.ones((7, 11, 13))
    _engine.forget_all()
    assert frames_of(getattr(onepass, name), lambda: by_engine(name)(x)) == 1


VALUES = {
    "x": [X, X[:, ::2], X.astype(np.float64), [[1.0, 2.0]], None],
    "dim": [-1, 0, 2, 3, (0, 2), None, "row"],
    "axis": [-1, 1, None, UNSET],
    "keepdim": [True, False, 1],
    "dtype": [None, "float64", np.float32, "int8"],
    "out": [None, np.full((3, 4, 5), np.nan, np.float32), np.full((3, 4), np.nan, np.float32)],
    "algorithm": [None, "row", "sideways"],
    "surplus": [None],
}


@st.composite
def arguments(draw):
    """Positional and keyword arguments, of which some are wrong, missing, or given twice."""
    third = draw(st.sampled_from(["keepdim", "dtype"]))
    positional = [draw(st.sampled_from(VALUES[name])) for name in ("x", "dim", third, "out")[: draw(st.integers(0, 4))]]
    keywords = draw(st.dictionaries(st.sampled_from(list(VALUES)), st.none(), max_size=3))
    return positional, {name: draw(st.sampled_from(VALUES[name])) for name in keywords}


@given(name=st.sampled_from(FUNCTIONS), passed=arguments())
def test_arguments_mean_what_they_mean_to_python(name, passed):
    positional, keywords = passed
    results = []
    _engine.forget_all()
    for called in (by_engine(name), by_python(name), by_engine(name)):  # the last time it may be planned
        own = {k: v.copy() if k == "out" and v is not None else v for k, v in keywords.items()}
        results.append(outcome(lambda called=called, own=own: called(*positional, **own)))
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_a_name_that_is_not_interned():
    name = "".join(["ax", "is"])
    assert name is not sys.intern("axis")
    expected = onepass.sum(X, 0)
    np.testing.assert_array_equal(by_engine("sum")(X, **{name: 0}), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_remain_functions(name):
    function = getattr(onepass, name)
    assert inspect.isfunction(function)
    assert list(inspect.signature(function).parameters)[:2] == ["x", "dim"]
    assert function.__doc__ and function.__annotations__
    assert pickle.loads(pickle.dumps(function)) is function


def test_references_are_given_back():
    out = np.full_like(X, np.nan)
    dims = (0, 10**6 + 1)  # no such dim: Python's to say
    held = [sys.getrefcount(value) for value in (X, out, dims)]
    assert sys.getrefcount(by_engine("softmax")(X, 1)) == sys.getrefcount(np.empty(3))
    for _ in range(100):
        by_engine("softmax")(X, 1, out=out)
        assert outcome(lambda: by_engine("softmax")(X, dims))[0] is ValueError
    assert [sys.getrefcount(value) for value in (X, out, dims)] == held


def test_axis_is_as_fast_as_dim(monkeypatch):
    onepass.softmax(X, axis=1)
    monkeypatch.setitem(onepass.softmax.__globals__, "plan_and_run", None)  # nothing is planned anew
    for called in (by_python("softmax"), by_engine("softmax")):
        np.testing.assert_array_equal(called(X, axis=1), onepass.softmax(X, dim=1))


def test_a_wrapper_that_hands_on_every_default():
    """Also of a tensor that requires grad, which is not looked at in Python."""
    x = torch.randn(3, 5, requires_grad=True)
    for _ in range(2):
        y = by_engine("softmax")(x, dim=1, axis=UNSET)
        assert y.grad_fn is not None
        assert torch.equal(y, onepass.softmax(x, 1))
