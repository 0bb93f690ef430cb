"""How tiles are cut that are read once and not written, by one block each: sums, maxima, logarithms of sums."""

from __future__ import annotations

from typing import NamedTuple

from ..problem import REDUCTIONS, Axis
from .kernel_plan import Choice
from .rounding import ceil_div, ceil_power, floor_power, near_power
from .thresholds import LONE_THREADS, LOOP_THREADS, WARP_THREADS
from .tile_cut import neighbours
from .tile_thresholds import (
    FEWEST_ALONG_NARROW_PACKS,
    FEWEST_NARROW_SHARED_STEPS,
    FEWEST_REDUCED_ACROSS,
    FEWEST_REDUCED_STEPS,
    FEWEST_SHARED_NEIGHBOURS,
    FEWEST_SHORT_REDUCED_STEPS,
    FEWEST_TILE_THREADS,
    FEWEST_WALK_ACROSS,
    FEWEST_WALK_ELEMENTS,
    FEWEST_WALK_NEIGHBOURS,
    FEWEST_WALK_STEPS,
    FEWEST_WALK_THREADS,
    LONG_REDUCED_STEPS,
    LONG_SINGLE_REDUCED_STEPS,
    MOST_REDUCED_TILE_THREADS,
    MOST_STEPS_SIDE_BY_SIDE,
    MOST_UNWRITTEN_SINGLE_STEPS,
    MOST_UNWRITTEN_STEPS,
    MOST_WALK_THREADS,
    REDUCED_PACK,
    REDUCED_TILE_THREADS,
    REDUCED_TILE_THREADS_PER_MULTIPROCESSOR,
    REDUCED_TILES_PER_MULTIPROCESSOR,
    SHARED_STEPS,
    SMALL_REDUCED_ELEMENTS_PER_MULTIPROCESSOR,
    TILE_BYTES,
    WALK_PACK,
)
from .tuning import Tuning


class ReducedCut(NamedTuple):
    """A tile of one block."""

    pack: int  # rows per access
    across: int  # threads side by side across its rows
    threads: int  # of the block


def cut_reduced(choice: Choice, kept: tuple[Axis, ...], widest: int) -> ReducedCut | None:
    """The cut; None where several blocks are to share a tile. `kept`: the kept axes, of which threads lie side by side
    along the last; `widest`: rows per access at most."""
    problem = choice.problem
    if problem.op not in REDUCTIONS:
        return _of_many(choice, kept, widest)
    small = problem.rows * problem.length <= SMALL_REDUCED_ELEMENTS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    if problem.length < (LONG_SINGLE_REDUCED_STEPS if widest == 1 else LONG_REDUCED_STEPS) and (widest > 1 or small):
        cut = _of_short(choice, kept, 1 if small else min(widest, REDUCED_PACK))
        # Of so many columns that two threads suffice for each, wide packs leave them less to do.
        if small or cut.threads // cut.across >= FEWEST_ALONG_NARROW_PACKS:
            return cut
    one_block_will_do = _wanted(choice, max(1, problem.rows)) <= 2 * LONE_THREADS
    if widest == 1 and 1 < neighbours(choice, kept, 1) < FEWEST_SHARED_NEIGHBOURS:
        return _of_few_neighbours(choice) if one_block_will_do else None
    return _of_many(choice, kept, widest)


