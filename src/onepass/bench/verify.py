"""Is a contender's result right? Checked against the float64 reference before anything is timed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onepass import reference
from onepass.bench.cells import REDUCTIONS, Cell
from onepass.problem import GRADIENTS

Array = NDArray[Any]

_SCANNED = 1 << 22  # elements looked at together in the scan for unwritten values

# Allowed error in units in the last place: (at any length, more per million elements of a row). Generous on purpose:
# it must pass every honest float32 accumulation and nothing else. The worst of them, at 16.8 million elements: 362 ULP
# of softmax by the sixteen lanes of AVX-512, 1221 by the eight of AVX2, 78 of its log_softmax.
_ULPS = {"softmax": (32, 128), "log_softmax": (8, 8), "logsumexp": (4, 2), "sum": (4, 0), "mean": (4, 0)}
_ULPS |= {op: (8, 64) for op in GRADIENTS}
_ULPS_16_BIT = 4  # the rounding of the result outweighs the rest; jax rounds the exponentials to 16 bits too: 2.6


def tolerance(cell: Cell) -> float:
    """How many units in the last place a result of this cell may be off.

    >>> from onepass.bench.cells import Cell
    >>> tolerance(Cell("softmax", "softmax", (4, 1_000_000), "an example"))
    160.0
    """
    if cell.op in ("amax", "amin"):
        return 0.0
    if cell.dtype in ("float16", "bfloat16"):
        return float(_ULPS_16_BIT)
    base, growth = _ULPS[cell.op]
    return base + growth * cell.length / 1e6


def _spacing(scale: Array, dtype: np.dtype[Any]) -> Array:
    """The distance between neighbouring values of the dtype at `scale`, in float64."""
    finfo: Any = ml_dtypes.finfo  # carries no types
    limits = finfo(dtype)
    _, exponent = np.frexp(scale)
    spacing: Array = np.maximum(np.ldexp(float(limits.eps), exponent - 1), float(limits.smallest_subnormal))
    return spacing


def _gradient(op: str, saved: Array, dy: Array, *lse: Array) -> tuple[Array, Array]:
    """A gradient of rows, and the size of the terms that it is a difference of."""
    result = np.asarray(getattr(reference, op)(dy, saved, *lse, -1))
    if op == "softmax_backward":
        return result, np.abs(saved) * (np.abs(dy) + np.abs(dy * saved).sum(axis=-1, keepdims=True))
    if op == "log_softmax_backward":
        return result, np.abs(dy) + np.exp(saved) * np.abs(dy).sum(axis=-1, keepdims=True)
    return result, np.abs(result)


class WrongResult(Exception):
    """Not the array that was asked for: its shape, its dtype, or elements nobody wrote."""


class Verifier:
    """Holds the float64 reference of a sample of rows: the first, the last, and random ones between. `beside` is what a
    gradient reads beside x."""

    def __init__(
        self, cell: Cell, x: Any, seed: int = 0, dtype: np.dtype[Any] | None = None, beside: tuple[Any, ...] = ()
    ):
        self.cell = cell
        self.dtype = x.dtype if dtype is None else dtype
        self.tolerance = tolerance(cell)
        kept = tuple(size for axis, size in enumerate(cell.shape) if axis != cell.axis)
        count = int(np.prod(kept))
        random = np.random.default_rng(seed).choice(count, max(0, cell.checked_rows - 2), replace=False)
        # Of a shape of one axis the row is the array, which an empty index takes.
        self.rows = np.unravel_index(np.union1d(random, [0, count - 1]), kept) if kept else ()
        sample = self._take(x)  # [rows, length]
        if cell.op in GRADIENTS:
            self.expected, self.scale = _gradient(cell.op, sample, *map(self._take, beside))
            return
        self.expected = np.asarray(getattr(reference, cell.op)(sample, -1))
        self.scale = np.abs(self.expected)
        if cell.op in ("sum", "mean"):  # the terms may cancel: what is rounded is as large as their absolute sum
            self.scale = getattr(reference, cell.op)(np.abs(sample), -1)
        elif cell.op in ("log_softmax", "logsumexp"):  # near 0 they are a difference of numbers near 1
            self.scale = np.maximum(self.scale, 1.0)

    def _take(self, full: Any) -> Array:
        if full.ndim == len(self.cell.shape):
            full = np.moveaxis(full, self.cell.axis, -1)
        taken: Array = full[self.rows].astype(np.float64)
        return taken

    @cached_property
    def _units(self) -> Array:
        """The unit in the last place of every expected value: the same for all contenders."""
        return _spacing(self.scale, self.dtype)

    def error(self, result: Any) -> float:
        """The largest error of the sampled rows in units in the last place."""
        cell = self.cell
        if result.shape != cell.result_shape or result.dtype != self.dtype:
            raise WrongResult(
                f"returned {result.dtype} {result.shape}; expected {self.dtype} {cell.result_shape} for {cell.name}"
            )
        flat = result.reshape(-1)
        for start in range(0, flat.size, _SCANNED):
            if not np.isfinite(flat[start : start + _SCANNED]).all():
                raise WrongResult("left elements unwritten or not finite")
        got = self._take(result) if cell.op not in REDUCTIONS else result[self.rows].astype(np.float64)
        return self.distance(got)

    def distance(self, got: Array) -> float:
        """The largest error of the sampled rows' results, in units in the last place."""
        return float(np.max(np.abs(got - self.expected) / self._units))
