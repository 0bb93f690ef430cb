"""The plans for gradients of rows whose elements lie anywhere: tiles of neighbouring rows of two arrays."""

from __future__ import annotations

import math

from ..problem import Axis
from .kernel_plan import Choice, CudaPlan, build
from .plan_strided import tile
from .thresholds import ACCESS_BYTES, STRIDED_SEGMENT_STEPS


def plan_gradient_strided(choice: Choice) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    kept = _inner_last(choice.kept_axes)
    reduced = problem.reduce or (Axis(problem.length, 1, 1, 1),)
    segmented = problem.op == "logsumexp_backward"
    pack, wide_dy, wide_saved = _access(choice, kept)
    across, threads, staged = tile(choice, pack, not segmented and tuning.staged is not False)
    threads = tuning.threads or threads
    tile_elements = problem.length * across * pack
    tile_bytes = -(-tile_elements * choice.z_size // ACCESS_BYTES) * ACCESS_BYTES + tile_elements * choice.x_size
    units, per_block = problem.rows, across * pack
    choice.why.append(f"{across} threads lie across rows that are {kept[-1].y_stride} apart in memory, {pack} each")
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
        {
            "kept_axes": len(kept),
            "reduced_axes": len(reduced),
            "threads": threads,
            "across": across,
            "pack": pack,
            "wide_dy": wide_dy,
            "wide_saved": wide_saved,
            "staged": staged,
        },
        threads=threads,
        shared_bytes=tile_bytes if staged else 0,
        units=units,
        units_per_block=per_block,
        axes=(*kept, *reduced),
        reads=1 if staged or segmented else 2,
    )


def _inner_last(kept: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axis along which neighbours are nearest in the result and in what was saved goes last."""
    inner = min(reversed(kept), key=lambda axis: abs(axis.y_stride) + abs(axis.x_stride))
    rest = list(kept)
    rest.remove(inner)
    return (*rest, inner)


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
        return choice.tuning.pack or 1, False, False
    numbers, sizes = [inner.size], []
    for is_wide, (_, past, size, strides) in zip(wide, arrays, strict=True):
        if is_wide and past is not None:
            numbers += [past // size, *strides]
            sizes.append(size)
    pack = choice.tuning.pack or math.gcd(ACCESS_BYTES // min(sizes), *numbers)
    return pack, wide[1], wide[2]
