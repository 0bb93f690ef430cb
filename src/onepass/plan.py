"""Plan: which CPU algorithm serves a problem, how it is cut up, and why. Pure Python: a Problem and a Machine in, a
frozen, comparable, printable value out. The kernels do what the plan says; within `registers`, `strided` and `packed`
they alone choose how tiny rows are held (transposed.h)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .machine import Machine
from .problem import ELEMENTWISE, GRADIENTS, ITEMSIZE, REDUCTIONS, Axis, Problem

ALGORITHMS = ("registers", "row", "online", "split", "strided", "packed")

# Every threshold of the planner. "measured" is on two cores of an Ice Lake server at 2.8 GHz (48 KiB L1, 1.25 MiB L2).
#
# Rows of up to this many vectors go to `registers`, a batch at a time.
_REGISTER_VECTORS = 8
# The same of softmax and log_softmax: what they compute hides the loads of the next batch. Measured on two cores of a
# Zen 4 against `row`, rows of 256 float32 from L3 and from memory: softmax 1.7x and 1.2x, log_softmax 1.3x and 1.2x;
# bfloat16 1.6x and 1.4x to 1.8x. Not in float64, where a lane's sum of so many rounds too often.
_SOFTMAX_REGISTER_VECTORS = 16
# And of their gradients, where a row is summed and written at once, in registers or from L1. Measured on a Zen 4, times
# of `row` over times of these, softmax's in float32: rows of 400 1.4 from L2, 1.1 from L3, from memory 1.35 by one
# thread and 0.95 by two; of 512 1.3, 1.1, 1.35 and 0.93; of 1000 1.2, 0.9 to 1.1, 1.1 and 0.85.
_GRADIENT_REGISTER_VECTORS = 32
# And of plain reductions, in elements: by bytes of one, for vectors of 64 bytes and for shorter ones. `row` looks
# ahead in memory where batches do not, and has nothing between its rows. Measured on a Zen 5, times of `row` over
# times of `registers` from L2, from L3 and from memory. AVX-512: float32 sums of 12 1.2, 1.3 and 3.9, of 16 0.92, 0.93
# and 0.95, of 17 to 31 1.0, 0.9 and 0.4, maxima of 17 to 48 1.7 to 1.4, 1.5 to 1.1 and 0.6 to 1.3, of 64 1.2, 0.9 and
# 0.5, of 96 0.95 and 0.83; bfloat16 sums of 16 1.1, of 17 to 24 1.0, of 32 0.8, of 64 and more 0.6 to 0.9, maxima of 17
# to 48 2.1 to 1.7, of 128 1.05; float64 sums of 9 to 16 3.2 to 2.5, of 17 1.0, maxima of 5 0.9, 1.0 and 3.1, of 8 and
# more 0.5 to 0.9. AVX2: float32 sums of 7 1.2, 1.3 and 4.1, of 8 1.05, 1.1 and 0.95, of 9 and more 0.5 to 0.8, maxima
# of 9 to 64 1.3 to 1.0 but from memory 0.9 to 1.0; bfloat16 sums of 7 1.05, of 8 and more 0.9 to 0.6, maxima of 9 to 64
# 1.4 to 1.1; float64 sums of 12 1.15, of 16 1.0, maxima of 3 0.5, 0.5 and 1.6, of 4 and more 0.5.
_SUM_REGISTER_ROW = {2: (16, 7), 4: (15, 8), 8: (16, 12)}
_EXTREME_REGISTER_ROW = {2: (128, 64), 4: (64, 64), 8: (7, 3)}
_EXTREME_REGISTER_ROW_FROM_MEMORY = {2: (128, 64), 4: (16, 8), 8: (7, 3)}
# A row is `resident` while two rows of input and two of exponentials (one is computed, one written, one fetched) fill
# at most this share of L2; beyond, it is read twice.
_ROW_SHARE_OF_L2 = 0.5
# The same of a core's part of L3, where what would be read twice is also computed twice. Measured on two cores of a Zen
# 3 (AVX2, 512 KiB L2, 32 MiB L3), times of `online` over times of `row`: softmax of 32768 float32 1.3 to 1.4, of 131072
# 1.1 to 1.4, of 262144 1.1 to 1.3, of 524288 0.77; of 32768 to 262144 bfloat16 1.45 to 1.29, float64 1.3 at 32768 and
# 0.87 at 262144. On two of a Zen 5 (AVX-512, 1 MiB, 32 MiB), by one thread and by two, from memory: 50257 float32 1.4
# and 1.7, 131072 1.4 and 1.0, 262144 1.3 and 1.0; bfloat16 2.0 and 1.6, 1.6 and 1.3, 1.5 and 1.4; by two, 65536 float64
# 1.3, 262144 1.1. Not of rows that are converted on the way: there, float16 to float32 0.7 to 0.9. (Gradients would
# gain 1.1 to 1.3, but their sums would have other bits than those of few rows, which are split.)
_COMPUTED_ROW_SHARE_OF_L3 = 0.25
_NARROW_VECTOR_BYTES = 32
# A tile of a strided problem, with the exponentials of two, is `resident` while it fills at most this share of a core's
# part of L3: measured, against reading twice, 1.2x at 4096x4096 (12 MiB a tile) to 1.4x at 500x32768, dim 0.
_TILE_SHARE_OF_L3 = 0.5
# Bytes, as computed with, across a tile, and so the most in an inner axis that is one tile: those are read without a
# gap. Measured on a Zen 3, whose vectors are half as long as where this was found, two threads, dim 1, times of tiles
# of half of this over times of whole ones: gradient of softmax of 64x500x192 1.6, 32x300x256 1.6, softmax 1.1 and 1.4,
# log_softmax 1.4 and 1.6; sums of 64x500x196 1.1.
_TILE_BYTES = 1024
# The same of a longer inner axis, of exponentials in float32: as many as are added up in registers at once, and two
# such tiles fit L2. Measured on a Zen 4, softmax of 32x256x56x56, dim 1: 6.4 ms instead of 8.7, 8x21x512x512 11.4
# instead of 14.1; but of one tile, 64x1000x192, 5.2 instead of 4.7. With short vectors of everything, but where results
# are as long as what is read and four tiles of _TILE_BYTES fit L2: on a Zen 3 softmax of 16x256x3136, dim 1, takes 1.12
# times by half of this, 2x1000x2048 1.13, the gradient of 4096x4096, dim 0, 1.2 by twice this; but of 8x21x512x512
# softmax 1.07 by this, its gradient 1.2, of 4x64x256x256 1.06 and 1.1. But rows of results that end within lines gain
# by wider tiles, which share fewer of those, times by this (Zen 3: by half of this) over times by _TILE_BYTES: softmax
# of 100x100001, dim 0, Zen 3 1.8, a Sapphire Rapids Xeon 1.36, log_softmax 1.3 and 1.18, softmax's gradient 1.2 and
# 1.24; of 4x400x5001, dim 1, 1.2 and 1.11, 1.2 and 1.13, 1.4 and 1.18.
_LONG_AXIS_TILE_BYTES = 512
# Vectors across the widest tile, which the kernels have memory for. Of rows of results that do not begin with lines,
# and are to be written as one, so many are one tile. Measured on a Zen 3, two tiles for one: softmax of 64x1000x196,
# dim 1, 1.5x, log_softmax 2.0x, softmax of 128x500x250 1.6x.
_MOST_TILE_VECTORS = 32
# Bytes of such a row, of 32 bits or more, from which on writing them as one pays: what is kept of a row and finished
# with the next costs the same however long it is. Measured on a Zen 3, two threads, dim 1, times past the cache over
# times in it: gradient of softmax of 3000x50x33 1.5, 1500x100x49 1.15, 1000x100x81 1.0, 2048x40x100 0.9, 500x100x196
# 0.93; softmax 1.25, 1.1 to 1.2, 1.05, 1.0, 0.8; log_softmax 1.4, 1.15, 1.1, 1.0, 0.88; bfloat16 64x500x250 0.96 to
# 1.1.
_JOINED_ROW_BYTES = 384
# The same of softmax and log_softmax by long vectors of float32. Measured on a Zen 5, by one thread and by two: softmax
# of 4761x21x60 1.02 and 1.04, 3809x21x75 0.86 and 0.83, log_softmax 0.91 and 0.95, 0.74 and 0.76; 5830x21x49 1.03
# and 1.08, 0.99 and 1.04; but softmax's gradient of 800x100x75 1.31 and 1.09.
_LONG_VECTORS_JOINED_ROW_BYTES = 256
# Both inputs of a tile that kernels of long vectors take a few columns at a time (gradient_tiles.h): log_softmax's
# gradient of such long rows stays in the cache. Measured on a Zen 5, two threads, times in it over times past it:
# 791x21x361, dim 1, 0.74, 300x21x900 0.61, 500x40x300 0.74; 160x100x361, which is more, 0.97; softmax's 415x40x361
# 1.16.
_NEAR_BYTES = 256 << 10
# Bytes of the results of a tile that are put together in the cache.
_LEAST_TOGETHER, _MOST_TOGETHER = 1536, 20 << 10
_SHORT_COLUMNS = 16
# Of gradients, those so short that they gain nothing by stores past the cache where rows end within lines. Measured on
# a Zen 3, two threads, dim 1, times past it over times in it: softmax's of 20x3x100001 1.7, 20x4x70001 1.6, 20x6x50001
# 1.2, 16x8x40001 1.0, 16x16x20001 0.8; log_softmax's 2.0, 1.4, 1.1, 0.7, 0.7. (Softmax itself 1.8, 1.6, 1.35, 1.3, 1.0,
# log_softmax 1.7, 1.7, 1.7, 1.4, 1.1.)
_SHORT_GRADIENT_COLUMNS = 6
# Rows of results, of 32 bits or more, that end within lines go past the cache if they have so many elements. Measured
# on a Zen 4, ms, past it and in it: softmax's, dim 0, 4096x1001 3.0 and 3.7, log_softmax's 3.2 and 3.7; dim 1,
# 8x21x513x513 25.7 and 26.8, 100x300x257 4.8 and 5.3; but 64x1000x196 6.9 and 6.1, 2048x12x100 2.0 and 0.7,
# 2000x16x49 0.57 and 0.32, bfloat16 4096x1001 2.2 and 1.4. With AVX2 4096x1001 2.6 and 3.1, 2048x12x100 0.94 and
# 0.69; and there, by tiles of _TILE_BYTES, times past it over times in it: softmax and log_softmax of 100x100001, dim
# 0, 0.95 and 0.87, 2x21x257x257 0.88 and 0.75, 8x20x9001 0.9 and 0.8, 64x200x261 1.0; float64 0.92 and 0.9; but
# log_softmax's gradient in float64 1.3. On a Sapphire Rapids Xeon 100x100001 0.7 and 0.65, 4x400x5001 0.56 and 0.56,
# gradients 0.75 and 0.7, 0.66 and 0.8.
_LONG_ROW = 256
# Bytes across the narrowest tile, where wider ones do not fit the cache or are too few for all threads. Measured on a
# Zen 4, two threads, sums of 1000 x 1000 float32 in L3, dim 0: 31 us, and 67 in chunks of tiles of 256 columns;
# 3000 x 1001 145 and 263.
_NARROW_BYTES = 256
# Elements of one chunk of a long row: its input and nothing else in L1.
_CHUNK = 4096
# A reduction reads once whatever the chunk; longer ones cost fewer merges.
_REDUCE_CHUNK = 1 << 15
# Bytes of input and result from which on stores bypass the cache.
_NONTEMPORAL_BYTES = 16 << 20
# So many times that for softmax's gradient along rows, a third of which is written and for which little is computed: it
# waits for what a chip lets through to memory (28 GB/s of stores, by one core as by two). Measured on a Zen 4, two
# threads, stores past the cache over ordinary ones: 1600 x 1024 1.1 to 1.2, 24000 x 64 1.3 to 1.7, 15625 x 128 1.1 to
# 1.4; 40000 x 64, 29 MiB, 0.8.
_NONTEMPORAL_TIMES_OF_SOFTMAX_GRADIENT = 1.5
_CACHE_LINE = 64
# Fewer elements than this and waking a second thread costs more than it saves. Measured on a Zen 5, us by one thread
# and by two, softmax of 24x1000 float32 called in a loop 3.8 and 4.2, after 300 us of something else 3.9 and 12.3;
# log_softmax of 15x3x544, dim 1, 10.6 and 6.8, but 10.6 and 18.5; amid torch's operators, on its threads, 13.8 and 9.9.
_PARALLEL_ELEMENTS = 1 << 15
# `split` when there are fewer rows than this per thread.
_ROWS_PER_THREAD = 4
# Unless they wait in L3, and this much of the time all threads have one: 3 of 50257 float32 by two threads of a Zen 5,
# in the cache, 28 us by `split` and 14 by `row`, 3 of 131072 44 and 40, 8 of 128256 bfloat16 180 and 66.
_LEAST_BUSY = 0.75
# Inner axes of 2 to this many elements go to `packed`.
_PACKED_INNER = 16


@dataclass(frozen=True)
class CpuPlan:
    """How one problem is run on a CPU. Equal problems on equal machines have equal plans."""

    algorithm: str
    threads: int
    outer: tuple[Axis, ...]  # kept axes, less `inner`
    reduce: tuple[Axis, ...]
    inner: Axis  # the axis that tiles run along; size 1 for rows
    chunk: int  # elements (rows) or steps of the reduced axis (tiles) handled at once
    tile: int  # inner elements per tile
    resident: bool  # a row or tile waits in cache: one read of main memory
    split: bool  # the chunks of one row or tile go to several threads
    nontemporal: bool  # results bypass the cache
    why: tuple[str, ...] = field(default=(), compare=False)

    @property
    def reads(self) -> int:
        """How often an element of the input crosses main memory."""
        return 1 if self.resident else 2

    def __str__(self) -> str:
        cut = {
            "registers": "short rows, in registers",
            "row": "a row at a time, waiting in cache",
            "online": f"a row at a time in chunks of {self.chunk}",
            "split": f"chunks of {self.chunk} elements over all threads",
            "strided": f"tiles of {self.tile} columns x {self.chunk} steps",
            "packed": f"{self.inner.size} interleaved rows per tile, {self.chunk} steps at a time",
        }[self.algorithm]
        stores = ", stores past the cache" if self.nontemporal else ""
        return f"{self.algorithm}: {cut}; {self.threads} thread{'s' * (self.threads > 1)}{stores}"


class _Reasons:
    """Collects the sentences of `why`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)


