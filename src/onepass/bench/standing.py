"""Where onepass stands in a run: where it is behind; on a GPU, how far ahead of whom and how far above a copy, too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from onepass.bench.cells import ITEM_BYTES
from onepass.bench.results import geometric_mean

BEHIND = 1.03  # times of the fastest peer: what is slower is listed
LARGE_BYTES = 64 << 20  # of an array: from here on launches and latencies are small beside the copy
FEW_ROWS_PER_MULTIPROCESSOR = 4

Cell = dict[str, Any]


def standing(cells: list[Cell], peers: list[str], gpu: dict[str, Any] | None = None) -> dict[str, Any]:
    """Each contender against those of the same cell: where the fastest peer is ahead, a fresh result against fresh
    ones, on a CPU results in `out=` as well; on a GPU, per region of the softmax cells, the geometric mean of how many
    times faster onepass is than each peer, and its time over the copy's. `peers` are contenders but onepass; what calls
    cost the host of a GPU is left out."""
    measured = [cell for cell in cells if _seconds(cell, "onepass", "fresh") is not None]
    regions: dict[str, dict[str, Any]] = {}
    if gpu is not None:
        measured = [cell for cell in measured if cell["group"] != "calls"]
        softmax = [cell for cell in measured if cell["op"] == "softmax"]
        regions = {name: _region(list(filter(has, softmax)), peers) for name, has in _regions(gpu).items()}
    modes = ("fresh", "out") if gpu is None else ("fresh",)
    behind = [found for cell in measured for mode in modes if (found := _behind(cell, peers, mode)) is not None]
    return {
        "regions": regions,
        "cells": sum(any(_ratio(cell, peer, mode) for peer in peers for mode in modes) for cell in measured),
        "behind": sorted(behind, key=lambda found: -found["times_slower"]),
    }


def _regions(gpu: dict[str, Any]) -> dict[str, Callable[[Cell], bool]]:
    return {
        "all": lambda cell: True,
        "few rows": lambda cell: _rows(cell) < FEW_ROWS_PER_MULTIPROCESSOR * gpu["multiprocessors"],
        "large": lambda cell: (
            cell["dim"] == -1
            and _rows(cell) * _row_bytes(cell) >= LARGE_BYTES
            and _row_bytes(cell) <= gpu["multiprocessors"] * gpu["shared_per_multiprocessor"]
        ),
        "other dims": lambda cell: cell["dim"] != -1,
    }


def _region(cells: list[Cell], peers: list[str]) -> dict[str, Any]:
    over = {
        cell["name"]: ours / copy
        for cell in cells
        if (ours := _seconds(cell, "onepass", "fresh")) is not None and (copy := _copy(cell)) is not None
    }
    worst = max(over, key=lambda name: over[name], default=None)
    return {
        "cells": len(cells),
        "times_faster": {peer: geometric_mean(_ratio(cell, peer, "fresh") for cell in cells) for peer in peers},
        "over_copy": {
            "median": statistics.median(over.values()) if over else None,
            "worst": None if worst is None else over[worst],
            "worst_cell": worst,
        },
    }


def _behind(cell: Cell, peers: list[str], mode: str) -> dict[str, Any] | None:
    ratios = {peer: ratio for peer in peers if (ratio := _ratio(cell, peer, mode)) is not None}
    best = min(ratios, key=lambda peer: ratios[peer], default=None)
    if best is None or ratios[best] * BEHIND >= 1:
        return None
    peer = f"{best} out=" if mode == "out" else best
    return {"cell": cell["name"], "algorithm": cell["algorithm"], "peer": peer, "times_slower": 1 / ratios[best]}


def _seconds(cell: Cell, peer: str, mode: str) -> float | None:
    found = (o.get("seconds") for o in cell["outcomes"] if o["peer"] == peer and o["mode"] == mode)
    return next(found, None)


def _ratio(cell: Cell, peer: str, mode: str) -> float | None:
    ours, theirs = _seconds(cell, "onepass", mode), _seconds(cell, peer, mode)
    return theirs / ours if ours and theirs else None


def _copy(cell: Cell) -> float | None:
    return min((o["seconds"] for o in cell["outcomes"] if o["mode"] == "copy" and "seconds" in o), default=None)


def _rows(cell: Cell) -> int:
    return math.prod(cell["shape"]) // int(cell["length"])


def _row_bytes(cell: Cell) -> int:
    return int(cell["length"]) * ITEM_BYTES[cell["dtype"]]
