"""Arrays in and out: the only file that knows NumPy, torch, JAX and other DLPack producers apart.

Frameworks are recognised by what the caller has already imported; none is imported here except NumPy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import _engine
from .problem import ITEMSIZE, REDUCTIONS

DTYPES = ("float32", "float64", "float16", "bfloat16")  # in the order of the engine's DType
SUPPORTED = "float32, float64, float16 or bfloat16"
_NUMPY_DTYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float64): "float64",
    np.dtype(np.float16): "float16",
}
_MOST_AXES = 64  # the engine's
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_engine.register_memory_map(np.memmap)
_known_dtype_objects: set[int] = set()
_watched_torch: Any = None
_MOST_OVERLAP_WORK: Any = 1_000_000  # candidates numpy.shares_memory may try; beyond, an overlap is assumed


@dataclass
class Input:
    """An array the engine reads as it is, and the way from the engine's result back to what the caller uses."""

    array: Any
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    address: int
    is_tensor: bool
    device: int | None  # ordinal of the NVIDIA GPU it is on; None on the CPU
    same_object: bool  # the caller's own array: a later call with it can skip all this
    wrap: Callable[[Any], Any]
    name: str  # of the argument


def _identity(y: Any) -> Any:
    return y


def _torch() -> Any:
    """torch, if somebody has imported it. While it is being imported it is there without Tensor and dtype, and nothing
    can be of its kind yet."""
    torch = sys.modules.get("torch")
    return None if getattr(getattr(torch, "__spec__", None), "_initializing", False) else torch


def is_tensor(x: Any) -> bool:
    """Whether x is a torch tensor, of whatever subclass, or stands for one (a torch.fx.Proxy)."""
    if not hasattr(type(x), "__torch_function__"):
        return False
    if _watched_torch is None:
        torch = _torch()
        if torch is None:
            return False
        watch_torch(torch)
    return True


def is_dlpack(x: Any) -> bool:
    return hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")


def watch_torch(torch: Any) -> None:
    """Tell the engine, once, which tensors it may read by itself, and while what is active it must not."""
    global _watched_torch
    if torch is _watched_torch:
        return
    _engine.watch_forward_ad(vars(torch.autograd.forward_ad))
    # A dispatch mode (FakeTensorMode, make_fx) and a trace see operators; a call past the dispatcher would be a
    # constant to them. Autocast changes the dtype of results of 16-bit tensors on GPUs.
    libraries = Path(torch.__file__).parent / "lib"
    before_dispatch = torch._C.DispatchKey.PreDispatch
    if not _engine.watch_modes(str(libraries / "libc10.so"), before_dispatch.value):
        _engine.watch(torch._C._len_torch_dispatch_stack, False)
        _engine.watch(partial(torch._C._dispatch_tls_is_dispatch_key_included, before_dispatch), False)
    if not _engine.watch_tracing(str(libraries / "libtorch_cpu.so")):
        _engine.watch(torch._C._is_tracing, False)
    _engine.watch(torch._C._is_any_autocast_enabled, True)
    for kind in (torch.Tensor, torch.nn.Parameter):
        _engine.register_exchange_type(kind)
    # torch's own threads look for more work after each of its operators: others would have to share cores with them.
    _engine.borrow_threads(torch.Tensor)
    # What autograd has saved and a caller then has overwritten: backward has to find out.
    _engine.tell_of_writes(torch.Tensor, torch.autograd.graph.increment_version)
    from .torch import extension

    make_tensors_by(torch, extension.load())
    _watched_torch = torch  # now that all of it is told


def make_tensors_by(torch: Any, built: ModuleType | None) -> None:
    """Results are made by this extension, or by DLPack."""
    _engine.make_tensors_by(torch.Tensor, None if built is None else built.make_tensor)


def _describe(op: str, name: str, array: Any, x: Any, wrap: Callable[[Any], Any]) -> Input:
    described = _engine.describe(array)
    if described is None:
        raise TypeError(f"{op}: cannot read {name} of type {type(x).__name__}; pass a NumPy array or a torch tensor")
    dtype, shape, strides, address, _, is_tensor, device = described
    return Input(array, DTYPES[dtype], shape, strides, address, is_tensor, device, array is x, wrap, name)


