"""`onepass run` on a file of several GiB: peak memory, every slab of the result, and a kill half-way.

    python tools/verify_large_run.py --gib 6 --max-memory 1GiB --limit-gib 1.5

Writes twice the size given into a temporary directory, which it removes. Exits with 1 when anything is not as promised.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 4096
# What this program itself holds at a time; small, because Linux counts it into the peak of the processes it starts.
BLOCK_ROWS = 512


def write_input(path: Path, rows: int, length: int) -> None:
    """Random float32 rows, without holding more than one block; the spread differs from block to block."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, length)}
    block = np.random.default_rng(0).standard_normal(BLOCK_ROWS * COLUMNS).astype(np.float32)
    total = rows * length
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for index, start in enumerate(range(0, total, block.size)):
            piece = np.roll(block, index) * np.float32(1 + index % 7)
            stream.write(piece[: min(block.size, total - start)].data)


def run(arguments: list[str], kill_after: float = math.inf) -> tuple[int, float, int]:
    """The exit code, the seconds and the peak resident bytes of one command; killed once it has read so many bytes."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "onepass.cli", *arguments])
    while kill_after < math.inf:
        counted = Path(f"/proc/{process.pid}/io").read_text().split()
        if int(counted[counted.index("rchar:") + 1]) >= kill_after:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.perf_counter() - began, usage.ru_maxrss << 10


def softmax64(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def largest_error(source: Path, result: Path) -> float:
    """The largest relative error over all elements above 1e-30, slab by slab; inf where one is missing."""
    x, y = np.load(source, mmap_mode="r"), np.load(result, mmap_mode="r")
    if x.shape != y.shape or y.dtype != np.float32:
        return float("inf")
    worst = 0.0
    for start in range(0, len(x), BLOCK_ROWS):
        want = softmax64(x[start : start + BLOCK_ROWS], 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(want > 1e-30, np.abs(y[start : start + BLOCK_ROWS] - want) / want, 0)
        worst = max(worst, float(error.max())) if np.isfinite(error).all() else float("inf")
    return worst


def largest_error_of_one_row(source: Path, result: Path) -> float:
    """As `largest_error`, for one row that is itself larger than memory."""
    x, y = np.load(source, mmap_mode="r")[0], np.load(result, mmap_mode="r")[0]
    size = BLOCK_ROWS * COLUMNS
    cuts = [slice(start, start + size) for start in range(0, len(x), size)]
    m = max(float(x[cut].max()) for cut in cuts)
    d = sum(float(np.exp(x[cut].astype(np.float64) - m).sum()) for cut in cuts)
    worst = 0.0
    for cut in cuts:
        want = np.exp(x[cut].astype(np.float64) - m) / d
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(want > 1e-30, np.abs(y[cut] - want) / want, 0)
        worst = max(worst, float(error.max())) if np.isfinite(error).all() else float("inf")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=6.0, help="size of the input")
    parser.add_argument("--max-memory", default="1GiB", help="given to onepass run")
    parser.add_argument("--limit-gib", type=float, default=1.5, help="the peak that counts as a failure")
    parser.add_argument("--one-row", action="store_true", help="one row of that size instead of rows of 4096")
    parser.add_argument("--directory", default=None, help="where the temporary files go")
    options = parser.parse_args()
    elements = int(options.gib * (1 << 30)) // 4
    rows, length = (1, elements) if options.one_row else (elements // COLUMNS, COLUMNS)
    failed = []
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        source, result = Path(name, "in.npy"), Path(name, "out.npy")
        write_input(source, rows, length)
        arguments = ["run", str(source), "-o", str(result), "--op", "softmax", "--max-memory", options.max_memory]

        code, seconds, peak = run(arguments)
        print(f"[{rows}, {length}] float32, {source.stat().st_size:,} bytes: exit code {code} in {seconds:.1f} s")
        print(f"peak resident memory {peak / (1 << 30):.3f} GiB with --max-memory {options.max_memory}")
        if code != 0 or peak >= options.limit_gib * (1 << 30):
            failed.append("run")
        worst = largest_error_of_one_row(source, result) if options.one_row else largest_error(source, result)
        print(f"largest relative error against float64 {worst:.2e}")
        if not worst < 1e-5:
            failed.append("result")

        result.unlink(missing_ok=True)
        code, _, _ = run(arguments, kill_after=source.stat().st_size // 2)
        left = sorted(entry.name for entry in Path(name).iterdir() if entry != source)
        print(f"killed half-way: exit code {code}, left behind {left}")
        if code != -signal.SIGKILL or result.exists():
            failed.append("kill")
    print(f"failed: {', '.join(failed)}" if failed else "all as promised")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
