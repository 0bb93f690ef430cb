"""What every operation of onepass means, written as plainly as NumPy allows.

Nothing here is fast and nothing here uses the engine. Every function takes anything `numpy.asarray` takes, computes
in extended precision (`numpy.longdouble`: 64 bits of mantissa on x86) or exactly (`math.fsum`), and rounds once, to
float64. `dtype=numpy.longdouble` keeps the extended result, for measuring float64 kernels.

Special values, for every element type:

| a row holds        | softmax | log_softmax | logsumexp | sum, mean  | amax, amin |
|--------------------|---------|-------------|-----------|------------|------------|
| a NaN              | NaN     | NaN         | NaN       | NaN        | NaN        |
| +inf, no NaN       | NaN     | NaN         | +inf      | as IEEE    | as ordered |
| nothing but -inf   | NaN     | NaN         | -inf      | -inf       | -inf       |
| nothing (length 0) | empty   | empty       | -inf      | 0, NaN     | ValueError |
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Dim = int | Sequence[int] | None


def softmax(x: ArrayLike, dim: Dim = -1, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """exp(x) over its sum along `dim`.

    >>> softmax([0.0, 0.0, -np.inf])
    array([0.5, 0.5, 0. ])
    >>> softmax([[0.0, 1.0], [np.inf, 1.0]], dim=1)
    array([[0.26894142, 0.73105858],
           [       nan,        nan]])
    """
    rows = _Rows(x, dim)
    with np.errstate(all="ignore"):
        exps = np.exp(_below_max(rows.values))
        return rows.restore(exps / exps.sum(axis=-1, keepdims=True), dtype)


def log_softmax(x: ArrayLike, dim: Dim = -1, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """log(softmax(x)), right also where softmax(x) is 1 or too small to represent.

    >>> log_softmax([0.0, -50.0])
    array([-1.92874985e-22, -5.00000000e+01])
    """
    rows = _Rows(x, dim)
    with np.errstate(all="ignore"):
        below = _below_max(rows.values)
        return rows.restore(below - _log_sum_exp(below), dtype)


def logsumexp(x: ArrayLike, dim: Dim = -1, keepdim: bool = False, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """log(sum(exp(x))) along `dim`.

    >>> logsumexp([0.0, 0.0])
    array(0.69314718)
    >>> logsumexp(np.zeros((2, 0)))
    array([-inf, -inf])
    """
    rows = _Rows(x, dim)
    if rows.length == 0:
        return rows.restore_reduced(np.full((rows.count, 1), -np.inf), keepdim, dtype)
    with np.errstate(all="ignore"):
        top = rows.values.max(axis=-1, keepdims=True)
        finite = top + _log_sum_exp(_below_max(rows.values))
        return rows.restore_reduced(np.where(np.isfinite(top), finite, top), keepdim, dtype)


def softmax_backward(dy: ArrayLike, y: ArrayLike, dim: Dim = -1, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The gradient by x of y = softmax(x): y * (dy - sum(dy * y)).

    >>> softmax_backward([1.0, 0.0], [0.5, 0.5])
    array([ 0.25, -0.25])
    """
    rows, grads = _Rows(y, dim), _Rows(dy, dim)
    with np.errstate(all="ignore"):
        total = (grads.values * rows.values).sum(axis=-1, keepdims=True)
        return rows.restore(rows.values * (grads.values - total), dtype)


