"""Every algorithm, asserted to be the one that ran; and which one the planner takes, with the reason."""

import dataclasses
import itertools
import math
import threading

import numpy as np
import pytest
from helpers import (
    DTYPES,
    FLOORS,
    KINDS,
    LIMITS,
    SOFTMAX_FAMILY,
    as_kind,
    nan_filled,
    random_array,
    same_bits,
    to_numpy,
)
from ulp import max_ulp

import onepass
from onepass import _engine, call, reference, report
from onepass.cpu import cpu_plan, plan, thresholds
from onepass.cuda import plan as cuda_plan
from onepass.machine import this_machine

LANES = _engine.vector_bytes() // 4

# Shape, dim: what it is there for. Widths with a tail, one less and one more than a power of two.
SHAPES = {
    "registers": [
        ((1, 1), -1, "nothing to sum"),
        ((64, 8), -1, "half a vector"),
        ((1000, 3), -1, "less than a vector, many rows"),
        ((33, 16), -1, "whole vectors"),
        ((5, 31), -1, "an odd tail"),
        ((40_000, 17), -1, "shared out among threads"),
        ((37, 4 * _engine.vector_bytes()), -1, "sixteen vectors of float32"),
        ((37, 4 * _engine.vector_bytes() - 3), -1, "sixteen, the last not full"),
        ((37, 2 * _engine.vector_bytes() + 1), -1, "one more than eight"),
    ],
    "row": [
        ((100, 17), -1, "shorter than the planner would take"),
        ((7, 1000), -1, "in the first cache"),
        ((9, 1023), -1, "odd"),
        ((9, 1025), -1, "odd, the other side"),
        ((64, 4097), -1, "shared out among threads"),
        ((1, 50_257), -1, "in the second cache"),
        ((3, 5, 300), (1, 2), "two dims as one row"),
    ],
    "online": [
        ((2, 300_001), -1, "past the second cache"),
        ((3, 5000), -1, "two chunks, the second short"),
        ((1, 100), -1, "less than a chunk"),
        ((9, 70_001), -1, "shared out among threads"),
    ],
    "split": [
        ((1, 1_000_003), -1, "one row over all threads"),
        ((3, 300_001), -1, "several rows, each over all threads"),
        ((2, 5000), -1, "two chunks"),
        ((1, 50), -1, "less than a chunk"),
    ],
    "strided": [
        ((64, 100), 0, "a tile of several vectors"),
        ((5, 33, 71), 1, "a middle dim, an odd inner"),
        ((2, 1000, 196), 1, "an image"),
        ((20_000, 40), 0, "too long to wait in cache"),
        ((129, 3000), 0, "many tiles"),
        ((50, 31), 0, "an inner dim of nearly two vectors"),
    ],
    "packed": [
        ((7, 333, 16), 1, "the widest"),
        ((1000, 2), 0, "the narrowest"),
        ((100, 50, 3), 1, "an inner dim that no vector divides by"),
        ((60_001, 5), 0, "too long to wait in cache"),
        ((4, 1000, 8), 1, "half a vector or a whole one"),
        ((7, 333, 20), 1, "wider than a vector"),
        ((5, 90, 31), 1, "as many vectors as columns"),
        ((3, 9, 17), 1, "wider than a vector, and few steps"),
        ((2, 20_001, 60), 1, "wide, and too long to wait in cache"),
    ],
}
CASES = [
    pytest.param(algorithm, shape, dim, id=f"{algorithm} {shape} {dim}: {why}")
    for algorithm, rows in SHAPES.items()
    for shape, dim, why in rows
]


def longest_in_registers(dtype, vectors=8):
    """So many vectors of float32, or eight of float64, which are too few for rows of 31 if they have 128 bits."""
    return _engine.vector_bytes() if dtype == "float64" else vectors * _engine.vector_bytes() // 4


