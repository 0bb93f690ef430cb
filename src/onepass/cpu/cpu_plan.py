"""What a plan for a CPU says, and what the planner asks of a problem whichever way it is cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..machine import Machine
from ..problem import ELEMENTWISE, GRADIENTS, ITEMSIZE, REDUCTIONS, Axis, Problem
from .thresholds import (
    CACHED_SHARE_OF_L3,
    NARROW_VECTOR_BYTES,
    NONTEMPORAL_BYTES,
    PARALLEL_ELEMENTS,
    PARALLEL_PARTS,
    PARALLEL_SHARE_OF_SLOW,
    PARALLEL_TIMES_OF_PLAIN,
    SHORT_PLAIN_ROW,
)


@dataclass(frozen=True)
class CpuPlan:
    """How one problem is run on a CPU. Equal problems on equal machines have equal plans."""

    algorithm: str
    threads: int
    outer: tuple[Axis, ...]  # kept axes, less `inner`
    reduce: tuple[Axis, ...]
    inner: Axis  # the axis that tiles run along; size 1 for rows
    chunk: int  # elements (rows) or steps of the reduced axis (tiles) handled at once
    tile: int  # inner elements per tile
    resident: bool  # a row or tile waits in cache: one read of main memory
    split: bool  # the chunks of one row or tile go to several threads
    nontemporal: bool  # results bypass the cache
    cached: bool  # columns, or rows that are short or added up, may all be in L3
    # Rows, along each axis of `outer`, of blocks that are gathered; none: rows are read where they lie, or one by one.
    blocks: tuple[int, ...] = ()
    why: tuple[str, ...] = field(default=(), compare=False)

    @property
    def reads(self) -> int:
        """How often an element of the input crosses main memory."""
        return 1 if self.resident else 2

    def __str__(self) -> str:
        cut = {
            "registers": "short rows, in registers",
            "row": "a row at a time, waiting in cache",
            "online": f"a row at a time in chunks of {self.chunk}",
            "split": f"chunks of {self.chunk} elements over all threads",
            "strided": f"tiles of {self.tile} columns x {self.chunk} steps",
            "packed": f"{self.inner.size} interleaved rows per tile, {self.chunk} steps at a time",
        }[self.algorithm]
        if self.blocks:
            cut += f", blocks of {' x '.join(map(str, self.blocks))} of them gathered"
        stores = ", stores past the cache" if self.nontemporal else ""
        return f"{self.algorithm}: {cut}; {self.threads} thread{'s' * (self.threads > 1)}{stores}"


class Reasons:
    """Collects the sentences of `why`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)


def _parallel_elements(problem: Problem, machine: Machine, *, gathered: bool) -> int:
    """Elements from which on there is work for several threads."""
    if not gathered and (problem.op in REDUCTIONS or problem.length == 1):
        short = contiguous_reduce(problem) and 1 < problem.length <= SHORT_PLAIN_ROW
        return PARALLEL_ELEMENTS * (1 if short else PARALLEL_TIMES_OF_PLAIN)
    slow = problem.op != "softmax_backward" and machine.vector_bytes <= NARROW_VECTOR_BYTES
    return PARALLEL_ELEMENTS // (PARALLEL_SHARE_OF_SLOW if slow else 1)


def is_small(problem: Problem, machine: Machine, *, gathered: bool = False) -> bool:
    """Too little work for a second thread."""
    return problem.rows * problem.length < _parallel_elements(problem, machine, gathered=gathered)


def busy_threads(problem: Problem, machine: Machine, threads: int, *, gathered: bool = False) -> int:
    """As many of the threads as have something to do for longer than it takes to have them do it."""
    elements, least = problem.rows * problem.length, max(_parallel_elements(problem, machine, gathered=gathered), 1)
    return min(threads, PARALLEL_PARTS * elements // least) if elements >= least else 1


def contiguous_reduce(problem: Problem) -> bool:
    return problem.length == 1 or (len(problem.reduce) == 1 and problem.reduce[0].x_stride == 1)


def direct(problem: Problem) -> bool:
    """Kernels can read and write the rows where they lie."""
    if not contiguous_reduce(problem) or not is_one_type(problem):
        return False
    if problem.op not in ELEMENTWISE or problem.length == 1:
        return True
    return problem.reduce[0].y_stride == 1 and (not reads_pairs(problem) or problem.reduce[0].z_stride == 1)


def is_one_type(problem: Problem) -> bool:
    """Nothing has to be converted on the way."""
    return problem.dtype == problem.result_dtype and (not reads_pairs(problem) or problem.second_dtype == problem.dtype)


def reads_pairs(problem: Problem) -> bool:
    """Two inputs of the full shape."""
    return problem.op in ("softmax_backward", "log_softmax_backward")


def one_pass(problem: Problem) -> bool:
    """Nothing has to be known of a row before its first result."""
    return problem.op not in ELEMENTWISE or problem.op == "logsumexp_backward"


def row_element_bytes(problem: Problem) -> int:
    """What an element of a row takes in cache until its result is written."""
    compute = ITEMSIZE[problem.compute_dtype]
    if problem.op not in GRADIENTS:
        return ITEMSIZE[problem.dtype] + compute
    staged = 0 if direct(problem) else 3 * compute  # both inputs converted, and the result
    return ITEMSIZE[problem.dtype] + ITEMSIZE[problem.second_dtype or problem.dtype] + staged


def refuse(problem: Problem, algorithm: str, reason: str) -> ValueError:
    return ValueError(
        f"{problem.op}: algorithm {algorithm!r} cannot serve an input of shape {problem.shape}, dtype {problem.dtype}, "
        f"dim {problem.dims}: {reason}; leave algorithm=None to have one chosen"
    )


def may_be_in_l3(problem: Problem, machine: Machine) -> bool:
    """All of the input, for what is read in another order if it is not."""
    return problem.input_bytes <= CACHED_SHARE_OF_L3 * machine.l3_bytes


def nontemporal(problem: Problem, why: Reasons, times: float = 1) -> bool:
    if problem.op not in ELEMENTWISE or problem.floor_bytes < times * NONTEMPORAL_BYTES:
        return False
    why(f"input and result are {problem.floor_bytes >> 20} MiB: stores bypass the cache")
    return True
