"""The gradients of softmax, log_softmax and logsumexp: right by every algorithm, in every dtype, wherever they lie."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from gradient_cases import GRADIENTS, LIMITS, PAIRS, call, cast, error_of, expected_of, inputs_of
from helpers import (
    DTYPES,
    KINDS,
    as_kind,
    nan_filled,
    nan_filled_past_a_line,
    random_array,
    same_bits,
    to_numpy,
    torch_dtype,
)
from test_algorithms import CASES, LANES, longest_in_registers

import onepass
from onepass import _engine, call_gradients
from onepass.cpu import cpu_plan, plan, thresholds
from onepass.machine import this_machine


@pytest.mark.parametrize(("algorithm", "shape", "dim"), CASES)
def test_the_algorithm_asked_for_runs_and_is_right(algorithm, shape, dim, threads):
    threads(3)
    for dtype in DTYPES if math.prod(shape) < 300_000 else ("float32", "bfloat16"):
        for op in GRADIENTS:
            if algorithm == "registers" and shape[-1] > longest_in_registers(dtype, 32 if op in PAIRS else 8):
                continue
            given = inputs_of(op, shape, dtype, dim)
            expected = expected_of(op, given, dim)
            for kind in KINDS:
                arrays = [as_kind(a, kind) for a in given]
                out = nan_filled(shape, given[1].dtype)
                call(op, arrays, dim, out=as_kind(out, kind), algorithm=algorithm)
                assert _engine.last_algorithm() == algorithm
                assert error_of(op, out, given, dim, expected) <= LIMITS[op, dtype], (op, dtype, kind)
                fresh = call(op, arrays, dim, algorithm=algorithm)
                assert _engine.last_algorithm() == algorithm
                assert same_bits(fresh, out)


# (operation, shape, dtype, dim) -> algorithm: the reason. Sizes far from any threshold, for processors of any cache.
CHOICES = [
    ("softmax_backward", (49_152, 8), "float32", -1, "registers", "a row is one vector or two"),
    ("softmax_backward", (4096, 3 * _engine.vector_bytes()), "float32", -1, "registers", "twelve vectors, read twice"),
    ("softmax_backward", (4096, 12 * _engine.vector_bytes()), "float32", -1, "row", "forty-eight vectors"),
    ("softmax_backward", (4096, 3 * _engine.vector_bytes() // 2), "float64", -1, "row", "twelve of float64"),
    ("log_softmax_backward", (4096, 1024), "bfloat16", -1, "row", "y and dy wait in cache"),
    ("softmax_backward", (16, 4_194_304), "float32", -1, "online", "16 MiB a row: no cache next to a core holds it"),
    ("log_softmax_backward", (1, 16_777_216), "float32", -1, "split", "one row for all threads"),
    ("softmax_backward", (64, 100, 300), "float32", 1, "strided", "dim is not the last"),
    ("softmax_backward", (64, 100, 4), "float32", 1, "packed", "an inner axis shorter than a vector"),
    ("logsumexp_backward", (512, 16_384), "float32", -1, "row", "one pass"),
    ("logsumexp_backward", (64, 100, 300), "float32", 1, "strided", "dim is not the last"),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "dim", "algorithm", "why"), CHOICES)
def test_the_planner_takes(op, shape, dtype, dim, algorithm, why, threads):
    threads(2)
    report = onepass.explain(op, shape, dtype, dim)
    assert report.plan.algorithm == algorithm, why
    assert str(report).startswith(f"{op} of shape {shape}")
    assert report.plan.why


def test_bytes_of_a_row_that_is_read_twice():
    """log_softmax_backward reads dy again, and y once all the same."""
    n = 4 * 16 * 4_194_304
    for op, moved in (("softmax_backward", 5 * n), ("log_softmax_backward", 4 * n)):
        report = onepass.explain(op, (16, 4_194_304))
        assert (report.floor_bytes, report.moved_bytes) == (3 * n, moved)
    n = 4 * 512 * 16_384
    report = onepass.explain("logsumexp_backward", (512, 16_384))
    assert report.moved_bytes == report.floor_bytes == 2 * n + 2 * 4 * 512


def test_results_go_past_the_cache_where_it_cannot_hold_them():
    """softmax's gradient along rows later than others: 1.5 times as many bytes."""
    for rows, softmax, log_softmax in ((21_840, False, False), (31_250, False, True), (40_000, True, True)):
        for op, past in (("softmax_backward", softmax), ("log_softmax_backward", log_softmax)):
            assert onepass.explain(op, (rows, 64), "float32").plan.nontemporal == past, (op, rows)
    assert onepass.explain("softmax_backward", (21_846, 64), "float32", dim=0).plan.nontemporal


