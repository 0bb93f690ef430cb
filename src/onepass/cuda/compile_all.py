"""Many kernels compiled at once: what tests and tools that go through them wait for otherwise, one by one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from .compile import compile_kernel
from .kernel_plan import CudaPlan


def _compile(kernel: tuple[str, str, str, str]) -> None:
    header, name, architecture, source = kernel
    compile_kernel(header, name, architecture, source=source)


def compile_all(plans: Iterable[CudaPlan], architecture: str) -> None:
    """Fill the cache of compiled kernels, with every core of the machine. Raises what the first of those raised that
    could not be compiled, when the others have been."""
    wanted = list(dict.fromkeys((plan.header, plan.kernel, architecture, plan.source) for plan in plans))
    workers = os.cpu_count() or 1
    spawn = multiprocessing.get_context("spawn")  # this process may have used CUDA
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        list(pool.map(_compile, wanted, chunksize=max(1, len(wanted) // (4 * workers))))
