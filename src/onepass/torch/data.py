"""Tensors as memory alone: what runs where somebody above takes care of gradients, tangents and transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._engine import call_data, call_gradient_memory, call_memory
from ..call import NUMBERS, run_planned
from ..call_gradients import run_planned as run_planned_gradient

Dims = int | tuple[int, ...] | None


def forward(
    op: str, x: Tensor, dim: Dims, keepdim: bool, dtype: Any = None, out: Any = None, algorithm: str | None = None
) -> Tensor:
    """The result of an operation on a tensor's memory, without a gradient."""
    y = call_memory(NUMBERS[op], x, dim, keepdim, dtype, out, algorithm)
    if y is None:
        y = call_data(run_planned, op, x.detach(), dim, keepdim, dtype, out, algorithm)
    return y


def gradient(
    op: str, y: Tensor, dy: Tensor, lse: Tensor | None, dim: Dims, keepdim: bool, dtype: torch.dtype | None
) -> Tensor:
    """The same for softmax_backward, log_softmax_backward and, of x in place of y, logsumexp_backward."""
    dx = call_gradient_memory(NUMBERS[op], y, dy, lse, dim, keepdim, dtype, None, None)
    if dx is not None:
        return dx
    given = (y.detach(), dy.detach()) if lse is None else (y.detach(), dy.detach(), lse.detach())
    return call_data(run_planned_gradient, op, given, dim, keepdim, dtype, None, None)
