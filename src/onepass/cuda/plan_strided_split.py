"""The plans in which several blocks share a tile of rows whose elements lie anywhere: long dims, little beside them."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import ITEMSIZE, REDUCTIONS, Axis
from .kernel_plan import BLOCK_SCRATCH, Choice, CudaPlan, Team, build
from .rounding import ceil_div, ceil_power
from .team_thresholds import SPLIT_THREADS
from .thresholds import LOOP_THREADS
from .tile_thresholds import (
    FEWEST_STEPS,
    MANY_STEPS_PER_THREAD,
    MOST_NEIGHBOURS_OF_THREE,
    SHARED_REDUCED_ACROSS,
    SHARED_REDUCED_PACK,
    SHARED_STEPS,
    SLICE_BYTES,
    STRIDED_SPLIT_RESIDENT,
    TILE_BYTES,
    WALK_BY_ELEMENT,
    WALK_OF_FEW,
    WALK_OF_MANY,
    Walk,
)


def plan_strided_split(choice: Choice, kept: tuple[Axis, ...], pack: int) -> CudaPlan:
    """The plan for "strided_split"; `kept`: the kept axes, of which threads lie side by side along the last."""
    problem = choice.problem
    cut = _cut_split(choice, kept, pack)
    tile, steps = cut.across * pack, ceil_div(problem.length, cut.blocks)
    reduced = problem.reduce or (Axis(problem.length, 1, 1),)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": cut.threads,
        "resident": cut.resident,
        "across": cut.across,
        "pack": pack,
        "staged": cut.shared_bytes > 0,
    }
    reads = 2 if choice.elementwise and not cut.shared_bytes else 1
    choice.why.append(f"{cut.across} threads lie across rows that are {kept[-1].x_stride} apart in memory, {pack} each")
    choice.why.append(
        f"{cut.blocks} blocks share a tile of {problem.length} steps, "
        + (f"each in {cut.shared_bytes} bytes of shared memory: read once" if cut.shared_bytes else f"{reads} reads")
    )
    slot_bytes = 16 * ceil_div(3 * ITEMSIZE[problem.compute_dtype], 8)
    return build(
        choice,
        "strided_split",
        "strided_split.h",
        "strided_split_reduce" if problem.op in REDUCTIONS else "strided_split",
        "StridedSplit",
        shape,
        threads=cut.threads,
        shared_bytes=cut.shared_bytes,
        units=problem.rows,
        units_per_block=tile,
        axes=(*kept, *reduced),
        reads=reads,
        waves=1,
        team=Team(cut.blocks, steps, 2 * tile * slot_bytes),
    )


@dataclass(frozen=True)
class _Cut:
    """A tile, shared out."""

    across: int  # threads side by side across its rows
    threads: int  # of a block
    blocks: int
    resident: int  # blocks that a multiprocessor must have room for
    shared_bytes: int  # that a slice waits in; 0: it waits nowhere


def _cut_split(choice: Choice, kept: tuple[Axis, ...], pack: int) -> _Cut:
    """Blocks that meet in scratch memory."""
    problem, device, tuning = choice.problem, choice.device, choice.tuning
    walk = _walk(choice, kept, pack)
    threads = tuning.threads or walk.threads
    resident = tuning.resident or walk.resident // choice.registers_per_element
    resident = max(1, min(resident, device.max_threads // threads))
    across, blocks, staged = _cut(choice, kept, pack, walk._replace(threads=threads, resident=resident))
    blocks = tuning.blocks or max(1, blocks)
    steps = ceil_div(problem.length, blocks)
    tile = across * pack
    shared_bytes = steps * tile * choice.kept_size if staged else 0
    while resident > 1 and shared_bytes > _room(choice, resident, threads, tile):
        resident -= 1
    if shared_bytes > _room(choice, 1, threads, tile) or blocks > resident * device.multiprocessors:
        raise choice.refuse(f"{blocks} blocks have no room for {problem.length} steps of {tile} rows")
    return _Cut(across, threads, blocks, resident, shared_bytes)


def _many_neighbours(choice: Choice, kept: tuple[Axis, ...]) -> bool:
    """Whether the rows of a tile are neighbours: beyond the inner axis lie others."""
    return kept[-1].size * choice.kept_size >= TILE_BYTES[0]


def _walk(choice: Choice, kept: tuple[Axis, ...], pack: int) -> Walk:
    """What blocks that share a tile are to be like."""
    if choice.problem.op in REDUCTIONS:  # the states of packs of 8 leave 512 threads no registers
        return Walk(LOOP_THREADS if pack < 8 else SPLIT_THREADS, STRIDED_SPLIT_RESIDENT)
    if _by_element(choice, pack):
        return WALK_BY_ELEMENT[choice.kept_size]
    if choice.elementwise or pack > 1:
        return Walk(SPLIT_THREADS, STRIDED_SPLIT_RESIDENT)
    if _many_neighbours(choice, kept):
        return WALK_OF_MANY
    # Of sm_100 and later, where ptxas wants more registers, nothing was measured with three; 32 threads across spill.
    three = choice.device.major < 10 and kept[-1].size <= MOST_NEIGHBOURS_OF_THREE
    return WALK_OF_FEW if three else WALK_OF_FEW._replace(resident=STRIDED_SPLIT_RESIDENT)


def _by_element(choice: Choice, pack: int) -> bool:
    """Whether a tile comes an element at a time: to shared memory that takes longer than reading it twice."""
    return choice.elementwise and pack == 1 and choice.kept_size in WALK_BY_ELEMENT


def _across(choice: Choice, width: int, pack: int) -> int:
    """Threads across a tile of that many bytes."""
    return max(1, width // (choice.kept_size * pack))


def _scratch(choice: Choice, threads: int, tile: int) -> int:
    """Of reduce.h's ColumnReduce, in bytes."""
    return 2 * (threads // 32) * tile * 2 * ITEMSIZE[choice.problem.compute_dtype]


def _room(choice: Choice, resident: int, threads: int, tile: int) -> int:
    """Bytes of shared memory for the slice of each of so many blocks on a multiprocessor."""
    device = choice.device
    most = min(device.shared_per_multiprocessor // resident, device.shared_per_block)
    return most - BLOCK_SCRATCH - _scratch(choice, threads, tile)


def _cut(choice: Choice, kept: tuple[Axis, ...], pack: int, walk: Walk) -> tuple[int, int, bool]:
    """Threads across a tile, blocks that share it, and whether their slices wait in shared memory."""
    problem, size = choice.problem, choice.kept_size
    threads, resident = walk.threads, walk.resident
    at_once = resident * choice.device.multiprocessors
    by_element = _by_element(choice, pack)
    most_across = min(32, ceil_power(ceil_div(problem.rows, pack)))
    if not _many_neighbours(choice, kept):
        most_across = min(most_across, ceil_power(ceil_div(kept[-1].size, pack)))
    if problem.op in REDUCTIONS and pack == SHARED_REDUCED_PACK:
        most_across = min(most_across, SHARED_REDUCED_ACROSS, ceil_power(ceil_div(problem.rows, 2 * pack)))

    def cut(width: int) -> tuple[int, int, int]:
        """Threads across; blocks at least, to hold the tile; blocks at most, for the number of tiles."""
        across = choice.tuning.across or min(most_across, _across(choice, width, pack))
        tile = across * pack
        fewest = ceil_div(problem.length, max(1, _room(choice, 1, threads, tile) // (tile * size)))
        tiles = max(1, ceil_div(problem.rows, tile))
        # What is read once is as many more blocks' states to merge: a block on each multiprocessor is enough of them.
        # H200, November 2026, us: logsumexp 1000000x4 float32, dim 0, 27.8 by 132 blocks, 43.0 by 256; sum 22.1, 26.8.
        along = threads // across if choice.elementwise else min(32, threads // across)
        idle = tiles * along * 2 < choice.device.multiprocessors
        for_each = walk.rounds * at_once // tiles
        many = problem.op in REDUCTIONS and problem.length >= MANY_STEPS_PER_THREAD * along * for_each
        if by_element:
            most = for_each
        elif idle:
            most = choice.device.multiprocessors // tiles
        elif many:
            most = for_each
        else:
            most = min(for_each, threads // across)
        if not choice.elementwise and most > threads // across:
            # The threads along a tile read the states of as many blocks at a time: sum of 65536x64 bfloat16, dim 0,
            # 28.2 by 128 blocks, 32.5 by 132.
            most -= most % (threads // across)
        return across, fewest, max(1, min(most, problem.length // FEWEST_STEPS))

    staged = not by_element if choice.tuning.staged is None else choice.tuning.staged
    if choice.elementwise and staged:
        for width in TILE_BYTES:
            across, fewest, most = cut(width)
            if fewest > choice.device.multiprocessors:
                continue
            tile = across * pack
            tiles = ceil_div(problem.rows, tile)
            full = ceil_div(problem.length, max(1, _room(choice, resident, threads, tile) // (tile * size)))
            if tiles * full >= at_once >= full:
                return across, _in_even_rounds(tiles, problem.length, full, at_once), True
            wanted = ceil_div(problem.length * tile * size, SLICE_BYTES)
            most = min(max(most, threads // across), choice.device.multiprocessors)
            return across, max(fewest, min(wanted, most)), True
    across, _, most = cut(walk.width)
    return across, most, False


def _in_even_rounds(tiles: int, length: int, fewest: int, at_once: int) -> int:
    """Blocks for a tile, `fewest` or somewhat more: so that the last round of tiles finds most blocks at work."""

    def steps(blocks: int) -> int:
        return ceil_div(tiles, max(1, at_once // blocks)) * ceil_div(length, blocks)

    allowed = range(fewest, min(2 * fewest, at_once) + 1)
    best = min(map(steps, allowed), default=0)
    return next((blocks for blocks in allowed if steps(blocks) <= 1.02 * best), fewest)


def sharing_pays(choice: Choice, staged_bytes: int) -> bool:
    """Whether several blocks for a tile beat one, whose tile is so many bytes wide, 0 if it does not wait."""
    problem, size = choice.problem, choice.kept_size
    if problem.length < SHARED_STEPS:
        return False
    few = problem.rows * size * 2 <= TILE_BYTES[-1] * choice.device.multiprocessors
    narrow = staged_bytes < (TILE_BYTES[1] if size > 2 else 1)
    return few or (choice.elementwise and narrow)
