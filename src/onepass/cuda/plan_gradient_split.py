"""The plans for gradients in which several blocks share a row: of two arrays, whose sum they tell each other."""

from __future__ import annotations

from dataclasses import replace

from ..problem import ITEMSIZE, Axis
from .kernel_plan import Choice, CudaPlan, build, edge_packs, line_packs
from .plan_gradient_claimed import gradient_claims_pay, plan_gradient_claimed
from .rounding import ceil_div
from .team_cut import (
    Registers,
    TeamCut,
    cut_held,
    cut_staged,
    cut_streamed,
    does_not_fit,
    room,
    shares_pay,
    whole_lines,
)
from .team_thresholds import (
    FEWEST_GRADIENT_STAGED_PACKS,
    GRADIENT_SPLIT_COST,
    GRADIENT_STAGED_BLOCKS,
    GRADIENT_STAGED_PACKS,
    GRADIENT_STAGED_WAVES,
    LONE_GRADIENT_BYTES,
)
from .thresholds import ACCESS_BYTES, GRADIENT_BLOCK_REGISTERS, GRADIENT_BLOCK_REGISTERS_OF_DOUBLES

# Registers of a thread besides those that hold its slice, by those of an element: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill. __launch_bounds__ holds the compiler to it.
_OTHER_REGISTERS = {1: 32, 2: 64}
EDGE_REGISTERS = 8  # beside a slice in registers


def block_registers(choice: Choice) -> int:
    """That hold a row, or a slice, in a thread of a block."""
    return GRADIENT_BLOCK_REGISTERS if choice.registers_per_element == 1 else GRADIENT_BLOCK_REGISTERS_OF_DOUBLES


def fits_a_block(choice: Choice) -> bool:
    """Whether the registers of a block hold a row of both arrays."""
    return 2 * choice.problem.length * choice.registers_per_element <= 1024 * block_registers(choice)


def gradient_shares_pay(choice: Choice, pack: int, alignment: str) -> str | None:
    """The algorithm of several blocks for a row, where that beats one block for each; None where it does not."""
    problem = choice.problem
    packs = problem.length // pack
    row_bytes = max(1, packs * pack * choice.kept_size)
    again = problem.reread_bytes / max(1, problem.floor_bytes)
    kept = min(1, choice.device.shared_per_block / row_bytes)
    return shares_pay(
        choice,
        pack,
        _fewest(choice, pack, alignment, packs, 1),
        in_registers=fits_a_block(choice),
        alone_bytes=LONE_GRADIENT_BYTES,
        alone=1 + again * (1 - kept),
        split=GRADIENT_SPLIT_COST,
        stream=1 + again,
    )


def plan_gradient_split(
    choice: Choice, algorithm: str, access: dict[str, int | str | bool], along: Axis, packs: int
) -> CudaPlan:
    """The plan for "split" or "stream"; refused with a reason where it cannot serve."""
    pack = int(access["pack"])
    if algorithm == "split" and (choice.tuning.handed or gradient_claims_pay(choice, access)):
        return plan_gradient_claimed(choice, access, along)
    if algorithm == "split":
        cut = _cut_waiting(choice, pack, str(access["alignment"]), packs)
    else:
        # 64 registers each are too few for packs of two arrays on sm_100, and 80 for addresses of elements: they spill.
        by_element = not (access["wide_dy"] and access["wide_saved"])
        cut = cut_streamed(choice, packs, fewer=1 + (several_accesses(choice, pack) or by_element))
    return build_gradient_split(choice, algorithm, f"gradient_{algorithm}", access, along, cut)


def build_gradient_split(
    choice: Choice, algorithm: str, function: str, access: dict[str, int | str | bool], along: Axis, cut: TeamCut
) -> CudaPlan:
    choice.why.append(cut.waits)
    return build(
        choice,
        algorithm,
        "gradient_split.h",
        function,
        "GradientSplit",
        {"axes": len(choice.kept_axes), **cut.shape, **access},
        threads=cut.threads,
        shared_bytes=cut.shared_bytes,
        units=choice.problem.rows,
        units_per_block=1,
        axes=(*choice.kept_axes, along),
        reads=cut.reads,
        waves=cut.waves,
        team=cut.team(ITEMSIZE[choice.problem.compute_dtype], line_packs(choice, int(access["pack"]))),
    )


def several_accesses(choice: Choice, pack: int) -> bool:
    """For a pack, of an array that is wider than the narrowest: threads need more registers."""
    return pack * choice.kept_size > 2 * ACCESS_BYTES


def slice_registers(choice: Choice, pack: int) -> Registers:
    of_a_pack = 2 * pack * choice.registers_per_element
    most_packs = max(1, block_registers(choice) // of_a_pack)
    return Registers(of_a_pack, most_packs, _OTHER_REGISTERS[choice.registers_per_element])


def _cut_waiting(choice: Choice, pack: int, alignment: str, packs: int) -> TeamCut:
    """Slices wait in the registers of their blocks, or in their shared memory: one read."""
    staged = choice.tuning.staged
    registers = slice_registers(choice, pack)
    if alignment != "whole" and choice.x_size == 2 and choice.device.major < 9:  # there two packs spill beside an edge
        registers = replace(registers, others=registers.others + EDGE_REGISTERS)
    cut = None if staged else cut_held(choice, packs, registers)
    if staged is None:
        staged = cut is None or _staging_pays(choice, packs, cut)
    if staged:
        size = 2 if several_accesses(choice, pack) else 8 if choice.registers_per_element == 2 else choice.x_size
        threads, resident = GRADIENT_STAGED_BLOCKS[size]
        if resident == 1 and _fewest(choice, pack, alignment, packs, 1) == 1:
            resident = 2  # a block would wait with a row of its own
        cut = cut_staged(
            choice,
            packs,
            choice.tuning.threads or threads,
            resident,
            fewest=lambda resident: _fewest(choice, pack, alignment, packs, resident),
            bytes_of=lambda slice_packs: slice_bytes(choice, pack, alignment, slice_packs),
            fewer=several_accesses(choice, pack),
        )
    if cut is None:
        raise does_not_fit(choice, pack, packs, staged)
    return cut


def _staging_pays(choice: Choice, packs: int, cut: TeamCut) -> bool:
    """Whether slices that registers hold had better wait in shared memory: they are more than come at once."""
    waves = choice.problem.rows * cut.blocks / (cut.resident * choice.device.multiprocessors)
    fewest = 1 if choice.x_size == 2 or packs >= GRADIENT_STAGED_PACKS else GRADIENT_STAGED_WAVES
    return waves > fewest and (choice.x_size == 2 or packs >= FEWEST_GRADIENT_STAGED_PACKS)


def slice_bytes(choice: Choice, pack: int, alignment: str, packs: int) -> int:
    """Shared memory for so many packs, which are whole cache lines, and the edges: each array takes whole accesses."""
    packs = whole_lines(packs, line_packs(choice, pack)) + edge_packs(choice, pack, alignment)
    return packs * pack * choice.kept_size + 2 * ACCESS_BYTES


def _fewest(choice: Choice, pack: int, alignment: str, packs: int, resident: int) -> int:
    """Blocks whose shared memory holds a row, if so many are on a multiprocessor."""
    spare = slice_bytes(choice, pack, alignment, 1)
    return ceil_div(packs, (room(choice, resident) - spare) // (pack * choice.kept_size))
