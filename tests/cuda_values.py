"""What CUDA kernels are run on besides random numbers: special values and functors; and how wrong results may be."""

from dataclasses import replace

import numpy as np
from helpers import DTYPES, FLOORS
from simulator import Array
from ulp import max_ulp

from onepass import reference
from onepass.cuda.plan import Functor

# The largest error in ULP: of 16-bit results what rounding leaves, of others as measured, with room for other data.
LIMITS = {
    "softmax": {"float32": 5, "float64": 5},
    "log_softmax": {"float32": 2, "float64": 2},
    "logsumexp": {"float32": 1.5, "float64": 1.5},
    "sum": {"float32": 0.6, "float64": 0.6},
    "mean": {"float32": 1.5, "float64": 1.5},
    "amax": {"float32": 0, "float64": 0},
    "amin": {"float32": 0, "float64": 0},
}


def limit(case):
    result_dtype = next(name for name, dtype in DTYPES.items() if dtype == case.y_dtype)
    if case.op in ("amax", "amin") and case.x.dtype == case.y_dtype:
        return 0
    return LIMITS[case.op].get(result_dtype, 0.52) or 0.5


def with_specials(shape):
    """Rows with a NaN, with infinities, of nothing but -inf, of huge and of tiny numbers, of equal ones."""
    x = np.random.default_rng(1).standard_normal(shape)
    x[0, shape[1] // 2] = np.nan
    x[1, -1] = np.inf
    x[2, :-1] = -np.inf
    x[3] = -np.inf
    x[4, ::3] = 3e38
    x[5] = -3e38
    x[6] = x[6] * 1e30
    x[7] = x[7] * 1e-38
    x[8] = 0.1
    x[9, 1:] = -90
    x[10] = 700 + x[10]
    x[11, ::2] = -np.inf
    x[12] = -np.inf
    x[12, 3] = np.nan
    return x


SPECIAL_ROWS = 13


def in_steps(shape):
    """Rows of normal numbers, each a third of the row in turn far from the third before: blocks that share a row have
    maxima that are not huge and maxima that are, on either side of zero, and results below the normal numbers."""
    x = np.random.default_rng(2).standard_normal(shape)
    width = -(-shape[1] // 3)
    for row, offsets in enumerate(STEPS):
        x[row] += np.repeat(offsets, width)[: shape[1]]
    return x


STEPS = (
    (-90, 0, -95),
    (100, 12, 30),
    (450, 530, 500),
    (-600, -505, -520),
    (-505, -600, -560),
    (700, 640, 690),
    (-3e38, 515, 480),
    (2e4, 2e4 - 60, 1.99e4),
    (-2e4 - 50, -2e4, -2.01e4),
)


MASK = Functor("onepass::cuda::Masked", (0, 0, 0))
HALVED = Functor("onepass::cuda::Scaled", (0.5,))
SQUARED = Functor(
    "Squared",
    source="""struct Squared {
    template <class C> __device__ C operator()(C x, long long, long long) const { return x * x; }
};""",
)
SHIFTED = Functor(
    "Shifted",
    (0.25,),
    """struct Shifted {
    double by;
    template <class C> __device__ C operator()(C x, long long row, long long column) const {
        return x + static_cast<C>(by) * static_cast<C>(row) + static_cast<C>(column);
    }
};""",
)
FUNCTORS = ({"load": HALVED}, {"load": SQUARED, "store": SHIFTED}, {"load": MASK})


def functor_result(case):
    """The plan and the arrays of a launch of FUNCTORS on 6 rows; what it must give, and the floor of its error."""
    arrays, plan = case.arrays(), case.plan
    (dim,) = case.dims
    of_rows = np.moveaxis(case.x, dim, -1)
    x = of_rows.reshape(6, -1).astype(np.float64)
    keep = np.random.default_rng(4).random(x.shape) < 0.7
    keep[2] = False
    if "Masked" in case.plan.kernel:
        first = len(plan.words) - (6 if plan.shared_by else 3)
        words = (*plan.words[:first], 0, keep.shape[1], 1, *plan.words[first + 3 :])
        plan = replace(plan, words=words)
        arrays.append(Array(keep.astype(np.uint8), word=2 + first))
        x = np.where(keep, x, -np.inf)
    elif "Scaled" in case.plan.kernel:
        x = x * 0.5
    else:
        x = (x.astype(np.float32) ** 2).astype(np.float64)
    expected = getattr(reference, case.op)(x, 1, dtype=np.longdouble)
    if "Masked" in case.plan.kernel:
        expected[2] = 0 if case.op == "softmax" else -np.inf
    if "Shifted" in case.plan.kernel:
        rows = np.arange(6)
        expected += 0.25 * rows if expected.ndim == 1 else 0.25 * rows[:, None] + np.arange(x.shape[1])
    if expected.ndim == 1:
        expected = expected.reshape(of_rows.shape[:-1])
    else:
        expected = np.moveaxis(expected.reshape(of_rows.shape), -1, dim)
    # Of the size of what is added.
    return plan, arrays, expected, 4096.0 if "Shifted" in case.plan.kernel else FLOORS[case.op]


def check_results(machine, cases, grids):
    """Every case under each grid, and a schedule of its own."""
    for case in cases:
        for seed, grid in enumerate(grids):
            error = case.error(machine, grid=grid, seed=seed)
            assert error <= limit(case), (case.name, case.plan.kernel, grid, seed, error)


def check_special_values(machine, case):
    """Row by row: one that is lost in a NaN must not hide another."""
    y = case.run(machine, grid=6)
    for row, (got, expected) in enumerate(zip(y, case.reference(), strict=True)):
        error = max_ulp(got, expected, floor=FLOORS[case.op])
        assert error <= limit(case), (case.name, row, got, expected)


def check_functors(machine, launches):
    """Launches of FUNCTORS, on 6 rows."""
    for case in launches:
        plan, arrays, expected, floor = functor_result(case)
        _, y, *_ = machine.launch(plan, arrays, grid=plan.blocks(1, 6), seed=1)
        assert max_ulp(y, expected, floor=floor) <= limit(case), (case.name, y, expected)
