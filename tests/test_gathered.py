"""Rows that no kernel reads where they lie: blocks of them are gathered, computed side by side and written back."""

import math
from dataclasses import replace

import numpy as np
import pytest
from gradient_cases import GRADIENTS, error_of
from gradient_cases import LIMITS as GRADIENT_LIMITS
from helpers import (
    DTYPES,
    ELEMENTWISE,
    FLOORS,
    LIMITS,
    REDUCTIONS,
    SOFTMAX_FAMILY,
    as_kind,
    nan_filled,
    nan_filled_past_a_line,
    random_array,
    same_bits,
    to_numpy,
    torch_dtype,
)
from hypothesis import given
from hypothesis import strategies as st
from ulp import max_ulp

import onepass
from onepass import _engine, reference
from onepass.call_gradients import checked
from onepass.cpu import cpu_plan
from onepass.cpu.plan import make_plan
from onepass.cpu.plan_gathered import _most_rows
from onepass.machine import Machine, this_machine
from onepass.problem import make_problem

ZEN = Machine("two cores of a Zen 4", "v4", 64, 32 << 10, 1 << 20, 32 << 20, 16 << 30, 2)
OPS = (*SOFTMAX_FAMILY, *REDUCTIONS)


def repeated(x, axis, size):
    return np.broadcast_to(np.take(x, [0], axis), (*x.shape[:axis], size, *x.shape[axis + 1 :]))


# Shape in memory, what is taken of it, dim; and what blocks of softmax are: columns, or rows.
VIEWS = {
    "a transpose, along rows": ((131, 257), lambda x: x.T, -1, "rows"),
    "a transpose, down columns": ((257, 131), lambda x: x.T, 0, "columns"),
    "channels last": ((3, 37, 11, 19), lambda x: np.moveaxis(x, -1, 1), 1, "columns"),
    "channels first, read last": ((3, 19, 37, 11), lambda x: np.moveaxis(x, 1, -1), -1, "rows"),
    "all dims in another order": ((7, 33, 5, 29), lambda x: x.transpose(2, 0, 3, 1), 2, "columns"),
    "a step": ((20, 25, 68), lambda x: x[..., ::2], 1, "columns"),
    "a step along rows": ((300, 200), lambda x: x[:, ::3], -1, "rows"),
    "every second, to the end of memory": ((130, 201), lambda x: x[:, ::2], -1, "rows"),
    "every second, down columns": ((9, 70, 402), lambda x: x[..., 1::2], 1, "columns"),
    "every third, to the end of memory": ((130, 301), lambda x: x[:, ::3], -1, "rows"),
    "every third, down columns": ((9, 64, 402), lambda x: x[..., 2::3], 1, "columns"),
    "every fourth, to the end of memory": ((130, 333), lambda x: x[:, ::4], -1, "rows"),
    "every fourth, down columns": ((9, 70, 402), lambda x: x[..., 1::4], 1, "columns"),
    "backwards": ((20, 25, 68), lambda x: x[::-1, ::-1, ::-1], 1, "columns"),
    "rows backwards": ((300, 100), lambda x: x[::-1, ::-1], -1, "rows"),
    "few side by side": ((30, 40, 9, 5), lambda x: x[..., :3], 1, "columns"),
    "two side by side": ((130, 17, 2, 9), lambda x: x.transpose(3, 1, 0, 2), 1, "columns"),
    "a broadcast dim": ((40, 9, 70), lambda x: repeated(x, 1, 13), 1, "columns"),
    "a broadcast beside": ((40, 13, 9), lambda x: repeated(x, 2, 70), 1, "columns"),
    "rows in groups": ((12, 301, 6), lambda x: x[:, :300], -1, "rows"),
    "rows in small groups": ((600, 4, 9), lambda x: x[:, :3], -1, "rows"),
    "rows with gaps": ((3000, 7), lambda x: x[:, 1:6], -1, "rows"),
    "interleaved rows in groups": ((20, 33, 7, 5), lambda x: x[:, :32], 2, "columns"),
    "two dims apart": ((12, 9, 20, 7), lambda x: x, (1, 3), "rows"),
    "two dims, one of them backwards": ((12, 19, 20, 7), lambda x: x[:, ::-1].swapaxes(1, 2), (2, 3), "rows"),
    "a dim of one": ((130, 1, 170), lambda x: x.T, 1, "columns"),
}


