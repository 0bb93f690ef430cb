"""The gradients, composed of torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor

Dims = int | tuple[int, ...] | None


def _sum(x: Tensor, dim: Dims) -> Tensor:
    return x if dim == () else x.sum(dim, keepdim=True)


def softmax_backward(dy: Tensor, y: Tensor, dim: Dims, dtype: torch.dtype) -> Tensor:
    """y * (dy - sum(dy * y))"""
    return ((dy - _sum(dy * y, dim)) * y).to(dtype).contiguous()


def log_softmax_backward(dy: Tensor, y: Tensor, dim: Dims, dtype: torch.dtype) -> Tensor:
    """dy - exp(y) * sum(dy)"""
    return (dy - y.exp() * _sum(dy, dim)).to(dtype).contiguous()


def logsumexp_backward(dy: Tensor, x: Tensor, lse: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    """dy * exp(x - lse); 0 in a row of -inf only."""
    if not keepdim and dim != ():
        for d in sorted(
            i % x.dim() for i in (range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim)
        ):
            dy, lse = dy.unsqueeze(d), lse.unsqueeze(d)
    return (dy * (x - lse.masked_fill(lse == -torch.inf, 0)).exp()).to(x.dtype).contiguous()
