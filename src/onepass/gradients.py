"""Gradients of softmax, log_softmax and logsumexp along any dim, from their results.

dy is the gradient of something by the result; what comes back is its gradient by the input. A row's sum comes out of
one pass over dy and y and its results out of a second, so a row that fits the cache crosses main memory once.
"""

from __future__ import annotations

from typing import Any

from ._engine import call_gradient as _call
from .compiled import gradient, logsumexp_gradient, traced_as
from .problem import Dim

_SOFTMAX, _LOG_SOFTMAX, _LOGSUMEXP = 7, 8, 9  # the engine's numbers of these operations


@traced_as(gradient("softmax_backward"))
def softmax_backward(
    dy: Any, y: Any, dim: Dim = -1, dtype: Any = None, *, out: Any = None, algorithm: str | None = None
) -> Any:
    """Gradient by x of y = softmax(x): y * (dy - sum(dy * y)), the sum along dim.

    >>> import numpy as np, onepass
    >>> y = onepass.softmax(np.array([0.0, 0.0, -np.inf]))
    >>> onepass.softmax_backward(np.array([1.0, 0.0, 1.0]), y)
    array([ 0.25, -0.25,  0.  ])

    Parameters
    ----------
    dy, y : arrays of one shape and kind, read in place: NumPy, torch on a CPU or an NVIDIA GPU, CuPy, JAX, anything
        numpy.asarray takes. Any strides (a broadcast dy is not copied); float32, float64, float16, bfloat16, which may
        differ
    dim : int, tuple of ints (jointly) or None (all): that of the softmax
    dtype : dtype of the result, that of y by default: the dtype of x where softmax was given another one
    out : array for the result, of y's kind and shape, any strides; may be dy or y itself
    algorithm : instead of the planner's choice: "registers", "row", "online", "split", "strided" or "packed" on a CPU,
        "warp", "warp_smem", "block", "block_smem", "block_uncached", "split", "stream", "cluster", "strided" or
        "strided_split" on a GPU

    Returns a new contiguous array of y's kind and shape, or out. NaN and infinities as the formula has them.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: the derivative of softmax; the sum is blocked as that of onepass.sum.
    """
    dx = _call(_SOFTMAX, y, dy, None, dim, False, dtype, out, algorithm)
    if dx is not None:
        return dx
    from .call_gradients import plan_and_run

    return plan_and_run("softmax_backward", (y, dy), dim, False, dtype, out, algorithm)


@traced_as(gradient("log_softmax_backward"))
def log_softmax_backward(
    dy: Any, y: Any, dim: Dim = -1, dtype: Any = None, *, out: Any = None, algorithm: str | None = None
) -> Any:
    """Gradient by x of y = log_softmax(x): dy - exp(y) * sum(dy), the sum along dim.

    >>> import numpy as np, onepass
    >>> y = np.log(np.array([0.5, 0.25, 0.25]))
    >>> onepass.log_softmax_backward(np.array([1.0, 0.0, 0.0]), y).round(6)
    array([ 0.5 , -0.25, -0.25])

    Parameters are those of softmax_backward. Returns a new contiguous array of y's kind and shape, or out.
    NaN and infinities as the formula has them.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: the derivative of log_softmax; the sum is blocked as that of onepass.sum.
    """
    dx = _call(_LOG_SOFTMAX, y, dy, None, dim, False, dtype, out, algorithm)
    if dx is not None:
        return dx
    from .call_gradients import plan_and_run

    return plan_and_run("log_softmax_backward", (y, dy), dim, False, dtype, out, algorithm)


@traced_as(logsumexp_gradient)
def logsumexp_backward(
    dy: Any,
    x: Any,
    lse: Any,
    dim: Dim = -1,
    keepdim: bool = False,
    *,
    out: Any = None,
    algorithm: str | None = None,
) -> Any:
    """Gradient by x of lse = logsumexp(x): dy * exp(x - lse), read once.

    >>> import numpy as np, onepass
    >>> x = np.array([[0.0, 0.0], [-np.inf, -np.inf]])
    >>> onepass.logsumexp_backward(np.array([1.0, 1.0]), x, onepass.logsumexp(x))
    array([[0.5, 0.5],
           [0. , 0. ]])

    Parameters
    ----------
    dy, lse : arrays of x's kind with one value for each row: the shape of logsumexp(x, dim, keepdim)
    x, dim : as in softmax
    algorithm : as in softmax; on a GPU "warp" or "strided", since no row is needed twice
    keepdim : whether dy and lse have the reduced dims, with size 1
    out : array for the result, of x's kind, shape and dtype, any strides; may be x itself

    Returns a new contiguous array of x's kind, shape and dtype, or out. A row whose lse is -inf (nothing but -inf, as a
    mask makes it) is 0; elsewhere NaN and infinities are as the formula has them.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: the derivative of logsumexp; exp(x - lse) is computed without rounding the difference.
    """
    dx = _call(_LOGSUMEXP, x, dy, lse, dim, keepdim, None, out, algorithm)
    if dx is not None:
        return dx
    from .call_gradients import plan_and_run

    return plan_and_run("logsumexp_backward", (x, dy, lse), dim, keepdim, None, out, algorithm)
