#!/usr/bin/env python3
"""onepass against torch on views that programs make: random tensors transposed, sliced, stepped, broadcast, converted.

    tools/audit_views.py --views 600 --seed 14
    tools/audit_views.py --device cuda --kind permuted --json found.json

Each result is checked against torch's in float64 before both are timed, in turn: onepass into `out=`, torch as it is
called, and a copy of the view. Of a gradient, what was saved is contiguous, and dy is the view. Needs torch.
"""

from __future__ import annotations

import importlib
import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import onepass
from onepass.problem import ITEMSIZE, Operand, Problem, make_problem

OPS = ("softmax", "log_softmax", "logsumexp", "sum", "amax", "softmax_backward", "log_softmax_backward")
ELEMENTWISE = ("softmax", "log_softmax")
DTYPES = ("float32", "bfloat16", "float16")
KINDS = ("permuted", "sliced", "stepped", "broadcast", "converted", "sliced and permuted")
ROUNDS = 7


@dataclass(frozen=True)
class View:
    """What is taken of a contiguous tensor, and what is done with it."""

    op: str
    dtype: str
    kind: str
    shape: tuple[int, ...]  # in memory
    dim: int
    order: tuple[int, ...]  # of the dims
    pieces: tuple[tuple[int, int, int], ...]  # start, stop and step along each, in that order
    broadcast: int | None = None  # the dim that has one element in memory
    to: str | None = None

    def __str__(self) -> str:
        taken = ", ".join(f"{a}:{b}:{c}" for a, b, c in self.pieces)
        beside = f" to {self.to}" if self.to else "" if self.broadcast is None else f", dim {self.broadcast} broadcast"
        memory = "x".join(map(str, self.shape))
        return f"{self.op} {memory} {self.dtype}{beside}, {self.kind} {self.order} [{taken}], dim {self.dim}"

    def taken_of(self, memory: Any) -> Any:
        """The view of such a tensor."""
        if self.broadcast is not None:
            memory = memory.narrow(self.broadcast, 0, 1).expand(self.shape)
        return memory.permute(self.order)[tuple(slice(*piece) for piece in self.pieces)]


