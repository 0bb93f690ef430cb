#!/usr/bin/env python3
"""The planner against its own kernels: problems at random, its choice for each beside a coarse sweep of other plans.

    tools/audit_plans.py --problems 300
    tools/audit_plans.py --op softmax_backward --columns --seed 7 --json found.json
    tools/audit_plans.py --columns --device h200 --dry-run

A rule of the planner is found where somebody looked; this looks where nobody did. Problems of which a plan of the sweep
was faster are timed again, the planner's choice and the three fastest, so that luck is no finding. What remains is for
tools/tune.py, whose sweep is fine. Needs torch, and what compiles kernels: 300 problems take an H200 and 16 cores two
minutes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table
from tune import Candidates, DType, Op, Sweep, candidates, compile_what_can_be, describe, fail, problem_name, time_plans

from onepass.bench.gpu_cells import GpuCell
from onepass.bench.gpu_timing import GpuEffort
from onepass.cuda import CudaError
from onepass.cuda.device import NAMES
from onepass.problem import GRADIENTS, REDUCTIONS

FIRST_LOOK = GpuEffort(rounds=15, most_rounds=41, seconds=0.04)
SECOND_LOOK = GpuEffort(rounds=41, most_rounds=101, seconds=0.1)
FINALISTS = 3
FEWEST_ELEMENTS, MOST_ELEMENTS = 1 << 14, 1 << 27


def coarse_sweeps(op: str) -> Iterator[Sweep]:
    """What tune.sweeps tries, every other step of it or fewer."""
    yield "warp", {"lanes": (8, 32), "threads": (128,)}
    yield "warp_smem", {"lanes": (8, 32)}
    yield "block", {"threads": (64, 128, 256, 512, 1024)}
    yield "block_smem", {"threads": (256, 512, 1024)}
    yield "online", {"threads": (256, 512, 1024)}
    if op in GRADIENTS:
        yield "block_uncached", {"threads": (256, 512, 1024)}
    clusters = {"blocks": (2, 4, 8, 16), "threads": (256, 512, 1024)}
    yield "cluster", {"staged": (False, True), **clusters}
    yield "split", {"staged": (False, True), "threads": (256, 512, 1024), "blocks": (None, 2, 4, 8, 16)}
    yield "stream", {"threads": (512,)}
    tiles = {"across": (2, 4, 8, 16, 32)}
    yield "strided", {"threads": (256, 1024), "staged": (None, False), **tiles}
    if op in GRADIENTS:
        yield "strided", {"clustered": (True,), "blocks": (1,), "threads": (256, 512), **tiles}
    yield "strided_split", {"clustered": (True,), "blocks": (2, 4, 8, 16), "threads": (256, 512), **tiles}
    yield "strided_split", {"clustered": (False,), "threads": (256, 512), **tiles}
    yield "strided_split", {"interleaved": (True,), "threads": (256, 512)}
    if op in REDUCTIONS:
        yield "strided", {"threads": (128, 256, 512), "pack": (None, 1), "across": (1, *tiles["across"])}


def at_random(op: str, dtype: str, columns: bool, source: random.Random) -> GpuCell:
    """A problem of FEWEST_ELEMENTS to MOST_ELEMENTS, all orders of magnitude of its sizes as likely as each other."""

    def size(least: int, most: int) -> int:
        return round(math.exp(source.uniform(math.log(least), math.log(most))))

    while True:
        shape = (size(1, 4096), size(2, 1 << 17), size(2, 8192)) if columns else (size(1, 1 << 16), size(32, 1 << 22))
        if source.random() < 0.5:  # sizes that programs have
            shape = (*shape[:-1], max(1, shape[-1] // 64) * 64 if shape[-1] > 64 else shape[-1])
        if FEWEST_ELEMENTS <= math.prod(shape) <= MOST_ELEMENTS:
            return GpuCell("audit", op, shape, "tools/audit_plans.py", 1 if columns else -1, dtype, peers=())


@dataclass(frozen=True)
class Timed:
    """Seconds of calls into out= for the planner's choice and others; `again`, those of a second look."""

    cell: GpuCell
    found: Candidates
    first: dict[str, float]
    again: dict[str, float]

    @property
    def last(self) -> dict[str, float]:
        return self.again or self.first

    @property
    def best(self) -> str:
        """The variant that was fastest when last looked at; "onepass", the planner's choice."""
        return min((name for name in self.last if name != "copy"), key=self.last.__getitem__)

    @property
    def behind(self) -> float:
        """The planner's time over the best plan's."""
        return self.last["onepass"] / self.last[self.best]