def test_lines_of_a_tile_go_past_the_cache_where_they_are_whole_or_can_be_made_so():
    odd = 100
    ways = (
        ("softmax_backward", (64, 1000, odd), "float32", True),  # rows are written as one
        ("log_softmax_backward", (64, 1000, odd), "float32", _engine.vector_bytes() == 64),
        ("softmax_backward", (20_000, 12, odd), "float32", _engine.vector_bytes() == 64),  # small tiles
        ("log_softmax_backward", (1, 4096, 1001), "float32", True),  # rows of many lines
        ("log_softmax_backward", (1, 8192, 1001), "bfloat16", False),
        ("log_softmax_backward", (64, 1000, 192), "float32", True),  # of whole ones
    )
    for op, shape, dtype, past in ways:
        assert onepass.explain(op, shape, dtype, dim=1).plan.nontemporal == past, (op, shape, dtype)


def test_an_algorithm_that_cannot_serve_is_refused():
    given = inputs_of("softmax_backward", (64, 4000), "float32", -1)
    with pytest.raises(ValueError, match="softmax_backward: algorithm 'registers' cannot serve.*at most"):
        call("softmax_backward", given, algorithm="registers")
    dy, y = inputs_of("softmax_backward", (64, 16), "float32", -1)
    with pytest.raises(ValueError, match="rows must be contiguous, input and result of one dtype"):
        onepass.softmax_backward(dy.astype(np.float64), y, algorithm="registers")
    with pytest.raises(ValueError, match="unknown algorithm 'fast'"):
        onepass.softmax_backward(dy, y, algorithm="fast")


# ---- where the arrays lie ----

LAYOUT_SHAPES = [((6, 40), -1), ((3, 700), -1), ((7, 9, 33), 1), ((30, 5), 0), ((4, 5, 6), (0, 2)), ((3, 4, 50), None)]


def layouts_of(array):
    """The same values in memory of other shapes."""
    if array.ndim == 0:
        return
    yield "columns first", np.asfortranarray(array)
    yield "backwards", array[..., ::-1].copy()[..., ::-1]
    wide = np.full([2 * n for n in array.shape], np.nan, array.dtype)
    wide[(*(slice(0, None, 2),) * array.ndim, ...)] = array
    yield "every second", wide[(*(slice(0, None, 2),) * array.ndim, ...)]


@pytest.mark.parametrize(("shape", "dim"), LAYOUT_SHAPES)
@pytest.mark.parametrize("op", GRADIENTS)
def test_any_strides_are_read_and_written_in_place(op, shape, dim):
    for dtype in ("float32", "bfloat16"):
        given = inputs_of(op, shape, dtype, dim)
        expected = expected_of(op, given, dim)
        for i in range(len(given)):
            for name, other in layouts_of(given[i]):
                arrays = [*given[:i], other, *given[i + 1 :]]
                assert error_of(op, call(op, arrays, dim), given, dim, expected) <= LIMITS[op, dtype], (i, name)
        for name, out in layouts_of(nan_filled(shape, given[1].dtype)):
            assert call(op, given, dim, out=out) is out
            assert error_of(op, out, given, dim, expected) <= LIMITS[op, dtype], name


@pytest.mark.parametrize(("shape", "dim"), LAYOUT_SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", GRADIENTS)
def test_a_broadcast_gradient_is_read_in_place(op, shape, dim, kind):
    """What sum().backward() hands down: one value with strides of 0."""
    dy, *rest = inputs_of(op, shape, "float32", dim)
    one = np.array(-0.75, np.float32)
    repeated = np.broadcast_to(one, dy.shape)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.tensor(one.item()).expand(dy.shape), *(as_kind(a, kind) for a in rest)]
    else:
        given = [repeated, *rest]
    assert error_of(op, call(op, given, dim), (repeated, *rest), dim) <= LIMITS[op, "float32"]


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        *LAYOUT_SHAPES,
        ((2000, 1031), -1),
        ((60, 700), 0),
        ((3000, 700), 0),
        ((3000, 704), 0),
        ((999, 25), -1),
        ((6001, 25), -1),
        ((3001, 101), -1),
    ],
)
@pytest.mark.parametrize("op", GRADIENTS)
def test_in_place_of_an_input(op, shape, dim, monkeypatch):
    monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", 1 << 20)  # the large ones go past the cache
    for i in (1,) if op == "logsumexp_backward" else (0, 1):
        given = inputs_of(op, shape, "float32", dim)
        expected = call(op, given, dim).copy()
        # Off a cache line, as a view into something is.
        memory = np.empty(given[i].size + 3, np.float32)
        place = memory[3:].reshape(shape)
        place[...] = given[i]
        arrays = [*given[:i], place, *given[i + 1 :]]
        for _ in range(2):  # the first call plans, the second is hot
            place[...] = given[i]
            assert call(op, arrays, dim, out=place) is place
            assert same_bits(place, expected)


