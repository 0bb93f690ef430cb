"""Run the benchmark: prepare, verify, then time the contenders of each cell against each other."""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onepass
from onepass import _engine
from onepass.bench import report
from onepass.bench.cells import CELLS, Cell
from onepass.bench.document import NotOneRun, read_documents
from onepass.bench.document import document as describe
from onepass.bench.peers import PEERS, Contender, Data, Peer, check_copy, copies, equal_threads, make_data
from onepass.bench.results import CellReport, Outcome, first_line, outcome
from onepass.bench.selection import CPU_ELEMENTS, GPU_ELEMENTS, sample, select
from onepass.bench.timing import Effort, interleave, seed_of
from onepass.bench.verify import Verifier, WrongResult
from onepass.machine import is_number, memory_bytes

FULL = Effort(rounds=7, most_rounds=14, window_seconds=0.06)
QUICK = Effort(rounds=4, most_rounds=4, window_seconds=0.03)


@dataclass(frozen=True)
class Suite:
    """What is measured on one kind of device, and how."""

    cells: Sequence[Cell]
    kind: type[Cell]  # of a cell that the registry lacks
    elements: tuple[int, int]  # of an array of a sample, from and to
    peers: Mapping[str, Peer]
    quick: Any  # efforts
    full: Any
    measure: Callable[[Any, Sequence[Peer], Any], CellReport]
    describe: Callable[[int], str]  # of the threads
    gpu: dict[str, Any] | None = None


def suite(device: str) -> Suite:
    """The suite for "cpu", "cuda" or "cuda:1"; ValueError for another device, or one that is not here."""
    if device == "cpu":
        return Suite(CELLS, Cell, CPU_ELEMENTS, PEERS, QUICK, FULL, measure, report.describe_cpu)
    ordinal = gpu_ordinal(device)
    from onepass.bench import gpu_run
    from onepass.bench.gpu_cells import GPU_CELLS, GpuCell
    from onepass.bench.gpu_peers import GPU_PEERS

    gpu = gpu_run.describe(ordinal)
    return Suite(
        cells=GPU_CELLS,
        kind=GpuCell,
        elements=GPU_ELEMENTS,
        peers=GPU_PEERS,
        quick=gpu_run.QUICK,
        full=gpu_run.FULL,
        measure=lambda cell, peers, effort: gpu_run.measure(cell, peers, effort, f"cuda:{ordinal}"),
        describe=lambda _: f"{gpu['name']}, {gpu['multiprocessors']} multiprocessors, L2 flushed before every call",
        gpu=gpu,
    )


