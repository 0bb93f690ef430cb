"""The kernels that `install` puts in the place of torch's: onepass where it serves, torch's own kernel otherwise.

Those of softmax, log_softmax and their gradients are native (csrc/torch_routes.cpp): calls whose like has been planned
never see Python, which to torch is 2 us a call. What is here then serves the others: a first call, and torch's.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from .._engine import call as _call
from .._engine import call_data, call_gradient_memory, call_memory, can_route, native_routes, natively_served
from ..call import NUMBERS, run_planned
from ..call_gradients import run_planned as run_planned_gradient
from ..cuda.compile import CompileError
from .thresholds import torch_is_faster

_PLAIN = (Tensor, torch.nn.Parameter)
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_FLOAT = torch.float32
_BY_NUMBER = {6: torch.float32, 7: torch.float64, 5: torch.float16, 15: torch.bfloat16}  # c10::ScalarType
# keepdim, of which these operators have none: it keeps the engine's plans for routed calls apart from those for calls
# of onepass, so that who serves is a matter of thresholds.py and not of what was called before.
_ROUTED = True
# What run_planned says of arguments that onepass does not take: torch may, or has its own words for it.
_REFUSALS = (ValueError, TypeError)


class Count:
    """A number that threads may raise at once, by `next(count.up)`: one step of C, where `+= 1` is several."""

    def __init__(self) -> None:
        self.up = itertools.count()
        self._looks = 0
        self._lock = threading.Lock()

    def value(self) -> int:
        """How often it was raised. Looking raises it too, and is taken off again."""
        with self._lock:
            self._looks += 1
            return next(self.up) - self._looks + 1


class Route:
    """One operator on one dispatch key: its replacement, the kernel that was there, and who served how often."""

    def __init__(self, name: str, key: str, make: Callable[[Route], Callable[..., Any]], number: int | None) -> None:
        self.name = name
        self.key = key
        self.served = Count()
        self.passed = Count()
        kernel = torch.library.get_kernel(name, key)
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self._original: Callable[..., Any] = partial(kernel.call_boxed, keys)
        self.kernel = make(self)
        self.number = number  # of its native kernel, if there is one

    def original(self, *args: Any, **keywords: Any) -> Any:
        """What torch would do, counted."""
        next(self.passed.up)
        return self._original(*args, **keywords)

    def missed(self, tensors: tuple[Any, ...], dim: int, other: int) -> Any:
        """What the native kernel cannot serve: handles of tensors come in, and one goes out."""
        # Not the one that is called so for a single tensor: that steals nothing, and what it was given lives for ever.
        given = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(list(tensors))
        # A dtype that is none of onepass's goes to torch as the number that it is.
        last = bool(other) if len(tensors) == 1 else _BY_NUMBER.get(other, other)
        return torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(self.kernel(*given, dim, last))

    def counts(self) -> tuple[int, int]:
        """Calls that onepass served, and torch."""
        native = 0 if self.number is None else natively_served(self.number)
        return self.served.value() + native, self.passed.value()


def _memory(x: Tensor) -> Tensor:
    """A tensor of a subclass as a tensor: rules that a subclass may have are above the kernels."""
    return x if type(x) in _PLAIN else x.as_subclass(Tensor)


def _cold(op: str, x: Tensor, dim: Any, keepdim: bool, dtype: Any, out: Any, always: bool = False) -> Any:
    """The first call of its kind: None if it is torch's."""
    if type(x) not in _PLAIN or x.dtype not in _DTYPES or x.numel() == 0:
        return None
    if out is not None and (type(out) not in _PLAIN or out.shape != x.shape or out.dtype != (dtype or x.dtype)):
        return None
    dims = dim if isinstance(dim, tuple) else (dim,)
    limit = max(x.dim(), 1)
    if not dims or not all(-limit <= d < limit for d in dims):
        return None
    if not always and torch_is_faster(op, x, dims):
        return None
    return _planned(x, run_planned, op, x.detach(), dim, keepdim, dtype, out, None)


