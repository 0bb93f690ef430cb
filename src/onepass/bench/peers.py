"""Who is measured: onepass, the copy that bounds it, and the libraries people use today. One registry.

A contender is a statement as a user would write it, with the names it uses. Its mode says where the result goes:
"fresh" (memory made by the call) or "out" (memory given to the call). All contenders of a cell share one input, and
all of mode "out" share one output, so nobody is luckier with pages or alignment than another.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import onepass
from onepass import _engine
from onepass.bench.cells import GRADIENTS, REDUCTIONS, Cell
from onepass.bench.views import CONTIGUOUS, View

Array = NDArray[Any]


@dataclass(frozen=True)
class Contender:
    """One way to compute a cell: `statement` is what is timed, as timeit runs it."""

    peer: str
    mode: str  # "fresh", "out", or "copy": the limit
    statement: str
    names: dict[str, Any]
    moved_bytes: int

    @property
    def label(self) -> str:
        return f"{self.peer} out=" if self.mode == "out" else self.peer

    def result(self, out: Array) -> Array:
        """Run once and return the result as a NumPy array; `out` is filled with NaN first, where it is the result."""
        if self.mode == "out":
            out.fill(np.nan)
        value = eval(self.statement, dict(self.names))
        return out if self.mode == "out" else as_numpy(value)


@dataclass(frozen=True)
class Data:
    """The arrays of one cell, each also as a NumPy view of the same memory. Of a gradient, x is y."""

    cell: Cell
    framework: str
    x: Any
    out: Any
    x_numpy: Array
    out_numpy: Array
    dy: Any = None
    dy_numpy: Array | None = None


@dataclass(frozen=True)
class Peer:
    """A library: `prepare` returns its contenders for a cell, an empty list where it cannot do the work."""

    name: str
    packages: tuple[str, ...]  # to be installed
    inputs: tuple[str, ...]  # the cells it takes part in, by their framework
    prepare: Callable[[Any], list[Any]]  # of Data, Contenders; on a GPU of GpuData, GpuContenders
    views: bool = True  # takes arrays whose elements do not follow each other

    def takes(self, cell: Cell) -> bool:
        return cell.framework in self.inputs and (self.views or cell.view == CONTIGUOUS)

    @property
    def missing(self) -> list[str]:
        return [package for package in self.packages if importlib.util.find_spec(package) is None]

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.packages[0])
        except importlib.metadata.PackageNotFoundError:
            return "unknown"


def as_numpy(array: Any) -> Array:
    """A NumPy view of a result of any contender."""
    if type(array).__module__.startswith("torch"):
        torch = importlib.import_module("torch")
        if array.dtype == torch.bfloat16:
            return np.asarray(array.view(torch.int16)).view(ml_dtypes.bfloat16)
    return np.asarray(array)


def make_data(cell: Cell, framework: str, seed: int = 0) -> Data:
    """Standard normal values and an output filled with NaN, in memory of the framework's own allocator."""
    random = np.random.default_rng(seed)
    out = _filled(cell, framework)
    x = _normal(cell, framework, random, CONTIGUOUS if cell.op in GRADIENTS else cell.view)
    if cell.op not in GRADIENTS:
        return Data(cell, framework, x, out, as_numpy(x), as_numpy(out))
    y = getattr(onepass, cell.op.removesuffix("_backward"))(x, dim=cell.dim, out=x)
    dy = _normal(cell, framework, random, cell.view)
    return Data(cell, framework, y, out, as_numpy(y), as_numpy(out), dy, as_numpy(dy))


def _normal(cell: Cell, framework: str, random: np.random.Generator, view: View) -> Any:
    values = random.standard_normal(view.memory_shape(cell.shape), dtype=np.float32)
    if framework == "torch":
        torch = importlib.import_module("torch")
        memory = torch.empty(values.shape, dtype=getattr(torch, cell.dtype))
        memory.copy_(torch.from_numpy(values))
        return view.of(memory, cell.shape)
    return view.of(values.astype(np.dtype(getattr(ml_dtypes, cell.dtype, cell.dtype)), copy=False), cell.shape)


