"""What explain returns: what onepass would do with a call, and why, without doing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _engine
from .arrays import as_input, is_tensor
from .call import problem_of
from .cpu.cpu_plan import CpuPlan
from .cpu.plan import make_plan
from .machine import Machine, is_number, this_machine
from .problem import Problem

if TYPE_CHECKING:
    from .cuda.device import Device
    from .cuda.kernel_plan import CudaPlan


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
    plan: CpuPlan | CudaPlan
    machine: Machine | Device

    @property
    def floor_bytes(self) -> int:
        """Bytes that any algorithm must move: each element in once, each result out once."""
        return self.problem.floor_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes this plan moves through main memory."""
        again = self.problem.reread_bytes * (self.plan.reads - 1)
        return self.problem.input_bytes + again + self.problem.result_bytes

    def __str__(self) -> str:
        p, plan = self.problem, self.plan
        dims = p.dims[0] if len(p.dims) == 1 else p.dims
        layout = f"{p.rows} rows of {p.length}"
        fraction = self.floor_bytes / self.moved_bytes if self.moved_bytes else 1.0
        lines = [
            f"{p.op} of shape {p.shape}, {p.dtype} -> {p.result_dtype}, dim {dims}: {layout}",
            f"  machine    {_machine(self.machine)}",
            f"  plan       {plan}",
            *(f"  why        {line}" for line in plan.why),
            *(f"  launch     {line}" for line in _launch(self.plan, self.machine)),
            f"  floor      {_amount(self.floor_bytes)}: each element in once, each result out once"
            f"{_time(self.floor_bytes, self.machine)}",
            f"  moved      {_amount(self.moved_bytes)}: {plan.reads} read{'s' * (plan.reads > 1)} "
            f"and one write, {fraction:.0%} of the floor's speed at best",
        ]
        return "\n".join(lines)


def _machine(machine: Machine | Device) -> str:
    if isinstance(machine, Machine):
        caches = f"L2 {_amount(machine.l2_bytes)}, L3 {_amount(machine.l3_bytes)}"
        return f"{machine.processor}, {machine.isa}, {caches}"
    return (
        f"{machine.name}, sm_{machine.architecture}, {machine.multiprocessors} multiprocessors, "
        f"L2 {_amount(machine.l2_bytes)}, a copy at {machine.bandwidth:.0f} GB/s ({machine.bandwidth_is})"
    )


def _launch(plan: CpuPlan | CudaPlan, machine: Machine | Device) -> list[str]:
    """How a plan fills a GPU. Registers are known once the kernel is compiled, and may leave room for fewer."""
    if isinstance(plan, CpuPlan) or isinstance(machine, Machine):
        return []
    resident = plan.resident(machine)
    blocks = plan.blocks(resident, machine.multiprocessors)
    at_once = resident * machine.multiprocessors
    share = f"{resident * plan.threads / machine.max_threads:.0%} of the threads a multiprocessor has"
    filled = f"{blocks / at_once:.3g} waves of {at_once}"
    count = f"{blocks} block{'s' * (blocks != 1)} of {plan.threads} threads"
    return [f"{count}, {filled}: {resident} on a multiprocessor at most, {share}"]


def _time(floor_bytes: int, machine: Machine | Device) -> str:
    if isinstance(machine, Machine):
        return ""
    microseconds = floor_bytes / machine.bandwidth / 1e3
    return f", {microseconds:.{0 if microseconds >= 100 else 1}f} us at the speed of a copy"


def explain(op: str, x_or_shape: Any, dtype: Any = None, dim: Any = -1, device: Any = None) -> Report:
    """Explain what a call would do: the problem, the plan, why, and the bytes it moves. Nothing is computed.

    >>> import onepass
    >>> report = onepass.explain("softmax", (128, 262144))
    >>> report.problem.rows, report.problem.length
    (128, 262144)
    >>> report.floor_bytes == 2 * 128 * 262144 * 4
    True
    >>> onepass.explain("softmax", (49152, 1024), device="h200").plan.algorithm
    'warp'

    Parameters
    ----------
    op : "softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin", "softmax_backward",
        "log_softmax_backward" or "logsumexp_backward"
    x_or_shape : an array, or the shape of a contiguous one; for a gradient that of y (of logsumexp_backward x), and
        dy is taken to lie in memory as y does
    dtype : dtype of the result; with a shape also that of the input, float32 by default
    dim : as in the operation
    device : "cpu", "cuda" or "cuda:1" for a GPU of this machine, or a GPU by its name, which need not be here: "a100",
        "l4", "rtx4090", "h100", "h200", "b200", "rtx5090". By default where the array is; for a shape, the CPU

    Returns a Report: printable, comparable, with .problem, .plan, .floor_bytes and .moved_bytes.

    Raises ValueError or TypeError for arguments that the operation would refuse; onepass.cuda.CudaError for a GPU that
    is not here.
    """
    if is_tensor(x_or_shape):  # a parameter too: nothing is computed, so no gradient is lost
        x_or_shape = x_or_shape.detach()
    problem = problem_of(op, x_or_shape, dtype, dim)
    address, ordinal = _place(op, x_or_shape)
    gpu = _gpu(device, ordinal)
    if gpu is None:
        machine = this_machine()
        return Report(problem, make_plan(problem, machine, _engine.get_num_threads()), machine)
    from .cuda.plan import make_cuda_plan

    # What a gradient reads beside an array lies as that does.
    return Report(problem, make_cuda_plan(problem, gpu, addresses=(address, 0, address, address)), gpu)


def _place(op: str, x_or_shape: Any) -> tuple[int, int | None]:
    """Where an array is: its address, and the GPU's number. A shape stands for a fresh array."""
    if isinstance(x_or_shape, (tuple, list)):
        return 0, None
    source = as_input(op, x_or_shape, None)
    return source.address, source.device


def _gpu(device: Any, ordinal: int | None) -> Device | None:
    """The GPU that is meant, None for the CPU."""
    if device is None:
        device = "cpu" if ordinal is None else f"cuda:{ordinal}"
    name = str(device)
    if name == "cpu":
        return None
    kind, _, number = name.partition(":")
    if kind != "cuda":
        from .cuda.device import by_name

        try:
            return by_name(name)
        except ValueError as error:
            raise ValueError(f"explain: {error}, cpu, cuda or cuda:1") from error
    if not is_number(number or "0"):
        raise ValueError(f"explain: device {name!r} is not known; expected cpu, cuda, cuda:1 or the name of a GPU")
    from .cuda.launch import read_device

    return read_device(int(number or 0))
