#!/usr/bin/env python3
"""Times of the ways in which lanes of a warp can share rows, and the costs of lane_cost.py that are fitted to them.

    tools/lane_times.py measure times.csv --seconds 120
    tools/lane_times.py fit times.csv

`measure` draws problems at random and times every way to share their rows on the GPU at hand, as tools/tune.py does.
`fit` looks for the costs by which the way that costs least is the one that was fastest, and says by how much it is not,
and by how much the planner's is not. Needs torch, and `measure` what compiles kernels.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from tune import Candidates, Sweep, candidates, compile_what_can_be, describe, fail, problem_of, time_plans

from onepass.bench.gpu_cells import GpuCell
from onepass.bench.gpu_timing import GpuEffort
from onepass.cuda import CudaError
from onepass.cuda.device import Device, by_name
from onepass.cuda.kernel_plan import Choice, CudaPlan, Functor
from onepass.cuda.lane_cost import ELEMENT, Costs, LaneCosts, Way, Work, microseconds
from onepass.cuda.lanes import direct_ways
from onepass.cuda.plan import make_cuda_plan
from onepass.cuda.plan_warp_smem import ways_by_slab
from onepass.cuda.tuning import Tuning
from onepass.problem import ITEMSIZE, Problem

OPS = ("softmax", "log_softmax", "logsumexp", "sum", "softmax_backward", "log_softmax_backward", "logsumexp_backward")
DTYPES = ("float32", "bfloat16", "float64")
ROWS = (2500, 5000, 10000, 20000, 40000, 100000, 300000, 1000000)
MOST_BYTES = 256 << 20  # of the input; every fourth problem has them
EFFORT = GpuEffort(rounds=5, most_rounds=7, seconds=0.03)
BY_LANES = ("warp", "warp_smem")
MOST_SLAB_PACKS = 400  # of longer rows those ways are not tried


class Timed(NamedTuple):
    """A row of the file."""

    op: str
    dtype: str
    rows: int
    length: int
    way: Way
    microseconds: float

    @property
    def problem(self) -> tuple[str, str, int, int]:
        return self[:4]


def at_random(source: random.Random) -> GpuCell:
    op, dtype = source.choice(OPS), source.choice(DTYPES)
    size = ITEMSIZE[dtype]
    length = round(math.exp(source.uniform(math.log(2), math.log(1536))))
    if source.random() < 0.5:
        length = max(2, length - length % (16 // size))
    most = MOST_BYTES // (length * size)
    rows = most if source.random() < 0.25 else min(most, source.choice(ROWS))
    return GpuCell("lanes", op, (rows, length), "tools/lane_times.py", -1, dtype, peers=())


def sweeps(cell: GpuCell) -> Iterator[Sweep]:
    """By lanes, and of packs the widest and those that rows are whole ones of."""
    widest = 16 // ITEMSIZE[cell.dtype]
    whole = math.gcd(widest, cell.length)
    lanes = (1, 2, 4, 8, 16, 32)
    yield "warp", {"lanes": lanes, "pack": tuple({whole, widest} if cell.length > 32 else {whole})}
    if cell.length // whole <= MOST_SLAB_PACKS and cell.op != "logsumexp_backward":
        yield "warp_smem", {"lanes": (1,), "rows": (1, 2, 4, 8), "pack": (whole,)}
        yield "warp_smem", {"lanes": lanes[1:], "rows": (1,), "pack": (whole,)}


def way_of(plan: CudaPlan, length: int) -> Way | None:
    """None where no lanes of a warp share rows."""
    if plan.algorithm not in BY_LANES:
        return None
    shape = dict(plan.shape)
    lanes, pack = int(shape["lanes"]), int(shape["pack"])
    packs = shape.get("packs", shape.get("segment", -(-max(1, length // pack) // lanes)))
    alignment, rows = str(shape.get("alignment", "whole")), int(shape.get("rows", 1))
    return Way(lanes, int(packs), pack, alignment, rows, plan.algorithm == "warp_smem")


def untimed(problem: tuple[str, str, int, int]) -> Problem:
    op, dtype, rows, length = problem
    return problem_of(op, dtype, (rows, length))


def time_ways(cell: GpuCell, found: Candidates, console: Console) -> Iterator[Timed]:
    """Nothing of a problem whose rows the planner gives to blocks."""
    rows, length = cell.shape
    plans = {"onepass": found.chosen} | {variant.name: plan for variant, plan in found.others.items()}
    if way_of(found.chosen, length) is None:
        return
    timed = time_plans(cell, list(found.others), EFFORT, "cuda", console)
    for name, plan in plans.items():
        way = way_of(plan, length)
        if name in timed and way is not None:
            yield Timed(cell.op, cell.dtype, rows, length, way, round(timed[name] * 1e6, 2))


def write(path: Path, all_timed: Iterable[Timed]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Timed._fields[:4], *Way._fields[:4], "rows_of_lane", "by_slab", "microseconds"])
        for timed in all_timed:
            writer.writerow([*timed.problem, *timed.way[:5], int(timed.way.by_slab), timed.microseconds])


def read(path: Path) -> list[Timed]:
    """Raises ValueError for what `measure` did not write."""
    found = []
    with path.open(newline="") as file:
        for number, row in enumerate(itertools.islice(csv.reader(file), 1, None), 2):
            try:
                op, dtype, rows, length, lanes, packs, pack, alignment, at_a_time, by_slab, microseconds = row
                way = Way(int(lanes), int(packs), int(pack), alignment, int(at_a_time), by_slab == "1")
                found.append(Timed(op, dtype, int(rows), int(length), way, float(microseconds)))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: expected the columns that measure writes; {error}") from error
    if not found:
        raise ValueError(f"{path}: no times; expected the file that measure writes")
    return found


def behind(device: Device, all_timed: list[Timed]) -> list[float]:
    """By how much the planner's way is slower than the fastest one, of every problem of which both are in the file."""
    factors = []
    for problem, ways in itertools.groupby(all_timed, key=lambda timed: timed.problem):
        took = {timed.way: timed.microseconds for timed in ways}
        planned = way_of(make_cuda_plan(untimed(problem), device, addresses=(0,) * 4), problem[3])
        if planned in took:
            factors.append(took[planned] / min(took.values()))
    return factors


