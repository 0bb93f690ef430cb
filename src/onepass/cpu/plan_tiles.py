"""Plans for rows that lie across memory: tiles of neighbouring ones, read along what is between them."""

from __future__ import annotations

import math
from dataclasses import replace

from ..machine import Machine
from ..problem import ELEMENTWISE, GRADIENTS, ITEMSIZE, REDUCTIONS, Axis, Problem
from .cpu_plan import (
    CpuPlan,
    Reasons,
    busy_threads,
    is_small,
    may_be_in_l3,
    nontemporal,
    one_pass,
    reads_pairs,
    row_element_bytes,
)
from .plan_packed import packs
from .thresholds import (
    CACHE_LINE,
    FAR_SHARE_OF_L3,
    FEWEST_EDGES,
    JOINED_ROW_BYTES,
    L1_WAY_BYTES,
    LEAST_PIECES,
    LEAST_SHORT_PIECES,
    LEAST_TOGETHER,
    LEAST_WIDE_ROWS,
    LONG_AXIS_TILE_BYTES,
    LONG_ROW,
    LONG_VECTORS_JOINED_GRADIENT_ROW_BYTES,
    LONG_VECTORS_JOINED_ROW_BYTES,
    MOST_GRADIENT_TILE_VECTORS,
    MOST_TILE_VECTORS,
    MOST_TOGETHER,
    NARROW_BYTES,
    NARROW_VECTOR_BYTES,
    NEAR_BYTES,
    NONTEMPORAL_TIMES_OF_EDGES,
    NONTEMPORAL_TIMES_OF_NEAR_GRADIENT,
    ROWS_PER_THREAD,
    SHORT_COLUMNS,
    SHORT_GRADIENT_COLUMNS,
    TILE_BYTES,
    TILE_SHARE_OF_L3,
    WIDE_GRADIENT_TILE_BYTES,
    WIDE_SHARE_OF_L2,
)


def inner_axis(problem: Problem) -> int | None:
    """Which kept axis tiles should run along: the one that is faster in memory than the reduced axis, if any; of rows
    of one element the fastest."""
    single = problem.length == 1
    if problem.rows * problem.length == 0 or not (single or len(problem.reduce) == 1):
        return None
    best = None
    for i, axis in enumerate(problem.outer):
        faster = axis.x_stride != 0 and (single or abs(axis.x_stride) < abs(problem.reduce[0].x_stride))
        if faster and (best is None or abs(axis.x_stride) < abs(problem.outer[best].x_stride)):
            best = i
    return best


def _rows_are_lines(problem: Problem, inner: Axis) -> bool:
    """All rows of the results begin and end with lines of memory, if the first does."""
    steps = [inner.size, problem.reduce[0].y_stride, *(axis.y_stride for axis in problem.outer if axis is not inner)]
    itemsize = ITEMSIZE[problem.result_dtype]
    return inner.y_stride == 1 and all(step * itemsize % CACHE_LINE == 0 for step in steps)


