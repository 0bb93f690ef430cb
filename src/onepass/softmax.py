"""softmax, log_softmax and logsumexp along any dim.

The algorithm is the online softmax of Milakov and Gimelshein (2018, "Online normalizer calculation for softmax"): a
row's maximum and its sum of exponentials come out of one pass, so a row that fits the cache crosses main memory once.
"""

from __future__ import annotations

from typing import Any

from ._engine import call as _call
from .call import plan_and_run
from .compiled import elementwise, reduction, traced_as
from .hot import tried_first
from .problem import UNSET, Dim, pick_dim

_SOFTMAX, _LOG_SOFTMAX, _LOGSUMEXP = 0, 1, 2  # the engine's numbers of these operations


@traced_as(elementwise("softmax"))
@tried_first(_SOFTMAX)
def softmax(
    x: Any,
    dim: Dim = -1,
    dtype: Any = None,
    *,
    out: Any = None,
    algorithm: str | None = None,
    axis: Any = UNSET,
) -> Any:
    """Exponentials of x divided by their sum along dim: exp(x) / sum(exp(x)), without overflow.

    >>> import numpy as np, onepass
    >>> x = np.log(np.array([[1.0, 2.0, 1.0], [3.0, 3.0, 6.0]]))
    >>> onepass.softmax(x).round(6)
    array([[0.25, 0.5 , 0.25],
           [0.25, 0.25, 0.5 ]])

    Parameters
    ----------
    x : array of any shape and strides, read in place
        NumPy array, torch tensor on a CPU or an NVIDIA GPU, CuPy or JAX array, another DLPack array on the CPU, or
        anything numpy.asarray takes. float32, float64, float16, bfloat16; NumPy integers become float64.
    dim : int, tuple of ints (jointly) or None (all); also called `axis`
    dtype : dtype of the result, that of x by default; converted in registers
    out : array for the result, of x's kind, the result's shape and dtype, any strides; may be x itself
    algorithm : instead of the planner's choice: "registers", "row", "online", "split", "strided" or "packed" on a CPU,
        "warp", "warp_smem", "block", "block_smem", "online", "block_uncached", "three_pass", "split", "stream",
        "cluster", "strided" or "strided_split" on a GPU

    Returns a new contiguous array of x's kind and shape, or out. A row with NaN or +inf, or of -inf only, is NaN.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError;
    onepass.cuda.CudaError where a GPU's driver refuses.

    Source: online softmax (Milakov and Gimelshein, 2018), with the row's exponent in place of its maximum.
    """
    if axis is not UNSET:
        dim = pick_dim("softmax", dim, axis)
    y = _call(_SOFTMAX, x, dim, False, dtype, out, algorithm)
    return plan_and_run("softmax", x, dim, False, dtype, out, algorithm) if y is None else y


@traced_as(elementwise("log_softmax"))
@tried_first(_LOG_SOFTMAX)
def log_softmax(
    x: Any,
    dim: Dim = -1,
    dtype: Any = None,
    *,
    out: Any = None,
    algorithm: str | None = None,
    axis: Any = UNSET,
) -> Any:
    """Logarithm of the softmax: x - logsumexp(x) along dim, accurate also where the softmax is 0.

    >>> import numpy as np, onepass
    >>> onepass.log_softmax(np.array([0.0, 1000.0]))
    array([-1000.,     0.])

    Parameters are those of softmax. Returns a new contiguous array of x's kind and shape, or out.
    A row with NaN or +inf, or of -inf only, is NaN.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: online softmax (Milakov and Gimelshein, 2018); logsumexp is kept in two parts, and sums in float64.
    """
    if axis is not UNSET:
        dim = pick_dim("log_softmax", dim, axis)
    y = _call(_LOG_SOFTMAX, x, dim, False, dtype, out, algorithm)
    return plan_and_run("log_softmax", x, dim, False, dtype, out, algorithm) if y is None else y


@traced_as(reduction("logsumexp"))
@tried_first(_LOGSUMEXP)
def logsumexp(
    x: Any,
    dim: Dim = -1,
    keepdim: bool = False,
    *,
    out: Any = None,
    algorithm: str | None = None,
    axis: Any = UNSET,
) -> Any:
    """Logarithm of the sum of exponentials of x along dim, read once.

    >>> import numpy as np, onepass
    >>> onepass.logsumexp(np.array([[0.0, 0.0], [100.0, 100.0]])).round(4)
    array([  0.6931, 100.6931])

    Parameters
    ----------
    x, dim, out, algorithm : as in softmax
    keepdim : keep the reduced dims, with size 1

    Returns an array of x's kind without dim. NaN where there is a NaN, +inf where there is a +inf, -inf for a row of
    -inf only or an empty one.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: online softmax (Milakov and Gimelshein, 2018).
    """
    if axis is not UNSET:
        dim = pick_dim("logsumexp", dim, axis)
    y = _call(_LOGSUMEXP, x, dim, keepdim, None, out, algorithm)
    return plan_and_run("logsumexp", x, dim, keepdim, None, out, algorithm) if y is None else y