def fit_costs(device: Device, all_timed: list[Timed], steps: int, console: Console) -> None:
    """Print the costs that choose best, by gradient descent from those that are there."""
    import torch

    kinds, sizes = list(ELEMENT), (2, 4, 8)
    choices = {timed.problem: choice_of(untimed(timed.problem), device) for timed in all_timed}
    all_timed = [timed for timed in all_timed if timed.way in considered(choices[timed.problem], timed.way)]
    groups = {problem: i for i, problem in enumerate(dict.fromkeys(timed.problem for timed in all_timed))}
    costs = {problem: LaneCosts.of(choice) for problem, choice in choices.items()}
    work = Work(*torch.tensor([[float(n) for n in costs[t.problem].work(t.way)] for t in all_timed]).double().T)
    took = torch.tensor([timed.microseconds for timed in all_timed]).double()
    group = torch.tensor([groups[timed.problem] for timed in all_timed])
    kind = torch.tensor([kinds.index("plain" if t.op == "sum" else t.op) for t in all_timed])
    size = torch.tensor([sizes.index(ITEMSIZE[timed.dtype]) for timed in all_timed])

    def least(values: torch.Tensor) -> torch.Tensor:
        return torch.full((len(groups),), math.inf).double().scatter_reduce(0, group, values, "amin")

    def start(values: object) -> torch.Tensor:  # all costs are positive: their logarithms are what is looked for
        return torch.tensor(values).double().log().requires_grad_()

    element = start([[ELEMENT[k][n] for n in sizes] for k in kinds])
    row = start([20.0] * len(kinds))
    same = {name: start(value) for name, value in Costs._field_defaults.items()}
    other = start([4.0] * len(kinds))  # us, that no way of an operation is without

    def predicted() -> torch.Tensor:
        fitted = {name: value.exp() for name, value in same.items()}
        return microseconds(work, Costs(element.exp()[kind, size], row.exp()[kind], **fitted)) + other.exp()[kind]

    best = least(took)[group]
    near = torch.exp(-3 * (took / best - 1)).clamp(min=0.02)  # how slow a slow way is, does not matter
    optimizer = torch.optim.Adam([element, row, other, *same.values()], lr=0.03)
    for step in range(steps):
        cost = predicted()
        error = (near * (cost.log() - took.log()) ** 2).sum() / near.sum()
        # First the times, then what is lost by the way of least cost; smooth, or there is no gradient.
        likely = torch.exp(-(cost.log() - least(cost.detach()).log()[group]) / 0.02)
        of_all = torch.zeros(len(groups)).double().scatter_add(0, group, likely)
        lost = (likely / of_all[group] * (took / best).log()).sum() / len(groups)
        loss = error if step < steps // 3 else 0.3 * error + lost
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cost = predicted().detach()
    chosen = least(torch.where(cost <= least(cost)[group], took, math.inf)) / least(took)
    console.print(f"{len(groups)} problems, {len(all_timed)} ways; by these costs {_summary(chosen.tolist())}")
    for index, name in enumerate(kinds):
        of_sizes = {n: round(x, 1) for n, x in zip(sizes, element.exp()[index].tolist(), strict=True)}
        console.print(f"  {name}: element {of_sizes}, row {row.exp()[index].item():.0f}")
    for name, value in same.items():
        console.print(f"  {name} {value.exp().item():.4g}")


