"""The plans for rows whose elements lie anywhere: tiles of neighbouring rows, whatever the strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..problem import ITEMSIZE, REDUCTIONS, Axis
from .crossed import tiled_axes
from .kernel_plan import BLOCK_SCRATCH, WAVES, Choice, CudaPlan, build
from .plan_by_rows import before_squares, plan_by_rows
from .plan_interleaved import plan_interleaved, run_pays
from .plan_strided_held import plan_strided_held
from .plan_strided_split import plan_strided_split, sharing_pays
from .plan_strided_split_held import plan_strided_split_held
from .plan_turned import plan_turned
from .reduced_cut import cut_reduced, cut_walk
from .rounding import ceil_power, floor_power
from .thresholds import ACCESS_BYTES, LONE_THREADS, LOOP_THREADS, WARP_THREADS
from .tile_cost import cheaper
from .tile_cut import chosen_pack, side_by_side, widest_pack
from .tile_thresholds import (
    FEWEST_TILE_THREADS,
    HELD_PACK,
    LONG_WALK_STEPS,
    SHARED_REDUCED_PACK,
    STEPS_PER_THREAD,
    TILE_BYTES,
    TILE_THREADS_PER_MULTIPROCESSOR,
)
from .tuning import Tuning


def plan_strided(choice: Choice) -> CudaPlan:
    kept = tiled_axes(choice)
    crossed = by_rows_or_squares(choice, kept)
    if crossed is not None:
        return crossed
    return run_or_tiles(choice, kept, _plan_tiles, side_by_side(choice, kept), _strided_pack(choice, kept))


def by_rows_or_squares(choice: Choice, kept: tuple[Axis, ...]) -> CudaPlan | None:
    """The plan for rows that lie one way in one array and another way in another, if either of these is the best."""
    if before_squares(choice):
        return plan_by_rows(choice, kept) or plan_turned(choice)
    return plan_turned(choice) or plan_by_rows(choice, kept)


def run_or_tiles(
    choice: Choice,
    kept: tuple[Axis, ...],
    plan_tiles: Callable[[Choice, tuple[Axis, ...]], CudaPlan],
    neighbours: int,
    widest: int,
) -> CudaPlan:
    """The plan by a run of memory or by tiles, whichever is better. `neighbours`: columns that lie side by side in all
    arrays, or 0; `widest`: rows per access at most."""
    if choice.tuning.interleaved:
        run = plan_interleaved(choice, kept)
        assert run is not None  # it would have been refused
        return run
    tiles = plan_tiles(replace(choice, why=[*choice.why], tuning=replace(choice.tuning, interleaved=None)), kept)
    plan = (plan_interleaved(choice, kept) if run_pays(choice, kept, tiles) else None) or tiles
    cheap = cheaper(choice, neighbours, widest, plan)
    return plan if cheap is None else plan_tiles(cheap, kept)


def _plan_tiles(choice: Choice, kept: tuple[Axis, ...]) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    plain = problem.op in REDUCTIONS
    pack = chosen_pack(choice, _strided_pack(choice, kept))
    held = _plan_held(replace(choice, why=[*choice.why]), kept, pack)
    walk = cut_walk(choice, kept, pack)
    if held is not None and walk is None:
        return held
    if not plain and tuning.pack is None:
        pack = min(pack, HELD_PACK)  # 4096x4096 bfloat16, dim 0, 41.0 with packs of 4, 43.9 with 8
    if not choice.elementwise and choice.algorithm is None and tuning.across is None and tuning.threads is None:
        walks = walk is not None and (held is not None or problem.length >= LONG_WALK_STEPS)
        cut = walk if walks else cut_reduced(choice, kept, pack)
        if cut is None:
            return plan_strided_split(choice, kept, min(pack, SHARED_REDUCED_PACK) if plain else pack)
        pack, across, threads = cut
        choice = replace(choice, tuning=replace(tuning, across=across, threads=threads), algorithm="strided")
        tuning = choice.tuning
    # A tile is worth its shared memory where the row is needed again.
    may_stage = choice.elementwise and tuning.staged is not False
    across, threads, staged = tile(choice, pack, may_stage)
    staged_bytes = across * pack * choice.kept_size if staged else 0
    split = choice.algorithm == "strided_split"
    if choice.algorithm is None and sharing_pays(choice, staged_bytes):
        choice.why.append(f"{problem.rows} rows of {problem.length} steps: one block would have too much of them")
        split = True
    if split:
        return plan_strided_split(choice, kept, pack)
    tile_bytes = problem.length * across * pack * choice.kept_size
    reduced = problem.reduce or (Axis(problem.length, 1, 1),)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": threads,
        "across": across,
        "pack": pack,
        "staged": staged,
    }
    choice.why.append(f"{across} threads lie across rows that are {kept[-1].x_stride} apart in memory, {pack} each")
    if staged:
        choice.why.append(f"a tile of {problem.length} steps takes {tile_bytes} bytes of shared memory: read once")
    elif choice.elementwise:
        choice.why.append(f"a tile of {problem.length} steps does not wait in shared memory: read twice")
    else:
        choice.why.append("a reduction needs every element once")
    return build(
        choice,
        "strided",
        "strided.h",
        "strided_reduce" if plain else "strided",
        "Strided",
        shape,
        threads=threads,
        shared_bytes=tile_bytes if staged else 0,
        units=problem.rows,
        units_per_block=across * pack,
        axes=(*kept, *reduced),
        reads=2 if choice.elementwise and not staged else 1,
        # The next tile comes to where steps of the last have been written from.
        waves=1 if staged and choice.elementwise else WAVES,
    )


def _plan_held(choice: Choice, kept: tuple[Axis, ...], pack: int) -> CudaPlan | None:
    """The plan by tiles that wait in registers, of several blocks or of one, if there is one."""
    problem, tuning = choice.problem, choice.tuning
    plain = problem.op in REDUCTIONS
    may_share = choice.algorithm in (None, "strided_split") and not plain and tuning.staged is None
    if may_share or tuning.clustered is not None:
        shared = plan_strided_split_held(choice, kept, pack)
        if shared is not None:
            return shared
    may_hold = problem.length > 0 and (not plain or (choice.algorithm is None and tuning == Tuning()))
    if choice.algorithm != "strided_split" and may_hold and tuning.staged is None:
        return plan_strided_held(choice, kept, pack)
    return None


def _strided_pack(choice: Choice, kept: tuple[Axis, ...]) -> int:
    """The widest pack along the inner axis that starts on its boundary everywhere, in input and result."""
    inner = kept[-1]
    if inner.x_stride != 1 or inner.y_stride != 1 or choice.x_past is None or choice.y_past is None:
        return 1
    others = (*kept[:-1], *choice.problem.reduce)
    x = choice.x_past, choice.x_size, [axis.x_stride for axis in others]
    return widest_pack(inner, [x, (choice.y_past, choice.y_size, [axis.y_stride for axis in others])])


def tile(choice: Choice, pack: int, may_stage: bool) -> tuple[int, int, bool]:
    """Threads across a tile, threads of its block, and whether it waits in shared memory: the widest that does."""
    length, size, device = choice.problem.length, choice.kept_size, choice.device
    arrays = choice.kept_arrays
    most_across = min(32, ceil_power(-(-choice.problem.rows // pack)))
    most_steps = 1 << max(1, length // STEPS_PER_THREAD).bit_length() - 1

    def cut(width: int, wanted: int) -> tuple[int, int, int]:
        """(across, threads, bytes of shared memory) of a tile of that many bytes across, in each of its arrays."""
        across = choice.tuning.across or min(most_across, floor_power(arrays * width // (size * pack)))
        steps = min(most_steps, max(1, wanted // across))
        if across * steps < wanted:  # short rows: a wider tile instead of idle threads
            across = choice.tuning.across or min(most_across, max(across, FEWEST_TILE_THREADS // steps))
        threads = choice.tuning.threads or max(32, across * steps)
        scratch = 2 * (threads // 32) * across * pack * 2 * ITEMSIZE[choice.problem.compute_dtype]
        return across, threads, length * across * pack * size + (arrays - 1) * ACCESS_BYTES + scratch

    if may_stage:
        for width in TILE_BYTES:
            resident = device.shared_per_multiprocessor // (arrays * length * width + 2 * BLOCK_SCRATCH)
            wanted = ceil_power(TILE_THREADS_PER_MULTIPROCESSOR // max(1, resident))
            across, threads, needed = cut(width, min(LOOP_THREADS, max(FEWEST_TILE_THREADS, wanted)))
            if needed <= device.shared_per_multiprocessor // 2 - BLOCK_SCRATCH:  # two blocks on a multiprocessor
                return across, threads, True
        across, threads, needed = cut(TILE_BYTES[-1], LOOP_THREADS)
        if needed <= device.shared_per_block:
            return across, threads, True
    across, _, _ = cut(TILE_BYTES[0], WARP_THREADS)
    tiles = -(-choice.problem.rows // (across * pack))
    wanted = ceil_power(TILE_THREADS_PER_MULTIPROCESSOR * device.multiprocessors // max(1, tiles))
    # 1024 threads have 64 registers each: too few for wide tiles of running maxima and sums.
    most = LONE_THREADS if choice.registers_per_element == 1 and pack <= 4 else LOOP_THREADS
    across, threads, _ = cut(TILE_BYTES[0], min(most, max(WARP_THREADS, wanted)))
    return across, threads, False
