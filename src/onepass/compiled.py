"""What torch.compile traces in place of the public functions: their hot path is C++, into which it does not look.

Importing this imports no torch: whoever traces has done so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .problem import UNSET, pick_dim

Function = TypeVar("Function", bound=Callable[..., Any])


def traced_as(replacement: Callable[..., Any]) -> Callable[[Function], Function]:
    """Name what torch.compile is to trace instead of a function."""

    def mark(function: Function) -> Function:
        function._torchdynamo_inline = replacement  # type: ignore[attr-defined]
        return function

    return mark


def elementwise(op: str) -> Callable[..., Any]:
    """softmax or log_softmax, for a tracer."""

    def traced(
        x: Any, dim: Any = -1, dtype: Any = None, *, out: Any = None, algorithm: Any = None, axis: Any = UNSET
    ) -> Any:
        from .torch.tensors import trace

        return trace(op, x, pick_dim(op, dim, axis), False, dtype, out, algorithm)

    return traced


def reduction(op: str) -> Callable[..., Any]:
    """logsumexp, sum, mean, amax or amin, for a tracer."""

    def traced(
        x: Any, dim: Any = -1, keepdim: bool = False, *, out: Any = None, algorithm: Any = None, axis: Any = UNSET
    ) -> Any:
        from .torch.tensors import trace

        return trace(op, x, pick_dim(op, dim, axis), keepdim, None, out, algorithm)

    return traced


def gradient(op: str) -> Callable[..., Any]:
    """softmax_backward or log_softmax_backward, for a tracer."""

    def traced(dy: Any, y: Any, dim: Any = -1, dtype: Any = None, *, out: Any = None, algorithm: Any = None) -> Any:
        from .torch.tensors import trace_gradient, traced_dims

        return trace_gradient(op, (y, dy), traced_dims(op, y, dim), False, dtype, out, algorithm)

    return traced


def logsumexp_gradient(
    dy: Any, x: Any, lse: Any, dim: Any = -1, keepdim: bool = False, *, out: Any = None, algorithm: Any = None
) -> Any:
    """logsumexp_backward, for a tracer."""
    from .torch.tensors import trace_gradient, traced_dims

    op = "logsumexp_backward"
    return trace_gradient(op, (x, dy, lse), traced_dims(op, x, dim), keepdim, None, out, algorithm)
