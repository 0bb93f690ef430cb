"""Rows that lie along memory with gaps, or one way in one array and another way in another: which do, and how tiles of
them are cut."""

from __future__ import annotations

from ..problem import Axis
from .kernel_plan import Choice
from .rounding import floor_power
from .thresholds import WARP_LANES
from .tuning import Tuning

# Threads across a tile of rows whose steps are neighbours in x and columns in the result, or the other way: each reads
# and writes a part of a sector. Where both lie along the rows, one. H200, November 2026, us: softmax of x.t(),
# 4096x4096 float32, 59.8 for 301 by 32 across, 32x512x768 with the last two dims swapped 45.0 for 201; of x[:, ::2],
# 8192x4096, 98.9 for 665, bfloat16 53.4 for 375; 64x256x56x56 channels last, dim 1, 120 for 227.
CROSSED_COLUMNS = 8
# From so many steps on also where a thread could hold the whole of a row: softmax of float32 4x512x64x32 with its last
# three dims turned round, dim 1, 15.6 for 23.6; but 512x32x64x16 bfloat16 with its last dim first, dim 0, of 16 steps,
# 31.6 for 25.2.
FEWEST_CROSSED_STEPS = 24
# Where x has its neighbours along one kept axis and the result along another, and neither along the steps, a tile has
# some of both: few along the result's axis, all of them or a divisor, this one best, and beyond these others along x's;
# the other way round where the result's axis has no such divisor. H200, November 2026, of 100 random views of forward
# operations 0.48 of the time in the mean, one 1.05, and 2 for 24 behind torch; with divisors near 4 and 16 0.55 and
# 0.50, with x's axis taken apart 0.54 to 0.68.
FEW_NEIGHBOURS = 8
MOST_FEW_NEIGHBOURS = 16
FEWEST_FEW_NEIGHBOURS = 4, 2  # the second where there is no divisor for the first
FEWEST_OTHER_NEIGHBOURS = 4
# The same of gradients whose dy lies one way, and the rest the other, from so many neighbours and rows on.
FEWEST_GRADIENT_NEIGHBOURS = 6
FEWEST_GRADIENT_ROWS = 8192
# Gradients of rows that lie along memory in the result and in what was saved, and not in dy: columns of a tile, steps
# of a thread, at least, and threads of a block, at least and at most. us: softmax's bfloat16 4096x4096 with a
# transposed dy 69.7 for 375, 412x229x210 162 for 414, float16 4096x1024 of every third element 21.0 for 57.2. With the
# forward ones above: 144 of 1800 random views have another plan, 0.58 of the time in the mean, 41 less behind torch.
# Where dy lies as they do, with a step, one column, and blocks of a warp: float16 524288x32 55 for 84 by blocks of 64,
# float32 74 for 118, of 36 at random 0.76 to 0.93 of the time.
GRADIENT_COLUMNS = 4
GRADIENT_STEPS = 8
FEWEST_GRADIENT_THREADS = 64
MOST_GRADIENT_THREADS = 512
FEWEST_GRADIENT_STEPS = 16
# Rows of so many steps and more that lie along memory everywhere, but with gaps, are for warps that have several: so
# many elements, from FEWEST_STEPS_OF_MORE on twice as many, where there are so many warps for each multiprocessor. A
# warp of one row did next to nothing. H200, December 2026, us, before, so, and torch's: softmax of every second
# element, float32 524288x32 282, 54, 114, float16 262144x64 162, 44, 82, log_softmax of it 161, 44, 81, logsumexp 162,
# 29, 216; of 102 problems drawn at random, by operation and length, 0.33 to 0.86 of the time, and none behind torch for
# 47. Fewer steps are for one thread: logsumexp of 1000039x33 155 for 89; few rows lose by it: softmax of 2032x128 9 for
# 6.
FEWEST_STEPS_OF_WARPS = {"softmax": 9, "log_softmax": 9, "logsumexp": 49}
WARP_ELEMENTS = 256
FEWEST_STEPS_OF_MORE = 65
WARPS_PER_MULTIPROCESSOR = 8


