"""The `onepass` command: run, explain, doctor, bench, build-torch-extension, cache."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, NoReturn

import typer

import onepass
from onepass.files import FLOATS, FileError, Op, Request, UsageError, run_file

app = typer.Typer(
    help="softmax, log_softmax, logsumexp and row reductions at the speed of memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

cache = typer.Typer(help="The folder of what was compiled on this machine.", no_args_is_help=True)
app.add_typer(cache, name="cache")

DType = Literal["float32", "float64", "float16", "bfloat16"]
Explained = Literal[Op, "softmax_backward", "log_softmax_backward", "logsumexp_backward"]

_UNITS = {"": 1, "B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("", 1024), ("IB", 1024), ("B", 1000))
}


class _Stopped(BaseException):
    """A signal asked the command to stop."""


def _version(wanted: bool) -> None:
    if wanted:
        with _failures():
            typer.echo(f"onepass {onepass.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    source: Annotated[
        str, typer.Argument(metavar="IN", help=".npy, .npz or .safetensors file, or - for .npy on stdin.")
    ],
    target: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="The same kinds; its name decides the format.")
    ],
    op: Annotated[Op, typer.Option(help="The operation.")] = "softmax",
    dim: Annotated[str, typer.Option(help="An int, several that lie side by side (0,1), or 'all'.")] = "-1",
    dtype: Annotated[DType | None, typer.Option(help=r"Type of the result. \[default: as the input]")] = None,
    keepdim: Annotated[bool, typer.Option("--keepdim", help="Reductions keep the dim, with size 1.")] = False,
    name: Annotated[list[str] | None, typer.Option(help="The array to compute; may be repeated.")] = None,
    max_memory: Annotated[str, typer.Option(help="Most bytes of data held at a time.")] = "1GiB",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Apply an operation to the arrays of a file, of any size, in bounded memory.

    Of several arrays every floating one is computed, or exactly those given by --name; the others are copied.

    OUT appears under its name when it is complete, never before. The exit code is 2 for wrong usage, 1 for a failure.

    The program itself takes about 70 MB besides --max-memory.
    """
    with _failures("; try a smaller --max-memory"):
        request = Request(op, _dims(dim), FLOATS[dtype] if dtype else None, keepdim, _size(max_memory))
        began = time.perf_counter()
        with _progress(op, quiet) as progress:
            done = run_file(source, target, request, tuple(name or ()), progress)
        if not quiet:
            seconds = time.perf_counter() - began
            rate = (done.read + done.written) / seconds / 1e9
            copied = f", {done.copied} copied" if done.copied else ""
            typer.echo(
                f"{target}: {op} of {done.computed} array{'s' * (done.computed != 1)}{copied}, "
                f"{done.written:,} bytes in {seconds:.2f} s (in and out {rate:.2f} GB/s)",
                err=True,
            )


@app.command()
def explain(
    shape: Annotated[str, typer.Option(help="Such as 128x262144.")],
    dtype: Annotated[DType, typer.Option(help="Type of the input.")] = "float32",
    dim: Annotated[str, typer.Option(help="An int, several (0,1), or 'all'.")] = "-1",
    op: Annotated[Explained, typer.Option(help="The operation.")] = "softmax",
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or a GPU by name: a100, l4, rtx4090, h100, h200, b200, rtx5090.")
    ] = "cpu",
) -> None:
    """Say how a problem would be computed, here or on a GPU elsewhere, and why."""
    with _failures():
        if not re.fullmatch(r"\d+([x,]\d+)*", shape):
            raise UsageError(f"--shape {shape!r}: expected sizes such as 128x262144")
        dims = _dims(dim)
        try:
            sizes = tuple(int(n) for n in re.split("[x,]", shape))
            one = dims[0] if dims is not None and len(dims) == 1 else dims
            typer.echo(str(onepass.explain(op, sizes, dtype=FLOATS[dtype], dim=one, device=device)))
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error
        except RuntimeError as error:  # a GPU that is not here
            typer.echo(f"onepass: error: {str(error).removeprefix('onepass: ')}", err=True)
            raise typer.Exit(1) from error


@app.command()
def doctor() -> None:
    """Show what onepass found on this machine and what is missing."""
    from onepass.doctor import report

    with _failures():
        report()