def _filled(cell: Cell, framework: str) -> Any:
    if framework == "torch":
        torch = importlib.import_module("torch")
        return torch.full(cell.result_shape, float("nan"), dtype=getattr(torch, cell.dtype))
    return np.full(cell.result_shape, np.nan, np.dtype(getattr(ml_dtypes, cell.dtype, cell.dtype)))


def _contender(peer: str, mode: str, data: Data, statement: str, **names: Any) -> Contender:
    return Contender(peer, mode, statement, names, data.cell.moved_bytes)


def _onepass(data: Data) -> list[Contender]:
    names = {"onepass": onepass, "x": data.x}
    given = "x"
    if data.cell.op in GRADIENTS:
        names["dy"], given = data.dy, "dy, x"
    call = f"onepass.{data.cell.op}({given}, dim={data.cell.dim}"
    return [
        _contender("onepass", "fresh", data, f"{call})", **names),
        _contender("onepass", "out", data, f"{call}, out=out)", **names, out=data.out),
    ]


def _torch(data: Data) -> list[Contender]:
    torch = importlib.import_module("torch")
    if data.cell.op in GRADIENTS:
        operator = getattr(torch.ops.aten, f"_{data.cell.op}_data")
        names = {"backward": operator.default, "dy": data.dy, "x": data.x, "dtype": data.x.dtype}
        into = {"backward": operator.out, "out": data.out}
        given, out = f"dy, x, {data.cell.dim}, dtype", "grad_input" if data.cell.op == "softmax_backward" else "out"
        return [
            _contender("torch", "fresh", data, f"backward({given})", **names),
            _contender("torch", "out", data, f"backward({given}, {out}=out)", **{**names, **into}),
        ]
    call = f"torch.{data.cell.op}(x, dim={data.cell.dim}"
    return [
        _contender("torch", "fresh", data, f"{call})", torch=torch, x=data.x),
        _contender("torch", "out", data, f"{call}, out=out)", torch=torch, x=data.x, out=data.out),
    ]


def numpy_softmax(x: Array, axis: int) -> Array:
    """Softmax as NumPy users write it."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)
    return y


def numpy_log_softmax(x: Array, axis: int) -> Array:
    """Log-softmax as NumPy users write it."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y


def numpy_logsumexp(x: Array, axis: int) -> Array:
    """Logsumexp as NumPy users write it."""
    largest = x.max(axis=axis, keepdims=True)
    y: Array = largest + np.log(np.exp(x - largest).sum(axis=axis, keepdims=True))
    return y.squeeze(axis)


_NUMPY = {"softmax": numpy_softmax, "log_softmax": numpy_log_softmax, "logsumexp": numpy_logsumexp}


def _numpy(data: Data) -> list[Contender]:
    cell = data.cell
    if cell.dtype not in ("float32", "float64") or cell.op in GRADIENTS:
        return []
    if cell.op in _NUMPY:
        names = {cell.op: _NUMPY[cell.op], "x": data.x_numpy}
        return [_contender("numpy", "fresh", data, f"{cell.op}(x, axis={cell.dim})", **names)]
    call = f"np.{cell.op}(x, axis={cell.dim}"
    return [
        _contender("numpy", "fresh", data, f"{call})", np=np, x=data.x_numpy),
        _contender("numpy", "out", data, f"{call}, out=out)", np=np, x=data.x_numpy, out=data.out_numpy),
    ]


def _scipy(data: Data) -> list[Contender]:
    cell = data.cell
    special = importlib.import_module("scipy.special")
    if not hasattr(special, cell.op) or cell.dtype not in ("float32", "float64"):
        return []
    return [
        _contender("scipy", "fresh", data, f"special.{cell.op}(x, axis={cell.dim})", special=special, x=data.x_numpy)
    ]


_ONNX = {
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "logsumexp": "ReduceLogSumExp",
    "sum": "ReduceSum",
    "amax": "ReduceMax",
}


