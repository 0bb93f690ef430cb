"""Row reductions along any dim: sum, mean, amax, amin. Each element is read once.

float32 and 16-bit sums are vector sums of sixteen additions, added up in float64: the error does not grow
with the row. Integers are NumPy's to reduce, whose sums and extremes are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import call as _call
from .compiled import reduction, traced_as
from .hot import tried_first
from .problem import UNSET, Dim, pick_dim

_SUM, _MEAN, _AMAX, _AMIN = 3, 4, 5, 6  # the engine's numbers of these operations


def _cold(op: str, x: Any, dim: Dim, keepdim: bool, out: Any) -> Any:
    from . import arrays
    from .call import plan_and_run

    if not (isinstance(x, np.ndarray) or arrays.is_tensor(x) or arrays.is_dlpack(x)):
        x = np.asarray(x)
    if isinstance(x, np.ndarray) and x.dtype.kind in "biu" and not isinstance(x, np.ma.MaskedArray):
        return _of_integers(op, np.asarray(x), dim, bool(keepdim), out)  # a matrix has no keepdims
    return plan_and_run(op, x, dim, keepdim, None, out, None)


def _of_integers(op: str, x: np.ndarray[Any, Any], dim: Dim, keepdim: bool, out: Any) -> Any:
    from .arrays import check_plain_out
    from .call import check_not_empty
    from .problem import normalize_dims, reduced_shape

    dims = normalize_dims(op, dim, x.shape)
    reduce = getattr(np, op)
    shape, dtype = reduced_shape(x.shape, dims, keepdim), reduce(np.ones(1, x.dtype)).dtype
    if out is not None:
        check_plain_out(op, out, shape, dtype)
    if op in ("amax", "amin"):
        check_not_empty(op, x.shape, dims)
    if x.size == 0 and op != "sum":  # of no rows NumPy has no extremes, and of empty ones no mean without a warning
        result = np.empty(shape, dtype) if out is None else out
        result[...] = np.nan if op == "mean" else 0
        return result[()] if out is None else out
    return reduce(x, axis=dims, keepdims=keepdim, out=out)


@traced_as(reduction("sum"))
@tried_first(_SUM)
def sum(x: Any, dim: Dim = -1, keepdim: bool = False, *, out: Any = None, axis: Any = UNSET) -> Any:
    """Sum of x along dim.

    >>> import numpy as np, onepass
    >>> onepass.sum(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([3., 7.])

    Parameters
    ----------
    x : array of any shape and strides, read in place; dtypes and kinds as in softmax
    dim : int, tuple of ints (jointly) or None (all); also called `axis`
    keepdim : keep the reduced dims, with size 1
    out : array for the result, of x's kind, the result's shape and dtype, any strides

    Returns an array of x's kind and dtype without dim; NumPy integers as numpy.sum. An empty row sums to 0.
    Sixteen elements at a time are added in float32 (float64 in float64), where they may overflow.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: blocked summation, N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 4.
    """
    if axis is not UNSET:
        dim = pick_dim("sum", dim, axis)
    y = _call(_SUM, x, dim, keepdim, None, out, None)
    return _cold("sum", x, dim, keepdim, out) if y is None else y


@traced_as(reduction("mean"))
@tried_first(_MEAN)
def mean(x: Any, dim: Dim = -1, keepdim: bool = False, *, out: Any = None, axis: Any = UNSET) -> Any:
    """Arithmetic mean of x along dim.

    >>> import numpy as np, onepass
    >>> onepass.mean(np.array([[1.0, 2.0], [3.0, 4.0]]), dim=0)
    array([2., 3.])

    Parameters are those of sum. Returns an array of x's kind and dtype without dim; NumPy integers as numpy.mean.
    The mean of an empty row is NaN. The sum overflows where onepass.sum does.

    Raises ValueError or TypeError, with nothing written, for arguments that do not fit; MemoryError.

    Source: the sum of onepass.sum before it is rounded, divided once in float64.
    """
    if axis is not UNSET:
        dim = pick_dim("mean", dim, axis)
    y = _call(_MEAN, x, dim, keepdim, None, out, None)
    return _cold("mean", x, dim, keepdim, out) if y is None else y


@traced_as(reduction("amax"))
@tried_first(_AMAX)
def amax(x: Any, dim: Dim = -1, keepdim: bool = False, *, out: Any = None, axis: Any = UNSET) -> Any:
    """Largest element of x along dim; NaN where there is one.

    >>> import numpy as np, onepass
    >>> onepass.amax(np.array([[1.0, 5.0], [3.0, 4.0]]), dim=None)
    array(5.)

    Parameters are those of sum. Returns an array of x's kind and dtype without dim; NumPy integers as numpy.amax.

    Raises ValueError for an empty row; ValueError or TypeError, with nothing written, for arguments that do not fit.

    Source: a lane-wise maximum with a NaN flag beside it.
    """
    if axis is not UNSET:
        dim = pick_dim("amax", dim, axis)
    y = _call(_AMAX, x, dim, keepdim, None, out, None)
    return _cold("amax", x, dim, keepdim, out) if y is None else y


@traced_as(reduction("amin"))
@tried_first(_AMIN)
def amin(x: Any, dim: Dim = -1, keepdim: bool = False, *, out: Any = None, axis: Any = UNSET) -> Any:
    """Smallest element of x along dim; NaN where there is one.

    >>> import numpy as np, onepass
    >>> onepass.amin(np.array([[1.0, 5.0], [3.0, 4.0]]), keepdim=True)
    array([[1.],
           [3.]])

    Parameters are those of sum. Returns an array of x's kind and dtype without dim; NumPy integers as numpy.amin.

    Raises ValueError for an empty row; ValueError or TypeError, with nothing written, for arguments that do not fit.

    Source: a lane-wise minimum with a NaN flag beside it.
    """
    if axis is not UNSET:
        dim = pick_dim("amin", dim, axis)
    y = _call(_AMIN, x, dim, keepdim, None, out, None)
    return _cold("amin", x, dim, keepdim, out) if y is None else y