def _contiguous_reduce(problem: Problem) -> bool:
    return problem.length == 1 or (len(problem.reduce) == 1 and problem.reduce[0].x_stride == 1)


def _direct(problem: Problem) -> bool:
    """Kernels can read and write the rows where they lie."""
    if not _contiguous_reduce(problem) or problem.dtype != problem.result_dtype:
        return False
    if _reads_pairs(problem) and problem.second_dtype != problem.dtype:
        return False
    if problem.op not in ELEMENTWISE or problem.length == 1:
        return True
    return problem.reduce[0].y_stride == 1 and (not _reads_pairs(problem) or problem.reduce[0].z_stride == 1)


def _reads_pairs(problem: Problem) -> bool:
    """Two inputs of the full shape."""
    return problem.op in ("softmax_backward", "log_softmax_backward")


def _one_pass(problem: Problem) -> bool:
    """Nothing has to be known of a row before its first result."""
    return problem.op not in ELEMENTWISE or problem.op == "logsumexp_backward"


def _row_element_bytes(problem: Problem) -> int:
    """What an element of a row takes in cache until its result is written."""
    compute = ITEMSIZE[problem.compute_dtype]
    if problem.op not in GRADIENTS:
        return ITEMSIZE[problem.dtype] + compute
    staged = 0 if _direct(problem) else 3 * compute  # both inputs converted, and the result
    return ITEMSIZE[problem.dtype] + ITEMSIZE[problem.second_dtype or problem.dtype] + staged


