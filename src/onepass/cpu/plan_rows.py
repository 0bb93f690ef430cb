"""Plans for rows that lie along memory: in registers, in the cache, in chunks, or in chunks for all threads."""

from __future__ import annotations

from ..machine import Machine
from ..problem import ELEMENTWISE, GRADIENTS, ITEMSIZE, REDUCTIONS, Axis, Problem
from .cpu_plan import CpuPlan, Reasons, direct, may_be_in_l3, nontemporal, one_pass, refuse, row_element_bytes
from .thresholds import (
    ACROSS_ROW_VECTORS,
    CHUNK,
    COMPUTED_ROW_SHARE_OF_L3,
    EXTREME_REGISTER_ROW,
    EXTREME_REGISTER_ROW_FROM_MEMORY,
    FETCHED_SUMS,
    GRADIENT_REGISTER_VECTORS,
    LEAST_BUSY,
    NARROW_VECTOR_BYTES,
    NONTEMPORAL_TIMES_OF_SOFTMAX_GRADIENT,
    REDUCE_CHUNK,
    REGISTER_VECTORS,
    ROW_SHARE_OF_L2,
    ROWS_PER_THREAD,
    SHORTEST_STREAMED,
    SOFTMAX_REGISTER_VECTORS,
    SUM_REGISTER_ROW,
)


def _register_row(problem: Problem, machine: Machine) -> int:
    """Elements of the longest rows that `registers` takes."""
    if problem.op in ("softmax", "log_softmax", "logsumexp") and problem.compute_dtype == "float32":
        vectors = SOFTMAX_REGISTER_VECTORS
    elif problem.op in ("softmax_backward", "log_softmax_backward") and problem.compute_dtype == "float32":
        vectors = GRADIENT_REGISTER_VECTORS
    else:
        vectors = REGISTER_VECTORS
    most = vectors * machine.vector_bytes // ITEMSIZE[problem.compute_dtype]
    if problem.op not in REDUCTIONS:
        return most
    if problem.op in ("sum", "mean"):
        rows = SUM_REGISTER_ROW
    elif 2 * problem.floor_bytes <= machine.l3_bytes:
        rows = EXTREME_REGISTER_ROW
    else:
        rows = EXTREME_REGISTER_ROW_FROM_MEMORY
    narrow = machine.vector_bytes <= NARROW_VECTOR_BYTES
    return min(most, rows[ITEMSIZE[problem.dtype]][narrow])


def _go_across(problem: Problem, machine: Machine) -> bool:
    """The kernels reduce many of them at once: so short, and following each other without a gap (rows_across.h)."""
    if machine.vector_bytes < NARROW_VECTOR_BYTES or problem.op not in REDUCTIONS or not direct(problem):
        return False
    short = 1 < problem.length <= ACROSS_ROW_VECTORS * machine.vector_bytes // ITEMSIZE[problem.dtype]
    follow = all(axis.x_stride == problem.length and axis.y_stride == 1 for axis in problem.outer)
    return short and follow and len(problem.outer) <= 1 and problem.compute_dtype == "float32"


def _waits_in_l3(problem: Problem, machine: Machine, threads: int, row_bytes: int) -> bool:
    """A row that is not computed twice is worth more than the bytes it is not read again."""
    rounds = -(-problem.rows // threads)
    busy = problem.rows >= LEAST_BUSY * threads * rounds
    fits = row_bytes <= machine.l3_bytes / machine.cores * COMPUTED_ROW_SHARE_OF_L3
    return problem.op == "softmax" and direct(problem) and busy and fits


def _is_cached(problem: Problem, machine: Machine, why: Reasons) -> bool:
    """Rows that go across, or that are added up, long or of a few vectors, of an input that L3 may have."""
    if problem.dtype != "float32" or not may_be_in_l3(problem, machine):
        return False
    if _go_across(problem, machine):
        return True
    if problem.op not in ("sum", "mean"):
        return False
    if problem.length >= SHORTEST_STREAMED:
        why("the input may be in L3: a row is read in the order of memory, not by four streams")
        return True
    fetched = machine.vector_bytes == NARROW_VECTOR_BYTES and problem.length in FETCHED_SUMS
    if fetched:
        why("the input may be in L3: the rows that follow are fetched")
    return fetched


def plan_rows(problem: Problem, machine: Machine, threads: int, algorithm: str | None, why: Reasons) -> CpuPlan:
    waits = not one_pass(problem)
    register_row = _register_row(problem, machine)
    row_bytes = 2 * problem.length * row_element_bytes(problem)
    beside = "what it is computed with" if problem.op in GRADIENTS else "their exponentials"
    fits = row_bytes <= machine.l2_bytes * ROW_SHARE_OF_L2
    chosen = algorithm
    if chosen is None:
        if _go_across(problem, machine):
            chosen = "registers"
            why(f"rows of {problem.length} follow each other: a vector of them is reduced at once")
        elif direct(problem) and 0 < problem.length <= register_row:
            chosen = "registers"
            why(f"a row of {problem.length} is short (up to {register_row} here)")
        elif fits if waits else problem.length <= REDUCE_CHUNK:
            chosen = "row"
            if waits:
                why(f"two rows of {problem.length} and {beside} are {row_bytes >> 10} KiB: they fit half of L2")
            else:
                why(f"a row of {problem.length} is read once, and nothing of it waits")
        elif _waits_in_l3(problem, machine, threads, row_bytes):
            chosen = "row"
            why(f"two rows and {beside}, {row_bytes >> 10} KiB, fit L3, which is faster than computing twice")
        elif threads > 1 and problem.rows < ROWS_PER_THREAD * threads:
            chosen = "split"
            why(f"{problem.rows} long rows are too few to share out among {threads} threads")
        else:
            chosen = "online"
            why(f"two rows and {beside}, {row_bytes >> 10} KiB, do not fit half of L2")
    elif chosen == "registers":
        if not direct(problem):
            raise refuse(problem, chosen, "rows must be contiguous, input and result of one dtype")
        if problem.length > register_row and not _go_across(problem, machine):
            raise refuse(problem, chosen, f"a row may have at most {register_row} elements here")
    if not direct(problem):
        why("rows are gathered, converted and scattered through the cache, in pieces")
    resident = chosen in ("registers", "row") or not waits
    softmax_gradient = problem.op == "softmax_backward" and chosen in ("registers", "row")
    times = NONTEMPORAL_TIMES_OF_SOFTMAX_GRADIENT if softmax_gradient else 1
    return CpuPlan(
        algorithm=chosen,
        threads=threads,
        outer=problem.outer,
        reduce=problem.reduce,
        inner=Axis(1, 1, 1),
        chunk=_row_chunk(problem, chosen),
        tile=1,
        resident=resident,
        split=chosen == "split",
        nontemporal=nontemporal(problem, why, times),
        cached=_is_cached(problem, machine, why),
        why=tuple(why.lines),
    )


def _row_chunk(problem: Problem, algorithm: str) -> int:
    if problem.op == "logsumexp_backward" and algorithm == "row" and direct(problem):
        return max(problem.length, 1)
    if problem.op in (*ELEMENTWISE, "logsumexp"):
        return CHUNK
    return REDUCE_CHUNK
