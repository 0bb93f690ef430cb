"""The document of a run: plain data that the JSON, the page and the plot are made of, and what is read back of it."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onepass.bench.peers import PEERS, Peer
from onepass.bench.results import CellReport, Outcome, summarize
from onepass.bench.standing import standing
from onepass.machine import this_machine

SCHEMA = 1
# Settings from outside that change what a contender does; recorded when set.
_ENVIRONMENT = (
    *("ONEPASS_", "ATEN_CPU_CAPABILITY", "THP_MEM_ALLOC", "XLA_", "NPROC"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"),
)
_FOLDERS = ("ONEPASS_CACHE_DIR",)  # where things lie on a machine changes nothing


def _machine() -> dict[str, Any]:
    """What the numbers depend on: processor, instruction set, caches, memory, kernel, page size policy."""
    try:
        huge_pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        huge_pages = "unknown"
    return {
        **asdict(this_machine()),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",  # without who built it
        "python": platform.python_version(),
        "transparent_huge_pages": huge_pages,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_ENVIRONMENT) and name not in _FOLDERS
        },
    }


def document(
    reports: Sequence[CellReport],
    peers: Sequence[Peer],
    settings: dict[str, Any],
    gpu: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything measured, as plain data: the schema of `--json`. `gpu` describes what it was measured on, if one."""
    described: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "onepass": PEERS["onepass"].version,
        "machine": _machine() if gpu is None else {**_machine(), "gpu": gpu},
        "settings": settings,
        "contenders": {peer.name: None if peer.missing else peer.version for peer in peers},
        "cells": [describe_cell(report, brief=gpu is not None) for report in reports],
    }
    return described | conclusions(described)


def conclusions(described: dict[str, Any]) -> dict[str, Any]:
    """What follows from a document's cells."""
    cells, gpu = described["cells"], described["machine"].get("gpu")
    peers = [name for name, version in described["contenders"].items() if version and name != "onepass"]
    return {"summary": summarize(cells), "standing": standing(cells, peers, gpu)}


class NotOneRun(ValueError):
    """Files that hold no results, or results that are not to be shown together."""


def read_documents(paths: Sequence[Path]) -> dict[str, Any]:
    """The documents of one or several files as one: parts of what is too long for one run. A part may have asked fewer
    contenders than another. Raises NotOneRun for what another device, version or schema brought about; of a cell that
    is there twice, the last is taken."""
    first: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    cells: dict[str, Any] = {}
    contenders: dict[str, str | None] = {}
    for path in paths:
        try:
            part = json.loads(path.read_text(encoding="utf-8"))
            machine = part["machine"]
            device = machine["gpu"]["name"] if "gpu" in machine else machine["processor"]
            part_of = {"device": device} | {key: part[key] for key in ("schema", "onepass")}
            part_of |= {f"version of {name}": version for name, version in part["contenders"].items() if version}
            cells |= {cell["name"]: cell for cell in part["cells"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotOneRun(f"{path} holds no results of onepass bench: {error}") from error
        if part_of["schema"] != SCHEMA:
            raise NotOneRun(f"{path} has schema {part_of['schema']}; expected {SCHEMA}")
        first = first or part
        for key, value in part_of.items():
            if expected.setdefault(key, value) != value:
                raise NotOneRun(f"{path} is not of one run with {paths[0]}: {key} {value}, there {expected[key]}")
        contenders |= {name: version for name, version in part["contenders"].items() if not contenders.get(name)}
    merged = first | {"contenders": contenders, "cells": list(cells.values())}
    return merged | conclusions(merged)


def describe_cell(report: CellReport, brief: bool) -> dict[str, Any]:
    """A cell of the document; `brief` leaves out the windows of each timing."""
    cell = report.cell
    return {
        "name": cell.name,
        **{key: getattr(cell, key) for key in ("group", "op", "dim", "dtype", "why", "length", "moved_bytes")},
        "shape": list(cell.shape),
        "view": cell.view.parts,
        "input": report.framework,
        "algorithm": report.algorithm,
        "skipped": report.skipped,
        "tolerance_ulp": report.tolerance_ulp,
        "copy_gb_per_s": report.copy_limit,
        "outcomes": [_describe_outcome(report, outcome, brief) for outcome in report.outcomes],
    }


def _describe_outcome(report: CellReport, outcome: Outcome, brief: bool) -> dict[str, Any]:
    timing = outcome.timing
    measured: dict[str, Any] = {}
    if timing is not None:
        measured = {
            "seconds": timing.median,
            "spread": timing.spread,
            "gb_per_s": outcome.gb_per_s,
            "fraction_of_copy": report.fraction(outcome),
            "onepass_is_times_faster": report.ratio(outcome),
            "noisy": timing.noisy,
        }
        # A call on a GPU is timed by itself and disturbed by nobody: its windows are many and tell nothing more.
        if brief:
            measured["rounds"] = len(timing.windows)
        else:
            measured["windows"] = [asdict(window) for window in timing.windows]
    keys = ("label", "peer", "mode", "statement", "status", "note", "error_ulp", "moved_bytes")
    return {**{key: getattr(outcome, key) for key in keys}, **measured}
