"""Plan: which CPU algorithm serves a problem, how it is cut up, and why. Pure Python: a Problem and a Machine in, a
frozen, comparable, printable value out. The kernels do what the plan says; within `registers`, `strided` and `packed`
they alone choose how tiny rows are held (transposed.h)."""

from __future__ import annotations

from ..machine import Machine
from ..problem import Problem
from .cpu_plan import CpuPlan, Reasons, busy_threads, refuse
from .plan_gathered import plan_gathered
from .plan_packed import can_pack, most_packed_inner
from .plan_rows import plan_rows
from .plan_tiles import inner_axis, plan_tiles
from .thresholds import MOST_TILE_VECTORS

ALGORITHMS = ("registers", "row", "online", "split", "strided", "packed")


def make_plan(problem: Problem, machine: Machine, threads: int, algorithm: str | None = None) -> CpuPlan:
    """The plan for a problem; `algorithm` forces one, or is refused with the reason it cannot serve."""
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"{problem.op}: unknown algorithm {algorithm!r}; choose from {', '.join(ALGORITHMS)}")
    why = Reasons()
    inner = inner_axis(problem)
    if algorithm in ("strided", "packed"):
        if inner is None:
            raise refuse(problem, algorithm, "no kept axis is faster in memory than the reduced one")
        if algorithm == "packed" and problem.length == 1:
            raise refuse(problem, algorithm, "rows have one element")
        if algorithm == "packed" and not can_pack(problem, machine, problem.outer[inner]):
            elements = f"2..{most_packed_inner(problem)} contiguous elements"
            vectors = f"whole steps of it fill at most {MOST_TILE_VECTORS} vectors"
            raise refuse(problem, algorithm, f"the inner axis must have {elements}, and {vectors}")
    tiles = inner is not None and algorithm in (None, "strided", "packed")
    gathered = plan_gathered(problem, machine, threads, inner, why) if algorithm is None else None
    if gathered is not None:
        return gathered
    threads = busy_threads(problem, machine, threads)
    if tiles:
        assert inner is not None
        return plan_tiles(problem, machine, threads, algorithm, inner, why)
    return plan_rows(problem, machine, threads, algorithm, why)
