"""The plans in which several blocks share a tile of rows whose elements lie anywhere: long dims, little beside them."""

from __future__ import annotations

from ..problem import ITEMSIZE, Axis
from .kernel_plan import BLOCK_SCRATCH, REDUCTIONS, Choice, CudaPlan, Team, build
from .thresholds import (
    FEWEST_STEPS,
    SPLIT_THREADS,
    STRIDED_SPLIT_RESIDENT,
    TILE_BYTES,
    ceil_div,
    ceil_power,
)


def plan_strided_split(choice: Choice, kept: tuple[Axis, ...], pack: int) -> CudaPlan:
    """The plan for "strided_split"; `kept`: the kept axes, of which threads lie side by side along the last."""
    problem, device, tuning = choice.problem, choice.device, choice.tuning
    threads = tuning.threads or SPLIT_THREADS
    resident = max(1, min(STRIDED_SPLIT_RESIDENT // choice.registers_per_element, device.max_threads // threads))
    at_once = resident * device.multiprocessors
    across, blocks, staged = _cut(choice, kept, pack, threads, resident)
    blocks = tuning.blocks or blocks
    steps = ceil_div(problem.length, blocks)
    tile = across * pack
    shared_bytes = steps * tile * choice.kept_size if staged else 0
    if shared_bytes > _room(choice, 1, threads, tile) or blocks > at_once:
        raise choice.refuse(f"{blocks} blocks have no room for {problem.length} steps of {tile} rows")
    reduced = problem.reduce or (Axis(problem.length, 1, 1),)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": threads,
        "resident": resident,
        "across": across,
        "pack": pack,
        "staged": staged,
    }
    reads = 2 if choice.elementwise and not staged else 1
    choice.why.append(f"{across} threads lie across rows that are {kept[-1].x_stride} apart in memory, {pack} each")
    choice.why.append(
        f"{blocks} blocks share a tile of {problem.length} steps, "
        + (f"each in {shared_bytes} bytes of shared memory: read once" if staged else f"{reads} reads")
    )
    slot_bytes = 16 * ceil_div(3 * ITEMSIZE[problem.compute_dtype], 8)
    return build(
        choice,
        "strided_split",
        "strided_split.h",
        "strided_split_reduce" if problem.op in REDUCTIONS else "strided_split",
        "StridedSplit",
        shape,
        threads=threads,
        shared_bytes=shared_bytes,
        units=problem.rows,
        units_per_block=tile,
        axes=(*kept, *reduced),
        reads=reads,
        team=Team(blocks, steps, 2 * tile * slot_bytes),
    )


def _room(choice: Choice, resident: int, threads: int, tile: int) -> int:
    """Bytes of shared memory for the slice of each of so many blocks on a multiprocessor."""
    device = choice.device
    scratch = 2 * (threads // 32) * tile * 2 * ITEMSIZE[choice.problem.compute_dtype]
    return min(device.shared_per_multiprocessor // resident, device.shared_per_block) - BLOCK_SCRATCH - scratch


def _cut(choice: Choice, kept: tuple[Axis, ...], pack: int, threads: int, resident: int) -> tuple[int, int, bool]:
    """Threads across a tile, blocks that share it, and whether their slices wait in shared memory."""
    problem, size = choice.problem, choice.kept_size
    at_once = resident * choice.device.multiprocessors
    most_across = min(32, ceil_power(ceil_div(problem.rows, pack)))
    if kept[-1].size * size < TILE_BYTES[0]:  # beyond the inner axis rows are neighbours no more
        most_across = min(most_across, ceil_power(ceil_div(kept[-1].size, pack)))
    most_blocks = max(1, min(at_once, problem.length // FEWEST_STEPS))

    def cut(width: int) -> tuple[int, int, int]:
        across = min(most_across, max(1, width // (size * pack)))
        tile = across * pack
        room = max(1, _room(choice, resident, threads, tile) // (tile * size))
        return across, ceil_div(problem.length, room), ceil_div(problem.rows, tile)

    if choice.elementwise and choice.tuning.staged is not False:
        for width in TILE_BYTES:
            across, fewest, tiles = cut(width)
            if fewest <= at_once:
                teams = max(1, min(tiles, at_once // fewest))
                return across, max(fewest, min(most_blocks, at_once // teams)), True
    across, _, tiles = cut(TILE_BYTES[0])
    return across, max(1, min(most_blocks, at_once // max(1, tiles))), False


def sharing_pays(choice: Choice, kept: tuple[Axis, ...], pack: int, staged: bool) -> bool:
    """Whether several blocks for a tile beat one: `staged`: one block could hold it."""
    problem = choice.problem
    tile = max(1, TILE_BYTES[0] // choice.kept_size)
    tiles = ceil_div(problem.rows, tile)
    long = problem.length >= 2 * FEWEST_STEPS
    few = tiles * 2 <= choice.device.multiprocessors
    return long and (few or (choice.elementwise and not staged and pack * choice.kept_size >= 4))
