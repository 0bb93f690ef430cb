"""How tiles that wait in registers are cut: their rows, threads and blocks, and what each thread holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..problem import Axis, Problem
from .crossed import CROSSED_COLUMNS, has_both_neighbours, lies_along
from .kernel_plan import Choice
from .plan_cluster import cluster_sizes
from .rounding import ceil_div, ceil_power, doublings
from .thresholds import ACCESS_BYTES
from .tile_thresholds import (
    FEW_AS_READ,
    FEW_ELEMENTS_PER_MULTIPROCESSOR,
    FEW_HELD,
    FEW_NEIGHBOURS,
    FEW_STEPS,
    FEWEST_CLUSTER_THREADS,
    FEWEST_NARROW_SHARED_STEPS,
    FEWEST_RESIDENT_THREADS,
    FEWEST_SHARED_NEIGHBOURS,
    MOST_AS_READ,
    MOST_AS_READ_IN_PAIRS,
    MOST_FEW_COST,
    MOST_LOGARITHM_PAIRS,
    MOST_SHARED_HELD,
    SECTOR_BYTES,
    SHARED_STEPS,
    SharedTile,
)
from .tuning import Tuning

# Of a thread, besides those that hold so many steps, few or many, and at least: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill.
_OTHER_REGISTERS = (32, 40)
_MANY = 40
_BESIDE_LOGARITHMS = 48  # that are many and wait as they were read
_FEWEST_REGISTERS = 64


@dataclass(frozen=True)
class TileCut:
    """A tile, cut."""

    pack: int  # rows per access
    across: int  # threads side by side across its rows
    threads: int  # of a block
    blocks: int
    resident: int  # blocks that a multiprocessor must have room for
    packs: int  # that a thread holds
    clustered: bool  # the blocks are a cluster, or there is one; else they meet in scratch memory

    @property
    def columns(self) -> int:
        return self.across * self.pack

    def shared_by(self, length: int) -> str:
        """The planner's sentence, of rows that long."""
        if self.blocks == 1:
            return f"a thread holds {self.packs} of the {length} steps in registers: read once"
        of_cluster = ("the ", "of a cluster ") if self.clustered else ("", "")
        return (
            f"{of_cluster[0]}{self.blocks} blocks {of_cluster[1]}share a tile of {length} steps, of which a thread "
            f"holds {self.packs} in registers: read once"
        )


@dataclass(frozen=True)
class Held:
    """What a kernel keeps of a tile, and the tiles it was measured with."""

    widest: int  # rows per access
    pack: int  # the same for tiles that are 32 or 16 rows wide: 8 bytes take less to hold than 16
    sizes: tuple[int, ...]  # bytes of an element, of each array that is kept
    tiles: Sequence[SharedTile]
    few_tiles: Sequence[SharedTile]  # where the others would leave multiprocessors idle
    alone: bool  # a tile may have one block
    as_read: bool = False  # pairs of 16 bits wait as they were read

    def registers(self, pack: int) -> int:
        """Of 32 bits, that a pack takes."""
        return sum(ceil_div(pack * size, 4) for size in self.sizes)


def cut_tile(choice: Choice, held: Held, measured: bool) -> TileCut | None:
    """The cut; None where none holds the tile, or others are better. `measured`: what the planner's tables say of the
    problem holds."""
    tuning = choice.tuning
    if tuning.clustered is None and (tuning != Tuning() or not measured):
        return None
    cut = None
    if tuning.clustered is not False:
        cut = _clustered(choice, held)
    if cut is None and tuning.clustered is not True:
        cut = _apart(choice, held)
    if cut is None and tuning.clustered is not None:
        raise choice.refuse(f"registers of the blocks do not hold {choice.problem.length} steps")
    return cut


def cut_of_few(choice: Choice, held: Held, neighbours: int) -> TileCut | None:
    """The cut of few long columns for clusters, an element per access: of all, the one of least cost. `neighbours`:
    columns that lie side by side, or 0. None where others are better."""
    possible = choice.registers_per_element == 1 and choice.algorithm in (None, "strided_split")
    if choice.tuning != Tuning() or not (possible and are_few(choice, neighbours)):
        return None
    singly = replace(held, widest=1, as_read=False)
    sizes = [blocks for blocks in (2, 4, 8, 16) if blocks <= choice.device.most_clustered]
    shapes = product((1, 2, 4, 8, 16), (128, 256, 512), sizes)
    for cost, columns, threads, blocks in sorted((_cost(choice, neighbours, *shape), *shape) for shape in shapes):
        if cost >= MOST_FEW_COST:
            break
        cut = _first(choice, singly, [SharedTile(columns, threads, blocks, MOST_SHARED_HELD)])
        if cut is not None:
            return cut
    return None