def _inner_axis(problem: Problem) -> int | None:
    """Which kept axis tiles should run along: the one that is faster in memory than the reduced axis, if any."""
    if _contiguous_reduce(problem) or len(problem.reduce) != 1 or problem.rows * problem.length == 0:
        return None
    best = None
    for i, axis in enumerate(problem.outer):
        faster = 0 < abs(axis.x_stride) < abs(problem.reduce[0].x_stride)
        if faster and (best is None or abs(axis.x_stride) < abs(problem.outer[best].x_stride)):
            best = i
    return best


def _can_pack(problem: Problem, inner: Axis) -> bool:
    """Whole steps of the reduced axis lie next to each other, in the result too."""
    reduced = problem.reduce[0]
    if not (2 <= inner.size <= _PACKED_INNER and inner.x_stride == 1 and reduced.x_stride == inner.size):
        return False
    if problem.op in ELEMENTWISE and not (inner.y_stride == 1 and reduced.y_stride == inner.size):
        return False
    return not _reads_pairs(problem) or (inner.z_stride == 1 and reduced.z_stride == inner.size)


def _refuse(problem: Problem, algorithm: str, reason: str) -> ValueError:
    return ValueError(
        f"{problem.op}: algorithm {algorithm!r} cannot serve an input of shape {problem.shape}, dtype {problem.dtype}, "
        f"dim {problem.dims}: {reason}; leave algorithm=None to have one chosen"
    )


