#!/usr/bin/env python3
"""Plans against each other on the GPU at hand: is the planner's choice the best, and by how much is it not?

    tools/tune.py 128x262144 32x128256 --dtype bfloat16
    tools/tune.py 4096x50257 --algorithm split --algorithm block_smem
    tools/tune.py 8192x8192 --view order1.0
    tools/tune.py 128x262144 --device h200 --dry-run

Every different plan that the sweep of parameters leads to is checked against the reference and timed as `onepass bench`
does it; the fastest are timed once more, against the planner's choice and with more rounds, so that luck in the first
look is no gain. The last lines are for src/onepass/cuda/*thresholds.py. Needs torch, and what compiles kernels.
"""

from __future__ import annotations

import datetime
import importlib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from onepass.bench.gpu_cells import GpuCell, Variant
from onepass.bench.gpu_timing import GpuEffort
from onepass.bench.views import CONTIGUOUS, SPELLING, View, said, spelled
from onepass.call import operands_like
from onepass.cuda import CompileError, CudaError, Tuning
from onepass.cuda.compile_all import compile_all
from onepass.cuda.device import NAMES, Device, by_name
from onepass.cuda.kernel_plan import CudaPlan
from onepass.cuda.launch import read_device
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import GRADIENTS, REDUCTIONS, Problem, contiguous_strides, make_problem, normalize_dims

Op = Literal[
    "softmax",
    "log_softmax",
    "logsumexp",
    "sum",
    "amax",
    "softmax_backward",
    "log_softmax_backward",
    "logsumexp_backward",
]
DType = Literal["float32", "float64", "float16", "bfloat16"]

THREADS = (64, 128, 256, 512, 1024)
# Values that a thread holds in registers; with more, kernels spill and take seconds to compile.
MOST_HELD = 64


# (algorithm, values of each field of its Tuning), every combination of which is tried.
Sweep = tuple[str, dict[str, tuple[object, ...]]]


