"""The plans for rows that lie across memory in x and along it in the result: tiles wait in registers, and results go
through shared memory, from where they are written along the rows; and for gradients whose dy lies so."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..problem import GRADIENTS, Axis
from .crossed import nearest_last
from .kernel_plan import BLOCK_SCRATCH, ONCE, WAVES, Choice, CudaPlan, build
from .rounding import ceil_div, floor_power
from .thresholds import ACCESS_BYTES, WARP_LANES
from .tile_cut import chosen_pack, widest_pack
from .tile_thresholds import SECTOR_BYTES
from .tuning import Tuning

_SERVED = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")


class RowsTile(NamedTuple):
    """A tile for rows of so many steps at most."""

    steps: int
    across: int  # threads side by side across its rows
    threads: int  # of a block


class _Columns(NamedTuple):
    """The array of which threads hold columns: x, or a gradient's dy."""

    stride: str  # the name of an axis' stride in it
    past: int | None  # where it begins past a boundary
    size: int  # bytes of an element


# By bytes of an element that waits. H200, December 2026, softmax along the last dim of views with their channels there
# (NCHW logits, permuted), 46 million elements, us by what there was, so, and a copy's of as many: float32 of 8 channels
# 253, 103 (91), 21 551, 93 (93), 32 106, 97 (90), 91 132, 95 (91), 151 161, 95 (90), 501 184, 102 (93), 1001 211, 138
# (90); bfloat16 of 21 479, 49 (51), 32 67, 58 (48), 91 171, 50 (51), 151 192, 52 (48), 601 209, 60 (50), 1001 210, 74.
_TILES = {
    4: (
        *(RowsTile(40, 64, 64), RowsTile(76, 32, 64), RowsTile(160, 32, 128), RowsTile(304, 16, 128)),
        *(RowsTile(608, 16, 256), RowsTile(1216, 8, 256), RowsTile(2048, 8, 512)),
    ),
    2: (
        *(RowsTile(24, 64, 64), RowsTile(50, 32, 64), RowsTile(152, 16, 64), RowsTile(304, 16, 128)),
        *(RowsTile(608, 16, 256), RowsTile(1216, 8, 256), RowsTile(2048, 8, 512)),
    ),
}
# The same of gradients whose dy lies so, where what was saved and dx lie along rows. us: softmax's float32 of 3 classes
# 298, 133, 21 137 (91 a copy of two arrays), 91 143, 1001 188; bfloat16 of 3 297, 82, 21 86 (50), 151 101, 1001 116.
_GRADIENT_TILES = {
    4: (
        *(RowsTile(24, 64, 64), RowsTile(40, 32, 64), RowsTile(100, 32, 128), RowsTile(152, 16, 128)),
        *(RowsTile(304, 8, 128), RowsTile(608, 8, 256), RowsTile(1216, 8, 512)),
    ),
    2: (
        *(RowsTile(24, 64, 64), RowsTile(40, 32, 64), RowsTile(50, 32, 128), RowsTile(100, 16, 64)),
        *(RowsTile(152, 16, 128), RowsTile(304, 8, 128), RowsTile(608, 8, 256), RowsTile(1216, 8, 512)),
    ),
}
# Rows per access: of so few steps of float32 two, which is too much to hold of more, and of 16 bits four, else two. Of
# gradients four and two of so few; of more only where lines lie in banks of their own, for three accesses: softmax's of
# 8 by two 203 and by one 151, bfloat16 123 and 93, of 7 134 and 139, 81 and 93.
MOST_STEPS_IN_TWOS = 9
MOST_STEPS_IN_FOURS = 3
MOST_GRADIENT_STEPS_IN_FOURS = 5
# Values of 32 bits that a thread with rows to itself holds of all its tiles, and how many tiles there are at most: of 3
# steps of float32 110 us by four, 123 by one, of 16 bits 51 and 55. Fewer than so many blocks for each multiprocessor
# have one.
MOST_OF_TILES = 24
MOST_TILES = 4
FEWEST_BLOCKS = 16
# Fewer steps are for threads that write what they have, but of softmax in pairs of 16 bits. Times over those of what
# there was, of 444 views at random: float32 log_softmax of 4 to 6 steps 0.9 to 1.2, softmax of 2 to 6 0.8 to 1.2;
# bfloat16 softmax of 2 to 6 in pairs 0.64 to 1.05, else 1.1 to 1.4; of 7 and more 0.19 to 0.92. float64 of more than so
# many 0.8 to 1.4, log_softmax's gradient 0.75 to 1.3. Fewer elements for each multiprocessor are done before they are
# there: 1.0 to 1.5. Gradients, of 336: from 2 steps on, 0.26 to 1.02.
FEWEST_STEPS = 7
MOST_DOUBLE_STEPS = 100
FEWEST_ELEMENTS = 2048
# Up to so many steps also where squares could be turned in registers, by operation and bytes of an element that waits.
# us by squares and so: softmax float32 of 100 110 and 97, 256 103 and 102, 400 104 and 105; bfloat16 of 16 87 and 54,
# 400 64 and 58, 512 59 and 61; log_softmax float32 of 32 106 and 109, bfloat16 85 and 63, of 300 91 and 71.
_BEFORE_SQUARES = {("softmax", 4): 300, ("softmax", 2): 400, ("log_softmax", 4): 15, ("log_softmax", 2): 300}
MOST_TOLD_REGISTERS = 160  # that hold a tile, where tuning says how it is cut
START_BYTES = 8  # of where a row begins, beside its results
MOST_WRITTEN = 4  # elements at a time, of rows that are whole packs


