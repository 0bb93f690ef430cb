"""The plans in which several blocks share a row: few rows keep the whole GPU busy, long ones wait on all of it."""

from __future__ import annotations

from dataclasses import replace

from ..problem import ITEMSIZE, REDUCTIONS
from .kernel_plan import Choice, CudaPlan, build, line_packs
from .plan_claimed import claims_pay, plan_claimed
from .rounding import ceil_div
from .team_cut import (
    Registers,
    TeamCut,
    cut_held,
    cut_reduced,
    cut_staged,
    cut_streamed,
    does_not_fit,
    extra_registers,
    few_rows,
    idle,
    room,
    shares_pay,
)
from .team_thresholds import (
    ALONE_ROWS_PER_MULTIPROCESSOR,
    FEW_REDUCED_PACKS,
    HELD_WAVES,
    LONG_STAGED_BLOCKS,
    LONG_STAGED_PACKS,
    ONLINE_COST,
    PART_BYTES,
    SPLIT_COST,
    SPLIT_HELD,
    SPLIT_THREADS,
    STAGED_BLOCKS,
    STREAM_COST,
)
from .thresholds import LONE_THREADS, MOST_BLOCK_REGISTERS
from .tuning import Tuning

SPLIT_ALGORITHMS = ("split", "stream")
# Registers of a thread besides those that hold its slice, by those of an element: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill. __launch_bounds__ holds the compiler to it.
_OTHER_REGISTERS = {1: 32, 2: 96}
# Parts of a slice of float64 on sm_100 and later.
_MOST_WIDE_PARTS = 6
# And an edge, beside more of a slice than that.
_EDGE_REGISTERS = 8
_MOST_BESIDE_EDGE = 24


