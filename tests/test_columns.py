"""Columns on a CPU: reductions and results of any number of them, and of any number of steps."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOORS,
    LIMITS,
    REDUCTIONS,
    SOFTMAX_FAMILY,
    nan_filled,
    nan_filled_past_a_line,
    random_array,
    same_bits,
)
from ulp import max_ulp

import onepass
from onepass import _engine, call, reference
from onepass.cpu import cpu_plan, plan, thresholds
from onepass.machine import this_machine

LANES = _engine.vector_bytes() // 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_plain_reductions_down_columns_of_any_number(op, dtype):
    # Groups of vectors that reach back over each other, one vector, part of one.
    vectors_and_rest = ((0, 1), (1, -1), (1, 0), (3, 1), (4, 0), (7, 5), (9, 0), (13, 3), (16, 1))
    for width in (vectors * LANES + rest for vectors, rest in vectors_and_rest):
        for length in (1, 15, 21, 32, 33):
            x = np.abs(random_array((2, length, width), dtype, seed=width))
            x[1, length // 2, width // 2] = np.nan
            x[0, 0, width - 1] = np.inf
            out = nan_filled((2, width), x.dtype)
            getattr(onepass, op)(x, 1, out=out)
            if length > 1 and width > 16:
                assert _engine.last_algorithm() == "strided"
            expected = getattr(reference, op)(x, 1)
            assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (width, length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_plain_reductions_of_interleaved_rows(op, dtype):
    """Rows of whole vectors of steps are folded by halves; the last one is whole, or ends within a vector."""
    lengths = itertools.product((65, 100, 300, 1024, 1030), (2, 3, 5, 8, 13, 16))
    for length, inner in (*lengths, (877, 7), (4681, 7), (2048, 16)):  # the longest that are folded
        x = np.abs(random_array((5, length, inner), dtype, seed=length + inner))
        x[1, length - 1, inner - 1] = np.nan
        x[2, length // 2, 0] = np.inf
        x[3, 0, 0], x[3, length - 1, 0] = np.inf, -np.inf
        out = nan_filled((5, inner), x.dtype)
        with np.errstate(invalid="ignore"):
            expected = getattr(reference, op)(x, 1)
        getattr(onepass, op)(x, 1, out=out)
        assert _engine.last_algorithm() == "packed"
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (length, inner)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_plain_reductions_of_a_few_steps_of_a_few_elements(op, dtype):
    """Steps side by side in a vector are folded: any number of them, whole vectors or the last one overlapping; the
    array ends behind the last row, and each range of a thread's with its last results."""
    for inner, length in itertools.product(range(2, 17), (2, 3, 4, 5, 7, 8, 16)):
        if inner * length > 64:  # more than is taken so
            continue
        for rows in (1, 2, 700):
            x = random_array((rows, length, inner), dtype, seed=inner * length + rows)
            if op in ("sum", "mean"):
                x = np.abs(x)
            if rows > 2:
                x[1, length - 1, inner - 1] = np.nan
                x[rows - 1, 0, 0] = np.nan
                x[2, :, 0] = x[67, 1, inner - 1] = -np.inf
            out = nan_filled((rows + 1, inner), x.dtype)
            out[rows] = 7
            expected = getattr(reference, op)(x, 1)
            getattr(onepass, op)(x, 1, out=out[:rows])
            assert _engine.last_algorithm() == "packed"
            assert max_ulp(out[:rows], expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (inner, length, rows)
            assert (out[rows] == 7).all(), (inner, length, rows)  # nothing is written behind the results


@pytest.mark.parametrize("shape", [(20_011, 5, 4), (37, 877, 7), (40_009, 7, 1), (40_009, 8, 1), (40_009, 12, 1)])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_a_few_steps_of_a_few_elements_by_any_number_of_threads(op, shape, threads):
    """Ranges of threads end anywhere: bits are the same."""
    x = random_array(shape)
    seen = []
    for n in (1, 2, 3, 7):
        threads(n)
        out = nan_filled((shape[0] + 1, shape[2]), x.dtype)
        getattr(onepass, op)(x, 1, out=out[:-1])
        assert np.isnan(out[-1]).all()  # nothing is written behind the results
        assert not np.isnan(out[:-1]).any()
        seen.append(out)
    assert all(same_bits(seen[0], other) for other in seen[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_plain_reductions_of_rows_of_one_stream_and_of_four(op, dtype):
    """From 64 KiB on rows are read in four streams; what is left over follows. Each place counts, wherever it is."""
    block = (64 << 10) // DTYPES[dtype].itemsize
    for length in (block - 1, block, block + 1, 2 * block + block // 3):
        x = np.abs(random_array((9, length), dtype, seed=length))
        places = [0, block // 4 - 1, block // 4, block // 2 + 7, 3 * block // 4, block - 2, length - 1]
        for row, place in enumerate(places):  # the last two rows are as they are
            x[row, place] = (-1) ** (op == "amin") * (50000.0 if op in ("amax", "amin") else 1000.0)
        x[1, places[4]] = np.nan
        x[2, places[2]] = np.inf
        out = nan_filled((9,), x.dtype)
        getattr(onepass, op)(x, out=out)
        assert _engine.last_algorithm() in ("row", "online", "split")
        expected = getattr(reference, op)(x, 1)
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], length
        alone = np.array([getattr(onepass, op)(row) for row in x]).astype(np.float64)
        np.testing.assert_array_equal(alone, out.astype(np.float64))


# As many as are held at a time, and one more; a line of them, vectors of it, part of one; more than one thread's.
SHORT_COLUMNS = [
    *itertools.product((2, 5, 16, 17), (max(8, LANES), 4 * LANES, 5 * LANES + 3, 16 * 17)),
    (5, 24_000),
    (3, 9_001),
]


def short_columns(dtype, length, width):
    """Columns as they come, of huge numbers, of NaN, of infinities and of nothing but -inf."""
    x = random_array((3, length, width), dtype, seed=length)
    largest = float(np.finfo(np.float16).max) if dtype == "float16" else 1e30
    x[0, :, 1] = np.linspace(-0.9, 0.9, length) * largest
    x[0, length // 2, 3] = np.nan
    x[1, 0, width - 1] = np.inf
    x[1, :, 2] = -np.inf
    x[1, 1, 5] = -np.inf
    return x


def columns_wherever_they_go(op, dtype, x, expected, algorithms, monkeypatch, algorithm=None):
    """The results, checked: within the cache, past it in whole lines, and where they are no whole lines."""
    results = []
    for past, first in ((1 << 30, 0), (0, 0), (0, 1)):
        monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
        out, beside = nan_filled_past_a_line(expected.shape, x.dtype, first)
        call.plan_and_run(op, x, 1, False, None, out, algorithm)
        assert _engine.last_algorithm() in algorithms
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (x.shape, past, first)
        assert all(np.isnan(memory.astype(np.float64)).all() for memory in beside)
        results.append(out.astype(np.float64))
    for result in results[1:]:  # the same, whatever bits a NaN has
        np.testing.assert_array_equal(result, results[0])
    return results[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_short_columns(op, dtype, monkeypatch):
    for length, width in SHORT_COLUMNS:
        x = short_columns(dtype, length, width)
        expected = getattr(reference, op)(x, 1)
        columns_wherever_they_go(op, dtype, x, expected, ("strided", "packed"), monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_short_column_does_not_depend_on_those_beside_it(dtype):
    for length, width in SHORT_COLUMNS:
        x = short_columns(dtype, length, width)
        calm = random_array(x.shape, dtype, seed=length)
        y, alone = onepass.softmax(x, 1), onepass.softmax(calm, 1)
        same = (x == calm).all(axis=1)
        assert same.sum() == 3 * width - 5
        assert y.transpose(0, 2, 1)[same].tobytes() == alone.transpose(0, 2, 1)[same].tobytes(), (length, width)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_short_columns_that_are_put_together(op, monkeypatch, threads):
    """By long vectors, past the cache: rows that are lines or end with a few elements; a tile and many for a thread."""
    two_cores = dataclasses.replace(this_machine(), cores=2)
    monkeypatch.setattr(call, "this_machine", lambda: two_cores)
    for count, (length, width) in itertools.product((1, 2), ((8, 49), (6, 100), (16, 128), (10, 401), (12, 75))):
        threads(count)
        for tiles in (8, 9, 600):
            x = random_array((tiles, length, width), sigma=3)
            x[1] *= 30  # products that are subnormal, and columns out of the usual range
            x[2, 3, 5], x[4, :, 2], x[5, 1, 1] = np.nan, -np.inf, np.inf
            expected = getattr(reference, op)(x, 1)
            results = columns_wherever_they_go(op, "float32", x, expected, ("strided",), monkeypatch)
            if _engine.vector_bytes() == 64:
                assert _engine.last_form() == "columns"
                chosen = plan.make_plan(call.problem_of(op, x, None, 1), two_cores, count)
                assert (chosen.nontemporal, chosen.tile) == (True, width)
            call.plan_and_run(op, x, 1, False, None, x, None)  # in place
            np.testing.assert_array_equal(x, results)


# A group of vectors of columns and more, the fewer that are left, part of one; one tile, and several, in whole lines
# and not.
COLUMNS = [(1, 3), (3, 0), (4, 1), (8, 0), (8, 1), (15, 5), (16, 0), (24, 0), (25, 7)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_columns_of_any_number(op, dtype, monkeypatch):
    """A column's result depends on nothing beside it, nor on where results go."""
    for length in (18, 35):
        for width in (vectors * LANES + rest for vectors, rest in COLUMNS):
            x = short_columns(dtype, length, max(width, 17))
            x[2] *= 30  # products that are subnormal
            expected = getattr(reference, op)(x, 1)
            results = columns_wherever_they_go(op, dtype, x, expected, ("strided",), monkeypatch, "strided")
            few = call.plan_and_run(op, x[..., :17], 1, False, None, None, "strided").astype(np.float64)
            np.testing.assert_array_equal(results[..., :17], few)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_interleaved_rows_of_any_number(op, dtype):
    """Every inner dim, whose steps fill whole vectors in numbers of their own, with and without a last part of one;
    rows that have infinities and NaN between others."""
    for inner, length in itertools.product(range(2, 17), (17, 31, 32, 64, 129, 300)):
        x = random_array((3, length, inner), dtype)
        x[1] *= 30  # products that are subnormal
        x[2, length // 2, 0] = -np.inf
        x[2, length - 1, 1] = np.inf if length % 2 else np.nan
        expected = getattr(reference, op)(x, 1, dtype=np.longdouble)
        out = nan_filled(expected.shape, x.dtype)
        getattr(onepass, op)(x, 1, out=out, algorithm="packed")
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (inner, length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_rows_of_results_that_share_lines_are_written_as_one(op, dtype, monkeypatch):
    """Tiles of all columns, up to 32 vectors of them, and beyond that of some."""
    lanes = LANES // 2 if dtype == "float64" else LANES
    tiles = thresholds.ROWS_PER_THREAD * this_machine().cores
    for width in (16 * lanes - 1, 17 * lanes + 3, 24 * lanes + 1, 32 * lanes - 1, 32 * lanes + 1):
        x = random_array((tiles, 21, width), dtype, seed=width)
        x[1] *= 30  # products that are subnormal
        x[2, 3, 5] = np.nan
        expected = getattr(reference, op)(x, 1)
        columns_wherever_they_go(op, dtype, x, expected, ("strided",), monkeypatch)
        chosen = onepass.explain(op, x, dim=1).plan  # the last way: past the cache
        joined = x.itemsize >= 4 and width * x.itemsize >= thresholds.JOINED_ROW_BYTES and width < 32 * lanes
        assert (chosen.tile == width and chosen.nontemporal) == joined, (width, chosen)


def test_lines_of_a_tile_go_past_the_cache_where_they_are_whole_or_can_be_made_so():
    wide = 20 * LANES + 36  # vectors as few or many as the processor's lanes make them
    ways = (
        ((128, 300, wide), True, wide),
        ((64, 1000, 192), True, None),
        ((640, 1000, 15), True, 15),
        ((1000, 100, 101), True, 101),
        ((6400, 100, 31), False, 31),
    )
    for shape, past, tile in ways:
        chosen = onepass.explain("softmax", shape, "float32", dim=1).plan
        assert chosen.nontemporal == past, (shape, chosen)
        assert tile in (None, chosen.tile), (shape, chosen)
    assert not onepass.explain("softmax", (64, 300, 98), "bfloat16", dim=1).plan.nontemporal  # 8 MB: within the cache


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("steps", [17, 33, 3000])
def test_logarithms_of_columns_are_taken_together(dtype, steps):
    """Of a last vector that is not whole, beside infinities and NaN, side by side and not."""
    for width in (1, 15, 40, 129):
        x = random_array((2, steps, width), dtype, sigma=3, seed=width)
        x[0, 1] = np.inf
        x[1, :, 0] = -np.inf
        x[1, 2, width // 2 :: 3] = np.nan
        for out in (nan_filled((2, width), x.dtype), nan_filled((2, 2 * width), x.dtype)[:, ::2]):
            onepass.logsumexp(x, 1, out=out, algorithm="strided" if width > 1 else None)
            assert width == 1 or _engine.last_algorithm() == "strided"
            assert max_ulp(out, reference.logsumexp(x, 1)) <= LIMITS["logsumexp", dtype], width
