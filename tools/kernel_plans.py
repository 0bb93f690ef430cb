"""The kernels that tools/nvrtc_matrix.py compiles, those of kernel_grid.py and of views, and the devices that they are
planned for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from kernel_grid import KNOWN, PARTS

from onepass.call import operands_like
from onepass.cuda.device import Device, by_name
from onepass.cuda.plan import CudaPlan, make_cuda_plan
from onepass.problem import Operand, Problem, contiguous_strides, make_problem

DEVICES = {
    "75": replace(by_name("l4"), name="T4", architecture="75", shared_per_block=64 << 10, max_threads=1024),
    "80": by_name("a100"),
    "86": replace(by_name("l4"), name="A10", architecture="86"),
    "89": by_name("l4"),
    "90a": by_name("h200"),
    "100a": by_name("b200"),
    "120": by_name("rtx5090"),
}
# Lengths of rows that are turned by squares of 8 or 4, and of 2.
TURNED = (16, 24, 32, 64, 100, 128, 192, 256, 400, 512, 18, 50, 102, 250, 1002, 1024, 2000, 2002, 4000, 4098)
TURNED += (2602, 5902, 8000, 8194, 15000, 16002, 20000, 30002, 40000, 49152)
# The same of rows whose results go through shared memory.
BY_ROWS = (2, 3, 7, 9, 12, 21, 31, 40, 45, 91, 151, 301, 601, 1001, 2401)
# Shape in memory, the order in which a call has its dims, and the dim: rows that lie one way in memory and another way
# in the result, or neighbours of which both have some.
VIEWS = (
    *(((length, 4000), (1, 0), dim) for length in TURNED for dim in (0, 1)),
    *(((300, length, 72), (0, 2, 1), dim) for length in TURNED[:12] for dim in (1, 2)),
    *(((length, 30001), (1, 0), 1) for length in (16, 24, 40, 64, 100, 200, 400, 1000, 4000, 20000)),
    *(((300, length, 701), (0, 2, 1), dim) for length in (20, 60, 250, 900) for dim in (1, 2)),
    *(((length, 30000), (1, 0), 1) for length in (16, 24, 40, 64, 100, 200, 400, 1000, 4000, 20000)),
    *(((300, length, 700), (0, 2, 1), 2) for length in (20, 60, 250, 900)),
    *(((40, length, 300), (0, 2, 1), 1) for length in (20, 60, 250, 900)),
    *(((60, length, 32, 8), (3, 1, 0, 2), 1) for length in (8, 30, 100, 300, 512, 2000)),
    *(((12, length, 8, 256), (0, 3, 2, 1), 1) for length in (20, 100, 300, 1000)),
    *(((128, length, 256), (0, 2, 1), 1) for length in (9, 32, 100, 256, 600)),
    *(((64, length, 300), (2, 1, 0), 1) for length in TURNED),
    *(((66, length, 300), (2, 1, 0), 1) for length in (16, 24, 50, 100, 200, 300, 400, 500)),
    *(((65, length, 301), (2, 1, 0), 1) for length in (4, 9, 20, 60, 150, 400, 1000, 2000, 6000)),
    *(((300, length, columns), (0, 2, 1), 2) for length in BY_ROWS for columns in (701, 704)),
    *(((few, length, 2000), (2, 1, 0), 1) for few in (6, 9, 12) for length in (4, 20, 60, 150, 400, 1000, 2000)),
)


def view_problems() -> Iterator[Problem]:
    """Of a gradient, what was saved is contiguous, and dy lies as the view does; or with a step."""
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for memory, order, dim in VIEWS if dtype in ("float32", "bfloat16") else VIEWS[::4]:
            shape = tuple(memory[axis] for axis in order)
            strides = tuple(contiguous_strides(memory)[axis] for axis in order)
            for op in ("softmax", "log_softmax"):
                yield make_problem(op, dtype, shape, (dim,), strides=strides)
                yield make_problem(f"{op}_backward", dtype, shape, (dim,), second=Operand(dtype, strides))
        for length in (16, 30, 40, 64, 100, 128, 500, 2000, 6000):
            for op in ("softmax_backward", "log_softmax_backward"):
                yield make_problem(op, dtype, (5000, length), (1,), second=Operand(dtype, (2 * length, 2)))
        for length in (9, 12, 15, 16, 24, 30, 32, 40, 56, 64, 65, 80, 100, 128, 150, 200, 256):
            for op in ("softmax", "log_softmax", "logsumexp"):
                yield make_problem(op, dtype, (50000, length), (1,), strides=(2 * length, 2))


def _contiguous() -> Iterator[tuple]:
    for op, dtype, result, shape, dim, algorithm, addresses in chain.from_iterable(part() for part in PARTS):
        dims = dim if isinstance(dim, tuple) else (dim,)
        second, third = operands_like(op, dtype, shape, contiguous_strides(shape), dims)
        yield (
            make_problem(op, dtype, shape, dims, result_dtype=result, second=second, third=third),
            algorithm,
            addresses,
        )


def plans(device: Device) -> list[CudaPlan]:
    """The different kernels of the grid, each as one of its plans."""
    found: dict[str, CudaPlan] = {}
    for problem, algorithm, addresses in chain(_contiguous(), ((view, None, KNOWN) for view in view_problems())):
        if algorithm == "cluster" and device.most_clustered == 1:
            continue
        plan = make_cuda_plan(problem, device, algorithm, addresses=addresses)
        if found.setdefault(plan.kernel, plan).shared_bytes < plan.shared_bytes:
            found[plan.kernel] = plan
    return sorted(found.values(), key=lambda plan: (plan.header, plan.kernel))
