"""Problem: an N-D array and the dims to reduce, collapsed to as few axes as its strides allow. Pure, no device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
REDUCTIONS = ("sum", "mean", "amax", "amin")  # plain ones: one read, no exponential
GRADIENTS = ("softmax_backward", "log_softmax_backward", "logsumexp_backward")
ELEMENTWISE = ("softmax", "log_softmax", *GRADIENTS)  # the result has the shape of the input


@dataclass(frozen=True)
class Axis:
    """`size` steps of `x_stride` elements in the input and `y_stride` elements in the result; gradients read a second
    and a third input with strides of their own, 0 where one value serves a whole row."""

    size: int
    x_stride: int
    y_stride: int
    z_stride: int = 0
    w_stride: int = 0


@dataclass(frozen=True)
class Operand:
    """An input beside the first: its dtype, and its stride in elements along every axis of the first."""

    dtype: str
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """One operation on one layout. Two calls with equal problems have equal plans.

    Gradients name their inputs by what a kernel walks along: the first is y (of logsumexp_backward x), the second dy,
    the third, of logsumexp_backward alone, lse.
    """

    op: str
    dtype: str
    result_dtype: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    result_shape: tuple[int, ...]
    outer: tuple[Axis, ...]  # kept axes, slowest first in the result
    reduce: tuple[Axis, ...]  # reduced axes, slowest first in the input
    second_dtype: str | None = None
    third_dtype: str | None = None
    in_order: bool = True  # rows, and the elements of one, are visited in the order of the dims

    @property
    def rows(self) -> int:
        """Independent rows: the product of the kept sizes."""
        return math.prod(size for i, size in enumerate(self.shape) if i not in self.dims)

    @property
    def length(self) -> int:
        """Elements of one row: the product of the reduced sizes."""
        return math.prod(self.shape[i] for i in self.dims)

    @property
    def compute_dtype(self) -> str:
        """What elements are computed in: float64 if an input of them or the result is, else float32."""
        # dy and lse of logsumexp_backward are one value a row, taken in whatever they are.
        second = None if self.op == "logsumexp_backward" else self.second_dtype
        return "float64" if "float64" in (self.dtype, second, self.result_dtype) else "float32"

    @property
    def input_bytes(self) -> int:
        """Bytes of the distinct elements read, of all inputs (a broadcast axis is read once)."""
        axes = (*self.outer, *self.reduce)
        return (
            self._bytes(self.dtype, [axis.size for axis in axes if axis.x_stride != 0])
            + self._bytes(self.second_dtype, [axis.size for axis in axes if axis.z_stride != 0])
            + self._bytes(self.third_dtype, [axis.size for axis in axes if axis.w_stride != 0])
        )

    @property
    def reread_bytes(self) -> int:
        """Of those, the bytes that a second pass over rows too long to wait in cache reads again."""
        if self.op != "log_softmax_backward":
            return self.input_bytes
        # The first pass sums dy, and has not looked at y.
        return self._bytes(self.second_dtype, [axis.size for axis in (*self.outer, *self.reduce) if axis.z_stride != 0])

    def _bytes(self, dtype: str | None, sizes: list[int]) -> int:
        return math.prod(sizes) * ITEMSIZE[dtype] if dtype is not None and self.rows * self.length else 0

    @property
    def result_bytes(self) -> int:
        """Bytes written."""
        return math.prod(self.result_shape) * ITEMSIZE[self.result_dtype]

    @property
    def floor_bytes(self) -> int:
        """Bytes that must cross main memory at least: each element once in, each result once out."""
        return self.input_bytes + self.result_bytes


Dim = int | tuple[int, ...] | None  # as callers give it


class _Unset:
    def __repr__(self) -> str:
        return "<same as dim>"


UNSET: Any = _Unset()


def pick_dim(op: str, dim: Dim, axis: Any) -> Dim:
    """`axis` is another name of `dim`; both at once is a mistake."""
    if axis is UNSET:
        return dim
    if dim != -1:
        raise TypeError(f"{op}: got both dim={dim!r} and axis={axis!r}; they are two names of one argument")
    picked: Dim = axis
    return picked


def is_int(d: object) -> bool:
    """Whether d names a dim: Python's ints and NumPy's, but no bool."""
    # A compiler that traces this knows its own numbers as ints, and nothing of their attributes.
    if isinstance(d, int):
        return not isinstance(d, bool)
    try:
        index(d)  # type: ignore[arg-type]
    except TypeError:  # no number, or an array of several
        return False
    return True


def normalize_dims(op: str, dim: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    """`dim` as sorted, non-negative axis numbers. A 0-d array takes -1, 0 or None, as in torch.

    >>> normalize_dims("softmax", -1, (2, 3))
    (1,)
    >>> normalize_dims("softmax", None, (2, 3))
    (0, 1)
    """
    n = len(shape)
    if dim is None:
        return tuple(range(n))
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    limit = max(n, 1)
    result = []
    for d in dims:
        if not is_int(d):
            raise TypeError(f"{op}: dim must be an int, a tuple of ints or None, got {d!r} of type {type(d).__name__}")
        d = index(d)
        if not -limit <= d < limit:
            raise ValueError(
                f"{op}: dim {d} is out of range for an input of shape {shape}; expected {-limit} <= dim < {limit}"
            )
        result.append(d % limit)
    if len(set(result)) != len(result):
        raise ValueError(f"{op}: dim {tuple(dims)} names an axis of the input of shape {shape} twice")
    return tuple(sorted(result)) if n else ()


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a C-contiguous array."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reduced_shape(shape: tuple[int, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """The shape of a reduction's result."""
    if keepdim:
        return tuple(1 if i in dims else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in dims)


