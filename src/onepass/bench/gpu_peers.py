"""Who is measured on a GPU: onepass, the copy and the empty kernel that bound it, and the libraries people use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import onepass
from onepass import _engine
from onepass.bench import gpu_gradients
from onepass.bench.cells import REDUCTIONS
from onepass.bench.gpu_cells import GpuCell, Variant
from onepass.bench.gpu_contenders import GpuContender, GpuData, contender
from onepass.bench.peers import Peer
from onepass.bench.views import CONTIGUOUS, View
from onepass.problem import GRADIENTS

_EMPTY_KERNEL = "__global__ void empty(const __grid_constant__ onepass::cuda::Layout<1>) {}"
RELAUNCHES = 100


def make_data(cell: GpuCell, device: str, seed: int = 0) -> GpuData:
    """Standard normal values and an output filled with NaN, in torch's memory."""
    torch = importlib.import_module("torch")
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, cell.dtype)
    out = torch.full(cell.result_shape, float("nan"), dtype=dtype, device=device)

    def normal(shape: tuple[int, ...], view: View = CONTIGUOUS) -> Any:
        memory = torch.empty(view.memory_shape(shape), dtype=dtype, device=device)
        return view.of(memory.normal_(generator=generator), shape)

    if cell.op in GRADIENTS:
        return GpuData(cell, *gpu_gradients.inputs(cell, normal), out)
    return GpuData(cell, normal(cell.shape, cell.view), (), out)


def _onepass(data: GpuData) -> list[GpuContender]:
    cell, x, out = data.cell, data.x, data.out
    op = getattr(onepass, cell.op)
    call = f"onepass.{cell.op}(x, dim={cell.dim}"
    found = [
        contender("onepass", "fresh", data, f"{call})", lambda: op(x, dim=cell.dim)),
        contender("onepass", "out", data, f"{call}, out=out)", lambda: op(x, dim=cell.dim, out=out)),
    ]
    for variant in cell.variants:
        options = f"algorithm={variant.algorithm!r}, tuning={variant.tuning}"
        statement = f"prepare({cell.op!r}, x, {cell.dim}, out=out, {options})(x, out)"
        found.append(contender(variant.name, "out", data, statement, _held(data, variant)))
    return [replace(one, ours=True) for one in found]


def _held(data: GpuData, variant: Variant) -> Callable[[], Any]:
    """A call held to a variant. The first one compiles and binds it: a variant that fails does so alone."""
    from onepass.cuda import prepare

    cell, x, out = data.cell, data.x, data.out

    @cache
    def prepared() -> Any:
        return prepare(cell.op, x, cell.dim, out=out, algorithm=variant.algorithm, tuning=variant.tuning)

    return lambda: prepared()(x, out)


def _torch(data: GpuData) -> list[GpuContender]:
    torch = importlib.import_module("torch")
    cell, x, out = data.cell, data.x, data.out
    op = getattr(torch, cell.op)
    call = f"torch.{cell.op}(x, dim={cell.dim}"
    found = [contender("torch", "fresh", data, f"{call})", lambda: op(x, dim=cell.dim))]
    if cell.op != "log_softmax":  # torch.log_softmax takes no out=
        found.append(contender("torch", "out", data, f"{call}, out=out)", lambda: op(x, dim=cell.dim, out=out)))
    return found


def _torch_compile(data: GpuData) -> list[GpuContender]:
    torch = importlib.import_module("torch")
    cell, x = data.cell, data.x
    torch.compiler.reset()
    op = getattr(torch, cell.op)
    compiled = torch.compile(lambda t: op(t, dim=cell.dim), dynamic=False)
    statement = f"torch.compile(torch.{cell.op})(x, dim={cell.dim})"
    return [contender("torch.compile", "fresh", data, statement, lambda: compiled(x))]


def _liger(data: GpuData) -> list[GpuContender]:
    cell, x = data.cell, data.x
    if cell.op != "softmax" or cell.dim != -1 or cell.length > 65536:
        return []
    ops = importlib.import_module("liger_kernel.ops.softmax")
    return [
        contender("liger", "fresh", data, "LigerSoftmaxFunction.apply(x)", lambda: ops.LigerSoftmaxFunction.apply(x))
    ]


def _quack(data: GpuData) -> list[GpuContender]:
    cell = data.cell
    if cell.op != "softmax" or cell.dim != -1 or cell.length > 1 << 18:
        return []
    quack = importlib.import_module("quack.softmax")
    rows = data.x.reshape(-1, cell.length)
    return [
        contender("quack", "fresh", data, "softmax_fwd(x)", lambda: quack.softmax_fwd(rows).reshape(data.x.shape)),
    ]


