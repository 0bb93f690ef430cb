"""How tiles are cut whose blocks need nothing of each other: the gradient of logarithms of sums, down columns."""

from __future__ import annotations

from itertools import product

from .kernel_plan import Choice
from .rounding import ceil_div, ceil_power, doublings
from .thresholds import STRIDED_SEGMENT_STEPS, WARP_THREADS
from .tile_thresholds import ENOUGH_SEGMENT_THREADS, MOST_SEGMENT_THREADS, SEGMENT_RUN_BYTES


def cut_segments(choice: Choice, neighbours: int, widest: int) -> tuple[int, int, int]:
    """(pack, threads across, threads): of all cuts the one of least cost. `neighbours`: columns that lie side by side;
    `widest`: rows per access at most."""
    fewest = 64 if choice.device.major == 9 else WARP_THREADS  # by 64 a kernel of bfloat16 spills on sm_80
    most = MOST_SEGMENT_THREADS // choice.registers_per_element
    cuts = (
        (pack, across, threads)
        for pack, across, threads in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (64, 128, 256, 512))
        if pack <= widest and across <= ceil_power(ceil_div(neighbours, pack))
        if fewest <= threads <= most
    )
    return min(cuts, key=lambda cut: _cost(choice, neighbours, widest, *cut))


def _cost(choice: Choice, neighbours: int, widest: int, pack: int, across: int, threads: int) -> float:
    """How far a cut is from what was fast, in some 3% of its time."""
    problem, along, columns = choice.problem, threads // across, across * pack
    steps = min(STRIDED_SEGMENT_STEPS, ceil_div(problem.length, along))
    segments = ceil_div(problem.length, along * STRIDED_SEGMENT_STEPS)
    tiles = ceil_div(problem.rows, columns)
    covered = tiles * columns * segments * along * steps
    at_work = tiles * segments * threads
    # What a warp asks for lies together: along the columns, and, of a tile as wide as these, along the steps too.
    together = columns if columns < neighbours else 32 * pack if columns < 2 * neighbours else neighbours
    together = min(together, 32 * pack) * choice.x_size
    return (
        10 * doublings(problem.rows * problem.length, covered)
        + 7 * doublings(at_work, ENOUGH_SEGMENT_THREADS * choice.device.multiprocessors)
        + 4 * doublings(pack, widest)
        + 3 * doublings(together, SEGMENT_RUN_BYTES)
        + doublings(64, threads)
    )