def view_of(name, dtype="float32", *, positive=False):
    shape, take, dim, _ = VIEWS[name]
    x = random_array(shape, dtype, 3.0)
    return take(np.abs(x) if positive else x), dim


def result_shape(op, x, dim):
    return getattr(reference, op)(np.zeros(x.shape), dim).shape


def gathered(call):
    """What the call returns, of which it is asserted how it came about."""
    result = call()
    assert _engine.last_form() == "gathered"
    return result


def is_gathered(op, x, dim):
    """Every view is there for softmax; plain reductions read some of them where they lie."""
    return bool(onepass.explain(op, x, dim=dim).plan.blocks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VIEWS)
def test_results(name, dtype):
    for op in OPS:
        x, dim = view_of(name, dtype, positive=op in ("sum", "mean"))  # whose sums have no term to round against
        out = nan_filled(result_shape(op, x, dim), x.dtype)
        getattr(onepass, op)(x, dim, out=out)
        plan = onepass.explain(op, x, dim=dim).plan
        assert (_engine.last_form() == "gathered") == bool(plan.blocks)
        assert _engine.last_algorithm() == plan.algorithm
        if op in ELEMENTWISE:
            assert plan.blocks, name
            assert (plan.algorithm == "strided") == (VIEWS[name][3] == "columns")
        expected = getattr(reference, op)(x, dim, dtype=np.longdouble)
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, dtype], op


def test_most_reductions_of_them_are_gathered_too():
    of_all = [is_gathered(op, *view_of(name)) for name in VIEWS for op in ("logsumexp", "sum", "amax")]
    assert sum(of_all) > len(of_all) // 2


@pytest.mark.parametrize(("dtype", "to"), [("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("shape", "dim"), [((700, 33), -1), ((30, 20, 40), 1), ((60, 20, 8), 1), ((33, 500), 0)])
def test_conversions(shape, dim, kind, dtype, to):
    """The rows of any of them are too short to be converted one by one."""
    x = random_array(shape, dtype)
    given = as_kind(x, kind)
    wanted = DTYPES[to] if kind == "numpy" else torch_dtype(to)
    for op in ELEMENTWISE:
        got = to_numpy(gathered(lambda op=op: getattr(onepass, op)(given, dim, dtype=wanted)))
        expected = getattr(reference, op)(x, dim, dtype=np.longdouble)
        assert got.dtype == DTYPES[to]
        assert max_ulp(got, expected, floor=FLOORS[op]) <= LIMITS[op, to]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("which", ["dy", "y", "both"])
@pytest.mark.parametrize("name", VIEWS)
def test_gradients(name, which, dtype):
    """Of what was saved, of what comes, or of both as the view has them; what is not is contiguous."""
    x, dim = view_of(name, dtype)
    for op in GRADIENTS:
        if op == "logsumexp_backward":
            lse = onepass.logsumexp(np.ascontiguousarray(x), dim)
            dy = random_array(lse.shape, dtype, seed=2)
            given = (dy, x, lse)
        else:
            y = onepass.softmax(np.ascontiguousarray(x), dim)
            dy = random_array(x.shape, dtype, seed=2)
            if op == "log_softmax_backward":
                y = onepass.log_softmax(np.ascontiguousarray(x), dim)
            given = (laid_like(dy, x) if which != "y" else dy, laid_like(y, x) if which != "dy" else y)
        out = nan_filled(x.shape, x.dtype)
        getattr(onepass, op)(*given, dim, out=out)
        dy, x_or_y, *lse = given
        problem = checked(op, (x_or_y, dy, *lse), dim, False, None, None)[1]
        assert (_engine.last_form() == "gathered") == bool(make_plan(problem, this_machine(), 2).blocks)
        assert error_of(op, out, given, dim) <= GRADIENT_LIMITS[op, dtype], op


def laid_like(values, x):
    """The same values in memory as x has it; those of a broadcast array once."""
    strides = [abs(s) for s in x.strides]
    order = sorted(range(x.ndim), key=lambda a: -strides[a])
    return np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))


@pytest.mark.parametrize("name", [name for name in VIEWS if "broadcast" not in name])
def test_in_place(name):
    """The result may be where the input is: a block is read before it is written."""
    for op in ELEMENTWISE:
        x, dim = view_of(name)
        expected = gathered(lambda op=op, x=x, dim=dim: getattr(onepass, op)(x, dim))
        assert getattr(onepass, op)(x, dim, out=x) is x
        assert max_ulp(x, expected) <= 2 * LIMITS[op, "float32"]


@pytest.mark.parametrize("name", VIEWS)
def test_any_number_of_threads(name, threads):
    for op in ("softmax", "logsumexp", "sum"):
        x, dim = view_of(name)
        results = []
        for n in (1, 2, 5):
            threads(n)
            results.append(getattr(onepass, op)(x, dim))
        assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("name", VIEWS)
def test_results_that_lie_apart(name):
    """An output with strides of its own; nothing beside it is written."""
    x, dim = view_of(name)
    for op in ELEMENTWISE:
        around = nan_filled((*(2 * size for size in x.shape[::-1]), 3), x.dtype)
        out = around[(*(slice(None, None, 2),) * x.ndim, 1)].T
        gathered(lambda op=op, out=out: getattr(onepass, op)(x, dim, out=out))
        expected = getattr(reference, op)(x, dim, dtype=np.longdouble)
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, "float32"]
        assert np.isnan(around).sum() == around.size - out.size