def at_random(source: random.Random, kinds: tuple[str, ...], elements: range) -> View:
    """A view of a tensor of so many elements, all orders of magnitude of its sizes as likely as each other."""
    while True:
        kind, op, dtype = source.choice(kinds), source.choice(OPS), source.choice(DTYPES)
        dims = source.choice((2, 3, 3, 4, 4))
        most = math.log(4096 if dims == 2 else 1024)
        shape = tuple(round(math.exp(source.uniform(math.log(2), most))) for _ in range(dims))
        if source.random() < 0.5:
            shape = tuple(1 << round(math.log2(n)) for n in shape)
        if math.prod(shape) not in elements or (kind == "converted" and op not in ELEMENTWISE):
            continue
        order = tuple(range(dims))
        while "permuted" in kind and order == tuple(range(dims)):
            order = tuple(source.sample(range(dims), dims))
        pieces = [(0, shape[axis], 1) for axis in order]
        cut = source.randrange(dims)
        size = pieces[cut][1]
        if "sliced" in kind:
            pieces[cut] = source.choice(((0, size - 1, 1), (1, size, 1), (size // 4, size, 1)))
        if kind == "stepped":
            pieces[cut] = (0, size, source.choice((2, 3)))
        others = [name for name in DTYPES if name != dtype]
        return View(
            op,
            dtype,
            kind,
            shape,
            source.randrange(dims),
            order,
            tuple(pieces),
            broadcast=cut if kind == "broadcast" else None,
            to=source.choice(others) if kind == "converted" else None,
        )


def compile_kernels(views: list[View], device: str) -> None:
    """All at once, which one by one takes most of the time on a GPU."""
    from onepass.bench.run import gpu_ordinal
    from onepass.cuda.compile_all import compile_all
    from onepass.cuda.launch import read_device
    from onepass.cuda.plan import make_cuda_plan

    described = read_device(gpu_ordinal(device))
    plans = [make_cuda_plan(problem_of(view), described, addresses=addresses_of(view)) for view in views]
    compile_all(plans, described.architecture)


def problem_of(view: View) -> Problem:
    torch = importlib.import_module("torch")
    x = view.taken_of(torch.empty(view.shape, device="meta"))
    shape, given = tuple(x.shape), tuple(x.stride())
    if not view.op.endswith("_backward"):
        return make_problem(view.op, view.dtype, shape, (view.dim,), strides=given, result_dtype=view.to)
    return make_problem(view.op, view.dtype, shape, (view.dim,), second=Operand(view.dtype, given))


def addresses_of(view: View) -> tuple[int, ...]:
    """Of what a gradient saved, or of the view; of the result; of a gradient's dy. Memory begins on a boundary."""
    torch = importlib.import_module("torch")
    into = view.taken_of(torch.empty(view.shape, device="meta")).storage_offset() * ITEMSIZE[view.dtype]
    return (0, 0, into, 0) if view.op.endswith("_backward") else (into, 0, 0, 0)


def calls_of(view: View, device: str, seed: int) -> tuple[dict[str, partial[Any]], Any]:
    """Of onepass, of torch and of a copy; and where the first of them writes, full of NaN."""
    torch = importlib.import_module("torch")
    generator = torch.Generator(device=device).manual_seed(seed)

    def memory() -> Any:
        values = torch.randn(view.shape, device=device, generator=generator)
        return values.to(getattr(torch, view.dtype))

    x, op, dim = view.taken_of(memory()), view.op, view.dim
    kept = torch.empty(x.shape, dtype=x.dtype, device=device)
    result_dtype = getattr(torch, view.to or view.dtype)
    whole = op in ELEMENTWISE or op.endswith("_backward")
    shape = x.shape if whole else [n for axis, n in enumerate(x.shape) if axis != dim]
    out = torch.full(shape, math.nan, dtype=result_dtype, device=device)
    if op.endswith("_backward"):
        saved = getattr(torch, op.removesuffix("_backward"))(view.taken_of(memory()).contiguous(), dim)
        ours = partial(getattr(onepass, op), x, saved, dim, out=out)
        theirs = partial(getattr(torch, f"_{op}_data"), x, saved, dim, x.dtype)
    else:
        options = {"dtype": result_dtype} if op in ELEMENTWISE else {}
        ours = partial(getattr(onepass, op), x, dim, **options, out=out)
        theirs = partial(getattr(torch, op), x, dim, **options)
    return {"onepass": ours, "torch": theirs, "copy": partial(kept.copy_, x)}, out


def check(view: View, calls: Mapping[str, partial[Any]], out: Any) -> None:
    """Raises RuntimeError where onepass is farther from torch's result in float64 than twice what torch itself is, and
    a unit in the last place of the largest element."""
    torch = importlib.import_module("torch")
    calls["onepass"]()
    expected = in_float64(calls["torch"])
    error, of_torch = ((result.double() - expected).abs().max().item() for result in (out, calls["torch"]()))
    if not error <= 2 * of_torch + torch.finfo(out.dtype).eps * max(1.0, expected.abs().max().item()):
        raise RuntimeError(f"{view}: {error} from the exact result, torch {of_torch}")


def in_float64(call: partial[Any]) -> Any:
    torch = importlib.import_module("torch")

    def widened(argument: Any) -> Any:
        if isinstance(argument, torch.dtype):
            return torch.float64
        return argument.double() if torch.is_tensor(argument) else argument

    return call.func(*map(widened, call.args), **{name: widened(value) for name, value in call.keywords.items()})


def timed(calls: Mapping[str, partial[Any]], device: str, seed: int) -> dict[str, float]:
    """Median seconds."""
    if device != "cpu":
        gpu_timing = importlib.import_module("onepass.bench.gpu_timing")
        effort = gpu_timing.GpuEffort(rounds=5, most_rounds=9, seconds=0.02)
        flush = gpu_timing.Flush(device, 64 << 20)
        return {name: timing.median for name, timing in gpu_timing.interleave(calls, effort, flush, seed).items()}
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def audit(views: list[View], device: str, console: Console) -> Iterator[tuple[View, dict[str, float]]]:
    for number, view in enumerate(views):
        try:
            calls, out = calls_of(view, device, number)
            check(view, calls, out)
            yield view, timed(calls, device, number)
        except RuntimeError as error:
            console.print(f"  {error}", style="red", soft_wrap=True)


def show(found: list[tuple[View, dict[str, float]]], console: Console) -> None:
    """Those on which torch was faster, the farthest first; then what all of them took of torch's time and a copy's."""

    def mean(times: list[dict[str, float]], peer: str) -> float:
        return math.exp(statistics.fmean(math.log(one[peer] / one["onepass"]) for one in times))

    for view, took in sorted(found, key=lambda one: one[1]["torch"] / one[1]["onepass"]):
        if took["torch"] >= took["onepass"]:
            break
        times = " ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in took.items())
        console.print(f"{took['torch'] / took['onepass']:.2f}x {view}: us {times}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("views", "", "of torch", "of a copy", "behind torch"):
        table.add_column(heading, justify="right" if heading else "left")
    groups = {op: [one for one in found if one[0].op == op] for op in OPS}
    groups |= {kind: [one for one in found if one[0].kind == kind] for kind in KINDS}
    for name, group in (*groups.items(), ("all", found)):
        times = [took for _, took in group]
        if times:
            behind = sum(one["torch"] < one["onepass"] for one in times)
            means = (f"{mean(times, peer):.2f}x" for peer in ("torch", "copy"))
            table.add_row(str(len(times)), name, *means, str(behind))
    console.print(table)


def main(
    views: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    kind: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(KINDS)}; all, if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of the views.")] = 0,
    elements: Annotated[str, typer.Option(help="Of a tensor, the least and the most.")] = "262144:8388608",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every time there, a line for each view.")
    ] = None,
) -> None:
    """Time onepass and torch on views at random."""
    console = Console(highlight=False)
    try:
        least, _, most = elements.partition(":")
        sizes, kinds = range(int(least), int(most or 0) + 1), tuple(kind or KINDS)
        if not sizes or sizes.stop > 1 << 28 or sizes.stop < 1 << 10:
            raise ValueError(f"--elements {elements}: expected the least and the most, 262144:8388608, up to 2^28")
        if unknown := set(kinds) - set(KINDS):
            raise ValueError(f"--kind {unknown.pop()}: expected one of {', '.join(KINDS)}")
        importlib.import_module("torch")
    except (ValueError, ImportError) as error:
        typer.echo(f"audit_views: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None
    source = random.Random(seed)
    drawn = [at_random(source, kinds, sizes) for _ in range(views)]
    if device != "cpu":
        compile_kernels(drawn, device)
    found = list(audit(drawn, device, console))
    if json_file is not None:
        lines = (json.dumps({**asdict(view), "seconds": took}) + "\n" for view, took in found)
        json_file.write_text("".join(lines))
    if found:
        show(found, console)
    if len(found) < views:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
