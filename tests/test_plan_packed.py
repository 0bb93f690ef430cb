"""Which rows that lie interleaved, more than fill a vector, a CPU packs: plans, and what both ways compute."""

import dataclasses
import itertools

import numpy as np
import pytest
from gradient_cases import LIMITS as GRADIENT_LIMITS
from gradient_cases import PAIRS, error_of, inputs_of
from helpers import DTYPES, FLOORS, LIMITS, SOFTMAX_FAMILY, nan_filled, random_array
from ulp import max_ulp

import onepass
from onepass import _engine, call, reference
from onepass.cpu import plan, thresholds
from onepass.machine import this_machine


def machine_of(vector_bytes):
    return dataclasses.replace(this_machine(), vector_bytes=vector_bytes, cores=2, l2_bytes=1 << 20, l3_bytes=32 << 20)


def algorithm_of(op, x_or_shape, dtype=None, vector_bytes=64, dim=1):
    return plan.make_plan(call.problem_of(op, x_or_shape, dtype, dim), machine_of(vector_bytes), 2).algorithm


@pytest.mark.parametrize(("op", "shape", "dtype", "packed_by"), [
    # few steps: transposed
    ("softmax", (1000, 20, 20), "float32", {64}),
    ("softmax", (1000, 11, 18), "float32", {64, 32}),
    ("softmax", (1000, 10, 41), "float32", set()),
    ("softmax", (1000, 8, 28), "bfloat16", {64}),
    ("softmax", (1000, 5, 31), "bfloat16", set()),
    ("softmax", (1000, 7, 18), "float64", {64}),
    ("softmax", (1000, 8, 18), "float64", set()),
    ("log_softmax", (1000, 16, 31), "float32", {64}),
    ("log_softmax", (1000, 2, 100), "float32", {64, 32}),
    ("logsumexp", (1000, 16, 31), "float16", {64, 32}),
    ("logsumexp", (1000, 16, 33), "float32", set()),
    ("logsumexp", (1000, 8, 48), "float32", set()),
    # many: vectors of a tile would be half empty
    ("softmax", (100, 100, 17), "float32", {64, 32}),
    ("softmax", (100, 50, 17), "float32", set()),
    ("softmax", (100, 100, 31), "float32", set()),
    ("log_softmax", (100, 300, 30), "float32", set()),
    ("logsumexp", (100, 300, 50), "bfloat16", {64, 32}),
    ("softmax", (100, 300, 18), "float64", {64, 32}),
    ("softmax", (100, 300, 48), "float32", set()),
    # read twice, whatever the width
    ("softmax", (4, 30_000, 48), "float32", {64, 32}),
    ("log_softmax", (4, 30_000, 124), "bfloat16", {64, 32}),
    ("softmax", (4, 30_000, 128), "float32", set()),
    ("softmax", (4, 30_000, 63), "float32", set()),
    ("softmax_backward", (4, 30_000, 20), "float32", {64, 32}),
    ("log_softmax_backward", (4, 30_000, 50), "float32", {64, 32}),
    # not so
    ("softmax_backward", (100, 300, 20), "float32", set()),
    ("log_softmax_backward", (1000, 5, 20), "float32", set()),
    ("logsumexp_backward", (4, 30_000, 20), "float32", set()),
    ("sum", (100, 300, 20), "float32", set()),
    ("amax", (4, 30_000, 17), "float32", set()),
])  # fmt: skip
def test_which_rows_are_packed(op, shape, dtype, packed_by):
    chosen = {bytes_: algorithm_of(op, shape, dtype, bytes_) for bytes_ in (64, 32, 16)}
    assert chosen == {bytes_: "packed" if bytes_ in packed_by else "strided" for bytes_ in (64, 32, 16)}


def test_rows_with_gaps_between_them_are_not_transposed():
    """A slice of steps, results of another dtype, and more axes than one: short ones are tiles then."""
    x = random_array((200, 30, 20), "bfloat16")
    short = np.ascontiguousarray(x[:, :10])
    assert algorithm_of("softmax", short) == "packed"
    assert algorithm_of("softmax", x[:, :10]) == "strided"
    assert algorithm_of("softmax", short, "float32") == "strided"
    every_other = np.ascontiguousarray(x.reshape(20, 10, 30, 20)[:, :, :10])
    assert algorithm_of("softmax", every_other, dim=2) == "packed"
    assert algorithm_of("softmax", every_other[:, ::2], dim=2) == "strided"


