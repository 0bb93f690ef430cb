"""Problem: an N-D array and the dims to reduce, collapsed to as few axes as its strides allow. Pure, no device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
ELEMENTWISE = ("softmax", "log_softmax")


@dataclass(frozen=True)
class Axis:
    """`size` steps of `x_stride` elements in the input and `y_stride` elements in the result."""

    size: int
    x_stride: int
    y_stride: int


@dataclass(frozen=True)
class Problem:
    """One operation on one layout. Two calls with equal problems have equal plans."""

    op: str
    dtype: str
    result_dtype: str
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    result_shape: tuple[int, ...]
    outer: tuple[Axis, ...]  # kept axes, slowest first in the result
    reduce: tuple[Axis, ...]  # reduced axes, slowest first in the input

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
        """What is computed in: float64 if input or result is, else float32."""
        return "float64" if "float64" in (self.dtype, self.result_dtype) else "float32"

    @property
    def input_bytes(self) -> int:
        """Bytes of the distinct elements read (a broadcast axis is read once)."""
        sizes = [axis.size for axis in (*self.outer, *self.reduce) if axis.x_stride != 0]
        return math.prod(sizes) * ITEMSIZE[self.dtype] if self.rows * self.length else 0

    @property
    def result_bytes(self) -> int:
        """Bytes written."""
        return math.prod(self.result_shape) * ITEMSIZE[self.result_dtype]

    @property
    def floor_bytes(self) -> int:
        """Bytes that must cross main memory at least: each element once in, each result once out."""
        return self.input_bytes + self.result_bytes


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
        if isinstance(d, bool) or not hasattr(d, "__index__"):
            raise TypeError(f"{op}: dim must be an int, a tuple of ints or None, got {d!r} of type {type(d).__name__}")
        d = d.__index__()
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


def _merged(axes: list[Axis]) -> tuple[Axis, ...]:
    """Neighbouring axes that are one axis in memory, in the input and in the result, become one."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged:
            slow = merged[-1]
            if slow.x_stride == axis.size * axis.x_stride and slow.y_stride == axis.size * axis.y_stride:
                merged[-1] = Axis(slow.size * axis.size, axis.x_stride, axis.y_stride)
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
) -> Problem:
    """Collapse a layout. Strides are in elements; without them the arrays are contiguous."""
    x_strides = tuple(strides) if strides is not None else contiguous_strides(shape)
    elementwise = op in ELEMENTWISE
    result_shape = shape if elementwise else reduced_shape(shape, dims, keepdim)
    y_all = tuple(result_strides) if result_strides is not None else contiguous_strides(result_shape)
    if elementwise or keepdim:
        y_strides = y_all
    else:
        remaining = iter(y_all)
        y_strides = tuple(0 if i in dims else next(remaining) for i in range(len(shape)))
    axes = [Axis(*three) for three in zip(shape, x_strides, y_strides, strict=True)]
    kept = [axis for i, axis in enumerate(axes) if i not in dims]
    reduced = [Axis(a.size, a.x_stride, a.y_stride if elementwise else 0) for i, a in enumerate(axes) if i in dims]
    # The order in which rows are visited follows the result, that within a row the input.
    kept.sort(key=lambda a: -abs(a.y_stride))
    reduced.sort(key=lambda a: -abs(a.x_stride))
    return Problem(
        op=op,
        dtype=dtype,
        result_dtype=result_dtype or dtype,
        shape=shape,
        dims=dims,
        result_shape=result_shape,
        outer=_merged(kept),
        reduce=_merged(reduced),
    )
