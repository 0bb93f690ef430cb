"""The plan for gradients in which blocks claim the slices of rows as they are ready for them: plan_claimed.py's, of two
arrays."""

from __future__ import annotations

from ..problem import ITEMSIZE, Axis
from .kernel_plan import Choice, CudaPlan
from .plan_claimed import ClaimedCut, build_claimed, cut_slices
from .team_cut import Registers, extra_registers
from .team_thresholds import (
    CLAIMED_GRADIENT_LENGTH,
    CLAIMED_GRADIENT_WAVES,
    CLAIMED_GRADIENTS_THAT_FILL,
    FEWEST_CLAIMED_GRADIENT_BYTES,
    GRADIENT_CLAIMED_SLICES,
    LONGEST_SHORT_CLAIMED_GRADIENT,
    OTHER_GRADIENT_CLAIMED_REGISTERS,
)
from .tuning import Tuning


def gradient_claims_pay(choice: Choice, access: dict[str, int | str | bool]) -> bool:
    """Whether rows that several blocks share are as long, and as many, that claiming slices is faster."""
    if choice.tuning != Tuning() or choice.registers_per_element > 1 or choice.x_size != choice.z_size:
        return False
    if not (choice.device.copies_go_on and access["wide_dy"] and access["wide_saved"]):
        return False
    size, length = choice.x_size, choice.problem.length
    if length * choice.kept_size <= FEWEST_CLAIMED_GRADIENT_BYTES:
        return False
    whole = access["alignment"] == "whole"
    if whole and size == 2 and choice.problem.op == "log_softmax_backward":
        return False
    short = size == 4 and length <= LONGEST_SHORT_CLAIMED_GRADIENT
    if whole and not short and length < CLAIMED_GRADIENT_LENGTH[size]:
        return False
    cut = cut_gradient_claimed(choice, int(access["pack"]), str(access["alignment"]))
    if cut is None:
        return False
    at_once = cut.resident * choice.device.multiprocessors
    return choice.problem.rows * cut.slices >= CLAIMED_GRADIENT_WAVES * at_once


def plan_gradient_claimed(choice: Choice, access: dict[str, int | str | bool], along: Axis) -> CudaPlan:
    """The plan; refused with a reason where the GPU does not hold a row."""
    cut = cut_gradient_claimed(choice, int(access["pack"]), str(access["alignment"]))
    kernel = "gradient_claimed.h", "gradient_claimed", "GradientClaimed"
    state_bytes = ITEMSIZE[choice.problem.compute_dtype]
    return build_claimed(choice, kernel, cut, access, (*choice.kept_axes, along), state_bytes)


def cut_gradient_claimed(choice: Choice, pack: int, alignment: str) -> ClaimedCut | None:
    """A row, cut; None if the blocks that are at work at once do not hold both arrays."""
    most = GRADIENT_CLAIMED_SLICES[choice.x_size]
    held = choice.tuning.held or max(1, most.held // pack // (2 if extra_registers(choice.device) else 1))
    others = OTHER_GRADIENT_CLAIMED_REGISTERS[8 if choice.registers_per_element > 1 else choice.x_size]
    # A thread holds both arrays as it computes with them.
    registers = Registers(2 * pack * choice.registers_per_element, held, others)
    pack_bytes = pack * (choice.x_size + choice.z_size)
    return cut_slices(choice, pack, alignment, most, registers, pack_bytes, rows_that_fill=CLAIMED_GRADIENTS_THAT_FILL)
