"""What the benchmark shows: tables on the screen, and the files that a run's document becomes."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepass.bench import views
from onepass.bench.cells import Cell
from onepass.bench.peers import Peer
from onepass.bench.results import CellReport, Outcome
from onepass.bench.standing import BEHIND
from onepass.machine import this_machine

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class OutputError(Exception):
    """A file that was asked for cannot be written."""


def format_seconds(seconds: float) -> str:
    """Three digits and a unit.

    >>> format_seconds(4.56e-5)
    '45.6 us'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds / scale < 100 else f"{seconds / scale:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def format_cell(cell: Cell) -> str:
    """The cell as a person would say it.

    >>> format_cell(Cell("strided", "softmax", (64, 8), "an example", dim=0))
    'softmax 64 x 8 float32, dim 0'
    """
    shape = " x ".join(map(str, cell.shape))
    dim = f", dim {cell.dim}" if cell.dim != -1 else ""
    source = f", from {cell.framework}" if cell.framework != "any" else ""
    return f"{cell.op} {shape} {cell.dtype}{dim}{views.said(cell.view.parts)}{source}"


class Screen:
    """The tables on the terminal, each printed when its cell is done."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(highlight=False)
        self.cells = 0
        self.started = 0

    def begin(self, peers: Sequence[Peer], device: str, cells: int) -> None:
        self.cells = cells
        self.console.print(f"{device}; a round takes every contender in random order")
        self.console.print("contenders: " + "; ".join(_presence(peer) for peer in peers))

    def start(self, cell: Cell) -> None:
        self.started += 1
        self.console.print(f"\n[bold]{self.started}/{self.cells} {format_cell(cell)}[/bold]: {cell.why}")

    def show(self, report: CellReport) -> None:
        if report.skipped:
            self.console.print(f"skipped: {report.skipped}")
            return
        table = _table(("contender",), ("time", "spread", "GB/s", "of copy", "onepass is", "ULP", "quiet"))
        for outcome in report.outcomes:
            table.add_row(*_row(report, outcome))
        self.console.print(table)
        for outcome in report.outcomes:
            if outcome.timing is None:
                self.console.print(f"{outcome.label} {outcome.status}, not timed: {outcome.note}", style="red")
        nbytes = report.cell.moved_bytes
        moved = f"{nbytes / 1e6:.4g} MB" if nbytes >= 1e5 else f"{nbytes} bytes"
        self.console.print(f"onepass ran {report.algorithm}; {moved} must move", style="dim")
        if any(outcome.timing and outcome.timing.noisy for outcome in report.outcomes):
            remark = "! others used the machine: the median is over all windows"
            self.console.print(remark, style="yellow")

    def summary(self, document: dict[str, Any]) -> None:
        table = _table(("group", "contender"), ("cells", "onepass is", "at worst", "of copy"))
        for group, contenders in document["summary"].items():
            heading = group
            for label, means in contenders.items():
                ratios = (
                    ("", "") if label.startswith("onepass") else map(_times, (means["ratio"], means["worst_ratio"]))
                )
                table.add_row(heading, label, str(means["cells"]), *ratios, _percent(means["fraction"]))
                heading = ""  # named once
        self.console.print("\n[bold]Geometric means[/bold]: a fresh result against a fresh result, out= against out=")
        self.console.print(table)
        self._standing(document["standing"])

    def _standing(self, standing: dict[str, Any]) -> None:
        regions = {name: found for name, found in standing["regions"].items() if found["cells"]}
        if regions:
            table = _table(("softmax",), list(regions))
            table.add_row("cells", *(str(found["cells"]) for found in regions.values()))
            for peer in (name for name, ratio in regions["all"]["times_faster"].items() if ratio):
                ratios = (_times(found["times_faster"][peer]) for found in regions.values())
                table.add_row(f"onepass over {peer}", *ratios)
            for which in ("median", "worst"):
                over = (_times(found["over_copy"][which]) for found in regions.values())
                table.add_row(f"time over a copy's, {which}", *over)
            self.console.print(
                "\n[bold]Fresh results[/bold]; few rows: fewer than 4 for each multiprocessor; "
                "large: 64 MiB and more, of rows that fit the chip"
            )
            self.console.print(table)
        behind, cells = standing["behind"], standing["cells"]
        self.console.print(f"more than {BEHIND - 1:.0%} behind the fastest peer: {len(behind)} of {cells} cells")
        for found in behind:
            times = _times(found["times_slower"])
            self.console.print(f"  {found['cell']}: {times} of {found['peer']}, by {found['algorithm']}")

    def write(self, document: dict[str, Any], json: Path | None, html: Path | None, plot: Path | None) -> None:
        """The files that were asked for."""
        for path, write in ((json, write_json), (html, write_html), (plot, write_plot)):
            if path is not None:
                write(document, path)
                self.console.print(f"wrote {path}")


def _table(names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _presence(peer: Peer) -> str:
    missing = peer.missing
    return f"{peer.name} not installed (pip install {' '.join(missing)})" if missing else f"{peer.name} {peer.version}"


def _row(report: CellReport, outcome: Outcome) -> tuple[str | Text, ...]:
    timing = outcome.timing
    if timing is None:
        return (outcome.label, Text(outcome.status, style="red"))
    ratio = None if outcome.peer == "onepass" else report.ratio(outcome)
    quiet = f"{timing.quiet}/{len(timing.windows)}"
    return (
        Text(outcome.label, style="bold" if outcome.peer == "onepass" else ""),
        format_seconds(timing.median),
        f"{timing.spread:.0%}",
        _rate(outcome.gb_per_s),
        _percent(report.fraction(outcome)),
        Text(_times(ratio), style="" if ratio is None else "green" if ratio >= 1 else "red"),
        "" if outcome.error_ulp is None else f"{outcome.error_ulp:.2g}",
        Text(f"! {quiet}", style="yellow") if timing.noisy else quiet,
    )


def _rate(gb_per_s: float | None) -> str:
    if not gb_per_s:
        return ""
    return f"{gb_per_s:.1f}" if gb_per_s >= 1 else f"{gb_per_s:.2f}"


def _times(ratio: float | int | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _percent(fraction: float | int | None) -> str:
    return "" if not fraction else f"{fraction:.0%}"


def describe_cpu(threads: int) -> str:
    """The CPU and its memory, as the first line on the screen has them."""
    here = this_machine()
    plural = "s" if threads != 1 else ""
    return f"{here.processor}, {here.isa}, {threads} thread{plural}, {here.memory_bytes / 2**30:.0f} GiB"


def check_outputs(json: Path | None, html: Path | None, plot: Path | None) -> None:
    """Raise OutputError now rather than after minutes of measuring."""
    for path in filter(None, (json, html, plot)):
        folder = path.absolute().parent
        if not folder.is_dir():
            raise OutputError(f"cannot write {path}: {folder} is no directory")
        if path.exists() and not path.is_file():
            raise OutputError(f"cannot write {path}: it is {'a directory' if path.is_dir() else 'not a file'}")
        if not os.access(folder, os.W_OK):
            raise OutputError(f"cannot write {path}: permission denied")
    if plot is not None and plot.suffix.lower() not in PLOT_SUFFIXES:
        raise OutputError(f"cannot write {plot}: a plot ends in {', '.join(PLOT_SUFFIXES)}")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise OutputError("a plot needs matplotlib: pip install matplotlib")


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    from onepass.files import FileError
    from onepass.files.atomic import replacing

    try:
        with replacing(path) as stream:
            write(stream)
    except FileError as error:
        raise OutputError(str(error)) from error
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(document: dict[str, Any], path: Path) -> None:
    """The document, one line per value."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    _replace(path, lambda stream: stream.write(text.encode()))


def write_html(document: dict[str, Any], path: Path) -> None:
    """One page that needs nothing else: the data, a sortable table and a chart."""
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    text = page.replace("__DATA__", data)
    _replace(path, lambda stream: stream.write(text.encode()))


def write_plot(document: dict[str, Any], path: Path) -> None:
    """The picture, in the format that the name ends in."""
    if "gpu" in document["machine"]:
        from onepass.bench.gpu_plot import draw
    else:
        from onepass.bench.plot import draw

    _replace(path, lambda stream: draw(document, stream, path.suffix.lower().lstrip(".")))
