"""What explain returns: what onepass would do with a call, and why, without doing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _engine
from .call import problem_of
from .machine import Machine, this_machine
from .plan import CpuPlan, make_plan
from .problem import Problem


def _amount(n: int) -> str:
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class Report:
    """A problem, its plan and the bytes both imply. Prints as a few lines; equal for equal problems and machines."""

    problem: Problem
    plan: CpuPlan
    machine: Machine

    @property
    def floor_bytes(self) -> int:
        """Bytes that any algorithm must move: each element in once, each result out once."""
        return self.problem.floor_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes this plan moves through main memory."""
        return self.problem.input_bytes * self.plan.reads + self.problem.result_bytes

    def __str__(self) -> str:
        p, plan = self.problem, self.plan
        dims = p.dims[0] if len(p.dims) == 1 else p.dims
        layout = f"{p.rows} rows of {p.length}"
        fraction = self.floor_bytes / self.moved_bytes if self.moved_bytes else 1.0
        lines = [
            f"{p.op} of shape {p.shape}, {p.dtype} -> {p.result_dtype}, dim {dims}: {layout}",
            f"  machine    {self.machine.processor}, {self.machine.isa}, "
            f"L2 {_amount(self.machine.l2_bytes)}, L3 {_amount(self.machine.l3_bytes)}",
            f"  plan       {plan}",
            *(f"  why        {line}" for line in plan.why),
            f"  floor      {_amount(self.floor_bytes)}: each element in once, each result out once",
            f"  moved      {_amount(self.moved_bytes)}: {plan.reads} read{'s' * (plan.reads > 1)} "
            f"and one write, {fraction:.0%} of the floor's speed at best",
        ]
        return "\n".join(lines)


def explain(op: str, x_or_shape: Any, dtype: Any = None, dim: Any = -1, device: Any = None) -> Report:
    """Explain what a call would do: the problem, the plan, why, and the bytes it moves. Nothing is computed.

    >>> import onepass
    >>> report = onepass.explain("softmax", (128, 262144))
    >>> report.problem.rows, report.problem.length
    (128, 262144)
    >>> report.floor_bytes == 2 * 128 * 262144 * 4
    True

    Parameters
    ----------
    op : "softmax", "log_softmax", "logsumexp", "sum", "mean", "amax" or "amin"
    x_or_shape : an array, or the shape of a contiguous one
    dtype : dtype of the result; with a shape also that of the input, float32 by default
    dim : as in the operation
    device : None or "cpu"

    Returns a Report: printable, comparable, with .problem, .plan, .floor_bytes and .moved_bytes.

    Raises ValueError or TypeError for arguments that the operation would refuse.
    """
    if device not in (None, "cpu"):
        raise ValueError(f"explain: device {device!r} is not known; this version plans for 'cpu'")
    problem = problem_of(op, x_or_shape, dtype, dim)
    machine = this_machine()
    return Report(problem, make_plan(problem, machine, _engine.get_num_threads()), machine)