def make_plan(problem: Problem, machine: Machine, threads: int, algorithm: str | None = None) -> CpuPlan:
    """The plan for a problem; `algorithm` forces one, or is refused with the reason it cannot serve."""
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"{problem.op}: unknown algorithm {algorithm!r}; choose from {', '.join(ALGORITHMS)}")
    why = _Reasons()
    inner = _inner_axis(problem)
    if algorithm in ("strided", "packed"):
        if inner is None:
            raise _refuse(problem, algorithm, "no kept axis is faster in memory than the reduced one")
        if algorithm == "packed" and not _can_pack(problem, problem.outer[inner]):
            raise _refuse(problem, algorithm, "the inner axis must have 2..16 contiguous elements")
    tiles = inner is not None and algorithm in (None, "strided", "packed")
    if problem.rows * problem.length < _PARALLEL_ELEMENTS:
        threads = 1
    if tiles:
        assert inner is not None
        return _plan_tiles(problem, machine, threads, algorithm, inner, why)
    return _plan_rows(problem, machine, threads, algorithm, why)


def _nontemporal(problem: Problem, why: _Reasons, times: float = 1) -> bool:
    if problem.op not in ELEMENTWISE or problem.floor_bytes < times * _NONTEMPORAL_BYTES:
        return False
    why(f"input and result are {problem.floor_bytes >> 20} MiB: stores bypass the cache")
    return True