def sweeps(device: Device, op: str) -> Iterator[Sweep]:
    """All that a plan can differ in, finely."""
    all_of_them = device.multiprocessors
    shares = {all_of_them // n for n in (1, 2, 3, 4, 6, 8, 12)} | {2 * all_of_them} | {2**n for n in range(7)}
    blocks = tuple(sorted(shares))
    yield "warp", {"lanes": (1, 2, 4, 8, 16, 32), "rows": (1, 2, 4), "threads": (64, 128, 256)}
    yield "warp_smem", {"lanes": (1, 2, 4, 8, 16, 32), "rows": (1, 2, 4, 8), "threads": (64, 128, 256)}
    yield "block", {"threads": THREADS, "resident": (None, 1, 2, 3, 4, 5)}
    yield "block_smem", {"threads": THREADS}
    yield "online", {"threads": THREADS}
    if op in GRADIENTS:  # of other operations this is the kernel with three reads, to compare with
        yield "block_uncached", {"threads": THREADS, "resident": (None, 1, 2, 3), "kept": (None, 0)}
    yield "split", {"staged": (False, True), "threads": THREADS[1:], "blocks": (None, *blocks)}
    yield "split", {"staged": (True,), "threads": THREADS[1:], "resident": (1, 2, 3, 4)}
    if op not in GRADIENTS:
        claimed = {"handed": (True,), "spread": (1, 8)}
        yield "split", {"held": (4, 8, 10), "kept": (0, 8, 12, 16), "threads": THREADS[1:4], **claimed}
    clusters = {"threads": THREADS, "blocks": (2, 4, 8, 16), "handed": (False, True)}
    yield "cluster", {"staged": (False, True), **clusters}
    if op not in GRADIENTS:
        yield "cluster", {"staged": (True,), "parts": (1, 2), **clusters}
    yield "stream", {"threads": THREADS[2:], "blocks": (None, *blocks)}
    yield "strided", {"threads": THREADS, "across": (None, 2, 4, 8, 16, 32), "staged": (None, False, True)}
    tiles = {"across": (None, 4, 8, 16, 32), "pack": (None, 1, 2, 4), "threads": THREADS[1:4]}
    if op in GRADIENTS:
        yield "strided", {"clustered": (True,), "blocks": (1,), **tiles}
    yield "strided_split", {"clustered": (True,), "blocks": (2, 4, 8, 16), **tiles}
    yield "strided_split", {"clustered": (False,), **tiles}
    if op not in REDUCTIONS:
        squares = {"turned": (True,), "across": (2, 4, 8, 16), "pack": (2, 4, 8), "threads": THREADS[:4]}
        yield "strided", {"blocks": (1,), **squares}
        yield "strided_split", {"blocks": (2, 4, 8, 16), **squares}
        by_rows = {"by_rows": (True,), "across": (8, 16, 32, 64), "pack": (1, 2, 4), "threads": THREADS[:4]}
        yield "strided", {"rows": (1, 2, 4) if op not in GRADIENTS else (1,), **by_rows}
    if op in REDUCTIONS:
        yield "strided", {"threads": THREADS, "across": (1, 2, 4, 8, 16, 32), "pack": (None, 1, 2, 4)}
        yield "strided_split", {"threads": THREADS[1:4], "across": (2, 4, 8, 16), "pack": (None, 2, 4)}
    yield "strided_split", {"interleaved": (True,), "threads": (256, 384, 512, 768), "blocks": (None, *blocks)}
    shared = {"staged": (False, True)} if op not in GRADIENTS else {}
    yield "strided_split", {"threads": THREADS[2:], "across": (None, 4, 8, 16, 32), "blocks": (None, *blocks), **shared}


@dataclass(frozen=True)
class Candidates:
    """The planner's choice for a problem, and every other plan of the sweep, each as what brings it about."""

    problem: Problem
    chosen: CudaPlan
    others: dict[Variant, CudaPlan]

    def fastest(self, seconds: dict[str, float], n: int) -> list[Variant]:
        """The n fastest of the others, by these seconds of those that could be timed."""
        return sorted((v for v in self.others if v.name in seconds), key=lambda v: seconds[v.name])[:n]


def problem_of(op: str, dtype: str, shape: tuple[int, ...], dim: int = -1, view: View = CONTIGUOUS) -> Problem:
    """Of an input that lies so, of a gradient such a dy, and what else is contiguous."""
    dims = normalize_dims(op, dim, shape)
    memory = view.memory_shape(shape)
    bytes_of_memory = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), memory, contiguous_strides(memory))
    strides = view.of(bytes_of_memory, shape).strides
    if op not in GRADIENTS:
        return make_problem(op, dtype, shape, dims, strides=strides)
    second, third = operands_like(op, dtype, shape, strides, dims)
    return make_problem(op, dtype, shape, dims, second=second, third=third)


def candidates(cell: GpuCell, device: Device, tried: Iterable[Sweep], only: Collection[str] = ()) -> Candidates:
    """Raises ValueError for a problem that there is not."""
    problem = problem_of(cell.op, cell.dtype, cell.shape, cell.dim, cell.view)

    def plan(algorithm: str | None, tuning: Tuning | None) -> CudaPlan:
        return make_cuda_plan(problem, device, algorithm, addresses=(0,) * 4, tuning=tuning)

    chosen = plan(None, None)
    found: dict[CudaPlan, Variant] = {}
    by_tiles = chosen.algorithm.startswith("strided")
    for algorithm, fields in tried:
        # Tiles can serve rows that lie side by side, too, but have no business there.
        if algorithm not in only if only else algorithm.startswith("strided") != by_tiles:
            continue
        for values in itertools.product(*fields.values()):
            held = dict(zip(fields, values, strict=True))
            try:
                one = plan(algorithm, Tuning(**held))
            except ValueError:  # it cannot serve this problem
                continue
            if one.algorithm == algorithm and _held_in_registers(one) <= MOST_HELD:
                named = " ".join(f"{name}={value}" for name, value in held.items() if value is not None)
                found.setdefault(one, Variant(f"{algorithm} {named}".rstrip(), algorithm, Tuning(**held)))
    found.pop(chosen, None)
    return Candidates(problem, chosen, {variant: plan for plan, variant in found.items()})