@pytest.mark.parametrize(("op", "shape", "dtype"), [
    ("softmax", (2000, 40), "float32"),
    ("log_softmax", (2000, 100), "float32"),
    ("logsumexp", (2000, 36), "float64"),
])  # fmt: skip
def test_few_wide_rows_are_shared_out_rather_than_packed(op, shape, dtype):
    """A tile that is kept is one thread's, where narrower ones are several threads'."""
    few, many = (1, *shape), (2, *shape)
    narrow = thresholds.NARROW_BYTES // (8 if dtype == "float64" else 4)
    assert (algorithm_of(op, few, dtype) == "packed") == (shape[1] <= narrow)
    assert algorithm_of(op, many, dtype) == "packed"


def test_tiles_that_narrower_ones_keep_are_not_packed_and_read_twice():
    """By AVX2: half of 124 columns fit the cache where all do not."""
    machine = machine_of(32)
    kept_by = set()
    for length in range(1000, 30_000, 500):
        problem = call.problem_of("softmax", (8, length, 124), "float32", 1)
        ways = [plan.make_plan(problem, machine, 2, algorithm) for algorithm in (None, "strided", "packed")]
        chosen, strided, packed = ways
        assert chosen.resident == (strided.resident or packed.resident), length
        assert packed.resident or chosen == (strided if strided.resident else packed), length
        kept_by.add((strided.resident, packed.resident))
    assert kept_by == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize(("op", "row", "dtype", "vector_bytes"), [
    ("softmax", (20, 20), "float32", 64),
    ("softmax", (11, 18), "float32", 32),
    ("softmax", (7, 18), "float64", 64),
    ("log_softmax", (16, 31), "float32", 64),
    ("log_softmax", (8, 25), "bfloat16", 32),
    ("logsumexp", (16, 31), "float16", 32),
])  # fmt: skip
def test_short_wide_rows_are_transposed(op, row, dtype, vector_bytes):
    """What is packed because the kernels transpose it, is: by vectors of so many bytes and longer ones."""
    getattr(onepass, op)(random_array((70, *row), dtype), 1)
    ways = (_engine.last_algorithm(), _engine.last_form() == "transposed")
    assert ways == (("packed", True) if _engine.vector_bytes() >= vector_bytes else ("strided", False))


WIDE = ((5, 17), (20, 17), (11, 28), (3, 60), (100, 20), (130, 17), (300, 30), (400, 36))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_wide_interleaved_rows(op, dtype):
    """Both ways, and the one that is chosen; rows with infinities and NaN between others."""
    for (length, inner), rows in itertools.product(WIDE, (1, 37)):
        x = random_array((rows, length, inner), dtype, sigma=3, seed=inner)
        x[0, 1, 2], x[0, :, 3], x[0, length // 2, 5] = np.inf, -np.inf, np.nan
        with np.errstate(all="ignore"):
            expected = getattr(reference, op)(x, 1, dtype=np.longdouble)
        for algorithm in ("packed", "strided", None):
            out = nan_filled(expected.shape, x.dtype)
            call.plan_and_run(op, x, 1, False, None, out, algorithm)
            assert algorithm in (None, _engine.last_algorithm())
            assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (length, inner, rows, algorithm)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_gradients_of_wide_interleaved_rows(op, dtype):
    for length, inner in WIDE:
        dy, y = inputs_of(op, (19, length, inner), dtype, 1)
        for algorithm in ("packed", "strided"):
            out = nan_filled(dy.shape, dy.dtype)
            getattr(onepass, op)(dy, y, 1, out=out, algorithm=algorithm)
            assert _engine.last_algorithm() == algorithm
            assert error_of(op, out, (dy, y), 1) <= GRADIENT_LIMITS[op, dtype], (length, inner)
