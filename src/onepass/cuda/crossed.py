"""Rows that lie one way in one array and another way in another: which do, and how tiles of them are cut."""

from __future__ import annotations

from ..problem import Axis
from .kernel_plan import Choice
from .rounding import floor_power
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
# No more neighbours than these in x, and others in the result: a tile as wide as it can be has some of both. bfloat16
# of strides 1, 256, 131072 and 8, 8x512x47x32, dim 1, 34.1 for 102.8; float32 64x256x8x8, 64, 4096, 1, 8, 10.5 for
# 17.2.
MOST_CROSSED_NEIGHBOURS = 16
# Gradients of rows that lie along memory in the result and in what was saved, and not in dy: columns of a tile, steps
# of a thread, at least, and threads of a block; and where dy lies as they do, with a step, one column. us: softmax's
# bfloat16 4096x4096 with a transposed dy 69.7 for 375, 412x229x210 162 for 414, float16 4096x1024 of every third
# element 21.0 for 57.2. With the forward ones above: 144 of 1800 random views have another plan, 0.58 of the time in
# the mean, 41 less behind torch.
GRADIENT_COLUMNS = 4
GRADIENT_STEPS = 8
GRADIENT_THREADS = 64, 512
FEWEST_GRADIENT_STEPS = 16


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
    """Whether neighbours in x are few, and beyond them come neighbours in the result."""
    inner = kept[-1]
    if not choice.elementwise or inner.size > MOST_CROSSED_NEIGHBOURS:
        return False
    farther = min(abs(axis.y_stride) for axis in (inner, *choice.problem.reduce))
    return any(0 < abs(axis.y_stride) < farther and axis.size >= CROSSED_COLUMNS for axis in kept[:-1])


def is_crossed(choice: Choice, kept: tuple[Axis, ...]) -> bool:
    """Whether rows lie along one of the arrays and across the other, and no tile has neighbours in both."""
    along = lies_along(choice, kept[-1])
    return any(along) and not all(along) and not has_both_neighbours(choice, kept)


def cut_gradient(choice: Choice, inner: Axis) -> Tuning:
    """The tile of a gradient whose rows lie along memory, but for dy; of others, any."""
    along = [steps_are_nearer(choice, inner, stride) for stride in ("x_stride", "y_stride", "z_stride")]
    if choice.problem.length < FEWEST_GRADIENT_STEPS or not (along[0] and along[1]):
        return Tuning()
    columns = 1 if along[2] else GRADIENT_COLUMNS
    least, most = GRADIENT_THREADS
    threads_along = floor_power(choice.problem.length // GRADIENT_STEPS)
    threads = min(most, max(least, threads_along * columns))
    return Tuning(across=min(32, max(columns, threads // threads_along)), threads=threads)