def look(cell: GpuCell, found: Candidates, device: str, tolerance: float, console: Console) -> Timed:
    """Raises RuntimeError where the planner's choice is wrong or cannot be timed."""
    first = time_plans(cell, list(found.others), FIRST_LOOK, device, console)
    timed = Timed(cell, found, first, {})
    if timed.behind <= tolerance:
        return timed
    fastest = found.fastest(first, FINALISTS)
    return replace(timed, again=time_plans(cell, fastest, SECOND_LOOK, device, console))


def show(timed: list[Timed], tolerance: float, console: Console) -> None:
    """Those behind by more than the tolerance, the farthest first, and how far all of them are in the mean."""
    table = Table(box=None, pad_edge=False)
    for heading in ("problem", "planned", "us", "best", "us", "behind", "copy"):
        table.add_column(heading, justify="right" if heading in ("us", "behind", "copy") else "left")
    for one in sorted(timed, key=lambda one: one.behind, reverse=True):
        if one.behind <= tolerance:
            break
        times = [f"{one.last[name] * 1e6:.1f}" for name in ("onepass", one.best, "copy")]
        table.add_row(
            problem_name(one.cell), str(one.found.chosen), times[0], one.best, times[1], f"{one.behind:.2f}x", times[2]
        )
    console.print(table, soft_wrap=True)
    mean = math.exp(sum(math.log(one.behind) for one in timed) / len(timed))
    behind = sum(one.behind > tolerance for one in timed)
    console.print(f"{len(timed)} problems: {behind} behind by more than {tolerance:.2f}x, {mean:.3f}x in the mean")


def as_json(one: Timed) -> str:
    """Every time of a problem in a line, for whoever looks for a rule."""
    cell = one.cell
    problem = {"op": cell.op, "dtype": cell.dtype, "shape": cell.shape, "dim": cell.dim}
    return json.dumps({**problem, "chosen": str(one.found.chosen), "first": one.first, "again": one.again})


def main(
    problems: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    op: Annotated[list[str] | None, typer.Option(help="To draw from; may be repeated. All, if not given.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="The same; float32 and bfloat16, if not given.")] = None,
    columns: Annotated[bool, typer.Option("--columns", help="Along dim 1 of three, not along rows.")] = False,
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 0,
    tolerance: Annotated[float, typer.Option(min=1, help="Times the best plan's time that is not behind.")] = 1.05,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every time there, a line for each problem.")
    ] = None,
    device: Annotated[
        str, typer.Option(help=f"cuda or cuda:1; to look at plans only, also {', '.join(NAMES)}.")
    ] = "cuda",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the problems and how many plans each has.")] = False,
) -> None:
    """Time the planner's choice for problems at random beside a coarse sweep of other plans on the GPU at hand."""
    console = Console(highlight=False)
    source = random.Random(seed)
    try:
        ops = _known("--op", op, get_args(Op), get_args(Op))
        dtypes = _known("--dtype", dtype, get_args(DType), ("float32", "bfloat16"))
        cells = [at_random(source.choice(ops), source.choice(dtypes), columns, source) for _ in range(problems)]
        described = describe(device, dry_run)
        found = [candidates(cell, described, coarse_sweeps(cell.op)) for cell in cells]
    except ValueError as error:
        fail("audit_plans", error, 2)
    except (CudaError, ImportError) as error:
        fail("audit_plans", f"{error}; --dry-run --device h200 shows what would be timed on one", 1)
    kernels = {(plan.header, plan.kernel) for one in found for plan in (one.chosen, *one.others.values())}
    plans = sum(len(one.others) for one in found)
    console.print(f"{problems} problems, {plans} plans beside the planner's, {len(kernels)} kernels")
    if dry_run:
        for cell, one in zip(cells, found, strict=True):
            console.print(f"{problem_name(cell)}, {len(one.others)} other plans; {one.chosen}", soft_wrap=True)
        return
    compile_what_can_be(found, described, console)
    timed: list[Timed] = []
    with ExitStack() as stack:
        lines = stack.enter_context(json_file.open("w")) if json_file else None
        for cell, one in zip(cells, found, strict=True):
            try:
                timed.append(look(cell, one, device, tolerance, console))
            except RuntimeError as error:
                console.print(f"  {error}", style="red", soft_wrap=True)
                continue
            if lines is not None:  # at once: what was measured is not lost with what comes after it
                print(as_json(timed[-1]), file=lines, flush=True)
    if timed:
        show(timed, tolerance, console)
    if len(timed) < problems:
        raise typer.Exit(1)


def _known(option: str, given: list[str] | None, known: Sequence[str], usual: Sequence[str]) -> Sequence[str]:
    """What was given, or what is usual. Raises ValueError for what is not known."""
    for one in given or ():
        if one not in known:
            raise ValueError(f"{option} {one}: expected one of {', '.join(known)}")
    return given or usual


if __name__ == "__main__":
    typer.run(main)
