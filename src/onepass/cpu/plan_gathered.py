"""Plans for rows that no kernel reads where they lie: blocks of them are gathered, computed side by side in a near
cache, and written back (gathered.h)."""

from __future__ import annotations

import math
from dataclasses import replace

from ..machine import Machine
from ..problem import ELEMENTWISE, ITEMSIZE, REDUCTIONS, Axis, Problem
from .cpu_plan import CpuPlan, Reasons, busy_threads, direct, is_one_type, is_small, nontemporal, reads_pairs
from .plan_packed import can_pack
from .plan_rows import plan_rows
from .plan_tiles import plan_tiles
from .thresholds import (
    CACHE_LINE,
    FEWEST_IN_PLACE,
    GATHERED_ELEMENTS,
    GATHERED_SHARE_OF_L3,
    NARROWEST_TILE_IN_PLACE,
    PIECE_BYTES,
    ROW_SHARE_OF_L2,
    ROWS_PER_THREAD,
    SHORTEST_PACKED_APART,
    SHORTEST_REDUCED_ROW_IN_GROUPS,
    SHORTEST_REPEATED,
    SHORTEST_ROW_BY_ROW,
    SHORTEST_ROW_IN_GROUPS,
    SHORTEST_ROW_IN_SMALL_GROUPS,
    SHORTEST_ROW_WITH_GAPS,
)

_RESIDENT = ("registers", "row")


def plan_gathered(
    problem: Problem, machine: Machine, threads: int, inner_index: int | None, why: Reasons
) -> CpuPlan | None:
    """The plan; None where kernels read rows or tiles where they lie, or no cache holds a block. `inner_index`: the
    kept axis that tiles would run along."""
    inner = None if inner_index is None else problem.outer[inner_index]
    if problem.rows * problem.length == 0 or not problem.outer or _read_in_place(problem, machine, inner):
        return None
    columns = _as_columns(problem)
    blocks = _blocks(problem, machine)
    if blocks is None:
        return None
    rows = math.prod(blocks)
    silent = Reasons()
    dense = _dense(problem, rows, columns=columns)
    if columns:
        inside = plan_tiles(dense, machine, 1, "strided", 0, silent)
    else:
        inside = plan_rows(dense, machine, 1, None, silent)
        if inside.algorithm not in _RESIDENT:
            return None
    shape = " x ".join(map(str, blocks))
    laid = "columns side by side" if columns else "rows one behind the other"
    why(f"blocks of {shape} rows of {problem.length} are gathered in a near cache, as {laid}")
    passes = _written_in_place(problem, blocks, columns=columns) and _in_lines(problem, blocks)
    return replace(
        inside,
        threads=busy_threads(problem, machine, threads, gathered=True),
        outer=problem.outer,
        reduce=problem.reduce,
        inner=Axis(1, 1, 1),
        blocks=blocks,
        nontemporal=passes and nontemporal(problem, why),
        why=tuple(why.lines),
    )


def _read_in_place(problem: Problem, machine: Machine, inner: Axis | None) -> bool:
    """Whether rows, or tiles along `inner`, lie as kernels read and write them; or take so long each that it does not
    matter."""
    if inner is None:
        if direct(problem):
            return _all_adjoin(problem, problem.length) or problem.length >= _shortest_apart(problem)
        lies_along = len(problem.reduce) == 1 and _is_nearest(problem, problem.reduce[0], _strides(problem))
        return lies_along and problem.length >= SHORTEST_ROW_BY_ROW
    if problem.length > 1 and can_pack(problem, machine, inner):
        elements = problem.length * inner.size
        if not is_one_type(problem):
            return len(problem.outer) == 1
        return _all_adjoin(problem, elements, inner) or elements >= SHORTEST_PACKED_APART
    strides = _strides(problem)
    lines = inner.size >= SHORTEST_REPEATED and inner.size * ITEMSIZE[problem.dtype] % CACHE_LINE == 0
    if reads_pairs(problem) and inner.z_stride == 0 and problem.dtype == problem.compute_dtype and lines:
        strides.remove("z_stride")  # a row of the tile is one element, many times
    if not is_one_type(problem) or not _is_nearest(problem, inner, strides):
        return False
    if any(getattr(inner, stride) != 1 for stride in strides):
        return False
    exponentials = problem.op in ("softmax", "log_softmax", "logsumexp")
    return len(problem.outer) == 1 or inner.size >= NARROWEST_TILE_IN_PLACE[exponentials]