def spread_strides(strides: Sequence[int], dims: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Strides of an array with one value a row, along every axis of what has the rows; `strides` with keepdim or
    without.

    >>> spread_strides((7, 2), (1,), 3)
    (7, 0, 2)
    """
    if len(strides) == ndim:
        return tuple(0 if i in dims else stride for i, stride in enumerate(strides))
    remaining = iter(strides)
    return tuple(0 if i in dims else next(remaining) for i in range(ndim))


def _strides(axis: Axis) -> tuple[int, ...]:
    return axis.x_stride, axis.y_stride, axis.z_stride, axis.w_stride


def _moving(axes: list[Axis]) -> list[Axis]:
    return [axis for axis in axes if axis.size != 1]


def _merged(axes: list[Axis]) -> tuple[Axis, ...]:
    """Neighbouring axes that are one axis in memory, in every input and in the result, become one."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged:
            slow = merged[-1]
            if _strides(slow) == tuple(axis.size * stride for stride in _strides(axis)):
                merged[-1] = replace(axis, size=slow.size * axis.size)
                continue
        merged.append(axis)
    return tuple(merged)


def make_problem(
    op: str,
    dtype: str,
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    *,
    strides: Sequence[int] | None = None,
    result_dtype: str | None = None,
    keepdim: bool = False,
    result_strides: Sequence[int] | None = None,
    second: Operand | None = None,
    third: Operand | None = None,
) -> Problem:
    """Collapse a layout. Strides are in elements; without them the arrays are contiguous."""
    x_strides = tuple(strides) if strides is not None else contiguous_strides(shape)
    elementwise = op in ELEMENTWISE
    result_shape = shape if elementwise else reduced_shape(shape, dims, keepdim)
    y_all = tuple(result_strides) if result_strides is not None else contiguous_strides(result_shape)
    y_strides = y_all if elementwise else spread_strides(y_all, dims, len(shape))
    nothing = (0,) * len(shape)
    z_strides, w_strides = (operand.strides if operand else nothing for operand in (second, third))
    axes = [Axis(*five) for five in zip(shape, x_strides, y_strides, z_strides, w_strides, strict=True)]
    kept = [axis for i, axis in enumerate(axes) if i not in dims]
    reduced = [axis for i, axis in enumerate(axes) if i in dims]
    # The order in which rows are visited follows the result, that within a row the input.
    by_result = sorted(kept, key=lambda a: -abs(a.y_stride))
    by_input = sorted(reduced, key=lambda a: -abs(a.x_stride))
    in_order = _moving(by_result) == _moving(kept) and _moving(by_input) == _moving(reduced)
    return Problem(
        op=op,
        dtype=dtype,
        result_dtype=result_dtype or dtype,
        shape=shape,
        dims=dims,
        result_shape=result_shape,
        outer=_merged(by_result),
        reduce=_merged(by_input),
        second_dtype=second.dtype if second else None,
        third_dtype=third.dtype if third else None,
        in_order=in_order,
    )
