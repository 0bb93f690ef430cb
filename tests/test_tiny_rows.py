"""Rows of a few elements, which a CPU transposes, folds or takes across: alone and interleaved, right whatever lies
beside them."""

import itertools
import math

import numpy as np
import pytest
from gradient_cases import LIMITS as GRADIENT_LIMITS
from gradient_cases import PAIRS, cast, error_of, inputs_of
from helpers import DTYPES, ELEMENTWISE, FLOORS, LIMITS, SOFTMAX_FAMILY, nan_filled_past_a_line, random_array, same_bits
from ulp import max_ulp

import onepass
from onepass import _engine, call, call_gradients, reference
from onepass.cpu import cpu_plan

REDUCTIONS = ("sum", "mean", "amax", "amin")
LANES = _engine.vector_bytes() // 4
# Rows that share a vector, fill it, and take several; whole batches of them, one row more, one less, hardly any, and
# whole groups of batches and a part of one.
LENGTHS = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 28, 32, 40, 64, 127)
ROWS = (3, 8 * LANES - 1, 8 * LANES, 88 * LANES + 1)
INNER = (2, 3, 5, 8, 16)
# Steps and what each of them has, past 64 elements: transposed by some vectors and operations, tiles by others.
LONGER = (
    (9, 8),
    (12, 7),
    (6, 15),
    (30, 3),
    (17, 11),
    (100, 2),
    (28, 7),
    (67, 3),
    (18, 16),
    (25, 12),
    (128, 4),
    (171, 3),
    (64, 2),
    (40, 5),
    (51, 5),
    (80, 5),
    (81, 5),
    (8, 16),
    (17, 16),
)


