"""The plan in which blocks claim the slices of rows as they are ready for them, and slices wait in registers and in
shared memory: for rows of megabytes, of which both kinds of memory hold half as much again as either."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import Axis
from .kernel_plan import TOTAL_SLOTS, Choice, CudaPlan, Team, build, line_packs
from .rounding import ceil_div
from .team_cut import Registers, extra_registers, room, slice_packs
from .team_thresholds import (
    CLAIMED_EDGE_REGISTERS,
    CLAIMED_LOG_HALVES_BYTES,
    CLAIMED_ROW_BYTES,
    CLAIMED_SLICES,
    CLAIMED_SPREAD,
    CLAIMED_WAVES,
    EACH_READS_SLICES,
    FEWEST_CLAIMED_BYTES,
    LONGEST_ROW_BYTES,
    MANY_SLICES_WAVES,
    MOST_CLAIMED_BESIDE_EDGE,
    OTHER_CLAIMED_REGISTERS,
    ClaimedSlices,
)
from .thresholds import ACCESS_BYTES
from .tuning import Tuning

# What the counters of claims.h hold, of slices beside a last claim of each block, and of words in slots.
_MOST_SLICES = (1 << 32) - (1 << 20)


@dataclass(frozen=True)
class ClaimedCut:
    """A row, cut into slices."""

    row_packs: int
    slices: int
    threads: int  # of a block
    resident: int  # blocks that a multiprocessor must have room for
    held: int  # packs of a slice that a thread has in registers
    waiting: int  # and in shared memory
    shared_bytes: int
    spread: int  # slices that take turns at their packs

    @property
    def sentence(self) -> str:
        where = f"{self.held} packs a thread in registers"
        if self.waiting:
            where += f" and {self.waiting} in shared memory"
        return f"cut into {self.slices} slices that blocks claim as they are ready for them, {where}: read once"


def claims_pay(choice: Choice, pack: int, alignment: str) -> bool:
    """Whether rows are as long, and as many, that claiming slices is faster than anything else."""
    if choice.tuning != Tuning() or not choice.elementwise or choice.registers_per_element > 1:
        return False
    if not choice.device.copies_go_on:
        return False
    size, row_bytes = choice.kept_size, choice.problem.length * choice.kept_size
    whole = alignment == "whole"
    if row_bytes < (CLAIMED_ROW_BYTES[size] if whole else FEWEST_CLAIMED_BYTES):
        return False
    if choice.problem.op == "log_softmax" and size == 2 and row_bytes < CLAIMED_LOG_HALVES_BYTES:
        return False
    cut = cut_claimed(choice, pack, alignment)
    if cut is None:
        return False
    # Slices for each block that is at work at once.
    waves = choice.problem.rows * cut.slices / (cut.resident * choice.device.multiprocessors)
    if cut.slices > cut.threads:
        return waves >= MANY_SLICES_WAVES
    return waves > 1 if not whole or row_bytes >= LONGEST_ROW_BYTES else waves >= CLAIMED_WAVES[size]


def plan_claimed(choice: Choice, pack: int, alignment: str, state_bytes: int) -> CudaPlan:
    """The plan; refused with a reason where the GPU does not hold a row."""
    cut = cut_claimed(choice, pack, alignment)
    kernel = "split_claimed.h", "split_claimed", "SplitClaimed"
    access: dict[str, int | str | bool] = {"pack": pack, "alignment": alignment}
    return build_claimed(choice, kernel, cut, access, choice.kept_axes, state_bytes)


def build_claimed(
    choice: Choice,
    kernel: tuple[str, str, str],
    cut: ClaimedCut | None,
    access: dict[str, int | str | bool],
    axes: tuple[Axis, ...],
    state_bytes: int,
) -> CudaPlan:
    """The plan for a row, cut; refused with a reason without one. kernel: header, function, and type of its shape."""
    tuning, rows, pack = choice.tuning, choice.problem.rows, int(access["pack"])
    if tuning.spread and tuning.blocks and tuning.blocks % tuning.spread:
        raise choice.refuse(f"{tuning.blocks} slices are no whole number of {tuning.spread} that take turns")
    if cut is None:
        bytes_of_row = choice.problem.length * choice.kept_size
        raise choice.refuse(f"a row of {bytes_of_row} bytes does not fit the slices of as many blocks as are at work")
    if rows * (cut.slices + TOTAL_SLOTS) * ceil_div(state_bytes, 8) > _MOST_SLICES:
        raise choice.refuse(f"blocks claim too many slices: {rows * cut.slices}, and 2^32 are counted")
    choice.why.append(cut.sentence)
    packs = slice_packs(cut.row_packs, cut.slices, line_packs(choice, pack), cut.threads)
    return build(
        choice,
        "split",
        *kernel,
        {
            "axes": len(choice.kept_axes),
            "threads": cut.threads,
            "resident": cut.resident,
            "packs": cut.held,
            "waiting": cut.waiting,
            "spread": cut.spread,
            "slots": ceil_div(cut.slices, cut.threads),
            "each_reads": cut.slices <= EACH_READS_SLICES,
            **access,
        },
        threads=cut.threads,
        shared_bytes=cut.shared_bytes,
        units=rows,
        units_per_block=1,
        axes=axes,
        reads=1,
        team=Team(cut.slices, packs, 16 * ceil_div(state_bytes, 8)),
    )


def cut_claimed(choice: Choice, pack: int, alignment: str) -> ClaimedCut | None:
    """A row, cut; None if the blocks that are at work at once do not hold it."""
    size = choice.kept_size
    most = CLAIMED_SLICES[size]
    # Half as many where ptxas takes more registers for the rest: a few more do not help, it spills up to twice as many.
    held = choice.tuning.held or max(1, most.held // pack // (2 if extra_registers(choice.device) else 1))
    # Of 16 bits two elements share a register while they wait.
    of_a_pack = max(1, pack * size // 4)
    others = OTHER_CLAIMED_REGISTERS[size]
    beside_edge = alignment != "whole" and held * of_a_pack > MOST_CLAIMED_BESIDE_EDGE
    several_accesses = pack * size > ACCESS_BYTES or choice.problem.op == "log_softmax"
    across = size == 2 and extra_registers(choice.device)  # 16 bits that are read across boundaries
    if beside_edge or (alignment == "apart" and (several_accesses or across)):
        others += CLAIMED_EDGE_REGISTERS
    registers = Registers(of_a_pack, held, others)
    return cut_slices(choice, pack, alignment, most, registers, pack_bytes=pack * size)


def cut_slices(
    choice: Choice,
    pack: int,
    alignment: str,
    most: ClaimedSlices,
    registers: Registers,
    pack_bytes: int,
    rows_that_fill: int = 0,
) -> ClaimedCut | None:
    """The same of slices of which a thread has as many packs in registers as these say. pack_bytes: of shared memory
    for a pack. rows_that_fill: so few, or fewer, that are on the chip at once have a slice for every block."""
    device, tuning, held = choice.device, choice.tuning, registers.most_packs
    threads = tuning.threads or most.threads
    fit = min(device.max_threads // threads, registers.blocks(device, threads, held))
    resident = min(tuning.resident or most.resident, fit)
    if resident < 1:
        return None
    of_all_threads = threads * pack_bytes
    waiting = most.waiting // pack if tuning.kept is None else tuning.kept
    waiting = min(waiting, room(choice, resident) // of_all_threads)
    row_packs = max(1, choice.problem.length // pack)
    fewest = ceil_div(row_packs, threads * (held + waiting))
    spread = tuning.spread or (CLAIMED_SPREAD if alignment == "whole" else 1)
    most_slices = resident * device.multiprocessors
    slices = tuning.blocks or ceil_div(fewest, spread) * spread
    rows_at_once = most_slices // slices
    if tuning.blocks is None and 0 < rows_at_once <= rows_that_fill:
        slices = max(slices, most_slices // rows_at_once // spread * spread)
    if tuning.spread is None and (slices % spread or not spread < slices <= most_slices):
        spread, slices = 1, tuning.blocks or fewest
    of_a_thread = ceil_div(ceil_div(row_packs, slices), threads)
    waiting = max(0, of_a_thread - held)
    if slices > most_slices or slices % spread or waiting * of_all_threads > room(choice, resident):
        return None
    shared_bytes = waiting * of_all_threads
    return ClaimedCut(row_packs, slices, threads, resident, min(held, of_a_thread), waiting, shared_bytes, spread)