@pytest.mark.parametrize("name", VIEWS)
def test_reductions_that_lie_apart(name):
    """One result for a row, every second element of memory, in any order."""
    for op in (*REDUCTIONS, "logsumexp"):
        x, dim = view_of(name, positive=True)
        shape = result_shape(op, x, dim)
        around = nan_filled((*(2 * size for size in shape[::-1]), 3), x.dtype)
        out = around[(*(slice(None, None, 2),) * len(shape), 1)].T
        getattr(onepass, op)(x, dim, out=out)
        expected = getattr(reference, op)(x, dim, dtype=np.longdouble)
        assert max_ulp(out, expected, floor=FLOORS[op]) <= LIMITS[op, "float32"], op
        assert np.isnan(around).sum() == around.size - out.size


def test_a_few_short_rows_over_two_dims_and_results_apart():
    """What was chosen for results that follow each other was run for these: by AVX2 sums were wrong."""
    x = np.abs(random_array((2, 3, 10, 7)))[:, :, ::2]
    for op in (*REDUCTIONS, "logsumexp"):
        out = nan_filled((2, 10), x.dtype)
        getattr(onepass, op)(x, (1, 3), out=out[:, ::2])
        expected = getattr(reference, op)(x, (1, 3), dtype=np.longdouble)
        assert max_ulp(out[:, ::2], expected, floor=FLOORS[op]) <= LIMITS[op, "float32"], op
        assert np.isnan(out[:, 1::2]).all()


# Rows and columns of whole cache lines, of which results go past the cache, and others.
STORES = {
    "rows of lines": ((320, 256), lambda x: x.T, -1, True),
    "columns in lines": ((320, 256), lambda x: x.T, 0, True),
    "channels in lines": ((4, 16, 32, 24), lambda x: np.moveaxis(x, -1, 1), 1, True),
    "rows that end within lines": ((131, 257), lambda x: x.T, -1, False),
    "columns that end within lines": ((257, 131), lambda x: x.T, 0, False),
    "rows that lie apart in the result": ((8, 40, 64, 16), lambda x: x.transpose(3, 1, 2, 0), 2, False),
}


