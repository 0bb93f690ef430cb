"""Rows that a team of blocks shares: when that pays, how many blocks there are, and where the slice of each waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .device import Device
from .kernel_plan import BLOCK_SCRATCH, ONCE, WAVES, Choice, Team
from .rounding import ceil_div, floor_power
from .team_thresholds import (
    FEW_ROWS_PACKS,
    FEW_ROWS_SHARE,
    LONG_SPLIT_THREADS,
    MOST_REDUCED_BLOCKS,
    REDUCED_PACKS,
    REDUCED_SHARE,
    REDUCED_THREADS,
    REDUCED_THREADS_PER_MULTIPROCESSOR,
    SPLIT_THREADS,
    SPLIT_THREADS_PER_MULTIPROCESSOR,
)


@dataclass(frozen=True)
class TeamCut:
    """The packs of a row, shared out."""

    row_packs: int
    blocks: int
    threads: int  # of a block
    resident: int  # blocks that a multiprocessor must have room for
    packs: int = 0  # that a thread holds of a slice in registers, or of a part of it
    parts: int = 0  # of a slice in shared memory, of `split`
    shared_bytes: int = 0
    reads: int = 1
    clustered: bool = False  # the blocks are a cluster
    handed: bool = False  # clusters take rows as they are ready for them; else each has one

    @property
    def shape(self) -> dict[str, int | str | bool]:
        """The parameters that kernels for shared rows have in common."""
        return {
            "threads": self.threads,
            "resident": self.resident,
            "packs": self.packs,
            "slots": ceil_div(self.blocks, self.threads),
            "cluster": self.blocks if self.clustered else 0,
            "handed": self.handed,
        }

    @property
    def waves(self) -> int:
        """Of the launch. Clusters that take rows as they are ready for them are all at work at once."""
        if self.clustered:
            return 1 if self.handed else ONCE
        return WAVES

    def teams(self, device: Device) -> int:
        """That are at work at once."""
        return max(1, self.resident * device.multiprocessors // self.blocks)

    @property
    def waits(self) -> str:
        """The sentence about it."""
        blocks = f"shared by {'a cluster of ' * self.clustered}{self.blocks} block{'s' * (self.blocks != 1)}"
        if self.shared_bytes:
            parts = f", {self.parts} part{'s' * (self.parts != 1)}" if self.parts else ""
            return f"{blocks}, in {self.shared_bytes} bytes of shared memory each{parts}: read once{self._rows}"
        if self.packs:
            return f"{blocks} of {self.threads} threads that hold {self.packs} packs each: read once{self._rows}"
        return f"{blocks} of {self.threads} threads, and waiting nowhere: read {('once', 'twice')[self.reads - 1]}"

    @property
    def _rows(self) -> str:
        return "; clusters take rows as they are ready for them" if self.handed else ""

    def team(self, state_bytes: int, line: int = 1) -> Team:
        """Each block has two places for a state, of so many bytes: words go in pairs, each with its number. A cluster
        has them in its shared memory. Slices are whole cache lines, of so many packs."""
        scratch_bytes = 0 if self.clustered else 2 * 16 * ceil_div(state_bytes, 8)
        return Team(self.blocks, slice_packs(self.row_packs, self.blocks, line, self.threads), scratch_bytes)


def slice_packs(row_packs: int, slices: int, line: int, threads: int) -> int:
    """Of each slice but a row's last: whole cache lines, or as much of one as so many threads take."""
    return whole_lines(ceil_div(row_packs, slices), min(line, threads))


def whole_lines(packs: int, line: int) -> int:
    """So many packs, or a few more, for threads that are a multiple of a line's: none of them has more packs for it."""
    return ceil_div(packs, line) * line


@dataclass(frozen=True)
class Registers:
    """What a thread has of them, for a slice that waits there."""

    of_a_pack: int
    most_packs: int
    others: int  # besides those of the slice

    def blocks(self, device: Device, threads: int, packs: int) -> int:
        """Of so many threads with so many packs each, that a multiprocessor has registers for."""
        of_a_thread = ceil_div(packs * self.of_a_pack + self.others, 8) * 8
        return device.registers // (of_a_thread * threads)


