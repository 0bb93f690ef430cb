"""Arrays on NVIDIA GPUs, beside arrays.py: which library an array is of, and how that library makes a result.

torch tensors (and whatever else has DLPack's C exchange API) are read through that. CuPy and JAX arrays are read by
`__dlpack__`: CuPy's on the stream that CuPy has current, JAX's on the legacy default stream, since JAX shows its own to
nobody and orders itself with the stream that it is told.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _engine
from .problem import ELEMENTWISE, Problem, contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Callable

    from .arrays import Input


@dataclass(frozen=True)
class Maker:
    """make(x, *positional, **keywords) is a new result; finish(result, *keep) what the caller gets instead of it.

    `keep` holds the memory of each input, and is None for libraries whose own streams order its reuse.
    """

    make: Callable[..., Any] | None = None  # None: by the C exchange API of x's type
    positional: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    finish: Callable[..., Any] | None = None


def recognise(op: str, name: str, x: Any) -> None:
    """Have the engine read arrays of x's type, or raise with what to pass instead."""
    if _engine.register_exchange_type(type(x)):
        return
    library = type(x).__module__.partition(".")[0]
    if library == "cupy":
        _engine.register_producer(type(x), _cupy_stream)
    elif library in ("jax", "jaxlib"):
        _engine.register_producer(type(x), None)
    else:
        raise TypeError(
            f"{op}: {name} is a {type(x).__module__}.{type(x).__name__} on a GPU, and onepass does not know on which "
            f"stream its library computes; pass torch.from_dlpack({name}) or cupy.from_dlpack({name})"
        )


def maker(source: Input, problem: Problem) -> Maker:
    """How results of this problem are made, for all calls alike."""
    x, shape, dtype = source.array, problem.result_shape, problem.result_dtype
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        torch = sys.modules["torch"]
        keywords = {} if dtype == problem.dtype else {"dtype": getattr(torch, dtype)}
        if problem.op in ELEMENTWISE and source.strides == contiguous_strides(shape):
            return Maker(torch.empty_like, (), keywords)  # the quickest of torch's
        return Maker(torch.Tensor.new_empty, (shape,), keywords)
    if library == "cupy":
        if dtype == "bfloat16":
            raise TypeError(f"{problem.op}: CuPy has no bfloat16; expected dtype float32, float64 or float16")
        return Maker(_cupy_empty, (shape, dtype))
    if library in ("jax", "jaxlib"):
        from .arrays import DTYPES

        return Maker(_engine.DeviceArray, (shape, DTYPES.index(dtype)), finish=_to_jax)
    return Maker()


def _cupy_stream(device: int) -> int:
    stream: int = sys.modules["cupy"].cuda.get_current_stream(device).ptr
    return stream


def _cupy_empty(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    with x.device:
        return sys.modules["cupy"].empty(shape, dtype)


def _to_jax(result: _engine.DeviceArray, *keep: Any) -> Any:
    result.keep(keep)  # the kernel may still read an input when the last reference to it goes
    return sys.modules["jax"].dlpack.from_dlpack(result)
