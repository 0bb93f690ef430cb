"""The plans in which several blocks share a row: few rows keep the whole GPU busy, long ones wait on all of it."""

from __future__ import annotations

from ..problem import ITEMSIZE
from .kernel_plan import REDUCTIONS, Choice, CudaPlan, build
from .team_cut import Registers, TeamCut, cut_streamed, cut_waiting, few_rows, idle, shares_pay
from .thresholds import (
    FEW_REDUCED_PACKS,
    FEW_REDUCED_PER_THREAD,
    MOST_BLOCK_REGISTERS,
    ONLINE_COST,
    SPLIT_COST,
    SPLIT_REGISTERS,
    STAGED_BLOCKS,
    STAGED_PACKS,
    STREAM_COST,
)

SPLIT_ALGORITHMS = ("split", "stream")
# Registers of a thread besides those that hold its slice, by bytes of an element: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill. __launch_bounds__ holds the compiler to it.
_OTHER_REGISTERS = {2: 48, 4: 32, 8: 96}


def plan_split(choice: Choice, algorithm: str, pack: int, alignment: str) -> CudaPlan:
    """The plan for "split" or "stream"; refused with a reason where it cannot serve."""
    packs = max(1, choice.problem.length // pack)
    if choice.elementwise and algorithm == "split":
        # A slice waits in the registers of its block, or in its shared memory: one read.
        size = choice.kept_size
        registers = _registers(choice, pack)
        stage_waves = size == 2 or packs >= STAGED_PACKS
        cut = cut_waiting(choice, pack, alignment, packs, registers, STAGED_BLOCKS[size], stage_waves=stage_waves)
        return _build(choice, algorithm, "split", pack, alignment, cut)
    # A slice waits nowhere: a reduction reads it once, `stream` twice.
    reads, few_per_thread = (2, 0) if choice.elementwise else (1, FEW_REDUCED_PER_THREAD)
    # 64 registers each are too few for packs of 8 on sm_100: they spill.
    cut = cut_streamed(choice, packs, reads=reads, fewer=int(choice.x_size == 2), few_per_thread=few_per_thread)
    function = "split_reduce" if choice.problem.op in REDUCTIONS else "stream"
    return _build(choice, algorithm, function, pack, alignment, cut)


def sharing_algorithm(choice: Choice, pack: int, alignment: str) -> str | None:
    """The algorithm of several blocks for a row, where that beats one block for each; None where it does not."""
    if not choice.elementwise:
        if not few_rows(choice) or choice.problem.length // pack <= FEW_REDUCED_PACKS:
            return None
        choice.why.append(f"{idle(choice)}: several blocks share each")
        return "split"
    return shares_pay(
        choice,
        pack,
        alignment,
        in_registers=choice.problem.length * choice.registers_per_element <= 1024 * MOST_BLOCK_REGISTERS,
        alone=ONLINE_COST,
        split=SPLIT_COST,
        stream=STREAM_COST,
    )


def _registers(choice: Choice, pack: int) -> Registers:
    size = choice.kept_size
    of_a_pack = max(1, pack * size // 4)
    # In float64 everything but the slice takes twice the registers, whatever it is kept as.
    others = _OTHER_REGISTERS[8 if choice.registers_per_element == 2 else size]
    return Registers(of_a_pack, max(1, SPLIT_REGISTERS[size] // of_a_pack), others)


def _build(choice: Choice, algorithm: str, function: str, pack: int, alignment: str, cut: TeamCut) -> CudaPlan:
    choice.why.append(cut.waits)
    return build(
        choice,
        algorithm,
        "split.h",
        function,
        "Split",
        {"axes": len(choice.kept_axes), **cut.shape, "pack": pack, "alignment": alignment},
        threads=cut.threads,
        shared_bytes=cut.shared_bytes,
        units=choice.problem.rows,
        units_per_block=1,
        axes=choice.kept_axes,
        reads=cut.reads,
        # A maximum and a sum that keeps what is lost.
        team=cut.team(3 * ITEMSIZE[choice.problem.compute_dtype]),
    )