def extra_registers(device: Device) -> int:
    """What ptxas takes more of a thread's registers for sm_100 and later: with less, kernels spill a few bytes."""
    return 8 if device.major >= 10 else 0


def cut_held(choice: Choice, packs: int, registers: Registers) -> TeamCut | None:
    """A row whose slices wait in registers; None where they hold too little of it."""
    tuning, device = choice.tuning, choice.device
    all_packs = packs * max(1, choice.problem.rows)
    per_thread = min(
        registers.most_packs, max(2, ceil_div(all_packs, device.multiprocessors * SPLIT_THREADS_PER_MULTIPROCESSOR))
    )
    short = packs <= SPLIT_THREADS * per_thread * device.multiprocessors
    threads = tuning.threads or (SPLIT_THREADS if short else LONG_SPLIT_THREADS)
    blocks = tuning.blocks or ceil_div(packs, threads * per_thread)
    per_thread = ceil_div(ceil_div(packs, blocks), threads)
    resident = max(1, min(registers.blocks(device, threads, per_thread), device.max_threads // threads))
    if per_thread > registers.most_packs or blocks > resident * device.multiprocessors:
        return None
    return TeamCut(packs, blocks, threads, resident, per_thread)


def does_not_fit(choice: Choice, pack: int, packs: int, staged: bool, blocks: str | None = None) -> ValueError:
    """What is raised where slices have no room."""
    where = f"shared memory of {blocks or 'the GPU'}" if staged else f"registers of {blocks or 'its blocks'}"
    return choice.refuse(f"a row of {packs * pack * choice.kept_size} bytes does not fit the {where}")


def room(choice: Choice, resident: int) -> int:
    """Bytes of shared memory for each of so many blocks on a multiprocessor."""
    device = choice.device
    return min(device.shared_per_multiprocessor // resident, device.shared_per_block) - 2 * BLOCK_SCRATCH


def cut_staged(
    choice: Choice,
    packs: int,
    threads: int,
    resident: int,
    *,
    fewest: Callable[[int], int],
    bytes_of: Callable[[int], int],
    fewer: int = 0,
) -> TeamCut | None:
    """A row whose slices wait in shared memory, in blocks of so many threads, so many of them on a multiprocessor if
    that holds the row; None where none does.

    fewest: blocks whose shared memory holds a row, if so many are on a multiprocessor
    bytes_of: shared memory for a slice of so many packs
    fewer: as most_resident's
    """
    tuning, device = choice.tuning, choice.device
    most = most_resident(choice, threads, fewer)
    resident = min(tuning.resident or resident, most)
    while resident > 1 and fewest(resident) > resident * device.multiprocessors:
        resident -= 1
    at_once = resident * device.multiprocessors
    blocks = tuning.blocks
    if blocks is None:
        teams = max(1, min(choice.problem.rows, at_once // fewest(resident)))
        # What is left over is shared out.
        blocks = max(fewest(resident), min(at_once // teams, ceil_div(packs, threads)))
    shared_bytes = bytes_of(ceil_div(packs, blocks))
    fit = device.shared_per_multiprocessor // (shared_bytes + 2 * BLOCK_SCRATCH)
    resident = min(fit, most)
    if shared_bytes > room(choice, 1) or blocks > resident * device.multiprocessors:
        return None
    return TeamCut(packs, blocks, threads, resident, shared_bytes=shared_bytes)


def cut_streamed(choice: Choice, packs: int, fewer: int) -> TeamCut:
    """A row whose slices wait nowhere: it is read twice. `fewer`: as most_resident's."""
    multiprocessors, rows = choice.device.multiprocessors, max(1, choice.problem.rows)
    threads = choice.tuning.threads or SPLIT_THREADS
    resident = most_resident(choice, threads, fewer)
    blocks = choice.tuning.blocks
    if blocks is None:
        blocks = max(1, min(resident * multiprocessors // rows, packs // threads))
    if blocks > resident * multiprocessors:
        raise choice.refuse(f"no more than {resident * multiprocessors} blocks are at work at once")
    return TeamCut(packs, blocks, threads, resident, reads=2)


def cut_reduced(choice: Choice, packs: int) -> TeamCut:
    """The same of a row that is read once, and not written: as many threads as read at the speed of memory, in blocks
    that are few for what they tell each other, and a number of which divides most rows."""
    tuning, multiprocessors, rows = choice.tuning, choice.device.multiprocessors, max(1, choice.problem.rows)
    most_threads = REDUCED_THREADS_PER_MULTIPROCESSOR // choice.registers_per_element
    if choice.x_size == 2 and choice.device.major < 9:
        most_threads //= 2  # ptxas takes more registers there for packs of 8: it spills
    threads = tuning.threads or REDUCED_THREADS

    def spread(threads: int) -> int:
        each = max(1, most_threads // threads * multiprocessors // rows)
        power = floor_power(each)
        return power if power >= REDUCED_SHARE * each else each

    blocks = max(1, min(spread(threads), MOST_REDUCED_BLOCKS, floor_power(ceil_div(packs, threads))))
    if not tuning.threads and packs > REDUCED_PACKS * threads * blocks:
        threads = most_threads
        blocks = spread(threads)
    blocks = tuning.blocks or blocks
    resident = max(1, most_threads // threads)
    if blocks > resident * multiprocessors:
        raise choice.refuse(f"no more than {resident * multiprocessors} blocks are at work at once")
    return TeamCut(packs, blocks, threads, resident)


def most_resident(choice: Choice, threads: int, fewer: int) -> int:
    """Blocks of so many threads that leave each at least the 64 registers, in float64 128, that a walk along a slice
    takes; `fewer` than that, but one, for walks that take more."""
    return max(1, choice.device.max_threads // (2 * choice.registers_per_element) // threads - fewer)


def shares_pay(
    choice: Choice,
    pack: int,
    fewest: int,
    *,
    in_registers: bool,
    alone_bytes: int,
    alone: float,
    split: tuple[tuple[int, float], ...],
    stream: float,
) -> str | None:
    """The algorithm of several blocks for a row that is needed twice, where that beats one block for each; None where
    it does not.

    fewest: blocks whose shared memory holds a row
    in_registers: those of a block hold the row
    alone_bytes: longest row that a block has alone on its multiprocessor without waiting too much
    alone, stream : what one block for each of many rows that no multiprocessor holds takes, and what `stream` does
    split : (rows on the chip at once, what `split` takes with at least so many), most first
    """
    problem, device = choice.problem, choice.device
    packs = problem.length // pack
    row_bytes = packs * pack * choice.kept_size
    alone_fits = device.shared_per_multiprocessor // (row_bytes + 2 * BLOCK_SCRATCH)
    if alone_fits >= 2 or (alone_fits and (in_registers or row_bytes <= alone_bytes)):
        if not few_rows(choice) or packs <= FEW_ROWS_PACKS:
            return None
        choice.why.append(f"{idle(choice)}: several blocks share each")
        return "split"
    if alone_fits:
        choice.why.append(f"a multiprocessor holds one row of {row_bytes} bytes, and would wait: blocks share rows")
        return "split"
    teams = min(device.multiprocessors // fewest, problem.rows)
    waves = ceil_div(problem.rows, device.multiprocessors) * device.multiprocessors / max(1, problem.rows)
    costs = {"alone": alone * waves, "stream": stream}
    if teams:
        costs["split"] = next(cost for at_least, cost in split if teams >= at_least)
    if problem.rows <= teams:
        costs["split"] = 0  # no row waits for another
    best = min(costs, key=lambda name: costs[name])
    if best == "alone":
        return None
    choice.why.append(f"a row takes {row_bytes} bytes, a block has {device.shared_per_block}: several blocks share it")
    return best


def few_rows(choice: Choice) -> bool:
    """Too few to keep the GPU busy with a block each."""
    return choice.problem.rows * FEW_ROWS_SHARE <= choice.device.multiprocessors


def idle(choice: Choice) -> str:
    """The sentence about that."""
    problem = choice.problem
    rows = f"{problem.rows} row{'s' * (problem.rows != 1)}"
    return f"{rows} of {problem.length} for {choice.device.multiprocessors} multiprocessors"