def _cupy(data: GpuData) -> list[GpuContender]:
    cell = data.cell
    if cell.dtype == "bfloat16" or cell.op not in ("softmax", "log_softmax", "logsumexp"):
        return []
    cupy = importlib.import_module("cupy")
    op = getattr(importlib.import_module("cupyx.scipy.special"), cell.op)
    torch = importlib.import_module("torch")
    x = cupy.from_dlpack(data.x)
    statement = f"cupyx.scipy.special.{cell.op}(x, axis={cell.dim})"
    return [contender("cupy", "fresh", data, statement, lambda: torch.from_dlpack(op(x, axis=cell.dim)))]


_Prepare = Callable[[GpuData], list[GpuContender]]


def _either(forward: _Prepare, gradient: _Prepare) -> _Prepare:
    return lambda data: (gradient if data.cell.op in GRADIENTS else forward)(data)


def _jax(data: GpuData) -> list[GpuContender]:
    cell = data.cell
    if cell.op not in ("softmax", "log_softmax", "logsumexp"):
        return []
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes most of the memory, and keeps it
    jax = importlib.import_module("jax")
    torch = importlib.import_module("torch")
    jax.devices()  # starts JAX, which leaves the last of several GPUs current
    torch.cuda.set_device(data.x.device)
    compiled = jax.jit(partial(getattr(jax.nn, cell.op), axis=cell.dim))
    # JAX has a stream of its own: the hand-over both ways makes it wait for torch's, and torch's for it.
    return [
        contender(
            "jax",
            "fresh",
            data,
            f"jax.jit(jax.nn.{cell.op})(x, axis={cell.dim})",
            lambda: torch.from_dlpack(compiled(jax.dlpack.from_dlpack(data.x))),
        )
    ]


GPU_PEERS = {
    peer.name: peer
    for peer in (
        Peer("onepass", ("onepass",), ("any",), _either(_onepass, gpu_gradients.of_onepass)),
        Peer("torch", ("torch",), ("any",), _either(_torch, gpu_gradients.of_torch)),
        Peer("torch.compile", ("torch", "triton"), ("any",), _either(_torch_compile, gpu_gradients.of_torch_compile)),
        Peer("quack", ("quack",), ("any",), _either(_quack, gpu_gradients.of_quack), views=False),
        Peer("liger", ("liger_kernel",), ("any",), _either(_liger, gpu_gradients.of_liger), views=False),
        Peer("cupy", ("cupy", "cupyx"), ("any",), _either(_cupy, lambda _: []), views=False),
        Peer("jax", ("jax",), ("any",), _either(_jax, lambda _: []), views=False),
    )
}


def bounds(data: GpuData) -> list[GpuContender]:
    """What no contender can beat: a copy of as many bytes by torch, which follow each other, and a kernel that does
    nothing."""
    torch = importlib.import_module("torch")
    cell = data.cell
    x = data.x if data.x.is_contiguous() else torch.empty(cell.shape, dtype=data.x.dtype, device=data.x.device)
    _engine.register_exchange_type(type(x))
    target = data.out if cell.op not in REDUCTIONS else torch.empty_like(x)
    found = [GpuContender("copy", "copy", "out.copy_(x)", lambda: target.copy_(x), 2 * x.nbytes)]
    empty = bound_empty_kernel(x.device.index)
    if cell.group != "calls":
        found.append(
            GpuContender("empty kernel", "bound", "an empty kernel", lambda: _engine.run(empty, x, data.out), 0)
        )
        return found
    found.append(GpuContender("empty_like", "bound", "torch.empty_like(x)", lambda: torch.empty_like(x), 0))

    def relaunch() -> None:
        _engine.relaunch(empty, x, data.out, RELAUNCHES)

    found.append(GpuContender("driver launch", "bound", "cuLaunchKernel(an empty kernel)", relaunch, 0, RELAUNCHES))
    return found


def bound_empty_kernel(ordinal: int) -> _engine.Bound:
    """A kernel of one block that returns at once, as a plan is bound."""
    from onepass.cuda.compile import compile_kernel
    from onepass.cuda.launch import read_device

    source = f'#include "onepass/cuda/job.h"\n{_EMPTY_KERNEL}'
    cubin = compile_kernel("onepass/cuda/job.h", "empty", read_device(ordinal).architecture, source=source)
    return _engine.bind_gpu(
        kernel=_engine.load_kernel(ordinal, cubin.code, cubin.symbol),
        algorithm="empty",
        threads=32,
        cluster=1,
        cooperative=False,
        shared_bytes=0,
        units=1,
        units_per_block=1,
        waves=0,
        arrays=2,
        words=(0,) * 5,
        result_dtype=0,
        shape=(),
        make=None,
        positional=(),
        keyword_names=None,
        keyword_values=(),
        finish=None,
    )
