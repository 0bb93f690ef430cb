"""The plans in which several blocks share a row: few rows keep the whole GPU busy, long ones wait on all of it."""

from __future__ import annotations

from ..problem import ITEMSIZE
from .kernel_plan import BLOCK_SCRATCH, REDUCTIONS, Choice, CudaPlan, Team, build
from .thresholds import (
    ALONE_ROWS_PER_MULTIPROCESSOR,
    FEW_REDUCED_PACKS,
    FEW_REDUCED_PER_THREAD,
    FEW_ROWS_PACKS,
    FEW_ROWS_SHARE,
    HELD_WAVES,
    LONE_THREADS,
    LONG_SPLIT_THREADS,
    LONG_STAGED_BLOCKS,
    LONG_STAGED_PACKS,
    MOST_BLOCK_REGISTERS,
    ONLINE_COST,
    PART_BYTES,
    SPLIT_COST,
    SPLIT_REGISTERS,
    SPLIT_THREADS,
    SPLIT_THREADS_PER_MULTIPROCESSOR,
    STAGED_BLOCKS,
    STREAM_COST,
    ceil_div,
)

SPLIT_ALGORITHMS = ("split", "stream")
# Registers of a thread besides those that hold its slice, by bytes of an element: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill. __launch_bounds__ holds the compiler to it.
_OTHER_REGISTERS = {2: 48, 4: 32, 8: 96}


