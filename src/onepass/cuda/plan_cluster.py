"""The plan in which the blocks of a cluster share a row, and tell each other through their shared memory."""

from __future__ import annotations

from dataclasses import replace

from ..problem import REDUCTIONS
from .kernel_plan import BLOCK_SCRATCH, Choice, CudaPlan, Tuning
from .plan_split import build_split, part_packs, split_registers, state_bytes
from .team_cut import TeamCut, does_not_fit, most_resident
from .thresholds import (
    BLOCK_REGISTERS,
    CLUSTER_BLOCKS_PER_MULTIPROCESSOR,
    CLUSTER_LENGTH,
    CLUSTER_REGISTERS,
    CLUSTER_RESIDENT,
    CLUSTER_ROW_BYTES,
    CLUSTER_ROWS_PER_MULTIPROCESSOR,
    CLUSTER_THREADS,
    CLUSTERED_SMALL_ROWS_PER_MULTIPROCESSOR,
    FEWEST_HANDED_BYTES,
    HANDED_ROWS_PER_CLUSTER,
    HANDED_SLICE_BYTES,
    HANDED_THREADS,
    LONE_THREADS,
    LONG_CLUSTER_PACKS,
    LONG_CLUSTER_THREADS,
    MOST_BLOCK_REGISTERS,
    MOST_BYTES_OF_FEWEST_HANDED_ROWS,
    MOST_HANDED_BYTES,
    MULTIPROCESSORS_PER_CLUSTERED_BLOCK_ROW,
    MULTIPROCESSORS_PER_CLUSTERED_ODD_ROW,
    MULTIPROCESSORS_PER_FEWEST_HANDED_ROWS,
    MULTIPROCESSORS_PER_HANDED_ROW,
    PAIR_THREADS,
    PAIRED_ROWS_PER_MULTIPROCESSOR,
    PORTABLE_CLUSTER,
    ceil_div,
    floor_power,
)

# What the counter of cluster_exchange.h holds.
MOST_HANDED_ROWS = (1 << 32) - (1 << 16)
_HANDED_REGISTERS = 72


def cluster_pays(choice: Choice, alignment: str) -> bool:
    """Whether rows are of the size that clusters are faster for than anything else."""
    if choice.device.most_clustered < PORTABLE_CLUSTER or not choice.elementwise or choice.kept_size > 4:
        return False
    if not _handing_out_pays(choice, alignment) and not _few_rows_pay(choice, alignment):
        return False
    bytes_of_row = choice.problem.length * choice.kept_size
    choice.why.append(f"{choice.problem.rows} rows of {bytes_of_row} bytes: the blocks of a cluster share each")
    return True


def _handing_out_pays(choice: Choice, alignment: str) -> bool:
    """Whether rows are as long that clusters, which take them as they are ready, are faster than anything else."""
    row_bytes = choice.problem.length * choice.kept_size
    if _handed_tuning(choice) is None:
        return False
    fewest = choice.problem.rows * MULTIPROCESSORS_PER_FEWEST_HANDED_ROWS < choice.device.multiprocessors
    if fewest and row_bytes > MOST_BYTES_OF_FEWEST_HANDED_ROWS[choice.kept_size]:
        return False
    if _all_at_once(choice) and alignment != "whole" and _rows_that_fit(choice) > 0:
        return False
    if choice.kept_size == 4:
        return choice.problem.length > LONE_THREADS * MOST_BLOCK_REGISTERS  # a block holds shorter ones in registers
    # One of which shared memory has room for two is for a block if it starts off the boundaries of packs.
    return _rows_that_fit(choice) <= PAIRED_ROWS_PER_MULTIPROCESSOR - (alignment != "whole")


def _handed_tuning(choice: Choice) -> Tuning | None:
    """Blocks and threads of the clusters for rows that are handed out; None for those that are too short or too long,
    wait as float64, or have a tuning."""
    row_bytes = choice.problem.length * choice.kept_size
    if choice.tuning != Tuning() or not choice.elementwise or choice.registers_per_element > 1:
        return None
    if not FEWEST_HANDED_BYTES[choice.kept_size] <= row_bytes <= MOST_HANDED_BYTES:
        return None
    sizes = list(HANDED_SLICE_BYTES)
    blocks = next((n for n in sizes if row_bytes <= n * HANDED_SLICE_BYTES[n]), sizes[-1])
    if blocks > choice.device.most_clustered:
        return None
    small = row_bytes <= blocks * HANDED_SLICE_BYTES[blocks] and not _all_at_once(choice)
    return Tuning(blocks=blocks, threads=HANDED_THREADS if small else CLUSTER_THREADS)


