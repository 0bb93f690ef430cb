"""Gradients and tangents, of first and of every higher order.

One `autograd.Function` for each operation and for each of its gradients. Two ways lead to them:

- A call on a plain tensor that requires grad applies the Function at once, below its Python wrapper: about 3 us less
  than through the dispatcher and a Function with setup_context. Or a node in C++, where one was built (extension.py).
- The operators (operators.py) apply it as their kernel for the Autograd keys. To torch.func that is one more operator
  to differentiate level by level, so one Function serves autograd, forward mode, torch.func in any nesting, and
  compilers that trace it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import Function, forward_ad

from .. import _engine
from .._engine import call_memory
from ..call import NUMBERS
from . import data, operators
from .data import Dims

_below_autograd: Callable[[], AbstractContextManager[Any]] = torch._C._AutoDispatchBelowAutograd


def _sum(x: Tensor, dim: Dims) -> Tensor:
    """Along dim, which stays with size 1; of a scalar, itself."""
    return x if dim in ((), []) or x.dim() == 0 else x.sum(dim, keepdim=True)


def _beside(row: Tensor, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """One value for each row, broadcastable to the rows."""
    if keepdim:
        return row
    dims = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    for d in sorted(d % max(x.dim(), 1) for d in dims):
        row = row.unsqueeze(d) if x.dim() else row
    return row


def _list(x: Tensor, dim: Dims) -> list[int]:
    """dim as the operators have it."""
    if dim is None:
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _is_memory(dy: Tensor) -> bool:
    """Whether a gradient may be computed past the dispatcher: nobody will differentiate it, or sees it."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and _engine.is_plain(dy)


def _backward(op: str, dy: Tensor, y: Tensor, dim: Dims, dtype: torch.dtype) -> Tensor:
    """softmax_backward or log_softmax_backward."""
    if _is_memory(dy) and type(y) is Tensor:
        return data.gradient(op, y, dy, None, dim, False, dtype)
    dx: Tensor = getattr(operators, op)(dy, y, _list(y, dim), dtype)
    return dx


