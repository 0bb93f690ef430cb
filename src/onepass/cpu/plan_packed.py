"""Whether rows that lie interleaved, a few side by side, are taken as one stretch of memory (`packed`), or as a tile
that wide."""

from __future__ import annotations

import math

from ..machine import Machine
from ..problem import ELEMENTWISE, ITEMSIZE, REDUCTIONS, Axis, Problem
from .cpu_plan import is_small, reads_pairs
from .thresholds import (
    MOST_PACKED_INNER,
    MOST_PACKED_USE,
    MOST_TILE_VECTORS,
    NARROW_BYTES,
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
    return _packed_vectors(problem, machine, inner) <= MOST_TILE_VECTORS


def most_packed_inner(problem: Problem) -> int:
    """Of plain reductions, which have other ways to read along memory (tiles.h), more were not measured."""
    return PACKED_INNER if problem.op in REDUCTIONS else MOST_PACKED_INNER


def packs(problem: Problem, machine: Machine, inner: Axis, *, kept: bool, narrower_kept: bool) -> bool:
    """They are better packed: always, if they are few; else where tiles are read twice, or have emptier vectors than
    packing costs, or rows are so short that they are transposed. kept: a tile as wide as that is read once;
    narrower_kept: or one of those that `strided` would cut it into."""
    if not can_pack(problem, machine, inner):
        return False
    if inner.size <= PACKED_INNER:
        return True
    if machine.vector_bytes < NARROW_VECTOR_BYTES or problem.op == "logsumexp_backward":
        return False
    if not kept:
        return not narrower_kept
    if inner.size % _lanes(problem, machine) == 0 or reads_pairs(problem):
        return False
    if _shares_out_columns(problem, machine, inner):
        return False
    return _are_transposed(problem, machine, inner) or _is_long(problem, machine, inner)


def _shares_out_columns(problem: Problem, machine: Machine, inner: Axis) -> bool:
    """`strided` has narrower tiles for several threads, where rows are few; a packed one that is kept is for one."""
    narrow = NARROW_BYTES // ITEMSIZE[problem.compute_dtype]
    return inner.size > narrow and problem.rows // inner.size < machine.cores and not is_small(problem, machine)


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
