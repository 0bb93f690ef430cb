"""The plans for rows that lie one way in one array and another way in another: squares of them are turned in
registers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..problem import GRADIENTS, Axis
from .kernel_plan import DIRECT, ONCE, Choice, CudaPlan, Team, build
from .rounding import ceil_div
from .thresholds import ACCESS_BYTES, WARP_LANES
from .tile_cut import chosen_pack
from .tile_thresholds import SECTOR_BYTES
from .tuning import Tuning

_SERVED = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")


class TurnedTile(NamedTuple):
    """How a tile is cut."""

    across: int  # threads side by side across its rows
    threads: int  # of a block
    blocks: int  # of a cluster; 1: one alone
    most: int  # squares that a thread holds
    down: int = 0  # threads side by side along the second side of squares, where that is rows, too


def _tiles(*cuts: tuple[int, int, int, int]) -> tuple[TurnedTile, ...]:
    return tuple(TurnedTile(*cut) for cut in cuts)


# By bytes of the widest element, and rows and steps of a square: the first tile whose registers hold the steps, as many
# as leave no kernel of tools/nvrtc_matrix.py a spill. H200, November 2026, us, by tiles that are not turned and so, and
# a copy's: softmax of 512x512x512 with the last two dims swapped, float32 402 and 275 (255), bfloat16 468 and 144
# (130), its gradient with such a dy 567 and 381, 485 and 194; 8192x8192 transposed 299 and 166 (130), 273 and 91 (67),
# 503 and 213, 301 and 113; 64x256x56x56 channels last, dim 1, 119 and 109 (100), 109 and 62 (53), 195 and 148, 160 and
# 78.
_FORWARD = {
    (4, 4): _tiles(
        *((16, 64, 1, 2), (8, 64, 1, 2), (4, 64, 1, 3), (4, 128, 1, 4), (4, 128, 2, 4), (4, 128, 4, 4)),
        *((2, 128, 4, 4), (2, 128, 8, 4), (2, 128, 16, 4), (2, 256, 16, 4), (2, 512, 16, 4)),
    ),
    (2, 4): _tiles(
        *((16, 64, 1, 1), (8, 64, 1, 1), (8, 64, 1, 2), (4, 64, 1, 3), (4, 128, 1, 2), (8, 128, 1, 8)),
        *((4, 128, 1, 8), (4, 128, 4, 8), (4, 128, 8, 8), (4, 256, 16, 7), (4, 512, 16, 6)),
    ),
    (4, 2): _tiles(
        *((8, 64, 1, 8), (8, 128, 1, 8), (4, 128, 1, 16), (4, 128, 2, 16), (4, 128, 4, 16), (4, 128, 8, 16)),
        *((4, 128, 16, 16), (4, 256, 16, 16)),
    ),
    (2, 2): _tiles(
        *((8, 64, 1, 4), (8, 128, 1, 16), (8, 128, 2, 24), (8, 128, 4, 24), (8, 128, 8, 24)),
        *((8, 128, 16, 24), (8, 256, 16, 24), (8, 512, 16, 24)),
    ),
}
_GRADIENT = {
    (4, 4): _tiles(
        *((16, 64, 1, 1), (8, 64, 1, 1), (4, 64, 1, 1), (4, 128, 1, 1), (4, 256, 1, 2), (4, 256, 2, 2)),
        *((4, 256, 4, 2), (4, 256, 8, 2), (2, 128, 16, 2), (2, 256, 16, 2), (2, 512, 16, 2)),
    ),
    (2, 8): _tiles(
        *((8, 64, 1, 1), (4, 64, 1, 1), (4, 128, 1, 1), (4, 256, 1, 1), (4, 256, 2, 1), (4, 256, 4, 1)),
        *((4, 256, 8, 1), (2, 256, 8, 1), (2, 256, 16, 1), (2, 512, 16, 1)),
    ),
    (2, 4): _tiles(
        *((16, 64, 1, 1), (8, 64, 1, 2), (4, 64, 1, 2), (4, 128, 1, 4), (4, 256, 1, 4), (4, 256, 2, 4)),
        *((4, 256, 4, 4), (4, 256, 8, 4), (4, 256, 16, 4), (4, 512, 16, 4)),
    ),
    (4, 2): _tiles(
        *((8, 64, 1, 2), (8, 128, 1, 8), (4, 256, 1, 8), (4, 256, 2, 8), (4, 256, 4, 8), (4, 256, 8, 8)),
        *((4, 256, 16, 8), (4, 512, 16, 8)),
    ),
    (2, 2): _tiles(
        *((8, 64, 1, 2), (8, 128, 1, 8), (8, 256, 1, 16), (8, 256, 2, 16), (8, 256, 4, 16), (8, 256, 8, 16)),
        *((8, 256, 16, 16), (8, 512, 16, 16)),
    ),
}
# Tiles of results that lie across rows are wider, by so many bytes, of gradients, and where lines are no whole sectors,
# by so many threads, too: a sector that is written by two tiles crosses memory more than once. us: softmax of 5580x5116
# transposed, dim 0, float32 130 by 2 threads and 103, bfloat16 82 by 4 and 64; of 100x500x500 with the last two dims
# swapped, dim 1, 77 and 67, 55 and 39; gradients 86 and 80, 64 and 55; but bfloat16 8192x8192, of whole sectors, 98 and
# 109, its gradient 126 and 122.
WRITTEN_ACROSS_BYTES = 64
WRITTEN_ACROSS_THREADS = 8
# Where lines are no whole sectors, of squares of 4 and 16 bits: half of the columns, twice the threads. us: such a
# softmax along dim 2 50 and 39; of 512x512x512 144 and 154.
_WIDE, _NARROW = TurnedTile(8, 128, 1, 8), TurnedTile(4, 256, 1, 2)
_FORWARD_APART = {**_FORWARD, (2, 4): tuple(_NARROW if tile == _WIDE else tile for tile in _FORWARD[2, 4])}
# Shorter rows do not give enough threads a square each; and where results lie across rows, us: bfloat16 64x16x16384,
# dim 1 of the last two swapped, 30 for 26, but of 32 steps 29 for 38.
FEWEST_STEPS = 16
FEWEST_STEPS_WRITTEN_ACROSS = 32
# Of gradients of 16 bits squares of 8 leave threads without one in shorter rows, squares of 4 do not.
FEWEST_WIDE_STEPS = 64

# Where both sides of a square are rows, it has 2 by 2 of them: by 4 by 4 a thread had 16 to reduce and was slower. From
# so many rows on along each side. H200, December 2026, us, by tiles of neighbours of both kinds and by squares, and a
# copy's: 788x480x126 with its dims turned round, dim 1, softmax float32 576 and 189 (96), bfloat16 429 and 135 (53),
# its gradient with such a dy 842 and 251, 593 and 160.
SIDE_OF_ROWS = 2
FEWEST_ROWS_ALONG_A_SIDE = 8
# Threads of a block and blocks of a cluster, the first whose registers hold the steps, and squares of a thread at most,
# by whether it is a gradient and bytes of the widest element.
_TEAMS_OF_ROWS = ((64, 1), (128, 1), (256, 1), (256, 2), (256, 4), (256, 8), (256, 16), (512, 16))
_MOST_OF_ROWS = {(False, 4): 16, (False, 2): 16, (True, 4): 8, (True, 2): 16}
# Threads along each side. Twice as many along the second, that of neighbours in the result, for results of 16 bits: but
# from so many steps on, that clusters of twice the blocks would hold, not; nor where there are no rows for them. Random
# views, times over those of tiles by 4 threads and by 8: 53 of bfloat16 with fewer steps 0.54 and 0.49, 27 with more
# 0.51 and 0.66; 83 of float32 0.64 and 0.70.
THREADS_OF_SIDE = 4
FEWEST_STEPS_OF_NARROW_SIDE = 512
# Of float32 where the lines of two steps are no whole sectors apart in the result, from so many rows along the first
# side and the second on: 29 such views by 8 threads 0.88 of the time by 4, their gradients 0.96; fewer along the first
# as long by either.
FEWEST_ROWS_OF_WIDE_SIDE = 32, 64


@dataclass(frozen=True)
class _Sides:
    """The axes along the sides of a square, and which way each array lies."""

    kept: tuple[Axis, ...]  # that of the first side last, before it that of the second, where this is kept, too
    of_rows: bool  # both sides are rows
    along: tuple[bool, ...]  # of x and the result, or of what was saved, dx and dy: neighbours are those of the second
    widest: int  # elements of a side at most, each line on a boundary everywhere
    apart: bool  # lines of an array are no whole sectors apart, or do not begin with one


def plan_turned(choice: Choice) -> CudaPlan | None:
    """The plan; None where rows lie the same way in all arrays, or others are better."""
    tuning = choice.tuning
    if tuning.turned is False or (tuning != Tuning() and not tuning.turned):
        return None
    sides = _sides(choice)
    cut = None if sides is None else _cut(choice, sides)
    if sides is None or cut is None:
        if tuning.turned:
            raise choice.refuse("no squares of rows are to be turned, or no registers hold them")
        return None
    pack, tile = cut
    across, threads, blocks, squares, down = tile
    gradient = choice.problem.op in GRADIENTS
    names = ("along_saved", "along_dx", "along_dy") if gradient else ("along",)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(sides.kept),
        "reduced_axes": len(choice.problem.reduce),
        "threads": threads,
        "resident": tuning.resident or _resident(choice, tile, squares * _registers(choice, pack)),
        "across": across,
        "down": down,
        "packs": squares,
        "pack": pack,
        **dict(zip(names, sides.along, strict=False)),
        "cluster": blocks,
    }
    choice.why.append(
        "neighbours in memory are other rows in one array than in another"
        if down
        else "rows lie along memory in one array and across it in another"
    )
    of_cluster = f" of each of {blocks} blocks" if blocks > 1 else ""
    by = f"{pack} others" if down else f"{pack} steps"
    choice.why.append(
        f"a thread{of_cluster} holds {squares} squares of {pack} rows by {by} in registers, reads them one way "
        "and writes them the other: read once"
    )
    units, per_block = choice.problem.rows, across * pack
    if down:
        *others, second, first = (axis.size for axis in sides.kept)
        units, per_block = math.prod(others) * ceil_div(second, down * pack) * ceil_div(first, across * pack), 1
    return build(
        choice,
        "strided" if blocks == 1 else "strided_split",
        "gradient_turned.h" if gradient else "turned.h",
        "gradient_turned" if gradient else "turned",
        "GradientTurned" if gradient else "Turned",
        shape,
        threads=threads,
        shared_bytes=0,
        units=units,
        units_per_block=per_block,
        axes=(*sides.kept, *choice.problem.reduce),
        reads=1,
        waves=ONCE,
        team=Team(blocks, squares, 0) if blocks > 1 else None,
    )


def _arrays(choice: Choice) -> Iterator[tuple[str, int | None, int]]:
    """Of each array: the stride of an axis, where it begins past a boundary, and the bytes of an element."""
    yield "x_stride", choice.x_past, choice.x_size
    yield "y_stride", choice.y_past, choice.y_size
    if choice.problem.op in GRADIENTS:
        yield "z_stride", choice.z_past, choice.z_size


def _sides(choice: Choice) -> _Sides | None:
    """None where there is nothing to turn, or not by packs."""
    problem = choice.problem
    direct = choice.load.type == choice.store.type == DIRECT
    if problem.op not in _SERVED or not direct or not problem.reduce or choice.registers_per_element > 1:
        return None
    steps = problem.reduce[-1]
    arrays = list(_arrays(choice))
    axes = (steps, *choice.kept_axes)
    lies = [next((axis for axis in axes if getattr(axis, stride) == 1), None) for stride, _, _ in arrays]
    second = steps if steps in lies else lies[1]
    first = next((axis for axis in lies if axis is not second), None)
    if first is None or second is None or any(axis is not first and axis is not second for axis in lies):
        return None
    of_rows = second is not steps
    along = tuple(axis is second for axis in lies)
    apart_by = [getattr(first if of_it else second, name) for (name, _, _), of_it in zip(arrays, along, strict=True)]
    if 0 in apart_by:  # broadcast: there is one line for all of a square
        return None
    kept = tuple(axis for axis in choice.kept_axes if axis is not first and axis is not second)
    others = (*kept, *(axis for axis in problem.reduce if axis is not second))
    numbers, apart = [first.size, second.size], False
    for (stride, past, size), lines_apart in zip(arrays, apart_by, strict=True):
        if past is None:
            return None
        numbers += [past // size, lines_apart, *(getattr(axis, stride) for axis in others)]
        apart = apart or math.gcd(past, lines_apart * size) % SECTOR_BYTES > 0
    access = SIDE_OF_ROWS if of_rows else ACCESS_BYTES // max(size for _, _, size in arrays)
    widest = math.gcd(access, *numbers)
    sides = (second, first) if of_rows else (first,)
    return _Sides((*kept, *sides), of_rows, along, widest, apart) if widest > 1 else None


def _cut(choice: Choice, sides: _Sides) -> tuple[int, TurnedTile] | None:
    """Rows and steps of a square, and the tile with the squares that a thread has of it; None where others are better,
    or the registers of no cluster hold the steps."""
    tuning, length = choice.tuning, choice.problem.length
    wide = choice.problem.op in GRADIENTS and length >= FEWEST_WIDE_STEPS
    pack = chosen_pack(choice, sides.widest) if tuning.pack else min(8 if wide else 4, sides.widest)
    if tuning.turned:
        down = _down(choice, sides) if sides.of_rows else 0
        told = TurnedTile(tuning.across or 4, tuning.threads or 128, tuning.blocks or 1, length, down)
        tiles: Iterable[TurnedTile] = [told]
    elif _pays(choice, sides):
        tiles = _suited(choice, sides, pack)
    else:
        return None
    rows, steps = (pack * pack, 1) if sides.of_rows else (pack, pack)
    for tile in tiles:
        across = tile.across * max(1, tile.down)
        if across > WARP_LANES or across * rows > tile.threads or tile.blocks > choice.device.most_clustered:
            continue
        held = ceil_div(ceil_div(length, steps), tile.blocks * (tile.threads // across))
        served = choice.algorithm in (None, "strided" if tile.blocks == 1 else "strided_split")
        if held <= tile.most and served:
            return pack, tile._replace(most=held)
    return None


def _down(choice: Choice, sides: _Sides) -> int:
    """Threads along the second side, where that is rows."""
    problem, twice = choice.problem, 2 * THREADS_OF_SIDE
    second, first = (axis.size for axis in sides.kept[-2:])
    if problem.length >= FEWEST_STEPS_OF_NARROW_SIDE or second < twice * SIDE_OF_ROWS:
        return THREADS_OF_SIDE
    if choice.y_size == 2:
        return twice
    whole = problem.reduce[-1].y_stride * choice.y_size % SECTOR_BYTES == 0
    enough = first >= FEWEST_ROWS_OF_WIDE_SIDE[0] and second >= FEWEST_ROWS_OF_WIDE_SIDE[1]
    return twice if problem.op not in GRADIENTS and enough and not whole else THREADS_OF_SIDE


def _pays(choice: Choice, sides: _Sides) -> bool:
    """Whether rows have steps enough, and where results lie across them, neighbours enough."""
    length = choice.problem.length
    if sides.of_rows:
        return length >= FEWEST_STEPS and min(axis.size for axis in sides.kept[-2:]) >= FEWEST_ROWS_ALONG_A_SIDE
    if sides.along[1] or choice.problem.op in GRADIENTS:
        return length >= FEWEST_STEPS
    return length >= FEWEST_STEPS_WRITTEN_ACROSS and sides.kept[-1].size * choice.y_size >= SECTOR_BYTES


def _suited(choice: Choice, sides: _Sides, pack: int) -> Iterator[TurnedTile]:
    """The tiles to choose from."""
    gradient, size = choice.problem.op in GRADIENTS, max(size for _, _, size in _arrays(choice))
    if sides.of_rows:
        most, down = _MOST_OF_ROWS[gradient, size], _down(choice, sides)
        yield from (TurnedTile(THREADS_OF_SIDE, *team, most, down) for team in _TEAMS_OF_ROWS)
        return
    fewest = 1
    if not sides.along[1] and (sides.apart or gradient):
        fewest = WRITTEN_ACROSS_BYTES // (pack * size)
        if sides.apart:
            fewest = max(fewest, WRITTEN_ACROSS_THREADS)
    tables = _GRADIENT if gradient else _FORWARD_APART if sides.apart else _FORWARD
    for tile in tables.get((size, pack), ()):
        yield _widened(choice, sides, tile, fewest, pack)


def _widened(choice: Choice, sides: _Sides, tile: TurnedTile, fewest: int, pack: int) -> TurnedTile:
    """The tile, with so many threads across it if there are as many rows side by side and blocks for a cluster."""
    while tile.across < fewest and 2 * tile.across * pack <= sides.kept[-1].size:
        threads, blocks = (2, 1) if tile.threads < 256 else (1, 2)
        if blocks * tile.blocks > choice.device.most_clustered:
            break
        tile = TurnedTile(2 * tile.across, threads * tile.threads, blocks * tile.blocks, tile.most)
    return tile


def _registers(choice: Choice, pack: int) -> int:
    """Of 32 bits, that a square takes of each array that waits."""
    sizes = (choice.x_size, choice.z_size) if choice.problem.op in GRADIENTS else (choice.x_size,)
    return sum(pack * ceil_div(pack * size, 4) for size in sizes)


def _resident(choice: Choice, tile: TurnedTile, registers: int) -> int:
    """Blocks that a multiprocessor must have room for, whose threads hold so much: as many as leave no kernel of
    tools/nvrtc_matrix.py a spill."""
    few = 12 if tile.down else 16  # there is more to know of more rows
    of_a_thread = 128 if registers > 32 else 96 if registers > few else 64
    alone_or_later = tile.blocks == 1 or choice.device.major > 9
    if registers > 40 and choice.x_size == 2 and alone_or_later:
        of_a_thread = 160
    return max(1, choice.device.registers // (of_a_thread * tile.threads))
