"""Tensors as memory alone: what runs where somebody above takes care of gradients, tangents and transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._engine import call as _call
from .._engine import call_data
from ..call import NUMBERS, run_planned
from . import backward

Dims = int | tuple[int, ...] | None


def forward(
    op: str, x: Tensor, dim: Dims, keepdim: bool, dtype: Any = None, out: Any = None, algorithm: str | None = None
) -> Tensor:
    """The result of an operation on a tensor's memory, without a gradient."""
    y = call_data(_call, NUMBERS[op], x, dim, keepdim, dtype, out, algorithm)
    if y is None:
        y = call_data(run_planned, op, x.detach(), dim, keepdim, dtype, out, algorithm)
    return y


def gradient(
    op: str, y: Tensor, dy: Tensor, lse: Tensor | None, dim: Dims, keepdim: bool, dtype: torch.dtype
) -> Tensor:
    """The same for softmax_backward, log_softmax_backward and, of x instead of y, logsumexp_backward."""
    with torch.no_grad():
        if lse is not None:
            return backward.logsumexp_backward(dy, y, lse, dim, keepdim)
        return getattr(backward, op)(dy, y, dim, dtype)