def as_input(op: str, x: Any, dtype: str | None, name: str = "x") -> Input:
    """The array to read, or an error that says what to pass instead. `dtype` is the result's, if one was named; `name`
    the argument's."""
    if _engine.describe(x) is not None:
        return _describe(op, name, x, x, _identity)
    torch = _torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(op, name, torch, x, dtype)
    if isinstance(x, np.ndarray) or np.isscalar(x):
        return _from_numpy(op, name, x, x, _identity)
    if is_dlpack(x):
        return _from_dlpack(op, name, x)
    return _from_numpy(op, name, np.asarray(x), x, _identity)


# ---- NumPy ----


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether this is ml_dtypes' bfloat16; tells the engine its type number the first time."""
    if dtype.name != "bfloat16":
        return False
    _engine.register_bfloat16(dtype)
    _NUMPY_DTYPES[dtype] = "bfloat16"
    return True


def _from_numpy(op: str, name: str, x: Any, original: Any, wrap: Callable[[Any], Any]) -> Input:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{op}: {name} is a masked array of shape {x.shape}; what a mask means is yours to say: "
            f"pass {name}.filled(-numpy.inf) to leave masked elements out, or {name}.data to ignore the mask"
        )
    array = np.asarray(x)
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)  # as in SciPy
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _NUMPY_DTYPES and not is_bfloat16(array.dtype):
        kinds = {"c": "complex", "O": "object", "M": "datetime", "m": "timedelta"}
        kind = "structured" if array.dtype.names else kinds.get(array.dtype.kind, "")
        described = f"{kind} dtype {array.dtype}" if kind else f"dtype {array.dtype}"
        raise TypeError(
            f"{op}: {name} of shape {array.shape} has {described}; expected {SUPPORTED}, or integers: "
            f"convert with {name}.astype"
        )
    if _engine.describe(array) is None:  # unaligned, or a field of a structured array
        array = array.copy()
    return _describe(op, name, array, original, wrap)


# ---- torch ----


def _from_torch(op: str, name: str, torch: Any, x: Any, dtype: str | None) -> Input:
    if x.is_nested:
        raise TypeError(
            f"{op}: {name} is a nested tensor; pass {name}.to_padded_tensor(...), or use torch's own function"
        )
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(
            f"{op}: {name} is a {type(x).__module__}.{type(x).__name__}, a subclass of torch.Tensor that onepass does "
            f"not know; pass {name}.as_subclass(torch.Tensor), or use torch's own function"
        )
    shape = tuple(x.shape)
    if x.is_quantized:
        raise TypeError(f"{op}: {name} of shape {shape} is quantized ({x.dtype}); pass {name}.dequantize()")
    if x.requires_grad:
        if torch.is_grad_enabled():
            raise ValueError(
                f"{op}: {name} of shape {shape}, dtype {x.dtype} requires grad, and no gradient is recorded here; "
                f"pass {name}.detach(), or call it under torch.no_grad()"
            )
        x = x.detach()
    if x.device.type not in ("cpu", "cuda") or (x.is_cuda and torch.version.cuda is None):
        raise ValueError(
            f"{op}: {name} of shape {shape} is on device {x.device}; onepass runs on CPUs and NVIDIA GPUs: "
            f"pass {name}.cpu()"
        )
    if x.layout != torch.strided:
        raise TypeError(f"{op}: {name} of shape {shape} has layout {x.layout}; pass {name}.to_dense()")
    if not x.dtype.is_floating_point:
        if dtype is None or x.dtype.is_complex:
            raise TypeError(
                f"{op}: {name} of shape {shape} has dtype {x.dtype}; expected {SUPPORTED}: "
                f"convert with {name}.to(torch.float32)"
                + ("" if x.dtype.is_complex or op not in ("softmax", "log_softmax") else ", or pass dtype=")
            )
        x = x.to(getattr(torch, dtype))
    known = str(x.dtype).removeprefix("torch.")
    if known not in DTYPES:
        raise TypeError(
            f"{op}: {name} of shape {shape} has dtype {x.dtype}; expected {SUPPORTED}: convert with {name}.to"
        )
    forward_ad = torch.autograd.forward_ad
    if forward_ad._current_level >= 0:
        if forward_ad.unpack_dual(x).tangent is not None:
            raise ValueError(
                f"{op}: {name} of shape {shape}, dtype {x.dtype} carries a forward-mode tangent, which would be lost "
                f"here; pass {name}.detach(), or use torch's own function there"
            )
        # The engine reads no tensor inside a dual level; NumPy's view of the same memory has no tangent to lose.
        if x.is_cuda:
            raise ValueError(
                f"{op}: {name} of shape {shape} is on {x.device}, where onepass cannot tell whether it carries a "
                "tangent; call it outside torch.autograd.forward_ad.dual_level()"
            )
        return _from_torch_memory(op, name, torch, x, known)
    if x.is_neg():
        x = x.resolve_neg()
    if _engine.register_exchange_type(type(x)):
        if _engine.describe(x) is None:
            if x.dim() > _MOST_AXES:
                raise ValueError(f"{op}: {name} has {x.dim()} dims; at most {_MOST_AXES} are served: reshape it")
            raise TypeError(
                f"{op}: {name} of shape {shape} is a torch.Tensor without plain memory of its own, as inside "
                "torch.func transforms, nested tensors and storages of no size; use torch's own function there"
            )
        return _describe(op, name, x, x, _identity)
    if x.is_cuda:
        raise TypeError(
            f"{op}: {name} of shape {shape} is on {x.device}, and torch {torch.__version__} has no DLPack C exchange "
            "API; onepass needs torch 2.10 or later on GPUs"
        )
    return _from_torch_memory(op, name, torch, x, known)