def _held_in_registers(plan: CudaPlan) -> int:
    shape = dict(plan.shape)
    steps = int(shape["pack"]) if "turned<" in plan.kernel else 1
    return steps * math.prod(int(shape.get(name, 1)) or 1 for name in ("packs", "pack", "rows"))


@dataclass(frozen=True)
class Finding:
    """What was found for one problem; seconds of calls into out=."""

    cell: GpuCell
    chosen: CudaPlan
    chosen_seconds: float
    best: Variant | None  # None: the planner's choice is
    best_seconds: float
    copy_seconds: float

    @property
    def gain(self) -> float:
        return self.chosen_seconds / self.best_seconds


def compile_what_can_be(found: Iterable[Candidates], device: Device, console: Console) -> None:
    """Every plan's kernel, at once; what cannot be is said here, and again of the plan that needs it."""
    try:
        compile_all([plan for one in found for plan in (one.chosen, *one.others.values())], device.architecture)
    except CompileError as error:
        console.print(str(error).splitlines()[0], style="red")


def time_plans(
    cell: GpuCell, variants: list[Variant], effort: GpuEffort, device: str, console: Console
) -> dict[str, float]:
    """Seconds of the planner's choice, "onepass", of each variant by its name, and of a copy; those that fail are said
    and left out. Raises RuntimeError where the planner's choice does."""
    from onepass.bench import gpu_run
    from onepass.bench.gpu_peers import GPU_PEERS

    report = gpu_run.measure(replace(cell, variants=tuple(variants)), [GPU_PEERS["onepass"]], effort, device)
    if report.skipped:
        raise RuntimeError(f"{problem_name(cell)} {report.skipped}")
    for outcome in report.outcomes:
        if outcome.timing is None:
            console.print(f"  {outcome.label} {outcome.status}: {outcome.note}", style="red")
    timed = {o.peer: o.timing.median for o in report.outcomes if o.timing and o.mode in ("out", "copy")}
    if "onepass" not in timed:
        raise RuntimeError(f"{problem_name(cell)}: the planner's choice cannot be timed")
    return timed


def tune(cell: GpuCell, found: Candidates, device: str, finalists: int, console: Console) -> Finding:
    """Time every candidate, then the fastest again. Raises RuntimeError where the planner's choice cannot be timed."""
    from onepass.bench.gpu_run import FULL, QUICK

    first = time_plans(cell, list(found.others), QUICK, device, console)
    fastest = found.fastest(first, finalists)
    last = time_plans(cell, fastest, FULL, device, console)
    best = min((v for v in fastest if v.name in last), key=lambda v: last[v.name], default=None)
    for variant in fastest:
        if variant.name in last:
            timed = f"  {last[variant.name] * 1e6:8.2f} us  {variant.name}: {found.others[variant]}"
            console.print(timed, soft_wrap=True)
    if best is not None and last[best.name] >= last["onepass"]:
        best = None
    best_seconds = last["onepass"] if best is None else last[best.name]
    return Finding(cell, found.chosen, last["onepass"], best, best_seconds, last["copy"])


def show(findings: list[Finding], device: Device, console: Console) -> None:
    """The table, and the lines for thresholds.py."""
    table = Table(box=None, pad_edge=False)
    for heading in ("problem", "planned"):
        table.add_column(heading)
    table.add_column("us", justify="right")
    table.add_column("best")
    for heading in ("us", "gain", "copy"):
        table.add_column(heading, justify="right")
    for one in findings:
        times = [f"{seconds * 1e6:.1f}" for seconds in (one.chosen_seconds, one.best_seconds, one.copy_seconds)]
        best = "the same" if one.best is None else one.best.name
        table.add_row(
            problem_name(one.cell), one.chosen.algorithm, times[0], best, times[1], f"{one.gain:.2f}x", times[2]
        )
    console.print(table)
    console.print(f"# {device.name}, {datetime.date.today():%B %Y}, microseconds:", soft_wrap=True)
    for one in findings:
        planned = f"{one.chosen_seconds * 1e6:.1f} as planned"
        best = "" if one.best is None else f", {one.best_seconds * 1e6:.1f} with {one.best.name} ({one.gain:.2f}x)"
        console.print(f"# {problem_name(one.cell)} {planned}{best}.", soft_wrap=True)