def rows_of_a_warp(choice: Choice, inner: Axis) -> int:
    """How many rows are for one warp; 1 where they are not for warps."""
    problem = choice.problem
    fewest = FEWEST_STEPS_OF_WARPS.get(problem.op)
    if fewest is None or problem.length < fewest or not all(lies_along(choice, inner)):
        return 1
    elements = WARP_ELEMENTS * (2 if problem.length >= FEWEST_STEPS_OF_MORE else 1)
    rows = floor_power(max(1, elements // problem.length))
    return rows if problem.rows >= rows * WARPS_PER_MULTIPROCESSOR * choice.device.multiprocessors else 1


def tiled_axes(choice: Choice) -> tuple[Axis, ...]:
    """The kept axes, the one last that threads lie side by side along: the fastest in the input. Where the input has
    one element for all along the one that is fastest in the result, or steps of a row are faster than both, that one;
    where both are faster than steps, some of both. As they are where rows are numbered."""
    kept = choice.kept_axes
    of_input = _fastest(kept, "x_stride")
    if of_input is None or choice.numbered:
        return kept
    of_result = min(kept, key=lambda axis: abs(axis.y_stride))
    if of_result.x_stride == 0:
        return _last(kept, of_result)
    if not choice.elementwise:
        return _last(kept, of_input)
    if _differ(choice, of_input, of_result, "x_stride"):
        for fewest in FEWEST_FEW_NEIGHBOURS:
            for few, many in ((of_result, of_input), (of_input, of_result)):
                if apart := _taken_apart(kept, few, many, fewest):
                    return apart
    along = any(0 < abs(step.x_stride) < abs(of_input.x_stride) for step in choice.problem.reduce)
    return _last(kept, of_result if along else of_input)


def tiled_gradient_axes(choice: Choice) -> tuple[Axis, ...]:
    """The same of a gradient: the axis along which neighbours are nearest in the result and in what was saved goes
    last, or a part of it, beyond which lie neighbours in dy."""
    kept = choice.kept_axes
    inner = min(reversed(kept), key=lambda axis: abs(axis.y_stride) + abs(axis.x_stride))
    of_dy = _fastest(kept, "z_stride")
    apart = None
    if of_dy is not None and choice.problem.rows >= FEWEST_GRADIENT_ROWS and _differ(choice, of_dy, inner, "z_stride"):
        apart = _taken_apart(kept, inner, of_dy, FEWEST_GRADIENT_NEIGHBOURS)
    return apart or _last(kept, inner)


def nearest_last(kept: tuple[Axis, ...], stride: str) -> tuple[Axis, ...]:
    """The kept axes, the one last along which neighbours are nearest in the array with this stride."""
    nearest = _fastest(kept, stride)
    return kept if nearest is None else _last(kept, nearest)


def _fastest(kept: tuple[Axis, ...], stride: str) -> Axis | None:
    """The axis along which neighbours are nearest in the array with this stride."""
    moving = [axis for axis in kept if getattr(axis, stride)]
    return min(moving, key=lambda axis: abs(getattr(axis, stride)), default=None)


def _last(kept: tuple[Axis, ...], inner: Axis) -> tuple[Axis, ...]:
    return (*(axis for axis in kept if axis is not inner), inner)


def _differ(choice: Choice, of_input: Axis, of_result: Axis, stride: str) -> bool:
    """Whether neighbours along one axis in the input with this stride, and along another in the result, are nearer
    there than the steps of a row."""
    if of_input is of_result or getattr(of_result, stride) == 0:
        return False
    pairs = [(stride, of_input), ("y_stride", of_result)]
    steps = choice.problem.reduce
    return not any(0 < abs(getattr(step, name)) < abs(getattr(axis, name)) for name, axis in pairs for step in steps)


def _taken_apart(kept: tuple[Axis, ...], few: Axis, many: Axis, fewest: int) -> tuple[Axis, ...] | None:
    """The kept axes with a few neighbours along one last, neighbours along the other before them, and what is left of
    the first before these; None where no divisor of the first is right."""
    counts = [n for n in range(fewest, MOST_FEW_NEIGHBOURS + 1) if few.size % n == 0]
    if not counts:
        return None
    count = few.size if few.size in counts else min(counts, key=lambda n: (abs(n - FEW_NEIGHBOURS), -n))
    left = [_part(few, few.size // count, count)] if count < few.size else []
    return (*(axis for axis in kept if axis is not few and axis is not many), *left, many, _part(few, count, 1))


def _part(axis: Axis, size: int, apart: int) -> Axis:
    """So many steps along it, so many of its own from each other."""
    strides = (axis.x_stride, axis.y_stride, axis.z_stride, axis.w_stride)
    return Axis(size, *(apart * stride for stride in strides))


def steps_are_nearer(choice: Choice, inner: Axis, stride: str) -> bool:
    """Whether the steps of a row are nearer to each other than rows along this axis are, in the array with this
    stride."""
    steps = choice.problem.reduce[-1] if choice.problem.reduce else Axis(1, 1, 1)
    of_steps, of_rows = int(getattr(steps, stride)), int(getattr(inner, stride))
    return 0 < abs(of_steps) < abs(of_rows)


def lies_along(choice: Choice, inner: Axis) -> list[bool]:
    """Whether steps are nearer than rows along this axis, in the input and in what is written."""
    strides = ("x_stride", "y_stride") if choice.elementwise else ("x_stride",)
    return [steps_are_nearer(choice, inner, stride) for stride in strides]


def has_both_neighbours(choice: Choice, kept: tuple[Axis, ...]) -> bool:
    """Whether neighbours along the last axis are few, and beyond them come others that are nearer in one of the
    arrays."""
    if not choice.elementwise or kept[-1].size > MOST_FEW_NEIGHBOURS:
        return False
    for stride in ("x_stride", "y_stride"):
        farther = min(abs(getattr(axis, stride)) for axis in (kept[-1], *choice.problem.reduce))
        if any(0 < abs(getattr(a, stride)) < farther and a.size >= FEWEST_OTHER_NEIGHBOURS for a in kept[:-1]):
            return True
    return False


def is_crossed(choice: Choice, kept: tuple[Axis, ...]) -> bool:
    """Whether rows lie along one of the arrays and across the other, and no tile has neighbours in both."""
    along = lies_along(choice, kept[-1])
    return any(along) and not all(along) and not has_both_neighbours(choice, kept)


def cut_gradient(choice: Choice, inner: Axis) -> Tuning:
    """The tile of a gradient whose rows lie along memory, but for dy; of others, any."""
    along = [steps_are_nearer(choice, inner, stride) for stride in ("x_stride", "y_stride", "z_stride")]
    if choice.problem.length < FEWEST_GRADIENT_STEPS or not (along[0] and along[1]):
        return Tuning()
    columns, least = (1, WARP_LANES) if along[2] else (GRADIENT_COLUMNS, FEWEST_GRADIENT_THREADS)
    threads_along = floor_power(choice.problem.length // GRADIENT_STEPS)
    threads = min(MOST_GRADIENT_THREADS, max(least, threads_along * columns))
    return Tuning(across=min(WARP_LANES, max(columns, threads // threads_along)), threads=threads)