def log_softmax_backward(dy: ArrayLike, y: ArrayLike, dim: Dim = -1, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The gradient by x of y = log_softmax(x): dy - exp(y) * sum(dy).

    >>> log_softmax_backward([1.0, 0.0], [0.0, -np.inf])
    array([0., 0.])
    """
    rows, grads = _Rows(y, dim), _Rows(dy, dim)
    with np.errstate(all="ignore"):
        total = _exact_sums(grads.values)
        return rows.restore(grads.values - np.exp(rows.values) * total, dtype)


def logsumexp_backward(
    dy: ArrayLike, x: ArrayLike, lse: ArrayLike, dim: Dim = -1, keepdim: bool = False, *, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """The gradient by x of lse = logsumexp(x): dy * exp(x - lse), and 0 where lse is -inf.

    >>> logsumexp_backward(1.0, [0.0, -np.inf], 0.0)
    array([1., 0.])
    >>> logsumexp_backward(1.0, [-np.inf, -np.inf], -np.inf)
    array([0., 0.])
    """
    rows = _Rows(x, dim)
    dys, lses = (np.asarray(a).astype(np.float64).astype(np.longdouble).reshape(rows.count, 1) for a in (dy, lse))
    with np.errstate(all="ignore"):
        result = np.where(lses == -np.inf, 0, dys * np.exp(rows.values - lses))
        return rows.restore(result, dtype)


def sum(x: ArrayLike, dim: Dim = -1, keepdim: bool = False, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The sum along `dim`, rounded once. Integers and booleans: NumPy's own result.

    >>> sum([1e16, 1.0, -1e16])
    array(1.)
    """
    if _is_integer(x):
        return np.asarray(np.sum(x, axis=_axes(np.ndim(x), dim), keepdims=keepdim))
    rows = _Rows(x, dim)
    with np.errstate(all="ignore"):
        return rows.restore_reduced(_exact_sums(rows.values), keepdim, dtype)


def mean(x: ArrayLike, dim: Dim = -1, keepdim: bool = False, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The sum along `dim` over the number of elements; NaN where there are none.

    >>> mean([[1.0, 2.0, 6.0]], keepdim=True)
    array([[3.]])
    """
    if _is_integer(x):
        return np.asarray(np.mean(np.asarray(x), axis=_axes(np.ndim(x), dim), keepdims=keepdim))
    rows = _Rows(x, dim)
    with np.errstate(all="ignore"):
        return rows.restore_reduced(_exact_sums(rows.values) / np.longdouble(rows.length), keepdim, dtype)


def amax(x: ArrayLike, dim: Dim = -1, keepdim: bool = False, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The largest element along `dim`, NaN where one is NaN. Integers and booleans: NumPy's own result.

    >>> amax([[1.0, np.nan], [1.0, -np.inf]])
    array([nan,  1.])
    """
    return _extreme(np.max, x, dim, keepdim, dtype)


def amin(x: ArrayLike, dim: Dim = -1, keepdim: bool = False, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The smallest element along `dim`, NaN where one is NaN. Integers and booleans: NumPy's own result.

    >>> amin([[1.0, 2.0], [3.0, -np.inf]])
    array([  1., -inf])
    """
    return _extreme(np.min, x, dim, keepdim, dtype)


class _Rows:
    """An array as [rows, length] in extended precision, and the way back."""

    def __init__(self, x: ArrayLike, dim: Dim) -> None:
        array = np.asarray(x)
        self._axes = _axes(array.ndim, dim)
        self._last = tuple(range(array.ndim - len(self._axes), array.ndim))
        moved = np.moveaxis(array, self._axes, self._last)
        self._moved_shape = moved.shape
        self._kept_shape = moved.shape[: array.ndim - len(self._axes)]
        self.count = math.prod(self._kept_shape)
        self.length = math.prod(moved.shape[len(self._kept_shape) :])
        with np.errstate(invalid="ignore"):  # a signalling NaN
            # float64 first: ml_dtypes' types convert to it, not to longdouble.
            self.values = moved.reshape(self.count, self.length).astype(np.float64).astype(np.longdouble)

    def restore(self, values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        """[rows, length] back to the shape and the axis order of the input."""
        with np.errstate(over="ignore", under="ignore"):
            rounded = values.astype(dtype).reshape(self._moved_shape)
        moved: NDArray[Any] = np.moveaxis(rounded, self._last, self._axes)
        return np.array(moved, order="C")

    def restore_reduced(self, values: NDArray[Any], keepdim: bool, dtype: DTypeLike) -> NDArray[Any]:
        """[rows, 1] back to the shape of the input less the reduced axes, or with 1 in their place."""
        with np.errstate(over="ignore", under="ignore"):
            rounded = values.astype(dtype).reshape(self._kept_shape)
        return np.expand_dims(rounded, self._axes) if keepdim else rounded


def _axes(ndim: int, dim: Dim) -> tuple[int, ...]:
    """`dim` as sorted axes; a 0-d array counts as one row of one element."""
    if dim is None:
        return tuple(range(ndim))
    dims = [operator.index(d) for d in (dim if isinstance(dim, Sequence) else (dim,))]
    reach = max(ndim, 1)
    if any(not -reach <= d < reach for d in dims):
        raise ValueError(f"dim {dim} is out of range for an input of {ndim} dimensions")
    axes = sorted(d % reach for d in dims)
    if len(set(axes)) != len(axes):
        raise ValueError(f"dim {dim} names one dimension twice, for an input of {ndim} dimensions")
    return tuple(axes) if ndim else ()


def _below_max(rows: NDArray[Any]) -> NDArray[Any]:
    """rows - max(rows): NaN wherever the maximum is infinite in the same direction, and in all of a row with a NaN."""
    return rows if rows.size == 0 else rows - rows.max(axis=-1, keepdims=True)


def _log_sum_exp(below: NDArray[Any]) -> NDArray[Any]:
    """log(sum(exp(below))) of rows whose maximum is 0.

    log1p of everything but one maximum: 1 + 1e-30 has no room for the 1e-30. The maximum itself is added as a zero,
    which is a NaN in a row that cannot be normalized.
    """
    if below.size == 0:
        return np.zeros((len(below), 1), below.dtype)
    top = below.argmax(axis=-1)[:, None]
    others = np.exp(below)
    np.put_along_axis(others, top, 0, axis=-1)
    result: NDArray[Any] = np.log1p(others.sum(axis=-1, keepdims=True)) + np.take_along_axis(below, top, axis=-1)
    return result


def _exact_sums(rows: NDArray[Any]) -> NDArray[Any]:
    """The sum of every row of float64 values, rounded to extended precision once."""
    sums = np.empty((len(rows), 1), np.longdouble)
    for i, row in enumerate(rows):
        values = row.astype(np.float64).tolist()
        try:
            high = math.fsum(values)
            sums[i] = np.longdouble(high) + np.longdouble(math.fsum([*values, -high]))
        except (OverflowError, ValueError):  # an infinity, or a partial sum past the largest float64
            sums[i] = row.sum()
    return sums


def _extreme(reduce: Callable[..., Any], x: ArrayLike, dim: Dim, keepdim: bool, dtype: DTypeLike) -> NDArray[Any]:
    if _is_integer(x):
        return np.asarray(reduce(x, axis=_axes(np.ndim(x), dim), keepdims=keepdim))
    rows = _Rows(x, dim)
    if rows.length == 0:
        raise ValueError(f"{reduce.__name__} of no elements: shape {np.shape(x)}, dim {dim}")
    return rows.restore_reduced(reduce(rows.values, axis=-1, keepdims=True), keepdim, dtype)


def _is_integer(x: ArrayLike) -> bool:
    return np.asarray(x).dtype.kind in "biu"
