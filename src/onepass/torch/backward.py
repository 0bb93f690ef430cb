"""The gradients on GPUs, composed of torch's operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def composed(op: str, y: Tensor, dy: Tensor, lse: Tensor | None, dim: Any, keepdim: bool, dtype: Any) -> Tensor:
    """softmax_backward, log_softmax_backward or, of x in place of y, logsumexp_backward."""
    with torch.no_grad():
        dims = tuple(range(y.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        dims = tuple(sorted(d % y.dim() for d in dims)) if y.dim() else ()
        wide = torch.promote_types(torch.promote_types(y.dtype, dy.dtype), torch.float32)
        y, dy = y.to(wide), dy.to(wide)
        if lse is not None:
            for d in () if keepdim else dims:
                dy, lse = dy.unsqueeze(d), lse.unsqueeze(d)
            dx = dy * (y - lse.masked_fill(lse == -torch.inf, 0)).exp()
        elif op == "softmax_backward":
            dx = y * (dy - (dy * y).sum(dims, keepdim=True)) if dims else torch.zeros_like(y)
        else:
            dx = dy - y.exp() * dy.sum(dims, keepdim=True) if dims else torch.zeros_like(y)
        return dx.to(dtype).contiguous()
