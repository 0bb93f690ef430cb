"""How many lanes of a warp share a row, where lanes do."""

from __future__ import annotations

from .kernel_plan import Choice
from .plan_warp_smem import few_elements_a_row, many_for_lanes, very_many_rows
from .rounding import ceil_div, ceil_power, halved_while_full
from .thresholds import (
    DEEP_LANES_PER_MULTIPROCESSOR,
    FEWEST_LANES_OF_SEVERAL,
    FEWEST_PEELED_LANES,
    FULL_LANES,
    FULLER_LANES,
    LANE_ELEMENTS,
    LANE_GROUP_BYTES,
    MANY_LONGER_ROWS_PER_MULTIPROCESSOR,
    MOST_PACKS_OF_A_LANE_EACH,
    MOST_PACKS_OF_FEW_LANES,
    NARROW_LENGTH,
    OTHER_LANE_ELEMENTS,
    PACKS_OF_SEVERAL,
    PEELED_FULL_LANES,
    PEELED_LANE_PACKS,
    SEVERAL_ROWS_PER_MULTIPROCESSOR,
)


def lanes_of_row(choice: Choice, packs: int, pack: int, alignment: str) -> int:
    """Lanes of a warp for a row."""
    problem = choice.problem
    most = min(32, ceil_power(packs))
    rows = problem.rows / choice.device.multiprocessors
    many = many_for_lanes(choice)
    if alignment != "whole":
        return _peeled_lanes(choice, most, pack, packs, many)
    if not many and rows >= SEVERAL_ROWS_PER_MULTIPROCESSOR and problem.length <= NARROW_LENGTH:
        return min(most, _lanes_of_several(choice, packs))
    if not many and (rows < MANY_LONGER_ROWS_PER_MULTIPROCESSOR or choice.registers_per_element > 1):
        return most
    if few_elements_a_row(choice):
        return 1
    least = LANE_GROUP_BYTES[choice.x_size] // (pack * choice.x_size)
    lanes = min(most, max(least, _lanes_for_elements(choice)))
    return full_lanes(choice, lanes, packs) if pack == choice.access_pack else lanes


def full_lanes(choice: Choice, lanes: int, packs: int) -> int:
    """So many lanes of a warp for a row of whole packs, or fewer where those have less that is left over."""
    if choice.registers_per_element > 1:
        return lanes
    kind = choice.kind, choice.x_size
    if kind in FULL_LANES:
        lanes = halved_while_full(lanes, packs, *FULL_LANES[kind])
    if kind in FULLER_LANES and very_many_rows(choice):
        lanes = _with_least_room(choice, lanes, packs)
    return lanes


def _with_least_room(choice: Choice, lanes: int, packs: int) -> int:
    """Of so many lanes, a half of them, a quarter and so on those that have room for the fewest packs; of those that
    are alike, the ones of which each has nearest to what is best."""
    fewest, most, best = FULLER_LANES[choice.kind, choice.x_size]
    busy = DEEP_LANES_PER_MULTIPROCESSOR * choice.device.multiprocessors / choice.problem.rows
    tried = [lanes]
    while tried[-1] >= 2 * fewest:
        half = tried[-1] // 2
        if ceil_div(packs, half) > (most if half >= busy else min(most, MOST_PACKS_OF_FEW_LANES)):
            break
        tried.append(half)

    def room(n: int) -> tuple[int, int]:
        each = ceil_div(packs, n)
        return n * each, abs(each - best)

    return min(tried, key=room)


def _lanes_for_elements(choice: Choice) -> int:
    elements = LANE_ELEMENTS.get((choice.kind, choice.x_size), OTHER_LANE_ELEMENTS)
    return ceil_power(ceil_div(choice.problem.length, elements))


def _lanes_of_several(choice: Choice, packs: int) -> int:
    """Where rows are not many, but more than a few for a multiprocessor."""
    if packs <= MOST_PACKS_OF_A_LANE_EACH or choice.registers_per_element > 1:
        return 32
    of_softmax = _lanes_for_elements(choice) if choice.problem.op == "softmax" else 1
    return max(FEWEST_LANES_OF_SEVERAL, of_softmax, ceil_power(ceil_div(packs, PACKS_OF_SEVERAL)))


def _peeled_lanes(choice: Choice, most: int, pack: int, packs: int, many: bool) -> int:
    kind = choice.kind, choice.x_size
    edges = min(32, ceil_power(2 * pack - 2))  # each edge of a row is for a lane of its own
    most = max(most, edges)
    each = PEELED_LANE_PACKS.get(kind)
    if not many or each is None:
        return most
    least = edges if choice.kind == "plain" else min(edges, FEWEST_PEELED_LANES)
    lanes = min(most, max(least, ceil_power(ceil_div(packs, each))))
    if kind in PEELED_FULL_LANES and choice.registers_per_element == 1:
        lanes = halved_while_full(lanes, packs, *PEELED_FULL_LANES[kind])
    return lanes
