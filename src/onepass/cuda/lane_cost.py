"""How long it takes lanes of a warp to share rows, one way or another: the planner takes the way that takes least.

A kernel of lanes is as slow as the slowest of three things that go on beside each other: bytes of memory, instructions
of warps, and warps that start. Beside them go only what the last warp does, and the waits for shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ..problem import ELEMENTWISE
from .kernel_plan import LINE_BYTES, Choice
from .rounding import ceil_div

CYCLES_PER_MICROSECOND = 1700  # of a multiprocessor of an H200 that is busy
SCHEDULERS = 4  # of a multiprocessor, each of which issues an instruction of a warp in a cycle


class Way(NamedTuple):
    """How lanes of a warp share rows."""

    lanes: int  # of a row
    packs: int  # of a lane
    pack: int  # elements of one
    alignment: str = "whole"  # pack.h's
    rows: int = 1  # of a lane at a time
    by_slab: bool = False  # by way of shared memory; else rows come to registers as they lie


class Costs(NamedTuple):
    """Cycles of a scheduler, but for what is in microseconds."""

    element: float
    row: float  # of a lane
    edge: float = 48.0  # an element of a head or tail, of a lane
    access: float = 14.0
    line: float = 2.6  # of memory that an access of a warp touches
    slab: float = 205.0  # that comes and goes
    wavefront: float = 2.7  # of an access of a warp to shared memory
    start: float = 0.028  # us, of a warp on one multiprocessor
    slab_wait: float = 0.011  # us, of a warp on one multiprocessor
    last: float = 0.002  # us, for each cycle of the last warp


# What an element costs, by operation and bytes of one, a row of a lane, and the rest, above: fitted by
# tools/lane_times.py to 16000 ways to share rows of 3340 random problems, of 2000 rows to 256 MiB; H200, November 2026.
# By these costs they take 1.02 times as long as by the fastest way, in geometric mean, 4% of them more than 1.1 times;
# of other problems, benchmarks/results/h200/lane_times.csv, the same. Where a row costs nothing, nothing is left of it
# beside its elements.
ELEMENT = {
    "softmax": {2: 11.9, 4: 24.7, 8: 54.0},
    "log_softmax": {2: 9.1, 4: 21.5, 8: 45.0},
    "logsumexp": {2: 7.9, 4: 15.4, 8: 50.0},
    "plain": {2: 5.6, 4: 13.7, 8: 32.0},
    "softmax_backward": {2: 15.7, 4: 30.0, 8: 35.0},
    "log_softmax_backward": {2: 16.6, 4: 25.0, 8: 88.0},
    "logsumexp_backward": {2: 11.4, 4: 21.0, 8: 64.0},
}
ROW = {
    "softmax": 48.0,
    "log_softmax": 138.0,
    "logsumexp": 91.0,
    "plain": 32.0,
    "softmax_backward": 0.0,
    "log_softmax_backward": 0.0,
    "logsumexp_backward": 0.0,
}


class Work(NamedTuple):
    """What a GPU does, one way; numbers, or arrays of them for costs to be fitted to."""

    memory: Any  # us, of bytes that come and go
    warps: Any  # of a multiprocessor, in all
    # Of a warp:
    elements: Any  # with those that lanes have room for and rows do not have
    rows: Any
    edges: Any
    accesses: Any  # to memory
    lines: Any
    slabs: Any
    wavefronts: Any


def microseconds(work: Work, costs: Costs) -> Any:
    """But for what is the same for every way."""
    cycles = (
        work.elements * costs.element
        + work.rows * costs.row
        + work.edges * costs.edge
        + work.accesses * costs.access
        + work.lines * costs.line
        + work.slabs * costs.slab
        + work.wavefronts * costs.wavefront
    )
    issued = work.warps * cycles / (SCHEDULERS * CYCLES_PER_MICROSECOND)
    started = work.warps * costs.start
    # The slowest of three, and a little more where another is as slow: by a sharp maximum ways cost the same too often.
    together = (work.memory**8 + issued**8 + started**8) ** 0.125
    return together + work.warps * work.slabs * costs.slab_wait + cycles * costs.last


@dataclass(frozen=True)
class LaneCosts:
    """What ways to share the rows of a problem cost."""

    costs: Costs
    memory: float  # us
    rows: float  # of a multiprocessor
    length: int
    size: int  # bytes of an element
    read: int  # arrays of rows that are read by packs, if they lie alike
    written: bool

    @staticmethod
    def of(choice: Choice) -> LaneCosts:
        problem, kind = choice.problem, choice.kind
        costed = 8 if choice.registers_per_element > 1 else choice.x_size
        return LaneCosts(
            costs=Costs(ELEMENT[kind][costed], ROW[kind]),
            memory=(problem.input_bytes + problem.result_bytes) / (choice.device.bandwidth * 1e3),
            rows=problem.rows / choice.device.multiprocessors,
            length=problem.length,
            size=choice.x_size,
            read=1 if problem.op == "logsumexp_backward" else choice.kept_arrays,
            written=problem.op in ELEMENTWISE,
        )

    def microseconds(self, way: Way) -> float:
        return float(microseconds(self.work(way), self.costs))

    def work(self, way: Way) -> Work:
        lanes, packs, pack, alignment, rows, by_slab = way
        # Lanes have all packs of a row, but where they need nothing of each other.
        segments = ceil_div(max(1, self.length // pack), lanes * packs)
        accesses = rows * packs * (self.read * (pack if alignment == "apart" else 1) + self.written)
        row_bytes, access_bytes = self.length * self.size, pack * self.size
        return Work(
            memory=self.memory,
            warps=self.rows / rows * segments * lanes / 32,
            elements=rows * packs * pack,
            rows=rows,
            edges=0 if alignment == "whole" else rows * ceil_div(2 * (pack - 1), lanes),
            accesses=0 if by_slab else accesses,
            lines=0 if by_slab else accesses * lines_of(lanes, row_bytes, access_bytes),
            slabs=by_slab,
            wavefronts=accesses * wavefronts_of(lanes, row_bytes, access_bytes) if by_slab else 0,
        )


def lines_of(lanes: int, row_bytes: int, access_bytes: int) -> int:
    """Cache lines that an access of a warp to memory touches, at best."""
    rows, side_by_side = 32 // lanes, lanes * access_bytes
    if row_bytes >= LINE_BYTES:
        return rows * ceil_div(side_by_side, LINE_BYTES)
    return ceil_div((rows - 1) * row_bytes + side_by_side, LINE_BYTES)


@lru_cache(1024)
def wavefronts_of(lanes: int, row_bytes: int, access_bytes: int) -> int:
    """How often an access of a warp to shared memory asks one of the 32 banks for another word."""
    words: set[int] = set()
    for start in range(0, 32 // lanes * row_bytes, row_bytes):
        words.update(range(start // 4, (start + lanes * access_bytes + 3) // 4))
    asked = [0] * 32
    for word in words:
        asked[word % 32] += 1
    return max(asked)
