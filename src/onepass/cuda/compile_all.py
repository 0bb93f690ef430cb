"""Many kernels compiled at once: what tests and tools that go through them wait for otherwise, one by one."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from .compile import cache, compile_kernel
from .kernel_plan import CudaPlan


def _compile(kernel: tuple[str, str, str, str]) -> None:
    header, name, architecture, source = kernel
    compile_kernel(header, name, architecture, source=source)


def compile_all(plans: Iterable[CudaPlan], architecture: str) -> None:
    """Fill the cache of compiled kernels, with every core of the machine, while other processes that want the same
    wait. Raises what the first of those raised that could not be compiled, when the others have been."""
    wanted = list(dict.fromkeys((plan.header, plan.kernel, architecture, plan.source) for plan in plans))
    workers = os.cpu_count() or 1
    spawn = multiprocessing.get_context("spawn")  # this process may have used CUDA
    with _others_waiting(), ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        list(pool.map(_compile, wanted, chunksize=max(1, len(wanted) // (4 * workers))))


@contextlib.contextmanager
def _others_waiting() -> Iterator[None]:
    """Nobody else's turn to fill this folder: all that come at once would find the same kernels missing."""
    folder = cache().folder
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):  # that nothing can be kept there is for the cache to say
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                turn = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, turn)
                fcntl.flock(turn, fcntl.LOCK_EX)
        yield
