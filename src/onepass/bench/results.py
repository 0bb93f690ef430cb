"""What a benchmark found: one outcome per contender, one report per cell."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from onepass.bench.cells import Cell
from onepass.bench.timing import Timing


@dataclass(frozen=True)
class Outcome:
    """One contender in one cell. Only a status of "ok" has a timing."""

    label: str
    peer: str
    mode: str  # "fresh", "out", "copy": the limit, "bound": no result is expected of it
    statement: str
    moved_bytes: int
    status: str  # "ok", "wrong": failed verification, "failed": raised
    note: str = ""
    error_ulp: float | None = None
    timing: Timing | None = None

    @property
    def gb_per_s(self) -> float | None:
        return self.moved_bytes / self.timing.median / 1e9 if self.timing else None


class Contender(Protocol):
    """What an outcome says of whoever had it, on a CPU or a GPU."""

    @property
    def label(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def statement(self) -> str: ...
    @property
    def moved_bytes(self) -> int: ...


def outcome(contender: Contender, status: str, **more: Any) -> Outcome:
    """Before it is timed."""
    who = (contender.label, contender.peer, contender.mode, contender.statement, contender.moved_bytes)
    return Outcome(*who, status, **more)


def first_line(error: Exception) -> str:
    """What an outcome notes of it."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


@dataclass(frozen=True)
class CellReport:
    """All outcomes of one cell; `skipped` says why there are none."""

    cell: Cell
    framework: str = ""
    algorithm: str = ""
    tolerance_ulp: float = 0.0
    outcomes: tuple[Outcome, ...] = field(default=())
    skipped: str = ""

    @property
    def copy_limit(self) -> float | None:
        """GB/s of the faster of the two copies, read and written bytes counted."""
        return max((o.gb_per_s or 0.0 for o in self.outcomes if o.mode == "copy"), default=0.0) or None

    def fraction(self, outcome: Outcome) -> float | None:
        """Of the copy limit. A reduction may pass 1: it does not write what it reads."""
        if outcome.gb_per_s is None or self.copy_limit is None:
            return None
        return outcome.gb_per_s / self.copy_limit

    def ratio(self, outcome: Outcome) -> float | None:
        """How many times faster onepass is, like for like: a fresh result against a fresh result."""
        ours = next((o for o in self.outcomes if o.peer == "onepass" and o.mode == outcome.mode), None)
        if ours is None or ours.timing is None or outcome.timing is None:
            return None
        return outcome.timing.median / ours.timing.median


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that exist.

    >>> geometric_mean([1.0, None, 4.0])
    2.0
    """
    known = [value for value in values if value]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None


def summarize(cells: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Per group and for all, of a document's cells: geometric means of each contender's ratio and fraction, and the
    worst ratio."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["outcomes"]:
            groups.setdefault(cell["group"], []).append(cell)
    if len(groups) > 1:
        groups["all"] = [cell for group in groups.values() for cell in group]
    summary: dict[str, dict[str, dict[str, float | int | None]]] = {}
    for group, members in groups.items():
        outcomes = [outcome for cell in members for outcome in cell["outcomes"] if outcome["mode"] in ("fresh", "out")]
        for label in dict.fromkeys(outcome["label"] for outcome in outcomes):
            timed = [outcome for outcome in outcomes if outcome["label"] == label and "seconds" in outcome]
            ratios = [ratio for outcome in timed if (ratio := outcome["onepass_is_times_faster"]) is not None]
            summary.setdefault(group, {})[label] = {
                "cells": len(timed),
                "ratio": geometric_mean(ratios),
                "worst_ratio": min(ratios, default=None),
                "fraction": geometric_mean(outcome["fraction_of_copy"] for outcome in timed),
            }
    return summary