def _all_at_once(choice: Choice) -> bool:
    """Whether rows are so few that larger blocks for each pay."""
    return choice.problem.rows * MULTIPROCESSORS_PER_HANDED_ROW[choice.kept_size] <= choice.device.multiprocessors


def _few_rows_pay(choice: Choice, alignment: str) -> bool:
    """Whether rows are as few that a cluster for each is faster than a block."""
    rows, length, multiprocessors = choice.problem.rows, choice.problem.length, choice.device.multiprocessors
    if length * choice.kept_size < CLUSTER_ROW_BYTES or length > CLUSTER_LENGTH:
        return False
    if rows > CLUSTER_ROWS_PER_MULTIPROCESSOR * multiprocessors:
        return False
    if alignment != "whole" and rows > multiprocessors // MULTIPROCESSORS_PER_CLUSTERED_ODD_ROW:
        return False
    small = choice.kept_size == 2 and _rows_that_fit(choice) > PAIRED_ROWS_PER_MULTIPROCESSOR
    if small and rows > CLUSTERED_SMALL_ROWS_PER_MULTIPROCESSOR * multiprocessors:
        return False
    # A block holds rows of 16-bit elements of that size in shared memory.
    held = LONE_THREADS * BLOCK_REGISTERS if choice.kept_size == 4 else 0
    return length > held or rows <= multiprocessors // MULTIPROCESSORS_PER_CLUSTERED_BLOCK_ROW


def pair_pays(choice: Choice) -> bool:
    """Whether two blocks that hold a row in their registers are faster than one that keeps it in shared memory."""
    length = choice.problem.length
    return (
        choice.tuning == Tuning()
        and choice.device.most_clustered > 1
        and choice.elementwise
        and choice.x_size == choice.kept_size == 4
        and choice.registers_per_element == 1
        and LONE_THREADS * BLOCK_REGISTERS < length <= 2 * PAIR_THREADS * CLUSTER_REGISTERS[4]
        and _rows_that_fit(choice) == PAIRED_ROWS_PER_MULTIPROCESSOR
    )


def _rows_that_fit(choice: Choice) -> int:
    """Rows that the shared memory of a multiprocessor has room for."""
    return choice.device.shared_per_multiprocessor // (choice.problem.length * choice.kept_size)


def plan_pair(choice: Choice, pack: int, alignment: str) -> CudaPlan:
    """A cluster of two blocks for each row."""
    choice.why.append(
        f"a multiprocessor's memory has room for {PAIRED_ROWS_PER_MULTIPROCESSOR} rows: a pair of blocks for each"
    )
    tuning = Tuning(blocks=2, threads=PAIR_THREADS, staged=False)
    return plan_cluster(replace(choice, tuning=tuning), pack, alignment)


