"""One cell on a GPU: prepare, verify, then time the contenders against each other."""

from __future__ import annotations

import importlib
import timeit
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import onepass
from onepass import _engine
from onepass.bench import gpu_gradients, timing
from onepass.bench.cells import REDUCTIONS
from onepass.bench.gpu_cells import OTHERS, GpuCell
from onepass.bench.gpu_contenders import GpuContender, GpuData
from onepass.bench.gpu_peers import bounds, make_data
from onepass.bench.gpu_timing import Flush, GpuEffort, interleave
from onepass.bench.peers import Peer
from onepass.bench.results import CellReport, Outcome, first_line, outcome
from onepass.bench.verify import Verifier, WrongResult
from onepass.cuda.launch import read_device
from onepass.problem import GRADIENTS

FULL = GpuEffort(rounds=11, most_rounds=150, seconds=0.5)
QUICK = GpuEffort(rounds=5, most_rounds=10, seconds=0.1)
# What others may be off by, times what onepass may: a thread that adds up a column of 4096 by itself is off by 60 ULP,
# and honest (torch, dim 0).
_ROOM_OF_OTHERS = 4
_HOST_EFFORT = timing.Effort(rounds=41, most_rounds=41, window_seconds=0.01)


class GpuVerifier(Verifier):
    """Compares on the host what the reference has, and looks for unwritten elements on the GPU."""

    def __init__(self, data: GpuData):
        super().__init__(data.cell, data.x, dtype=np.dtype(_numpy_name(data.cell.dtype)), beside=data.beside)

    def _take(self, full: Any) -> NDArray[Any]:
        cell = self.cell
        if full.dim() == len(cell.shape):
            full = full.movedim(cell.axis, -1)
        rows = tuple(map(importlib.import_module("torch").from_numpy, self.rows))
        taken: NDArray[Any] = full[rows].double().cpu().numpy()
        return taken

    def error(self, result: Any) -> float:
        torch, cell = importlib.import_module("torch"), self.cell
        if tuple(result.shape) != cell.result_shape or result.dtype != getattr(torch, cell.dtype):
            raise WrongResult(
                f"returned {result.dtype} {tuple(result.shape)}; expected {cell.dtype} {cell.result_shape}"
            )
        if not bool(torch.isfinite(result.sum(-1, dtype=torch.float64) if result.dim() else result).all()):
            raise WrongResult("left elements unwritten or not finite")
        got = self._take(result) if cell.op not in REDUCTIONS else result[self._rows_of(torch)].double().cpu().numpy()
        return self.distance(got)

    def _rows_of(self, torch: Any) -> tuple[Any, ...]:
        return tuple(map(torch.from_numpy, self.rows))


def _numpy_name(dtype: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, dtype, dtype)


def describe(ordinal: int) -> dict[str, Any]:
    """The GPU that is measured, and what drives it. Raises CudaError without it, ImportError without torch."""
    torch = importlib.import_module("torch")
    device = asdict(read_device(ordinal))
    driver = _engine.gpu_driver_version()
    return {
        **device,
        "memory_bytes": _engine.gpu_memory(ordinal),
        "driver": f"CUDA {driver // 1000}.{driver % 1000 // 10}",
        "torch": torch.__version__,
    }


def measure(cell: GpuCell, peers: Sequence[Peer], effort: GpuEffort, device: str = "cuda:0") -> CellReport:
    """Verify and time one cell; `peers` are installed."""
    torch = importlib.import_module("torch")
    free, total = torch.cuda.mem_get_info(device)
    if cell.needed_bytes > free:
        return CellReport(cell, skipped=f"needs {cell.needed_bytes / 2**30:.1f} GiB of {total / 2**30:.1f}")
    with torch.cuda.device(device), torch.no_grad():
        data = make_data(cell, device)
        verifier = GpuVerifier(data)
        outcomes, contenders = [], {}
        for contender, problem in _prepared(data, peers):
            outcome = problem or _verified(contender, data, verifier)
            outcomes.append(outcome)
            if outcome.status == "ok":
                contenders[outcome.label] = contender
        if cell.group == "calls":
            timings = _host_costs(cell.name, contenders, torch)
        else:
            flush = Flush(device, torch.cuda.get_device_properties(device).L2_cache_size)
            calls = {label: contender.call for label, contender in contenders.items()}
            timings = interleave(calls, effort, flush, timing.seed_of(cell.name))
        if cell.op in GRADIENTS:
            gpu_gradients.run_onepass(data)
        else:
            getattr(onepass, cell.op)(data.x, dim=cell.dim)
        algorithm = _engine.last_algorithm()
    torch.cuda.empty_cache()
    timed = tuple(replace(outcome, timing=timings.get(outcome.label)) for outcome in outcomes)
    return CellReport(cell, "torch", algorithm, verifier.tolerance, timed)


def _host_costs(cell: str, contenders: dict[str, GpuContender], torch: Any) -> dict[str, timing.Timing]:
    """Seconds of the host per call: kernels this small never fill the queue."""
    timers = {label: timeit.Timer(contender.call) for label, contender in contenders.items()}
    timings = timing.interleave(timers, _HOST_EFFORT, timing.seed_of(cell))
    torch.cuda.synchronize()
    return {
        label: timing.Timing(
            tuple(replace(w, seconds=w.seconds / contenders[label].repeats, noisy=False) for w in found.windows)
        )
        for label, found in timings.items()
    }


def _prepared(data: GpuData, peers: Sequence[Peer]) -> list[tuple[GpuContender, Outcome | None]]:
    prepared: list[tuple[GpuContender, Outcome | None]] = [(contender, None) for contender in bounds(data)]
    for peer in peers:
        if (peer.name in OTHERS and peer.name not in data.cell.peers) or not peer.takes(data.cell):
            continue
        try:
            prepared += [(contender, None) for contender in peer.prepare(data)]
        except Exception as error:  # a broken peer is a finding of the benchmark, not the end of it
            contender = GpuContender(peer.name, "fresh", "", lambda: None, data.cell.moved_bytes)
            prepared.append((contender, outcome(contender, "failed", note=first_line(error))))
    return prepared


def _verified(contender: GpuContender, data: GpuData, verifier: GpuVerifier) -> Outcome:
    try:
        if contender.mode == "out":
            data.out.fill_(float("nan"))
        value = contender.call()
        result = data.out if contender.mode == "out" else value
        if contender.mode in ("copy", "bound"):
            return outcome(contender, "ok")
        error_ulp = verifier.error(result)
    except WrongResult as wrong:
        return outcome(contender, "wrong", note=str(wrong))
    except Exception as error:  # as above
        return outcome(contender, "failed", note=first_line(error))
    allowed = verifier.tolerance * (1 if contender.ours else _ROOM_OF_OTHERS)
    if not error_ulp <= allowed:
        note = f"off by {error_ulp:.4g} ULP; {allowed:.4g} allowed"
        return outcome(contender, "wrong", note=note, error_ulp=error_ulp)
    return outcome(contender, "ok", error_ulp=error_ulp)