def tiny_rows(dtype, shape):
    """As they come, but for some rows: with a NaN, with infinities, of nothing but -inf, of huge numbers."""
    x = random_array(shape, dtype, sigma=3, seed=sum(shape))
    strange = x[:: max(1, len(x) // 5)]
    strange[0, 1] = np.nan
    strange[1 % len(strange), 0] = np.inf
    strange[2 % len(strange)] = -np.inf
    strange[3 % len(strange), 1] = -np.inf
    strange[4 % len(strange)] *= 2e3 if dtype == "float16" else 1e30
    return x


def wherever_they_go(run, shape, dtype, monkeypatch):
    """The results within the cache, past it from the beginning of a line on, and from within one: the same bits."""
    results = []
    for past, first in ((1 << 30, 0), (0, 0), (0, 1)):
        monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
        out, beside = nan_filled_past_a_line(shape, dtype, first)
        run(out)
        assert _engine.last_algorithm() in ("registers", "packed", "row")
        assert all(np.isnan(memory.astype(np.float64)).all() for memory in beside)
        results.append(out)
    for result in results[1:]:
        np.testing.assert_array_equal(result.astype(np.float64), results[0].astype(np.float64))
    return results[0]


def check(op, dtype, shape, monkeypatch):
    x = tiny_rows(dtype, shape)
    if op in ("sum", "mean"):
        x = np.abs(x)
    with np.errstate(all="ignore"):
        expected = getattr(reference, op)(x, 1, dtype=np.longdouble)
    run = lambda out: call.plan_and_run(op, x, 1, False, None, out, None)  # noqa: E731
    out = wherever_they_go(run, expected.shape, x.dtype, monkeypatch)
    assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", (*SOFTMAX_FAMILY, *REDUCTIONS))
def test_tiny_rows(op, dtype, monkeypatch):
    for length, rows in itertools.product(LENGTHS, ROWS):
        check(op, dtype, (rows, length), monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", (*SOFTMAX_FAMILY, *REDUCTIONS))
def test_interleaved_tiny_rows(op, dtype, monkeypatch):
    for (length, inner), rows in itertools.product(
        (*itertools.product((2, 3, 5, 16), INNER), *LONGER), (LANES, 8 * LANES + 1)
    ):
        check(op, dtype, (rows, length, inner), monkeypatch)


@pytest.mark.parametrize(("op", "row", "dtype", "form", "vector_bytes"), [
    ("softmax", (12, 5), "float32", "transposed", 16),
    ("softmax", (12, 7), "float32", "transposed", 32),
    ("softmax", (80, 5), "float32", "transposed", 64),
    ("softmax", (81, 5), "float32", "transposed", None),
    ("softmax", (8, 16), "float32", "transposed", 64),
    ("softmax", (9, 16), "float32", "transposed", None),
    ("softmax", (8, 16), "float64", "transposed", None),
    ("log_softmax", (40, 5), "bfloat16", "transposed", 32),
    ("log_softmax", (102, 5), "float32", "transposed", 64),
    ("log_softmax", (17, 16), "float32", "transposed", 64),
    ("log_softmax", (18, 16), "float32", "transposed", None),
    ("logsumexp", (102, 5), "float32", "transposed", 32),
    ("logsumexp", (103, 5), "float32", "transposed", None),
    ("logsumexp", (16, 16), "float32", "transposed", 32),
    ("logsumexp", (32, 16), "float32", "transposed", 64),
    ("sum", (56, 5), "float64", "transposed", 64),
    ("amax", (57, 5), "float64", "transposed", None),
    ("sum", (12, 7), "float32", "folded", 32),
    ("sum", (73, 7), "float32", "folded", 32),
    ("sum", (877, 7), "float32", "folded", 64),
    ("mean", (878, 7), "float32", "folded", None),
    ("amax", (1024, 16), "float32", "folded", 64),
    ("amin", (1025, 16), "float32", "folded", None),
    ("sum", (585, 7), "bfloat16", "folded", 32),
    ("sum", (4681, 7), "float16", "folded", 64),
    ("amax", (4682, 7), "bfloat16", "folded", None),
    ("mean", (2048, 16), "bfloat16", "folded", 64),
    ("mean", (2049, 16), "float16", "folded", None),
    ("softmax_backward", (4, 16), "float32", "transposed", 16),
    ("softmax_backward", (8, 16), "float32", "transposed", None),
    ("log_softmax_backward", (25, 5), "float32", "transposed", 32),
    ("log_softmax_backward", (51, 5), "float32", "transposed", 64),
    ("log_softmax_backward", (52, 5), "float32", "transposed", None),
])  # fmt: skip
def test_how_interleaved_rows_are_held(op, row, dtype, form, vector_bytes):
    """By vectors of so many bytes and longer ones; None: by none."""
    shape = (LANES + 1, *row)
    if op.endswith("backward"):
        dy, y = inputs_of(op, shape, dtype, 1)
        getattr(onepass, op)(dy, y, dim=1)
    else:
        getattr(onepass, op)(random_array(shape, dtype), 1)
    assert _engine.last_algorithm() == "packed"
    assert (_engine.last_form() == form) == (vector_bytes is not None and _engine.vector_bytes() >= vector_bytes)


@pytest.mark.parametrize(("op", "length", "dtype", "vector_bytes"), [
    ("softmax", 16, "float32", 16),
    ("softmax", 17, "float32", None),
    ("log_softmax", 16, "float32", 16),
    ("log_softmax", 28, "bfloat16", 32),
    ("log_softmax", 28, "float64", 32),
    ("log_softmax", 29, "float32", None),
    ("logsumexp", 16, "float64", 16),
    ("logsumexp", 40, "float32", 32),
    ("logsumexp", 40, "bfloat16", 32),
    ("logsumexp", 41, "float32", None),
])  # fmt: skip
def test_how_short_rows_are_held(op, length, dtype, vector_bytes):
    """Transposed by vectors of so many bytes and longer ones; None: by none."""
    out = getattr(onepass, op)(random_array((LANES + 1, length), dtype))
    assert np.isfinite(out.astype(np.float64)).all()
    expected = vector_bytes is not None and _engine.vector_bytes() >= vector_bytes
    assert (_engine.last_form() == "transposed") == expected
    assert not expected or _engine.last_algorithm() == "registers"


@pytest.mark.parametrize("op", PAIRS)
@pytest.mark.parametrize(("far", "longest"), [(False, {64: 8, 32: 4, 16: 2}), (True, {64: 15, 32: 4, 16: 2})])
def test_how_tiny_rows_of_gradients_are_held(far, longest, op, looking_far_ahead):
    """Of float32 where they are, if they fill so much of a vector as costs more to transpose."""
    looking_far_ahead(far)
    _engine.forget_all()
    most = longest[_engine.vector_bytes()]
    for length in (2, most, most + 1, 16):
        dy, y = inputs_of(op, (5 * LANES + 3, length), "float32", 1)
        dx = getattr(onepass, op)(dy, y)
        assert _engine.last_algorithm() == "registers"
        assert (_engine.last_form() == "transposed") == (length <= most), length
        assert error_of(op, dx, (dy, y), 1) <= GRADIENT_LIMITS[op, "float32"]


@pytest.mark.parametrize(("op", "length", "dtype", "by_64_bytes", "by_32", "by_16"), [
    ("sum", 2, "float32", "across", "across", "transposed"),
    ("mean", 7, "float32", "across", "across", "transposed"),
    ("mean", 7, "bfloat16", "across", "across", "transposed"),
    ("amin", 7, "float16", "across", "across", "transposed"),
    ("amax", 8, "float32", "across", "across", "transposed"),
    ("amin", 15, "bfloat16", "across", "across", "transposed"),
    ("sum", 15, "float32", "across", "across", "usual"),
    ("amax", 32, "float32", "across", "across", "usual"),
    ("amax", 33, "float32", "across", "usual", "usual"),
    ("sum", 64, "float32", "across", "usual", "usual"),
    ("sum", 65, "float32", "usual", "usual", "usual"),
    ("mean", 64, "float16", "across", "across", "usual"),
    ("mean", 65, "float16", "across", "usual", "usual"),
    ("amax", 128, "bfloat16", "across", "usual", "usual"),
    ("amax", 129, "bfloat16", "usual", "usual", "usual"),
    ("sum", 8, "float64", "transposed", "transposed", "transposed"),
])  # fmt: skip
def test_how_tiny_rows_are_held(op, length, dtype, by_64_bytes, by_32, by_16):
    x = np.abs(random_array((100, length), dtype))
    x[7, 2 % length] = np.nan
    result = getattr(onepass, op)(x)
    if _engine.isa() != "v2" or DTYPES[dtype].itemsize > 2:  # which gathers and converts 16 bits
        assert _engine.last_form() == {64: by_64_bytes, 32: by_32, 16: by_16}[_engine.vector_bytes()]
    expected = getattr(reference, op)(x, 1, dtype=np.longdouble)
    assert max_ulp(result, expected, floor=FLOORS[op]) <= LIMITS[op, dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_gradients_of_tiny_rows(op, dtype, monkeypatch):
    shapes = [(rows, length) for length, rows in itertools.product(LENGTHS, ROWS)]
    shapes += [(8 * LANES + 1, *row) for row in (*itertools.product((2, 3, 5, 16), INNER), *LONGER)]
    for shape in shapes:
        dy, y = (a.copy() for a in inputs_of(op, shape, dtype, 1))
        dy[len(dy) // 2, 0] = np.nan
        run = lambda out: call_gradients.run_planned(op, (y, dy), 1, False, None, out, None)  # noqa: B023, E731
        out = wherever_they_go(run, shape, dy.dtype, monkeypatch)
        assert error_of(op, out, (dy, y), 1) <= GRADIENT_LIMITS[op, dtype], shape


def same_but_for_nans(a, b):
    """Equal bits, but those of NaNs: whose sign a product has is the processor's choice of its operands."""
    a, b = (np.where(np.isnan(results.astype(np.float64)), np.nan, results) for results in (a, b))
    return same_bits(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", (*SOFTMAX_FAMILY, *REDUCTIONS))
def test_a_tiny_row_does_not_depend_on_those_beside_it(op, dtype, threads):
    """Nor on how many threads there are, and it may be written where it was."""
    for row in (*((length,) for length in LENGTHS), *LONGER):
        shape = (40_000 // math.prod(row), *row)
        x, calm = tiny_rows(dtype, shape), random_array(shape, dtype, sigma=3)
        calm[::7] = x[::7]
        results = []
        for count in (1, 3):
            threads(count)
            results.append((getattr(onepass, op)(x, 1), getattr(onepass, op)(calm, 1)))
        assert all(same_but_for_nans(one, three) for one, three in zip(*results, strict=True))
        of_x, of_calm = results[0]
        assert same_but_for_nans(of_x[::7], of_calm[::7]), row
        if op in ELEMENTWISE:
            assert same_but_for_nans(getattr(onepass, op)(x, 1, out=x), of_x)


def test_dtypes_of_tiny_gradients_may_differ():
    dy, y = cast(inputs_of("softmax_backward", (500, 6), "float32", 1), "bfloat16", "float32")
    dx = onepass.softmax_backward(dy, y)
    assert error_of("softmax_backward", dx, (dy, y), 1) <= GRADIENT_LIMITS["softmax_backward", "float32"]
