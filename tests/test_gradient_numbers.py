"""How right gradients are: against the float64 reference and torch's own error, at special values, and bit for bit."""

import numpy as np
import pytest
from gradient_cases import GRADIENTS, LIMITS, PAIRS, call, error_of, expected_of, inputs_of, torchs
from helpers import DTYPES, KINDS, as_kind, nan_filled, random_array, same_bits, to_numpy, to_torch
from hypothesis import given as examples
from hypothesis import strategies as st
from test_identity import CASES
from test_shapes import dims, layouts, shapes, tensor
from ulp import max_ulp, ulp_error

import onepass
from onepass import _engine, reference

SIGMAS = (0.1, 1.0, 10.0, 30.0)
TABLE_SHAPES = ((2000, 7), (1000, 33), (400, 100), (40, 1000), (10, 4099), (1, 70001))

# Largest error, one column for each sigma of x, in ULP of the terms (gradient_cases.py). Measured on AVX-512, AVX2 and
# SSE4.2, and rounded up.
TABLE = {
    **{(op, dtype): (0.51, 0.51, 0.51, 0.51) for op in GRADIENTS for dtype in ("float16", "bfloat16")},
    ("softmax_backward", "float32"): (2.5, 3, 4, 3),
    ("softmax_backward", "float64"): (2, 2, 3, 2.5),
    ("log_softmax_backward", "float32"): (2.5, 2.5, 2.1, 1.8),
    ("log_softmax_backward", "float64"): (2, 2, 2, 2),
    ("logsumexp_backward", "float32"): (2.4, 2.6, 2.6, 2.6),
    ("logsumexp_backward", "float64"): (3.2, 3.2, 3.2, 3.2),
}


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(("op", "dtype"), TABLE)
def test_error_is_within_the_table_and_not_above_torch(op, dtype, layout, sigma):
    ours = theirs = 0.0
    dim = 0 if layout == "columns" else -1
    for seed, shape in enumerate(TABLE_SHAPES):
        given = inputs_of(op, shape[::-1] if dim == 0 else shape, dtype, dim, sigma, seed)
        expected = expected_of(op, given, dim)
        ours = max(ours, error_of(op, call(op, given, dim), given, dim, expected))
        theirs = max(theirs, error_of(op, torchs(op, given, dim), given, dim, expected))
    assert ours <= TABLE[op, dtype][SIGMAS.index(sigma)]
    assert round(ours, 2) <= round(theirs, 2) + 0.01


# exp(-this) is the smallest normal number.
SUBNORMAL = {"float32": 87, "float64": 708}

# ---- special values ----

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 1e30, 1e-30)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "dim"), [((81, 2), -1), ((81, 40), -1), ((40, 81), 0), ((81, 5000), -1), ((9, 7, 81), 1)]
)
@pytest.mark.parametrize("op", PAIRS)
def test_special_values_are_as_the_formula_and_torch_have_them(op, shape, dim, kind):
    """Every special dy beside every special y, in a row of usual numbers."""
    dy, y = inputs_of(op, shape, "float32", dim)
    along_dy, along_y = (np.moveaxis(a, dim, -1).reshape(-1, a.shape[dim]) for a in (dy, y))
    rows = np.arange(81)
    along_dy[rows, rows % along_dy.shape[1]] = np.repeat(SPECIAL, 9).astype(np.float32)
    along_y[rows, rows % along_y.shape[1]] = np.tile(SPECIAL, 9).astype(np.float32)
    moved = np.moveaxis(dy, dim, -1).shape
    dy, y = (np.ascontiguousarray(np.moveaxis(a.reshape(moved), -1, dim)) for a in (along_dy, along_y))
    got = to_numpy(call(op, [as_kind(dy, kind), as_kind(y, kind)], dim))
    theirs = torchs(op, (dy, y), dim)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(theirs))
    infinite = np.isinf(got)
    np.testing.assert_array_equal(infinite, np.isinf(theirs))
    np.testing.assert_array_equal(got[infinite], theirs[infinite])
    assert np.isnan(got).any()
    assert np.isfinite(got).any()


@pytest.mark.parametrize("length", [7, 40])
def test_a_huge_sum_beside_an_exponential_out_of_reach(length):
    """Two columns of one vector, each far from usual: the first was NaN for the sake of the other."""
    dy, y = inputs_of("log_softmax_backward", (length, 16), "float32", 0)
    dy[2, 1], y[2, 1] = 1e30, -np.inf
    alone = call("log_softmax_backward", (dy, y), 0)
    y[2, 15] = 1e30
    got = call("log_softmax_backward", (dy, y), 0)
    assert got[2, 1] == np.float32(1e30)
    assert got[:, :15].tobytes() == alone[:, :15].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), [((4, 6), 1), ((4, 300), 1), ((4, 9001), 1), ((300, 4), 0), ((70, 40), 0)])
