"""The plans for short rows whose elements take turns, a few rows' at a time: a slab of memory, which comes to the
registers of a few lanes for each row by way of shared memory, as short rows that start anywhere do."""

from __future__ import annotations

from ..problem import GRADIENTS, REDUCTIONS, Problem
from .kernel_plan import Choice, CudaPlan
from .plan_warp_smem import cut_short_rows, most_held_of, plan_cut
from .thresholds import (
    ACCESS_BYTES,
    FEWEST_UNEVEN_COLUMNS,
    LARGEST_SLAB_TEAM,
    LOGSUMEXP_SLAB_COLUMNS,
    LOGSUMEXP_SLABS,
    LONG_SLAB,
    MANY_SLAB_COLUMNS,
    MOST_GRADIENT_SLAB_OF_HALVES,
    MOST_NARROW_SLAB,
    MOST_REDUCED_SLAB,
    MOST_SLAB_TEAM,
    MOST_TALL_SLAB_COLUMNS,
    NARROW_REDUCED_SLAB,
    NARROW_SLAB_BYTES,
    REDUCED_SLABS,
    SHORTEST_NARROW_REDUCED_SLAB,
    SHORTEST_SMALL_SLAB,
    SLAB_ELEMENTS_PER_MULTIPROCESSOR,
    TALL_SLAB,
)
from .tuning import Tuning


def plan_slabs(choice: Choice) -> CudaPlan | None:
    """The plan of short rows whose elements take turns, a few rows' at a time, where it was asked for or pays, or
    None."""
    asked = choice.algorithm == "warp_smem"
    if not _are_slabs(choice):
        if asked:
            raise choice.refuse("rows neither follow each other in memory nor take turns there, a few at a time")
        return None
    if not asked and (choice.algorithm is not None or choice.tuning != Tuning()):
        return None  # they want tiles
    columns = choice.problem.outer[-1].size
    return plan_cut(choice, 1, columns) if asked or _slabs_pay(choice, columns) else None


def _are_slabs(choice: Choice) -> bool:
    """Whether the elements of some rows take turns in memory, then those of the next rows, in every array."""
    problem, gradient = choice.problem, choice.problem.op in GRADIENTS
    if not 1 <= len(problem.outer) <= 2 or len(problem.reduce) != 1:
        return False
    *slabs, column = problem.outer
    columns, step = column.size, problem.reduce[0]

    def packed(column: int, step: int, slabs: list[int]) -> bool:
        return (column, step) == (1, columns) and slabs in ([], [problem.length * columns])

    if choice.elementwise:
        result = packed(column.y_stride, step.y_stride, [slab.y_stride for slab in slabs])
    else:
        result = all(slab.y_stride == columns * column.y_stride for slab in slabs)
    beside = not gradient or packed(column.z_stride, step.z_stride, [slab.z_stride for slab in slabs])
    return packed(column.x_stride, step.x_stride, [slab.x_stride for slab in slabs]) and result and beside


def _slabs_pay(choice: Choice, columns: int) -> bool:
    """Whether rows, so many of which take turns, are better off that way than by tiles."""
    problem, size = choice.problem, ACCESS_BYTES // choice.access_pack
    few = columns < MANY_SLAB_COLUMNS
    fewest = SLAB_ELEMENTS_PER_MULTIPROCESSOR
    if not few or not SHORTEST_SMALL_SLAB <= problem.length < LONG_SLAB:
        fewest *= 4
    many = problem.rows * problem.length >= fewest * choice.device.multiprocessors
    if not many or not choice.device.copies_go_on:
        return False
    cut = cut_short_rows(choice, 1, columns)
    too_long = problem.op not in REDUCTIONS and cut.held > most_held_of(choice)  # for 32 lanes
    if too_long or cut.slabs == 0:
        return False
    if not choice.elementwise:
        return cut.team <= MOST_SLAB_TEAM and _pays_read_once(problem, columns, size)
    if problem.op != "softmax" and size == 2 and not few:
        return False
    whole = columns % choice.access_pack == 0  # accesses: tiles go by them, too
    if problem.op in GRADIENTS:
        return cut.team <= MOST_SLAB_TEAM and _pays_of_gradient(problem.length, columns, size, few or not whole)
    if problem.length < LONG_SLAB:
        tall = problem.op == "softmax" and problem.length >= TALL_SLAB and columns <= MOST_TALL_SLAB_COLUMNS
        return cut.team <= MOST_SLAB_TEAM and (few or columns % 2 == 1 or tall)
    most = LARGEST_SLAB_TEAM if problem.op == "softmax" and size == 4 else MOST_SLAB_TEAM
    return cut.team <= most and (columns % 2 == 1 or (not whole and columns >= FEWEST_UNEVEN_COLUMNS))


def _pays_of_gradient(length: int, columns: int, size: int, tiles_are_slow: bool) -> bool:
    if length < LONG_SLAB:
        return tiles_are_slow
    if columns % 2 == 1:
        return size > 2 or length <= MOST_GRADIENT_SLAB_OF_HALVES
    return columns * size <= NARROW_SLAB_BYTES and length <= MOST_NARROW_SLAB[size]


def _pays_read_once(problem: Problem, columns: int, size: int) -> bool:
    if size > 4:
        return False
    if problem.op == "logsumexp":
        shortest, longest = LOGSUMEXP_SLABS
        return shortest <= problem.length <= longest and columns in LOGSUMEXP_SLAB_COLUMNS
    shortest, longest = REDUCED_SLABS
    if columns <= NARROW_REDUCED_SLAB:
        shortest = SHORTEST_NARROW_REDUCED_SLAB
    return shortest <= problem.length <= longest and columns <= MOST_REDUCED_SLAB[size]