def plan_split(choice: Choice, algorithm: str, pack: int, alignment: str) -> CudaPlan:
    """The plan for "split" or "stream"; refused with a reason where it cannot serve."""
    packs = max(1, choice.problem.length // pack)
    if choice.elementwise and algorithm == "split" and (choice.tuning.handed or claims_pay(choice, pack, alignment)):
        return plan_claimed(choice, pack, alignment, state_bytes(choice))
    if choice.elementwise and algorithm == "split":
        try:
            waiting = _cut_waiting(choice, pack, alignment, packs)
        except ValueError:
            if choice.algorithm is not None or choice.tuning != Tuning():
                raise
            # Nobody asked for it: a GPU whose slices are cut finer than its shared memory is large (sm_75) reads twice.
            choice.why.append("no slices of a row fit on the chip at once: it is read twice")
            return plan_split(choice, "stream", pack, alignment)
        return build_split(choice, algorithm, "split", pack, alignment, waiting)
    # A slice waits nowhere: a reduction reads it once, `stream` twice, for which 64 registers each are too few.
    cut = cut_streamed(choice, packs, fewer=1) if choice.elementwise else cut_reduced(choice, packs)
    function = "split_reduce" if choice.problem.op in REDUCTIONS else "stream"
    return build_split(choice, algorithm, function, pack, alignment, cut)


def sharing_algorithm(choice: Choice, pack: int, alignment: str) -> str | None:
    """The algorithm of several blocks for a row, where that beats one block for each; None where it does not."""
    if not choice.elementwise:
        if not few_rows(choice) or choice.problem.length // pack <= FEW_REDUCED_PACKS:
            return None
        choice.why.append(f"{idle(choice)}: several blocks share each")
        return "split"
    if claims_pay(choice, pack, alignment):
        return "split"
    return shares_pay(
        choice,
        pack,
        ceil_div(choice.problem.length // pack, SPLIT_THREADS * _most_packs(choice, pack, SPLIT_THREADS, 1)),
        in_registers=choice.problem.length * choice.registers_per_element <= 1024 * MOST_BLOCK_REGISTERS,
        alone_bytes=0,  # `split` by one block does not wait
        alone=ONLINE_COST,
        split=SPLIT_COST,
        stream=STREAM_COST,
    )


def _cut_waiting(choice: Choice, pack: int, alignment: str, packs: int) -> TeamCut:
    """Slices wait in the registers of their blocks, or in their shared memory: one read."""
    staged = choice.tuning.staged
    registers = split_registers(choice, pack, SPLIT_HELD[choice.registers_per_element])
    cut = None if staged else cut_held(choice, packs, registers)
    if cut is not None and alignment != "whole" and cut.packs * registers.of_a_pack > _MOST_BESIDE_EDGE:
        registers = replace(registers, others=registers.others + _EDGE_REGISTERS)
        cut = cut_held(choice, packs, registers)
    if staged is None:
        staged = cut is None
        if cut is not None:
            waves = choice.problem.rows * cut.blocks / (cut.resident * choice.device.multiprocessors)
            off_boundaries = alignment != "whole" and not _alone(choice, pack, packs)
            staged = waves > 1 if choice.kept_size == 2 else waves > HELD_WAVES and not off_boundaries
    if staged:
        cut = _cut_staged(choice, pack, packs)
    if cut is None:
        raise does_not_fit(choice, pack, packs, staged)
    return cut


def _cut_staged(choice: Choice, pack: int, packs: int) -> TeamCut | None:
    alone = _alone(choice, pack, packs)
    blocks_of = LONG_STAGED_BLOCKS if packs > LONG_STAGED_PACKS else STAGED_BLOCKS
    threads, resident = (LONE_THREADS, 1) if alone else blocks_of[choice.kept_size]
    threads = choice.tuning.threads or threads
    two_parts = 2 * part_packs(choice, pack)  # fewer, and nothing of a slice comes while another part is looked at
    while resident > 1 and _most_packs(choice, pack, threads, resident) < two_parts:
        resident -= 1

    def fewest(resident: int) -> int:
        return 1 if alone else ceil_div(packs, threads * _most_packs(choice, pack, threads, resident))

    def of_a_thread(slice_packs: int) -> int:
        return ceil_div(slice_packs, threads)

    cut = cut_staged(
        choice,
        packs,
        threads,
        resident,
        fewest=fewest,
        bytes_of=lambda slice_packs: of_a_thread(slice_packs) * threads * pack * choice.kept_size,
    )
    if cut is None:
        return None
    per_slice = of_a_thread(ceil_div(packs, cut.blocks))
    parts = choice.tuning.parts or ceil_div(per_slice, part_packs(choice, pack))
    return replace(cut, packs=ceil_div(per_slice, parts), parts=parts)


def _most_packs(choice: Choice, pack: int, threads: int, resident: int) -> int:
    """Packs of a row that a thread has in shared memory, if so many blocks are on a multiprocessor: whole parts."""
    packs = room(choice, resident) // (threads * pack * choice.kept_size)
    part = part_packs(choice, pack)
    if choice.registers_per_element == 2 and extra_registers(choice.device):
        packs = min(packs, _MOST_WIDE_PARTS * part)
    return max(1, packs - packs % part if packs > part else packs)


def part_packs(choice: Choice, pack: int) -> int:
    return max(1, PART_BYTES // (pack * choice.kept_size))


def _alone(choice: Choice, pack: int, packs: int) -> bool:
    """Whether a block has a whole row in the shared memory of its multiprocessor, and that pays."""
    row_bytes = ceil_div(packs, LONE_THREADS) * LONE_THREADS * pack * choice.kept_size
    enough = choice.problem.rows >= ALONE_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    return enough and choice.registers_per_element == 1 and row_bytes <= room(choice, 1)


def split_registers(choice: Choice, pack: int, held: int) -> Registers:
    """Of a thread that may hold so many elements, which wait as they are computed with."""
    others = _OTHER_REGISTERS[choice.registers_per_element]
    return Registers(pack * choice.registers_per_element, max(1, held // pack), others)


def build_split(choice: Choice, algorithm: str, function: str, pack: int, alignment: str, cut: TeamCut) -> CudaPlan:
    choice.why.append(cut.waits)
    return build(
        choice,
        algorithm,
        "split.h",
        function,
        "Split",
        {
            "axes": len(choice.kept_axes),
            **cut.shape,
            "parts": cut.parts,
            "pack": pack,
            "alignment": alignment,
        },
        threads=cut.threads,
        shared_bytes=cut.shared_bytes,
        units=choice.problem.rows,
        units_per_block=1,
        axes=choice.kept_axes,
        reads=cut.reads,
        waves=cut.waves,
        team=cut.team(state_bytes(choice), line_packs(choice, pack)),
    )


def state_bytes(choice: Choice) -> int:
    """What blocks tell each other, at most: a maximum and a sum that keeps what is lost."""
    return 3 * ITEMSIZE[choice.problem.compute_dtype]
