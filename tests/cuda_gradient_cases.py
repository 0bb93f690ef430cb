"""What the CUDA kernels of gradients are run on: where each of their arrays lies, and launches of plans for that."""

from dataclasses import dataclass, field

import numpy as np
import simulator
from cuda_cases import SCRATCH_HEAD, few_blocks
from helpers import DTYPES, nan_filled, random_array
from ulp import max_ulp

from onepass import reference
from onepass.cuda.device import by_name
from onepass.cuda.plan import CudaPlan, make_cuda_plan
from onepass.problem import Operand, make_problem, normalize_dims, spread_strides

H200 = by_name("h200")
# A forward operation of each gradient; its result is what was saved, of logsumexp beside x.
FORWARD = {"softmax_backward": "softmax", "log_softmax_backward": "log_softmax", "logsumexp_backward": "logsumexp"}


def _itself(x):
    return x


@dataclass(frozen=True)
class Place:
    """An array: what memory is allocated for it, what is taken of that, and how many elements past a boundary it is."""

    base: tuple | None = None  # None: the shape itself
    view: object = _itself
    past: int = 0


@dataclass(frozen=True)
class Layout:
    """A shape, a dim, and where the arrays lie. `told`: whether the planner knows their addresses."""

    shape: tuple
    dim: object = -1
    saved: Place = field(default_factory=Place)
    dy: Place = field(default_factory=Place)
    dx: Place = field(default_factory=Place)
    told: bool = True