def plan_by_rows(choice: Choice, kept: tuple[Axis, ...]) -> CudaPlan | None:
    """The plan; None where rows lie otherwise, or others are better. `kept`: the kept axes, of which threads lie side
    by side along the last."""
    problem, tuning = choice.problem, choice.tuning
    if tuning.by_rows is False or (tuning != Tuning() and not tuning.by_rows):
        return None
    gradient = problem.op in GRADIENTS
    columns = _columns(choice)
    if gradient:
        kept = nearest_last(kept, columns.stride)
    cut = _cut(choice, kept) if choice.algorithm in (None, "strided") and _lies_by_rows(choice, kept) else None
    if cut is None:
        if tuning.by_rows:
            raise choice.refuse(
                "rows do not lie across memory in one array and along it in the result, or are too long"
            )
        return None
    pack, across, threads, tiles = cut
    steps = ceil_div(problem.length, threads // across)
    joined, written = _written(choice, kept)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(problem.reduce),
        "threads": threads,
        "resident": tuning.resident or 1,
        "across": across,
        "packs": steps,
        "pack": pack,
        **({"wide_dy": pack > 1, "wide_saved": False, "cluster": 1} if gradient else {"tiles": tiles}),
        "by_rows": f"onepass::cuda::ByRows{{.pack = {written}, .joined = {str(joined).lower()}}}",
    }
    apart = getattr(kept[-1], columns.stride)
    choice.why.append(f"{across} threads lie across rows that are {apart} apart in memory, {pack} each")
    choice.why.append(f"a thread holds {steps} of the {problem.length} steps in registers: read once")
    also = "what was saved and " if gradient else ""
    choice.why.append(f"{also}results go through shared memory, and cross memory along the rows")
    return build(
        choice,
        "strided",
        "gradient_strided_held.h" if gradient else "strided_held.h",
        "gradient_strided_held" if gradient else "strided_held",
        "GradientStridedHeld" if gradient else "StridedHeld",
        shape,
        threads=threads,
        shared_bytes=_shared_bytes(choice, kept, across * pack),
        units=problem.rows,
        units_per_block=across * pack * tiles,
        axes=(*kept, *problem.reduce),
        reads=1,
        waves=ONCE if gradient else WAVES,
    )