@pytest.mark.parametrize(("algorithm", "shape", "dim"), CASES)
def test_the_algorithm_asked_for_runs_and_is_right(algorithm, shape, dim, threads):
    threads(3)
    for dtype in DTYPES if math.prod(shape) < 300_000 else ("float32", "bfloat16"):
        x = random_array(shape, dtype, sigma=3)
        for op in SOFTMAX_FAMILY:
            if algorithm == "registers" and (op == "logsumexp" or shape[-1] > longest_in_registers(dtype, 16)):
                continue
            function = getattr(onepass, op)
            expected = getattr(reference, op)(x, dim, dtype=np.longdouble)
            for kind in KINDS:
                given, out = as_kind(x, kind), nan_filled(expected.shape, x.dtype)
                function(given, dim, out=as_kind(out, kind), algorithm=algorithm)
                assert _engine.last_algorithm() == algorithm
                assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], (op, dtype, kind)
                fresh = function(given, dim, algorithm=algorithm)
                assert _engine.last_algorithm() == algorithm
                np.testing.assert_array_equal(to_numpy(fresh), out)


# (operation, shape, dtype, dim) -> algorithm: the reason. Sizes far from any threshold, for processors of any cache.
CHOICES = [
    ("softmax", (49_152, 8), "float32", -1, "registers", "a row is one vector or two"),
    ("log_softmax", (1000, 7), "float64", -1, "registers", "a row is a few vectors at most"),
    ("softmax", (4096, 3 * _engine.vector_bytes()), "float32", -1, "registers", "twelve vectors"),
    ("log_softmax", (4096, 3 * _engine.vector_bytes()), "bfloat16", -1, "registers", "twelve of float32"),
    ("softmax", (4096, 3 * _engine.vector_bytes() // 2), "float64", -1, "row", "twelve of float64: sums would round"),
    ("logsumexp", (4096, 3 * _engine.vector_bytes()), "float32", -1, "registers", "twelve, logarithms of all rows"),
    ("logsumexp", (4096, 5 * _engine.vector_bytes()), "float32", -1, "row", "twenty vectors, more than a batch has"),
    ("logsumexp", (4096, 3 * _engine.vector_bytes() // 2), "float64", -1, "row", "twelve of float64"),
    ("softmax", (4096, 1024), "float32", -1, "row", "4 KiB a row: it waits in cache"),
    ("softmax", (1024, 4096), "bfloat16", -1, "row", "8 KiB a row, and as much again in float32"),
    ("softmax", (16, 4_194_304), "float32", -1, "online", "16 MiB a row: no cache next to a core holds it"),
    ("log_softmax", (64, 2_097_152), "float64", -1, "online", "16 MiB a row, many rows"),
    ("softmax", (1, 16_777_216), "float32", -1, "split", "one row for all threads"),
    ("logsumexp", (2, 16_777_216), "float32", -1, "split", "two rows for four threads"),
    ("softmax", (32, 256, 56, 56), "float32", 1, "strided", "channels of an image"),
    ("softmax", (4096, 4096), "float32", 0, "strided", "columns of a matrix"),
    ("logsumexp", (64, 1000, 196), "float32", 1, "strided", "a reduction with an inner dim"),
    ("softmax", (2, 128_256, 16), "float32", 1, "packed", "16 rows lie interleaved"),
    ("softmax", (1000, 100, 3), "float32", 1, "packed", "3 rows lie interleaved"),
    ("sum", (4096, 5), "float32", -1, "registers", "a part of a vector, added up"),
    ("sum", (4096, 2 * _engine.vector_bytes()), "float32", -1, "row", "eight vectors, added up on the way"),
    ("amax", (4096, 5 * _engine.vector_bytes()), "float32", -1, "row", "twenty vectors, compared on the way"),
    ("softmax", (32, 256, 56, 56), "float32", None, "split", "everything is one row"),
    ("softmax", (100, 20, 30), "float32", (1, 2), "row", "two dims that are one in memory"),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "dim", "algorithm", "why"), CHOICES, ids=[c[5] for c in CHOICES])
def test_the_planner_takes(op, shape, dtype, dim, algorithm, why, threads):
    threads(4)
    report = onepass.explain(op, shape, dtype, dim)
    assert report.plan.algorithm == algorithm, report
    assert algorithm in str(report)
    assert report.plan == onepass.explain(op, shape, dtype, dim).plan


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "count", "algorithm", "why"),
    [
        ("softmax", (64, 16_384), "float32", 2, "row", "two rows and their exponentials fit half of L2"),
        ("softmax", (64, 131_072), "float32", 2, "row", "2 MiB are a part of L3"),
        ("softmax", (64, 524_288), "float32", 2, "online", "8 MiB are too much of it"),
        ("log_softmax", (64, 131_072), "float32", 2, "online", "its second pass is a subtraction"),
        ("softmax", (64, 131_072), "bfloat16", 2, "row", "16 bits are computed in 32"),
        ("softmax", (64, 131_072), "float16", 2, "row", "these too"),
        ("softmax", (64, 131_072), "float64", 2, "row", "4 MiB"),
        ("softmax", (64, 262_144), "float64", 2, "online", "8 MiB"),
        ("softmax_backward", (64, 131_072), "float32", 2, "online", "its second pass is a product"),
        ("softmax", (2, 131_072), "float32", 2, "row", "one for each thread"),
        ("softmax", (3, 131_072), "float32", 2, "row", "a quarter of the time one has none"),
        ("softmax", (1, 131_072), "float32", 2, "split", "half of the time"),
        ("softmax", (9, 131_072), "float32", 8, "split", "seven of eight have one row of two"),
        ("softmax", (1, 131_072), "float32", 1, "row", "one row for one thread"),
    ],
)
def test_rows_wait_in_l3_where_they_would_be_computed_twice(
    op, shape, dtype, count, algorithm, why, monkeypatch, threads
):
    threads(count)
    machine = dataclasses.replace(this_machine(), cores=2, l2_bytes=512 << 10, l3_bytes=32 << 20)
    monkeypatch.setattr(report, "this_machine", lambda: machine)
    assert onepass.explain(op, shape, dtype).plan.algorithm == algorithm, why
    if algorithm == "row" and shape[1] > 16_384:  # converted on the way they are computed twice all the same
        narrow = np.zeros(shape, np.float64 if dtype == "float32" else np.float32)
        assert onepass.explain(op, narrow, dtype).plan.algorithm != algorithm, why


def test_columns_of_a_plain_reduction_are_one_chunk_where_there_are_tiles_for_all():
    whole = onepass.explain("sum", (4096, 1000, 196), "float32", 1).plan
    assert (whole.algorithm, whole.chunk) == ("strided", 1000)
    assert onepass.explain("softmax", (4096, 100_000, 196), "float32", 1).plan.chunk < 100_000
    assert onepass.explain("sum", (100_000, 196), "float32", 0).plan.chunk < 100_000


@pytest.mark.parametrize("algorithm", ["row", "online"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_a_row_does_not_depend_on_those_beside_it(op, dtype, algorithm, threads, monkeypatch):
    """Its maximum is found beside the sum of the row or chunk before, its results are written a row or two later."""
    threads(1)
    longest = 8192 // np.dtype(DTYPES[dtype]).itemsize  # of log_softmax's rows that are written two later
    for length in (300, 1023, longest, longest + 1, thresholds.CHUNK, thresholds.CHUNK + 1, 2 * thresholds.CHUNK + 300):
        x = random_array((7, length), dtype, seed=length)
        x[1] = -np.inf
        x[2, length // 2] = np.inf
        x[3, length - 1] = np.nan
        x[4] *= 30
        x[5, ::2] = np.nan
        x[5, 1] = np.inf
        with monkeypatch.context() as within:
            within.setattr(cpu_plan, "NONTEMPORAL_BYTES", 1 << 40)
            alone = np.stack([call.plan_and_run(op, row, -1, False, None, None, algorithm) for row in x])
        expected = getattr(reference, op)(x[4], -1, dtype=np.longdouble)
        assert max_ulp(alone[4], expected, floor=FLOORS[op]) <= LIMITS[op, dtype], length
        for rows, past in itertools.product(range(1, 8), (1 << 40, 0)):
            monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", past)
            given = x[:rows].copy()
            for out in (nan_filled(alone[:rows].shape, x.dtype), *([] if op == "logsumexp" else [given])):
                call.plan_and_run(op, given, -1, False, None, out, algorithm)
                assert _engine.last_algorithm() == algorithm
                got, wanted = (values.astype(np.float64) for values in (out, alone[:rows]))  # any NaN is NaN
                np.testing.assert_array_equal(got, wanted, err_msg=f"{length} {rows} {past}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_unlike_the_one_before(dtype, threads):
    """Softmax takes a row to have its maximum about where the last one had it. Where it has not, nothing shows."""
    threads(1)
    places = (0, 40, 100, 95, 130, -80, -85, 0, -20, 600, 590, 0, -700, 3, 60_000, 1)
    for length in (700, thresholds.CHUNK + 1):
        x = (random_array((len(places), length), "float64", seed=length) + np.array(places)[:, None]).astype(
            DTYPES[dtype]
        )
        x[1, 3 * length // 4] += 50  # far above what comes first in its row
        alone = np.stack([call.plan_and_run("softmax", row, -1, False, None, None, "row") for row in x])
        expected = reference.softmax(x, -1, dtype=np.longdouble)
        assert max_ulp(alone, expected, floor=FLOORS["softmax"]) <= LIMITS["softmax", dtype], length
        for first in range(len(places)):
            out = nan_filled(alone[first:].shape, x.dtype)
            call.plan_and_run("softmax", x[first:], -1, False, None, out, "row")
            assert _engine.last_algorithm() == "row"
            np.testing.assert_array_equal(out, alone[first:], err_msg=f"{length} {first}")


def test_without_a_second_thread_no_row_is_split(threads):
    threads(1)
    assert onepass.explain("softmax", (1, 16_777_216)).plan.algorithm == "online"


@pytest.mark.parametrize("kind", KINDS)
def test_explain_foretells_what_runs(kind, threads):
    threads(2)
    for shape, dim in (((50, 8), -1), ((50, 1000), -1), ((2, 600_000), -1), ((700, 90), 0), ((5, 700, 3), 1)):
        x = as_kind(random_array(shape), kind)
        for op in SOFTMAX_FAMILY:
            getattr(onepass, op)(x, dim)
            assert _engine.last_algorithm() == onepass.explain(op, x, dim=dim).plan.algorithm, (op, shape)


def test_channels_last_reads_along_the_channels():
    """The dim that is last in memory is a row, wherever it is in the shape; the first dim of a transpose too."""
    x = np.moveaxis(random_array((4, 14, 14, 1000)), -1, 1)
    assert onepass.explain("sum", x, dim=1).plan.algorithm == "row"
    y = random_array((300, 1000)).T
    assert onepass.explain("sum", y, dim=0).plan.algorithm == "row"
    assert onepass.explain("sum", y, dim=1).plan.algorithm == "strided"


REFUSALS = [
    ("registers", (3, 100_000), -1, "more elements than the registers hold"),
    ("registers", (64, 100), 0, "columns"),
    ("strided", (3, 1000), -1, "nothing beside the reduced dim"),
    ("packed", (3, 1000), -1, "nothing beside the reduced dim"),
    ("packed", (64, 125), 0, "an inner dim past 124"),
    ("packed", (64, 33), 0, "a step for each lane, more vectors than a tile has"),
]


@pytest.mark.parametrize(("algorithm", "shape", "dim", "why"), REFUSALS, ids=[f"{r[0]}: {r[3]}" for r in REFUSALS])
def test_an_algorithm_that_cannot_serve_says_why(algorithm, shape, dim, why):
    x = random_array(shape)
    out = nan_filled(shape, "float32")
    with pytest.raises(ValueError, match=f"softmax.*{algorithm}") as error:
        onepass.softmax(x, dim, out=out, algorithm=algorithm)
    assert str(shape) in str(error.value)
    assert np.isnan(out).all()


def test_the_last_algorithm_is_that_of_this_thread():
    seen = []

    def other():
        onepass.softmax(random_array((4, 1000)), algorithm="online")
        seen.append(_engine.last_algorithm())

    onepass.softmax(random_array((4, 8)), algorithm="registers")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == ["online"]
    assert _engine.last_algorithm() == "registers"


def test_calls_by_any_algorithm_are_remembered():
    x = random_array((2, 3))
    problem = call.problem_of("softmax", x, None, -1)
    bound = call.bind(problem, plan.make_plan(problem, this_machine(), 1, None))
    for name in {*plan.ALGORITHMS, *cuda_plan.ALGORITHMS}:
        _engine.remember(0, x, -1, False, None, None, name, bound)
        assert same_bits(_engine.call(0, x, -1, False, None, None, name), onepass.softmax(x)), name
