"""One input, one bit pattern: for any number of threads, run to run, in any batch, for both ways to cut a long row."""

import numpy as np
import pytest
from helpers import DTYPES, REDUCTIONS, SOFTMAX_FAMILY, nan_filled, random_array, same_bits

import onepass
from onepass import _engine, call

# (shape, dim): why
CASES = {
    "short rows, shared out": ((20_000, 33), -1),
    "rows in cache, shared out": ((129, 4099), -1),
    "fewer rows than threads": ((3, 150_001), -1),
    "one long row, cut up": ((1, 1_000_003), -1),
    "long rows, shared out": ((17, 200_003), -1),
    "columns": ((1000, 301), 0),
    "few columns of many steps": ((300_007, 5), 0),
    "a middle dim": ((6, 321, 77), 1),
    "everything": ((40, 50, 60), None),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_threads(case, dtype, threads):
    shape, dim = CASES[case]
    x = random_array(shape, dtype, sigma=5)
    for op in (*SOFTMAX_FAMILY, *REDUCTIONS):
        threads(1)
        expected = getattr(onepass, op)(x, dim)
        assert np.any(expected != 0)
        for n in (2, 3, 4, 7):
            threads(n)
            assert same_bits(getattr(onepass, op)(x, dim), expected), (op, n)


@pytest.mark.parametrize("case", CASES)
def test_run_to_run(case, threads):
    shape, dim = CASES[case]
    x = random_array(shape, "float32", sigma=5)
    threads(4)
    for op in (*SOFTMAX_FAMILY, "sum"):
        first = getattr(onepass, op)(x, dim)
        for _ in range(5):
            assert same_bits(getattr(onepass, op)(x, dim), first), op


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1_000_003), (3, 40_961), (2, 300), (2, 100), (2, 33)], ids=str)
@pytest.mark.parametrize("op", [*SOFTMAX_FAMILY, *REDUCTIONS])
def test_split_and_online_agree(op, shape, dtype, threads):
    """The chunks of a row have a fixed width and are merged in a fixed order, whoever sums them."""
    x = random_array(shape, dtype, sigma=5)

    def run(algorithm):
        out = nan_filled(x.shape if op in ("softmax", "log_softmax") else x.shape[:1], x.dtype)
        call.plan_and_run(op, x, -1, False, None, out, algorithm)
        assert _engine.last_algorithm() == algorithm
        assert not np.isnan(out).any()
        return out

    online = run("online")
    for n in (1, 2, 3, 7):
        threads(n)
        assert same_bits(run("split"), online), n


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [3, 5, 8, 12, 16, 33, 1000, 4099, 50_257, 300_001])
@pytest.mark.parametrize("op", [*SOFTMAX_FAMILY, "sum"])
def test_a_row_has_the_same_bits_in_any_batch(op, length, dtype, threads):
    """C27: the result of a row does not depend on how many rows there are, nor on where it starts."""
    rows = 400 if length < 100 else 40 if length < 100_000 else 12
    x = random_array((rows, length), dtype, sigma=3)
    together = getattr(onepass, op)(x)
    threads(4)
    for i in (0, 1, rows - 1):
        assert same_bits(getattr(onepass, op)(x[i]), together[i]), i
        assert same_bits(getattr(onepass, op)(x[i : i + 1]), together[i : i + 1]), i
    shifted = np.empty(length + 1, x.dtype)[1:]
    shifted[:] = x[2]
    assert same_bits(getattr(onepass, op)(shifted), together[2]), "an unaligned start"


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("case", CASES)
def test_in_place_and_out_have_the_bits_of_a_fresh_result(op, case):
    shape, dim = CASES[case]
    x = random_array(shape, "float32", sigma=3)
    fresh = getattr(onepass, op)(x, dim)
    out = np.full(shape, np.nan, np.float32)
    assert getattr(onepass, op)(x, dim, out=out) is out
    assert same_bits(out, fresh)
    assert getattr(onepass, op)(x, dim, out=x) is x
    assert same_bits(x, fresh)