def rows_wherever_they_go(op, given, algorithm, monkeypatch):
    """In the cache and past it, from a line on and from elsewhere."""
    ways = ((1 << 40, 3), (0, 0), (0, 3))
    check_wherever(op, given, -1, expected_of(op, given, -1), ways, algorithm, (algorithm,), monkeypatch)


def columns_wherever_they_go(op, given, expected, monkeypatch):
    """The same of columns, along dim 1."""
    ways = ((1 << 30, 0), (0, 0), (0, 1))
    check_wherever(op, given, 1, expected, ways, None, ("strided", "packed"), monkeypatch)


def check_wherever(op, given, dim, expected, ways, algorithm, may_run, monkeypatch):
    """Right, the same bits, and nothing around them; ways: (bytes from which on results go past the cache, where in a
    line they begin)."""
    dy, y = given
    results = []
    for past, first in ways:
        monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
        out, surroundings = nan_filled_past_a_line(y.shape, y.dtype, first)
        call_gradients.run_planned(op, (y, dy), dim, False, None, out, algorithm)
        assert _engine.last_algorithm() in may_run
        assert error_of(op, out, given, dim, expected) <= LIMITS[op, y.dtype.name], (y.shape, past, first)
        assert all(np.isnan(memory).all() for memory in surroundings), (y.shape, past, first)
        results.append(out)
    assert all(same_bits(result, results[0]) for result in results), y.shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_short_rows(op, dtype, monkeypatch):
    """Every number of vectors that fits the registers and some that are read twice, the last full and not; more rows
    than are whole cache lines together."""
    lanes = _engine.vector_bytes() // 4
    longest = longest_in_registers(dtype, 32)
    for vectors, more in itertools.product((*range(10), 16, 31, 32), (-1, 0, 1)):
        length = vectors * lanes + more
        if 0 < length <= longest:
            rows_wherever_they_go(op, inputs_of(op, (71, length), dtype, -1), "registers", monkeypatch)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", PAIRS)
