"""Carry out a job from a reader to a writer, slab by slab through buffers of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

import onepass

from .jobs import ComputeJob, Job
from .slabs import Columns, Rows, Stream, cuts, runs
from .tensor import PIECE, FileError, MemoryWriter, Reader, Writer, as_bytes

Array = npt.NDArray[Any]
Tile = tuple[slice, slice, slice]  # of (outer, length, inner)
Advance = Callable[[int], None]


def run_job(job: Job, writer: Writer, advance: Advance) -> None:
    """Do the work; `advance(n)` hears of every n bytes read."""
    memory = MemoryWriter(job.result.nbytes) if job.transpose else None
    with job.tensor.open() as reader:
        if isinstance(job, ComputeJob):
            _compute(job, reader, memory or writer, advance)
        else:
            for piece in cuts(job.result.nbytes, PIECE):
                data = np.empty(piece.stop - piece.start, np.uint8)
                reader.read(piece.start, data)
                (memory or writer).write(piece.start, data)
                advance(len(data))
    if memory is not None and job.result.dtype is not None:
        mirrored = memory.data.view(job.result.dtype).reshape(job.result.shape[::-1])
        writer.write(0, as_bytes(np.ascontiguousarray(mirrored.T)))


def _compute(job: ComputeJob, reader: Reader, writer: Writer, advance: Advance) -> None:
    if job.result.nbytes == 0:  # however many rows of nothing there are
        return
    outer, length, inner = job.shape
    slabs = _Slabs(job, reader, writer, advance)
    try:
        # What infinities and NaN become is part of the contract of every operation, not worth a warning each.
        with np.errstate(all="ignore"):
            if isinstance(job.plan, Rows):
                every = slice(0, length), slice(0, inner)
                _direct(slabs, ((o, *every) for o in cuts(outer, job.plan.step)))
            elif isinstance(job.plan, Columns):
                columns = job.plan.width
                _direct(slabs, ((o, slice(0, length), i) for o in cuts(outer, 1) for i in cuts(inner, columns)))
            else:
                _stream(slabs, job.plan)
    except (TypeError, ValueError) as error:
        raise FileError(f"{job.op}: {job.tensor.info} cannot be processed: {error}") from error


class _Slabs:
    """Moves tiles of the input and the result between the files and two buffers, which every slab uses again."""

    def __init__(self, job: ComputeJob, reader: Reader, writer: Writer, advance: Advance) -> None:
        self.job, self._reader, self._writer, self._advance = job, reader, writer, advance
        self._x: Array = np.empty(0, job.types.stored)
        self._out: Array = np.empty(0, job.types.result)

    def read(self, tile: Tile) -> Array:
        """The tile of the input, in the byte order of this machine."""
        shape = _extent(tile)
        count = math.prod(shape)
        if self._x.size < count:
            self._x = np.empty(count, self._x.dtype)
        flat = self._x[:count]
        data, at, size = as_bytes(flat), 0, flat.itemsize
        for first, n in runs(self.job.shape, *tile):
            self._reader.read(first * size, data[at : at + n * size])
            at += n * size
        self._advance(len(data))
        if flat.dtype != self.job.types.native:
            flat = flat.byteswap(inplace=True).view(self.job.types.native)
        return flat.reshape(shape)

    def result(self, tile: Tile) -> Array:
        """Room for the tile of the result."""
        shape = _extent(tile)
        count = math.prod(shape)
        if self._out.size < count:
            self._out = np.empty(count, self._out.dtype)
        return self._out[:count].reshape(shape)

    def write(self, tile: Tile, array: Array) -> None:
        outer, length, inner = self.job.shape
        data, at, size = as_bytes(array), 0, array.itemsize
        for first, n in runs((outer, length if self.job.whole else 1, inner), *tile):
            self._writer.write(first * size, data[at : at + n * size])
            at += n * size


def _extent(tile: Tile) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in tile)


def _direct(slabs: _Slabs, tiles: Iterable[Tile]) -> None:
    """Each slab holds whole rows: one call of the library, one read of the file."""
    job = slabs.job
    op = getattr(onepass, job.op)
    for outer, length, inner in tiles:
        x = slabs.read((outer, length, inner))
        if job.whole:
            tile = outer, length, inner
            out = x if job.in_place else slabs.result(tile)
            op(x, dim=1, dtype=job.types.result, out=out)
        else:
            tile = outer, slice(0, 1), inner
            out = slabs.result(tile)
            out[...] = op(x.astype(job.types.first, copy=False), dim=1, keepdim=True)
        slabs.write(tile, out)


def _stream(slabs: _Slabs, plan: Stream) -> None:
    """A slab holds part of each row: merge what the parts say, then (softmax) read again and write."""
    job = slabs.job
    outer, length, inner = job.shape
    merging: type[_Total] | type[_Extreme] | type[_Exponentials] = _Exponentials
    if job.op in ("sum", "mean"):
        merging = _Total
    elif job.op in ("amax", "amin"):
        merging = _Extreme
    for o, i in ((o, i) for o in cuts(outer, 1) for i in cuts(inner, plan.width)):
        state = merging(job)
        for k in cuts(length, plan.step):
            state.push(slabs.read((o, k, i)).astype(job.types.wide, copy=False))
        if isinstance(state, _Exponentials) and job.whole:
            for k in cuts(length, plan.step):
                x = slabs.read((o, k, i)).astype(job.types.wide, copy=False)
                state.apply(x)
                slabs.write((o, k, i), x.astype(job.types.result, copy=False))
        else:
            slabs.write((o, slice(0, 1), i), state.finish().astype(job.types.result))


class _Total:
    """sum and mean of rows that come in parts; arrays of shape (1, 1, inner), as in the other two."""

    def __init__(self, job: ComputeJob) -> None:
        self._job = job
        self._sum: Any = 0

    def push(self, x: Array) -> None:
        self._sum = self._sum + onepass.sum(x, dim=1, keepdim=True)

    def finish(self) -> Array:
        total: Array = self._sum
        return total / self._job.shape[1] if self._job.op == "mean" else total


class _Extreme:
    """amax and amin."""

    def __init__(self, job: ComputeJob) -> None:
        self._op = onepass.amax if job.op == "amax" else onepass.amin
        self._merge = np.maximum if job.op == "amax" else np.minimum
        self._found: Array | None = None

    def push(self, x: Array) -> None:
        part = self._op(x, dim=1, keepdim=True)
        self._found = part if self._found is None else self._merge(self._found, part)

    def finish(self) -> Array:
        assert self._found is not None  # an empty row fits in any memory, so none is streamed
        return self._found


class _Exponentials:
    """The softmax family: the maximum m of each row, and d = sum(exp(x - m)), as in the kernels' RowState."""

    def __init__(self, job: ComputeJob) -> None:
        self._log = job.op == "log_softmax"
        self._m: Array = np.full((1, 1, 1), -np.inf)
        self._d: Array = np.zeros((1, 1, 1))

    def push(self, x: Array) -> None:
        m = onepass.amax(x, dim=1, keepdim=True)
        # An infinite maximum says nothing about where the others lie; exp(x) is then 0 or inf, as it should be.
        x -= np.where(np.isfinite(m), m, 0)
        np.exp(x, out=x)
        d = onepass.sum(x, dim=1, keepdim=True)
        before, self._m = self._m, np.maximum(self._m, m)
        self._d = self._d * self._scale(before) + d * self._scale(m)

    def _scale(self, m: Array) -> Array:
        # Equal maxima, infinite ones too, need no scaling; inf - inf would make it NaN.
        return np.exp(np.where(m == self._m, 0.0, m - self._m))

    def apply(self, x: Array) -> None:
        """Turn part of the rows into their (log_)softmax, in place."""
        d = np.where(np.isposinf(self._m), np.nan, self._d)  # +inf in a row: the row is NaN, as in the library
        x -= self._m
        if self._log:
            x -= np.log(d)
        else:
            np.exp(x, out=x)
            x /= d

    def finish(self) -> Array:
        """logsumexp."""
        return self._m + np.log(self._d)