def _all_adjoin(problem: Problem, elements: int, inner: Axis | None = None) -> bool:
    """Whether rows of so many elements, with those side by side along `inner`, each follow the one before, in the
    arrays that have a value for every element."""
    apart = [axis for axis in problem.outer if axis is not inner]
    follow = all(getattr(axis, stride) == elements for axis in apart for stride in _strides(problem))
    return len(apart) <= 1 and follow


def _shortest_apart(problem: Problem) -> int:
    """Elements of rows that are as quick one by one, though they do not all follow each other."""
    inner = problem.outer[-1]
    if inner.x_stride == problem.length and inner.size * problem.length >= FEWEST_IN_PLACE:
        return SHORTEST_REDUCED_ROW_IN_GROUPS if problem.op in REDUCTIONS else SHORTEST_ROW_IN_GROUPS
    with_gaps = SHORTEST_ROW_WITH_GAPS[problem.op]
    return with_gaps if len(problem.outer) == 1 else max(with_gaps, SHORTEST_ROW_IN_SMALL_GROUPS)


def _strides(problem: Problem) -> list[str]:
    """Of the arrays that have a value for every element."""
    second = ["z_stride"] if reads_pairs(problem) else []
    return ["x_stride", *second, *(["y_stride"] if problem.op in ELEMENTWISE else [])]


def _is_nearest(problem: Problem, axis: Axis, strides: list[str]) -> bool:
    """Whether what follows along this axis is what is nearest in memory, in the arrays with these strides."""
    others = [other for other in (*problem.outer, *problem.reduce) if other is not axis]
    for stride in strides:
        distances = [abs(getattr(other, stride)) for other in others]
        if not 0 < abs(getattr(axis, stride)) < min((d for d in distances if d), default=math.inf):
            return False
    return True


def _as_columns(problem: Problem) -> bool:
    """Whether blocks are columns side by side: as results lie, which are then written at once, or, of reductions, as
    what is read lies."""
    stride = "y_stride" if problem.op in ELEMENTWISE else "x_stride"

    def nearest(axes: tuple[Axis, ...]) -> float:
        return min((abs(getattr(axis, stride)) for axis in axes if getattr(axis, stride)), default=math.inf)

    return nearest(problem.outer) < nearest(problem.reduce)