def test_short_rows_of_two_threads(op, dtype, monkeypatch, threads):
    """Of 16 bits, log_softmax's go past the cache only then, which one thread is too busy for."""
    threads(2)
    monkeypatch.setattr(cpu_plan, "PARALLEL_ELEMENTS", 1)
    lanes = _engine.vector_bytes() // 4
    for length in (9 * lanes, 9 * lanes + 1, 32 * lanes - 1):
        given = inputs_of(op, (71, length), dtype, -1)
        rows_wherever_they_go(op, given, "registers", monkeypatch)
        assert onepass.explain(op, given[0].shape, dtype).plan.threads == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_rows_that_wait_in_a_cache(op, dtype, monkeypatch, looking_far_ahead):
    """One after the other, and beside the next one: which of both depends on length, processor and where they go."""
    for length, so in itertools.product((600, 1031, 2047, 2048, 2049, 5000), (False, True)):
        looking_far_ahead(so)
        rows_wherever_they_go(op, inputs_of(op, (5, length), dtype, -1), "row", monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("algorithm", ["online", "split"])
@pytest.mark.parametrize("op", PAIRS)
def test_rows_that_are_read_twice(op, algorithm, dtype, monkeypatch, threads):
    """Past the cache eight chunks of 4096 elements are written at once, of shared rows if they are long enough: an
    element less than that, one more, and several times as many."""
    threads(2)
    for length in (8 * 4096 - 1, 8 * 4096 + 1, 8 * 8 * 4096 + 5 if algorithm == "split" else 70_001):
        rows_wherever_they_go(op, inputs_of(op, (2, length), dtype, -1), algorithm, monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_processors_that_look_ahead_get_the_same_bits(dtype, looking_far_ahead):
    """They need no hints, and have rows one after the other: sums and maxima, and gradients in the cache."""
    x, rows = random_array((2, 70_001), dtype), {op: inputs_of(op, (5, 5000), dtype, -1) for op in PAIRS}
    results = []
    for so in (False, True):
        looking_far_ahead(so)
        backward = [call(op, given, algorithm="row") for op, given in rows.items()]
        results.append([onepass.sum(x), onepass.amax(x), *backward])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_short_columns(op, dtype, monkeypatch):
    """Up to sixteen elements, held at a time; beside columns with a NaN, with infinities and with huge numbers."""
    lanes = _engine.vector_bytes() // 4
    shapes = itertools.product((2, 5, 16, 17), (lanes, 4 * lanes, 5 * lanes + 3, 16 * 17))
    for length, width in (*shapes, (5, 24_000), (3, 9_001)):  # the last ones more than one thread's
        dy, y = (a.copy() for a in inputs_of(op, (3, length, width), dtype, 1))
        dy[0, :, 1] = 3e4 * (-1.0) ** np.arange(length)
        dy[0, length // 2, 3] = np.nan
        y[1, 0, 2] = np.inf
        dy[1, 1, width - 1] = -np.inf
        with np.errstate(all="ignore"):
            expected = expected_of(op, (dy, y), 1)
        columns_wherever_they_go(op, (dy, y), expected, monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_rows_of_results_that_share_lines(op, dtype, monkeypatch):
    """Written as one, tiles of all columns, and not: long rows by the whole lines they have, others in the cache."""
    lanes = LANES // 2 if dtype == "float64" else LANES
    two_cores = dataclasses.replace(this_machine(), cores=2)  # whatever it has: the same numbers everywhere
    monkeypatch.setattr(call_gradients, "this_machine", lambda: two_cores)
    tiles = thresholds.ROWS_PER_THREAD * two_cores.cores
    for width in (lanes + 1, 5 * lanes + 3, 16 * lanes - 1, 24 * lanes + 1, 32 * lanes + 1):
        given = inputs_of(op, (tiles + 1, 21, width), dtype, 1)
        columns_wherever_they_go(op, given, expected_of(op, given, 1), monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", PAIRS)
def test_columns_that_stay_in_a_cache(op, dtype, monkeypatch):
    """All rows of a few vectors at once, with the bits of tiles, which take those whose results go past it."""
    for length, width in ((33, 300), (64, 128), (257, 300), (100, 8 * LANES + 3)):
        given = inputs_of(op, (3, length, width), dtype, 1, sigma=10)
        columns_wherever_they_go(op, given, expected_of(op, given, 1), monkeypatch)


@pytest.mark.parametrize("op", PAIRS)
def test_long_pieces_of_rows(op, monkeypatch):
    """From memory, by short vectors: columns of as many rows as tiles of long pieces are for, and of one less or more,
    the last piece shorter; and columns whose long rows are fetched."""
    two_cores = dataclasses.replace(this_machine(), cores=2, l2_bytes=512 << 10)
    monkeypatch.setattr(call_gradients, "this_machine", lambda: two_cores)
    for length, width, pieces in (
        *((7, 16400, False), (8, 16400, True), (16, 16389, True), (16, 1536, False), (16, 1024, False)),
        *((8, 1027, True), (16, 2047, True), (16, 1023, False), (7, 1027, False)),  # rows that end within lines
        *((17, 2047, False), (17, 2048, True), (48, 2100, True), (49, 2100, False)),
    ):
        given = inputs_of(op, (2, length, width), "float32", 1, sigma=10)
        columns_wherever_they_go(op, given, expected_of(op, given, 1), monkeypatch)
        problem = call_gradients.checked(op, given[::-1], 1, False, None, None)[1]
        chosen = plan.make_plan(problem, two_cores, 2)
        pieces &= _engine.vector_bytes() < 64 and (op == "softmax_backward" or length > 16)
        assert (chosen.tile > 32 * LANES) == (pieces and chosen.nontemporal), chosen


@pytest.mark.parametrize("op", PAIRS)
def test_small_tiles_that_are_put_together(op, monkeypatch, threads):
    """Short and long columns, rows that are lines or end with a few elements; a tile and many for a thread."""
    two_cores = dataclasses.replace(this_machine(), cores=2)
    monkeypatch.setattr(call_gradients, "this_machine", lambda: two_cores)
    shapes = ((5, 100), (16, 49), (17, 49), (12, 128), (10, 401), (60, 65))
    for count, (length, width) in itertools.product((1, 2), shapes):
        threads(count)
        for tiles in (8, 9, 600):
            given = inputs_of(op, (tiles, length, width), "float32", 1, sigma=10)
            columns_wherever_they_go(op, given, expected_of(op, given, 1), monkeypatch)
            if _engine.vector_bytes() == 64:
                joined = op == "softmax_backward" and length > 16 and length * width * 4 > 10 << 10
                assert _engine.last_form() == ("usual" if joined else "columns")
                problem = call_gradients.checked(op, given[::-1], 1, False, None, None)[1]
                chosen = plan.make_plan(problem, two_cores, count)
                assert (chosen.nontemporal, chosen.tile) == (True, width)
            apart = call_gradients.run_planned(op, given[::-1], 1, False, None, None, None)
            for k in (0, 1):  # in place of dy, and of y
                dy, y = (a.copy() for a in given)
                call_gradients.run_planned(op, (y, dy), 1, False, None, (dy, y)[k], None)
                assert same_bits((dy, y)[k], apart)


@pytest.mark.parametrize(("shape", "nontemporal", "of_softmax", "of_log_softmax"), [
    ((3, 16, 300), 1 << 40, 16, 16),
    ((3, 100, 300), 1 << 40, 16, 64),
    ((3, 100, 300), 0, None, 64),  # past the cache, of log_softmax's as little in it: 234 KiB of both inputs
    ((3, 110, 300), 0, None, None),
    ((40, 21, 83), 0, 16, 64),  # by long vectors put together, 7 KB a tile, and past the cache from there
    ((40, 21, 64), 0, 64, 64),  # rows that are lines, too
    ((40, 22, 112), 0, 64, 64),  # 9856 bytes
    ((40, 23, 112), 0, None, 64),
    ((40, 16, 165), 0, 16, 16),  # 10560 bytes, but short columns: put together, or in the cache
    ((40, 45, 112), 0, None, 64),  # 20160 bytes
    ((40, 46, 112), 0, None, None),
    ((40, 40, 128), 0, None, None),  # lines of eight vectors, or of four: tiles write them as fast
    ((2000, 30, 60), 1 << 40, 64, 64),  # 43 MB, 14 KiB of both inputs at each step
    ((50, 500, 65), 1 << 40, 64, 64),  # 254 KiB
    ((50, 500, 66), 1 << 40, None, None),  # 258 KiB
    ((14, 1000, 300), 1 << 40, None, None),  # 50 MB, 2.3 MiB
])  # fmt: skip
@pytest.mark.parametrize("op", PAIRS)
def test_how_columns_are_summed(op, shape, nontemporal, of_softmax, of_log_softmax, monkeypatch):
    """A few vectors of them at a time by vectors of so many bytes and longer ones; None: in tiles by all."""
    monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", nontemporal)
    shortest = of_softmax if op == "softmax_backward" else of_log_softmax
    dy, y = inputs_of(op, shape, "float32", 1)
    call_gradients.run_planned(op, (y, dy), 1, False, None, None, None)
    assert _engine.last_algorithm() == "strided"
    by_columns = shortest is not None and _engine.vector_bytes() >= shortest
    assert _engine.last_form() == ("columns" if by_columns else "usual")


@pytest.mark.parametrize("types", [*itertools.product(DTYPES, DTYPES, DTYPES)], ids="-".join)
@pytest.mark.parametrize("op", PAIRS)
def test_mixed_dtypes(op, types):
    """dy, y and the result, as under autocast; all converted on the way, with one rounding at the end."""
    for shape, dim in (((3, 50), -1), ((2, 5000), -1), ((5, 40, 33), 1), ((60, 4), 0)):
        given = cast(inputs_of(op, shape, "float64", dim), *types[:2])
        result = types[2]
        computed = "float64" if "float64" in types else "float32"
        for kind in KINDS:
            name = torch_dtype(result) if kind == "torch" else result
            got = to_numpy(call(op, [as_kind(a, kind) for a in given], dim, name))
            assert got.dtype == DTYPES[result]
            assert error_of(op, got, given, dim) <= max(
                LIMITS[op, result], LIMITS[op, computed] if result == computed else 0
            )


def test_mixed_dtypes_of_logsumexp():
    for types in itertools.product(DTYPES, DTYPES, DTYPES):
        for shape, dim in (((3, 50), -1), ((5, 40, 33), 1), ((60, 4), 0)):
            given = cast(inputs_of("logsumexp_backward", shape, "float64", dim), *types)
            got = onepass.logsumexp_backward(*given, dim)
            assert got.dtype == given[1].dtype
            assert error_of("logsumexp_backward", got, given, dim) <= LIMITS["logsumexp_backward", types[1]]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((4, 5, 6), 1), ((4, 5, 6), (0, 2)), ((4, 5), None), ((), -1)])
def test_keepdim_of_logsumexp(shape, dim, keepdim):
    x = np.asarray(random_array(shape))
    lse = np.asarray(onepass.logsumexp(x, dim, keepdim))
    dy = np.asarray(random_array(lse.shape, seed=1))
    got = onepass.logsumexp_backward(dy, x, lse, dim, keepdim)
    assert error_of("logsumexp_backward", got, (dy, x, lse), dim, keepdim=keepdim) <= 3


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,), (5, 1), (1, 1, 1)], ids=str)
def test_nothing_one_element_and_one_column(op, shape):
    for kind in KINDS:
        for dtype in DTYPES:
            given = inputs_of(op, shape, dtype, -1)
            got = call(op, [as_kind(a, kind) for a in given])
            assert to_numpy(got).shape == shape
            assert error_of(op, got, given, -1) <= LIMITS[op, dtype]


