"""The plans in which several blocks share a row: few rows keep the whole GPU busy, long ones wait on all of the chip."""

from __future__ import annotations

from ..problem import ITEMSIZE
from .kernel_plan import BLOCK_SCRATCH, REDUCTIONS, Choice, CudaPlan, Team, build
from .thresholds import LONG_SPLIT_THREADS, SPLIT_REGISTERS, SPLIT_THREADS

SPLIT_ALGORITHMS = ("split", "stream")
# Registers of a thread besides those that hold its slice: modelled, __launch_bounds__ holds the compiler to it.
_OTHER_REGISTERS = 32


def plan_split(choice: Choice, algorithm: str, pack: int, alignment: str) -> CudaPlan:
    """The plan for "split" or "stream"; refused with a reason where it cannot serve."""
    packs = max(1, choice.problem.length // pack)
    if choice.elementwise and algorithm == "split":
        return _plan_held(choice, pack, alignment, packs)
    return _plan_walk(choice, algorithm, pack, alignment, packs)


def chip_bytes(choice: Choice) -> int:
    """Of rows that wait in shared memory: bytes that all blocks together hold, with room for what they share."""
    device = choice.device
    return (device.shared_per_block - 4 * BLOCK_SCRATCH) * device.multiprocessors


def _plan_held(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    """A slice waits in the registers of its block, or in its shared memory: one read."""
    tuning, device, size = choice.tuning, choice.device, choice.kept_size
    pack_registers = max(1, pack * size // 4)
    most_packs = max(1, SPLIT_REGISTERS[size] // pack_registers)
    per_multiprocessor = _resident(choice, SPLIT_THREADS, SPLIT_REGISTERS[size]) * SPLIT_THREADS * most_packs
    chip_packs = device.multiprocessors * per_multiprocessor
    threads = tuning.threads or (SPLIT_THREADS if packs <= SPLIT_THREADS * most_packs * 8 else LONG_SPLIT_THREADS)
    staged = tuning.staged
    if staged is None:
        staged = packs > chip_packs or -(-packs // (tuning.blocks or packs)) > threads * most_packs
        threads = tuning.threads or (LONG_SPLIT_THREADS if staged else threads)
    if staged:
        edge_packs = 2 * (alignment != "whole")
        room = device.shared_per_block - 2 * BLOCK_SCRATCH
        stages = tuning.stages or 1
        fewest = -(-packs // (room // (stages * pack * size) - edge_packs))
        blocks = tuning.blocks or max(fewest, min(device.multiprocessors, -(-packs // threads)))
        kept_bytes = stages * (-(-packs // blocks) + edge_packs) * pack * size
        resident = min(device.max_threads // 2 // threads, device.shared_per_multiprocessor // (kept_bytes + 2 * BLOCK_SCRATCH))
        if kept_bytes > room or blocks > max(1, resident) * device.multiprocessors:
            raise choice.refuse(f"a row of {packs * pack * size} bytes does not fit the shared memory of the GPU")
        choice.why.append(f"{blocks} blocks hold it in {kept_bytes} bytes of shared memory each: read once")
        return _build(choice, "split", "split", pack, alignment, threads, max(1, resident), 0, stages, kept_bytes, blocks, packs, 1)
    blocks = tuning.blocks
    if blocks is None:
        blocks = _blocks_in_registers(choice, packs, threads, most_packs)
    per_thread = -(-(-(-packs // blocks)) // threads)
    resident = _resident(choice, threads, per_thread * pack_registers)
    if per_thread > most_packs or blocks > resident * device.multiprocessors:
        raise choice.refuse(f"a row of {packs * pack * size} bytes does not fit the registers of {blocks} blocks")
    choice.why.append(f"{blocks} blocks of {threads} threads hold it in {per_thread} packs each: read once")
    return _build(choice, "split", "split", pack, alignment, threads, resident, per_thread, 1, 0, blocks, packs, 1)


def _blocks_in_registers(choice: Choice, packs: int, threads: int, most_packs: int) -> int:
    """Blocks per row: as few as hold it, or where that leaves multiprocessors idle, enough for one each."""
    fewest = -(-packs // (threads * most_packs))
    spread = choice.device.multiprocessors // max(1, choice.problem.rows)
    return max(fewest, min(spread, -(-packs // threads)), 1)


def _plan_walk(choice: Choice, algorithm: str, pack: int, alignment: str, packs: int) -> CudaPlan:
    """A slice waits nowhere: a reduction reads it once, `stream` twice."""
    problem, device = choice.problem, choice.device
    threads = choice.tuning.threads or LONG_SPLIT_THREADS
    resident = max(1, device.max_threads // (2 * choice.registers_per_element) // threads)
    blocks = choice.tuning.blocks
    if blocks is None:
        spread = resident * device.multiprocessors // max(1, problem.rows)
        blocks = max(1, min(spread, packs // threads))
    if blocks > resident * device.multiprocessors:
        raise choice.refuse(f"no more than {resident * device.multiprocessors} blocks are at work at once")
    reads = 2 if choice.elementwise else 1
    choice.why.append(
        f"{blocks} blocks of {threads} threads share it; it waits nowhere: read {('once', 'twice')[reads - 1]}"
    )
    function = "split_reduce" if problem.op in REDUCTIONS else "stream"
    return _build(choice, algorithm, function, pack, alignment, threads, resident, 0, 1, 0, blocks, packs, reads)


def _resident(choice: Choice, threads: int, held: int) -> int:
    """Blocks that a multiprocessor must have room for: by registers, of which each thread has so many held."""
    others = _OTHER_REGISTERS * choice.registers_per_element
    registers = -(-(held + others) // 8) * 8
    return max(1, min(choice.device.registers // (registers * threads), choice.device.max_threads // threads))


def _build(
    choice: Choice,
    algorithm: str,
    function: str,
    pack: int,
    alignment: str,
    threads: int,
    resident: int,
    per_thread: int,
    stages: int,
    shared_bytes: int,
    blocks: int,
    packs: int,
    reads: int,
) -> CudaPlan:
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "resident": resident,
        "packs": per_thread,
        "stages": stages,
        "slots": -(-blocks // threads),
        "pack": pack,
        "alignment": alignment,
    }
    # Two places for every block of the launch, of three numbers at most.
    slot_bytes = 16 * -(-3 * ITEMSIZE[choice.problem.compute_dtype] // 8)
    return build(
        choice,
        algorithm,
        "split.h",
        function,
        "Split",
        shape,
        threads=threads,
        shared_bytes=shared_bytes,
        units=choice.problem.rows,
        units_per_block=1,
        axes=choice.kept_axes,
        reads=reads,
        team=Team(blocks, -(-packs // blocks), 2 * slot_bytes),
    )
