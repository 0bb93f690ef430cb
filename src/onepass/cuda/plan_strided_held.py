"""The plans for short rows whose elements lie anywhere: tiles that wait in registers."""

from __future__ import annotations

from ..problem import REDUCTIONS, Axis
from .crossed import FEWEST_CROSSED_STEPS, is_crossed, rows_of_a_warp
from .kernel_plan import Choice, CudaPlan, build
from .rounding import ceil_div, ceil_power, floor_power
from .thresholds import ACCESS_BYTES, FORCED_WARP_REGISTERS, LONE_THREADS, LOOP_THREADS, WARP_LANES, WARP_THREADS
from .tile_cut import neighbours
from .tile_thresholds import (
    FEWEST_AS_READ_STEPS,
    HELD_ALONE_REGISTERS,
    HELD_PACK,
    HELD_REDUCED_REGISTERS,
    HELD_REGISTERS,
    HELD_TILES_BLOCKS,
    HELD_TILES_PER_MULTIPROCESSOR,
    HELD_TILES_REGISTERS,
    HELD_UNWRITTEN_REGISTERS,
    LOGARITHM_HALVES_PACK,
    MOST_AS_READ_ALONE,
    MOST_BESIDE_ALL_BLOCKS,
    MOST_HELD_TILES,
    MOST_LOGARITHMS_BESIDE_ALL_BLOCKS,
    MOST_WIDENED,
    MOST_WRITTEN_TILES_STEPS,
    STEPS_PER_THREAD,
    TILE_BYTES,
    TILE_THREADS_PER_MULTIPROCESSOR,
)
from .tuning import Tuning


def plan_strided_held(choice: Choice, kept: tuple[Axis, ...], widest: int) -> CudaPlan | None:
    """The plan that holds a tile in registers, if there is one; `kept`: the kept axes, of which threads lie side by
    side along the last; `widest`: rows per access at most."""
    problem, tuning = choice.problem, choice.tuning
    plain = problem.op in REDUCTIONS
    found = _by_warps(choice, kept) or (_alone(choice, kept, widest, plain) if tuning.across is None else None)
    found = found or _as_read(choice, kept, widest)
    if found is None and not plain:
        found = _shared(choice, kept, tuning.pack or min(widest, _most_pack(choice)))
    if found is None:
        return None
    pack, across, threads = found
    steps = ceil_div(problem.length, threads // across)
    tiles = _tiles(choice, neighbours(choice, kept, pack), steps, pack) if threads == across else 1
    resident = tuning.resident or _resident(choice, threads, steps, pack, tiles)
    reduced = problem.reduce or (Axis(problem.length, 1, 1),)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": threads,
        "resident": resident,
        "across": across,
        "packs": steps,
        "pack": pack,
        "tiles": tiles,
    }
    choice.why.append(f"{across} threads lie across rows that are {kept[-1].x_stride} apart in memory, {pack} each")
    choice.why.append(f"a thread holds {steps} of the {problem.length} steps in registers: read once")
    if tiles > 1:
        choice.why.append(f"of {tiles} tiles at a time: of one too little would be under way")
    return build(
        choice,
        "strided",
        "strided_held.h",
        "strided_held_reduce" if plain else "strided_held",
        "StridedHeld",
        shape,
        threads=threads,
        shared_bytes=0,
        units=problem.rows,
        units_per_block=across * pack * tiles,
        axes=(*kept, *reduced),
        reads=1,
    )


def _by_warps(choice: Choice, kept: tuple[Axis, ...]) -> tuple[int, int, int] | None:
    """The same where a warp has several short rows that lie along memory."""
    across = rows_of_a_warp(choice, kept[-1]) if choice.tuning == Tuning() else 1
    return (1, across, WARP_LANES) if across > 1 else None


def _alone(choice: Choice, kept: tuple[Axis, ...], widest: int, plain: bool) -> tuple[int, int, int] | None:
    """(pack, threads across, threads) where one thread holds the whole of its rows, and needs no other."""
    problem, tuning = choice.problem, choice.tuning
    if is_crossed(choice, kept) and problem.length >= FEWEST_CROSSED_STEPS:
        return None
    held = HELD_REDUCED_REGISTERS if plain else HELD_ALONE_REGISTERS
    most = held // choice.registers_per_element // max(1, problem.length)
    if most < (tuning.pack or 1):
        return None
    pack = tuning.pack or min(widest, floor_power(most))
    few = problem.rows < pack * WARP_THREADS * choice.device.multiprocessors
    if plain and (few or pack < min(widest, HELD_PACK)):  # several threads to a row, or wider accesses, do more
        return None
    threads = tuning.threads or (32 if few else WARP_THREADS)
    return (pack, threads, threads) if threads & (threads - 1) == 0 else None


