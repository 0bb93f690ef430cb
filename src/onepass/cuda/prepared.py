"""A call that is planned, compiled and bound by itself: with functors of yours, or with a plan held to a tuning."""

from __future__ import annotations

from typing import Any

from .. import _engine
from ..call import OPS, checked
from ..problem import Problem
from . import launch
from .kernel_plan import CudaPlan, Functor
from .tuning import Tuning


class Prepared:
    """Runs one operation on arrays of one layout: `prepared(x)` is a new result, `prepared(x, out)` writes into out."""

    def __init__(self, problem: Problem, plan: CudaPlan, bound: _engine.Bound, layouts: tuple[Any, Any], keep: Any):
        self.problem = problem
        self.plan = plan
        self.bound = bound
        self._layouts = layouts
        self._keep = keep  # arrays that functors point into

    def __call__(self, x: Any, out: Any = None) -> Any:
        if (_layout(x), _layout(out)) != self._layouts:
            raise ValueError(
                f"{self.problem.op}: prepared for an input of shape {self.problem.shape}, dtype {self.problem.dtype}, "
                f"{'with' if self._layouts[1] else 'without'} out=; x and out must have the kind, strides, alignment "
                "and GPU of those it was prepared with"
            )
        if out is not None and _engine.overlap(x, out) == "some":
            raise ValueError(f"{self.problem.op}: out overlaps x without being exactly x")
        return _engine.run(self.bound, x, out)


def prepare(
    op: str,
    x: Any,
    dim: Any = -1,
    keepdim: bool = False,
    dtype: Any = None,
    *,
    out: Any = None,
    algorithm: str | None = None,
    load: Functor | None = None,
    store: Functor | None = None,
    tuning: Tuning | None = None,
) -> Prepared:
    """Plan, compile and bind a call on an array on a GPU; nothing is computed yet.

    >>> run = onepass.cuda.prepare("softmax", x, load=Functor("onepass::cuda::Scaled", (0.125,)))  # doctest: +SKIP
    >>> y = run(x)  # the softmax of x / 8, in one pass  # doctest: +SKIP

    Parameters
    ----------
    op : "softmax", "log_softmax", "logsumexp", "sum", "mean", "amax" or "amin"
    x, dim, keepdim, dtype, out, algorithm : as in the operation. Calls may be made with other arrays of the same layout
    load, store : what each element passes on its way in, before anything is computed, and on its way out
    tuning : parameters of the plan to hold fixed

    Returns a Prepared: callable, with the `plan`.

    Raises what the operation raises; CompileError where a functor's text does not compile.
    """
    if op not in OPS:
        raise ValueError(f"prepare: unknown operation {op!r}; choose from {', '.join(OPS)}")
    source, problem = checked(op, x, dim, keepdim, dtype, out)
    if source.device is None or not source.same_object:
        raise ValueError(
            f"prepare: x of type {type(x).__name__} is not an array on an NVIDIA GPU that is read in place"
        )
    plan = launch.plan(problem, source, out, algorithm, load=load, store=store, tuning=tuning)
    bound = launch.bind(problem, source, out, plan)
    return Prepared(problem, plan, bound, (_layout(x), _layout(out)), (load, store))


def _layout(array: Any) -> Any:
    """What a bound plan depends on, of an array; None without one."""
    if array is None:
        return None
    described = _engine.describe(array)
    if described is None:
        return type(array)
    dtype, shape, strides, address, writable, _, device = described
    return type(array), dtype, shape, strides, address % 128, writable, device
