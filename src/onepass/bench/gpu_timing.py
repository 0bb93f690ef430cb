"""Timing on a GPU: by events around each call, with L2 flushed before it, contenders interleaved."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onepass.bench.timing import Timing, Window

_WARM_UPS = 3
_CYCLES_PER_SECOND = 2e9  # of a GPU's clock, or more


@dataclass(frozen=True)
class GpuEffort:
    """How long to look: rounds at least and at most, and the GPU's time for a cell that decides between."""

    rounds: int
    most_rounds: int
    seconds: float


class Flush:
    """Fills L2 with something else. Writing leaves it full of lines that have to go first, as a program's would."""

    def __init__(self, device: str, l2_bytes: int) -> None:
        torch = importlib.import_module("torch")
        self._memory = torch.empty(max(4 * l2_bytes, 256 << 20), dtype=torch.uint8, device=device)

    def __call__(self) -> None:
        self._memory.zero_()


def interleave(calls: Mapping[str, Callable[[], Any]], effort: GpuEffort, flush: Flush, seed: int) -> dict[str, Timing]:
    """Time every contender once per round, in a new random order each round. Results are dropped at once.

    The GPU is kept busy until the host has made the call, so that what is measured is the GPU's work alone.
    """
    torch = importlib.import_module("torch")
    order = random.Random(seed)

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    def measure(call: Callable[[], Any], host_seconds: float) -> tuple[Any, Any]:
        begin, end = event(), event()
        torch.cuda._sleep(int(2 * host_seconds * _CYCLES_PER_SECOND))
        flush()
        begin.record()
        call()
        end.record()
        return begin, end

    total = 0.0
    host: dict[str, float] = {}
    for name, call in calls.items():
        for _ in range(_WARM_UPS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            host[name] = time.perf_counter() - began
        begin, end = measure(call, host[name])
        torch.cuda.synchronize()
        total += begin.elapsed_time(end) / 1e3
    rounds = min(effort.most_rounds, max(effort.rounds, round(effort.seconds / max(total, 1e-6))))
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in order.sample(sorted(calls), len(calls)):
            pairs[name].append(measure(calls[name], host[name]))
        torch.cuda.synchronize()
    return {
        name: Timing(tuple(Window(begin.elapsed_time(end) / 1e3, 1, None, False) for begin, end in mine))
        for name, mine in pairs.items()
    }