def test_a_row_of_minus_infinity_has_a_gradient_of_zero(shape, dim, dtype):
    """A mask has made it so: whatever dy is there, 0 and not NaN."""
    x = np.moveaxis(random_array(shape, dtype), dim, -1).copy()
    x[1], x[2, :3] = -np.inf, -np.inf
    x = np.ascontiguousarray(np.moveaxis(x, -1, dim))
    lse = onepass.logsumexp(x, dim)
    for value in (0.0, 1.0, np.inf, np.nan):
        dy = np.ones_like(lse)
        dy[1] = value
        for algorithm in (None, "row", "online", "split"):
            dx = np.moveaxis(onepass.logsumexp_backward(dy, x, lse, dim, algorithm=algorithm), dim, -1)
            assert (dx[1] == 0).all()
            assert (dx[2, :3] == 0).all()
            assert np.isfinite(dx).all()
    assert np.isfinite(onepass.softmax_backward(np.ones_like(x), np.zeros_like(x), dim)).all()


def test_other_rows_of_logsumexp_are_as_torch_has_them():
    inf, nan = np.inf, np.nan
    x = np.array([[1, inf, -inf], [nan, 1, -inf], [1, 2, 3], [1, 2, -inf]], np.float32).repeat(20, axis=1)
    lse = onepass.logsumexp(x)
    for value in (1.0, 0.0, inf, nan):
        dy = np.full_like(lse, value)
        np.testing.assert_allclose(
            onepass.logsumexp_backward(dy, x, lse), torchs("logsumexp_backward", (dy, x, lse), -1), rtol=1e-5
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [0.0, 600.0, -5000.0, 1e6, 1e30])
def test_any_lse(dtype, offset):
    """Also one that is no logsumexp of the row: far below its elements or far above."""
    x = random_array((7, 333), dtype, sigma=20) + DTYPES[dtype].type(offset)
    for above in (0, 30, 60, -60, 1000):
        lse = (np.max(x, axis=1) + DTYPES[dtype].type(above)).astype(dtype)
        for size in (1.0, 1e-25, 1e25, 0.0):
            dy = random_array((7,), dtype) * DTYPES[dtype].type(size)
            # Where dy is large, exponentials that are subnormal, and 0 soon after, show.
            given = dy, np.maximum(x, lse[:, None] - SUBNORMAL[dtype]) if size > 1 else x, lse
            got = onepass.logsumexp_backward(*given)
            assert error_of("logsumexp_backward", got, given, -1) <= LIMITS["logsumexp_backward", dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_that_are_none(dtype):
    """y of log_softmax_backward above 0, as no log_softmax is: exp all the same."""
    y = np.linspace(-120, 85, 6000).astype(dtype).reshape(4, 1500)
    dy = random_array(y.shape, dtype)
    got = onepass.log_softmax_backward(dy, y)
    assert error_of("log_softmax_backward", got, (dy, y), -1) <= LIMITS["log_softmax_backward", dtype]


@pytest.mark.parametrize("size", [1.0, 1e-10, 1e-18, 1e-25, 1e-37, 1e18, 1e30, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_any_size(dtype, size):
    """One-hot dy, as cross-entropy has it: exp(y) * sum stands alone, down to where it is subnormal."""
    y = onepass.log_softmax(random_array((40, 257), dtype, sigma=30))
    dy = np.zeros_like(y)
    dy[np.arange(40), np.arange(40)] = size
    for sign in (1, -1):
        got = onepass.log_softmax_backward(sign * dy, y)
        expected = expected_of("log_softmax_backward", (sign * dy, y), -1)
        alone = (dy == 0) & ((y > -SUBNORMAL[dtype]) | (size <= 1))
        assert max_ulp(got[alone], expected[alone]) <= 2.2
        assert max_ulp(got[dy != 0], expected[dy != 0], floor=size) <= 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_that_cancels(dtype):
    """y * (dy - sum) where dy is nearly the same everywhere: what remains is as right as the sum is."""
    y = onepass.softmax(random_array((50, 1000), dtype))
    dy = (1 + random_array((50, 1000), dtype) * 1e-3).astype(dtype)
    got = onepass.softmax_backward(dy, y)
    assert error_of("softmax_backward", got, (dy, y), -1) <= 2.5


# ---- bit for bit ----


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_threads_and_run_to_run(case, dtype, threads):
    shape, dim = CASES[case]
    for op in GRADIENTS:
        given = inputs_of(op, shape, dtype, dim, sigma=20)
        threads(1)
        expected = call(op, given, dim)
        assert np.any(expected != 0)
        for n in (2, 3, 7, 7):
            threads(n)
            assert same_bits(call(op, given, dim), expected), (op, n)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_columns_that_are_read_twice_by_any_number_of_threads(op, dtype, threads):
    """In chunks, though all of them are small enough for a cache."""
    shape = (7000, 301 if dtype == "float16" else 201)
    given = inputs_of(op, shape, dtype, 0, sigma=20)
    if onepass.explain(op, given[0], dim=0).plan.resident:
        pytest.skip("this machine's cache is larger than they are")
    threads(1)
    expected = call(op, given, 0)
    for n in (2, 3, 7):
        threads(n)
        assert onepass.explain(op, given[0], dim=0).plan.split
        assert same_bits(call(op, given, 0), expected), n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1_000_003), (3, 40_961), (2, 300)], ids=str)
