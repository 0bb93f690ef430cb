"""Calls with tensors that are more than their memory: what each is, and who serves it."""

from __future__ import annotations

from operator import index
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from .. import _engine
from .._engine import call_data
from ..arrays import DTYPES, SUPPORTED, make_tensors_by, resolve_dtype
from ..call import NUMBERS, OPS, check_not_empty, run_planned
from ..call_gradients import run_planned as gradients_on_memory
from ..problem import is_int, normalize_dims
from . import beside, data, extension, gradients, operators

_PLAIN = (Tensor, torch.nn.Parameter)
_TRACED = (FakeTensor, FunctionalTensor)  # stand for a plain tensor while something is traced
_DEVICES = ("cpu", "cuda", "meta")
_OPERATORS = tuple(operators.BY_NAME)
_WITH_DTYPE = ("softmax", "log_softmax")


def call(op: str, x: Any, dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None) -> Any:
    """softmax(x, ...) or another operation, of a tensor that the engine leaves alone."""
    if _engine.only_requires_grad(x):
        y = _engine.call(NUMBERS[op], x, dim, keepdim, dtype, out, algorithm)  # nobody had set the recorder before
        if y is not None:
            return y
    return _unusual(op, x, dim, keepdim, dtype, out, algorithm)


def _unrecorded(number: int, x: Tensor, dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None) -> Any:
    """The call of a plain tensor that requires grad while grad mode is off."""
    return data.forward(OPS[number], x, dim, keepdim, dtype, out, algorithm)


def _kept_dim(dim: Any) -> Any:
    """dim as ints that stay what they are until the backward pass; what is none, as it is, for those who refuse it."""
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    if not all(map(is_int, given)):
        return dim
    return tuple(map(index, dim)) if given is dim else index(dim)


def record_by(built: ModuleType | None, build: bool = True) -> None:
    """Calls of plain tensors that require grad are recorded by nodes of this extension, or by Functions; after many of
    these the extension is built, if it may be."""
    functions, attach = gradients.recording(built)
    if built is None and build and beside.is_wanted():
        functions = beside.counted(functions, _have_it_built)
    inference, transforming = torch.is_inference_mode_enabled, torch._C._are_functorch_transforms_active
    _engine.set_recorder(torch.is_grad_enabled, inference, transforming, _kept_dim, functions, _unrecorded, attach)


def _have_it_built() -> None:
    record_by(None, build=False)  # there is nothing more to count
    beside.build(use_extension)


def use_extension(built: ModuleType | None) -> None:
    """Results are made and recorded by this extension, or without one."""
    make_tensors_by(torch, built)
    record_by(built)


record_by(extension.load())


def _unusual(op: str, x: Any, dim: Any, keepdim: Any, dtype: Any, out: Any, algorithm: str | None) -> Any:
    keepdim = bool(keepdim)
    if not isinstance(x, Tensor) or has_torch_function_unary(x):
        return handle_torch_function(_public(op), (x,), x, **_keywords(op, dim, keepdim, dtype, out, algorithm))
    kind = type(x)
    if kind not in _PLAIN and not isinstance(x, _TRACED):
        if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
            return _by_torch(op, x, dim, keepdim, dtype, out, algorithm)
        x = x.as_subclass(Tensor)
        return _public(op)(x, **_keywords(op, dim, keepdim, dtype, out, algorithm))
    if x.is_nested and out is None:
        return _by_torch(op, x, dim, keepdim, dtype, out, algorithm)
    wanted = _torch_dtype(op, dtype)
    x = _floating(x, wanted)
    if not _is_strided(x) or x.device.type not in _DEVICES or _name(x.dtype) not in DTYPES:
        return run_planned(op, x.detach(), dim, keepdim, dtype, out, algorithm)  # says what is wrong with x
    dims = normalize_dims(op, dim, tuple(x.shape))
    if out is not None:
        return _into(op, x, dims, keepdim, wanted, out, algorithm)
    if op not in _OPERATORS:
        return _reduction(op, x, dims, keepdim, algorithm)
    return operator(op, x, dims, keepdim, wanted, algorithm)