def _from_torch_memory(op: str, name: str, torch: Any, x: Any, dtype: str) -> Input:
    # torch before 2.10 has no C exchange API; NumPy's view of the same memory serves.
    if dtype == "bfloat16":
        import ml_dtypes

        bits = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        is_bfloat16(bits.dtype)
        return _describe(op, name, bits, x, lambda y: torch.from_numpy(y.view(np.int16)).view(torch.bfloat16))
    return _describe(op, name, x.numpy(), x, torch.from_numpy)


# ---- every other producer ----


def _from_dlpack(op: str, name: str, x: Any) -> Input:
    device = tuple(map(int, x.__dlpack_device__()))
    if device[0] in _DLPACK_CUDA:
        from . import gpu_arrays

        gpu_arrays.recognise(op, name, x)
        return _describe(op, name, x, x, _identity)
    if device[0] != 1:  # kDLCPU
        raise ValueError(
            f"{op}: {name} of type {type(x).__name__} is on DLPack device {device}; "
            "onepass runs on CPUs and NVIDIA GPUs"
        )
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as error:
        array = np.asarray(x)  # bfloat16, which NumPy does not take through DLPack
        if array.dtype == object:
            raise TypeError(
                f"{op}: {name} of type {type(x).__name__} cannot be read: NumPy does not take it through DLPack "
                f"({error}), and it is no array otherwise"
            ) from error

    if array.dtype.kind in "biu" and op in REDUCTIONS:
        raise TypeError(
            f"{op}: {name} of type {type(x).__name__}, shape {array.shape} has dtype {array.dtype}; expected "
            f"{SUPPORTED}: convert it, or pass numpy.asarray({name}): integers are NumPy's to reduce"
        )

    def wrap(y: Any) -> Any:
        namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
        if namespace is None:
            return y
        try:
            return namespace.from_dlpack(y)
        except (BufferError, RuntimeError, TypeError):
            return namespace.asarray(y)

    return _from_numpy(op, name, array, x, wrap)


# ---- dtype= and out= ----


def resolve_dtype(op: str, dtype: Any) -> str | None:
    """The name of a result dtype given as a NumPy or torch dtype, a scalar type or a string."""
    if dtype is None:
        return None
    torch = _torch()
    if torch is not None and isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
    else:
        try:
            name = "bfloat16" if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype).name
        except (TypeError, ValueError, SyntaxError):
            name = repr(dtype)
    if name not in DTYPES:
        raise TypeError(f"{op}: dtype {dtype!r} is not a dtype of a result; expected {SUPPORTED}")
    if name == "bfloat16":
        import ml_dtypes

        is_bfloat16(np.dtype(ml_dtypes.bfloat16))
    # Types and torch dtypes live as long as the process: the engine may know them by address.
    if id(dtype) not in _known_dtype_objects and (isinstance(dtype, type) or type(dtype).__module__ == "torch"):
        _known_dtype_objects.add(id(dtype))
        _engine.register_dtype(dtype, DTYPES.index(name))
    return name


def unrecorded(out: Any) -> Any:
    """`out` as it is written: of a tensor that requires grad, while nothing is recorded, the tensor that does not."""
    if not is_tensor(out) or not getattr(out, "requires_grad", False) or _watched_torch.is_grad_enabled():
        return out
    return out.detach()


