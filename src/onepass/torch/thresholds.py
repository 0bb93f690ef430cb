"""What install leaves to torch because onepass would not be faster.

Measured on one core of a 2.8 GHz Ice Lake server, torch 2.13, 2 MiB tensors [rows, length, inner] along dim 1, both
libraries through torch's operators; the figures are how many times as fast onepass is. Along the last dim no cell was
found where torch gains more than the call to it costs; along others torch copies what is not contiguous. On an H200
torch is ahead on log_softmax of 65536 x 197, 1.13x and 1.15x, and on no other of 321 shapes of what is routed by more
than a thousandth (benchmarks/results/h200): nothing goes to torch there.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

# From this many elements on, what a better kernel saves is more than the 4 us that the way to torch's takes.
_LEAST_ELEMENTS = 1 << 14
# Inner sizes: vectors that hold several steps; tiles of less than a cache line's worth of columns; others.
_PACKED, _NARROW = 8, 64

# The least length of dim that onepass serves: (packed, narrow, wide).
_LEAST_LENGTH = {
    # length 2: 0.2x to 0.8x; 4 x 16: 0.56x; 8 x 2: 1.0x, 8 x 16: 0.65x, 8 x 64: 1.0x; 32 x 16: 0.74x, 64 x 16: 1.0x
    "softmax": (8, 64, 8),
    # length 4: 0.5x to 0.7x; 8 x 4: 0.86x, 16 x 4: 1.4x; 32 x 32: 0.77x to 1.1x; 8 x 64: 0.74x, 16 x 64: 1.1x
    "log_softmax": (16, 64, 16),
    # length 4: 0.3x to 0.9x; 8 x 2: 1.0x, 8 x 4096: 0.94x; 16: 1.05x to 2.5x
    "logsumexp": (8, 8, 8),
    # length 4: 0.2x to 0.5x; 32 x 2: 2.4x, 32 x 4: 0.8x; 64 x 16: 0.57x, 64 x 4096: 0.75x to 0.95x
    "softmax_backward": (32, 128, 128),
    "log_softmax_backward": (32, 128, 128),
}
# The same for float64, where it is another. log_softmax 32 x 4: 1.1x, 32 x 16: 0.4x, 64 x 64: 0.8x.
_LEAST_LENGTH_FLOAT64 = {"softmax": (8, 16, 8), "log_softmax": (32, 128, 128)}


def torch_is_faster(op: str, x: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether a call goes to torch's kernel."""
    if x.is_cuda or len(dims) != 1 or x.numel() < _LEAST_ELEMENTS or not x.is_contiguous():
        return False
    return _is_short(op, x.dtype, x.shape, dims[0])


@lru_cache(maxsize=4096)
def _is_short(op: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> bool:
    inner = math.prod(shape[dim % len(shape) + 1 :])
    if inner == 1:
        return False
    least = _LEAST_LENGTH_FLOAT64.get(op) if dtype == torch.float64 else None
    packed, narrow, wide = least or _LEAST_LENGTH[op]
    return shape[dim] < (packed if inner <= _PACKED else narrow if inner < _NARROW else wide)
