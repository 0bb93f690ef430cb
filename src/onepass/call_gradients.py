"""The cold path of the gradients: as call.py, for operations that read two or three arrays."""

from __future__ import annotations

from typing import Any

from . import _engine, arrays
from .arrays import Input
from .call import NUMBERS, bind, forget_if_changed, nothing
from .cpu.plan import make_plan
from .machine import this_machine
from .problem import Operand, Problem, make_problem, normalize_dims, reduced_shape, spread_strides

# The arguments of each operation, the first the one that the result is like. dy and lse of logsumexp_backward have one
# value for each row.
ARGUMENTS = {
    "softmax_backward": ("y", "dy"),
    "log_softmax_backward": ("y", "dy"),
    "logsumexp_backward": ("x", "dy", "lse"),
}


def plan_and_run(
    op: str, given: tuple[Any, ...], dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None
) -> Any:
    """What the engine has not seen yet or leaves alone, as in call.py. `given`: arrays in the order of ARGUMENTS."""
    if any(arrays.is_tensor(x) and not _engine.is_plain(x) for x in given):
        from .torch.tensors import call_gradient

        return call_gradient(op, given, dim, keepdim, dtype, out, algorithm)
    return run_planned(op, given, dim, keepdim, dtype, out, algorithm)


def run_planned(
    op: str, given: tuple[Any, ...], dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None
) -> Any:
    """Check the arguments, plan, bind, run; the next call like this one takes the hot path."""
    target = arrays.unrecorded(out)
    inputs, problem = checked(op, given, dim, keepdim, dtype, target)
    first, others = inputs[0], inputs[1:]
    threads = _engine.get_num_threads()
    if first.device is None:
        bound = bind(problem, make_plan(problem, this_machine(), threads, algorithm))
    else:
        from .cuda import launch

        plan = launch.plan(problem, first, target, algorithm, beside=others)
        bound = launch.bind(problem, first, target, plan)
    if all(source.same_object for source in inputs):
        third = given[2] if len(given) > 2 else None
        _engine.remember_gradient(
            NUMBERS[op], given[0], given[1], third, dim, bool(keepdim), dtype, out, algorithm, bound
        )
        forget_if_changed(threads)
    dx = _engine.run(bound, first.array, target, *(other.array for other in others))
    return out if out is not None else first.wrap(dx)


def checked(
    op: str, given: tuple[Any, ...], dim: Any, keepdim: bool, dtype: Any, out: Any
) -> tuple[tuple[Input, ...], Problem]:
    """The arrays to read and the problem of a call, once its arguments are known to fit."""
    inputs = tuple(arrays.as_input(op, array, None, name) for array, name in zip(given, ARGUMENTS[op], strict=True))
    result_dtype = arrays.resolve_dtype(op, dtype)  # after them: operators are given that of an input
    first, others = inputs[0], inputs[1:]
    dims = normalize_dims(op, dim, first.shape)
    per_row = op == "logsumexp_backward"
    shape = reduced_shape(first.shape, dims, keepdim) if per_row else first.shape
    for other in others:
        _check_beside(op, first, other, shape)
    result_dtype = result_dtype or first.dtype
    result_strides = None
    if out is not None:
        result_strides = arrays.check_out(op, out, first, first.shape, result_dtype, others)
    operands = [
        Operand(other.dtype, spread_strides(other.strides, dims, len(first.shape)) if per_row else other.strides)
        for other in others
    ]
    problem = make_problem(
        op,
        first.dtype,
        first.shape,
        dims,
        strides=first.strides,
        result_dtype=result_dtype,
        result_strides=result_strides,
        second=operands[0],
        third=operands[1] if per_row else None,
    )
    return inputs, problem if problem.rows * problem.length else nothing(problem)


def _check_beside(op: str, first: Input, other: Input, shape: tuple[int, ...]) -> None:
    """An input that lies beside the first: of its kind, on its device, of the shape that belongs to it."""
    # On a GPU, libraries without DLPack's C exchange API have a stream of their own each.
    alike = other.is_tensor == first.is_tensor and (first.is_tensor or first.device is None)
    if type(other.array) is not type(first.array) and not alike:
        kinds = [f"{type(x.array).__module__}.{type(x.array).__name__}" for x in (first, other)]
        raise TypeError(f"{op}: {other.name} must be a {kinds[0]} like {first.name}, got {kinds[1]}")
    if other.device != first.device:
        places = ["the CPU" if x.device is None else f"cuda:{x.device}" for x in (first, other)]
        raise ValueError(
            f"{op}: {other.name} is on {places[1]}, {first.name} on {places[0]}; they must be on one device"
        )
    if other.shape != shape:
        raise ValueError(
            f"{op}: {other.name} has shape {other.shape}; expected {shape} beside {first.name} of shape {first.shape}"
            f"{': broadcast it, which copies nothing' if op != 'logsumexp_backward' else ': see dim and keepdim'}"
        )
