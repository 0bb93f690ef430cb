"""The plans in which several blocks share a tile of rows whose elements lie anywhere, in their registers."""

from __future__ import annotations

from collections.abc import Sequence

from ..problem import ITEMSIZE, REDUCTIONS, Axis
from .kernel_plan import ONCE, Choice, CudaPlan, Team, build
from .rounding import ceil_div
from .thresholds import ACCESS_BYTES
from .tile_cut import Held, TileCut, as_wide_as, cut_of_few, cut_tile, halved, is_narrow, side_by_side
from .tile_thresholds import (
    AS_READ_TILES,
    AS_READ_TILES_ACROSS_SECTORS,
    FEW_LOGARITHM_TILES,
    FEW_SHARED_TILES,
    FEWEST_NARROW_COLUMNS,
    FEWEST_SHARED_NEIGHBOURS,
    HELD_ALONE_STEPS,
    LOGARITHM_TILES,
    MOST_UNWRITTEN_BLOCKS,
    MOST_UNWRITTEN_NARROW_STEPS,
    MOST_UNWRITTEN_ROUNDS,
    MOST_UNWRITTEN_SINGLE_STEPS,
    MOST_UNWRITTEN_STEPS,
    NARROW_SHARED_TILES,
    SECTOR_BYTES,
    SHARED_TILES,
    SHARED_TILES_ACROSS_SECTORS,
    SINGLE_TILES,
    UNWRITTEN_COLUMNS_PER_MULTIPROCESSOR,
    UNWRITTEN_ELEMENTS_PER_MULTIPROCESSOR,
    UNWRITTEN_TILES,
    SharedTile,
)


def plan_strided_split_held(choice: Choice, kept: tuple[Axis, ...], widest: int) -> CudaPlan | None:
    """The plan; `kept`: the kept axes, of which threads lie side by side along the last; `widest`: rows per access at
    most. None where others are better, or it cannot serve; but refused with a reason if tuning wants it."""
    problem = choice.problem
    if problem.op in REDUCTIONS:
        raise choice.refuse("nothing waits in registers: a reduction reads its input once")
    neighbours = side_by_side(choice, kept)
    narrow = choice.tuning.clustered is None and is_narrow(problem, neighbours)
    as_read = choice.held_size == 2 and widest > 1 and not narrow
    tiles: Sequence[SharedTile] = _tiles(choice, widest)
    few_tiles: Sequence[SharedTile] = halved(FEW_SHARED_TILES) if as_read else FEW_SHARED_TILES
    if as_read and problem.op == "log_softmax":
        few_tiles = [*FEW_LOGARITHM_TILES, *few_tiles]
    if narrow:
        tiles = few_tiles = as_wide_as(
            max(FEWEST_NARROW_COLUMNS, neighbours), NARROW_SHARED_TILES.get(choice.kept_size, ())
        )
    columnwise = not narrow and _by_few_columns(choice, widest)
    if columnwise:
        unwritten = UNWRITTEN_TILES[2 if choice.kept_size == 2 and widest > 1 else 4]
        tiles = [*(halved(unwritten) if as_read else unwritten), *tiles]
    held = Held(
        widest=widest,
        pack=1 if narrow else ACCESS_BYTES // 2 // max(choice.x_size, choice.y_size),
        sizes=(choice.held_size,),
        tiles=tiles,
        few_tiles=few_tiles,
        alone=False,
        as_read=as_read,
    )
    near = narrow or neighbours >= min(FEWEST_SHARED_NEIGHBOURS, problem.rows)
    of_few = cut_of_few(choice, held, neighbours)
    measured = near and problem.length > HELD_ALONE_STEPS and choice.registers_per_element == 1
    cut = of_few or cut_tile(choice, held, measured)
    if cut is None or (narrow and not cut.clustered):
        return None
    pays = choice.elementwise or of_few is not None or columnwise or _holding_pays(choice, cut, narrow)
    if choice.tuning.clustered is None and not pays:
        return None
    reduced = problem.reduce or (Axis(problem.length, 1, 1),)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": cut.threads,
        "resident": cut.resident,
        "across": cut.across,
        "packs": cut.packs,
        "pack": cut.pack,
        "cluster": cut.blocks if cut.clustered else 0,
    }
    choice.why.append(
        f"{cut.across} threads lie across rows that are {kept[-1].x_stride} apart in memory, {cut.pack} each"
    )
    choice.why.append(cut.shared_by(problem.length))
    slot_bytes = 16 * ceil_div(3 * ITEMSIZE[problem.compute_dtype], 8)
    return build(
        choice,
        "strided_split",
        "strided_split_held.h",
        "strided_split_held",
        "StridedSplitHeld",
        shape,
        threads=cut.threads,
        shared_bytes=0,
        units=problem.rows,
        units_per_block=cut.columns,
        axes=(*kept, *reduced),
        reads=1,
        waves=ONCE if cut.clustered else 1,
        team=Team(cut.blocks, cut.packs, 0 if cut.clustered else 2 * cut.columns * slot_bytes),
    )


def _by_few_columns(choice: Choice, widest: int) -> bool:
    """Whether what is not written is better held a few columns to a cluster, an element or two at a time."""
    problem, multiprocessors = choice.problem, choice.device.multiprocessors
    if choice.elementwise or choice.tuning.clustered is not None:
        return False
    small = problem.rows * problem.length <= UNWRITTEN_ELEMENTS_PER_MULTIPROCESSOR * multiprocessors
    few = problem.rows <= UNWRITTEN_COLUMNS_PER_MULTIPROCESSOR * multiprocessors
    held = widest > 1 or problem.length <= MOST_UNWRITTEN_SINGLE_STEPS
    return small or (few and held and problem.length > MOST_UNWRITTEN_STEPS)


def _holding_pays(choice: Choice, cut: TileCut, narrow: bool) -> bool:
    """Whether a tile that is read once and not written is better held than walked along."""
    blocks = ceil_div(choice.problem.rows, cut.columns) * cut.blocks
    if not cut.clustered or blocks < choice.device.multiprocessors:
        return True
    if not narrow and blocks > MOST_UNWRITTEN_ROUNDS * cut.resident * choice.device.multiprocessors:
        return False
    short = choice.problem.length <= (MOST_UNWRITTEN_NARROW_STEPS if narrow else MOST_UNWRITTEN_STEPS)
    return short or (choice.x_size == 2 and cut.blocks >= MOST_UNWRITTEN_BLOCKS)


def _tiles(choice: Choice, widest: int) -> Sequence[SharedTile]:
    """The tiles to choose from: wider ones where the steps of rows do not lie on boundaries of sectors."""
    size, reduced = choice.kept_size, choice.problem.reduce
    whole = SECTOR_BYTES if choice.problem.op == "softmax" else SECTOR_BYTES // 2
    apart = any(axis.y_stride * size % whole for axis in reduced)
    if widest > 1 and choice.held_size == 2:
        if apart:
            return AS_READ_TILES_ACROSS_SECTORS
        if choice.problem.op == "log_softmax":
            return [AS_READ_TILES[0], *LOGARITHM_TILES, *AS_READ_TILES[1:]]
        return AS_READ_TILES
    if size == 4 and widest > 1 and apart:
        return SHARED_TILES_ACROSS_SECTORS
    tiles = SHARED_TILES.get(size, ())
    if widest == 1 and choice.elementwise:
        return [*SINGLE_TILES.get(size, ()), *tiles]
    return tiles