def _resident(choice: Choice, threads: int, steps: int, pack: int, tiles: int) -> int:
    """Blocks that a multiprocessor must have room for: as many as leave no kernel of tools/nvrtc_matrix.py a spill."""
    size = choice.registers_per_element
    # A logarithm's results are widened ahead of time, and take what their elements save.
    pairs, logarithms = choice.held_size == 2 and pack > 1, choice.problem.op == "log_softmax"
    registers = steps * pack // 2 if pairs and not logarithms else steps * pack * size
    widened = pairs and logarithms and choice.device.major != 9  # where they leave more for what lies beside them
    later = logarithms and choice.device.major > 9
    most = MOST_WIDENED if widened else MOST_LOGARITHMS_BESIDE_ALL_BLOCKS if later else MOST_BESIDE_ALL_BLOCKS
    eighths = 6 if tiles > 1 or registers > most else 8
    if registers > MOST_BESIDE_ALL_BLOCKS and (pack > 2 or widened):
        eighths = 5
    return max(1, TILE_THREADS_PER_MULTIPROCESSOR // threads // size * eighths // 8)


def _tiles(choice: Choice, near: int, steps: int, pack: int) -> int:
    """Tiles of which a thread has rows at a time; `near`: packs that lie side by side, `steps` of each."""
    problem = choice.problem
    if problem.op not in (*REDUCTIONS, "softmax"):
        return 1
    if problem.op == "softmax" and (pack > 1 or steps > MOST_WRITTEN_TILES_STEPS or near < WARP_THREADS):
        return 1
    room = HELD_TILES_REGISTERS // (steps * pack * choice.registers_per_element)
    blocks = problem.rows // (pack * WARP_THREADS * choice.device.multiprocessors * HELD_TILES_BLOCKS)
    return min(MOST_HELD_TILES, floor_power(max(1, room)), floor_power(max(1, blocks)))


def _as_read(choice: Choice, kept: tuple[Axis, ...], widest: int) -> tuple[int, int, int] | None:
    """The same where pairs of 16 bits wait as they were read: of many columns, each shared by a few warps."""
    problem, tuning = choice.problem, choice.tuning
    if choice.held_size != 2 or widest < 2 or tuning.threads or tuning.across or tuning.pack:
        return None
    if problem.op in REDUCTIONS or problem.length < FEWEST_AS_READ_STEPS:
        return None
    along = max(4, ceil_power(ceil_div(problem.length, MOST_AS_READ_ALONE)))
    widths = [(32 if along <= 8 else 16, 2)]
    if problem.op == "log_softmax":
        widths.append((16, 1))
    for across, tiles in widths:  # so many tiles for each multiprocessor, at least
        near = neighbours(choice, kept, 2) >= across
        many = problem.rows >= 2 * across * tiles * choice.device.multiprocessors
        if near and many and across * along <= LOOP_THREADS:
            return 2, across, across * along
    return None


def _shared(choice: Choice, kept: tuple[Axis, ...], pack: int) -> tuple[int, int, int] | None:
    """The same where the threads of a block share the steps of their rows."""
    problem, tuning, size = choice.problem, choice.tuning, choice.kept_size
    columns = ceil_div(problem.rows, pack)
    near = neighbours(choice, kept, pack)
    limit, most = (FORCED_WARP_REGISTERS, LONE_THREADS) if tuning.threads else _most_held(choice, pack)
    # 32 bytes across, where 64 do not fit: 2000x2000 float32, dim 0, 17.6 us against 19.3 in shared memory, on an H200.
    # What is not written is walked along in tiles that wide, instead.
    for width in TILE_BYTES if size == 4 and choice.elementwise else TILE_BYTES[:-1]:
        widest = max(1, floor_power(width // (size * pack)))
        across = tuning.across or min(32, widest, ceil_power(near))
        if not tuning.across:
            while across > 2 and columns < across * choice.device.multiprocessors * HELD_TILES_PER_MULTIPROCESSOR:
                across //= 2
        along = tuning.threads // across if tuning.threads else _along(choice, pack, across)
        while near < widest and across > 2 and across * along > most and not (tuning.across or tuning.threads):
            across //= 2
            along = _along(choice, pack, across)
        if not (tuning.across or tuning.threads):  # short rows: a wider tile instead of fewer threads
            fewest = WARP_THREADS if pack == 1 or near * pack * size >= ACCESS_BYTES else WARP_THREADS // 2
            most_across = 1 if near == pack == 1 else min(32, widest, ceil_power(columns))  # 1: other rows lie far away
            while across * along < fewest and 2 * across <= most_across:
                across *= 2
                along = _along(choice, pack, across)
        fits = ceil_div(problem.length, along) * pack * choice.registers_per_element <= limit
        if fits and across * along <= most and (across == 32 or along & (along - 1) == 0):
            return pack, across, across * along
    return None


def _most_pack(choice: Choice) -> int:
    """Rows per access, of tiles that threads of a block share."""
    halves = choice.held_size == 2 and choice.problem.length >= FEWEST_AS_READ_STEPS
    if choice.problem.op == "log_softmax" and halves:
        return LOGARITHM_HALVES_PACK
    return max(1, HELD_PACK // choice.registers_per_element)


def _most_held(choice: Choice, pack: int) -> tuple[int, int]:
    """Registers that hold a thread's steps, and threads of a block."""
    if choice.elementwise or pack * choice.x_size < ACCESS_BYTES:
        return HELD_REGISTERS, LOOP_THREADS
    return HELD_UNWRITTEN_REGISTERS, WARP_THREADS


def _along(choice: Choice, pack: int, across: int) -> int:
    """Threads along a tile: enough to hold it, and more for few tiles."""
    problem = choice.problem
    along = ceil_div(problem.length, _most_held(choice, pack)[0] // choice.registers_per_element // pack)
    if across < 32:  # warps share columns as lanes do: powers of two of them
        along = max(32 // across, ceil_power(along))
    tiles = ceil_div(problem.rows, across * pack)
    room = TILE_THREADS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    # To fill a block, a thread of wide packs keeps twice as many steps.
    fewest = STEPS_PER_THREAD if pack == 1 else 2 * STEPS_PER_THREAD
    while across * along * 2 <= LOOP_THREADS and (
        (tiles * across * along * 2 <= room and problem.length >= along * 2 * STEPS_PER_THREAD)
        or (across * along < WARP_THREADS and problem.length >= along * 2 * fewest)
    ):
        along *= 2
    return along
