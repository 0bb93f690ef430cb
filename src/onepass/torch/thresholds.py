"""What install leaves to torch because onepass would not be faster."""

from __future__ import annotations

from torch import Tensor


def torch_is_faster(op: str, x: Tensor, dims: tuple[int, ...]) -> bool:
    return False