def considered(choice: Choice, way: Way) -> list[Way]:
    """What the planner chooses from, of ways like this."""
    return list(ways_by_slab(choice, way.pack) if way.by_slab else direct_ways(choice, way.pack, way.alignment))


def choice_of(problem: Problem, device: Device) -> Choice:
    return Choice(problem, device, None, 0, 0, 0, Functor(), Functor(), Tuning(), [])


def _summary(factors: list[float]) -> str:
    mean = math.exp(sum(map(math.log, factors)) / len(factors))
    slow = sum(factor > 1.1 for factor in factors)
    return f"{mean:.4f} times as long as by the fastest way, {slow} over 1.1, {max(factors):.2f} at worst"


app = typer.Typer(help=__doc__.splitlines()[0] if __doc__ else None)
File = Annotated[Path, typer.Argument(metavar="FILE", help="Of comma-separated values.")]


@app.command()
def measure(
    file: File,
    seconds: Annotated[float, typer.Option(min=1, help="For how long.")] = 120,
    problems: Annotated[int, typer.Option(min=1, help="How many at most: kernels of all are compiled first.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 1,
) -> None:
    """Time ways to share rows on the GPU at hand."""
    console = Console(highlight=False)
    source = random.Random(seed)
    cells = [at_random(source) for _ in range(problems)]
    try:
        described = describe("cuda", dry_run=False)
    except (CudaError, ImportError, ValueError) as error:
        fail("lane_times", error, 1)
    found = [candidates(cell, described, sweeps(cell), BY_LANES) for cell in cells]
    compile_what_can_be(found, described, console)
    all_timed: list[Timed] = []
    until = time.monotonic() + seconds
    for cell, one in zip(cells, found, strict=True):
        if time.monotonic() > until:
            break
        try:
            all_timed += time_ways(cell, one, console)
        except RuntimeError as error:
            console.print(f"  {error}", style="red")
    write(file, all_timed)
    console.print(f"{file}: {len(all_timed)} ways of {len({timed.problem for timed in all_timed})} problems")


@app.command()
def fit(
    file: File,
    device: Annotated[str, typer.Option(help="The GPU that they were measured on.")] = "h200",
    steps: Annotated[int, typer.Option(min=1, help="Of gradient descent.")] = 1500,
) -> None:
    """Fit costs to times, and say how far the planner is from the fastest ways."""
    console = Console(highlight=False)
    try:
        described, all_timed = by_name(device), read(file)
    except (OSError, ValueError) as error:
        fail("lane_times", error, 2)
    console.print(f"the planner's way takes {_summary(behind(described, all_timed))}")
    fit_costs(described, all_timed, steps, console)


if __name__ == "__main__":
    app()
