"""From a problem to a launch: device, plan, compiled kernel, bound call. The cold path of every call on a GPU.

Nothing here runs in a call whose like has been seen: that finds its bound plan in the engine and makes one driver call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from .. import _engine, arrays, gpu_arrays
from ..call import NUMBERS, operands_like
from ..problem import Problem, contiguous_strides, make_problem, normalize_dims
from .compile import Cubin, compile_kernel
from .device import COPY_SHARE, NAMES, Device, by_name
from .plan import CudaPlan, make_cuda_plan

if TYPE_CHECKING:
    from ..arrays import Input

# Of CUdevice_attribute.
_MULTIPROCESSORS = 16
_MEMORY_CLOCK_KHZ = 36
_MEMORY_BITS = 37
_L2_BYTES = 38
_THREADS_PER_MULTIPROCESSOR = 39
_MAJOR, _MINOR = 75, 76
_SHARED_PER_MULTIPROCESSOR = 81
_REGISTERS_PER_MULTIPROCESSOR = 82
_SHARED_PER_BLOCK = 97  # that a block may opt in to
_SAME_BANDWIDTH = 0.1  # an H200's memory is sold with 2% less than its clock says
# Whose instructions beyond the common ones are had by naming the architecture with an "a".
_ARCHITECTURE_SPECIFIC = (9, 10, 11)


@lru_cache(maxsize=64)
def read_device(ordinal: int) -> Device:
    """The GPU of that number, as the driver describes it. Raises CudaError without it."""

    def attribute(number: int) -> int:
        return _engine.gpu_attribute(ordinal, number)

    major = attribute(_MAJOR)
    name = _engine.gpu_name(ordinal).removeprefix("NVIDIA ").removeprefix("GeForce ")
    # Two transfers a clock; what a copy gets of it is less.
    sold = 2 * attribute(_MEMORY_CLOCK_KHZ) * attribute(_MEMORY_BITS) / 8e6
    described = _described(name, sold)
    return Device(
        name=name,
        architecture=f"{major}{attribute(_MINOR)}{'a' if major in _ARCHITECTURE_SPECIFIC else ''}",
        multiprocessors=attribute(_MULTIPROCESSORS),
        shared_per_block=attribute(_SHARED_PER_BLOCK),
        shared_per_multiprocessor=attribute(_SHARED_PER_MULTIPROCESSOR),
        registers=attribute(_REGISTERS_PER_MULTIPROCESSOR),
        max_threads=attribute(_THREADS_PER_MULTIPROCESSOR),
        l2_bytes=attribute(_L2_BYTES),
        bandwidth=described.bandwidth if described else round(sold * COPY_SHARE),
        bandwidth_is=described.bandwidth_is if described else "modelled",
    )


def _described(name: str, sold: float) -> Device | None:
    """The GPU of that name that ships with the package, if its memory is as fast: an L4 is no L40, and some names are
    those of several GPUs."""
    for known in map(by_name, NAMES):
        same = re.match(re.escape(known.name) + r"(?![A-Za-z0-9])", name, re.IGNORECASE)
        if same and abs(sold * COPY_SHARE / known.bandwidth - 1) < _SAME_BANDWIDTH:
            return known
    return None


def plan(
    problem: Problem,
    source: Input,
    out: Any,
    algorithm: str | None = None,
    *,
    beside: Sequence[Input] = (),
    **options: Any,
) -> CudaPlan:
    """The plan for the GPU that `source` is on, and what a gradient reads beside it. `options` are make_cuda_plan's."""
    assert source.device is not None
    # A result that is made for the call starts on a boundary.
    addresses = source.address, 0 if out is None else _address(out), *(other.address for other in beside)
    return make_cuda_plan(problem, read_device(source.device), algorithm, addresses=addresses, **options)


