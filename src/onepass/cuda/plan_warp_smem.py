"""The plans for short rows that start anywhere: they come to the registers of a few lanes by way of shared memory."""

from __future__ import annotations

from collections.abc import Callable

from ..problem import GRADIENTS, REDUCTIONS, Axis
from .kernel_plan import ONCE, Choice, CudaPlan, build
from .rounding import ceil_div, ceil_power
from .thresholds import (
    ACCESS_BYTES,
    FORCED_WARP_REGISTERS,
    MOST_WARP_SMEM,
    MOST_WARP_SMEM_ROWS,
    NARROW_LENGTH,
    WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR,
    WARP_SMEM_BYTES,
    WARP_SMEM_HELD,
    WARP_SMEM_HELD_OF_BOTH,
    WARP_SMEM_REDUCED,
    WARP_SMEM_ROWS_PER_MULTIPROCESSOR,
    WARP_THREADS,
)


def plan_short_rows(choice: Choice, whole_pack: Callable[[Choice], int]) -> CudaPlan | None:
    """The plan where it was asked for or pays, or None. `whole_pack`: the most elements per access that every row of
    every array is a whole number of."""
    asked = choice.algorithm == "warp_smem"
    if not _follow_each_other(choice):
        if asked:
            raise choice.refuse("rows do not follow each other in memory")
        return None
    if not asked and choice.algorithm is not None:
        return None
    pack = whole_pack(choice)
    return _plan(choice, pack) if asked or _pays(choice, pack) else None


def many_short_rows(choice: Choice) -> bool:
    return choice.problem.rows >= WARP_SMEM_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def _follow_each_other(choice: Choice) -> bool:
    """Whether the rows lie one after the other in every array, with nothing between them."""
    problem, gradient = choice.problem, choice.problem.op in GRADIENTS
    if len(problem.outer) > 1 or len(problem.reduce) > 1:
        return False

    def packed(row: int, step: int) -> bool:
        return step == 1 and (row == problem.length or problem.rows == 1)

    outer, inner = choice.kept_axes[0], _along(choice)
    return (
        packed(outer.x_stride, inner.x_stride)
        and (packed(outer.y_stride, inner.y_stride) or not (choice.elementwise or gradient))
        and (packed(outer.z_stride, inner.z_stride) or not gradient)
    )


def _along(choice: Choice) -> Axis:
    return choice.problem.reduce[0] if choice.problem.reduce else Axis(1, 1, 1, 1)


def _pays(choice: Choice, pack: int) -> bool:
    """Whether rows that are whole packs of so many elements, no more, are better off that way."""
    problem, sizes = choice.problem, [choice.x_size]
    sizes += [choice.y_size] if choice.elementwise else []
    sizes += [choice.y_size, choice.z_size] if problem.op in GRADIENTS else []
    narrowest = min(sizes)
    if not many_short_rows(choice) or not choice.device.copies_go_on:
        return False
    if pack * narrowest == ACCESS_BYTES:
        return False
    if pack == 4 and choice.elementwise and problem.length <= NARROW_LENGTH:
        return False  # lanes that read packs of four do as well
    most = MOST_WARP_SMEM["plain" if problem.op in REDUCTIONS else problem.op][narrowest]
    return problem.length <= most[pack.bit_length() - 1]


def _plan(choice: Choice, pack: int) -> CudaPlan:
    """`pack`: elements per access to shared memory, of rows that are whole ones."""
    problem, tuning = choice.problem, choice.tuning
    gradient, plain = problem.op in GRADIENTS, problem.op in REDUCTIONS
    per_element = choice.registers_per_element * choice.kept_arrays
    threads = tuning.threads or WARP_THREADS
    packs = max(1, problem.length // pack)
    most_held = WARP_SMEM_HELD_OF_BOTH if gradient else WARP_SMEM_HELD
    of_a_lane = WARP_SMEM_REDUCED if plain else most_held
    lanes = tuning.lanes or min(32, ceil_power(ceil_div(packs * pack * per_element, of_a_lane)))
    per_lane = ceil_div(packs, lanes)
    held = per_lane * pack * per_element
    groups = threads // lanes
    sizes = [max(choice.x_size, choice.y_size) if choice.elementwise else choice.x_size]
    if gradient:
        sizes = [max(choice.z_size, choice.y_size), choice.x_size]
    row_bytes = problem.length * sizes[0]
    rows = tuning.rows or 1
    if tuning.rows is None and choice.registers_per_element == 1:
        while (
            rows < MOST_WARP_SMEM_ROWS
            and 2 * rows * held <= most_held
            and rows * (32 // lanes) * row_bytes < WARP_SMEM_BYTES
            and problem.rows >= 2 * rows * groups * WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR * choice.device.multiprocessors
        ):
            rows *= 2
    if rows * held > 2 * FORCED_WARP_REGISTERS and not plain:
        most = 2 * FORCED_WARP_REGISTERS * lanes // rows // per_element
        raise choice.refuse(f"{lanes} lanes hold at most {most} elements of a row")
    # chunk.h's Chunk::bytes
    elements = rows * (32 // lanes) * problem.length
    chunk = sum((elements * size + 2 * ACCESS_BYTES - 1) // ACCESS_BYTES * ACCESS_BYTES for size in sizes)
    if threads // 32 * chunk > choice.device.shared_per_block:
        raise choice.refuse(f"{threads // 32} warps have no room for {rows * (32 // lanes)} rows each in shared memory")
    shape: dict[str, int | str | bool] = {"threads": threads, "lanes": lanes}
    if not plain:
        shape["packs"] = per_lane
    shape |= {"rows": rows, "pack": pack}
    if not plain:
        shape["padded"] = per_lane * lanes * pack != problem.length
    lane = "a lane has" if lanes == 1 else f"{lanes} lanes share"
    choice.why.append(
        f"rows start off the boundaries of accesses: a warp brings {rows * (32 // lanes)} of them as one piece, and "
        f"{lane} each of them"
    )
    name = "gradient_warp_smem" if gradient else "warp_smem"
    return build(
        choice,
        "warp_smem",
        f"{name}.h",
        f"{name}_reduce" if plain else name,
        "WarpSmemReduce" if plain else "WarpSmem",
        shape,
        threads=threads,
        shared_bytes=threads // 32 * chunk,
        units=problem.rows,
        units_per_block=groups * rows,
        axes=(*choice.kept_axes, _along(choice)) if gradient else choice.kept_axes,
        reads=1,
        waves=ONCE,
    )