def test_lists_and_integers_are_read_as_numpy_reads_them():
    np.testing.assert_array_equal(onepass.softmax_backward([1, 0], [0.5, 0.5]), [0.25, -0.25])
    np.testing.assert_array_equal(onepass.log_softmax_backward([1, 0], np.log([0.5, 0.5])), [0.5, -0.5])
    np.testing.assert_array_equal(onepass.logsumexp_backward(2, [0.0, -np.inf], 0.0), [2, 0])


# ---- the path of a call ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", GRADIENTS)
def test_the_second_call_is_not_planned(op, kind, monkeypatch):
    dim = 0
    given = [as_kind(a, kind) for a in inputs_of(op, (33, 7), "float32", dim)]
    options = [{}, {"algorithm": "row"}, {"out": as_kind(nan_filled((33, 7), np.float32), kind)}]
    options += [{"dtype": torch_dtype("float64") if kind == "torch" else np.float64}] if op in PAIRS else []
    first = [to_numpy(call(op, given, dim, **o)).copy() for o in options]
    monkeypatch.setattr(call_gradients, "plan_and_run", None)
    for o, expected in zip(options, first, strict=True):
        assert same_bits(call(op, given, dim, **o), expected)
    for other in ({"dim": 1}, {"dim": 0, "algorithm": "online"}):
        if op != "logsumexp_backward" or other["dim"] == 0:
            with pytest.raises(TypeError):  # of another key: to be planned
                call(op, given, **other)