@app.command()
def build_torch_extension() -> None:
    """Compile what makes calls on small tensors cheaper, for the torch that is installed.

    Results are then made, and recorded for autograd, in C++. It takes a C++ compiler and half a minute, once for each
    version of torch. Processes that start later use it.
    """
    from onepass.torch import extension

    try:
        with _failures():
            typer.echo(extension.build())
    except (extension.BuildError, ImportError) as error:
        typer.echo(f"onepass: error: {error}", err=True)
        raise typer.Exit(1) from error


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Few cells, few repeats.")] = False,
    cells: Annotated[
        str | None,
        typer.Option(help="Names or patterns of cells, or any problem, such as sum-8x1001-dim0; comma separated."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--sample", metavar="N", help="As many shapes that nobody chose, alone or as well.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of --sample: the same shapes again.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(
            help="Of torch,numpy,scipy,onnxruntime,jax; on a GPU torch,torch.compile,quack,liger,cupy. "
            r"\[default: those installed]"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="F", help="Write the figures as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="F.png", help="Draw fraction of bandwidth over shape.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="F.html", help="Write an interactive report.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds per cell.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    show: Annotated[bool, typer.Option("--list", help="List the cells and exit.")] = False,
    recorded: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="F.json", help="Measure nothing: show these results. Several are parts of one run."
        ),
    ] = None,
) -> None:
    """Measure onepass and its peers on this machine, beside the speed of a plain copy."""
    from onepass.bench import list_cells, run_benchmark, show_results

    with _failures():
        if show:
            try:
                typer.echo("\n".join(list_cells(device)))
            except ValueError as error:
                raise UsageError(str(error)) from error
            return
        if recorded:
            code = show_results(recorded, json, plot, html)
        else:
            chosen, peers = (
                None if text is None else [name.strip() for name in text.split(",")] for text in (cells, against)
            )
            code = run_benchmark(quick, chosen, peers, json, plot, html, repeats, device, samples, seed)
    raise typer.Exit(code)


@cache.command("info")
def cache_info() -> None:
    """Say where compiled kernels are kept, how many there are, and what they take."""
    from onepass.cuda.compile import cache as kernels

    with _failures():
        info = kernels().info()
        typer.echo(
            f"{info.folder or 'no folder'}: {info.entries} kernels, {info.bytes:,} of at most {info.most_bytes:,} bytes"
        )


@cache.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel and torch extension. The next calls on a GPU compile their kernels again."""
    from onepass.cuda.compile import cache as kernels
    from onepass.torch import extension

    with _failures():
        extensions = extension.clear()
        others = f", {extensions} torch extensions" if extensions else ""
        typer.echo(f"{kernels().clear()} kernels{others} removed")


def _dims(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    if not re.fullmatch(r"-?\d{1,9}(,-?\d{1,9})*", text):
        raise UsageError(f"--dim {text!r}: expected an int, ints with commas, or 'all'")
    return tuple(int(d) for d in text.split(","))


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Za-z]*)", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"--max-memory {text!r}: expected a size such as 512MB, 1GiB or 2G")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 << 20 <= size < 1 << 63:
        raise UsageError(f"--max-memory {text!r}: at least 1MiB, less than 8EiB")
    return int(size)


@contextlib.contextmanager
def _progress(title: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error when that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=title if done < total else "flushing to disk")

        yield advance


@contextlib.contextmanager
def _failures(for_memory: str = "") -> Iterator[None]:
    """Turn what can go wrong, signals included, into one line on standard error and an exit code. for_memory: what to
    do where there is too little."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise _Stopped(signal.Signals(number).name)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            name: signal.signal(name, stop) for name in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
        }
    code = 1
    try:
        yield
        return
    except UsageError as error:
        code, text = 2, str(error)
    except FileError as error:
        text = str(error)
    except BrokenPipeError:
        text = "the reader of standard output went away"
        # Python flushes standard output once more on its way out, and would complain a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    except MemoryError as error:
        text = f"out of memory{for_memory} ({error})"
    except KeyboardInterrupt:
        text = "interrupted"
    except _Stopped as error:
        text = f"stopped by {error}"
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    typer.echo(f"onepass: error: {' '.join(text.split())}", err=True)
    raise typer.Exit(code)


def main() -> None:
    """The entry point of the `onepass` command."""
    app()


if __name__ == "__main__":
    main()