def _rows_are_lines(problem: Problem, inner: Axis) -> bool:
    """All rows of the results begin and end with lines of memory, if the first does."""
    steps = [inner.size, problem.reduce[0].y_stride, *(axis.y_stride for axis in problem.outer if axis is not inner)]
    itemsize = ITEMSIZE[problem.result_dtype]
    return inner.y_stride == 1 and all(step * itemsize % _CACHE_LINE == 0 for step in steps)


def _long_rows_pass(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Rows of results that end within lines may go past the cache, for the whole lines that they have. Of shorter ones
    half a line stored past the cache costs more than whole ones in it: softmax of 64x1000x196, dim 1, 5.2 ms for 3.9 on
    a Zen 4."""
    if inner.size < _LONG_ROW or ITEMSIZE[problem.result_dtype] < 4:
        return False
    if problem.op not in GRADIENTS:
        return problem.length > _SHORT_COLUMNS
    if _reads_pairs(problem) and problem.length <= _SHORT_GRADIENT_COLUMNS:
        return False
    if problem.op != "log_softmax_backward":
        return True
    if machine.vector_bytes <= _NARROW_VECTOR_BYTES:
        return problem.compute_dtype != "float64"
    input_bytes = 2 * problem.length * inner.size * ITEMSIZE[problem.dtype]
    near = problem.compute_dtype == "float32" and input_bytes <= _NEAR_BYTES
    return not (near and _read_in_place(problem, inner))


def _read_in_place(problem: Problem, inner: Axis) -> bool:
    """Kernels read the columns of a tile where they lie, side by side and of the type they are computed in."""
    if inner.x_stride != 1 or problem.dtype != problem.compute_dtype:
        return False
    return not _reads_pairs(problem) or (inner.z_stride == 1 and problem.second_dtype == problem.dtype)


def _puts_together(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Small tiles are put together in the cache, and go past it from there beside the next one: of gradients that sum,
    and of short columns, by long vectors (tile_grid.h, which has figures and the same limits)."""
    if machine.vector_bytes <= _NARROW_VECTOR_BYTES or not _read_in_place(problem, inner):
        return False
    if (problem.dtype, problem.result_dtype) != ("float32", "float32"):
        return False
    row_bytes = inner.size * ITEMSIZE[problem.result_dtype]
    if not _LEAST_TOGETHER <= problem.length * row_bytes <= _MOST_TOGETHER:
        return False
    if problem.op in ("softmax", "log_softmax"):
        return problem.length <= _SHORT_COLUMNS and row_bytes >= 3 * machine.vector_bytes
    return _reads_pairs(problem) and row_bytes >= 2 * machine.vector_bytes


def _joins_rows(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Rows of the results of a tile of all columns are written together: what two of them share is kept until it is a
    whole line. Not log_softmax's gradient, whose exponentials hide no better behind that: 2048x40x100, dim 1, by tiles
    5.1 ms for 4.5 of stores in the cache on a Zen 4, softmax's 3.8 for 4.5."""
    itemsize = ITEMSIZE[problem.result_dtype]
    joins = problem.op in ("softmax", "log_softmax", "softmax_backward")
    long_vectors = machine.vector_bytes > _NARROW_VECTOR_BYTES and problem.compute_dtype == "float32"
    least = _LONG_VECTORS_JOINED_ROW_BYTES if long_vectors and problem.op not in GRADIENTS else _JOINED_ROW_BYTES
    joins = joins and itemsize >= 4 and inner.size * itemsize >= least
    return joins and problem.length > _SHORT_COLUMNS  # of fewer, all of a column is in registers at once


def _tile_bytes(problem: Problem, machine: Machine, *, lines: bool) -> int:
    """Across a tile of an inner axis that is longer than one; lines: rows of its results are."""
    if problem.op in ELEMENTWISE and not lines:
        return _TILE_BYTES
    if machine.vector_bytes <= _NARROW_VECTOR_BYTES:
        four_fit = 4 * problem.length * _TILE_BYTES <= machine.l2_bytes
        return _TILE_BYTES if problem.op in ELEMENTWISE and four_fit else _LONG_AXIS_TILE_BYTES
    exponentials = problem.op in ("softmax", "log_softmax", "logsumexp") and problem.compute_dtype == "float32"
    return _LONG_AXIS_TILE_BYTES if exponentials else _TILE_BYTES


def _tile_that_waits(problem: Problem, machine: Machine, tile: int, step: int) -> int:
    """A narrower tile where this one does not fit the cache and that does: exponentials take longer than what wider
    tiles save, the more so by short vectors."""
    if problem.op not in ("softmax", "log_softmax"):
        return tile
    narrow = _NARROW_BYTES if machine.vector_bytes <= _NARROW_VECTOR_BYTES else _LONG_AXIS_TILE_BYTES
    fitting = tile
    while not _fits_cache(problem, machine, fitting) and fitting > narrow // ITEMSIZE[problem.compute_dtype]:
        fitting = _half_a_tile(fitting, step)
    return fitting if _fits_cache(problem, machine, fitting) else tile


def _half_a_tile(tile: int, step: int) -> int:
    return -(-tile // (2 * step)) * step


def _tile_for_all_cores(problem: Problem, machine: Machine, inner: int, outer: int, tile: int, step: int) -> int:
    """A narrower tile where there would be too few of this one for all cores, and its chunks are not shared out.
    Measured on a Zen 3, log_softmax of 4096x256, dim 0, 815 us by two tiles, 1275 by one; softmax's gradient, whose
    chunks are, 844 and 489. Of a plain reduction whole columns are better: four for each thread, if there are."""
    if problem.rows * problem.length < _PARALLEL_ELEMENTS:
        return tile
    narrow = _NARROW_BYTES // ITEMSIZE[problem.compute_dtype]
    least = machine.cores
    if problem.op in REDUCTIONS and -(-inner // narrow) * outer >= _ROWS_PER_THREAD * machine.cores:
        least *= _ROWS_PER_THREAD
    elif not _waits_in_cache(problem, machine, tile) and problem.length > 2 * _tile_chunk(problem, machine, tile):
        return tile
    while tile > narrow and -(-inner // tile) * outer < least:
        tile = _half_a_tile(tile, step)
    return tile


def _waits_in_cache(problem: Problem, machine: Machine, tile: int) -> bool:
    """Whether a tile is kept between its two passes. It is read while the one before is written, from its exponentials
    or, a gradient, from both inputs."""
    return not _one_pass(problem) and _fits_cache(problem, machine, tile)


def _fits_cache(problem: Problem, machine: Machine, tile: int) -> bool:
    once = 0 if problem.op in GRADIENTS else ITEMSIZE[problem.dtype]
    budget = max(machine.l2_bytes // 2, int(machine.l3_bytes / machine.cores * _TILE_SHARE_OF_L3))
    return problem.length * tile * (2 * _row_element_bytes(problem) - once) <= budget


def _tile_chunk(problem: Problem, machine: Machine, tile: int) -> int:
    """Steps of a tile that are read at once where it does not wait."""
    return max(1, (machine.l2_bytes // 4) // (tile * ITEMSIZE[problem.dtype]))


def _register_row(problem: Problem, machine: Machine) -> int:
    """Elements of the longest rows that `registers` takes."""
    if problem.op in ("softmax", "log_softmax") and problem.compute_dtype == "float32":
        vectors = _SOFTMAX_REGISTER_VECTORS
    elif problem.op in ("softmax_backward", "log_softmax_backward") and problem.compute_dtype == "float32":
        vectors = _GRADIENT_REGISTER_VECTORS
    else:
        vectors = _REGISTER_VECTORS
    most = vectors * machine.vector_bytes // ITEMSIZE[problem.compute_dtype]
    if problem.op not in REDUCTIONS:
        return most
    if problem.op in ("sum", "mean"):
        rows = _SUM_REGISTER_ROW
    elif 2 * problem.floor_bytes <= machine.l3_bytes:
        rows = _EXTREME_REGISTER_ROW
    else:
        rows = _EXTREME_REGISTER_ROW_FROM_MEMORY
    narrow = machine.vector_bytes <= _NARROW_VECTOR_BYTES
    return min(most, rows[ITEMSIZE[problem.dtype]][narrow])


def _waits_in_l3(problem: Problem, machine: Machine, threads: int, row_bytes: int) -> bool:
    """A row that is not computed twice is worth more than the bytes it is not read again."""
    rounds = -(-problem.rows // threads)
    busy = problem.rows >= _LEAST_BUSY * threads * rounds
    fits = row_bytes <= machine.l3_bytes / machine.cores * _COMPUTED_ROW_SHARE_OF_L3
    return problem.op == "softmax" and _direct(problem) and busy and fits


def _plan_rows(problem: Problem, machine: Machine, threads: int, algorithm: str | None, why: _Reasons) -> CpuPlan:
    waits = not _one_pass(problem)
    register_row = _register_row(problem, machine)
    row_bytes = 2 * problem.length * _row_element_bytes(problem)
    beside = "what it is computed with" if problem.op in GRADIENTS else "their exponentials"
    fits = row_bytes <= machine.l2_bytes * _ROW_SHARE_OF_L2
    chosen = algorithm
    if chosen is None:
        if _direct(problem) and 0 < problem.length <= register_row:
            chosen = "registers"
            why(f"a row of {problem.length} is short (up to {register_row} here)")
        elif fits if waits else problem.length <= _REDUCE_CHUNK:
            chosen = "row"
            if waits:
                why(f"two rows of {problem.length} and {beside} are {row_bytes >> 10} KiB: they fit half of L2")
            else:
                why(f"a row of {problem.length} is read once, and nothing of it waits")
        elif _waits_in_l3(problem, machine, threads, row_bytes):
            chosen = "row"
            why(f"two rows and {beside}, {row_bytes >> 10} KiB, fit L3, which is faster than computing twice")
        elif threads > 1 and problem.rows < _ROWS_PER_THREAD * threads:
            chosen = "split"
            why(f"{problem.rows} long rows are too few to share out among {threads} threads")
        else:
            chosen = "online"
            why(f"two rows and {beside}, {row_bytes >> 10} KiB, do not fit half of L2")
    elif chosen == "registers":
        if not _direct(problem):
            raise _refuse(problem, chosen, "rows must be contiguous, input and result of one dtype")
        if problem.length > register_row:
            raise _refuse(problem, chosen, f"a row may have at most {register_row} elements here")
    if not _direct(problem):
        why("rows are gathered, converted and scattered through the cache, in pieces")
    resident = chosen in ("registers", "row") or not waits
    softmax_gradient = problem.op == "softmax_backward" and chosen in ("registers", "row")
    times = _NONTEMPORAL_TIMES_OF_SOFTMAX_GRADIENT if softmax_gradient else 1
    return CpuPlan(
        algorithm=chosen,
        threads=threads,
        outer=problem.outer,
        reduce=problem.reduce,
        inner=Axis(1, 1, 1),
        chunk=_row_chunk(problem, chosen),
        tile=1,
        resident=resident,
        split=chosen == "split",
        nontemporal=_nontemporal(problem, why, times),
        why=tuple(why.lines),
    )


def _row_chunk(problem: Problem, algorithm: str) -> int:
    if problem.op == "logsumexp_backward" and algorithm == "row" and _direct(problem):
        return max(problem.length, 1)
    if problem.op in (*ELEMENTWISE, "logsumexp"):
        return _CHUNK
    return _REDUCE_CHUNK


def _plan_tiles(
    problem: Problem, machine: Machine, threads: int, algorithm: str | None, inner_index: int, why: _Reasons
) -> CpuPlan:
    inner = problem.outer[inner_index]
    outer = problem.outer[:inner_index] + problem.outer[inner_index + 1 :]
    waits = not _one_pass(problem)
    compute = ITEMSIZE[problem.compute_dtype]
    lanes = machine.vector_bytes // compute
    length = problem.length
    chosen = algorithm
    if chosen is None:
        chosen = "packed" if _can_pack(problem, inner) else "strided"
    outer_size = math.prod(axis.size for axis in outer)
    enough = _ROWS_PER_THREAD * machine.cores  # tiles, for all threads to have work
    lines = chosen == "packed" or _rows_are_lines(problem, inner)
    long_rows = not lines and _long_rows_pass(problem, machine, inner)
    widest = _MOST_TILE_VECTORS * lanes
    most_whole = min(_TILE_BYTES // compute, widest)
    most = widest if outer_size >= enough else most_whole
    # Rows that are not lines are joined rather than cut, if they fit a tile and lie one behind the other; long ones of
    # gradients are not.
    joined = not (long_rows and problem.op in GRADIENTS) and _joins_rows(problem, machine, inner)
    joined = not lines and (joined or _puts_together(problem, machine, inner))
    joined = joined and inner.y_stride == 1 and problem.reduce[0].y_stride == inner.size
    joined = joined and inner.size <= most and outer_size >= machine.cores
    joined = joined and _fits_cache(problem, machine, inner.size)
    past_cache = (lines or long_rows or joined) and _nontemporal(problem, why)
    if chosen == "packed":
        why(f"{inner.size} rows lie interleaved: {lanes // math.gcd(lanes, inner.size)} steps fill whole vectors")
        tile = inner.size
    else:
        # Equal tiles: a narrow last one would cost as much as a full one. Past the cache they are whole lines.
        whole = inner.size <= most_whole or (joined and past_cache)
        count = 1 if whole else -(-inner.size // min(_tile_bytes(problem, machine, lines=lines) // compute, widest))
        step = max(lanes, _CACHE_LINE // ITEMSIZE[problem.result_dtype]) if past_cache else lanes
        tile = min(-(-inner.size // (count * step)) * step, inner.size)
        tile = _tile_that_waits(problem, machine, tile, step)
        tile = _tile_for_all_cores(problem, machine, inner.size, outer_size, tile, step)
        why(
            f"the reduced axis has stride {problem.reduce[0].x_stride}: tiles of {tile} columns are read along the rows"
        )
    resident = _fits_cache(problem, machine, tile)
    if resident:
        why(f"a tile of {length} steps waits in cache between its passes")
    elif waits:
        why(f"a tile of {length} steps does not fit the cache: it is read twice")
    units = outer_size * (1 if chosen == "packed" else -(-inner.size // tile))
    chunk = _tile_chunk(problem, machine, tile)
    # A plain reduction holds its columns in registers from the first step to the last: 1.2x to 1.4x of chunks of them.
    whole = problem.op in REDUCTIONS and units >= enough
    chunk = length if whole or (resident and length <= chunk) else min(chunk, length)
    split = threads > 1 and units < _ROWS_PER_THREAD * threads and not (resident and waits) and length > 2 * chunk
    if split:
        why(f"{units} tiles are too few to share out among {threads} threads: their chunks are")
    return CpuPlan(
        algorithm=chosen,
        threads=threads,
        outer=outer,
        reduce=problem.reduce,
        inner=inner,
        chunk=max(chunk, 1),
        tile=tile,
        resident=resident or not waits,
        split=split,
        nontemporal=past_cache,
        why=tuple(why.lines),
    )
