"""What tiles cost that wait in registers; and which columns of few neighbours are cut again, since the tables' tile
costs too much."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from ..problem import GRADIENTS
from .kernel_plan import Choice, CudaPlan
from .rounding import ceil_div, ceil_power, doublings
from .tile_cut import are_few, beside, resident_blocks
from .tile_thresholds import (
    CHEAP_BLOCK_THREADS,
    CHEAP_COLUMNS,
    CHEAP_HELD,
    CHEAP_RUN_BYTES,
    COSTED_NEIGHBOURS,
    COSTED_STEPS,
    COSTED_STEPS_OF_RUNS,
    FEWEST_COSTED_ELEMENTS,
    HELD_PACK,
    MOST_CHEAP_HALVES,
    MOST_CHEAP_HALVES_OF_CLUSTERS,
    MOST_CHEAP_HALVES_OF_GRADIENTS,
    MOST_CHEAP_HELD,
    MOST_HELD_OF_RUNS,
    MOST_WALKED_ROUNDS,
    SECTOR_BYTES,
    TOO_DEAR,
)
from .tuning import Tuning


def cheaper(choice: Choice, neighbours: int, widest: int, plan: CudaPlan) -> Choice | None:
    """What leads to a plan that costs so much less than this that it is better; None where this is good.
    `neighbours`: columns that lie side by side, or 0; `widest`: rows per access at most."""
    run = choice.elementwise and "across" not in dict(plan.shape)
    if not _may_cost_less(choice, neighbours, COSTED_STEPS_OF_RUNS if run else COSTED_STEPS):
        return None
    costs, most = _Costs.of(choice, neighbours, widest), math.inf
    planned = _held_by(plan, costs)
    if planned is not None and (neighbours in COSTED_NEIGHBOURS or not choice.elementwise):
        most = costs.of_tile(planned.pack, planned.across) + costs.of_blocks(planned) - TOO_DEAR[choice.problem.op]
    elif planned is not None or not _may_be_held(costs, plan, run):
        return None
    cut = _cheapest(costs, most)
    if cut is None or (planned is None and not _is_better_held(costs, cut)):
        return None
    tuning = Tuning(pack=cut.pack, across=cut.across, threads=cut.threads)
    if cut.blocks > 1 or choice.problem.op in GRADIENTS:
        tuning = replace(tuning, blocks=cut.blocks, clustered=True)
    algorithm = "strided_split" if cut.blocks > 1 else "strided"
    why = [*choice.why, "of all tiles that registers hold, the one of least cost"]
    return replace(choice, algorithm=algorithm, tuning=tuning, why=why)


class _Cut(NamedTuple):
    pack: int  # rows per access
    across: int  # threads side by side
    threads: int  # of a block
    blocks: int  # of a cluster
    steps: int  # of a thread
    registers: int  # that hold them


def _may_cost_less(choice: Choice, neighbours: int, steps: range) -> bool:
    problem = choice.problem
    free = choice.tuning == Tuning() and choice.algorithm is None and choice.device.most_clustered > 1
    held = problem.op in TOO_DEAR and choice.registers_per_element == 1
    long_enough = problem.length in steps and problem.rows * problem.length >= FEWEST_COSTED_ELEMENTS
    return free and held and neighbours > 1 and long_enough and not are_few(choice, neighbours)


def _held_by(plan: CudaPlan, costs: _Costs) -> _Cut | None:
    """How a plan cuts what the blocks of a cluster hold, or one; None of others."""
    shape = dict(plan.shape)
    if "packs" not in shape or "across" not in shape or shape.get("cluster", 1) == 0:
        return None
    return costs.cut(int(shape["pack"]), int(shape["across"]), plan.threads, int(shape.get("cluster", 1)))


def _may_be_held(costs: _Costs, plan: CudaPlan, run: bool) -> bool:
    """Whether a plan that holds nothing in registers, by a run of memory or not, may be worse than one that does."""
    if not costs.choice.elementwise:  # blocks that meet in memory walk along columns together
        return plan.algorithm == "strided_split"
    if costs.widest == 1 and not costs.gradient:
        return False
    return run and costs.neighbours <= (MOST_HELD_OF_RUNS if costs.widest > 1 else HELD_PACK)


def _is_better_held(costs: _Costs, cut: _Cut) -> bool:
    """Whether this is better than the plan of which that may be."""
    if not costs.choice.elementwise:
        return costs.rounds(cut) <= MOST_WALKED_ROUNDS
    return cut.pack * cut.across >= costs.neighbours


def _cheapest(costs: _Costs, most: float) -> _Cut | None:
    """Of all cuts that registers hold and that cost less than that."""
    best = None
    clusters = [blocks for blocks in (1, 2, 4, 8, 16) if blocks <= costs.choice.device.most_clustered]
    for pack, across in product((1, 2, 4), (1, 2, 4, 8, 16)):
        of_tile = costs.of_tile(pack, across)
        wider = pack > costs.widest or pack * across > max(CHEAP_COLUMNS, ceil_power(costs.neighbours))
        if wider or of_tile >= most:
            continue
        for threads, blocks in product((128, 256, 512), clusters):
            cut = costs.cut(pack, across, threads, blocks)
            if blocks * (threads // across) <= costs.length and cut.registers <= _most_registers(costs, cut):
                cost = of_tile + costs.of_blocks(cut)
                if cost < most:
                    best, most = cut, cost
    return best


def _most_registers(costs: _Costs, cut: _Cut) -> int:
    if cut.pack == 1 or min(costs.sizes) > 2:
        return MOST_CHEAP_HELD
    if costs.gradient:
        return MOST_CHEAP_HALVES_OF_GRADIENTS
    return MOST_CHEAP_HALVES_OF_CLUSTERS if cut.pack == HELD_PACK and cut.blocks > 1 else MOST_CHEAP_HALVES[cut.pack]


@dataclass(frozen=True)
class _Costs:
    """How far cuts are from what was fast, in factors of two, some 4% of the time each for one."""

    choice: Choice
    neighbours: int
    widest: int  # rows per access, at most
    rows: int
    length: int
    sizes: tuple[int, ...]  # bytes of an element, of each array that is kept

    @staticmethod
    def of(choice: Choice, neighbours: int, widest: int) -> _Costs:
        sizes = (choice.z_size, choice.x_size) if choice.problem.op in GRADIENTS else (choice.held_size,)
        return _Costs(choice, neighbours, widest, choice.problem.rows, choice.problem.length, sizes)

    def cut(self, pack: int, across: int, threads: int, blocks: int) -> _Cut:
        steps = ceil_div(self.length, blocks * (threads // across))
        registers = steps * sum([ceil_div(pack * size, 4) for size in self.sizes])
        return _Cut(pack, across, threads, blocks, steps, registers)

    @property
    def gradient(self) -> bool:
        return len(self.sizes) > 1

    def of_tile(self, pack: int, across: int) -> float:
        """What its width costs."""
        columns, size = pack * across, self.choice.x_size
        run = min(columns, self.neighbours) * size
        fetched = run + SECTOR_BYTES - math.gcd(SECTOR_BYTES, run, self.neighbours * size)
        if self.gradient:
            of_packs = 2 * doublings(pack, min(HELD_PACK, self.widest))
        else:
            of_packs = 3 * doublings(CHEAP_COLUMNS, columns) + 3 * (pack == HELD_PACK)
        return (
            of_packs
            + 2 * doublings(run, CHEAP_RUN_BYTES[self.choice.elementwise])
            + 3 * doublings(self.neighbours, columns)
            + 4 * doublings(run, fetched)
        )

    def of_blocks(self, cut: _Cut) -> float:
        """What the blocks that share it cost."""
        covered = cut.blocks * (cut.threads // cut.across) * cut.steps
        return (
            doublings(1, cut.blocks)
            + 3 * doublings(self.length, covered)
            + 3 * doublings(CHEAP_HELD[self.choice.elementwise], cut.registers)
            + 3 * doublings(self.at_work(cut), self.choice.device.multiprocessors // 2)
            + 4 * doublings(CHEAP_BLOCK_THREADS, cut.threads)
            + 5 * doublings(1, self.rounds(cut))
        )

    def at_work(self, cut: _Cut) -> int:
        """Blocks."""
        return ceil_div(self.rows, cut.across * cut.pack) * cut.blocks

    def rounds(self, cut: _Cut) -> float:
        """How many times they fill all multiprocessors."""
        resident = resident_blocks(self.choice, cut.threads, cut.registers, beside(cut.registers))
        return self.at_work(cut) / (resident * self.choice.device.multiprocessors)
