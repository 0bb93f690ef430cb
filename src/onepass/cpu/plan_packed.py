"""Whether rows that lie interleaved, a few side by side, are taken as one stretch of memory (`packed`), or as a tile
that wide."""

from __future__ import annotations

import math

from ..machine import Machine
from ..problem import ELEMENTWISE, ITEMSIZE, REDUCTIONS, Axis, Problem
from .cpu_plan import reads_pairs
from .thresholds import (
    MOST_PACKED_INNER,
    MOST_PACKED_USE,
    MOST_TILE_VECTORS,
    NARROW_VECTOR_BYTES,
    PACKED_END_ROWS,
    PACKED_INNER,
    TRANSPOSED_ELEMENTS,
)


def can_pack(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """Whole steps of the reduced axis lie next to each other, in the result too, and few vectors hold some of them."""
    reduced = problem.reduce[0]
    if not (2 <= inner.size <= most_packed_inner(problem) and inner.x_stride == 1 and reduced.x_stride == inner.size):
        return False
    if problem.op in ELEMENTWISE and not (inner.y_stride == 1 and reduced.y_stride == inner.size):
        return False
    if reads_pairs(problem) and not (inner.z_stride == 1 and reduced.z_stride == inner.size):
        return False
    return inner.size <= PACKED_INNER or _packed_vectors(problem, machine, inner) <= MOST_TILE_VECTORS


def most_packed_inner(problem: Problem) -> int:
    """Plain reductions gain nothing by more."""
    return PACKED_INNER if problem.op in REDUCTIONS else MOST_PACKED_INNER


def packs(problem: Problem, machine: Machine, inner: Axis, *, waits: bool) -> bool:
    """They are better packed: always, where a tile would be a vector wide; else where it would be read twice, has
    emptier vectors than packing costs, or is so short that it is transposed. waits: a tile waits in the cache."""
    if not can_pack(problem, machine, inner):
        return False
    if inner.size <= PACKED_INNER:
        return True
    if machine.vector_bytes < NARROW_VECTOR_BYTES or problem.op == "logsumexp_backward":
        return False
    if not waits:
        return True
    if inner.size % _lanes(problem, machine) == 0 or reads_pairs(problem):
        return False
    return _are_transposed(problem, machine, inner) or _is_long(problem, machine, inner)


def _lanes(problem: Problem, machine: Machine) -> int:
    return machine.vector_bytes // ITEMSIZE[problem.compute_dtype]


def _packed_vectors(problem: Problem, machine: Machine, inner: Axis) -> int:
    """The fewest that hold whole steps."""
    return inner.size // math.gcd(inner.size, _lanes(problem, machine))


def _use_of_vectors(problem: Problem, machine: Machine, inner: Axis) -> float:
    """What of the vectors of a tile row is columns."""
    lanes = _lanes(problem, machine)
    return inner.size / (-(-inner.size // lanes) * lanes)


def _is_long(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """A packed tile has as many sums as vectors, which are folded at its end, so it wants to be long."""
    lanes = _lanes(problem, machine)
    steps = lanes // math.gcd(inner.size, lanes)  # of a row of the tile
    return _use_of_vectors(problem, machine, inner) * (1 + PACKED_END_ROWS * steps / problem.length) <= MOST_PACKED_USE


def _are_transposed(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """The kernels transpose them: so few elements, that follow each other without a gap (transposed.h)."""
    elements = problem.length * inner.size
    wide = problem.compute_dtype == "float64"
    if elements > TRANSPOSED_ELEMENTS.get((problem.op, machine.vector_bytes, wide), 0):
        return False
    # Where rows hardly leave a lane idle, 16 bits, which tiles convert on the way, gain nothing.
    if problem.op == "softmax" and ITEMSIZE[problem.dtype] == 2 and _use_of_vectors(problem, machine, inner) > 0.9:
        return False
    if problem.dtype != problem.result_dtype or len(problem.outer) > 2 or inner.y_stride != 1:
        return False
    of_result = elements if problem.op in ELEMENTWISE else inner.size
    return all(axis is inner or (axis.x_stride == elements and axis.y_stride == of_result) for axis in problem.outer)