@pytest.mark.parametrize("op", GRADIENTS)
def test_split_and_online_agree(op, shape, dtype, threads):
    given = inputs_of(op, shape, dtype, -1, sigma=20)
    online = call(op, given, algorithm="online")
    assert _engine.last_algorithm() == "online"
    for n in (1, 2, 3, 7):
        threads(n)
        assert same_bits(call(op, given, algorithm="split"), online), n
        assert _engine.last_algorithm() == "split"


@pytest.mark.parametrize(("shape", "dim"), [((3, 1000), -1), ((40, 33), -1), ((100, 77), 0)])
@pytest.mark.parametrize("op", GRADIENTS)
def test_where_a_result_lies_does_not_matter(op, shape, dim):
    """Heads and tails are cut elsewhere then: a lane must not depend on its neighbours, however special those are."""
    given = [a.copy() for a in inputs_of(op, shape, "float32", dim, sigma=25)]
    given[1][::2, ::7] += 60  # far above what a softmax has
    expected = None
    for offset in range(17):
        out = nan_filled(np.prod(shape) + 20, np.float32)[offset : offset + np.prod(shape)].reshape(shape)
        call(op, given, dim, out=out)
        expected = out if expected is None else expected
        assert same_bits(out, expected), offset


# ---- anything ----


@st.composite
def values_for(draw, layout, *, low, high):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layout.base[:] = rng.uniform(low, high, layout.base.size).astype(layout.base.dtype)
    return layout


@examples(data=st.data(), op=st.sampled_from(PAIRS), torch=st.booleans())
def test_any_shape_strides_and_dtypes(data, op, torch, count_example):
    shape, types = data.draw(shapes()), [data.draw(st.sampled_from(tuple(DTYPES))) for _ in range(3)]
    dim = data.draw(dims(len(shape)))
    low, high = (0, 1) if op == "softmax_backward" else (-30, 0)
    dy, y = (
        data.draw(values_for(data.draw(layouts(shape, DTYPES[t], negative=not torch, broadcast=True)), low=a, high=b))
        for t, a, b in ((types[0], -2, 2), (types[1], low, high))
    )
    out = data.draw(layouts(shape, DTYPES[types[2]], negative=not torch, broadcast=False))
    out.base[...], out.view[...] = 77, np.nan
    given = [tensor(dy), tensor(y)] if torch else [dy.view, y.view]
    expected = expected_of(op, (dy.view, y.view), dim)
    target = tensor(out) if torch else out.view
    call(op, given, dim, target.dtype, out=target)
    limit = max(LIMITS[op, t] for t in types)
    assert error_of(op, out.view, (dy.view, y.view), dim, expected) <= limit
    outside = np.ones(out.base.shape, bool)
    positions = np.arange(out.base.size)
    inside = np.ndarray(shape, positions.dtype, positions, 0) if out.view.size == 0 else _positions(out)
    outside[np.asarray(inside).reshape(-1).astype(int)[: out.view.size]] = False
    assert (out.base[outside] == 77).all(), "written outside of out"
    count_example("gradients")


def _positions(layout):
    """The index in the base of every element of the view."""
    index = np.arange(layout.base.size)
    first = (layout.view.ctypes.data - layout.base.ctypes.data) // layout.view.itemsize
    strides = [s // layout.view.itemsize * index.itemsize for s in layout.view.strides]
    return np.lib.stride_tricks.as_strided(index[first:], layout.view.shape, strides)


@examples(data=st.data(), dtype=st.sampled_from(tuple(DTYPES)))
def test_any_logsumexp(data, dtype, count_example):
    shape = data.draw(shapes())
    dim = data.draw(dims(len(shape)))
    x = data.draw(values_for(data.draw(layouts(shape, DTYPES[dtype], negative=True, broadcast=True)), low=-40, high=40))
    lse = np.asarray(onepass.logsumexp(x.view, dim))
    dy = np.asarray(random_array(lse.shape, dtype))
    got = onepass.logsumexp_backward(dy, x.view, lse, dim)
    assert error_of("logsumexp_backward", got, (dy, x.view, lse), dim) <= LIMITS["logsumexp_backward", dtype]
    count_example("gradients of logsumexp")


def test_the_measure_can_fail():
    given = inputs_of("softmax_backward", (5, 33), "float32", -1)
    right = onepass.softmax_backward(*given)
    left_out = right.copy()
    left_out[4, 32] = np.nan
    wrongs = (np.zeros_like(right), left_out, np.roll(right, 1, axis=1), right * np.float32(1 + 1e-5))
    for wrong in wrongs:
        assert error_of("softmax_backward", wrong, given, -1) > LIMITS["softmax_backward", "float32"]
    assert ulp_error(right, reference.softmax_backward(*given), floor=1e-3).max() < 10
    assert same_bits(to_numpy(to_torch(right)), right)