def test_calls_that_differ_in_the_second_input_have_plans_of_their_own():
    dy, y = inputs_of("softmax_backward", (20, 30), "float32", -1)
    for other in (dy, np.asfortranarray(dy), dy.astype(np.float64), np.broadcast_to(dy[:1], dy.shape), dy[:, ::-1]):
        for _ in range(2):
            got = onepass.softmax_backward(other, y)
            assert error_of("softmax_backward", got, (other, y), -1) <= 6


def test_an_overlap_is_refused_by_the_hot_path_too():
    memory = np.full(400, np.nan, np.float32)
    dy, y = inputs_of("softmax_backward", (10, 10), "float32", -1)
    a, b, apart = (memory[i : i + 100].reshape(10, 10) for i in (0, 100, 250))
    a[...], b[...] = y, dy
    onepass.softmax_backward(b, a, out=apart)
    for start, name in ((50, "y"), (150, "dy")):
        with pytest.raises(ValueError, match=f"overlaps {name}"):
            onepass.softmax_backward(b, a, out=memory[start : start + 100].reshape(10, 10))
    assert same_bits(a, y)


@pytest.mark.parametrize("kind", KINDS)
def test_large_results_live_in_blocks(kind):
    dy, y = (as_kind(a, kind) for a in inputs_of("softmax_backward", (300, 400), "float32", -1))
    before = onepass.memory_stats()["live_blocks"]
    dx = onepass.softmax_backward(dy, y)
    assert onepass.memory_stats()["live_blocks"] == before + 1
    del dx
    assert onepass.memory_stats()["live_blocks"] == before