def _planned(x: Tensor, run: Callable[..., Any], *args: Any) -> Any:
    """Plan and run. None where there is no plan, or none can be made now."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # a kernel is not compiled and loaded inside of a CUDA graph
    try:
        return call_data(run, *args)
    except _REFUSALS:
        return None
    except (ImportError, CompileError) as error:
        _warn_of(str(error))
        return None


@cache
def _warn_of(reason: str) -> None:
    warnings.warn(f"onepass.install: torch's own kernels are used on GPUs: {reason}", stacklevel=2)


def _softmax(op: str) -> Callable[[Route], Callable[..., Any]]:
    number = NUMBERS[op]

    def make(route: Route) -> Callable[..., Any]:
        served = route.served.up

        def kernel(x: Tensor, dim: int, half_to_float: bool) -> Any:
            x = _memory(x)
            dtype = _FLOAT if half_to_float else None
            y = call_memory(number, x, dim, _ROUTED, dtype, None, None)
            if y is None:
                if half_to_float and not (x.is_cuda and x.dtype == torch.float16):
                    return route.original(x, dim, half_to_float)  # which says that it is wrong
                y = _cold(op, x, dim, _ROUTED, dtype, None)
                if y is None:
                    return route.original(x, dim, half_to_float)
            next(served)
            return y

        return kernel

    return make


def _softmax_out(op: str) -> Callable[[Route], Callable[..., Any]]:
    number = NUMBERS[op]

    def make(route: Route) -> Callable[..., Any]:
        served = route.served.up

        def kernel(x: Tensor, dim: int, half_to_float: bool, *, out: Tensor) -> Any:
            if half_to_float:
                return route.original(x, dim, half_to_float, out=out)
            y = call_memory(number, x, dim, _ROUTED, None, out, None)
            if y is None:
                y = _cold(op, x, dim, _ROUTED, None, out)
                if y is None:
                    return route.original(x, dim, half_to_float, out=out)
            next(served)
            return out

        return kernel

    return make


def _cold_gradient(op: str, grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype, out: Any) -> Any:
    if any(type(t) not in _PLAIN or t.dtype not in _DTYPES for t in (grad, output)) or output.numel() == 0:
        return None
    if grad.dtype != output.dtype or grad.shape != output.shape or dtype not in _DTYPES:
        return None
    if output.device.type == "cpu" and dtype != grad.dtype:  # there torch has its own idea of what that is
        return None
    limit = max(output.dim(), 1)
    if not -limit <= dim < limit or torch_is_faster(op, output, (dim,)):
        return None
    if out is not None and (type(out) not in _PLAIN or out.shape != output.shape or out.dtype != dtype):
        return None
    given = (output.detach(), grad.detach())
    return _planned(output, run_planned_gradient, op, given, dim, _ROUTED, dtype, out, None)


def _gradient(op: str) -> Callable[[Route], Callable[..., Any]]:
    number = NUMBERS[op]

    def make(route: Route) -> Callable[..., Any]:
        served = route.served.up

        def kernel(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Any:
            grad, output = _memory(grad), _memory(output)
            dx = call_gradient_memory(number, output, grad, None, dim, _ROUTED, dtype, None, None)
            if dx is None:
                dx = _cold_gradient(op, grad, output, dim, dtype, None)
                if dx is None:
                    return route.original(grad, output, dim, dtype)
            next(served)
            return dx

        return kernel

    return make


def _gradient_out(op: str, name: str) -> Callable[[Route], Callable[..., Any]]:
    number = NUMBERS[op]

    def make(route: Route) -> Callable[..., Any]:
        served = route.served.up

        def kernel(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype, **given: Tensor) -> Any:
            out = given[name]
            dx = call_gradient_memory(number, output, grad, None, dim, _ROUTED, dtype, out, None)
            if dx is None:
                dx = _cold_gradient(op, grad, output, dim, dtype, out)
                if dx is None:
                    return route.original(grad, output, dim, dtype, **given)
            next(served)
            return out

        return kernel

    return make


def _logsumexp(route: Route) -> Callable[..., Any]:
    number = NUMBERS["logsumexp"]
    served = route.served.up

    def kernel(x: Tensor, dim: list[int], keepdim: bool = False) -> Any:
        dims = tuple(dim)
        # x's own dtype, named, does here what _ROUTED does elsewhere.
        y = call_memory(number, x, dims, keepdim, x.dtype, None, None)
        if y is None:
            y = _cold("logsumexp", x, dims, keepdim, x.dtype, None)
            if y is None:
                return route.original(x, dim, keepdim)
        next(served)
        return y

    return kernel


def _safe_softmax(route: Route) -> Callable[..., Any]:
    """Rows of -inf only are 0: where the softmax is NaN and the largest element -inf."""
    served = route.served.up
    number = NUMBERS["softmax"]

    def kernel(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if x.numel() == 0:  # it has no first element to look at
            return route.original(x, dim, dtype)
        y = call_memory(number, x, dim, False, dtype, None, None)
        if y is None:
            y = _cold("softmax", x, dim, False, dtype, None, always=True)  # torch takes four passes more
            if y is None:
                return route.original(x, dim, dtype)
        next(served)
        if x.dim() == 0:
            return y.masked_fill_(x == -torch.inf, 0)
        # A row with one NaN is NaN throughout: its first element tells. On a GPU nobody looks: that would wait for it.
        if x.is_cuda or y.select(dim, 0).isnan().any():
            y.masked_fill_(call_data(_largest, x, dim) == -torch.inf, 0)
        return y

    return kernel


def _largest(x: Tensor, dim: int) -> Any:
    y = _call(NUMBERS["amax"], x, dim, True, None, None, None)
    return run_planned("amax", x.detach(), dim, True, None, None, None) if y is None else y


_MAKERS: dict[str, Callable[[Route], Callable[..., Any]]] = {
    "aten::_softmax": _softmax("softmax"),
    "aten::_softmax.out": _softmax_out("softmax"),
    "aten::_log_softmax": _softmax("log_softmax"),
    "aten::_log_softmax.out": _softmax_out("log_softmax"),
    "aten::logsumexp": _logsumexp,
    "aten::_safe_softmax": _safe_softmax,
    "aten::_softmax_backward_data": _gradient("softmax_backward"),
    "aten::_softmax_backward_data.out": _gradient_out("softmax_backward", "grad_input"),
    "aten::_log_softmax_backward_data": _gradient("log_softmax_backward"),
    "aten::_log_softmax_backward_data.out": _gradient_out("log_softmax_backward", "out"),
}


def make_routes() -> list[Route]:
    """A route for each operator and each kind of device that this torch was built for."""
    if not hasattr(torch.library, "get_kernel"):
        raise RuntimeError(f"install needs torch 2.10 or later, for library.get_kernel; this is {torch.__version__}")
    keys = ("CPU",) if torch.version.cuda is None else ("CPU", "CUDA")
    numbers = {route: number for number, route in enumerate(native_routes())} if can_route() else {}
    return [Route(name, key, make, numbers.get((name, key))) for key in keys for name, make in _MAKERS.items()]