def _long_rows_pass(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Rows of results that end within lines may go past the cache, for the whole lines that they have. Of shorter ones
    half a line stored past the cache costs more than whole ones in it: softmax of 64x1000x196, dim 1, 5.2 ms for 3.9 on
    a Zen 4."""
    if inner.size < LONG_ROW or ITEMSIZE[problem.result_dtype] < 4:
        return False
    if problem.op not in GRADIENTS:
        return problem.length > SHORT_COLUMNS
    if reads_pairs(problem) and problem.length <= SHORT_GRADIENT_COLUMNS:
        return False
    if problem.op != "log_softmax_backward":
        return True
    if machine.vector_bytes <= NARROW_VECTOR_BYTES:
        return problem.compute_dtype != "float64"
    return not _is_near(problem, inner)


def _is_near(problem: Problem, inner: Axis) -> bool:
    """Both inputs of one step of the outer axes wait in a near cache while kernels of long vectors take a few columns
    at a time."""
    input_bytes = 2 * problem.length * inner.size * ITEMSIZE[problem.dtype]
    return problem.compute_dtype == "float32" and input_bytes <= NEAR_BYTES and _read_in_place(problem, inner)


def _times_that_pass(problem: Problem, machine: Machine, inner: Axis, *, lines: bool) -> float:
    """From how many times NONTEMPORAL_BYTES on tiles go past the cache."""
    columns = reads_pairs(problem) and problem.length > SHORT_COLUMNS and _by_long_vectors(problem, machine)
    if not (columns and _is_near(problem, inner)):
        return 1
    few_edges = lines or problem.length < FEWEST_EDGES
    return NONTEMPORAL_TIMES_OF_NEAR_GRADIENT if few_edges else NONTEMPORAL_TIMES_OF_EDGES


def _read_in_place(problem: Problem, inner: Axis) -> bool:
    """Kernels read the columns of a tile where they lie, side by side and of the type they are computed in."""
    if inner.x_stride != 1 or problem.dtype != problem.compute_dtype:
        return False
    return not reads_pairs(problem) or (inner.z_stride == 1 and problem.second_dtype == problem.dtype)


def _puts_together(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Small tiles are put together in the cache, and go past it from there beside the next one: of gradients that sum,
    and of short columns, by long vectors (tile_grid.h, which has figures and the same limits)."""
    if machine.vector_bytes <= NARROW_VECTOR_BYTES or not _read_in_place(problem, inner):
        return False
    if (problem.dtype, problem.result_dtype) != ("float32", "float32"):
        return False
    row_bytes = inner.size * ITEMSIZE[problem.result_dtype]
    if not LEAST_TOGETHER <= problem.length * row_bytes <= MOST_TOGETHER:
        return False
    if problem.op in ("softmax", "log_softmax"):
        return problem.length <= SHORT_COLUMNS and row_bytes >= 3 * machine.vector_bytes
    return reads_pairs(problem) and row_bytes >= 2 * machine.vector_bytes


def _by_long_vectors(problem: Problem, machine: Machine) -> bool:
    return machine.vector_bytes > NARROW_VECTOR_BYTES and problem.compute_dtype == "float32"


def _joins_rows(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Rows of the results of a tile of all columns are written together: what two of them share is kept until it is a
    whole line. log_softmax's gradient, whose exponentials hide no better behind that, by long vectors only, where it
    costs next to nothing (LONG_VECTORS_JOINED_ROW_BYTES)."""
    itemsize = ITEMSIZE[problem.result_dtype]
    long_vectors = _by_long_vectors(problem, machine)
    joins = problem.op in ("softmax", "log_softmax", "softmax_backward")
    joins = joins or (long_vectors and problem.op == "log_softmax_backward")
    least = JOINED_ROW_BYTES
    if long_vectors:
        of_softmax = problem.op == "softmax_backward"
        least = LONG_VECTORS_JOINED_GRADIENT_ROW_BYTES if of_softmax else LONG_VECTORS_JOINED_ROW_BYTES
    joins = joins and itemsize >= 4 and inner.size * itemsize >= least
    return joins and problem.length > SHORT_COLUMNS  # of fewer, all of a column is in registers at once


def _tile_bytes(problem: Problem, machine: Machine, *, lines: bool) -> int:
    """Across a tile of an inner axis that is longer than one; lines: rows of its results are."""
    if problem.op in ELEMENTWISE and not lines:
        return TILE_BYTES
    if machine.vector_bytes <= NARROW_VECTOR_BYTES:
        four_fit = 4 * problem.length * TILE_BYTES <= machine.l2_bytes
        return TILE_BYTES if problem.op in ELEMENTWISE and four_fit else LONG_AXIS_TILE_BYTES
    exponentials = problem.op in ("softmax", "log_softmax", "logsumexp") and problem.compute_dtype == "float32"
    return LONG_AXIS_TILE_BYTES if exponentials else TILE_BYTES


def _has_long_pieces(problem: Problem, machine: Machine, inner: Axis, *, lines: bool) -> bool:
    """Gradients from memory by short vectors, of whose rows a tile has room for longer pieces; lines: rows of results
    are."""
    if machine.vector_bytes > NARROW_VECTOR_BYTES or not reads_pairs(problem) or not _read_in_place(problem, inner):
        return False
    input_bytes = 2 * problem.length * WIDE_GRADIENT_TILE_BYTES
    if problem.dtype != "float32" or input_bytes > WIDE_SHARE_OF_L2 * machine.l2_bytes:
        return False
    pieces = inner.size * ITEMSIZE["float32"] // WIDE_GRADIENT_TILE_BYTES
    if problem.length > SHORT_COLUMNS:
        return pieces >= LEAST_PIECES
    if problem.op != "softmax_backward" or problem.length < LEAST_WIDE_ROWS:
        return False
    # All rows of a column in one set of L1, which the short columns' kernel reads at once.
    in_one_set = problem.reduce[0].x_stride * ITEMSIZE["float32"] % L1_WAY_BYTES == 0
    far = problem.floor_bytes >= FAR_SHARE_OF_L3 * machine.l3_bytes
    apart = not lines or (in_one_set and far)
    return pieces >= (1 if apart else LEAST_SHORT_PIECES)


def _tile_that_waits(problem: Problem, machine: Machine, tile: int, step: int) -> int:
    """A narrower tile where this one does not fit the cache and that does: exponentials take longer than what wider
    tiles save, the more so by short vectors."""
    if problem.op not in ("softmax", "log_softmax"):
        return tile
    narrow = NARROW_BYTES if machine.vector_bytes <= NARROW_VECTOR_BYTES else LONG_AXIS_TILE_BYTES
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
    if is_small(problem, machine):
        return tile
    narrow = NARROW_BYTES // ITEMSIZE[problem.compute_dtype]
    least = busy_threads(problem, machine, machine.cores)
    if problem.op in REDUCTIONS and -(-inner // narrow) * outer >= ROWS_PER_THREAD * least:
        least *= ROWS_PER_THREAD
    elif not _waits_in_cache(problem, machine, tile) and problem.length > 2 * _tile_chunk(problem, machine, tile):
        return tile
    while tile > narrow and -(-inner // tile) * outer < least:
        tile = _half_a_tile(tile, step)
    return tile


def _waits_in_cache(problem: Problem, machine: Machine, tile: int) -> bool:
    """Whether a tile is kept between its two passes. It is read while the one before is written, from its exponentials
    or, a gradient, from both inputs."""
    return not one_pass(problem) and _fits_cache(problem, machine, tile)


def _fits_cache(problem: Problem, machine: Machine, tile: int) -> bool:
    once = 0 if problem.op in GRADIENTS else ITEMSIZE[problem.dtype]
    budget = max(machine.l2_bytes // 2, int(machine.l3_bytes / machine.cores * TILE_SHARE_OF_L3))
    return problem.length * tile * (2 * row_element_bytes(problem) - once) <= budget


def _tile_chunk(problem: Problem, machine: Machine, tile: int) -> int:
    """Steps of a tile that are read at once where it does not wait."""
    return max(1, (machine.l2_bytes // 4) // (tile * ITEMSIZE[problem.dtype]))


def plan_tiles(
    problem: Problem, machine: Machine, threads: int, algorithm: str | None, inner_index: int, why: Reasons
) -> CpuPlan:
    if problem.length == 1:
        problem = replace(problem, reduce=(Axis(1, 0, 0),))
    inner = problem.outer[inner_index]
    outer = problem.outer[:inner_index] + problem.outer[inner_index + 1 :]
    waits = not one_pass(problem)
    compute = ITEMSIZE[problem.compute_dtype]
    lanes = machine.vector_bytes // compute
    length = problem.length
    chosen = algorithm
    if chosen is None:
        kept = not waits or _fits_cache(problem, machine, inner.size)
        narrower_kept = kept or _fits_cache(problem, machine, _tile_that_waits(problem, machine, inner.size, lanes))
        packed = packs(problem, machine, inner, kept=kept, narrower_kept=narrower_kept)
        chosen = "packed" if packed else "strided"
    outer_size = math.prod(axis.size for axis in outer)
    enough = ROWS_PER_THREAD * machine.cores  # tiles, for all threads to have work
    lines = chosen == "packed" or _rows_are_lines(problem, inner)
    long_rows = not lines and _long_rows_pass(problem, machine, inner)
    widest = MOST_TILE_VECTORS * lanes
    most_whole = min(TILE_BYTES // compute, widest)
    most = widest if outer_size >= enough else most_whole
    # Rows that are not lines are joined rather than cut, if they fit a tile and lie one behind the other; long ones of
    # gradients by long vectors only.
    cut = long_rows and problem.op in GRADIENTS and not _by_long_vectors(problem, machine)
    joined = not cut and _joins_rows(problem, machine, inner)
    joined = not lines and (joined or _puts_together(problem, machine, inner))
    joined = joined and inner.y_stride == 1 and problem.reduce[0].y_stride == inner.size
    joined = joined and inner.size <= most and outer_size >= machine.cores
    joined = joined and _fits_cache(problem, machine, inner.size)
    times = 1 if chosen == "packed" else _times_that_pass(problem, machine, inner, lines=lines)
    past_cache = (lines or long_rows or joined) and nontemporal(problem, why, times)
    if chosen == "packed":
        why(f"{inner.size} rows lie interleaved: {lanes // math.gcd(lanes, inner.size)} steps fill whole vectors")
        tile = inner.size
    else:
        # Equal tiles: a narrow last one would cost as much as a full one. Past the cache they are whole lines.
        whole = inner.size <= most_whole or (joined and past_cache)
        columns = min(_tile_bytes(problem, machine, lines=lines) // compute, widest)
        if past_cache and _has_long_pieces(problem, machine, inner, lines=lines):
            columns = min(WIDE_GRADIENT_TILE_BYTES // compute, MOST_GRADIENT_TILE_VECTORS * lanes)
        count = 1 if whole else -(-inner.size // columns)
        step = max(lanes, CACHE_LINE // ITEMSIZE[problem.result_dtype]) if past_cache else lanes
        tile = min(-(-inner.size // (count * step)) * step, inner.size)
        tile = _tile_that_waits(problem, machine, tile, step)
        tile = _tile_for_all_cores(problem, machine, inner.size, outer_size, tile, step)
        if length == 1:
            why(f"rows have one element: tiles of {tile} of them are columns")
        else:
            stride = problem.reduce[0].x_stride
            why(f"the reduced axis has stride {stride}: tiles of {tile} columns are read along the rows")
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
    split = threads > 1 and units < ROWS_PER_THREAD * threads and not (resident and waits) and length > 2 * chunk
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
        cached=problem.op in REDUCTIONS and may_be_in_l3(problem, machine),
        why=tuple(why.lines),
    )
