"""The operators `onepass::*`: what compilers, transforms and subclasses of tensors see of a call.

    >>> import torch, onepass.torch.operators
    >>> torch.ops.onepass.softmax(torch.zeros(2), 0)
    tensor([0.5000, 0.5000])

They are full operators: autograd and forward mode (gradients.py), vmap (batching.py), shapes without memory and the
rules of autocast (here). `torch.library.Library` defines them: `torch.library.custom_op` costs 9 us a call, and
`register_autograd` has tangents of zero and no torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arrays import DTYPES, SUPPORTED
from ..problem import normalize_dims, reduced_shape
from . import data

library = torch.library.Library("onepass", "DEF")  # kept: operators live as long as it does
_DEVICES = ("CPU", "CUDA")

library.define("softmax(Tensor x, int[1] dim, ScalarType? dtype=None, str? algorithm=None) -> Tensor")
library.define("log_softmax(Tensor x, int[1] dim, ScalarType? dtype=None, str? algorithm=None) -> Tensor")
library.define(
    "logsumexp(Tensor x, int[1] dim, bool keepdim=False, ScalarType? dtype=None, str? algorithm=None) -> Tensor"
)
library.define("softmax_backward(Tensor dy, Tensor y, int[1] dim, ScalarType dtype) -> Tensor")
library.define("log_softmax_backward(Tensor dy, Tensor y, int[1] dim, ScalarType dtype) -> Tensor")
library.define("logsumexp_backward(Tensor dy, Tensor x, Tensor lse, int[1] dim, bool keepdim=False) -> Tensor")

softmax = torch.ops.onepass.softmax.default
log_softmax = torch.ops.onepass.log_softmax.default
logsumexp = torch.ops.onepass.logsumexp.default
softmax_backward = torch.ops.onepass.softmax_backward.default
log_softmax_backward = torch.ops.onepass.log_softmax_backward.default
logsumexp_backward = torch.ops.onepass.logsumexp_backward.default

BY_NAME = {"softmax": softmax, "log_softmax": log_softmax, "logsumexp": logsumexp}


def register(name: str, function: Callable[..., Any], *keys: str) -> None:
    """Make `function` what the dispatcher calls for an operator on those keys."""
    for key in keys:
        library.impl(name, function, key)


# ---- on memory ----


def _normalized(op: str) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: Sequence[int], dtype: torch.dtype | None = None, algorithm: str | None = None) -> Tensor:
        return data.forward(op, x, tuple(dim), False, dtype, None, algorithm)

    return run


def _logsumexp(
    x: Tensor,
    dim: Sequence[int],
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    algorithm: str | None = None,
) -> Tensor:
    return data.forward("logsumexp", x, tuple(dim), keepdim, dtype, None, algorithm)


def _gradient(op: str) -> Callable[..., Tensor]:
    def run(dy: Tensor, y: Tensor, dim: Sequence[int], dtype: torch.dtype) -> Tensor:
        return data.gradient(op, y, dy, None, tuple(dim), False, dtype)

    return run


def _logsumexp_gradient(dy: Tensor, x: Tensor, lse: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    return data.gradient("logsumexp_backward", x, dy, lse, tuple(dim), keepdim, x.dtype)


for _name in ("softmax", "log_softmax"):
    register(_name, _normalized(_name), *_DEVICES)
    register(f"{_name}_backward", _gradient(f"{_name}_backward"), *_DEVICES)
register("logsumexp", _logsumexp, *_DEVICES)
register("logsumexp_backward", _logsumexp_gradient, *_DEVICES)


# ---- shapes without memory ----


def _check(op: str, dim: Sequence[int], **arrays: Tensor) -> tuple[int, ...]:
    """The dims of the last of these arrays, once all have dtypes that are computed."""
    for name, x in arrays.items():
        if str(x.dtype).removeprefix("torch.") not in DTYPES:
            raise TypeError(
                f"{op}: {name} of shape {tuple(x.shape)} has dtype {x.dtype}; expected {SUPPORTED}: convert with "
                f"{name}.to"
            )
    return normalize_dims(op, tuple(dim), tuple(x.shape))


def _check_shape(op: str, name: str, x: Tensor, shape: Sequence[int]) -> None:
    if list(x.shape) != list(shape):
        raise ValueError(f"{op}: {name} has shape {tuple(x.shape)}; expected {tuple(shape)}")


def _like(op: str) -> Callable[..., Tensor]:
    def fake(x: Tensor, dim: Sequence[int], dtype: torch.dtype | None = None, algorithm: str | None = None) -> Tensor:
        _check(op, dim, x=x)
        return x.new_empty(x.shape, dtype=dtype or x.dtype)

    return fake


def _gradient_like(op: str) -> Callable[..., Tensor]:
    def fake(dy: Tensor, y: Tensor, dim: Sequence[int], dtype: torch.dtype) -> Tensor:
        _check(op, dim, dy=dy, y=y)
        _check_shape(op, "dy", dy, y.shape)
        return y.new_empty(y.shape, dtype=dtype)

    return fake


def _reduced(
    x: Tensor,
    dim: Sequence[int],
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    algorithm: str | None = None,
) -> Tensor:
    dims = _check("logsumexp", dim, x=x)
    return x.new_empty(reduced_shape(tuple(x.shape), dims, keepdim), dtype=dtype or x.dtype)


def _x_like(dy: Tensor, x: Tensor, lse: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    op = "logsumexp_backward"
    dims = _check(op, dim, dy=dy, lse=lse, x=x)
    for name, per_row in (("dy", dy), ("lse", lse)):
        _check_shape(op, name, per_row, reduced_shape(tuple(x.shape), dims, keepdim))
    return x.new_empty(x.shape)


for _name, _fake in {
    "softmax": _like("softmax"),
    "log_softmax": _like("log_softmax"),
    "logsumexp": _reduced,
    "softmax_backward": _gradient_like("softmax_backward"),
    "log_softmax_backward": _gradient_like("log_softmax_backward"),
    "logsumexp_backward": _x_like,
}.items():
    torch.library.register_fake(f"onepass::{_name}", _fake, lib=library)


# ---- autocast ----


def wider(x: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype of a result under autocast: on a GPU float32 of 16-bit inputs unless one is named, as torch's own.

    torch's autocast on a CPU has no rule for softmax, log_softmax and logsumexp, and leaves them as they are.
    """
    if dtype is None and x.is_cuda and x.dtype.itemsize == 2 and torch.is_autocast_enabled("cuda"):
        return torch.float32
    return dtype


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def _autocast(op: Any) -> Callable[..., Tensor]:
    def run(x: Tensor, dim: Sequence[int], dtype: torch.dtype | None = None, algorithm: str | None = None) -> Tensor:
        dtype = wider(x, dtype)  # outside the guard: where the key is left out, autocast counts as off
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(x, dim, dtype, algorithm)

    return run


def _autocast_logsumexp(
    x: Tensor,
    dim: Sequence[int],
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    algorithm: str | None = None,
) -> Tensor:
    dtype = wider(x, dtype)
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return logsumexp(x, dim, keepdim, dtype, algorithm)


register("softmax", _autocast(softmax), "AutocastCUDA")
register("log_softmax", _autocast(log_softmax), "AutocastCUDA")
register("logsumexp", _autocast_logsumexp, "AutocastCUDA")

from . import batching, gradients  # noqa: E402, F401  they register their rules
