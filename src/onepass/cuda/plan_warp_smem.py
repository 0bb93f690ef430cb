"""The plans for short rows that start anywhere: they come to the registers of a few lanes by way of shared memory.
plan_slabs.py has those whose elements take turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..problem import GRADIENTS, REDUCTIONS, Axis
from .kernel_plan import ONCE, Choice, CudaPlan, build
from .rounding import ceil_div, ceil_power, floor_power
from .thresholds import (
    ACCESS_BYTES,
    BUSY_SLAB_GROUPS,
    FEWEST_BUSY_SLAB_GROUPS,
    FORCED_WARP_REGISTERS,
    FULL_GRADIENT_GROUP,
    LARGEST_SLAB_TEAM,
    LONG_TINY_ROW,
    MANY_SHORT_ROWS_PER_MULTIPROCESSOR,
    MANY_TINY_ROWS_PER_MULTIPROCESSOR,
    MOST_ODD_PACKS,
    MOST_PACKS_OF_A_LANE_EACH,
    MOST_WARP_SMEM,
    MOST_WARP_SMEM_OF_MANY,
    MOST_WARP_SMEM_ROWS,
    NARROW_LENGTH,
    NARROW_PACKS_ROWS_PER_MULTIPROCESSOR,
    SEVERAL_PACKS_LENGTH,
    SEVERAL_SHORT_ROWS_PER_MULTIPROCESSOR,
    SHORT_LANES_PER_MULTIPROCESSOR,
    SLAB_TEAMS,
    TINY_ROW,
    VERY_MANY_ROWS_PER_MULTIPROCESSOR,
    WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR,
    WARP_SMEM_BYTES,
    WARP_SMEM_HELD,
    WARP_SMEM_HELD_OF_BOTH,
    WARP_SMEM_HELD_OF_MANY,
    WARP_SMEM_REDUCED,
    WARP_SMEM_REDUCED_OF_MANY,
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
    return plan_cut(choice, pack) if asked or _pays(choice, pack) else None


def many_short_rows(choice: Choice) -> bool:
    return choice.problem.rows >= WARP_SMEM_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def many_for_lanes(choice: Choice) -> bool:
    """Enough for few lanes of a warp each."""
    return choice.problem.rows >= MANY_SHORT_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def very_many_rows(choice: Choice) -> bool:
    """Enough for as few lanes as have the least left over."""
    return choice.problem.rows >= VERY_MANY_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def _several_short_rows(choice: Choice) -> bool:
    """Not many, but enough for a few lanes each."""
    problem = choice.problem
    several = problem.rows >= SEVERAL_SHORT_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    return several and LONG_TINY_ROW < problem.length <= NARROW_LENGTH and _is_float32(choice)


def few_elements_a_row(choice: Choice) -> bool:
    """Whether a row is no more than a lane does as fast as several."""
    return choice.problem.length <= TINY_ROW and _is_float32(choice)


def _lanes_take_several_packs(choice: Choice, pack: int) -> bool:
    """Whether rows are for few lanes of a warp each that take several packs: not so many rows, and not so long."""
    length = choice.problem.length
    several = length <= SEVERAL_PACKS_LENGTH and length // pack > MOST_PACKS_OF_A_LANE_EACH
    return several and not many_for_lanes(choice)


def _is_float32(choice: Choice) -> bool:
    """Whether it computes in float32, and no gradient: of what both are, nothing was measured."""
    return choice.registers_per_element == 1 and choice.problem.op not in GRADIENTS


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
    problem, narrowest = choice.problem, ACCESS_BYTES // choice.access_pack
    if not (many_short_rows(choice) or _several_short_rows(choice)) or not choice.device.copies_go_on:
        return False
    if few_elements_a_row(choice) and problem.rows < MANY_TINY_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors:
        return False  # a lane each, past shared memory
    if pack == choice.access_pack:
        return _odd_packs(choice, problem.length // pack)
    if _lanes_take_several_packs(choice, pack) or (pack == 4 and _narrow_packs_do(choice, problem.length // pack)):
        return False
    most = MOST_WARP_SMEM[choice.kind][narrowest][pack.bit_length() - 1]
    if pack == 1 and very_many_rows(choice):
        most = max(most, MOST_WARP_SMEM_OF_MANY.get((choice.kind, narrowest), 0))
    return problem.length <= most


def _narrow_packs_do(choice: Choice, packs: int) -> bool:
    """Whether lanes that read so many packs of four elements are as fast."""
    problem = choice.problem
    if problem.op in REDUCTIONS or problem.op == "logsumexp" or problem.length > NARROW_LENGTH:
        return False
    few = problem.rows < NARROW_PACKS_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    return few or (problem.op in GRADIENTS and packs > FULL_GRADIENT_GROUP * ceil_power(packs))


def _odd_packs(choice: Choice, packs: int) -> bool:
    """Whether rows are whole packs, but a number of them that lanes of a warp do not share evenly."""
    few = 1 < packs <= MOST_ODD_PACKS.get(choice.x_size, 0) and packs % 2 == 1
    return few and choice.elementwise and _is_float32(choice) and very_many_rows(choice)


class ShortCut(NamedTuple):
    lanes: int  # of a row
    per_lane: int  # packs
    rows: int  # of a lane at a time
    team: int  # threads that bring slabs together
    slabs: int  # of a team
    threads: int  # of a block
    held: int  # registers


def most_held_of(choice: Choice) -> int:
    """Registers of a lane, for elements."""
    return WARP_SMEM_HELD_OF_BOTH if choice.problem.op in GRADIENTS else WARP_SMEM_HELD


def cut_short_rows(choice: Choice, pack: int, columns: int) -> ShortCut:
    problem, tuning = choice.problem, choice.tuning
    plain = problem.op in REDUCTIONS
    per_element = choice.registers_per_element * choice.kept_arrays
    threads = tuning.threads or WARP_THREADS
    packs = max(1, problem.length // pack)
    most_held = most_held_of(choice)
    of_a_lane = WARP_SMEM_REDUCED if plain else most_held
    if columns == 1 and choice.registers_per_element == 1 and very_many_rows(choice):
        many = WARP_SMEM_REDUCED_OF_MANY if plain else WARP_SMEM_HELD_OF_MANY.get((problem.op, choice.x_size))
        of_a_lane = many or of_a_lane
    lanes = tuning.lanes or min(32, ceil_power(ceil_div(packs * pack * per_element, of_a_lane)))
    if tuning.lanes is None and columns == 1 and _several_short_rows(choice) and not many_short_rows(choice):
        busy = ceil_power(ceil_div(SHORT_LANES_PER_MULTIPROCESSOR * choice.device.multiprocessors, problem.rows))
        lanes = max(lanes, min(busy, floor_power(max(1, packs // 2))))
    per_lane = ceil_div(packs, lanes)
    held = per_lane * pack * per_element
    row_bytes = problem.length * _room_sizes(choice)[0]
    rows = tuning.rows or 1
    if tuning.rows is None and choice.registers_per_element == 1:
        while (
            rows < MOST_WARP_SMEM_ROWS
            and 2 * rows * held <= most_held
            and rows * (32 // lanes) * row_bytes < WARP_SMEM_BYTES
            and problem.rows
            >= 2 * rows * (threads // lanes) * WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR * choice.device.multiprocessors
        ):
            rows *= 2
    team = 32 if columns == 1 else _team(rows / lanes, columns)
    if team > 32:
        threads = team = tuning.threads or team  # they meet at the barrier of their block
    return ShortCut(lanes, per_lane, rows, team, team * rows // lanes // columns, threads, rows * held)


def _team(rows: float, columns: int) -> int:
    """Threads that bring slabs together, each of which handles so many rows: as few as have little left over."""

    def busy(team: int) -> float:
        return team * rows // columns * columns / (team * rows)

    best = next((team for team in SLAB_TEAMS if busy(team) >= BUSY_SLAB_GROUPS), max(SLAB_TEAMS, key=busy))
    return best if busy(best) >= FEWEST_BUSY_SLAB_GROUPS else LARGEST_SLAB_TEAM


def _room_sizes(choice: Choice) -> list[int]:
    """Bytes of an element of each array that has room in shared memory."""
    if choice.problem.op in GRADIENTS:
        return [max(choice.z_size, choice.y_size), choice.x_size]
    return [max(choice.x_size, choice.y_size) if choice.elementwise else choice.x_size]


def plan_cut(choice: Choice, pack: int, columns: int = 1) -> CudaPlan:
    """`pack`: elements per access to shared memory, of rows that are whole ones; `columns`: of a slab."""
    problem, cut = choice.problem, cut_short_rows(choice, pack, columns)
    gradient, plain = problem.op in GRADIENTS, problem.op in REDUCTIONS
    if cut.held > 2 * FORCED_WARP_REGISTERS and not plain:
        per_element = choice.registers_per_element * choice.kept_arrays
        most = 2 * FORCED_WARP_REGISTERS * cut.lanes // cut.rows // per_element
        raise choice.refuse(f"{cut.lanes} lanes hold at most {most} elements of a row")
    if cut.slabs == 0:
        groups = cut.team * cut.rows // cut.lanes
        raise choice.refuse(f"{cut.team} threads have room for {groups} of the {columns} rows that take turns")
    apart = columns > 1 and _lie_apart(choice, cut, columns)
    # chunk.h's TeamSlabs::bytes
    chunk = sum(
        (cut.slabs * (problem.length * columns * size + apart * ACCESS_BYTES) + 2 * ACCESS_BYTES - 1)
        // ACCESS_BYTES
        * ACCESS_BYTES
        for size in _room_sizes(choice)
    )
    shared_bytes = cut.threads // cut.team * chunk
    if shared_bytes > choice.device.shared_per_block:
        many = f"{cut.threads // cut.team} x {cut.team} threads"
        raise choice.refuse(f"{many} have no room for {cut.slabs * columns} rows each in shared memory")
    shape: dict[str, int | str | bool] = {"threads": cut.threads, "lanes": cut.lanes}
    if not plain:
        shape["packs"] = cut.per_lane
    shape |= {"rows": cut.rows, "pack": pack}
    if not plain:
        shape["padded"] = cut.per_lane * cut.lanes * pack != problem.length
    lane = "a lane has" if cut.lanes == 1 else f"{cut.lanes} lanes share"
    axes = choice.kept_axes
    if columns == 1:
        choice.why.append(
            f"rows start off the boundaries of accesses: a warp brings {cut.slabs} of them as one piece, and "
            f"{lane} each of them"
        )
    else:
        shape |= {"columns": columns, "team": cut.team, "apart": apart}
        bring = "a warp brings" if cut.team == 32 else f"{cut.team} threads bring"
        choice.why.append(
            f"{columns} short rows at a time take turns in memory: {bring} those of {cut.slabs} such pieces, and "
            f"{lane} each of them"
        )
        column = problem.outer[-1]
        axes = (Axis(problem.rows, column.x_stride, column.y_stride, column.z_stride),)
    name = "gradient_warp_smem" if gradient else "warp_smem"
    return build(
        choice,
        "warp_smem",
        f"{name}.h",
        f"{name}_reduce" if plain else name,
        "WarpSmemReduce" if plain else "WarpSmem",
        shape,
        threads=cut.threads,
        shared_bytes=shared_bytes,
        units=problem.rows // columns,
        units_per_block=cut.threads // cut.team * cut.slabs,
        axes=(*axes, _along(choice)) if gradient else axes,
        reads=1,
        waves=ONCE,
    )


def _lie_apart(choice: Choice, cut: ShortCut, columns: int) -> bool:
    """Whether slabs are to be an access further apart in shared memory: lanes that are at different ones would meet at
    the same banks. Only where slabs are whole accesses, on their boundaries."""
    places = [choice.x_past, choice.y_past if choice.elementwise else 0]
    places += [choice.z_past] if choice.problem.op in GRADIENTS else []
    aligned = all(place is not None and place % ACCESS_BYTES == 0 for place in places)
    elements = choice.problem.length * columns
    # With a slab of so many, chunk.h's division by multiplication is exact.
    divisible = cut.slabs > 1 and cut.slabs * elements <= 1 << 16
    return divisible and aligned and elements % (2 * choice.access_pack) == 0
