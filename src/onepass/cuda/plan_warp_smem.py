"""The plans for short rows that start anywhere: they come to the registers of a few lanes by way of shared memory.
plan_slabs.py has those whose elements take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..problem import GRADIENTS, REDUCTIONS, Axis
from .kernel_plan import ONCE, Choice, CudaPlan, build
from .lane_cost import LaneCosts, Way
from .lanes import LANES, many_for_lanes, quickest, ways_as_rows_lie
from .rounding import ceil_div, ceil_power
from .thresholds import (
    ACCESS_BYTES,
    BUSY_SLAB_GROUPS,
    FEWEST_BUSY_SLAB_GROUPS,
    FORCED_WARP_REGISTERS,
    LARGEST_SLAB_TEAM,
    MOST_WARP_SMEM,
    MOST_WARP_SMEM_PACKS,
    MOST_WARP_SMEM_ROWS,
    SLAB_TEAMS,
    WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR,
    WARP_SMEM_BYTES,
    WARP_SMEM_HELD,
    WARP_SMEM_HELD_OF_BOTH,
    WARP_SMEM_REDUCED,
    WARP_THREADS,
)


def plan_short_rows(
    choice: Choice, whole_pack: Callable[[Choice], int], alignment: Callable[[Choice, int], str]
) -> CudaPlan | None:
    """The plan where it was asked for or pays, or None. `whole_pack`: the most elements per access that every row of
    every array is a whole number of; `alignment`: of all arrays, by packs of so many elements."""
    asked = choice.algorithm == "warp_smem"
    if not _follow_each_other(choice):
        if asked:
            raise choice.refuse("rows do not follow each other in memory")
        return None
    if not asked and choice.algorithm is not None:
        return None
    pack = whole_pack(choice)
    return plan_cut(choice, pack) if asked or _pays(choice, pack, alignment) else None


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


def _pays(choice: Choice, pack: int, alignment: Callable[[Choice, int], str]) -> bool:
    """Whether rows that are whole packs of so many elements, no more, are better off that way."""
    length = choice.problem.length
    # An even number of whole packs is for lanes of a warp as it lies.
    odd = pack < choice.access_pack or length // pack % 2 == 1
    short = length <= MOST_WARP_SMEM and (choice.problem.op in REDUCTIONS or length // pack <= MOST_WARP_SMEM_PACKS)
    if not (odd and short and many_for_lanes(choice) and choice.device.copies_go_on):
        return False
    widest = choice.tuning.pack or choice.access_pack
    as_they_lie = ways_as_rows_lie(choice, pack, widest, alignment(choice, widest))
    return quickest(choice, ways_by_slab(choice, pack)) < quickest(choice, as_they_lie)


def ways_by_slab(choice: Choice, pack: int) -> Iterator[Way]:
    """Those for rows of packs that come by way of shared memory."""
    packs = max(1, choice.problem.length // pack)
    arrays = 0 if choice.problem.op in REDUCTIONS else choice.kept_arrays  # whose elements wait in registers
    for lanes in LANES:
        each = ceil_div(packs, lanes)
        held = each * pack * choice.registers_per_element * arrays
        if lanes >= 2 * packs or held > FORCED_WARP_REGISTERS:
            continue
        for rows in (1, 2, 4, MOST_WARP_SMEM_ROWS) if lanes == 1 else (1,):
            slabs_bytes = WARP_THREADS // 32 * _slab_bytes(choice, 32 // lanes * rows)
            fits = slabs_bytes <= choice.device.shared_per_block
            if fits and (rows == 1 or (rows * held <= most_held_of(choice) and _may_take(choice, rows, lanes))):
                yield Way(lanes, each, pack, "whole", rows, by_slab=True)


def _may_take(choice: Choice, rows: int, lanes: int) -> bool:
    """Whether blocks enough are left for every multiprocessor if lanes take so many rows at a time."""
    block = rows * (choice.tuning.threads or WARP_THREADS) // lanes
    return choice.problem.rows >= block * WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def _slab_bytes(choice: Choice, slabs: int, columns: int = 1, apart: bool = False) -> int:
    """Shared memory that so many slabs take; chunk.h's TeamSlabs::bytes."""
    elements, room = choice.problem.length * columns, 0
    for size in _room_sizes(choice):
        accesses = ceil_div(slabs * (elements * size + apart * ACCESS_BYTES) + ACCESS_BYTES, ACCESS_BYTES)
        room += accesses * ACCESS_BYTES
    return room


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
    per_element = choice.registers_per_element * choice.kept_arrays
    threads = tuning.threads or WARP_THREADS
    packs = max(1, problem.length // pack)
    lanes, rows = _sharing(choice, pack) if columns == 1 else _sharing_of_slabs(choice, packs)
    lanes, rows = tuning.lanes or lanes, tuning.rows or rows
    per_lane = ceil_div(packs, lanes)
    team = 32 if columns == 1 else _team(rows / lanes, columns)
    if team > 32:
        threads = team = tuning.threads or team  # they meet at the barrier of their block
    slabs = team * rows // lanes // columns
    return ShortCut(lanes, per_lane, rows, team, slabs, threads, rows * per_lane * pack * per_element)


def _sharing(choice: Choice, pack: int) -> tuple[int, int]:
    """Lanes of a row, and rows of a lane at a time, of rows that follow each other."""
    tuning = choice.tuning

    def may_be(way: Way) -> bool:
        return tuning.lanes in (None, way.lanes) and tuning.rows in (None, way.rows)

    ways = [way for way in ways_by_slab(choice, pack) if may_be(way)]
    best = min(ways, key=LaneCosts.of(choice).microseconds, default=Way(32, 1, pack))
    return best.lanes, best.rows


def _sharing_of_slabs(choice: Choice, packs: int) -> tuple[int, int]:
    """The same, of rows whose elements take turns."""
    problem, per_element = choice.problem, choice.registers_per_element * choice.kept_arrays
    of_a_lane = WARP_SMEM_REDUCED if problem.op in REDUCTIONS else most_held_of(choice)
    lanes = choice.tuning.lanes or min(32, ceil_power(ceil_div(packs * per_element, of_a_lane)))
    held = ceil_div(packs, lanes) * per_element
    row_bytes = problem.length * _room_sizes(choice)[0]
    rows = 1
    if choice.registers_per_element > 1:
        return lanes, rows
    while (
        rows < MOST_WARP_SMEM_ROWS
        and 2 * rows * held <= most_held_of(choice)
        and rows * (32 // lanes) * row_bytes < WARP_SMEM_BYTES
        and _may_take(choice, 2 * rows, lanes)
    ):
        rows *= 2
    return lanes, rows


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
    shared_bytes = cut.threads // cut.team * _slab_bytes(choice, cut.slabs, columns, apart)
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