def plan_cluster(choice: Choice, pack: int, alignment: str) -> CudaPlan:
    """The plan for "cluster"; refused with a reason where it cannot serve."""
    if choice.problem.rows > choice.device.multiprocessors or not _few_rows_pay(choice, alignment):
        choice = replace(choice, tuning=_handed_tuning(choice) or choice.tuning)
    sizes = cluster_sizes(choice)
    packs = max(1, choice.problem.length // pack)
    cut_row = _cut_waiting if choice.elementwise else _cut_read_once
    cuts = [cut for n in sizes if (cut := cut_row(choice, pack, packs, n))]
    if not cuts:
        raise does_not_fit(choice, pack, packs, choice.tuning.staged is not False, f"a cluster of {sizes[-1]}")
    # As many blocks as are at work at once, and leave room for more than one on a multiprocessor: while one waits for
    # its cluster, another loads.
    at_once = CLUSTER_BLOCKS_PER_MULTIPROCESSOR * choice.device.multiprocessors // max(1, choice.problem.rows)
    fewest = min(PORTABLE_CLUSTER, floor_power(max(1, at_once)))
    cut = next((cut for cut in cuts if cut.blocks >= fewest and cut.resident >= CLUSTER_RESIDENT), cuts[-1])
    cut = replace(cut, handed=_hands_out(choice, cut))
    if cut.handed and cut.parts > (3 if alignment == "whole" else 2):
        # 64 registers each are too few for the totals of so many parts beside what handing out takes: they spill.
        most = choice.device.registers // (_HANDED_REGISTERS * cut.threads)
        cut = replace(cut, resident=min(cut.resident, most))
    if not choice.elementwise:
        return build_split(
            choice, "cluster", "split_reduce" if choice.problem.op in REDUCTIONS else "stream", pack, alignment, cut
        )
    return build_split(choice, "cluster", "split", pack, alignment, cut)


def _hands_out(choice: Choice, cut: TeamCut) -> bool:
    """Whether clusters take rows as they are ready for them, rather than as many each."""
    if choice.tuning.handed is not None:
        return choice.tuning.handed
    fewest = HANDED_ROWS_PER_CLUSTER[cut.parts > 0]
    return choice.elementwise and choice.problem.rows >= fewest * cut.teams(choice.device)


def cluster_sizes(choice: Choice) -> list[int]:
    """Blocks that clusters for this problem may have; refused where there can be none. Those to choose from divide the
    multiprocessors of a GPU's parts."""
    most, blocks = choice.device.most_clustered, choice.tuning.blocks
    if most == 1:
        raise choice.refuse(f"sm_{choice.device.architecture} has no clusters of blocks; sm_90 and later do")
    if blocks is not None and not 2 <= blocks <= most:
        raise choice.refuse(f"a cluster has 2 to {most} blocks, not {blocks}")
    if choice.problem.rows > MOST_HANDED_ROWS:
        raise choice.refuse(f"clusters count rows, up to {MOST_HANDED_ROWS}, and there are {choice.problem.rows}")
    return [blocks] if blocks else [n for n in (2, 4, 8, 16) if n <= most]


def cluster_scratch_bytes(blocks: int, threads: int, state_bytes: int) -> int:
    """Of cluster_exchange.h: two places for the states of all warps and the number of a row, and barriers."""
    return 2 * (threads // 32 * blocks * 8 * ceil_div(state_bytes, 8) + 16)


def _threads(choice: Choice, slice_packs: int) -> int:
    return choice.tuning.threads or (LONG_CLUSTER_THREADS if slice_packs > LONG_CLUSTER_PACKS else CLUSTER_THREADS)


def _cut_waiting(choice: Choice, pack: int, packs: int, blocks: int) -> TeamCut | None:
    """A row whose slices wait in so many blocks; None where these do not hold it."""
    tuning, device = choice.tuning, choice.device
    threads = _threads(choice, ceil_div(packs, blocks))
    of_a_thread = ceil_div(ceil_div(packs, blocks), threads)
    most = most_resident(choice, threads, 0)
    most = min(most, tuning.resident or most)
    registers = split_registers(choice, pack, CLUSTER_REGISTERS)
    held = of_a_thread <= registers.most_packs
    # Of slices in shared memory the next comes while this one is written.
    at_once = 1 if choice.kept_size == 2 else CLUSTER_BLOCKS_PER_MULTIPROCESSOR
    staged = not held or choice.problem.rows * blocks > at_once * device.multiprocessors
    if tuning.staged is not None:
        staged = tuning.staged
    if not staged:
        if not held:
            return None
        resident = min(registers.blocks(device, threads, of_a_thread), most)
        return TeamCut(packs, blocks, threads, max(1, resident), of_a_thread, clustered=True)
    shared_bytes = of_a_thread * threads * pack * choice.kept_size
    static = cluster_scratch_bytes(blocks, threads, state_bytes(choice))
    if shared_bytes + static > device.shared_per_block:
        return None
    fit = device.shared_per_multiprocessor // (shared_bytes + static + BLOCK_SCRATCH)
    resident = max(1, min(fit, most))
    parts = tuning.parts or ceil_div(of_a_thread, part_packs(choice, pack))
    return TeamCut(packs, blocks, threads, resident, ceil_div(of_a_thread, parts), parts, shared_bytes, clustered=True)


def _cut_read_once(choice: Choice, pack: int, packs: int, blocks: int) -> TeamCut:
    """A row whose slices wait nowhere."""
    del pack
    threads = _threads(choice, ceil_div(packs, blocks))
    # As `split`: 64 registers each are too few for packs of 8 on sm_100.
    resident = most_resident(choice, threads, int(choice.x_size == 2))
    return TeamCut(packs, blocks, threads, min(resident, choice.tuning.resident or resident), clustered=True)
