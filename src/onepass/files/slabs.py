"""How an array larger than the memory allowed is cut up. Pure arithmetic: no file is touched here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .tensor import Access

# Enough rows at a time to give every thread work, few enough that a slab is still in the last cache when it is written.
TARGET = 8 << 20

# Columns are worth reading apart only in runs this long; shorter ones read every page of the file several times.
SHORTEST_RUN = 64 << 10

# Bytes per kept element that `Stream` holds beside its slab: maxima and sums, merged and of one part, and temporaries.
STREAM_STATE = 64


@dataclass(frozen=True)
class Rows:
    """`step` outer indices at a time, each with its whole (length, inner) block: one read, in file order."""

    step: int


@dataclass(frozen=True)
class Columns:
    """`width` inner indices at a time, each with its whole length: one read, but not in file order."""

    width: int


@dataclass(frozen=True)
class Stream:
    """`step` of the length at a time over `width` inner indices: a row need not fit. softmax then reads twice."""

    width: int
    step: int


@dataclass(frozen=True)
class Cost:
    """Bytes of buffer per input element and per kept element, when the length is whole and when it is streamed."""

    item: int  # of the input, on disk
    element: int
    kept: int
    stream_element: int


def collapse(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(outer, length, inner) of a C-ordered array, or None when the dims have another one between them.

    >>> collapse((2, 3, 4), (1,))
    (2, 3, 4)
    >>> collapse((2, 1, 4), (0, 2))
    (1, 8, 1)
    >>> collapse((2, 3, 4), (0, 2)) is None
    True
    """
    sizes = [1, 1, 1]
    part = 0
    for d, size in enumerate(shape):
        if size == 1:
            continue
        if d in dims:
            if part == 2:
                return None
            part = 1
        elif part == 1:
            part = 2
        sizes[part] *= size
    return sizes[0], sizes[1], sizes[2]


def plan_slabs(
    shape: tuple[int, int, int], cost: Cost, budget: int, access: Access, passes: int
) -> Rows | Columns | Stream | None:
    """The cut that reads the fewest bytes and stays within `budget` bytes of buffers; None when there is none.

    `access` is the lesser of what input and output allow; `passes` is how often `Stream` reads the input.
    """
    outer, length, inner = shape
    block = max(1, length * inner * cost.element + inner * cost.kept)
    if block <= budget:
        return Rows(max(1, min(outer, min(budget, TARGET) // block)))
    width = budget // max(1, length * cost.element + cost.kept)
    if access == Access.RANDOM and width * cost.item >= SHORTEST_RUN:
        return Columns(width)
    if length == 0 and width > 0:  # nothing is read, and results come in file order
        return Columns(width)
    if passes > 1 and access == Access.ONCE:
        return None
    width = max(1, min(inner, budget // 4 // STREAM_STATE))
    if width < inner and access != Access.RANDOM:
        return None
    step = min(length, min(budget - width * STREAM_STATE, TARGET) // (width * cost.stream_element))
    return Stream(width, step) if step > 0 else None


def cuts(size: int, step: int) -> Iterator[slice]:
    """The slices of 0..size, `step` at a time.

    >>> list(cuts(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(size, start + step)) for start in range(0, size, step))


def runs(shape: tuple[int, int, int], outer: slice, length: slice, inner: slice) -> Iterator[tuple[int, int]]:
    """(first element, count) of each contiguous run of a tile of a C-ordered (outer, length, inner) array.

    >>> list(runs((2, 3, 4), slice(1, 2), slice(0, 2), slice(0, 4)))
    [(12, 8)]
    >>> list(runs((2, 3, 4), slice(1, 2), slice(0, 2), slice(1, 3)))
    [(13, 2), (17, 2)]
    """
    _, n, m = shape
    width = inner.stop - inner.start
    rows = length.stop - length.start
    if width == m and rows == n:
        yield outer.start * n * m, (outer.stop - outer.start) * n * m
        return
    for o in range(outer.start, outer.stop):
        first = (o * n + length.start) * m + inner.start
        if width == m:
            yield first, rows * m
        else:
            for k in range(rows):
                yield first + k * m, width