def problem_name(cell: GpuCell) -> str:
    dim = f", dim {cell.dim}" if cell.dim != -1 else ""
    return f"{cell.op} {'x'.join(map(str, cell.shape))} {cell.dtype}{dim}{said(cell.view.parts)}"


def main(
    shapes: Annotated[list[str], typer.Argument(metavar="SHAPE...", help="Such as 128x262144.")],
    op: Annotated[Op, typer.Option(help="The operation.")] = "softmax",
    dtype: Annotated[DType, typer.Option(help="Type of the input.")] = "float32",
    dim: Annotated[int, typer.Option(help="The dim.")] = -1,
    view: Annotated[
        str, typer.Option(help="How the input, of a gradient dy, lies: order1.0, pitch50304, step2, or several.")
    ] = "",
    algorithm: Annotated[list[str] | None, typer.Option(help="Only plans of this one; may be repeated.")] = None,
    device: Annotated[
        str, typer.Option(help=f"cuda or cuda:1; to look at plans only, also {', '.join(NAMES)}.")
    ] = "cuda",
    finalists: Annotated[int, typer.Option(min=1, help="How many are timed a second time.")] = 5,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be timed; --device NAME needs no GPU.")
    ] = False,
) -> None:
    """Time every plan of a sweep over the planner's parameters on the GPU at hand, beside the planner's choice."""
    console = Console(highlight=False)
    try:
        lies = _view(view)
        cells = [GpuCell("tune", op, _sizes(text), "tools/tune.py", dim, dtype, view=lies, peers=()) for text in shapes]
        described = describe(device, dry_run)
        found = [candidates(cell, described, sweeps(described, op), algorithm or ()) for cell in cells]
    except (ValueError, TypeError) as error:
        fail("tune", error, 2)
    except (CudaError, ImportError) as error:
        fail("tune", f"{error}; --dry-run --device h200 shows what would be timed on one", 1)
    findings: list[Finding] = []
    if not dry_run:
        compile_what_can_be(found, described, console)
    for cell, one in zip(cells, found, strict=True):
        heading = f"[bold]{problem_name(cell)}[/bold], {len(one.others)} other plans; the planner's: {one.chosen}"
        console.print(heading, soft_wrap=True)
        if dry_run:
            for variant, plan in one.others.items():
                console.print(f"  {variant.name}: {plan}", soft_wrap=True)
            continue
        try:
            findings.append(tune(cell, one, device, finalists, console))
        except RuntimeError as error:
            console.print(f"  {error}", style="red")
    if findings:
        show(findings, described, console)
    if len(findings) < len(cells) and not dry_run:
        raise typer.Exit(1)


def _sizes(shape: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise ValueError(f"SHAPE {shape!r}: expected sizes such as 128x262144")
    return tuple(map(int, shape.split("x")))


def _view(text: str) -> View:
    found = re.fullmatch(SPELLING, f"-{text}" if text else "")
    if found is None:
        raise ValueError(f"--view {text!r}: expected such as order1.0, pitch50304, step2 or order1.0-step2")
    return spelled(found)


def describe(device: str, dry_run: bool) -> Device:
    """The device of that name. Raises ValueError where there is none, or none that plans can be timed on."""
    if device.partition(":")[0] != "cuda":
        if not dry_run:
            raise ValueError(f"--device {device}: plans can be timed on cuda or cuda:1; add --dry-run to look at them")
        return by_name(device)
    from onepass.bench.run import gpu_ordinal

    if not dry_run:
        importlib.import_module("torch")  # holds the tensors: missed now rather than when everything is compiled
    return read_device(gpu_ordinal(device))


def fail(tool: str, problem: object, code: int) -> NoReturn:
    typer.echo(f"{tool}: {problem}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
