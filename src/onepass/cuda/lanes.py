"""How many lanes of a warp share a row, where lanes do."""

from __future__ import annotations

from .kernel_plan import Choice
from .plan_warp_smem import few_elements_a_row, full_lanes, many_for_lanes
from .rounding import ceil_div, ceil_power
from .thresholds import (
    FEWEST_LANES_OF_SEVERAL,
    FEWEST_PEELED_LANES,
    LANE_ELEMENTS,
    LANE_GROUP_BYTES,
    MANY_LONGER_ROWS_PER_MULTIPROCESSOR,
    MOST_PACKS_OF_A_LANE_EACH,
    NARROW_LENGTH,
    OTHER_LANE_ELEMENTS,
    PACKS_OF_SEVERAL,
    PEELED_LANE_ELEMENTS,
    SEVERAL_ROWS_PER_MULTIPROCESSOR,
)


def lanes_of_row(choice: Choice, packs: int, pack: int, alignment: str) -> int:
    """Lanes of a warp for a row."""
    problem = choice.problem
    most = min(32, ceil_power(packs))
    rows = problem.rows / choice.device.multiprocessors
    many = many_for_lanes(choice)
    if alignment != "whole":
        return _peeled_lanes(choice, most, pack, many)
    if not many and rows >= SEVERAL_ROWS_PER_MULTIPROCESSOR and problem.length <= NARROW_LENGTH:
        return min(most, _lanes_of_several(choice, packs))
    if not many and (rows < MANY_LONGER_ROWS_PER_MULTIPROCESSOR or choice.registers_per_element > 1):
        return most
    if few_elements_a_row(choice):
        return 1
    least = LANE_GROUP_BYTES[choice.x_size] // (pack * choice.x_size)
    lanes = min(most, max(least, _lanes_for_elements(choice)))
    return full_lanes(choice, lanes, packs) if pack == choice.access_pack else lanes


def _lanes_for_elements(choice: Choice) -> int:
    elements = LANE_ELEMENTS.get((choice.kind, choice.x_size), OTHER_LANE_ELEMENTS)
    return ceil_power(ceil_div(choice.problem.length, elements))


def _lanes_of_several(choice: Choice, packs: int) -> int:
    """Where rows are not many, but more than a few for a multiprocessor."""
    if packs <= MOST_PACKS_OF_A_LANE_EACH or choice.registers_per_element > 1:
        return 32
    of_softmax = _lanes_for_elements(choice) if choice.problem.op == "softmax" else 1
    return max(FEWEST_LANES_OF_SEVERAL, of_softmax, ceil_power(ceil_div(packs, PACKS_OF_SEVERAL)))


def _peeled_lanes(choice: Choice, most: int, pack: int, many: bool) -> int:
    problem = choice.problem
    edges = min(32, ceil_power(2 * pack - 2))  # each edge of a row is for a lane of its own
    most = max(most, edges)
    elements = PEELED_LANE_ELEMENTS.get((choice.kind, choice.x_size))
    if not many or elements is None:
        return most
    least = edges if choice.kind == "plain" else min(edges, FEWEST_PEELED_LANES)
    return min(most, max(least, ceil_power(ceil_div(problem.length, elements))))