def _blocks(problem: Problem, machine: Machine) -> tuple[int, ...] | None:
    """Rows of a block, along each kept axis: those that share pieces of memory, and more until there is enough to do.
    None where a cache does not hold so many."""
    most = _most_rows(problem, machine)
    cores = 1 if is_small(problem, machine, gathered=True) else machine.cores
    # Smaller pieces where a cache does not hold blocks of larger ones, or these would leave cores idle.
    possible = [_sharing(problem, piece) for piece in PIECE_BYTES]
    possible = [blocks for blocks in possible if math.prod(blocks) <= most]
    if not possible:
        return None
    blocks = next((blocks for blocks in possible if _count(problem, blocks) >= cores), possible[-1])
    wanted = min(most, GATHERED_ELEMENTS / problem.length, problem.rows / (ROWS_PER_THREAD * cores))
    by_result = sorted(range(len(blocks)), key=lambda i: abs(problem.outer[i].y_stride) or math.inf)
    for i in by_result:
        axis = problem.outer[i]
        more = int(wanted / math.prod(blocks))
        enough = direct(problem) and math.prod(blocks) * problem.length >= FEWEST_IN_PLACE
        if more > 1 and not enough:
            parts = -(-axis.size // (blocks[i] * more))  # of equal size, or the last would be less than a block
            step = CACHE_LINE // ITEMSIZE[problem.result_dtype] if axis.y_stride == 1 else 1
            blocks[i] = min(-(-axis.size // (parts * step)) * step, axis.size)
    return tuple(blocks)


def _sharing(problem: Problem, piece: int) -> list[int]:
    """Rows along each kept axis of which some elements lie within so many bytes, in one of the arrays."""
    sizes = {"x_stride": ITEMSIZE[problem.dtype], "y_stride": ITEMSIZE[problem.result_dtype]}
    if reads_pairs(problem):
        sizes["z_stride"] = ITEMSIZE[problem.second_dtype or problem.dtype]
    blocks = []
    for axis in problem.outer:
        near = [abs(getattr(axis, stride)) * size for stride, size in sizes.items() if getattr(axis, stride)]
        blocks.append(min(axis.size, max([1, *(piece // step for step in near)])))
    return blocks


def _count(problem: Problem, blocks: list[int]) -> int:
    return math.prod(-(-axis.size // of_block) for axis, of_block in zip(problem.outer, blocks, strict=True))


def _most_rows(problem: Problem, machine: Machine) -> float:
    """That a near cache holds, with what is computed of them."""
    compute = ITEMSIZE[problem.compute_dtype]
    held = ITEMSIZE[problem.dtype] if is_one_type(problem) else compute
    arrays = 2 + reads_pairs(problem) if problem.op in ELEMENTWISE else 1
    row_bytes = problem.length * (arrays * held + (compute if problem.op == "softmax" else 0))
    return max(machine.l2_bytes * ROW_SHARE_OF_L2, machine.l3_bytes / machine.cores * GATHERED_SHARE_OF_L3) / row_bytes


def _dense(problem: Problem, rows: int, *, columns: bool) -> Problem:
    """A block, as kernels see it."""
    pairs = reads_pairs(problem)
    elementwise = problem.op in ELEMENTWISE
    row, step = (1, rows) if columns else (problem.length, 1)
    one = problem.compute_dtype if not is_one_type(problem) else problem.dtype
    kept = Axis(rows, row, row if elementwise else 1, row if pairs else 1, 1)
    reduced = Axis(problem.length, step, step if elementwise else 0, step if pairs else 0, 0)
    shape = (problem.length, rows) if columns else (rows, problem.length)
    return replace(
        problem,
        dtype=one,
        result_dtype=one if elementwise else problem.result_dtype,
        second_dtype=one if pairs else problem.second_dtype,
        shape=shape,
        dims=(0,) if columns else (1,),
        result_shape=shape if elementwise else (rows,),
        outer=(kept,),
        reduce=(reduced,) if problem.length > 1 else (),
        in_order=True,
    )


def _written_in_place(problem: Problem, blocks: tuple[int, ...], *, columns: bool) -> bool:
    """Kernels write the results of a block where they belong: its rows follow each other at one distance, and what has
    to lies side by side."""
    if problem.op not in ELEMENTWISE or not is_one_type(problem) or len(problem.reduce) > 1:
        return False
    row, size = 0, 1
    for axis, of_block in zip(reversed(problem.outer), reversed(blocks), strict=True):
        if of_block > 1 and size > 1 and axis.y_stride != size * row:
            return False
        if of_block > 1 and size == 1:
            row = axis.y_stride
        size *= of_block
    return row == 1 if columns else problem.length == 1 or problem.reduce[0].y_stride == 1


def _in_lines(problem: Problem, blocks: tuple[int, ...]) -> bool:
    """Results that lie side by side in a block are whole cache lines, if the first begins with one."""
    line = CACHE_LINE // ITEMSIZE[problem.result_dtype]
    sizes = [axis.size for axis in problem.reduce]
    of_axes = zip((*problem.outer, *problem.reduce), (*blocks, *sizes), strict=True)
    steps = [size if axis.y_stride == 1 else axis.y_stride for axis, size in of_axes]
    return all(step % line == 0 for step in steps)
