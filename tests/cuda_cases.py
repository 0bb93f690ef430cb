"""What the CUDA kernels are run on: layouts, each there for one reason, and launches that plans make of them."""

from dataclasses import dataclass

import numpy as np
import simulator
from helpers import DTYPES, FLOORS, nan_filled, random_array
from ulp import max_ulp

from onepass import reference
from onepass.cuda.device import by_name
from onepass.cuda.kernel_plan import ONCE
from onepass.cuda.plan import CudaPlan, make_cuda_plan
from onepass.problem import make_problem, normalize_dims

H200 = by_name("h200")
SCRATCH_HEAD = 128  # bytes of exchange.h's ScratchHead


def few_blocks(plan, grid):
    """That many, so that each takes several rows; more only where a kernel wants them."""
    needed = plan.shared_by or plan.waves == ONCE
    return plan.blocks(1, grid) if needed else min(grid, plan.blocks(1, 1))


@dataclass(frozen=True)
class Layout:
    """A view of an array and where both arrays lie, in elements past a multiple of 128 bytes; None: not told."""

    shape: tuple
    dim: object = -1
    view: object = None  # what is taken of an array of that shape
    past: tuple | None = (0, 0)


def rows_of(length, rows=5):
    """Rows that lie side by side, as every row algorithm must take them."""
    return {
        "aligned": Layout((rows, length // 16 * 16)),
        "odd: each row starts elsewhere": Layout((rows, length // 16 * 16 + 1)),
        "both bases one element past a boundary": Layout((rows, length), past=(1, 1)),
        "bases differently past a boundary": Layout((rows, length), past=(1, 3)),
        "addresses not told": Layout((rows, length), past=None),
        "padded rows": Layout((rows, length + 7), view=lambda x: x[:, 3:-4]),
        "one row": Layout((1, length)),
        "two kept axes in another order": Layout((2, 3, length), view=lambda x: x.transpose(1, 0, 2)),
    }


# Rows whose elements lie apart, or of which there is only one each.
STRIDED = {
    "columns": Layout((33, 64), 0),
    "columns, an odd number": Layout((50, 37), 0),
    "a middle dim": Layout((3, 40, 24), 1),
    "a middle dim, bases off": Layout((3, 40, 24), 1, past=(2, 2)),
    "a tiny inner dim": Layout((20, 9, 3), 1),
    "every second element": Layout((7, 90), -1, lambda x: x[:, ::2]),
    "backwards": Layout((4, 65), -1, lambda x: x[:, ::-1]),
    "columns of x, rows of the result": Layout((60, 50), -1, lambda x: x.T),
    "rows of x, columns of the result": Layout((3, 30, 40), 1, lambda x: x.transpose(0, 2, 1)),
    "two dims that do not lie together": Layout((3, 4, 5, 6), (0, 2)),
    "one row for all": Layout((1, 40), -1, lambda x: np.broadcast_to(x, (6, 40))),
    "one element for a row": Layout((6, 1), -1, lambda x: np.broadcast_to(x, (6, 40))),
    "long": Layout((700, 8), 0),
    "one step": Layout((1, 50), 0),
}


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch and what it must give."""

    name: str
    op: str
    plan: CudaPlan
    base: np.ndarray
    x: np.ndarray
    dims: tuple
    y_dtype: np.dtype
    offsets: tuple

    def arrays(self, grid=8):
        into = self.x.__array_interface__["data"][0] - self.base.__array_interface__["data"][0]
        y = nan_filled(self.expected_shape, self.y_dtype)
        arrays = [simulator.Array(self.base, self.offsets[0], into), simulator.Array(y, self.offsets[1], word=1)]
        if self.plan.shared_by:
            scratch = np.zeros((SCRATCH_HEAD + self.plan.slots(grid) * self.plan.scratch_bytes) // 4, np.uint32)
            arrays.append(simulator.Array(scratch, word=1 + len(self.plan.words)))
        return arrays

    @property
    def expected_shape(self):
        return self.reference().shape

    def reference(self):
        return getattr(reference, self.op)(self.x, self.dims, dtype=np.longdouble)

    def run(self, machine, *, grid=2, seed=0):
        """The result, in the shape of the reference. Few blocks, so that each takes several rows."""
        blocks = few_blocks(self.plan, grid)
        before, y, *_ = machine.launch(self.plan, self.arrays(blocks), grid=blocks, seed=seed)
        np.testing.assert_array_equal(before.view(np.uint8), self.base.reshape(before.shape).view(np.uint8))
        return y

    def error(self, machine, **options):
        """The largest error in ULP."""
        return max_ulp(self.run(machine, **options), self.reference(), floor=FLOORS[self.op])


def launch(name, op, layout, dtype="float32", result_dtype=None, algorithm=None, *, values=None, sigma=3, **options):
    """The launch of an operation on a layout. `values(shape)`: what is in the array, else a normal distribution."""
    base = random_array(layout.shape, dtype, sigma)
    if values is not None:
        base = np.ascontiguousarray(values(layout.shape), DTYPES[dtype])
    x = base if layout.view is None else layout.view(base)
    result_dtype = result_dtype or dtype
    sizes = DTYPES[dtype].itemsize, DTYPES[result_dtype].itemsize
    offsets = tuple(n * size for n, size in zip(layout.past or (1, 2), sizes, strict=True))
    into = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    dims = normalize_dims(op, layout.dim, x.shape)
    strides = tuple(s // x.itemsize for s in x.strides)
    problem = make_problem(op, dtype, x.shape, dims, strides=strides, result_dtype=result_dtype)
    addresses = None if layout.past is None else (offsets[0] + into, offsets[1])
    plan = make_cuda_plan(problem, H200, algorithm, addresses=addresses, **options)
    assert algorithm in (None, plan.algorithm)
    return Launch(name, op, plan, base, x, dims, DTYPES[result_dtype], offsets)