def cut_walk(choice: Choice, kept: tuple[Axis, ...], widest: int) -> ReducedCut | None:
    """The cut where logarithms of sums of long columns are better walked along than held: as many threads to a column
    as fill the GPU, in tiles as wide as blocks then are. None where they are not."""
    problem, multiprocessors = choice.problem, choice.device.multiprocessors
    may = problem.op == "logsumexp" and choice.algorithm is None and choice.tuning == Tuning()
    if not may or choice.registers_per_element > 1 or problem.length < FEWEST_WALK_STEPS:
        return None
    if neighbours(choice, kept, 1) < FEWEST_WALK_NEIGHBOURS:
        return None
    pack = min(widest, WALK_PACK[choice.x_size])
    single = choice.x_size == 2 and pack == 1
    if single and MOST_UNWRITTEN_STEPS < problem.length <= MOST_UNWRITTEN_SINGLE_STEPS:
        return None
    columns = max(1, ceil_div(problem.rows, pack))
    along = floor_power(max(1, MOST_WALK_THREADS * multiprocessors // columns))
    along = min(along, LOOP_THREADS // FEWEST_WALK_ACROSS)
    across = min(32, LOOP_THREADS // along)
    threads = ceil_div(columns, across) * across * along
    enough = problem.length * pack // along >= FEWEST_WALK_ELEMENTS and threads >= FEWEST_WALK_THREADS * multiprocessors
    return ReducedCut(pack, across, across * along) if enough else None


def _wanted(choice: Choice, columns: int) -> float:
    """Threads along each of so many columns, to keep all multiprocessors busy."""
    return REDUCED_TILE_THREADS_PER_MULTIPROCESSOR[choice.kind] * choice.device.multiprocessors / columns


def _few(choice: Choice, columns: int, across: int) -> bool:
    """Whether tiles that wide would leave multiprocessors idle."""
    return columns < across * choice.device.multiprocessors * REDUCED_TILES_PER_MULTIPROCESSOR


def _of_short(choice: Choice, kept: tuple[Axis, ...], pack: int) -> ReducedCut:
    """Of columns that are not long: threads along each for all multiprocessors to be busy, then columns side by side
    until a block has threads enough; or else more threads along each where there are no more columns."""
    problem = choice.problem
    columns = max(1, ceil_div(problem.rows, pack))
    side_by_side = columns if problem.length <= MOST_STEPS_SIDE_BY_SIDE else neighbours(choice, kept, pack)
    most = LONE_THREADS // choice.registers_per_element  # states of float64 are twice as large, and have 48 KiB
    along = min(most, near_power(min(_wanted(choice, columns), problem.length / FEWEST_SHORT_REDUCED_STEPS)))
    across = min(32, ceil_power(side_by_side), max(REDUCED_TILE_THREADS // along, FEWEST_REDUCED_ACROSS))
    while (
        across > 1 and across * along > FEWEST_TILE_THREADS and (across * along > most or _few(choice, columns, across))
    ):
        across //= 2
    while _few(choice, columns, across) and across * along < most // 2 and 2 * along <= problem.length:
        along *= 2
    return ReducedCut(pack, across, max(FEWEST_TILE_THREADS, across * along))


def _of_few_neighbours(choice: Choice) -> ReducedCut:
    """Columns that lie side by side by twos to sevens, and not in packs. A block has one of them, or some, so that each
    has threads enough; its neighbours' elements, in the same sectors, are in L2 when they are asked for. H200, November
    2026, us, dim 1, against tiles of 4 to 32 columns, which several blocks share: sum 64x50176x3 float32 18.8 for 23.2,
    bfloat16 14.5 for 16.7; 256x10000x3 17.2 for 20.5, 12.6 for 15.3; 128x8192x5 12.8 for 16.2, 9.7 for 12.6;
    512x50176x3 83.6 for 95 or more, 56.9 for 61; in blocks of 128 threads that takes 98.3 and 58.4, but 256x2000x7
    bfloat16 9.3, in blocks of 64 10.1."""
    problem, columns = choice.problem, choice.problem.rows
    along = near_power(min(_wanted(choice, columns), problem.length / FEWEST_REDUCED_STEPS))
    threads = WARP_THREADS if problem.length < FEWEST_NARROW_SHARED_STEPS else WARP_THREADS // 2
    across = max(1, min(32, ceil_power(columns), threads // along))
    return ReducedCut(1, across, max(threads, min(along, LONE_THREADS)))


def _of_many(choice: Choice, kept: tuple[Axis, ...], pack: int) -> ReducedCut | None:
    problem = choice.problem
    if choice.kind == "logsumexp" and choice.x_size == 4 and choice.device.major >= 10:
        pack = min(pack, 2)  # of 4, kernels spill there
    columns = max(1, ceil_div(problem.rows, pack))
    along = min(_wanted(choice, columns) / (1 if pack <= 4 else 2), problem.length / FEWEST_REDUCED_STEPS)
    # A few more logarithms of sums than are at work at once would take as long as twice as many: 31x1931x1356 float32,
    # dim 1, 168 us by 1314 blocks, 110 by 657 on an H200, where 1056 are at work.
    along = near_power(along) if choice.kind == "plain" else floor_power(int(along))
    if along == 1:
        return ReducedCut(pack, WARP_THREADS, WARP_THREADS)
    most = MOST_REDUCED_TILE_THREADS[choice.kind] if pack in (2, 4) else LOOP_THREADS
    most //= choice.registers_per_element  # states of float64 are twice as large, and a block has 48 KiB for them
    most_across = min(32 if pack < 8 else 16, ceil_power(columns))  # 32 spill on sm_100
    if neighbours(choice, kept, pack) == 1 and columns > 1 and problem.length > MOST_STEPS_SIDE_BY_SIDE:
        most_across = 1
    # Columns that no access takes several of share sectors with their neighbours: long ones are shared out instead.
    may_be_narrow = pack > 1 or problem.length < SHARED_STEPS
    for width in TILE_BYTES if may_be_narrow else TILE_BYTES[:-1]:
        across = min(most_across, max(1, width // (choice.x_size * pack)))
        while across * along < WARP_THREADS and 2 * across <= most_across:
            across *= 2
        along = max(along, min(WARP_THREADS // across, floor_power(problem.length // FEWEST_REDUCED_STEPS)))
        few, narrowest = _few(choice, columns, across), width == TILE_BYTES[-1]
        if across * along <= most and (narrowest or not few):
            return ReducedCut(pack, across, max(32, across * along))
        if narrowest and (problem.length < SHARED_STEPS or (not few and across * along <= 4 * most)):
            return ReducedCut(pack, across, most)
    return None