def _onnxruntime(data: Data) -> list[Contender]:
    """A model of one node, its input and output bound to our memory: the fastest way to call it."""
    cell = data.cell
    if cell.op not in _ONNX or cell.dtype not in ("float32", "float64"):
        return []
    onnx, ort = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper, element = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(data.x_numpy.dtype)
    if cell.op in REDUCTIONS:
        axes = [helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [cell.dim])]
        node = helper.make_node(_ONNX[cell.op], ["x", "axes"], ["y"], keepdims=0)
    else:
        axes = []
        node = helper.make_node(_ONNX[cell.op], ["x"], ["y"], axis=cell.dim)
    x_info = helper.make_tensor_value_info("x", element, cell.shape)
    y_info = helper.make_tensor_value_info("y", element, cell.result_shape)
    graph = helper.make_graph([node], cell.op, [x_info], [y_info], axes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = onepass.get_num_threads()
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, "x", data.x_numpy), (binding.bind_output, "y", data.out_numpy)):
        bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    statement = "session.run_with_iobinding(binding)"
    return [_contender("onnxruntime", "out", data, statement, session=session, binding=binding)]


def _jax(data: Data) -> list[Contender]:
    os.environ.setdefault("NPROC", str(onepass.get_num_threads()))  # XLA's thread count, read when it first runs
    jax = importlib.import_module("jax")
    cell = data.cell
    if cell.dtype == "float64" or cell.op in GRADIENTS:
        return []
    op = getattr(jax.nn, cell.op, None) or getattr(jax.numpy, cell.op)
    call = jax.jit(lambda x: op(x, axis=cell.dim))
    x = jax.device_put(data.x_numpy, jax.devices("cpu")[0])
    return [_contender("jax", "fresh", data, "call(x).block_until_ready()", call=call, x=x)]


PEERS = {
    peer.name: peer
    for peer in (
        Peer("onepass", ("onepass",), ("any", "numpy", "torch"), _onepass),
        Peer("torch", ("torch",), ("any", "torch"), _torch),
        Peer("numpy", ("numpy",), ("any", "numpy"), _numpy),
        Peer("scipy", ("scipy",), ("any", "numpy"), _scipy),
        Peer("onnxruntime", ("onnxruntime", "onnx"), ("any", "numpy"), _onnxruntime, views=False),
        Peer("jax", ("jax", "jaxlib"), ("any", "numpy"), _jax, views=False),
    )
}


def copies(data: Data) -> list[Contender]:
    """The copy limit: a copy that moves as many bytes as the cell must, with ordinary and with non-temporal stores."""
    nbytes = data.cell.moved_bytes // 8 * 4  # whole float32 elements
    target, source = (
        array if array.nbytes >= nbytes and array.flags.c_contiguous else np.ones(nbytes, np.uint8)
        for array in (data.out_numpy, data.x_numpy)
    )
    names = {
        "copy": _engine.copy,
        "target": target.ctypes.data,
        "source": source.ctypes.data,
        "keep": (target, source),
    }
    return [
        Contender(peer, "copy", f"copy(target, source, {nbytes}, {nontemporal})", names, 2 * nbytes)
        for peer, nontemporal in (("copy", False), ("copy nt", True))
    ]


def check_copy(contender: Contender) -> None:
    """Run a contender of `copies` once; raises RuntimeError unless the bytes arrived."""
    target, source = contender.names["keep"]
    target = target.reshape(-1).view(np.uint8)
    target[:] = 0xA5
    eval(contender.statement, dict(contender.names))
    nbytes = contender.moved_bytes // 2
    if not np.array_equal(target[:nbytes], source.reshape(-1).view(np.uint8)[:nbytes]):
        raise RuntimeError("the copy differs from the source")


@contextmanager
def equal_threads(torch_takes_part: bool) -> Iterator[int]:
    """While it is open, torch uses as many threads as onepass."""
    threads = onepass.get_num_threads()
    if not torch_takes_part:
        yield threads
        return
    torch = importlib.import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)
