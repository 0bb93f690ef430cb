"""Where onepass stands in a run on a GPU: how far ahead of whom, how far above a copy, and where it is behind."""

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


def standing(cells: list[Cell], gpu: dict[str, Any], peers: list[str]) -> dict[str, Any]:
    """Of fresh results, each against those of the same cell: per region of the softmax cells, the geometric mean of
    how many times faster onepass is than each peer, and its time over the copy's; of all cells, those where the fastest
    peer is ahead. `peers` are contenders but onepass; what the calls of a host cost is left out."""
    measured = [cell for cell in cells if cell["group"] != "calls" and _fresh(cell, "onepass") is not None]
    softmax = [cell for cell in measured if cell["op"] == "softmax"]
    regions: dict[str, Callable[[Cell], bool]] = {
        "all": lambda cell: True,
        "few rows": lambda cell: _rows(cell) < FEW_ROWS_PER_MULTIPROCESSOR * gpu["multiprocessors"],
        "large": lambda cell: (
            cell["dim"] == -1
            and _rows(cell) * _row_bytes(cell) >= LARGE_BYTES
            and _row_bytes(cell) <= gpu["multiprocessors"] * gpu["shared_per_multiprocessor"]
        ),
        "other dims": lambda cell: cell["dim"] != -1,
    }
    behind = [found for cell in measured if (found := _behind(cell, peers)) is not None]
    return {
        "regions": {name: _region(list(filter(belongs, softmax)), peers) for name, belongs in regions.items()},
        "cells": sum(any(_ratio(cell, peer) for peer in peers) for cell in measured),
        "behind": sorted(behind, key=lambda found: -found["times_slower"]),
    }


def _region(cells: list[Cell], peers: list[str]) -> dict[str, Any]:
    over = {
        cell["name"]: ours / copy
        for cell in cells
        if (ours := _fresh(cell, "onepass")) is not None and (copy := _copy(cell)) is not None
    }
    worst = max(over, key=lambda name: over[name], default=None)
    return {
        "cells": len(cells),
        "times_faster": {peer: geometric_mean(_ratio(cell, peer) for cell in cells) for peer in peers},
        "over_copy": {
            "median": statistics.median(over.values()) if over else None,
            "worst": None if worst is None else over[worst],
            "worst_cell": worst,
        },
    }


def _behind(cell: Cell, peers: list[str]) -> dict[str, Any] | None:
    ratios = {peer: ratio for peer in peers if (ratio := _ratio(cell, peer)) is not None}
    best = min(ratios, key=lambda peer: ratios[peer], default=None)
    if best is None or ratios[best] * BEHIND >= 1:
        return None
    return {"cell": cell["name"], "algorithm": cell["algorithm"], "peer": best, "times_slower": 1 / ratios[best]}


def _fresh(cell: Cell, peer: str) -> float | None:
    found = (o.get("seconds") for o in cell["outcomes"] if o["peer"] == peer and o["mode"] == "fresh")
    return next(found, None)


def _ratio(cell: Cell, peer: str) -> float | None:
    ours, theirs = _fresh(cell, "onepass"), _fresh(cell, peer)
    return theirs / ours if ours and theirs else None


def _copy(cell: Cell) -> float | None:
    return min((o["seconds"] for o in cell["outcomes"] if o["mode"] == "copy" and "seconds" in o), default=None)


def _rows(cell: Cell) -> int:
    return math.prod(cell["shape"]) // int(cell["length"])


def _row_bytes(cell: Cell) -> int:
    return int(cell["length"]) * ITEM_BYTES[cell["dtype"]]