def gpu_ordinal(device: str) -> int:
    """Which GPU is meant by "cuda" or "cuda:1"; ValueError for anything else."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not is_number(number or "0"):
        raise ValueError(f"device is {device!r}; expected cpu, cuda or cuda:1")
    return int(number or 0)


def list_cells(device: str = "cpu") -> list[str]:
    """One line per benchmark cell, in the order in which they run: its name, its group, and why it is there. Raises
    ValueError for another device than "cpu", "cuda" or "cuda:1"."""
    if device == "cpu":
        cells: Sequence[Cell] = CELLS
    else:
        gpu_ordinal(device)
        from onepass.bench.gpu_cells import GPU_CELLS as cells
    return [f"{cell.name:36} {cell.group:12} {cell.why}" for cell in cells]


def run_benchmark(
    quick: bool = False,
    cells: list[str] | None = None,
    against: list[str] | None = None,
    json: Path | None = None,
    plot: Path | None = None,
    html: Path | None = None,
    repeats: int | None = None,
    device: str = "cpu",
    samples: int | None = None,
    seed: int = 0,
) -> int:
    """Measure onepass against the libraries that are installed, print the tables and write the files asked for.

    `cells` are names, groups or globs, or problems spelled as names are; `samples` adds as many shapes that nobody
    chose, or measures these alone; `against` names contenders; `repeats` is the number of rounds; `device` is "cpu" or
    "cuda". Returns 0; 1 where a file cannot be written, a result of onepass is wrong, a cell cannot be measured, the
    GPU cannot be used or the run was interrupted (the files then have the cells that were done); 2 for an unknown cell,
    contender or device.
    """
    failed = False
    try:
        here = suite(device)
        chosen = choose_cells(here, quick, cells, samples, seed)
        peers = choose_peers(against, here.peers)
        if repeats is not None and repeats < 1:
            raise ValueError(f"repeats is {repeats}; expected at least 1")
    except ValueError as error:
        return _fail(error, 2)
    except (RuntimeError, ImportError) as error:  # no GPU, no torch
        return _fail(error, 1)
    try:
        report.check_outputs(json, html, plot)
        effort = here.quick if quick else here.full
        if repeats is not None:
            effort = replace(effort, rounds=repeats, most_rounds=repeats)
        installed = [peer for peer in peers if not peer.missing]
        with equal_threads(any(peer.name == "torch" for peer in installed)) as threads:
            screen = report.Screen()
            screen.begin(peers, here.describe(threads), len(chosen))
            reports: list[CellReport] = []
            try:
                for cell in chosen:
                    screen.start(cell)
                    try:
                        reports.append(here.measure(cell, installed, effort))
                    except Exception as error:  # no memory, say; the other cells are worth having
                        failed = True
                        reports.append(CellReport(cell, skipped=f"it failed: {first_line(error)}"))
                    screen.show(reports[-1])
            except KeyboardInterrupt:  # what has been measured is worth keeping
                failed = True
                print(f"onepass bench: interrupted after {len(reports)} of {len(chosen)} cells", file=sys.stderr)
        settings = {**asdict(effort), "quick": quick, "threads": threads}
        document = describe(reports, peers, settings, here.gpu)
        screen.summary(document)
        screen.write(document, json, html, plot)
    except report.OutputError as error:
        return _fail(error, 1)
    ours = [outcome for done in reports for outcome in done.outcomes if outcome.peer == "onepass"]
    return 1 if failed or any(outcome.status != "ok" for outcome in ours) else 0


def show_results(
    paths: Sequence[Path], json: Path | None = None, plot: Path | None = None, html: Path | None = None
) -> int:
    """Summarize what `run_benchmark` wrote as JSON, in one or several parts, and write the files asked for.

    Returns 0; 1 where a file cannot be written; 2 for files that hold no results, or none to be shown together.
    """
    try:
        report.check_outputs(json, html, plot)
        document = read_documents(paths)
        screen = report.Screen()
        screen.summary(document)
        screen.write(document, json, html, plot)
    except NotOneRun as error:
        return _fail(error, 2)
    except report.OutputError as error:
        return _fail(error, 1)
    return 0


def _fail(error: Exception, code: int) -> int:
    print(f"onepass: error: {str(error).removeprefix('onepass: ')}", file=sys.stderr)
    return code


def choose_cells(here: Suite, quick: bool, cells: list[str] | None, samples: int | None, seed: int) -> list[Cell]:
    """Those named; a sample; or, of neither, those of the registry."""
    if samples is None:
        return select(cells, quick and cells is None, here.cells, here.kind)
    if samples < 1:
        raise ValueError(f"samples is {samples}; expected at least 1")
    named = [] if cells is None else select(cells, False, here.cells, here.kind)
    return named + sample(samples, seed, here.elements, here.kind)


def choose_peers(against: Sequence[str] | None, registry: Mapping[str, Peer] = PEERS) -> list[Peer]:
    """The peers named, onepass always among them; all of them by default."""
    named = set(registry) if against is None else {"onepass", *(name.strip() for name in against)}
    if unknown := sorted(named - set(registry)):
        raise ValueError(f"no contender is named {', '.join(unknown)}; there are {', '.join(registry)}")
    return [peer for name, peer in registry.items() if name in named]


def measure(cell: Cell, peers: Sequence[Peer], effort: Effort) -> CellReport:
    """Verify and time one cell; `peers` are installed."""
    torch_takes_part = any(peer.name == "torch" for peer in peers)
    if cell.framework == "torch" and not torch_takes_part:
        return CellReport(cell, skipped="its input is a torch tensor, and torch does not take part")
    memory = memory_bytes()
    if cell.needed_bytes > memory // 2:
        needed = f"{cell.needed_bytes / 2**30:.1f} GiB"
        return CellReport(cell, skipped=f"needs {needed}, more than half of the {memory / 2**30:.1f} GiB here")
    framework = "torch" if torch_takes_part and cell.framework != "numpy" else "numpy"
    data = make_data(cell, framework)
    verifier = Verifier(cell, data.x_numpy, beside=() if data.dy_numpy is None else (data.dy_numpy,))
    outcomes, timers = [], {}
    for contender, problem in _prepared(data, peers):
        outcome = problem or _verified(contender, data, verifier)
        outcomes.append(outcome)
        if outcome.status == "ok":
            timers[outcome.label] = timeit.Timer(contender.statement, globals=dict(contender.names))
    timings = interleave(timers, effort, seed_of(cell.name))
    timed = tuple(replace(outcome, timing=timings.get(outcome.label)) for outcome in outcomes)
    getattr(onepass, cell.op)(*([data.x] if data.dy is None else [data.dy, data.x]), dim=cell.dim)
    algorithm = _engine.last_algorithm()
    onepass.empty_cache()
    return CellReport(cell, framework, algorithm, verifier.tolerance, timed)


def _prepared(data: Data, peers: Sequence[Peer]) -> list[tuple[Contender, Outcome | None]]:
    """Every contender that supports the cell; with an outcome already where preparing it failed."""
    prepared: list[tuple[Contender, Outcome | None]] = [(contender, None) for contender in copies(data)]
    for peer in peers:
        if not peer.takes(data.cell):
            continue
        try:
            prepared += [(contender, None) for contender in peer.prepare(data)]
        except Exception as error:  # a broken peer is a finding of the benchmark, not the end of it
            contender = Contender(peer.name, "fresh", "", {}, data.cell.moved_bytes)
            prepared.append((contender, outcome(contender, "failed", note=first_line(error))))
    return prepared


def _verified(contender: Contender, data: Data, verifier: Verifier) -> Outcome:
    try:
        if contender.mode == "copy":
            check_copy(contender)
            return outcome(contender, "ok")
        result = contender.result(data.out_numpy)
    except Exception as error:  # as above
        return outcome(contender, "failed", note=first_line(error))
    try:
        error_ulp = verifier.error(result)
    except WrongResult as wrong:
        return outcome(contender, "wrong", note=str(wrong))
    if not error_ulp <= verifier.tolerance:
        note = f"off by {error_ulp:.4g} ULP; {verifier.tolerance:.4g} allowed"
        return outcome(contender, "wrong", note=note, error_ulp=error_ulp)
    return outcome(contender, "ok", error_ulp=error_ulp)