def plan_split(choice: Choice, algorithm: str, pack: int, alignment: str) -> CudaPlan:
    """The plan for "split" or "stream"; refused with a reason where it cannot serve."""
    packs = max(1, choice.problem.length // pack)
    if choice.elementwise and algorithm == "split":
        return _plan_held(choice, pack, alignment, packs)
    return _plan_walk(choice, algorithm, pack, alignment, packs)


def shares_pay(choice: Choice, pack: int, alignment: str) -> str | None:
    """The algorithm of several blocks for a row, where that beats one block for each; None where it does not."""
    problem, device = choice.problem, choice.device
    packs = problem.length // pack
    row_bytes = packs * pack * choice.kept_size
    few = problem.rows * FEW_ROWS_SHARE <= device.multiprocessors
    rows = f"{problem.rows} row{'s' * (problem.rows != 1)}"
    idle = f"{rows} of {problem.length} for {device.multiprocessors} multiprocessors"
    if not choice.elementwise:
        if not few or packs <= FEW_REDUCED_PACKS:
            return None
        choice.why.append(f"{idle}: several blocks share each")
        return "split"
    alone_fits = device.shared_per_multiprocessor // (row_bytes + 2 * BLOCK_SCRATCH)
    in_registers = problem.length * choice.registers_per_element <= 1024 * MOST_BLOCK_REGISTERS
    if alone_fits >= 2 or (alone_fits and in_registers):
        if not few or packs <= FEW_ROWS_PACKS:
            return None
        choice.why.append(f"{idle}: several blocks share each")
        return "split"
    if alone_fits:
        choice.why.append(f"a multiprocessor holds one row of {row_bytes} bytes, and would wait: blocks share rows")
        return "split"
    fewest = ceil_div(packs, SPLIT_THREADS * _most_packs(choice, pack, SPLIT_THREADS, 1))
    teams = min(device.multiprocessors // fewest, problem.rows)
    costs = {"stream": STREAM_COST}
    if teams:
        costs["split"] = next(cost for at_least, cost in SPLIT_COST if teams >= at_least)
    if problem.rows <= teams:
        costs["split"] = 0  # no row waits for another
    waves = ceil_div(problem.rows, device.multiprocessors) * device.multiprocessors / max(1, problem.rows)
    costs["online"] = ONLINE_COST * waves
    best = min(costs, key=lambda name: costs[name])
    if best == "online":
        return None
    choice.why.append(f"a row takes {row_bytes} bytes, a block has {device.shared_per_block}: several blocks share it")
    return best


def _room(choice: Choice, resident: int) -> int:
    """Bytes of shared memory for each of so many blocks on a multiprocessor."""
    device = choice.device
    return min(device.shared_per_multiprocessor // resident, device.shared_per_block) - 2 * BLOCK_SCRATCH


def _most_packs(choice: Choice, pack: int, threads: int, resident: int) -> int:
    """Packs of a row that a thread has in shared memory, if so many blocks are on a multiprocessor: whole parts."""
    packs = _room(choice, resident) // (threads * pack * choice.kept_size)
    part = _part_packs(choice, pack)
    return max(1, packs - packs % part if packs > part else packs)


def _part_packs(choice: Choice, pack: int) -> int:
    return max(1, PART_BYTES // (pack * choice.kept_size))


def _plan_held(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    """A slice waits in the registers of its block, or in its shared memory: one read."""
    tuning, device, size = choice.tuning, choice.device, choice.kept_size
    pack_registers = max(1, pack * size // 4)
    most = max(1, SPLIT_REGISTERS[size] // pack_registers)
    all_packs = packs * max(1, choice.problem.rows)
    per_thread = min(most, max(2, ceil_div(all_packs, device.multiprocessors * SPLIT_THREADS_PER_MULTIPROCESSOR)))
    short = packs <= SPLIT_THREADS * per_thread * device.multiprocessors
    threads = tuning.threads or (SPLIT_THREADS if short else LONG_SPLIT_THREADS)
    blocks = tuning.blocks or ceil_div(packs, threads * per_thread)
    per_thread = ceil_div(ceil_div(packs, blocks), threads)
    resident = _resident(choice, threads, per_thread * pack_registers)
    at_once = resident * device.multiprocessors
    staged = tuning.staged
    if staged is None:
        waves = choice.problem.rows * blocks / at_once
        pays = waves > 1 if size == 2 else waves > HELD_WAVES and (alignment == "whole" or _alone(choice, pack, packs))
        staged = per_thread > most or blocks > at_once or pays
    if staged:
        return _plan_staged(choice, pack, alignment, packs)
    if per_thread > most or blocks > at_once:
        raise choice.refuse(f"a row of {packs * pack * size} bytes does not fit the registers of {blocks} blocks")
    choice.why.append(f"{blocks} blocks of {threads} threads hold it in {per_thread} packs each: read once")
    return _build(choice, "split", "split", pack, alignment, threads, resident, (per_thread, 0), 0, blocks, packs, 1)


def _alone(choice: Choice, pack: int, packs: int) -> bool:
    """Whether a block has a whole row in the shared memory of its multiprocessor, and that pays."""
    row_bytes = ceil_div(packs, LONE_THREADS) * LONE_THREADS * pack * choice.kept_size
    enough = choice.problem.rows >= ALONE_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    return enough and choice.registers_per_element == 1 and row_bytes <= _room(choice, 1)


def _plan_staged(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    tuning, device = choice.tuning, choice.device
    size = choice.kept_size
    alone = _alone(choice, pack, packs)
    blocks_of = LONG_STAGED_BLOCKS if packs > LONG_STAGED_PACKS else STAGED_BLOCKS
    threads, wanted = (LONE_THREADS, 1) if alone else blocks_of[size]
    threads = tuning.threads or threads
    resident = tuning.resident or wanted

    def fewest_blocks() -> int:
        return 1 if alone else ceil_div(packs, threads * _most_packs(choice, pack, threads, resident))

    fewest = fewest_blocks()
    two_parts = 2 * _part_packs(choice, pack)  # fewer, and nothing of a slice comes while another part is looked at
    while resident > 1 and (
        fewest > resident * device.multiprocessors or _most_packs(choice, pack, threads, resident) < two_parts
    ):
        resident -= 1
        fewest = fewest_blocks()
    at_once = resident * device.multiprocessors
    blocks = tuning.blocks
    if blocks is None:
        teams = max(1, min(choice.problem.rows, at_once // fewest))
        blocks = max(fewest, min(at_once // teams, ceil_div(packs, threads)))  # what is left over is shared out
    slice_packs = ceil_div(packs, blocks)
    per_slice = ceil_div(slice_packs, threads)
    parts = tuning.parts or ceil_div(per_slice, _part_packs(choice, pack))
    per_thread = ceil_div(per_slice, parts)
    kept_bytes = per_slice * threads * pack * size
    fit = device.shared_per_multiprocessor // (kept_bytes + 2 * BLOCK_SCRATCH)
    registers = max(1, device.max_threads // (2 * choice.registers_per_element) // threads)
    if kept_bytes > _room(choice, 1) or blocks > min(fit, registers) * device.multiprocessors:
        raise choice.refuse(f"a row of {packs * pack * size} bytes does not fit the shared memory of the GPU")
    choice.why.append(f"{blocks} blocks hold it in {kept_bytes} bytes of shared memory each, {parts} parts: read once")
    resident = min(fit, registers)
    return _build(
        choice, "split", "split", pack, alignment, threads, resident, (per_thread, parts), kept_bytes, blocks, packs, 1
    )


def _plan_walk(choice: Choice, algorithm: str, pack: int, alignment: str, packs: int) -> CudaPlan:
    """A slice waits nowhere: a reduction reads it once, `stream` twice."""
    problem, device = choice.problem, choice.device
    threads = choice.tuning.threads or SPLIT_THREADS
    # 64 registers each are too few for packs of 8 on sm_100: they spill.
    resident = max(1, device.max_threads // (2 * choice.registers_per_element) // threads - (choice.x_size == 2))
    blocks = choice.tuning.blocks
    if blocks is None:
        spread = resident * device.multiprocessors // max(1, problem.rows)
        if not choice.elementwise and packs < FEW_REDUCED_PER_THREAD * threads * spread:
            spread = 2 * device.multiprocessors // max(1, problem.rows)
        blocks = max(1, min(spread, packs // threads))
    if blocks > resident * device.multiprocessors:
        raise choice.refuse(f"no more than {resident * device.multiprocessors} blocks are at work at once")
    reads = 2 if choice.elementwise else 1
    choice.why.append(
        f"{blocks} blocks of {threads} threads share it; it waits nowhere: read {('once', 'twice')[reads - 1]}"
    )
    function = "split_reduce" if problem.op in REDUCTIONS else "stream"
    return _build(choice, algorithm, function, pack, alignment, threads, resident, (0, 0), 0, blocks, packs, reads)


def _resident(choice: Choice, threads: int, held: int) -> int:
    """Blocks that a multiprocessor must have room for: by registers, of which each thread has so many held."""
    # In float64 everything but the slice takes twice the registers, whatever it is kept as.
    size = 8 if choice.registers_per_element == 2 else choice.kept_size
    others = _OTHER_REGISTERS[size]
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
    held: tuple[int, int],
    shared_bytes: int,
    blocks: int,
    packs: int,
    reads: int,
) -> CudaPlan:
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "resident": resident,
        "packs": held[0],
        "parts": held[1],
        "slots": ceil_div(blocks, threads),
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
        team=Team(blocks, ceil_div(packs, blocks), 2 * slot_bytes),
    )
