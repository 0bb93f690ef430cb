"""The cold path of every operation: arguments -> problem -> plan -> bound call. The hot path is the engine's `call`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

from . import _engine, arrays
from .cpu.cpu_plan import CpuPlan
from .cpu.plan import ALGORITHMS, make_plan
from .machine import this_machine
from .problem import (
    ELEMENTWISE,
    GRADIENTS,
    Axis,
    Operand,
    Problem,
    contiguous_strides,
    make_problem,
    normalize_dims,
    reduced_shape,
    spread_strides,
)

OPS = ("softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin")
NUMBERS = {op: number for number, op in enumerate((*OPS, *GRADIENTS))}  # the engine's Op


def bind(problem: Problem, plan: CpuPlan) -> _engine.Bound:
    """Hand a plan to the engine, once; calls then run it with addresses alone."""
    return _engine.bind(
        op=NUMBERS[problem.op],
        algorithm=ALGORITHMS.index(plan.algorithm),
        dtype=arrays.DTYPES.index(problem.dtype),
        second_dtype=arrays.DTYPES.index(problem.second_dtype or problem.dtype),
        third_dtype=arrays.DTYPES.index(problem.third_dtype or problem.dtype),
        result_dtype=arrays.DTYPES.index(problem.result_dtype),
        outer=[astuple(axis) for axis in plan.outer],
        reduce=[astuple(axis) for axis in plan.reduce],
        inner=astuple(plan.inner),
        blocks=list(plan.blocks),
        rows=_rows(plan),
        length=problem.length,
        chunk=plan.chunk,
        tile=plan.tile,
        resident=plan.resident,
        split=plan.split,
        nontemporal=plan.nontemporal,
        cached=plan.cached,
        threads=plan.threads,
        shape=list(problem.result_shape),
    )


def _rows(plan: CpuPlan) -> int:
    rows = 1
    for axis in plan.outer:
        rows *= axis.size
    return rows


_tensor_call: Callable[..., Any] | None = None


def plan_and_run(op: str, x: Any, dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None) -> Any:
    """What the engine has not seen yet or leaves alone: tensors that are more than their memory go to onepass.torch."""
    if arrays.is_tensor(x) and not _engine.is_plain(x):
        global _tensor_call
        if _tensor_call is None:
            from .torch.tensors import call

            _tensor_call = call
        return _tensor_call(op, x, dim, keepdim, dtype, out, algorithm)
    return run_planned(op, x, dim, keepdim, dtype, out, algorithm)


def forget_if_changed(threads: int) -> None:
    """Forget a plan for so many threads if another Python thread has set another number, and had all plans forgotten,
    before this one was remembered."""
    if threads != _engine.get_num_threads():
        _engine.forget_all()


def run_planned(op: str, x: Any, dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None) -> Any:
    """Check the arguments, plan, bind, run; the next call like this one takes the hot path."""
    target = arrays.unrecorded(out)
    source, problem = checked(op, x, dim, keepdim, dtype, target)
    threads = _engine.get_num_threads()
    if source.device is None:
        bound = bind(problem, make_plan(problem, this_machine(), threads, algorithm))
    else:
        from .cuda import launch

        bound = launch.bind(problem, source, target, launch.plan(problem, source, target, algorithm))
    if source.same_object:
        _engine.remember(NUMBERS[op], x, dim, bool(keepdim), dtype, out, algorithm, bound)
        forget_if_changed(threads)
    y = _engine.run(bound, source.array, target)
    return out if out is not None else source.wrap(y)


def checked(op: str, x: Any, dim: Any, keepdim: bool, dtype: Any, out: Any) -> tuple[arrays.Input, Problem]:
    """The array to read and the problem of a call, once its arguments are known to fit."""
    result_dtype = arrays.resolve_dtype(op, dtype)
    source = arrays.as_input(op, x, result_dtype)
    dims = normalize_dims(op, dim, source.shape)
    result_dtype = result_dtype or source.dtype
    if op in ("amax", "amin"):
        check_not_empty(op, source.shape, dims)
    result_strides = None
    if out is not None:
        shape = source.shape if op in ELEMENTWISE else reduced_shape(source.shape, dims, keepdim)
        result_strides = arrays.check_out(op, out, source, shape, result_dtype)
    problem = make_problem(
        op,
        source.dtype,
        source.shape,
        dims,
        strides=source.strides,
        result_dtype=result_dtype,
        keepdim=keepdim,
        result_strides=result_strides,
    )
    if problem.rows * problem.length == 0 and op in ELEMENTWISE:
        problem = nothing(problem)
    return source, problem


def nothing(problem: Problem) -> Problem:
    """An empty elementwise result: no row to visit."""
    return replace(problem, outer=(Axis(0, 0, 0),), reduce=())


def check_not_empty(op: str, shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    """An empty row has no largest and no smallest element."""
    if any(shape[d] == 0 for d in dims) and all(shape[i] for i in range(len(shape)) if i not in dims):
        raise ValueError(f"{op}: dim {dims} of an input of shape {shape} is empty, and there is no {op} of nothing")


def problem_of(op: str, x_or_shape: Any, dtype: Any, dim: Any) -> Problem:
    """The problem of a call on an array, or on a contiguous array of a given shape; of a gradient with dy laid out as
    y is, or contiguous where it has one value a row."""
    if op not in NUMBERS:
        raise ValueError(f"explain: unknown operation {op!r}; choose from {', '.join(NUMBERS)}")
    result_dtype = arrays.resolve_dtype(op, dtype)
    if isinstance(x_or_shape, (tuple, list)) and all(hasattr(n, "__index__") for n in x_or_shape):
        shape = tuple(n.__index__() for n in x_or_shape)
        if any(n < 0 for n in shape):
            raise ValueError(f"explain: shape {shape} has a negative size")
        source_dtype = result_dtype or "float32"
        strides = contiguous_strides(shape)
    else:
        source = arrays.as_input(op, x_or_shape, result_dtype)
        shape, strides, source_dtype = source.shape, source.strides, source.dtype
    dims = normalize_dims(op, dim, shape)
    if op in ("amax", "amin"):
        check_not_empty(op, shape, dims)
    second, third = operands_like(op, source_dtype, shape, strides, dims)
    return make_problem(
        op,
        source_dtype,
        shape,
        dims,
        strides=strides,
        result_dtype=result_dtype or source_dtype,
        second=second,
        third=third,
    )


def operands_like(
    op: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], dims: tuple[int, ...]
) -> tuple[Operand | None, Operand | None]:
    """What a gradient reads beside its first input: laid out as that is, or contiguous where it has one value a row."""
    if op == "logsumexp_backward":
        per_row = spread_strides(contiguous_strides(reduced_shape(shape, dims, False)), dims, len(shape))
        return Operand(dtype, per_row), Operand(dtype, per_row)
    return (Operand(dtype, strides), None) if op in GRADIENTS else (None, None)
