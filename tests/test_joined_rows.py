"""Rows of a tile's results that end within cache lines, past the cache: the next row fills up what one leaves."""

import itertools

import numpy as np
import pytest
from gradient_cases import LIMITS as GRADIENT_LIMITS
from gradient_cases import error_of, inputs_of
from helpers import DTYPES, FLOORS, LIMITS, nan_filled_past_a_line, random_array, same_bits
from ulp import max_ulp

import onepass
from onepass import _engine, call, call_gradients, reference
from onepass.cpu import cpu_plan, plan_tiles

LANES = _engine.vector_bytes() // 4
# Columns: less than a vector, one and several, whole ones and not, and as many as end with all but one lane of a line.
WIDTHS = (5, LANES, LANES + 1, 2 * LANES, 3 * LANES + 1, 4 * LANES, 6 * LANES - 1, 8 * LANES + 3, 16 * LANES)


@pytest.fixture
def joined(monkeypatch):
    """Rows are joined however short they are, and in 16 bits, where the planner would not."""
    monkeypatch.setattr(plan_tiles, "_joins_rows", lambda *_: True)


def wherever_they_go(run, shape, dtype, check, monkeypatch):
    """In the cache, and past it from any element of a line on; tiles by one thread and by several."""
    results = []
    for past, first in ((1 << 40, 0), *((0, first) for first in range(0, 64 // dtype.itemsize, 3))):
        monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
        out, beside = nan_filled_past_a_line(shape, dtype, first)
        run(out)
        assert _engine.last_algorithm() == "strided"
        check(out)
        assert all(np.isnan(memory.astype(np.float64)).all() for memory in beside), (shape, first)
        results.append(out)
    assert all(same_bits(result, results[0]) for result in results), shape


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_results(op, dtype, count, monkeypatch, threads):
    threads(count)
    for width, small in itertools.product(WIDTHS, (False, True)):
        x = random_array((13, 18, width), dtype, seed=width)
        if small:
            x[::3] *= 30  # products that are subnormal, in some tiles: their rows are written in another way
        expected = getattr(reference, op)(x, 1, dtype=np.longdouble)

        def check(out, expected=expected):
            assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype]

        def run(out, x=x):
            call.plan_and_run(op, x, 1, False, None, out, "strided")

        wherever_they_go(run, x.shape, x.dtype, check, monkeypatch)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_gradients(op, dtype, count, monkeypatch, threads):
    threads(count)
    for width in WIDTHS:
        dy, y = inputs_of(op, (13, 40, width), dtype, 1, sigma=10)

        def check(out, given=(dy, y)):
            assert error_of(op, out, given, 1) <= GRADIENT_LIMITS[op, dtype]

        def run(out, given=(y, dy)):
            call_gradients.run_planned(op, given, 1, False, None, out, "strided")

        wherever_they_go(run, dy.shape, dy.dtype, check, monkeypatch)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_inputs_that_are_gathered(op, monkeypatch):
    """Their rows are written by an Emitter, which keeps a line of its own."""
    x = random_array((13, 18, 2 * (3 * LANES + 1)))[..., ::2]
    expected = getattr(reference, op)(x, 1, dtype=np.longdouble)

    def check(out):
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, "float32"]

    def run(out):
        call.plan_and_run(op, x, 1, False, None, out, "strided")

    wherever_they_go(run, x.shape, x.dtype, check, monkeypatch)


@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_what_a_row_leaves_costs_no_care(op):
    """Lanes beyond a row have the constants of its last column: a NaN there is in no other column."""
    dy, y = inputs_of(op, (40, 50, 5 * LANES + 3), "float32", 1)
    expected = getattr(onepass, op)(dy, y, 1)
    dy[7, :, -1] = np.nan
    dx = getattr(onepass, op)(dy, y, 1)
    assert np.isnan(dx[7, :, -1]).all()
    dx[7, :, -1] = expected[7, :, -1]
    assert same_bits(dx, expected)