@pytest.mark.parametrize("name", STORES)
def test_stores_past_the_cache(name, monkeypatch):
    """The bits of those in it, wherever in a cache line the output begins; nothing beside it is written."""
    shape, take, dim, passes = STORES[name]
    x = take(random_array(shape))
    for op in ELEMENTWISE:
        expected = gathered(lambda op=op: getattr(onepass, op)(x, dim))
        monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", 1)
        _engine.forget_all()
        assert onepass.explain(op, x, dim=dim).plan.nontemporal == passes
        for first in (0, 1, 7):
            out, beside = nan_filled_past_a_line(x.shape, x.dtype, first)
            gathered(lambda op=op, out=out: getattr(onepass, op)(x, dim, out=out))
            assert same_bits(out, expected)
            assert all(np.isnan(memory).all() for memory in beside)
        monkeypatch.undo()
        _engine.forget_all()


def plan_of(op, x, dim, machine=ZEN, **options):
    shape, strides = x.shape, [s // x.itemsize for s in x.strides]
    dims = (dim % x.ndim,) if isinstance(dim, int) else dim
    return make_plan(make_problem(op, "float32", shape, dims, strides=strides, **options), machine, 2)


# What is read where it lies, and what is not though it nearly is: shape, what is taken of it, dim, the algorithm of
# softmax, whether its blocks are gathered, and a sum's.
BORDERS = [
    ((5000, 40), lambda x: x, -1, "registers", False, False),
    ((5000, 41), lambda x: x[:, :12], -1, "registers", False, False),  # with gaps
    ((5000, 41), lambda x: x[:, :11], -1, "registers", True, True),
    ((400, 4, 41), lambda x: x[:, :3, :20], -1, "registers", False, False),  # in small groups, with gaps
    ((400, 4, 41), lambda x: x[:, :3, :19], -1, "registers", True, True),
    ((40, 64, 32), lambda x: x[:, 1:], -1, "registers", False, True),  # in large groups
    ((40, 64, 31), lambda x: x[:, 1:], -1, "registers", True, True),
    ((40, 64, 80), lambda x: x[:, 1:], -1, "registers", False, False),
    ((40, 64, 79), lambda x: x[:, 1:], -1, "registers", False, True),
    ((50, 1024), lambda x: x[:, ::2], -1, "row", False, False),  # row by row
    ((50, 1022), lambda x: x[:, ::2], -1, "row", True, True),
    ((30, 40, 9, 17), lambda x: x[..., :16], 1, "strided", False, False),  # tiles beside others
    ((30, 40, 9, 17), lambda x: x[..., :15], 1, "strided", True, False),
    ((30, 40, 9, 17), lambda x: x[..., :6], 1, "strided", True, False),
    ((30, 40, 9, 17), lambda x: x[..., :5], 1, "strided", True, True),
    ((3000, 17), lambda x: x[:, :5], 0, "strided", False, False),  # nothing beside
    ((40, 33, 48, 4), lambda x: x[:, 1:], 2, "packed", False, False),
    ((40, 33, 47, 4), lambda x: x[:, 1:], 2, "strided", True, True),
    ((40, 33, 47, 4), lambda x: x, 2, "packed", False, False),
]


@pytest.mark.parametrize(("shape", "take", "dim", "algorithm", "softmax", "of_sum"), BORDERS)
def test_what_is_gathered(shape, take, dim, algorithm, softmax, of_sum):
    x = take(np.empty(shape, np.float32))
    plan = plan_of("softmax", x, dim)
    assert (plan.algorithm, bool(plan.blocks)) == (algorithm, softmax)
    assert bool(plan_of("sum", x, dim).blocks) == of_sum


def test_one_dy_for_a_row_of_a_tile():
    """It is repeated where whole lines of results are written, of what is computed with as it is; else gathered."""
    for dtype, columns, blocks in (
        ("float32", 256, False),
        ("float32", 240, True),
        ("float32", 257, True),
        ("bfloat16", 256, True),
    ):
        y = np.empty((50, 40, columns), DTYPES[dtype])
        problem = checked("softmax_backward", (y, np.broadcast_to(y[..., :1], y.shape)), 1, False, None, None)[1]
        assert bool(make_plan(problem, ZEN, 2).blocks) == blocks, (dtype, columns)


def test_one_that_is_asked_for_is_not_gathered():
    """Rows are then taken one by one, tiles row by row."""
    for name, algorithm in (("a transpose, along rows", "strided"), ("a step along rows", "row")):
        x, dim = view_of(name)
        assert is_gathered("softmax", x, dim)
        got = onepass.softmax(x, dim, algorithm=algorithm)
        assert (_engine.last_algorithm(), _engine.last_form()) == (algorithm, "usual")
        assert max_ulp(got, reference.softmax(x, dim, dtype=np.longdouble)) <= LIMITS["softmax", "float32"]


def test_blocks_that_no_cache_holds():
    """Rows so long that not even those of one vector fit, and what is done instead."""
    x = np.empty((1 << 20, 64), np.float32).T
    plan = plan_of("softmax", x, -1)
    assert (plan.algorithm, plan.blocks) == ("strided", ())
    assert plan_of("softmax", x[:, : 1 << 16], -1).blocks == (4,)
    assert plan_of("softmax", x[:, : 1 << 14], -1).blocks == (16,)
    assert plan_of("softmax", x[:, : 1 << 14], -1, replace(ZEN, l3_bytes=4 << 20)).blocks == ()
    assert plan_of("softmax", x[:, : 1 << 13], -1, replace(ZEN, l3_bytes=4 << 20)).blocks == (4,)


def test_blocks_share_pieces_of_memory():
    """256 bytes of what is read and of what is written, if there are enough blocks for all cores; else less."""
    x = np.empty((4096, 4096), np.float32).T
    assert plan_of("softmax", x, -1).blocks == (64,)
    images = np.empty((8, 64, 64, 100), np.float32).transpose(0, 3, 1, 2)
    assert plan_of("softmax", images, 1).blocks == (1, 64)
    few = np.empty((1000, 64), np.float32).T
    assert plan_of("softmax", few, -1).blocks == (32,)
    assert plan_of("softmax", few, -1, replace(ZEN, cores=8)).blocks == (8,)


@st.composite
def problems(draw):
    """Axes in any order, with gaps, backwards, and now and then not stored at all."""
    n = draw(st.integers(1, 5))
    shape = [draw(st.sampled_from((1, 2, 3, 5, 8, 17, 64, 100, 1000))) for _ in range(n)]
    strides, step = [0] * n, 1
    for axis in draw(st.permutations(range(n))):
        strides[axis] = step * draw(st.sampled_from((1, 1, 1, -1, 0)))
        step *= shape[axis] * draw(st.sampled_from((1, 1, 2)))
    op, dtype = draw(st.sampled_from(OPS)), draw(st.sampled_from(tuple(DTYPES)))
    dims = tuple(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=min(n, 2)))))
    to = draw(st.sampled_from(tuple(DTYPES))) if op in ELEMENTWISE else None
    return make_problem(op, dtype, tuple(shape), dims, strides=strides, result_dtype=to)


