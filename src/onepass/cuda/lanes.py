"""The ways in which lanes of a warp may share rows, and the quickest of them (lane_cost.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..problem import REDUCTIONS
from .kernel_plan import Choice
from .lane_cost import LaneCosts, Way
from .rounding import ceil_div, ceil_power
from .thresholds import (
    FEW_ROWS_PER_MULTIPROCESSOR,
    GRADIENT_SEGMENT_PACKS,
    MANY_SHORT_ROWS_PER_MULTIPROCESSOR,
    MOST_LANE_REGISTERS,
    MOST_NARROW_PACKS,
    MOST_REDUCED_PACKS,
    NARROW_LENGTH,
    SHORTEST_WITH_EDGES,
    WARP_REGISTERS,
)

LANES = (1, 2, 4, 8, 16, 32)


def many_for_lanes(choice: Choice) -> bool:
    """Whether rows are so many that it matters what each of them costs, and not only how long one takes."""
    return choice.problem.rows > FEW_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def many_short_rows(choice: Choice) -> bool:
    """Whether rows are so many that lanes of a warp have longer ones, too."""
    return choice.problem.rows >= MANY_SHORT_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def lanes_of_row(choice: Choice, pack: int, alignment: str) -> int:
    """Lanes of a warp for a row that comes to their registers."""
    ways = list(direct_ways(choice, pack, alignment))
    if not many_for_lanes(choice):
        return max(way.lanes for way in ways)
    lanes = min(ways, key=LaneCosts.of(choice).microseconds).lanes
    if len(ways) > 1:
        choice.why.append(f"rows are many: {lanes} of up to {ways[-1].lanes} lanes for each cost least")
    return lanes


def direct_ways(choice: Choice, pack: int, alignment: str) -> Iterator[Way]:
    """Those for rows of packs that come to registers as they lie; that by most lanes in any case."""
    problem = choice.problem
    packs = max(1, problem.length // pack)
    edges = 0 if alignment == "whole" else 2 * pack - 2
    most = min(32, ceil_power(max(packs, edges)))
    fewest = ceil_power(edges) if problem.op in REDUCTIONS else 1  # each edge is for a lane of its own
    for lanes in LANES:
        each = ceil_div(packs, lanes)
        if lanes == most or (fewest <= lanes < most and _may_have(choice, each, pack, alignment)):
            if problem.op == "logsumexp_backward":
                each = min(each, GRADIENT_SEGMENT_PACKS)
            yield Way(lanes, each, pack, alignment)


def _may_have(choice: Choice, packs: int, pack: int, alignment: str) -> bool:
    """Whether a lane may have so many packs, where more lanes might have fewer."""
    op = choice.problem.op
    if op in REDUCTIONS:
        return packs <= MOST_REDUCED_PACKS
    if op == "logsumexp_backward":
        return packs <= GRADIENT_SEGMENT_PACKS
    # Edges that are written take registers, too.
    most = WARP_REGISTERS if alignment != "whole" and choice.elementwise else MOST_LANE_REGISTERS
    return packs * pack * choice.registers_per_element * choice.kept_arrays <= most


def ways_as_rows_lie(choice: Choice, narrow: int, pack: int, alignment: str) -> Iterator[Way]:
    """Those for rows that come to registers: by packs of so many elements with that alignment, and by narrower ones
    that rows are whole ones of."""
    if narrow < pack:
        yield from direct_ways(choice, narrow, "whole")
    if narrow == pack or choice.problem.length >= SHORTEST_WITH_EDGES:
        yield from direct_ways(choice, pack, alignment)


def narrow_packs_pay(choice: Choice, narrow: int, pack: int, alignment: str) -> bool:
    """Whether rows off the boundaries of packs are better read by narrower ones that they are whole ones of."""
    length = choice.problem.length
    if not many_for_lanes(choice):
        return length <= NARROW_LENGTH
    if length < SHORTEST_WITH_EDGES:
        return True
    if length // narrow > MOST_NARROW_PACKS:
        return False
    by_narrow = quickest(choice, direct_ways(choice, narrow, "whole"))
    return by_narrow <= quickest(choice, direct_ways(choice, pack, alignment))


def quickest(choice: Choice, ways: Iterable[Way]) -> float:
    """Microseconds by the quickest of them; without any, for ever."""
    costs = LaneCosts.of(choice)
    return min((costs.microseconds(way) for way in ways), default=math.inf)
