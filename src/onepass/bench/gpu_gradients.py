"""The gradients in the benchmark: their inputs, and who computes them how."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from onepass import _engine, gradients
from onepass.bench.gpu_cells import GpuCell, Variant
from onepass.bench.gpu_contenders import GpuContender, GpuData, contender

_QUACK_LENGTH = 1 << 18  # that its kernels reach


def inputs(cell: GpuCell, normal: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
    """What the operation saved of x, and dy, the view; of logsumexp x, dy and the result. `normal`: random values
    of a shape, as a view has them."""
    torch = importlib.import_module("torch")
    x = normal(cell.shape)
    if cell.op == "logsumexp_backward":
        lse = torch.logsumexp(x, cell.dim)
        return x, (normal(tuple(lse.shape)), lse)
    forward = torch.softmax if cell.op == "softmax_backward" else torch.log_softmax
    return forward(x, cell.dim), (normal(cell.shape, cell.view),)


def run_onepass(data: GpuData, out: Any = None) -> Any:
    dy, *lse = data.beside
    options: dict[str, Any] = {} if out is None else {"out": out}
    return getattr(gradients, data.cell.op)(dy, data.x, *lse, dim=data.cell.dim, **options)


def _arguments(data: GpuData) -> str:
    return "dy, x, lse" if len(data.beside) > 1 else "dy, y"


def of_onepass(data: GpuData) -> list[GpuContender]:
    cell, out = data.cell, data.out
    call = f"onepass.{cell.op}({_arguments(data)}, dim={cell.dim}"
    found = [
        contender("onepass", "fresh", data, f"{call})", lambda: run_onepass(data)),
        contender("onepass", "out", data, f"{call}, out=out)", lambda: run_onepass(data, out)),
    ]
    for variant in cell.variants:
        statement = f"{call}, out=out), algorithm={variant.algorithm!r}, tuning={variant.tuning}"
        found.append(contender(variant.name, "out", data, statement, _held(data, variant)))
    return [replace(one, ours=True) for one in found]


def _held(data: GpuData, variant: Variant) -> Callable[[], Any]:
    """A call held to a variant; the first one compiles and binds it, as gpu_peers has it."""
    from onepass.call_gradients import checked
    from onepass.cuda import launch

    cell, out = data.cell, data.out

    @cache
    def bound() -> Any:
        arrays, problem = checked(cell.op, (data.x, *data.beside), cell.dim, False, None, out)
        plan = launch.plan(problem, arrays[0], out, variant.algorithm, beside=arrays[1:], tuning=variant.tuning)
        return launch.bind(problem, arrays[0], out, plan)

    return lambda: _engine.run(bound(), data.x, out, *data.beside)


def _torch_function(data: GpuData) -> tuple[str, Callable[..., Any]]:
    """What torch's autograd runs: one operator, or for logsumexp the expression of its formula."""
    torch = importlib.import_module("torch")
    cell = data.cell
    if cell.op == "logsumexp_backward":

        def by_formula(dy: Any, x: Any, lse: Any) -> Any:
            return dy.unsqueeze(cell.dim) * (x - lse.unsqueeze(cell.dim)).exp()

        return "dy.unsqueeze(dim) * (x - lse.unsqueeze(dim)).exp()", by_formula
    name = f"_{cell.op}_data"
    operator = getattr(torch, name)
    return f"torch.{name}(dy, y, {cell.dim}, y.dtype)", lambda dy, y: operator(dy, y, cell.dim, y.dtype)


def of_torch(data: GpuData) -> list[GpuContender]:
    statement, function = _torch_function(data)
    dy, *lse = data.beside
    return [contender("torch", "fresh", data, statement, lambda: function(dy, data.x, *lse))]


def of_torch_compile(data: GpuData) -> list[GpuContender]:
    torch = importlib.import_module("torch")
    torch.compiler.reset()
    statement, function = _torch_function(data)
    compiled = torch.compile(function, dynamic=False)
    dy, *lse = data.beside
    return [
        contender("torch.compile", "fresh", data, f"torch.compile: {statement}", lambda: compiled(dy, data.x, *lse))
    ]


def _rows_of_softmax(data: GpuData) -> bool:
    return data.cell.op == "softmax_backward" and data.cell.dim == -1


def of_liger(data: GpuData) -> list[GpuContender]:
    """Its backward alone: the forward is run once, on logits whose softmax is y."""
    if not _rows_of_softmax(data):
        return []
    torch = importlib.import_module("torch")
    ops = importlib.import_module("liger_kernel.ops.softmax")
    with torch.enable_grad():
        x = data.x.log().requires_grad_()
        y = ops.LigerSoftmaxFunction.apply(x)
    (dy,) = data.beside
    statement = "torch.autograd.grad(LigerSoftmaxFunction.apply(x), x, dy)"
    return [contender("liger", "fresh", data, statement, lambda: torch.autograd.grad(y, x, dy, retain_graph=True)[0])]


def of_quack(data: GpuData) -> list[GpuContender]:
    if not _rows_of_softmax(data) or data.cell.length > _QUACK_LENGTH:
        return []
    quack = importlib.import_module("quack.softmax")
    y, dy = (t.reshape(-1, data.cell.length) for t in (data.x, *data.beside))
    call = quack.softmax_bwd
    return [contender("quack", "fresh", data, "softmax_bwd(dy, y)", lambda: call(dy, y).reshape(data.x.shape))]