def _logsumexp_backward(dy: Tensor, x: Tensor, lse: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if _is_memory(dy) and type(x) in (Tensor, torch.nn.Parameter):
        return data.gradient("logsumexp_backward", x, dy, lse, dim, keepdim, x.dtype)
    return operators.logsumexp_backward(dy, x, lse, _list(x, dim), keepdim)


def _probabilities(x: Tensor, lse: Tensor) -> Tensor:
    """exp(x - lse), 0 in a row of -inf only."""
    return (x - lse.masked_fill(lse == -torch.inf, 0)).exp()


def _beneath(grad: bool, op: Any, *args: Any) -> Tensor:
    """op below a Function, with recording as it was before the Function switched it off: the next level of torch.func
    sees it."""
    with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(True), _below_autograd():
        result: Tensor = op(*args)
        return result


def _tangent(rule: Callable[..., Tensor]) -> Any:
    """`rule(ctx, saved, *tangents)` as a Function's jvp.

    torch switches forward mode off around a jvp, since what was saved carries this level's tangents. Levels further out
    are to be recorded though: so it is on here, and this level's tangents are taken off what was saved.
    """

    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        with forward_ad._set_fwd_grad_enabled(True):
            return rule(ctx, [torch.ops.aten._fw_primal(t, 0) for t in ctx.saved_tensors], *tangents)

    return staticmethod(jvp)


# The arguments of a Function are those of its operator, and `grad`: whether recording was on before the Function
# switched it off. Without it (None) a call is on plain tensors, at once, and `dim` is what a user wrote.


def _normalized(op: str) -> Any:
    """The forward of Softmax and LogSoftmax, which keep y: it is all that their rules need."""
    operator, number = operators.BY_NAME[op], NUMBERS[op]

    def forward(ctx: Any, x: Tensor, dim: Dims, dtype: Any, algorithm: str | None, grad: bool | None) -> Tensor:
        y: Tensor | None
        if grad is not None:
            y = _beneath(grad, operator, x, dim, dtype, algorithm)
            ctx.save_for_forward(y)
        else:
            # What data.forward tries first: a call that has been planned is spared its frame, 0.15 us of 5.
            y = call_memory(number, x, dim, False, dtype, None, algorithm)
            if y is None:
                y = data.forward(op, x, dim, False, dtype, None, algorithm)
        ctx.save_for_backward(y)
        ctx.dim, ctx.dtype = dim, x.dtype
        return y

    return staticmethod(forward)


def _gradient(ctx: Any, op: Any, dy: Tensor, y: Tensor, dim: Any, dtype: torch.dtype, grad: bool) -> Tensor:
    """The same for their gradients."""
    dx = _beneath(grad, op, dy, y, dim, dtype)
    ctx.save_for_backward(dy, y)
    ctx.save_for_forward(dy, y)
    ctx.dim, ctx.dtype = dim, dtype
    return dx


class Softmax(Function):
    """y = softmax(x). Its Jacobian is symmetric: tangents and gradients go through it alike."""

    forward = _normalized("softmax")

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return _backward("softmax_backward", dy, y, ctx.dim, ctx.dtype), None, None, None, None

    @_tangent
    def jvp(ctx: Any, saved: Any, x_t: Tensor, *_: Any) -> Tensor:
        (y,) = saved
        return operators.softmax_backward(x_t, y, _list(y, ctx.dim), y.dtype)


class LogSoftmax(Function):
    """y = log_softmax(x)."""

    forward = _normalized("log_softmax")

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return _backward("log_softmax_backward", dy, y, ctx.dim, ctx.dtype), None, None, None, None

    @_tangent
    def jvp(ctx: Any, saved: Any, x_t: Tensor, *_: Any) -> Tensor:
        (y,) = saved
        x_t = x_t.to(y.dtype)
        return x_t - _sum(x_t * y.exp(), ctx.dim)


class LogSumExp(Function):
    """lse = logsumexp(x)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dim: Dims, keepdim: bool, dtype: Any, algorithm: str | None, grad: bool | None
    ) -> Tensor:
        if grad is None:
            lse = data.forward("logsumexp", x, dim, keepdim, dtype, None, algorithm)
        else:
            lse = _beneath(grad, operators.logsumexp, x, dim, keepdim, dtype, algorithm)
            ctx.save_for_forward(x, lse)
        ctx.save_for_backward(x, lse)
        ctx.dim, ctx.keepdim = dim, keepdim
        return lse

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, lse = ctx.saved_tensors
        return _logsumexp_backward(dy, x, lse, ctx.dim, ctx.keepdim), None, None, None, None, None

    @_tangent
    def jvp(ctx: Any, saved: Any, x_t: Tensor, *_: Any) -> Tensor:
        x, lse = saved
        p = _probabilities(x, _beside(lse, x, ctx.dim, ctx.keepdim))
        lse_t = _sum(x_t * p, ctx.dim)
        return lse_t.reshape(lse.shape).to(lse.dtype)


class _SoftmaxGradient(Function):
    """dx = y * (dy - sum(dy * y)): linear and symmetric in dy, quadratic in y."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, y: Tensor, dim: Any, dtype: torch.dtype, grad: bool) -> Tensor:
        return _gradient(ctx, operators.softmax_backward, dy, y, dim, dtype, grad)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        dy, y = ctx.saved_tensors
        by_dy = _backward("softmax_backward", g, y, ctx.dim, dy.dtype) if ctx.needs_input_grad[0] else None
        by_y = None
        if ctx.needs_input_grad[1]:
            by_y = (g * (dy - _sum(dy * y, ctx.dim)) - dy * _sum(g * y, ctx.dim)).to(y.dtype)
        return by_dy, by_y, None, None, None

    @_tangent
    def jvp(ctx: Any, saved: Any, dy_t: Tensor | None, y_t: Tensor | None, *_: Any) -> Tensor:
        dy, y = saved
        dx_t = torch.zeros_like(y)
        if dy_t is not None:
            dx_t = dx_t + operators.softmax_backward(dy_t, y, _list(y, ctx.dim), y.dtype)
        if y_t is not None:
            dx_t = dx_t + y_t * (dy - _sum(dy * y, ctx.dim)) - y * _sum(dy * y_t, ctx.dim)
        return dx_t.to(ctx.dtype)


class _LogSoftmaxGradient(Function):
    """dx = dy - exp(y) * sum(dy)."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, y: Tensor, dim: Any, dtype: torch.dtype, grad: bool) -> Tensor:
        return _gradient(ctx, operators.log_softmax_backward, dy, y, dim, dtype, grad)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        dy, y = ctx.saved_tensors
        p = y.exp()
        by_dy = (g - _sum(g * p, ctx.dim)).to(dy.dtype) if ctx.needs_input_grad[0] else None
        by_y = (-g * p * _sum(dy, ctx.dim)).to(y.dtype) if ctx.needs_input_grad[1] else None
        return by_dy, by_y, None, None, None

    @_tangent
    def jvp(ctx: Any, saved: Any, dy_t: Tensor | None, y_t: Tensor | None, *_: Any) -> Tensor:
        dy, y = saved
        p = y.exp()
        dx_t = torch.zeros_like(y)
        if dy_t is not None:
            dx_t = dx_t + dy_t - p * _sum(dy_t, ctx.dim)
        if y_t is not None:
            dx_t = dx_t - p * y_t * _sum(dy, ctx.dim)
        return dx_t.to(ctx.dtype)


class _LogSumExpGradient(Function):
    """dx = dy * exp(x - lse)."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, x: Tensor, lse: Tensor, dim: Any, keepdim: bool, grad: bool) -> Tensor:
        dx = _beneath(grad, operators.logsumexp_backward, dy, x, lse, dim, keepdim)
        ctx.save_for_backward(dy, x, lse)
        ctx.save_for_forward(dy, x, lse)
        ctx.dim, ctx.keepdim = dim, keepdim
        return dx

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        dy, x, lse = ctx.saved_tensors
        row, p = _rows_of(ctx, dy, x, lse)
        by_dy = by_x = by_lse = None
        if ctx.needs_input_grad[0]:
            by_dy = _sum(g * p, ctx.dim).reshape(dy.shape).to(dy.dtype)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            by_x = g * row * p
            by_lse = -_sum(by_x, ctx.dim).reshape(lse.shape).to(lse.dtype)
            by_x = by_x.to(x.dtype)
        return by_dy, by_x, by_lse, None, None, None

    @_tangent
    def jvp(ctx: Any, saved: Any, dy_t: Tensor | None, x_t: Tensor | None, lse_t: Tensor | None, *_: Any) -> Tensor:
        dy, x, lse = saved
        row, p = _rows_of(ctx, dy, x, lse)
        dx_t = torch.zeros_like(x)
        if dy_t is not None:
            dx_t = dx_t + _beside(dy_t, x, ctx.dim, ctx.keepdim) * p
        if x_t is not None:
            dx_t = dx_t + row * p * x_t
        if lse_t is not None:
            dx_t = dx_t - row * p * _beside(lse_t, x, ctx.dim, ctx.keepdim)
        return dx_t.to(x.dtype)


def _rows_of(ctx: Any, dy: Tensor, x: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """dy beside the rows, and exp(x - lse)."""
    return _beside(dy, x, ctx.dim, ctx.keepdim), _probabilities(x, _beside(lse, x, ctx.dim, ctx.keepdim))


def _applied(function: type[Function]) -> Callable[..., Tensor]:
    """`function.apply` without its wrapper, which hands what it finds under torch.func to another mechanism."""
    apply: Callable[..., Tensor] = super(Function, function).apply
    return apply


def _autograd_kernel(op: Any, function: type[Function], defaults: tuple[Any, ...]) -> Callable[..., Tensor]:
    """What the dispatcher calls for `op` on the Autograd keys. It leaves out arguments that are equal to defaults."""
    apply = _applied(function)
    count = len(op._schema.arguments)

    def run(*args: Any) -> Tensor:
        args += defaults[len(defaults) - (count - len(args)) :] if len(args) < count else ()
        grad = torch.is_grad_enabled()
        # A replayed trace of torch.func enters dual levels past forward_ad.
        tangents = forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
        if tangents or (grad and torch._C._any_requires_grad(*args)):
            with enable_single_level_autograd_function():
                return apply(*args, grad)
        with _below_autograd():
            result: Tensor = op(*args)
            return result

    return run


for _name, _function, _defaults in (
    ("softmax", Softmax, (None, None)),
    ("log_softmax", LogSoftmax, (None, None)),
    ("logsumexp", LogSumExp, (False, None, None)),
    ("softmax_backward", _SoftmaxGradient, ()),
    ("log_softmax_backward", _LogSoftmaxGradient, ()),
    ("logsumexp_backward", _LogSumExpGradient, (False,)),
):
    operators.register(_name, _autograd_kernel(getattr(operators, _name), _function, _defaults), "Autograd")

_RECORDED: dict[str, tuple[type[Function], Callable[..., Tensor]]] = {
    "softmax": (Softmax, partial(_backward, "softmax_backward")),
    "log_softmax": (LogSoftmax, partial(_backward, "log_softmax_backward")),
    "logsumexp": (LogSumExp, _logsumexp_backward),
}  # by the engine's numbers


def recording(built: ModuleType | None) -> tuple[tuple[Callable[..., Tensor], ...], Any]:
    """How the engine records calls of plain tensors: the Functions that it applies, and, of the extension, what makes
    a result known to autograd instead."""
    functions = tuple(_applied(function) for function, _ in _RECORDED.values())
    if built is None:
        return functions, None
    attach = (
        built.attach_of(f"{function.__name__}Backward", op == "logsumexp", _engine, NUMBERS[f"{op}_backward"], backward)
        for op, (function, backward) in _RECORDED.items()
    )
    return functions, tuple(attach)
