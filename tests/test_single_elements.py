"""Reductions over axes of one element: softmax is 1 there, or NaN. Such rows are columns, wherever they lie."""

import numpy as np
import pytest
from gradient_cases import GRADIENTS, LIMITS, PAIRS, error_of
from helpers import DTYPES, ELEMENTWISE, REDUCTIONS, SOFTMAX_FAMILY, nan_filled, random_array
from helpers import LIMITS as ROW_LIMITS
from ulp import max_ulp

import onepass
from onepass import reference

LAYOUTS = {
    "contiguous": lambda x: x,
    "in the middle": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1),
    "every other": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "transposed": lambda x: np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


def strange_array(shape, dtype):
    x = random_array(shape, dtype, sigma=30, seed=sum(shape))
    flat = x.reshape(-1)
    flat[::7] = np.nan
    flat[1::7] = np.inf
    flat[2::7] = -np.inf
    flat[3::7] = np.finfo(np.float32).max if dtype in ("float32", "float64") else 3e4
    flat[4::7] = -0.0
    return x


def assert_equal(a, b):
    np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", (*SOFTMAX_FAMILY, *REDUCTIONS))
def test_any_layout(op, dtype, layout):
    x = LAYOUTS[layout](strange_array((37, 301, 1), dtype))
    out = nan_filled(x.shape if op in ELEMENTWISE else x.shape[:2], dtype)
    assert onepass.explain(op, x).plan.algorithm == "strided"
    getattr(onepass, op)(x, out=out)
    expected = getattr(reference, op)(x, -1)
    assert max_ulp(out, expected) == 0
    if op in SOFTMAX_FAMILY:
        assert max_ulp(getattr(onepass, op)(x, algorithm="row"), expected) <= ROW_LIMITS[op, dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
@pytest.mark.parametrize("n", (1, 2, 15, 16, 17, 33, 129, 2049))
def test_any_number(op, dtype, n):
    """Whole vectors, and parts of one."""
    x = strange_array((n, 1), dtype)
    out = nan_filled(x.shape if op != "logsumexp" else (n,), dtype)
    getattr(onepass, op)(x, out=out)
    assert_equal(out, getattr(reference, op)(x, -1))


@pytest.mark.parametrize("n", (3 << 20, (3 << 20) + 7))
@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_so_many_that_results_go_past_the_cache(op, n, threads):
    x = strange_array((n, 1), "float32")
    threads(3)
    plan = onepass.explain(op, x).plan
    assert (plan.threads, plan.nontemporal) == (3, op != "logsumexp" and n % 16 == 0)
    out = nan_filled(x.shape if op != "logsumexp" else (n,), "float32")
    getattr(onepass, op)(x, out=out)
    assert_equal(out, getattr(reference, op)(x, -1))


@pytest.mark.parametrize("result", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_into_another_type(dtype, result):
    x = strange_array((3, 1, 700), dtype)
    for op in ELEMENTWISE:
        out = nan_filled(x.shape, result)
        getattr(onepass, op)(x, 1, result, out=out)
        assert max_ulp(out, getattr(reference, op)(x, 1)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_any_layout(op, dtype, layout):
    arrays = [random_array((37, 301, 1), dtype, sigma=2, seed=seed) for seed in (1, 2)]
    dy, y = map(LAYOUTS[layout], arrays)
    given = (dy[..., 0], y, onepass.logsumexp(y)) if op == "logsumexp_backward" else (dy, y)
    out = nan_filled(y.shape, dtype)
    getattr(onepass, op)(*given, -1, out=out)
    assert error_of(op, out, given, -1) <= LIMITS[op, dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
@pytest.mark.parametrize("shape", ((40_001, 1), (7, 1, 300), (3, 1)))
def test_gradients(op, dtype, shape):
    """Nothing, of what the operation itself has saved; of any other y what the formula says."""
    dy, x = (random_array(shape, dtype, seed=seed) for seed in (1, 2))
    out = nan_filled(shape, dtype)
    getattr(onepass, op)(dy, getattr(onepass, op.removesuffix("_backward"))(x, 1), 1, out=out)
    assert (out == 0).all()
    out = nan_filled(shape, dtype)
    y = x / 8
    getattr(onepass, op)(dy, y, 1, out=out)
    assert error_of(op, out, (dy, y), 1) <= LIMITS[op, dtype]


def test_why_they_are_columns():
    assert "rows have one element" in str(onepass.explain("softmax", (1000, 1), "float32"))


def test_they_are_not_packed():
    with pytest.raises(ValueError, match="rows have one element"):
        onepass.softmax(np.zeros((5, 1, 8), np.float32)[:, :, ::2], 1, algorithm="packed")
