"""`onepass run`: an operation on the arrays of a file, into another file, in bounded memory.

.npy, .npz, .safetensors, and `-` for an .npy stream on standard input or output.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from .apply import run_job
from .jobs import ComputeJob, Job, Request, Target, compute_job, copy_job
from .npy import read_npy, read_npz, read_pipe, write_npy, write_npz, write_pipe
from .safetensors import read_safetensors, write_safetensors
from .tensor import Access, FileError, Sink, Source, Tensor, UsageError


@dataclass(frozen=True)
class Format:
    read: Callable[[Path], AbstractContextManager[Source]]
    write: Callable[[Path], AbstractContextManager[Sink]]
    target: Target


_PIPE = "-"
_FORMATS = {
    ".npy": Format(read_npy, write_npy, Target(Access.RANDOM, fortran=True, many=False)),
    ".npz": Format(read_npz, write_npz, Target(Access.ONCE, fortran=True, many=True)),
    ".safetensors": Format(read_safetensors, write_safetensors, Target(Access.RANDOM, fortran=False, many=True)),
    _PIPE: Format(lambda _: read_pipe(), lambda _: write_pipe(), Target(Access.ONCE, fortran=True, many=False)),
}


@dataclass(frozen=True)
class Summary:
    """What was done: how many arrays were computed and copied, and the bytes of the whole input and output arrays."""

    computed: int
    copied: int
    read: int
    written: int


def run_file(
    source: str,
    target: str,
    request: Request,
    names: tuple[str, ...] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """Apply `request` to the arrays of `source` and write them to `target`; both are paths, or `-` for a pipe.

    Without `names`: to the array of an .npy file, to every floating array of the other formats. With names, to exactly
    those. The other arrays are copied when the output format holds several. `progress(done, total)` counts bytes read.
    Raises FileError, of which UsageError is a kind, with a message of one line; `target` then is what it was before.
    """
    reading, writing = _format(source, "IN"), _format(target, "OUT")
    _check_paths(source, target)
    with reading.read(Path(source)) as held:
        jobs = _jobs(held, writing.target, request, names, "standard input" if source == _PIPE else source)
        total = sum(job.reads for job in jobs)
        done = 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done, total)

        progress(0, total)
        with writing.write(Path(target)) as sink:
            sink.begin([job.result for job in jobs], held.metadata)
            for job in jobs:
                with sink.writer(job.result) as writer:
                    run_job(job, writer, advance)
    computed = sum(isinstance(job, ComputeJob) for job in jobs)
    read, written = sum(job.tensor.info.nbytes for job in jobs), sum(job.result.nbytes for job in jobs)
    return Summary(computed, len(jobs) - computed, read, written)


def _format(path: str, argument: str) -> Format:
    suffix = _PIPE if path == _PIPE else Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise UsageError(
            f"{argument} {path!r}: expected a name ending in .npy, .npz or .safetensors, or '-' for a pipe"
        )
    return _FORMATS[suffix]


def _check_paths(source: str, target: str) -> None:
    if source != _PIPE:
        if not os.path.exists(source):
            raise UsageError(f"IN {source!r} does not exist")
        if os.path.isdir(source):
            raise UsageError(f"IN {source!r} is a directory")
        if target != _PIPE and os.path.exists(target) and os.path.samefile(source, target):
            raise UsageError(f"IN and OUT are the same file, {source!r}")


def _jobs(held: Source, target: Target, request: Request, names: tuple[str, ...], title: str) -> list[Job]:
    infos = [tensor.info for tensor in held.tensors]
    known = [info.name for info in infos]
    counts = Counter(known)
    for name, count in counts.items():
        if count > 1:
            raise FileError(f"{title} holds two arrays named {name!r}")
    for name in names:
        if name not in counts:
            raise UsageError(f"{title} holds no array named {name!r}; it holds {_list(known)}")
    single = len(infos) == 1
    # What cannot be read may be floating, too.
    chosen = set(names) or {t.info.name for t in held.tensors if t.info.floating or t.error or single}
    if not chosen:
        raise UsageError(f"{title} holds no floating array ({_list(known)}); pick others with --name")
    tensors = held.tensors
    if not target.many:
        tensors = [tensor for tensor in tensors if tensor.info.name in chosen]
        if len(tensors) > 1:
            raise UsageError(
                f"OUT holds one array, {title} has {len(tensors)} ({_list(sorted(chosen))}); pick one with --name"
            )

    def job(tensor: Tensor) -> Job:
        if tensor.error is not None:
            raise tensor.error
        return (compute_job if tensor.info.name in chosen else copy_job)(tensor, request, target)

    return [job(tensor) for tensor in tensors]


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "") if names else "none"
