"""Rows of a tile's results that end within cache lines, past the cache: the next row fills up what one leaves."""

import dataclasses
import itertools

import numpy as np
import pytest
from gradient_cases import LIMITS as GRADIENT_LIMITS
from gradient_cases import error_of, inputs_of
from helpers import DTYPES, FLOORS, LIMITS, nan_filled_past_a_line, random_array, same_bits
from ulp import max_ulp

from onepass import _engine, call, call_gradients, reference
from onepass.cpu import cpu_plan, plan, plan_tiles
from onepass.machine import this_machine

LANES = _engine.vector_bytes() // 4
# Columns: less than a vector, one and several, whole ones and not, and wide tiles.
WIDTHS = (5, LANES, LANES + 1, 2 * LANES, 3 * LANES + 1, 4 * LANES, 6 * LANES - 1, 8 * LANES + 3, 14 * LANES + 5)


@pytest.fixture
def joined(monkeypatch):
    """Rows are joined however short they are, and in 16 bits, where the planner would not. The plans that are made."""
    two_cores = dataclasses.replace(this_machine(), cores=2)
    for module in (call, call_gradients):
        monkeypatch.setattr(module, "this_machine", lambda: two_cores)
    monkeypatch.setattr(plan_tiles, "_joins_rows", lambda *_: True)
    planned = []

    def plan_tiles_and_tell(*given):
        planned.append(plan_tiles.plan_tiles(*given))
        return planned[-1]

    monkeypatch.setattr(plan, "plan_tiles", plan_tiles_and_tell)
    return planned


def wherever_they_go(run, shape, dtype, check, joined, monkeypatch):
    """In the cache, and past it from any element of a line on, as tiles of all columns."""
    results = []
    for past, first in ((1 << 40, 0), *((0, first) for first in range(0, 64 // dtype.itemsize, 3))):
        monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
        out, beside = nan_filled_past_a_line(shape, dtype, first)
        run(out)
        assert _engine.last_algorithm() == "strided"
        assert joined[-1].nontemporal == (past == 0)
        assert joined[-1].tile == shape[-1] or past != 0  # in the cache nothing is joined
        check(out)
        assert all(np.isnan(memory.astype(np.float64)).all() for memory in beside), (shape, first)
        results.append(out)
    assert all(same_bits(result, results[0]) for result in results), shape


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_results(op, dtype, count, joined, monkeypatch, threads):
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

        wherever_they_go(run, x.shape, x.dtype, check, joined, monkeypatch)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_gradients(op, dtype, count, joined, monkeypatch, threads):
    threads(count)
    for width in WIDTHS:
        dy, y = inputs_of(op, (13, 40, width), dtype, 1, sigma=10)

        def check(out, given=(dy, y)):
            assert error_of(op, out, given, 1) <= GRADIENT_LIMITS[op, dtype]

        def run(out, given=(y, dy)):
            call_gradients.run_planned(op, given, 1, False, None, out, "strided")

        wherever_they_go(run, dy.shape, dy.dtype, check, joined, monkeypatch)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_inputs_that_are_gathered(op, joined, monkeypatch):
    """Their rows are written by an Emitter, which keeps a line of its own."""
    x = random_array((13, 18, 2 * (3 * LANES + 1)))[..., ::2]
    expected = getattr(reference, op)(x, 1, dtype=np.longdouble)

    def check(out):
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, "float32"]

    def run(out):
        call.plan_and_run(op, x, 1, False, None, out, "strided")

    wherever_they_go(run, x.shape, x.dtype, check, joined, monkeypatch)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_lanes_beyond_a_row_are_in_no_other_column(op, monkeypatch):
    """They have the constants of the last one."""
    monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", 0)

    def run(dy, y):
        dx = call_gradients.run_planned(op, (y, dy), 1, False, None, None, "strided")
        assert _engine.last_form() == "usual"
        return dx

    dy, y = inputs_of(op, (40, 80, 5 * LANES + 3), "float32", 1)
    expected = run(dy, y)
    dy[7, :, -1] = np.nan
    dx = run(dy, y)
    assert np.isnan(dx[7, :, -1]).all()
    dx[7, :, -1] = expected[7, :, -1]
    assert same_bits(dx, expected)