def bind(problem: Problem, source: Input, out: Any, plan: CudaPlan) -> _engine.Bound:
    """Compile and load the kernel of a plan, and hand both to the engine."""
    assert source.device is not None
    maker = gpu_arrays.maker(source, problem)
    return _engine.bind_gpu(
        kernel=loaded(source.device, plan),
        algorithm=plan.algorithm,
        threads=plan.threads,
        cluster=plan.cluster,
        cooperative=plan.team > 0,
        shared_bytes=plan.shared_bytes,
        units=plan.units,
        units_per_block=plan.units_per_block,
        waves=plan.waves,
        arrays=plan.arrays,
        team=plan.team,
        scratch_bytes=plan.scratch_bytes,
        hands_out=plan.hands_out,
        unit_slots=plan.unit_slots,
        words=plan.words,
        result_dtype=arrays.DTYPES.index(problem.result_dtype),
        shape=problem.result_shape,
        make=maker.make,
        positional=maker.positional,
        keyword_names=tuple(maker.keywords) or None,
        keyword_values=tuple(maker.keywords.values()),
        finish=maker.finish,
    )


def _address(out: Any) -> int:
    described = _engine.describe(out)
    assert described is not None  # by check_out
    return described[3]


@cache
def _load(ordinal: int, header: str, kernel: str, source: str) -> _engine.Kernel:
    """A kernel on a GPU. One serves every problem whose plan names it, and stays for the life of the process."""
    cubin = _cubin(read_device(ordinal), header, kernel, source)
    return _engine.load_kernel(ordinal, cubin.code, cubin.symbol)


def _cubin(device: Device, header: str, kernel: str, source: str) -> Cubin:
    return compile_kernel(header, kernel, device.architecture, source=source)


def loaded(ordinal: int, plan: CudaPlan) -> _engine.Kernel:
    """The kernel of a plan on a GPU, compiled and loaded if it has not been."""
    return _load(ordinal, plan.header, plan.kernel, plan.source)


def precompile(
    op: str,
    shape: tuple[int, ...],
    dtype: str = "float32",
    dim: Any = -1,
    *,
    result_dtype: str | None = None,
    algorithm: str | None = None,
    device: int | str = 0,
) -> CudaPlan:
    """Compile the kernel that a call would need, so that no request waits for it.

    >>> plan = precompile("softmax", (128, 4096), "bfloat16", device="h200")
    >>> plan.algorithm
    'block'

    Parameters
    ----------
    op : "softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin", "softmax_backward",
        "log_softmax_backward" or "logsumexp_backward"
    shape : of contiguous inputs on a cache line's boundary, as fresh arrays are
    dtype, result_dtype : names, such as "float16"
    dim, algorithm : as in the operation
    device : a GPU's number: the kernel is loaded there, too. Or the name of one that onepass knows, such as "h200":
        nothing but the cache of compiled kernels changes, and no GPU is needed; for container images.

    Returns the plan. Calls whose plans have the same kernel share it: sizes are not part of it, types and the cut are.

    Raises ValueError or TypeError for arguments that the operation would refuse; ImportError without a compiler;
    CompileError; CudaError without that GPU.
    """
    if op not in NUMBERS:
        raise ValueError(f"precompile: unknown operation {op!r}; choose from {', '.join(NUMBERS)}")
    for name in (dtype, result_dtype or dtype):
        if name not in arrays.DTYPES:
            raise TypeError(f"precompile: dtype {name!r} is not known; expected {arrays.SUPPORTED}")
    dims = normalize_dims(op, dim, shape)
    second, third = operands_like(op, dtype, shape, contiguous_strides(shape), dims)
    problem = make_problem(op, dtype, shape, dims, result_dtype=result_dtype, second=second, third=third)
    described = by_name(device) if isinstance(device, str) else read_device(device)
    plan = make_cuda_plan(problem, described, algorithm, addresses=(0, 0, 0, 0))
    if isinstance(device, str):
        _cubin(described, plan.header, plan.kernel, plan.source)
    else:
        loaded(device, plan)
    return plan
