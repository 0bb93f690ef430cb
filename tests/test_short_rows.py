"""Rows that are walked one after the other, or a batch at a time: of every length, wherever their results go."""

import dataclasses
import itertools

import numpy as np
import pytest
from gradient_cases import LIMITS as GRADIENT_LIMITS
from gradient_cases import PAIRS, error_of, inputs_of
from helpers import (
    DTYPES,
    ELEMENTWISE,
    FLOORS,
    LIMITS,
    REDUCTIONS,
    nan_filled,
    nan_filled_past_a_line,
    random_array,
    same_bits,
)
from test_algorithms import longest_in_registers
from ulp import max_ulp

import onepass
from onepass import _engine, call, call_gradients, reference, report
from onepass.cpu import cpu_plan, plan_rows
from onepass.cpu.thresholds import SHORTEST_ROW_WITH_GAPS
from onepass.machine import this_machine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_short_rows_have_the_same_bits_wherever_they_go(op, dtype, monkeypatch):
    """In the cache and past it; from a line on, where a row may be whole lines or not, and from elsewhere in one."""
    lanes = _engine.vector_bytes() // 4
    for vectors, more in itertools.product((1, 2, 3, 5, 8, 16), (-1, 0, 1)):
        length = vectors * lanes + more
        if length > longest_in_registers(dtype, 16):
            continue
        x = random_array((5 * lanes + 3, length), dtype, seed=length)  # several batches, and part of one
        results = []
        for past, first in ((1 << 40, 3), (0, 0), (0, 1), (0, 64 // x.itemsize - 1)):
            monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
            out, beside = nan_filled_past_a_line(x.shape, x.dtype, first)
            call.plan_and_run(op, x, 1, False, None, out, "registers")
            assert _engine.last_algorithm() == "registers"
            assert length <= (28 if op == "log_softmax" else 16) or _engine.last_form() == "usual"
            assert max_ulp(out, getattr(reference, op)(x, 1), floor=FLOORS[op]) <= LIMITS[op, dtype], (length, first)
            assert all(np.isnan(memory.astype(np.float64)).all() for memory in beside), (length, first)
            results.append(out)
        assert all(same_bits(result, results[0]) for result in results), length


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", PAIRS)
def test_gradients_have_the_same_bits_held_or_summed_ahead(op, dtype, monkeypatch):
    """Past the cache, rows are held in registers that elsewhere are read again: so many that one would show it."""
    lanes = _engine.vector_bytes() // 4
    for length in (4 * lanes, 5 * lanes - 3, 8 * lanes):
        dy, y = inputs_of(op, (8192, length), dtype, 1)
        results = []
        for past in (0, 1 << 40):
            monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
            out = nan_filled(dy.shape, dy.dtype)
            call_gradients.run_planned(op, (y, dy), 1, False, None, out, None)
            assert _engine.last_algorithm() == "registers"
            results.append(out)
        assert same_bits(*results), length
        assert error_of(op, results[0], (dy, y), 1) <= GRADIENT_LIMITS[op, dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin"])
def test_rows_of_few_vectors_have_the_same_bits_however_many(op, dtype, cached_share, threads):
    """Where there are many, and where L3 may have them, those that follow are fetched; NaN is seen wherever it is."""
    threads(1)
    for length in (17, 63, 64, 100, 128):
        x = random_array(((2 << 20) // (length * np.dtype(dtype).itemsize) + 5, length), dtype, seed=length)
        x[::7, length // 3] = np.nan
        x[3::7, -1] = np.nan
        few = np.concatenate([getattr(onepass, op)(part) for part in np.array_split(x, 9)])
        assert np.isnan(few.astype(np.float64)).sum() == len(x[::7]) + len(x[3::7])
        for share_of_l3 in (0, 1e9):
            cached_share(share_of_l3)
            out = nan_filled(x.shape[:1], x.dtype)
            assert same_bits(getattr(onepass, op)(x, out=out), few), (length, share_of_l3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_stores_past_the_cache_share_lines_between_rows(op, dtype, monkeypatch):
    """Rows that end inside a cache line, and start anywhere in one: what is left of it belongs to the next row."""
    monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", 0)
    for width in (65, 129, 263, 1025):
        x = random_array((7, width), dtype)
        for first in range(0, 64, 5):
            out = nan_filled(7 * width + first, x.dtype)[first:].reshape(7, width)
            call.plan_and_run(op, x, 1, False, None, out, "row")
            assert _engine.last_algorithm() == "row"
            assert max_ulp(out, getattr(reference, op)(x, 1), floor=FLOORS[op]) <= LIMITS[op, dtype], (width, first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("algorithm", ["registers", "row"])
def test_plain_reductions_of_short_rows(algorithm, op, dtype, monkeypatch):
    """Of any number of vectors that a kernel knows by name, and one more: a batch at a time, and row by row."""
    lanes = _engine.vector_bytes() // (8 if dtype == "float64" else 4)
    batches = algorithm == "registers"
    most = 2 if op in ("sum", "mean") else 8  # vectors
    monkeypatch.setattr(plan_rows, "_register_row", lambda *_: most * lanes if batches else 0)
    for vectors, rest in itertools.product(range(1, most + 1) if batches else (*range(1, 10), 16, 64), (-1, 0, 1)):
        length = vectors * lanes + rest
        if length < 2 or (batches and length > most * lanes):  # nothing to reduce; longer than any
            continue
        # Rows that are not in sequence: such as are short are transposed, folded, or go across.
        x = np.abs(random_array((3 * lanes + 1, length + 1), dtype, seed=length))[:, :length]
        x[1, length - 1], x[2, 0] = np.nan, np.inf
        x[3, length // 2], x[4, length - 1] = -np.inf, 300 if op == "amax" else -300
        out = nan_filled(len(x), x.dtype)
        call.plan_and_run(op, x, 1, False, None, out, None)
        assert _engine.last_algorithm() == algorithm
        assert max_ulp(out, getattr(reference, op)(x, 1), floor=FLOORS[op]) <= LIMITS[op, dtype], length


# (operation, dtype, rows) -> the longest that are not reduced one by one, by bytes of a vector.
LONGEST = [
    ("sum", "float32", 1000, {64: 64, 32: 32, 16: 8}),
    ("mean", "float32", 10_000_000, {64: 64, 32: 32, 16: 8}),
    ("sum", "bfloat16", 1000, {64: 128, 32: 64, 16: 7}),
    ("sum", "float64", 1000, {64: 16, 32: 12, 16: 12}),
    ("amax", "float32", 1000, {64: 64, 32: 64, 16: 32}),
    ("amin", "float32", 10_000_000, {64: 64, 32: 32, 16: 8}),
    ("amax", "float16", 1000, {64: 128, 32: 64, 16: 32}),
    ("amax", "float64", 1000, {64: 7, 32: 3, 16: 3}),
]


@pytest.mark.parametrize(("op", "dtype", "rows", "longest"), LONGEST)
def test_longer_rows_are_reduced_one_by_one(op, dtype, rows, longest, monkeypatch):
    for vector_bytes, length in longest.items():
        machine = dataclasses.replace(this_machine(), vector_bytes=vector_bytes, l3_bytes=32 << 20)
        monkeypatch.setattr(report, "this_machine", lambda machine=machine: machine)
        assert onepass.explain(op, (rows, length), dtype).plan.algorithm == "registers", vector_bytes
        assert onepass.explain(op, (rows, length + 1), dtype).plan.algorithm == "row", vector_bytes


@pytest.mark.parametrize("algorithm", ["registers", "row"])
@pytest.mark.parametrize(("dtype", "half", "little"), [
    ("bfloat16", 2.0**-8, 2.0**-30),
    ("float16", 2.0**-11, 2.0**-24),
])  # fmt: skip
def test_sums_are_rounded_once(dtype, half, little, algorithm, monkeypatch):
    """Half a unit and a little more, which float32 does not hold: results side by side, and each by itself."""
    monkeypatch.setitem(SHORTEST_ROW_WITH_GAPS, "sum", 0)  # nor are they then gathered
    _engine.forget_all()
    for length in (6, 7) if algorithm == "registers" else (20, 100):
        x = np.zeros((70, length + 3), DTYPES[dtype])[:, :length]  # rows that are not in sequence are not transposed
        x[:, 0], x[:, 1], x[:, 2] = 1, half, little  # in lanes of their own
        x[33] *= -1
        for out in (nan_filled(70, x.dtype), nan_filled(140, x.dtype)[::2]):
            onepass.sum(x, out=out)
            assert (_engine.last_algorithm(), _engine.last_form()) == (algorithm, "usual")
            expected = np.full(70, 1 + 2 * half)
            expected[33] *= -1
            np.testing.assert_array_equal(out.astype(np.float64), expected)
    _engine.forget_all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["amax", "amin"])
def test_extremes_keep_the_sign_of_a_zero(op, dtype, threads):
    """Whatever lies beside a row, a NaN among it, and however many threads there are."""
    for length in (3, 8, 12, 40, 60, 300, 5000):
        x = np.zeros((101, length), DTYPES[dtype])
        x[50:] = -0.0
        x[::10, length // 2] = np.nan
        for n in (1, 3):
            threads(n)
            signs = np.signbit(getattr(onepass, op)(x))
            numbers = np.arange(101) % 10 != 0
            np.testing.assert_array_equal(signs[numbers], (np.arange(101) >= 50)[numbers], str((length, n)))