def rows_of(length, rows=5):
    """Rows that lie side by side in dx and in what was saved."""
    shape, even, odd = (rows, length), (rows, length // 16 * 16), (rows, length // 16 * 16 + 1)
    padded = Place((rows, length + 7), lambda x: x[:, 3:-4])
    return {
        "aligned": Layout(even),
        "odd: each row starts elsewhere": Layout(odd),
        "all one element past a boundary": Layout(shape, saved=Place(past=1), dy=Place(past=1), dx=Place(past=1)),
        "dy lies differently": Layout(even, dy=Place(past=1)),
        "the saved array lies differently": Layout(odd, saved=Place(past=3)),
        "only the inputs agree": Layout(shape, saved=Place(past=1), dy=Place(past=1), dx=Place(past=2)),
        "addresses not told": Layout(shape, saved=Place(past=1), dy=Place(past=2), told=False),
        "padded inputs": Layout(shape, saved=padded, dy=padded),
        "everything padded": Layout(shape, saved=padded, dy=padded, dx=padded),
        "one row": Layout((1, length)),
        "dy has one value for a row": Layout(shape, dy=Place((rows, 1), lambda x: np.broadcast_to(x, shape))),
        "dy has one value": Layout(odd, dy=Place((1,), lambda x: np.broadcast_to(x, odd))),
        "two kept axes in another order": Layout(
            (3, 2, length), dy=Place((2, 3, length), lambda x: x.transpose(1, 0, 2))
        ),
        "one column": Layout((70, 1)),
        "a row shorter than its head": Layout((9, 5), saved=Place(past=1), dy=Place(past=1), dx=Place(past=1)),
    }


# Rows whose elements lie apart.
STRIDED = {
    "columns": Layout((33, 64), 0),
    "columns, an odd number": Layout((50, 37), 0),
    "a middle dim": Layout((3, 40, 24), 1),
    "a middle dim, all off": Layout((3, 40, 24), 1, Place(past=2), Place(past=2), Place(past=2)),
    "a middle dim, dy off": Layout((3, 40, 24), 1, dy=Place(past=1)),
    "a middle dim, dy has one value for a row": Layout(
        (3, 40, 24), 1, dy=Place((3, 1, 24), lambda x: np.broadcast_to(x, (3, 40, 24)))
    ),
    "a middle dim, dy has one value": Layout((3, 40, 24), 1, dy=Place((1,), lambda x: np.broadcast_to(x, (3, 40, 24)))),
    "a tiny inner dim": Layout((20, 9, 3), 1),
    "every second element": Layout((7, 45), saved=Place((7, 90), lambda x: x[:, ::2])),
    "dy backwards": Layout((4, 65), dy=Place(view=lambda x: x[:, ::-1])),
    "dy of another order": Layout((40, 24), 0, dy=Place((24, 40), lambda x: x.T)),
    "two dims that do not lie together": Layout((3, 4, 5, 6), (0, 2)),
    "long": Layout((700, 8), 0),
    "one step": Layout((1, 50), 0),
    "addresses not told": Layout((33, 64), 0, told=False),
}


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch and what it must give. The arrays: what was saved, dx, dy, and of logsumexp its result."""

    name: str
    op: str
    plan: CudaPlan
    bases: tuple
    views: tuple
    offsets: tuple
    dims: tuple

    def arrays(self, grid=8):
        """In the order of the Job's words; then scratch memory for so many blocks, where they share rows."""
        places = zip(self.bases, self.views, self.offsets, strict=True)
        arrays = [
            simulator.Array(base, offset, _into(base, view), word=number)
            for number, (base, view, offset) in enumerate(places)
        ]
        if self.plan.shared_by:
            scratch = np.zeros((SCRATCH_HEAD + self.plan.slots(grid) * self.plan.scratch_bytes) // 4, np.uint32)
            arrays.append(simulator.Array(scratch, word=self.plan.arrays + len(self.plan.words) - 1))
        return arrays

    def reference(self):
        saved, _, dy, *lse = self.views
        return getattr(reference, self.op)(dy, saved, *lse, self.dims, dtype=np.longdouble)

    def scale(self):
        """The size of the terms that each result is a difference of."""
        saved, _, dy, *_ = (np.asarray(view).astype(np.float64).astype(np.longdouble) for view in self.views)
        with np.errstate(all="ignore"):
            if self.op == "softmax_backward":
                scale = np.abs(saved) * (np.abs(dy) + np.abs(dy * saved).sum(self.dims, keepdims=True))
            elif self.op == "log_softmax_backward":
                scale = np.abs(dy) + np.exp(saved) * np.abs(dy).sum(self.dims, keepdims=True)
            else:
                scale = np.zeros(saved.shape)
        return np.where(np.isfinite(scale), scale, 0)

    def run(self, machine, *, grid=2, seed=0):
        """dx. Few blocks, so that each takes several rows."""
        blocks = few_blocks(self.plan, grid)
        after = machine.launch(self.plan, self.arrays(blocks), grid=blocks, seed=seed)
        for number, (contents, base) in enumerate(zip(after, self.bases, strict=not self.plan.shared_by)):
            if number != 1:
                np.testing.assert_array_equal(contents.view(np.uint8), base.view(np.uint8))
        base, view = self.bases[1], self.views[1]
        strides, start = view.strides, _into(base, view)
        written = np.lib.stride_tricks.as_strided(after[1].reshape(-1)[start // base.itemsize :], view.shape, strides)
        if view.size < base.size:
            left = after[1].copy()
            np.lib.stride_tricks.as_strided(left.reshape(-1)[start // base.itemsize :], view.shape, strides)[...] = 0
            assert np.isnan(left.astype(np.float64)).sum() == base.size - view.size, "wrote between the rows"
        return written

    def error(self, machine, **options):
        """The largest error in ULP of the terms."""
        return max_ulp(self.run(machine, **options), self.reference(), floor=self.scale())


def _into(base, view):
    return view.__array_interface__["data"][0] - base.__array_interface__["data"][0]


def launch(name, op, layout, dtypes="float32", algorithm=None, *, values=None, **options):
    """The launch of a gradient on a layout; `dtypes` are those of dy, of what was saved and of dx, or one for all.

    `values(op, shape, dims)` are dy, what was saved and lse, else dy is normally distributed, and what was saved
    is what the operation gives of such a distribution.
    """
    dy_dtype, saved_dtype, dx_dtype = (dtypes,) * 3 if isinstance(dtypes, str) else dtypes
    dims = normalize_dims(op, layout.dim, layout.shape)
    per_row = op == "logsumexp_backward"
    row_shape = tuple(1 if i in dims else n for i, n in enumerate(layout.shape))

    def placed(place, contents, dtype):
        base = nan_filled(place.base or layout.shape, DTYPES[dtype])
        view = place.view(base)
        if view.flags.writeable:
            view[...] = contents
        else:  # expanded: what is at the start of each expanded axis
            base[...] = random_array(base.shape, dtype, seed=3)
        return base, view

    if values is None:
        x = random_array(layout.shape, "float64", 3)
        lse = reference.logsumexp(x, dims, keepdim=True)
        saved = x if per_row else getattr(reference, FORWARD[op])(x, dims)
        dy = random_array(row_shape if per_row else layout.shape, "float64", seed=1)
    else:
        dy, saved, lse = values(op, layout.shape, dims)
    places = [(layout.saved, saved, saved_dtype), (layout.dx, np.nan, dx_dtype)]
    if per_row:
        places += [(Place(row_shape, past=1), dy, dy_dtype), (Place(row_shape), lse, saved_dtype)]
    else:
        places.append((layout.dy, dy, dy_dtype))
    bases, views = zip(*(placed(*place) for place in places), strict=True)
    offsets = tuple(place.past * DTYPES[dtype].itemsize for place, _, dtype in places)
    strides = [tuple(s // view.itemsize for s in view.strides) for view in views]
    beside = [spread_strides(s, dims, len(layout.shape)) for s in strides[2:]] if per_row else strides[2:]
    operands = [Operand(dtype, s) for (_, _, dtype), s in zip(places[2:], beside, strict=True)]
    problem = make_problem(
        op,
        saved_dtype,
        layout.shape,
        dims,
        strides=strides[0],
        result_dtype=dx_dtype,
        result_strides=strides[1],
        second=operands[0],
        third=operands[1] if per_row else None,
    )
    addresses = tuple(offset + _into(base, view) for base, view, offset in zip(bases, views, offsets, strict=True))
    plan = make_cuda_plan(problem, H200, algorithm, addresses=addresses if layout.told else None, **options)
    assert algorithm in (None, plan.algorithm)
    if per_row:
        views = (
            *views[:2],
            *(view.reshape([n for i, n in enumerate(layout.shape) if i not in dims]) for view in views[2:]),
        )
    return Launch(name, op, plan, bases, views, offsets, dims)