def check_out(
    op: str, out: Any, source: Input, shape: tuple[int, ...], dtype: str, others: Sequence[Input] = ()
) -> tuple[int, ...]:
    """Strides of `out` once it is known to take this result; an error, with nothing written, otherwise.

    `source` is the input that the result is like, `others` are read beside it.
    """
    torch = _torch()
    if torch is not None and isinstance(source.array, torch.Tensor) and type(out) in (torch.Tensor, torch.nn.Parameter):
        if out.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{op}: out requires grad, and out= has no gradient; call it under torch.no_grad()")
        _engine.register_exchange_type(type(out))
    elif isinstance(out, np.ndarray) and isinstance(source.array, np.ndarray):
        is_bfloat16(out.dtype)
    elif source.device is None or type(out) is not type(source.array):
        kind = type(source.array) if torch is None or not isinstance(source.array, torch.Tensor) else torch.Tensor
        like = f" like {source.name}" if source.same_object else ""
        raise TypeError(
            f"{op}: out must be a {kind.__module__}.{kind.__name__}{like}, "
            f"got {type(out).__module__}.{type(out).__name__}"
        )
    _check_shape(op, out, shape)
    name = str(out.dtype).removeprefix("torch.")
    if name != dtype:
        takes_dtype = op in ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
        remedy = f"dtype={name!r} or another out" if takes_dtype and name in DTYPES else "another out"
        raise TypeError(f"{op}: out has dtype {name}, the result has dtype {dtype}; pass {remedy}")
    described = _engine.describe(out)
    if described is None:
        raise ValueError(
            f"{op}: out of shape {shape}, dtype {name} cannot be written in place: "
            "expected memory on a CPU or an NVIDIA GPU, aligned, native-endian, not lazily negated and of no subclass "
            "(pass numpy.asarray(out))"
        )
    _, _, strides, _, writable, _, device = described
    if device != source.device:
        raise ValueError(
            f"{op}: out is on {_place(device)}, {source.name} on {_place(source.device)}; they must be on one device"
        )
    _check_elements(op, shape, name, strides, writable)
    for x in (source, *others):
        if _engine.overlap(x.array, out) == "some" and _share_memory(x, out):
            raise ValueError(
                f"{op}: out of shape {shape} overlaps {x.name} without being exactly {x.name}; "
                f"pass {x.name} itself, or memory apart from it"
            )
    return tuple(strides)


def check_plain_out(op: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """An error if NumPy would not write this result to `out`, or would write something else."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"{op}: out must be a numpy.ndarray, got {type(out).__module__}.{type(out).__name__}")
    _check_shape(op, out, shape)
    if out.dtype != dtype:
        raise TypeError(f"{op}: out has dtype {out.dtype}, the result has dtype {dtype}; pass another out")
    strides = tuple(stride // out.itemsize for stride in out.strides)
    _check_elements(op, shape, dtype.name, strides, out.flags.writeable)


def _check_shape(op: str, out: Any, shape: tuple[int, ...]) -> None:
    if tuple(out.shape) != shape:
        raise ValueError(f"{op}: out has shape {tuple(out.shape)}, the result has shape {shape}")


def _check_elements(op: str, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...], writable: bool) -> None:
    if not writable:
        raise ValueError(f"{op}: out of shape {shape}, dtype {dtype} is read-only")
    if _aliases_itself(shape, strides):
        raise ValueError(f"{op}: elements of out share memory (shape {shape}, strides {strides}); pass another")


def _place(device: int | None) -> str:
    return "the CPU" if device is None else f"cuda:{device}"


def _aliases_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two indices may name one element: a stride shorter than what faster axes span."""
    if 0 in shape:  # no element, and strides that NumPy sets to 0
        return False
    span = 0
    for stride, size in sorted((abs(st), sz) for st, sz in zip(strides, shape, strict=True) if sz > 1):
        if stride <= span:
            return True
        span += stride * (size - 1)
    return False


def _share_memory(source: Input, out: Any) -> bool:
    """An exact answer where the spans of two arrays overlap; interleaved ones may still be apart."""
    try:
        return np.shares_memory(_bytes_of(source.array), _bytes_of(out), max_work=_MOST_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def _bytes_of(array: Any) -> Any:
    """A NumPy view of the same elements, whatever the array's kind and dtype."""
    described = _engine.describe(array)
    assert described is not None  # both have been described before
    dtype, shape, element_strides, address, *_ = described
    itemsize = ITEMSIZE[DTYPES[dtype]]
    strides = [stride * itemsize for stride in element_strides]

    class Holder:
        __array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "strides": tuple(strides),
            "typestr": f"|V{itemsize}",
            "version": 3,
        }

    return np.asarray(Holder())
