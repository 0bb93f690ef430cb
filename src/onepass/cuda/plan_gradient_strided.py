"""The plans for gradients of rows whose elements lie anywhere: tiles of neighbouring rows of two arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..problem import ITEMSIZE, Axis
from .crossed import cut_gradient, tiled_gradient_axes
from .kernel_plan import ONCE, Choice, CudaPlan, Team, build
from .plan_strided import by_rows_or_squares, run_or_tiles, tile
from .rounding import ceil_div, floor_power
from .segment_cut import cut_segments
from .team_thresholds import SPLIT_THREADS
from .thresholds import ACCESS_BYTES, LOOP_THREADS, STRIDED_SEGMENT_STEPS, WARP_THREADS
from .tile_cut import Held, TileCut, as_wide_as, chosen_pack, cut_of_few, cut_tile, is_narrow, widest_pack
from .tile_thresholds import (
    FEW_GRADIENT_TILES,
    FEWEST_GRADIENT_STEPS,
    GRADIENT_ALONE_REGISTERS,
    GRADIENT_READ_TWICE,
    GRADIENT_READ_TWICE_ACROSS,
    GRADIENT_READ_TWICE_STEPS,
    GRADIENT_TILES,
    MOST_GRADIENT_BESIDE_ALL_BLOCKS,
    MOST_SCATTERED_STEPS,
    SHARED_GRADIENT_STEPS,
    SHARED_STEPS,
    TILE_THREADS_PER_MULTIPROCESSOR,
    TINY_GRADIENT_TILES,
    SharedTile,
)
from .tuning import Tuning


def plan_gradient_strided(choice: Choice) -> CudaPlan:
    kept = tiled_gradient_axes(choice)
    crossed = by_rows_or_squares(choice, kept)
    if crossed is not None:
        return crossed
    access = _access(choice, kept)
    return run_or_tiles(choice, kept, _plan_tiles, _side_by_side(kept, access), access[0])


def _plan_tiles(choice: Choice, kept: tuple[Axis, ...]) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    reduced = problem.reduce or (Axis(problem.length, 1, 1, 1),)
    segmented = problem.op == "logsumexp_backward"
    if segmented and (choice.algorithm == "strided_split" or tuning.clustered is not None):
        raise choice.refuse("no sum is needed: tiles are cut into segments, each for itself, by `strided`")
    pack, wide_dy, wide_saved = _access(choice, kept)
    if not segmented and tuning.staged is None:
        held = _plan_held(choice, kept, reduced, (pack, wide_dy, wide_saved))
        if held is not None:
            return held
    if segmented and wide_saved and tuning == Tuning() and problem.rows * problem.length > 0:
        (pack, across, threads), staged = cut_segments(choice, kept[-1].size, pack), False
    else:
        crossed = cut_gradient(choice, kept[-1]) if tuning == Tuning() and not segmented else tuning
        across, threads, staged = tile(
            replace(choice, tuning=crossed), pack, not segmented and tuning.staged is not False
        )
    few = ceil_div(problem.rows, across * pack) * 2 <= choice.device.multiprocessors
    shared = choice.algorithm is None and not segmented and few and problem.length >= SHARED_STEPS
    if shared or choice.algorithm == "strided_split":
        return _plan_shared(choice, kept, reduced, across, (pack, wide_dy, wide_saved))
    if not segmented and tuning == Tuning() and _reads_twice(choice, kept, pack, wide_dy):
        across, threads = _narrow_tile(choice)
        staged = False
        choice.why.append("narrow tiles, small blocks: what they read again is in L2 still")
    tile_elements = problem.length * across * pack
    tile_bytes = -(-tile_elements * choice.z_size // ACCESS_BYTES) * ACCESS_BYTES + tile_elements * choice.x_size
    units, per_block = problem.rows, across * pack
    choice.why.append(_across(across, kept, pack))
    if segmented:
        tiles = -(-problem.rows // per_block)
        segments = -(-problem.length // (threads // across * STRIDED_SEGMENT_STEPS))
        units, per_block = tiles * segments, 1
        choice.why.append(f"no sum is needed: a tile is cut into segments, here {segments}, each for itself")
    elif staged:
        choice.why.append(f"tiles of dy and y take {tile_bytes} bytes of shared memory: read once")
    else:
        choice.why.append(f"a tile of {problem.length} steps does not wait in shared memory: read twice")
    return build(
        choice,
        "strided",
        "gradient_logsumexp.h" if segmented else "gradient_strided.h",
        "gradient_logsumexp_strided" if segmented else "gradient_strided",
        "GradientStrided",
        _shape(kept, reduced, threads, across, (pack, wide_dy, wide_saved), staged),
        threads=threads,
        shared_bytes=tile_bytes if staged else 0,
        units=units,
        units_per_block=per_block,
        axes=(*kept, *reduced),
        reads=1 if staged or segmented else 2,
    )


def _plan_held(
    choice: Choice, kept: tuple[Axis, ...], reduced: tuple[Axis, ...], access: tuple[int, bool, bool]
) -> CudaPlan | None:
    """Both arrays of a tile wait in the registers of one or several blocks; None where others are better."""
    problem = choice.problem
    widest, wide_dy, wide_saved = access
    sizes = choice.z_size, choice.x_size
    both = 4 if sum(sizes) == 4 else 8  # bytes of a pair; mixed types are as float32
    tiles = GRADIENT_TILES[both]
    # Few neighbours, beyond which lie other rows, steps away: a tile no wider than these.
    narrow = choice.tuning.clustered is None and is_narrow(problem, kept[-1].size)
    tiny = narrow or (len(kept) > 1 and kept[-1].size * choice.x_size <= ACCESS_BYTES)
    few_tiles: Sequence[SharedTile] = FEW_GRADIENT_TILES
    if tiny:
        tiles = as_wide_as(kept[-1].size, TINY_GRADIENT_TILES[both])
        few_tiles = tiles if narrow else few_tiles
    held = Held(
        widest=widest,
        pack=ACCESS_BYTES // 2 // max(*sizes, choice.y_size),
        sizes=sizes,
        tiles=[t for t in tiles if choice.algorithm in (None, _name(t.blocks))],
        few_tiles=[t for t in few_tiles if choice.algorithm in (None, _name(t.blocks))],
        alone=True,
    )
    filled = kept[-1].size * choice.x_size >= min(ACCESS_BYTES, problem.rows * choice.x_size)
    measured = wide_dy and wide_saved and (filled or tiny) and choice.registers_per_element == 1
    measured = measured and problem.length >= FEWEST_GRADIENT_STEPS
    neighbours = _side_by_side(kept, access)
    cut = _alone(choice, held) if neighbours else None
    cut = cut or cut_of_few(choice, held, neighbours) or cut_tile(choice, held, measured)
    if cut is None:
        return None
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": cut.threads,
        "resident": cut.resident,
        "across": cut.across,
        "packs": cut.packs,
        "pack": cut.pack,
        "wide_dy": wide_dy,
        "wide_saved": wide_saved,
        "cluster": cut.blocks if cut.clustered else 0,
    }
    choice.why.append(_across(cut.across, kept, cut.pack))
    choice.why.append(cut.shared_by(problem.length))
    slot_bytes = 16 * ceil_div(ITEMSIZE[problem.compute_dtype], 8)
    team = Team(cut.blocks, cut.packs, 0 if cut.clustered else 2 * cut.columns * slot_bytes)
    return build(
        choice,
        _name(cut.blocks),
        "gradient_strided_held.h",
        "gradient_strided_held",
        "GradientStridedHeld",
        shape,
        threads=cut.threads,
        shared_bytes=0,
        units=problem.rows,
        units_per_block=cut.columns,
        axes=(*kept, *reduced),
        reads=1,
        waves=ONCE if cut.clustered else 1,
        team=None if cut.blocks == 1 else team,
    )


def _alone(choice: Choice, held: Held) -> TileCut | None:
    """The cut where one thread holds the whole of its columns, and needs no other; None where they are too long."""
    problem, device = choice.problem, choice.device
    if choice.tuning != Tuning() or choice.algorithm not in (None, "strided") or choice.registers_per_element > 1:
        return None
    for pack in (8, 4, 2, 1):
        registers = max(1, problem.length) * held.registers(pack)
        if pack <= held.widest and registers <= GRADIENT_ALONE_REGISTERS:
            few = problem.rows < pack * WARP_THREADS * device.multiprocessors
            if few and problem.length >= FEWEST_GRADIENT_STEPS:
                return None
            threads = 32 if few else WARP_THREADS
            eighths = 8 if registers <= MOST_GRADIENT_BESIDE_ALL_BLOCKS else 6
            resident = TILE_THREADS_PER_MULTIPROCESSOR // threads * eighths // 8
            return TileCut(pack, threads, threads, 1, resident, max(1, problem.length), True)
    return None


def _name(blocks: int) -> str:
    """The algorithm in which a tile has so many."""
    return "strided" if blocks == 1 else "strided_split"


def _reads_twice(choice: Choice, kept: tuple[Axis, ...], pack: int, wide_dy: bool) -> bool:
    full = pack * min(choice.x_size, choice.z_size) == ACCESS_BYTES
    fewest, _ = GRADIENT_READ_TWICE.get(choice.kept_size, (math.inf, 0))
    tiles = choice.problem.rows // (GRADIENT_READ_TWICE_ACROSS * pack)
    # Of elements that lie apart the second read costs as much as the first.
    scattered = not wide_dy and kept[-1].z_stride != 0 and choice.problem.length <= MOST_SCATTERED_STEPS
    return full and not scattered and choice.problem.length >= fewest and tiles >= choice.device.multiprocessors


def _narrow_tile(choice: Choice) -> tuple[int, int]:
    """Threads across a tile, and of its block: a warp at least."""
    _, most = GRADIENT_READ_TWICE[choice.kept_size]
    along = max(2, min(most, floor_power(choice.problem.length // GRADIENT_READ_TWICE_STEPS)))
    across = max(GRADIENT_READ_TWICE_ACROSS, 32 // along)
    return across, across * along


def _plan_shared(
    choice: Choice, kept: tuple[Axis, ...], reduced: tuple[Axis, ...], across: int, access: tuple[int, bool, bool]
) -> CudaPlan:
    """Several blocks for a tile, so that they keep every multiprocessor busy. What they read again is in L2 still."""
    problem, device, tuning = choice.problem, choice.device, choice.tuning
    columns = across * access[0]
    # 512 threads have 128 registers each: those that handle doubles spill on sm_100.
    threads = tuning.threads or (LOOP_THREADS if choice.registers_per_element == 1 else SPLIT_THREADS)
    most = ceil_div(problem.length, threads // across * SHARED_GRADIENT_STEPS)
    blocks = tuning.blocks or max(1, min(device.multiprocessors // max(1, ceil_div(problem.rows, columns)), most))
    if blocks > device.multiprocessors:
        raise choice.refuse(f"{blocks} blocks for a tile; {device.multiprocessors} are at work at once")
    steps = ceil_div(problem.length, blocks)
    choice.why.append(_across(across, kept, access[0]))
    choice.why.append(f"{blocks} blocks share a tile of {problem.length} steps, which waits nowhere: read twice")
    return build(
        choice,
        "strided_split",
        "gradient_strided_split.h",
        "gradient_strided_split",
        "GradientStrided",
        _shape(kept, reduced, threads, across, access, staged=False),
        threads=threads,
        shared_bytes=0,
        units=problem.rows,
        units_per_block=columns,
        axes=(*kept, *reduced),
        reads=2,
        team=Team(blocks, steps, 2 * columns * 16 * ceil_div(2 * ITEMSIZE[problem.compute_dtype], 8)),
    )


def _across(across: int, kept: tuple[Axis, ...], pack: int) -> str:
    return f"{across} threads lie across rows that are {kept[-1].y_stride} apart in memory, {pack} each"


def _shape(
    kept: tuple[Axis, ...],
    reduced: tuple[Axis, ...],
    threads: int,
    across: int,
    access: tuple[int, bool, bool],
    staged: bool,
) -> dict[str, int | str | bool]:
    pack, wide_dy, wide_saved = access
    return {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": threads,
        "across": across,
        "pack": pack,
        "wide_dy": wide_dy,
        "wide_saved": wide_saved,
        "staged": staged,
    }


def _side_by_side(kept: tuple[Axis, ...], access: tuple[int, bool, bool]) -> int:
    """Columns whose elements follow each other in all arrays, or 0."""
    _, wide_dy, wide_saved = access
    return kept[-1].size if wide_dy and wide_saved else 0


def _access(choice: Choice, kept: tuple[Axis, ...]) -> tuple[int, bool, bool]:
    """The widest pack along the inner axis that starts on its boundary everywhere, in dx and in the inputs whose
    elements are neighbours there; and which of these are so, dy and the saved array."""
    inner = kept[-1]
    others = (*kept[:-1], *choice.problem.reduce)
    arrays = (
        (inner.y_stride, choice.y_past, choice.y_size, [a.y_stride for a in others]),
        (inner.z_stride, choice.z_past, choice.z_size, [a.z_stride for a in others]),
        (inner.x_stride, choice.x_past, choice.x_size, [a.x_stride for a in others]),
    )
    wide = [stride == 1 and past is not None for stride, past, _, _ in arrays]
    if choice.problem.op == "logsumexp_backward":
        wide[1] = False
    if not wide[0]:
        return chosen_pack(choice, 1), False, False
    told = (
        (past, size, strides)
        for (_, past, size, strides), it in zip(arrays, wide, strict=True)
        if it and past is not None
    )
    return chosen_pack(choice, widest_pack(inner, told)), wide[1], wide[2]
