"""What a cell is measured with on a GPU: its tensors, and one way to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onepass.bench.gpu_cells import GpuCell


@dataclass(frozen=True)
class GpuData:
    """The tensors of one cell."""

    cell: GpuCell
    x: Any  # of a gradient, what was saved
    beside: tuple[Any, ...]  # what a gradient reads beside it
    out: Any


@dataclass(frozen=True)
class GpuContender:
    """One way to compute a cell. Modes: "fresh", "out", "copy", and "bound" for what no result is expected of."""

    peer: str
    mode: str
    statement: str
    call: Callable[[], Any]
    moved_bytes: int
    repeats: int = 1  # that the call makes of what is measured
    ours: bool = False  # onepass, or one of its variants

    @property
    def label(self) -> str:
        return f"{self.peer} out=" if self.mode == "out" else self.peer


def contender(peer: str, mode: str, data: GpuData, statement: str, call: Callable[[], Any]) -> GpuContender:
    return GpuContender(peer, mode, statement, call, data.cell.moved_bytes)