def _is_strided(x: Tensor) -> bool:
    return x.layout == torch.strided and not x.is_nested and not x.is_quantized


def _floating(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Integers as what the result is to be."""
    integers = not (x.dtype.is_floating_point or x.dtype.is_complex or x.is_quantized)
    return x.to(dtype) if dtype is not None and integers else x


def call_gradient(
    op: str, given: tuple[Any, ...], dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None
) -> Any:
    """softmax_backward, log_softmax_backward or logsumexp_backward, of such tensors; as in call_gradients.py."""
    if has_torch_function(given):
        y, dy, *lse = given
        keywords = _keywords(op, dim, bool(keepdim), dtype, out, algorithm)
        return handle_torch_function(_public(op), given, dy, y, *lse, **keywords)
    if not all(isinstance(x, Tensor) for x in given):
        return gradients_on_memory(op, given, dim, keepdim, dtype, out, algorithm)  # says which is none
    memory = all(_engine.is_plain(x) or _engine.only_requires_grad(x) for x in given)
    if memory and not torch.is_grad_enabled():
        given = tuple(x.detach() for x in given)
        return call_data(gradients_on_memory, op, given, dim, keepdim, dtype, out, algorithm)
    if not all(map(_is_strided, given)):
        given = tuple(x.detach() for x in given)
        return gradients_on_memory(op, given, dim, keepdim, dtype, out, algorithm)  # says which, and what to pass
    return trace_gradient(op, given, normalize_dims(op, dim, tuple(given[0].shape)), keepdim, dtype, out, algorithm)


def trace_gradient(
    op: str,
    given: tuple[Any, ...],
    dims: tuple[int, ...],
    keepdim: bool,
    dtype: Any,
    out: Any,
    algorithm: str | None,
) -> Tensor:
    """The call of a gradient as the dispatcher sees it."""
    if algorithm is not None:
        raise ValueError(f"{op}: algorithm= is for plain tensors, of which nobody records or traces; leave it away")
    _refuse_recorded(op, out, given)
    y, dy, *lse = given
    dx: Tensor
    if lse:
        dx = operators.logsumexp_backward(dy, y, lse[0], dims, bool(keepdim))
    else:
        dx = getattr(operators, op)(dy, y, dims, _torch_dtype(op, dtype) or y.dtype)
    return dx if out is None else _copied(op, dx, out)


def trace(op: str, x: Any, dim: Any, keepdim: Any, dtype: Any, out: Any, algorithm: str | None) -> Any:
    """What torch.compile traces of a call: the operator, whose kernel for fake tensors checks the arguments."""
    if not isinstance(x, Tensor):
        return _untraced(op, x, **_keywords(op, dim, keepdim, dtype, out, algorithm))
    _refuse_recorded(op, out, (x,))
    dims, keepdim = traced_dims(op, x, dim), bool(keepdim)
    wanted = _torch_dtype(op, dtype)
    x = _floating(x, wanted)
    if op in _OPERATORS:
        y = operator(op, x, dims, keepdim, wanted, algorithm)
    elif _name(x.dtype) not in DTYPES:
        raise TypeError(f"{op}: x has dtype {x.dtype}; expected {SUPPORTED}: convert with x.to")
    else:
        y = getattr(torch, op)(x, dim=dims, keepdim=keepdim) if dims else x.clone()
    return y if out is None else _copied(op, y, out)


def traced_dims(op: str, x: Tensor, dim: Any) -> tuple[int, ...]:
    """dim as operators have it, who check its range."""
    if dim is None:
        return tuple(range(x.dim()))
    dims = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    if not all(map(is_int, dims)):
        raise TypeError(f"{op}: dim must be an int, a tuple of ints or None, got {dim!r}")
    return tuple(map(index, dims))


@torch.compiler.disable
def _untraced(op: str, x: Any, **keywords: Any) -> Any:
    return _public(op)(x, **keywords)


def operator(
    op: str, x: Tensor, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None, algorithm: str | None
) -> Tensor:
    """The call as the dispatcher sees it."""
    y: Tensor
    if op == "logsumexp":
        y = operators.logsumexp(x, dims, keepdim, dtype, algorithm)
    else:
        y = operators.BY_NAME[op](x, dims, dtype, algorithm)
    return y


def _into(
    op: str, x: Tensor, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None, out: Any, algorithm: str | None
) -> Tensor:
    _refuse_recorded(op, out, (x,))
    if _engine.is_plain(x.detach()) and type(x) in _PLAIN:
        return data.forward(op, x, dims, keepdim, dtype, out, algorithm)
    y = operator(op, x, dims, keepdim, dtype, algorithm) if op in _OPERATORS else _reduction(op, x, dims, keepdim, None)
    return _copied(op, y, out)


def _refuse_recorded(op: str, out: Any, given: tuple[Tensor, ...]) -> None:
    """out= where the call would be recorded, and what is no tensor."""
    if out is None:
        return
    if not isinstance(out, Tensor):
        raise TypeError(f"{op}: out must be a torch.Tensor, got {type(out).__module__}.{type(out).__name__}")
    for x in (out, *given) if torch.is_grad_enabled() else ():
        if x.requires_grad:
            which = "out" if x is out else f"an input of shape {tuple(x.shape)}"
            raise ValueError(
                f"{op}: out= has no gradient, and {which} requires grad; leave out= away, or call it under "
                "torch.no_grad()"
            )


def _copied(op: str, y: Tensor, out: Tensor) -> Tensor:
    if out.shape != y.shape:
        raise ValueError(f"{op}: out has shape {tuple(out.shape)}, the result has shape {tuple(y.shape)}")
    if out.dtype != y.dtype:
        raise TypeError(f"{op}: out has dtype {_name(out.dtype)}, the result has dtype {_name(y.dtype)}")
    written: Tensor = out.copy_(y)
    return written


def _reduction(op: str, x: Tensor, dims: tuple[int, ...], keepdim: bool, algorithm: str | None) -> Tensor:
    """sum, mean, amax and amin that somebody differentiates or traces are torch's own, formulas and all."""
    if op in ("amax", "amin"):
        check_not_empty(op, tuple(x.shape), dims)
    if not dims:
        return x.clone()
    result: Tensor = getattr(torch, op)(x, dim=dims, keepdim=keepdim)
    return result


def _by_torch(op: str, x: Tensor, dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None) -> Tensor:
    """A subclass with rules of its own (DTensor, a jagged tensor) has them for torch's operators."""
    dims = normalize_dims(op, dim, (1,) * x.dim())
    if out is not None or algorithm is not None or (op in _WITH_DTYPE and len(dims) != 1):
        raise TypeError(
            f"{op}: x is a {type(x).__module__}.{type(x).__name__}, which torch's own operators serve: along one dim, "
            f"without out= and algorithm=; got dim={dim!r}"
        )
    result: Tensor
    if op in _WITH_DTYPE:
        result = getattr(torch, op)(x, dims[0], dtype=_torch_dtype(op, dtype))
    else:
        result = getattr(torch, op)(x, dims, keepdim)
    return result


@torch._dynamo.assume_constant_result
def _torch_dtype(op: str, dtype: Any) -> torch.dtype | None:
    name = resolve_dtype(op, dtype)
    return None if name is None else getattr(torch, name)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _public(op: str) -> Any:
    import onepass

    return getattr(onepass, op)


def _keywords(op: str, dim: Any, keepdim: bool, dtype: Any, out: Any, algorithm: str | None) -> dict[str, Any]:
    """The arguments of a call after x, without those that have their default values."""
    given = {"dim": dim} if dim != -1 else {}
    for name, value, default in (
        ("keepdim", keepdim, False),
        ("dtype", dtype, None),
        ("out", out, None),
        ("algorithm", algorithm, None),
    ):
        if value is not default:
            given[name] = value
    return given
