"""The plans for gradients in which several blocks share a row: of two arrays, whose sum they tell each other."""

from __future__ import annotations

from ..problem import ITEMSIZE, Axis
from .kernel_plan import Choice, CudaPlan, build
from .team_cut import Registers, cut_streamed, cut_waiting, shares_pay
from .thresholds import (
    ACCESS_BYTES,
    GRADIENT_BLOCK_REGISTERS,
    GRADIENT_BLOCK_REGISTERS_OF_DOUBLES,
    GRADIENT_SPLIT_COST,
    STAGED_BLOCKS,
    STAGED_PACKS,
)

# Registers of a thread besides those that hold its slice, by those of an element: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill. __launch_bounds__ holds the compiler to it.
_OTHER_REGISTERS = {1: 32, 2: 64}


def block_registers(choice: Choice) -> int:
    """That hold a row, or a slice, in a thread of a block."""
    return GRADIENT_BLOCK_REGISTERS if choice.registers_per_element == 1 else GRADIENT_BLOCK_REGISTERS_OF_DOUBLES


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
        alignment,
        in_registers=2 * problem.length * choice.registers_per_element <= 1024 * block_registers(choice),
        alone=1 + again * (1 - kept),
        split=GRADIENT_SPLIT_COST,
        stream=1 + again,
    )


def plan_gradient_split(
    choice: Choice, algorithm: str, access: dict[str, int | str | bool], along: Axis, packs: int
) -> CudaPlan:
    """The plan for "split" or "stream"; refused with a reason where it cannot serve."""
    pack = int(access["pack"])
    # For a pack, of an array that is wider than the narrowest; threads need more registers.
    several_accesses = pack * choice.kept_size > 2 * ACCESS_BYTES
    if algorithm == "split":
        registers_of_a_pack = 2 * pack * choice.registers_per_element
        cut = cut_waiting(
            choice,
            pack,
            str(access["alignment"]),
            packs,
            Registers(
                registers_of_a_pack,
                max(1, block_registers(choice) // registers_of_a_pack),
                _OTHER_REGISTERS[choice.registers_per_element],
            ),
            STAGED_BLOCKS[2 if several_accesses else 8 if choice.registers_per_element == 2 else choice.x_size],
            stage_waves=choice.x_size == 2 or packs >= STAGED_PACKS,
            fewer=several_accesses,
        )
    else:
        # 64 registers each are too few for packs of two arrays on sm_100, and 80 for addresses of elements: they spill.
        by_element = not (access["wide_dy"] and access["wide_saved"])
        cut = cut_streamed(choice, packs, reads=2, fewer=1 + (several_accesses or by_element))
    choice.why.append(cut.waits)
    return build(
        choice,
        algorithm,
        "gradient_split.h",
        f"gradient_{algorithm}",
        "GradientSplit",
        {"axes": len(choice.kept_axes), **cut.shape, **access},
        threads=cut.threads,
        shared_bytes=cut.shared_bytes,
        units=choice.problem.rows,
        units_per_block=1,
        axes=(*choice.kept_axes, along),
        reads=cut.reads,
        team=cut.team(ITEMSIZE[choice.problem.compute_dtype]),
    )