def _shared_bytes(choice: Choice, kept: tuple[Axis, ...], rows: int) -> int:
    """Of a tile, as tile_rows.h lays it out."""
    joined, written = _written(choice, kept)
    line = choice.problem.length if joined else (choice.problem.length // written | 1) * written
    return rows * (line * choice.y_size + (0 if joined else START_BYTES))


def before_squares(choice: Choice) -> bool:
    """Whether rows are so short that these plans come before those by squares (plan_turned.py)."""
    return choice.problem.length <= _BEFORE_SQUARES.get((choice.problem.op, choice.held_size), 0)


def _columns(choice: Choice) -> _Columns:
    if choice.problem.op in GRADIENTS:
        return _Columns("z_stride", choice.z_past, choice.z_size)
    return _Columns("x_stride", choice.x_past, choice.x_size)


def _lies_by_rows(choice: Choice, kept: tuple[Axis, ...]) -> bool:
    """Whether the result has the steps of a row side by side, and what is held of it, x or dy, other rows; and of a
    gradient, what was saved lies as the result does, and is of its type."""
    problem = choice.problem
    if problem.op not in _SERVED or not kept or len(problem.reduce) != 1:
        return False
    steps, inner = problem.reduce[0], kept[-1]
    if steps.y_stride != 1 or abs(inner.y_stride) < 2:
        return False
    if problem.op not in GRADIENTS:
        return 0 < abs(inner.x_stride) < abs(steps.x_stride)
    alike = problem.dtype == problem.result_dtype == problem.second_dtype
    alike = alike and all(axis.x_stride == axis.y_stride for axis in (*kept, steps))
    alike = alike and choice.x_past is not None and choice.x_past == choice.y_past
    return alike and 0 < abs(inner.z_stride) < abs(steps.z_stride)


def _cut(choice: Choice, kept: tuple[Axis, ...]) -> tuple[int, int, int, int] | None:
    """Rows per access, threads across a tile and of a block, and tiles of a block at a time."""
    tuning, length, size = choice.tuning, choice.problem.length, choice.registers_per_element
    widest = _widest(choice, kept)
    room = choice.device.shared_per_multiprocessor // 2 - BLOCK_SCRATCH  # of two blocks at least
    if tuning.by_rows:
        pack, threads = chosen_pack(choice, widest) if tuning.pack else 1, tuning.threads or 128
        across, tiles = tuning.across or threads, tuning.rows or 1
        shared = across <= min(WARP_LANES, threads) or across == threads
        held = ceil_div(length, max(1, threads // across)) * pack * size
        fits = held <= MOST_TOLD_REGISTERS and _shared_bytes(choice, kept, across * pack) <= room
        return (pack, across, threads, tiles) if shared and fits else None
    gradient = choice.problem.op in GRADIENTS
    halves = (choice.z_size if gradient else choice.held_size) == 2
    pairs = halves and widest > 1
    if not _pays(choice, kept[-1], pairs):
        return None
    pack = min(widest, _pack(choice, pairs))
    table = _GRADIENT_TILES[2 if halves else 4] if gradient else _TILES[2 if pairs else 4]
    tile = next((tile for tile in table if length * size <= tile.steps), None)
    if tile is None or _shared_bytes(choice, kept, tile.across * pack) > room:
        return None
    tiles = 1
    if tile.across == tile.threads and not gradient:
        registers = length * pack // 2 if pairs else length * pack * size
        blocks = choice.problem.rows // (tile.across * pack * choice.device.multiprocessors * FEWEST_BLOCKS)
        tiles = min(MOST_TILES, floor_power(max(1, MOST_OF_TILES // registers)), floor_power(max(1, blocks)))
    return pack, tile.across, tile.threads, tiles


def _pack(choice: Choice, pairs: bool) -> int:
    """Rows per access, if they start on their boundary."""
    length = choice.problem.length
    twos = pairs or length * choice.registers_per_element <= MOST_STEPS_IN_TWOS
    if choice.problem.op not in GRADIENTS:
        return 4 if pairs and length <= MOST_STEPS_IN_FOURS else 2 if twos else 1
    if length <= MOST_GRADIENT_STEPS_IN_FOURS:
        return 4 if pairs else 2 if twos else 1
    alone = length <= _GRADIENT_TILES[2][0].steps
    return 2 if twos and alone and length % 2 == 1 else 1


def _pays(choice: Choice, inner: Axis, pairs: bool) -> bool:
    """Whether neighbours in what is held are near, and steps and elements enough."""
    problem = choice.problem
    columns = _columns(choice)
    near = inner.size * columns.size >= SECTOR_BYTES * abs(getattr(inner, columns.stride))
    enough = problem.rows * problem.length >= FEWEST_ELEMENTS * choice.device.multiprocessors
    most = problem.length
    if choice.registers_per_element > 1:
        most = 0 if problem.op == "log_softmax_backward" else MOST_DOUBLE_STEPS
    fewest = 2 if problem.op in GRADIENTS or (pairs and problem.op == "softmax") else FEWEST_STEPS
    return near and enough and fewest <= problem.length <= most


def _widest(choice: Choice, kept: tuple[Axis, ...]) -> int:
    """Rows per access at most: they start on their boundary everywhere in what is held."""
    stride, past, size = _columns(choice)
    if getattr(kept[-1], stride) != 1 or past is None:
        return 1
    others = (*kept[:-1], *choice.problem.reduce)
    return widest_pack(kept[-1], [(past, size, [getattr(axis, stride) for axis in others])])


def _written(choice: Choice, kept: tuple[Axis, ...]) -> tuple[bool, int]:
    """Whether rows are written as one, and elements at a time: rows of an odd number of elements that follow each other
    in the result lie in shared memory as they do there, in banks of their own; others are whole packs."""
    length = choice.problem.length
    widest = 1 if choice.y_past is None else math.gcd(ACCESS_BYTES, choice.y_past) // choice.y_size
    apart, joined = length, length % 2 == 1
    for axis in reversed(kept):
        joined = joined and axis.y_stride == apart
        apart *= axis.size
    if joined:
        return True, max(1, widest)
    return False, math.gcd(max(1, min(MOST_WRITTEN, widest)), length, *(axis.y_stride for axis in kept))
