"""The operators under vmap: the batch becomes the first dim, and every dim that is named lies one further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..problem import normalize_dims
from . import operators


def _first(x: Tensor, batch: int | None, size: int) -> Tensor:
    """With the batch first; a tensor that has none is the same in each."""
    return x.expand(size, *x.shape) if batch is None else x.movedim(batch, 0)


def _shifted(name: str, dim: Sequence[int], x: Tensor) -> list[int]:
    """dim of what lies behind a batch, as dims of all of x. A scalar has no dim to name."""
    dims = normalize_dims(name, tuple(dim), tuple(x.shape[1:]))
    return [d + 1 for d in dims] if x.dim() > 1 else []


def _unary(name: str) -> Callable[..., tuple[Tensor, int]]:
    op = getattr(operators, name)

    def rule(info: Any, in_dims: Sequence[int | None], x: Tensor, dim: Sequence[int], *rest: Any) -> tuple[Tensor, int]:
        x = _first(x, in_dims[0], info.batch_size)
        return op(x, _shifted(name, dim, x), *rest), 0

    return rule


def _binary(name: str) -> Callable[..., tuple[Tensor, int]]:
    op = getattr(operators, name)

    def rule(
        info: Any, in_dims: Sequence[int | None], dy: Tensor, y: Tensor, dim: Sequence[int], *rest: Any
    ) -> tuple[Tensor, int]:
        dy, y = (_first(t, d, info.batch_size) for t, d in zip((dy, y), in_dims[:2], strict=True))
        return op(dy, y, _shifted(name, dim, y), *rest), 0

    return rule


def _logsumexp_backward(
    info: Any, in_dims: Sequence[int | None], dy: Tensor, x: Tensor, lse: Tensor, dim: Sequence[int], *rest: Any
) -> tuple[Tensor, int]:
    dy, x, lse = (_first(t, d, info.batch_size) for t, d in zip((dy, x, lse), in_dims[:3], strict=True))
    return operators.logsumexp_backward(dy, x, lse, _shifted("logsumexp_backward", dim, x), *rest), 0


for _name in ("softmax", "log_softmax", "logsumexp"):
    torch.library.register_vmap(f"onepass::{_name}", _unary(_name), lib=operators.library)
for _name in ("softmax_backward", "log_softmax_backward"):
    torch.library.register_vmap(f"onepass::{_name}", _binary(_name), lib=operators.library)
torch.library.register_vmap("onepass::logsumexp_backward", _logsumexp_backward, lib=operators.library)