@given(problems(), st.sampled_from((1, 2, 64)))
def test_blocks_fit(problem, cores):
    """A cache holds a block; it has some rows along each axis; results go past the cache only as whole lines; what is
    planned is done by any number of threads."""
    machine = replace(ZEN, cores=cores)
    plan = make_plan(problem, machine, cores)
    if not plan.blocks:
        return
    assert plan.outer == problem.outer
    assert plan.reduce == problem.reduce
    assert all(1 <= block <= axis.size for block, axis in zip(plan.blocks, plan.outer, strict=True))
    line = 64 // onepass.problem.ITEMSIZE[problem.result_dtype]
    assert math.prod(plan.blocks) <= max(_most_rows(problem, machine), 1) * 1.25 + line
    assert plan.algorithm in ("registers", "row", "strided")
    assert not plan.split
    assert plan.blocks == make_plan(problem, machine, 1).blocks
    if plan.nontemporal:
        assert all(axis.y_stride == 1 or axis.y_stride % line == 0 for axis in (*plan.outer, *plan.reduce))


def test_a_plan_says_so():
    report = str(onepass.explain("softmax", np.empty((64, 56, 256), np.float32).transpose(2, 0, 1), dim=0))
    assert "gathered" in report
    assert "rows of 256 are gathered in a near cache, as columns side by side" in report