def are_few(choice: Choice, neighbours: int) -> bool:
    """Whether these are few long columns."""
    problem, device = choice.problem, choice.device
    small = 0 < problem.rows * problem.length <= FEW_ELEMENTS_PER_MULTIPROCESSOR * device.multiprocessors
    return small and problem.length in FEW_STEPS and neighbours in FEW_NEIGHBOURS


def _cost(choice: Choice, neighbours: int, columns: int, threads: int, blocks: int) -> float:
    """How far a cut of few columns is from what was fast, in factors of two, each of some 4% of the time."""
    problem, multiprocessors = choice.problem, choice.device.multiprocessors
    at_work = ceil_div(problem.rows, columns) * blocks
    held = ceil_div(problem.length, blocks * (threads // columns))
    return (
        4 * doublings(at_work, multiprocessors // 2)
        + doublings(multiprocessors, at_work)
        + 2 * doublings(held, FEW_HELD[0])
        + doublings(FEW_HELD[1], held)
        + doublings(min(columns, neighbours) * choice.x_size, SECTOR_BYTES)
        + doublings(neighbours, columns)
        + doublings(FEWEST_CLUSTER_THREADS, threads)
    )


def _clustered(choice: Choice, held: Held) -> TileCut | None:
    """The blocks of a cluster: as measured, or as tuning says."""
    tuning, device = choice.tuning, choice.device
    if tuning.clustered:
        threads = (tuning.threads,) if tuning.threads else (128, 256, 512)
        sizes = [1] if tuning.blocks == 1 and held.alone else cluster_sizes(choice)
        tiles = [SharedTile(32, t, n, MOST_SHARED_HELD) for n in sizes for t in threads]
        return _first(choice, held, sorted(tiles, key=lambda tile: tile.threads * tile.blocks))
    cut = _first(choice, held, [tile for tile in held.tiles if tile.blocks <= device.most_clustered])
    if cut is not None and ceil_div(choice.problem.rows, cut.columns) * cut.blocks < device.multiprocessors * 3 // 4:
        cut = _first(choice, held, [tile for tile in held.few_tiles if tile.blocks <= device.most_clustered])
    return cut


def _first(choice: Choice, held: Held, tiles: Sequence[SharedTile]) -> TileCut | None:
    """The first of these whose registers hold the steps."""
    most_pairs = MOST_LOGARITHM_PAIRS if choice.problem.op == "log_softmax" else MOST_AS_READ_IN_PAIRS
    for tile in tiles:
        pack, across = _across(choice, held.widest, tile.columns, tile.pack or held.pack)
        if tile.threads < across * pack:
            continue
        packs = ceil_div(choice.problem.length, tile.blocks * (tile.threads // across))
        registers = packs * held.registers(pack)
        most = min(tile.most_held, most_pairs) if held.as_read and pack == 2 else tile.most_held
        if tile.fewest_held <= registers <= most:
            others = _others(choice, held, tile, registers)
            resident = resident_blocks(choice, tile.threads, registers, others)
            crowded = held.as_read and pack > 2 and resident * tile.threads < FEWEST_RESIDENT_THREADS
            if crowded and tile is not tiles[-1]:
                continue
            return TileCut(pack, across, tile.threads, tile.blocks, resident, packs, True)
    return None


def _apart(choice: Choice, held: Held) -> TileCut | None:
    """Blocks that meet in scratch memory, a tile for each team of them: the whole GPU for few rows."""
    problem, tuning, device = choice.problem, choice.tuning, choice.device
    if tuning.clustered is None and problem.length < SHARED_STEPS:
        return None
    # Each block reads the states of all others: where the blocks of one tile are two tiles', it reads a quarter.
    columns = 8 if problem.rows <= 16 else 16
    pack, across = _across(choice, held.widest, columns, columns // 8)
    resident = tuning.resident or 1
    at_once = resident * device.multiprocessors // max(1, ceil_div(problem.rows, across * pack))
    blocks = tuning.blocks or at_once
    for threads in (tuning.threads,) if tuning.threads else (256, 512):
        if not 1 <= blocks <= at_once or threads < across * pack:
            continue
        packs = ceil_div(problem.length, blocks * (threads // across))
        most = MOST_AS_READ if held.as_read and pack > 1 else MOST_SHARED_HELD
        most //= 1 if threads == (tuning.threads or 512) else 2
        if packs * held.registers(pack) <= most:
            if not tuning.blocks:  # no more than have so many packs
                blocks = ceil_div(problem.length, packs * (threads // across))
            return TileCut(pack, across, threads, blocks, resident, packs, False)
    return None


def neighbours(choice: Choice, kept: tuple[Axis, ...], pack: int) -> int:
    """Columns, in packs of so many, that are nearer to each other in memory than a row's steps are. `kept`: the kept
    axes, the fastest last; beyond it lie other rows, steps away."""
    inner = kept[-1]
    if has_both_neighbours(choice, kept):
        return ceil_div(choice.problem.rows, pack)
    along = lies_along(choice, inner)
    if all(along):
        return 1
    if any(along):  # x lies one way and the result the other
        return CROSSED_COLUMNS
    return ceil_div(choice.problem.rows if len(kept) == 1 else inner.size, pack)


def side_by_side(choice: Choice, kept: tuple[Axis, ...]) -> int:
    """Columns whose elements follow each other in input and result, or 0."""
    together = kept[-1].x_stride == 1 and (kept[-1].y_stride == 1 or not choice.elementwise)
    return kept[-1].size if together else 0


def halved(tiles: Sequence[SharedTile]) -> list[SharedTile]:
    """Tiles of elements of 32 bits as those of pairs of 16 that wait as they were read."""
    return [tile._replace(most_held=tile.most_held // 2, fewest_held=tile.fewest_held // 2) for tile in tiles]


def is_narrow(problem: Problem, neighbours: int) -> bool:
    """Whether few rows lie side by side, beyond which others lie, and each of them is long."""
    few = 1 < neighbours < min(FEWEST_SHARED_NEIGHBOURS, problem.rows)
    return few and problem.length >= FEWEST_NARROW_SHARED_STEPS


def as_wide_as(neighbours: int, tiles: Sequence[SharedTile]) -> list[SharedTile]:
    """Tiles of no more columns than are neighbours, rounded up to a power of two."""
    return [tile._replace(columns=ceil_power(neighbours)) for tile in tiles]


def widest_pack(inner: Axis, arrays: Iterable[tuple[int, int, Iterable[int]]]) -> int:
    """Rows per access at most, along this axis, in arrays where they are neighbours: as many as start on their boundary
    in all. Of each array: where it begins past a boundary, bytes of an element, its strides along all other axes."""
    numbers, sizes = [inner.size], []
    for past, size, strides in arrays:
        numbers += [past // size, *strides]
        sizes.append(size)
    return math.gcd(ACCESS_BYTES // min(sizes), *numbers)


def chosen_pack(choice: Choice, widest: int) -> int:
    """Rows per access: so many at most, or what tuning says."""
    pack = choice.tuning.pack or widest
    if widest % pack:
        raise choice.refuse(f"packs of {pack} rows do not all start on their boundary, packs of {widest} do")
    return pack


def _across(choice: Choice, widest: int, columns: int, most: int) -> tuple[int, int]:
    """Rows per access, `most` at most, and threads across a tile of so many rows."""
    tuning = choice.tuning
    pack = tuning.pack or min(widest, most)
    return pack, tuning.across or min(32, columns // pack, ceil_power(ceil_div(choice.problem.rows, pack)))


def beside(registers: int) -> int:
    """Registers of a thread beside those that hold so many, few or many."""
    return _OTHER_REGISTERS[registers > _MANY]


def _others(choice: Choice, held: Held, tile: SharedTile, registers: int) -> int:
    """Registers of a thread beside those that hold so many."""
    if not held.as_read or registers <= FEW_AS_READ:
        return beside(registers) * choice.registers_per_element
    if choice.problem.op == "log_softmax":
        return _BESIDE_LOGARITHMS
    of_eight = tile.threads > 128 and tile.blocks == 8 and choice.device.major == 9
    return _OTHER_REGISTERS[not (of_eight or choice.problem.op == "logsumexp")]


def resident_blocks(choice: Choice, threads: int, registers: int, others: int) -> int:
    """Blocks whose threads hold so much that a multiprocessor has registers for."""
    of_a_thread = max(_FEWEST_REGISTERS * choice.registers_per_element, ceil_div(registers + others, 8) * 8)
    return max(1, choice.tuning.resident or choice.device.registers // (of_a_thread * threads))
