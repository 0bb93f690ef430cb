#!/usr/bin/env python3
"""Compiles the CUDA kernels that the planner produces for a grid of problems, for every architecture, without a GPU.

    tools/nvrtc_matrix.py [--write] [--all] [--arch 90a ...] [--jobs 2]

Fails if one does not compile, spills registers or uses more shared memory than a block may have; and if registers are
not those of tests/data/registers.csv, when the compiler is the one that wrote the table. --write writes it.

What the table's compiler made of the same sources is not compiled again, but for a sample of one kernel in
ONE_OF_SO_MANY, which keeps the table honest; --all compiles everything. Needs cuda-core and nvidia-cuda-nvrtc.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from kernel_plans import DEVICES, plans

from onepass.cuda.kernel_plan import COMPILER_OPTIONS, CudaPlan

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "src/onepass/include"
TABLE = ROOT / "tests/data/registers.csv"
PER_PROGRAM = 16
ONE_OF_SO_MANY = 32


class Usage(NamedTuple):
    """What ptxas says of a kernel on one architecture."""

    registers: int
    spilled: int  # bytes, or of a stack
    static: int  # bytes of shared memory


class Table(NamedTuple):
    """tests/data/registers.csv: of kernels without spills."""

    written_by: str
    sources: dict[str, str]  # by kernel
    usages: dict[tuple[str, str], Usage]  # by kernel and architecture


@functools.cache
def included(header: str) -> tuple[str, ...]:
    """The header and all that it includes, but for what is only there for the simulator."""
    found = {header: None}
    for name in re.findall(r'^#include "([^"]+)"', (INCLUDE / header).read_text(), re.MULTILINE):
        path = os.path.normpath(Path(header).parent / name)
        if (INCLUDE / path).exists():
            found.update(dict.fromkeys(included(path)))
    return tuple(found)


def code_of(text: str) -> str:
    """Source text without comments and white space, of which nothing is compiled."""
    return "".join(re.sub(r"//.*", "", text).split())


@functools.cache
def sources(header: str) -> str:
    """A digest of what a kernel of that header is compiled from."""
    digest = hashlib.sha256(repr(sorted(COMPILER_OPTIONS.items())).encode())
    for name in sorted(included(header)):
        digest.update((name + code_of((INCLUDE / name).read_text())).encode())
    return digest.hexdigest()[:12]


class _Log:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str | bytes) -> None:
        self.text += text if isinstance(text, str) else text.decode()


def compile_batch(architecture: str, batch: list[CudaPlan]) -> dict[str, Usage]:
    """What several kernels, compiled as one program, take."""
    from cuda.core import Program, ProgramOptions

    source = "".join(f'#include "{header}"\n' for header in dict.fromkeys(plan.header for plan in batch))
    options = ProgramOptions(
        arch=f"sm_{architecture}", include_path=[str(INCLUDE)], ptxas_options=["-v"], **COMPILER_OPTIONS
    )
    log = _Log()
    names = tuple(plan.kernel for plan in batch)
    code = Program(source, "c++", options).compile("cubin", name_expressions=names, logs=log)
    of_symbol = {symbol.decode(): name for name, symbol in code.symbol_mapping.items()}
    results = {}
    for part in log.text.split("Compiling entry function '")[1:]:

        def number(pattern: str, text: str = part) -> int:
            return sum(int(n) for n in re.findall(pattern, text))

        spilled = number(r"(\d+) bytes (?:spill|stack frame)")
        usage = Usage(number(r"Used (\d+) registers"), spilled, number(r"(\d+) bytes smem"))
        results[of_symbol[part.partition("'")[0]]] = usage
    assert len(results) == len(batch), log.text
    return results


def compiler() -> str:
    return f"nvidia-cuda-nvrtc {importlib.metadata.version('nvidia-cuda-nvrtc')}"


def known(plan: CudaPlan, architecture: str, table: Table) -> Usage | None:
    """What the table says, if its compiler and sources are these and the kernel is not of the sample."""
    if zlib.crc32(plan.kernel.encode()) % ONE_OF_SO_MANY == 0:
        return None
    if table.written_by != compiler() or table.sources.get(plan.kernel) != sources(plan.header):
        return None
    return table.usages.get((plan.kernel, architecture))


def measure(planned: dict[str, list[CudaPlan]], table: Table, jobs: int) -> tuple[Table, int]:
    """The table of these plans by architecture, and how many were compiled for it."""
    measured = Table(compiler(), {}, {})
    compiled = 0
    with ProcessPoolExecutor(jobs) as pool:
        work = {}
        for architecture, todo in planned.items():
            unknown = []
            for plan in todo:
                measured.sources[plan.kernel] = sources(plan.header)
                usage = known(plan, architecture, table)
                if usage is None:
                    unknown.append(plan)
                else:
                    measured.usages[plan.kernel, architecture] = usage
            batches = [unknown[i : i + PER_PROGRAM] for i in range(0, len(unknown), PER_PROGRAM)]
            work[architecture] = len(unknown), [pool.submit(compile_batch, architecture, batch) for batch in batches]
        for architecture, (count, futures) in work.items():
            for future in futures:
                measured.usages.update({(kernel, architecture): u for kernel, u in future.result().items()})
            most = max(measured.usages[plan.kernel, architecture].registers for plan in planned[architecture])
            total = len(planned[architecture])
            print(f"sm_{architecture}: {total} kernels, {count} compiled, {most} registers at most", flush=True)
            compiled += count
    return measured, compiled


def faults(planned: dict[str, list[CudaPlan]], measured: Table) -> list[str]:
    """Spills, and more shared memory than there is."""
    found = []
    for architecture, todo in planned.items():
        most = DEVICES[architecture].shared_per_block
        for plan in todo:
            usage = measured.usages[plan.kernel, architecture]
            if usage.spilled:
                what = f"spills {usage.spilled} bytes, or has an array in memory"
                found.append(f"sm_{architecture}: {plan.kernel} {what}")
            if usage.static + plan.shared_bytes > most:
                what = f"{usage.static} + {plan.shared_bytes} bytes of shared memory"
                found.append(f"sm_{architecture}: {plan.kernel}: {what}")
    return found


def write_table(table: Table) -> None:
    """Of what does not spill. A cell is `registers` or, where the kernel has shared memory of its own,
    `registers+bytes`."""

    def cell(usage: Usage | None) -> str:
        if usage is None or usage.spilled:
            return ""
        return f"{usage.registers}+{usage.static}" if usage.static else str(usage.registers)

    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([table.written_by, "sources", *DEVICES])
        for kernel, digest in sorted(table.sources.items()):
            writer.writerow([kernel, digest, *(cell(table.usages.get((kernel, a))) for a in DEVICES)])


def read_table() -> Table:
    with TABLE.open(newline="") as file:
        (written_by, _, *architectures), *rows = csv.reader(file)
    table = Table(written_by, {}, {})
    for kernel, digest, *cells in rows:
        table.sources[kernel] = digest
        for architecture, cell in zip(architectures, cells, strict=True):
            if cell:
                registers, _, static = cell.partition("+")
                table.usages[kernel, architecture] = Usage(int(registers), 0, int(static or 0))
    return table


def differences(expected: Table, measured: Table, architectures: list[str]) -> list[str]:
    """How the table and what was measured differ, where they can be compared."""
    before = {key: usage for key, usage in expected.usages.items() if key[1] in architectures}
    now = measured.usages
    missing = sorted(set(before) ^ set(now))
    found = [
        f"sm_{a}: {kernel} is only in {'the table' if (kernel, a) in before else 'the grid'}" for kernel, a in missing
    ]
    if expected.written_by != measured.written_by:
        print(f"registers are not compared: the table is of {expected.written_by}, this is {measured.written_by}")
        return found
    for key in sorted(set(before) & set(now)):
        # Shared memory is padded by what else there is in the program.
        if (was := before[key].registers) != now[key].registers:
            found.append(f"sm_{key[1]}: {key[0]} had {was} registers, has {now[key].registers}")
    stale = sum(measured.sources.get(kernel, digest) != digest for kernel, digest in expected.sources.items())
    if stale:
        print(f"{stale} kernels have other sources than in the table, and were compiled for that: --write spares it")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table of registers")
    parser.add_argument("--all", action="store_true", help="compile what the table has of the same sources, too")
    parser.add_argument("--arch", action="append", choices=list(DEVICES), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    if options.write and options.arch:
        parser.error("--write is for all architectures")
    began = time.perf_counter()
    architectures = options.arch or list(DEVICES)
    planned = {architecture: plans(DEVICES[architecture]) for architecture in architectures}
    table = read_table() if TABLE.exists() else Table("nobody", {}, {})
    measured, compiled = measure(planned, Table("nobody", {}, {}) if options.all else table, options.jobs)
    wrong = faults(planned, measured)
    if options.write:
        write_table(measured)
    else:
        wrong += differences(table, measured, architectures)
    for line in wrong:
        print(line)
    kernels = f"{len(measured.usages)} kernels, {compiled} of them compiled"
    print(f"{kernels}, in {time.perf_counter() - began:.0f} s: {len(wrong)} things wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
