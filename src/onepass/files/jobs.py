"""What will be done to each array of a file, decided and checked before the first byte is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

import onepass
from onepass.call import check_not_empty

from .slabs import Columns, Cost, Rows, Stream, collapse, plan_slabs
from .tensor import FLOATS, PIECE, Access, FileError, Info, Tensor, UsageError

Op = Literal["softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin"]
ELEMENTWISE = ("softmax", "log_softmax")
OPS: tuple[Op, ...] = get_args(Op)


@dataclass(frozen=True)
class Request:
    """What to do with each array. `dim` is a tuple of ints, or None for all dims together."""

    op: Op
    dim: tuple[int, ...] | None = (-1,)
    dtype: np.dtype[Any] | None = None
    keepdim: bool = False
    max_memory: int = 1 << 30


@dataclass(frozen=True)
class Target:
    """What the output format allows."""

    access: Access
    fortran: bool  # arrays in Fortran order
    many: bool  # more than one array


@dataclass(frozen=True)
class Types:
    """The types an operation goes through, from the file to the file."""

    stored: np.dtype[Any]
    native: np.dtype[Any]  # the same in the byte order of this machine
    first: np.dtype[Any]  # what a reduction reads: wider than native when the result is
    wide: np.dtype[Any]  # what a streamed slab holds
    result: np.dtype[Any]


@dataclass(frozen=True)
class CopyJob:
    """An array passed on as it is."""

    tensor: Tensor
    result: Info
    transpose: bool  # it lies in Fortran order, which the output format cannot hold

    @property
    def reads(self) -> int:
        return self.result.nbytes


@dataclass(frozen=True)
class ComputeJob:
    """An array of the output: `op` along the middle of the input seen as (outer, length, inner)."""

    tensor: Tensor
    result: Info
    transpose: bool
    op: str
    shape: tuple[int, int, int]
    types: Types
    plan: Rows | Columns | Stream

    @property
    def whole(self) -> bool:
        """Whether the result is as large as the input."""
        return self.op in ELEMENTWISE

    @property
    def in_place(self) -> bool:
        return self.whole and self.types.native == self.types.result

    @property
    def reads(self) -> int:
        return self.tensor.info.nbytes * (2 if self.whole and isinstance(self.plan, Stream) else 1)


Job = CopyJob | ComputeJob


def copy_job(tensor: Tensor, request: Request, target: Target) -> CopyJob:
    result = replace(tensor.info, fortran=tensor.info.fortran and target.fortran)
    transpose = tensor.info.fortran and not target.fortran
    if transpose:
        _left_beside(result, tensor, request)
    return CopyJob(tensor, result, transpose)


def compute_job(tensor: Tensor, request: Request, target: Target) -> ComputeJob:
    """What `request` makes of an array; raises when it cannot be done."""
    info, op = tensor.info, request.op
    dims = _normalized(request.dim, info, op)
    if info.fortran:  # its bytes are those of the mirrored array in C order
        shape = collapse(info.shape[::-1], tuple(len(info.shape) - 1 - d for d in dims))
    else:
        shape = collapse(info.shape, dims)
    if shape is None:
        raise UsageError(
            f"{op}: dims {list(dims)} of {info} are not side by side, which a file is processed along only"
        )
    types = _types(op, info, request.dtype)
    if op in ("amax", "amin"):
        try:
            check_not_empty(op, info.shape, dims)
        except ValueError as error:
            raise FileError(f"{info} cannot be processed: {error}") from error
    kept = info.shape
    if op not in ELEMENTWISE:
        kept = tuple(1 if d in dims else n for d, n in enumerate(info.shape) if request.keepdim or d not in dims)
    turned = info.fortran and sum(n != 1 for n in kept) > 1
    nbytes = math.prod(kept) * types.result.itemsize
    result = Info(info.name, types.result, kept, nbytes, turned and target.fortran)
    transpose = turned and not target.fortran
    budget = _left_beside(result, tensor, request) if transpose else request.max_memory
    access = min(tensor.access, Access.RANDOM if transpose else target.access)
    plan = plan_slabs(shape, _cost(op, types, info.floating), budget, access, 2 if op in ELEMENTWISE else 1)
    if plan is None:
        raise FileError(
            f"{op}: {info} does not fit in --max-memory {request.max_memory:,} bytes along this dim, and pipes and "
            f".npz files only read and write in order; use .npy or .safetensors files, or allow more memory"
        )
    return ComputeJob(tensor, result, transpose, op, shape, types, plan)


def _normalized(dim: tuple[int, ...] | None, info: Info, op: str) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(len(info.shape)))
    n = max(1, len(info.shape))  # a 0-d array takes dim 0 and -1
    for d in dim:
        if not -n <= d < n:
            raise UsageError(f"{op}: dim {d} is out of range for {info}; expected {-n} <= dim < {n}")
    dims = {d % n for d in dim}
    if len(dims) != len(dim):
        raise UsageError(f"{op}: dim {list(dim)} names the same dim of {info} twice")
    return tuple(sorted(dims)) if info.shape else ()


def _types(op: str, info: Info, requested: np.dtype[Any] | None) -> Types:
    stored = info.dtype
    if stored is None:
        raise FileError(f"{op}: {info} is of a type NumPy does not have")
    native = stored.newbyteorder("=")
    try:
        # Whatever is asked for: a slab that is converted before the library sees it would be any type's.
        result = np.asarray(getattr(onepass, op)(np.ones(1, native), dim=0)).dtype
    except (TypeError, ValueError) as error:
        raise FileError(f"{op}: {info} cannot be processed: {error}") from error
    result = requested or result
    # A float16 sum asked for in float32 must not overflow in float16 first, nor one in bfloat16, which has its range.
    # softmax converts by itself, in registers.
    first = native
    if info.floating and op not in ELEMENTWISE and result != native:
        halves = native.itemsize == result.itemsize == 2
        first = FLOATS["float32"] if halves else max(native, result, key=lambda dtype: dtype.itemsize)
    # Slabs that hold part of a row wait for the disk more than for arithmetic, so they are float64. Integers are added
    # and compared as what they are.
    wide = FLOATS["float64"] if info.floating or op in (*ELEMENTWISE, "logsumexp", "mean") else native
    return Types(stored, native, first, wide, result)


def _cost(op: str, types: Types, floating: bool) -> Cost:
    item, result = types.stored.itemsize, types.result.itemsize
    whole = op in ELEMENTWISE
    element = item + (result if whole and types.native != types.result else 0)
    if not floating:
        element += 8  # the library reads integers as float64
    elif types.first != types.native:
        element += types.first.itemsize
    stream = item + (types.wide.itemsize if types.wide != types.native else 0)
    if whole and types.result != types.wide:
        stream += result
    return Cost(item, element, 0 if whole else 2 * max(8, result), stream)


def _left_beside(result: Info, tensor: Tensor, request: Request) -> int:
    """The memory left for slabs when the whole result is held, once as it comes and once turned round."""
    left = request.max_memory - 2 * result.nbytes
    if left < PIECE:
        raise FileError(
            f"{tensor.info} lies in Fortran order, which .safetensors cannot hold, and is too large to be turned "
            f"round in --max-memory {request.max_memory:,} bytes; write .npy or .npz, or allow more memory"
        )
    return left
