"""The plan in which the blocks of a cluster share a row, and tell each other through their shared memory."""

from __future__ import annotations

from dataclasses import replace

from ..problem import REDUCTIONS
from .kernel_plan import BLOCK_SCRATCH, Choice, CudaPlan
from .plan_split import build_split, part_packs, split_registers, state_bytes
from .rounding import ceil_div, floor_power
from .team_cut import TeamCut, does_not_fit, extra_registers, few_rows, most_resident
from .team_thresholds import (
    BLOCK_LENGTH,
    CLUSTER_BLOCKS_PER_MULTIPROCESSOR,
    CLUSTER_HELD,
    CLUSTER_RESIDENT,
    CLUSTER_THREADS,
    FEW_BLOCKS_PER_MULTIPROCESSOR,
    FEW_CLUSTERED_PER_MULTIPROCESSOR,
    FEW_ROWS_EACH_HALVES,
    FEWEST_HANDED_BYTES,
    HANDED_SLICE_BYTES,
    HANDED_THREADS,
    LARGE_BLOCKS_SLICE,
    LARGE_CLUSTER,
    LARGE_CLUSTER_SLICE,
    LARGE_REDUCED_CLUSTERS,
    LOG_SLICE_HALVES,
    LONG_CLUSTER_PACKS,
    LONG_CLUSTER_THREADS,
    LONG_REDUCED_PACKS,
    LONGEST_BLOCK_LENGTH,
    LONGEST_LONE_ROW,
    LONGEST_ROW_EACH,
    MOST_APART_PACKS,
    MOST_BYTES_OF_FEWEST_HANDED_ROWS,
    MOST_CLUSTER_LOGSUMEXP_BYTES,
    MOST_CLUSTER_REDUCED_BYTES,
    MOST_HANDED_BYTES,
    MOST_HELD_BESIDE_EDGE,
    MOST_ROWS_PER_MULTIPROCESSOR,
    MOST_UNEVEN_PACKS,
    MULTIPROCESSORS_PER_FEWEST_HANDED_ROWS,
    MULTIPROCESSORS_PER_FEWEST_ROWS_EACH,
    MULTIPROCESSORS_PER_HANDED_ROW,
    MULTIPROCESSORS_PER_SHORT_ROW_EACH,
    MULTIPROCESSORS_PER_SPREAD_ROW,
    OFF_BOUNDARIES_LONG_SLICE_BYTES,
    OFF_BOUNDARIES_SLICE_BYTES,
    OFF_BOUNDARIES_SLICE_HALVES,
    PORTABLE_CLUSTER,
    PORTABLE_HALVES,
    ROW_EACH_HALVES,
    ROW_EACH_HELD,
    ROW_EACH_THREADS,
    ROWS_HANDED_THAT_FIT,
    SMALL_BLOCKS_SLICE,
    SMALL_CLUSTER,
    SPREAD_PACKS,
    UNEVEN_REDUCED_PACKS,
)
from .thresholds import ACCESS_BYTES, LONE_THREADS, MOST_BLOCK_REGISTERS
from .tuning import Tuning

# What the counter of cluster_exchange.h holds.
MOST_HANDED_ROWS = (1 << 32) - (1 << 16)
# What kernels with four parts to a slice take: that hand out rows, that compute exponentials twice.
_HANDED_REGISTERS = 72
_LOG_REGISTERS = 80
# And an edge beside more packs than that, or more packs alone.
_EDGE_REGISTERS = 16
_MANY_PACKS_REGISTERS = 8
_MOST_PACKS_BESIDE_EDGE = 8
_SIZES = (2, 4, 8, 16)  # those to choose from divide the multiprocessors of a GPU's parts


def cluster_pays(choice: Choice, pack: int, alignment: str) -> bool:
    """Whether rows are of the size that clusters are faster for than anything else."""
    if _measured(choice, pack, alignment) is None:
        return False
    bytes_of_row = choice.problem.length * choice.kept_size
    choice.why.append(f"{choice.problem.rows} rows of {bytes_of_row} bytes: the blocks of a cluster share each")
    return True


def _measured(choice: Choice, pack: int, alignment: str) -> Tuning | None:
    """The clusters that are; None without any, where rows are computed in float64, or with a tuning."""
    if choice.tuning != Tuning() or choice.registers_per_element > 1:
        return None
    if choice.device.most_clustered < PORTABLE_CLUSTER:
        return None
    if not choice.elementwise:
        return _reduced(choice, pack)
    each = _row_each(choice, pack, alignment)
    return each or (_handed_tuning(choice) if _handing_out_pays(choice, alignment) else None)


def _reduced(choice: Choice, pack: int) -> Tuning | None:
    """The clusters for few rows that are read once: blocks that meet in memory wait longer for each other."""
    problem, packs = choice.problem, choice.problem.length // pack
    plain = problem.op in REDUCTIONS
    each = choice.device.multiprocessors // max(1, problem.rows)  # multiprocessors for a row
    crowded = each < MULTIPROCESSORS_PER_SPREAD_ROW
    low, even, more, high = UNEVEN_REDUCED_PACKS
    uneven = plain and (low < packs < even or more <= packs < high)
    if uneven and crowded and each > 0:
        return Tuning(blocks=2 if packs <= 2 * CLUSTER_THREADS * MOST_UNEVEN_PACKS else 4, threads=CLUSTER_THREADS)
    large = choice.device.most_clustered >= LARGE_CLUSTER
    most_bytes = MOST_CLUSTER_REDUCED_BYTES if plain else MOST_CLUSTER_LOGSUMEXP_BYTES[choice.x_size] >> crowded
    if not few_rows(choice) or problem.length * choice.x_size > most_bytes >> (0 if large else 2):
        return None
    if uneven and packs < even:
        return Tuning(blocks=PORTABLE_CLUSTER, threads=ROW_EACH_THREADS)
    # What a block has in one go is the block's, but exponentials take it long.
    if packs < (high if crowded else even) or (plain and packs == even):
        return None
    for one in LARGE_REDUCED_CLUSTERS if large else ():
        if each >= one.multiprocessors and packs >= one.packs and (plain or one.threads < LONG_CLUSTER_THREADS):
            return Tuning(blocks=LARGE_CLUSTER, threads=one.threads)
    most_blocks = choice.device.multiprocessors * (3 if plain and packs >= LONG_REDUCED_PACKS else 2)
    threads = CLUSTER_THREADS if problem.rows * PORTABLE_CLUSTER < most_blocks else ROW_EACH_THREADS
    return Tuning(blocks=PORTABLE_CLUSTER, threads=threads)


def _row_each(choice: Choice, pack: int, alignment: str) -> Tuning | None:
    """Clusters of small blocks that have one row each: the hardware begins the next as another is over."""
    multiprocessors, wide = choice.device.multiprocessors, choice.kept_size == 4
    rows, length = choice.problem.rows, choice.problem.length
    if length <= BLOCK_LENGTH:
        if rows * MULTIPROCESSORS_PER_SHORT_ROW_EACH <= multiprocessors and length > LONGEST_LONE_ROW[choice.kept_size]:
            return Tuning(blocks=PORTABLE_CLUSTER, threads=ROW_EACH_THREADS, staged=False, handed=False)
        if wide and length > LONGEST_BLOCK_LENGTH and rows >= MOST_ROWS_PER_MULTIPROCESSOR * multiprocessors:
            return Tuning(blocks=2, threads=CLUSTER_THREADS, staged=False, handed=False)
        return None

    def held(blocks: int) -> int:  # elements of a thread
        return ceil_div(ceil_div(length // pack, blocks), ROW_EACH_THREADS) * pack

    sizes = [n for n in _SIZES if n <= choice.device.most_clustered and held(n) <= ROW_EACH_HELD[choice.kept_size]]
    if alignment == "apart" and not wide and (small := _smallest_apart(choice, pack)):
        return _in_shared_memory(small)
    whole = alignment == "whole"
    # Off the boundaries of packs, beside an edge. What waits there in few parts spills on sm_100.
    edged = alignment == "peeled" and not extra_registers(choice.device)
    if not sizes:
        return _long_row_each(choice, whole, edged)
    # What few blocks have to do is spread over more of them, as long as there is enough for each.
    blocks = sizes[0]
    for n in sizes[1:]:
        at_once = FEW_BLOCKS_PER_MULTIPROCESSOR[n > PORTABLE_CLUSTER] * multiprocessors
        if rows * n <= at_once and held(n) >= SPREAD_PACKS[n > PORTABLE_CLUSTER] * pack:
            blocks = n
    tuning = Tuning(blocks=blocks, threads=ROW_EACH_THREADS, staged=False, handed=False)
    few = rows <= FEW_CLUSTERED_PER_MULTIPROCESSOR * multiprocessors
    few_blocks = rows * blocks <= FEW_BLOCKS_PER_MULTIPROCESSOR[0] * multiprocessors
    if wide:
        if blocks == LARGE_CLUSTER and length < blocks * LARGE_CLUSTER_SLICE and _fill(choice, blocks):
            if whole or edged:
                return _in_shared_memory(PORTABLE_CLUSTER)
            return tuning if few or alignment == "apart" else None
        crowded = edged and held(blocks) > MOST_HELD_BESIDE_EDGE and _many(choice, blocks)
        return _in_shared_memory(blocks) if crowded else tuning
    if choice.problem.op == "log_softmax" and whole and sizes[0] > _SIZES[0]:
        least, most = LOG_SLICE_HALVES
        for n in _SIZES[:-1]:
            if n * least <= length <= n * most and _fill(choice, n):
                return _in_shared_memory(n)
    most_held = FEW_ROWS_EACH_HALVES if whole else ROW_EACH_HALVES
    few_held = few and blocks < LARGE_CLUSTER and held(blocks) <= most_held
    if choice.problem.op == "log_softmax" and edged and _fill(choice, SMALL_CLUSTER):
        few_held = False
    if few_blocks or few_held or blocks <= SMALL_CLUSTER:
        return tuning
    if not whole:
        return _off_boundaries(choice, edged)
    if blocks < LARGE_CLUSTER and held(blocks) <= ROW_EACH_HALVES:
        return tuning
    return _in_shared_memory(PORTABLE_CLUSTER if held(PORTABLE_CLUSTER) <= PORTABLE_HALVES else blocks)


def _smallest_apart(choice: Choice, pack: int) -> int | None:
    """Blocks of the smallest clusters that have rows, which begin elsewhere than their results do, in shared memory;
    None where these are too few or too long."""
    room = ROW_EACH_THREADS * MOST_APART_PACKS * pack
    sizes = [n for n in _SIZES if n <= choice.device.most_clustered and choice.problem.length <= n * room]
    return sizes[0] if sizes and _fill(choice, sizes[0]) else None


def _fill(choice: Choice, blocks: int) -> bool:
    """Whether clusters of so many, one for each row, give every multiprocessor as many as shared memory is for."""
    return choice.problem.rows * blocks > CLUSTER_BLOCKS_PER_MULTIPROCESSOR * choice.device.multiprocessors


def _many(choice: Choice, blocks: int) -> bool:
    """The same of rows off the boundaries of packs: of the largest clusters, more than there are with theirs in
    registers."""
    if blocks < LARGE_CLUSTER:
        return _fill(choice, blocks)
    return choice.problem.rows * blocks > FEW_BLOCKS_PER_MULTIPROCESSOR[0] * choice.device.multiprocessors


def _in_shared_memory(blocks: int, parts: int = 1) -> Tuning:
    """Clusters of small blocks whose slices wait in shared memory, all of them asked for at once."""
    return Tuning(blocks=blocks, threads=ROW_EACH_THREADS, staged=True, handed=False, parts=parts)


def _off_boundaries(choice: Choice, edged: bool) -> Tuning | None:
    """The clusters for many rows of 16-bit elements that start off the boundaries of packs."""
    row_bytes = choice.problem.length * choice.kept_size

    def packs(blocks: int) -> int:  # of a thread
        return ceil_div(row_bytes, blocks * ROW_EACH_THREADS * ACCESS_BYTES)

    # In more parts where ptxas spills otherwise.
    if row_bytes <= SMALL_CLUSTER * OFF_BOUNDARIES_SLICE_BYTES:
        if edged:
            three = choice.problem.op == "softmax" and packs(SMALL_CLUSTER) > 12
            return _in_shared_memory(SMALL_CLUSTER, parts=3 if three else 2)
        return Tuning(blocks=SMALL_CLUSTER, threads=HANDED_THREADS, staged=True, handed=True)
    if row_bytes <= PORTABLE_CLUSTER * OFF_BOUNDARIES_LONG_SLICE_BYTES:
        return _in_shared_memory(PORTABLE_CLUSTER, parts=2 if edged and packs(PORTABLE_CLUSTER) > 14 else 1)
    return None


def _long_row_each(choice: Choice, whole: bool, edged: bool) -> Tuning | None:
    """The same of rows that the registers of such blocks do not hold."""
    length, longest = choice.problem.length, LONGEST_ROW_EACH[choice.kept_size]
    if choice.device.most_clustered < LARGE_CLUSTER:
        return None
    held = LARGE_CLUSTER * CLUSTER_THREADS * ROW_EACH_HELD[choice.kept_size]
    if choice.problem.rows * LARGE_CLUSTER <= choice.device.multiprocessors and length <= held:
        return Tuning(blocks=LARGE_CLUSTER, threads=CLUSTER_THREADS, staged=False, handed=False)
    waiting = _in_shared_memory(LARGE_CLUSTER)
    if choice.kept_size == 2:
        if edged and _fill(choice, LARGE_CLUSTER) and choice.problem.op == "softmax":
            return replace(waiting, parts=2) if length <= LARGE_CLUSTER * OFF_BOUNDARIES_SLICE_HALVES else None
        fewest = choice.problem.rows * MULTIPROCESSORS_PER_FEWEST_ROWS_EACH <= choice.device.multiprocessors
        return None if fewest or not whole or length > longest else waiting
    small = length <= LARGE_CLUSTER * SMALL_BLOCKS_SLICE
    large = longest < length <= LARGE_CLUSTER * LARGE_BLOCKS_SLICE
    if edged and (small or large):
        in_shared_memory = _many(choice, LARGE_CLUSTER)
    else:
        measured = length <= longest if edged else whole and (small or large)
        in_shared_memory = measured and _fill(choice, LARGE_CLUSTER)
    if in_shared_memory:
        return replace(waiting, threads=CLUSTER_THREADS if large else ROW_EACH_THREADS)
    return None if length > longest else replace(waiting, threads=CLUSTER_THREADS, staged=False, parts=None)


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
    return _rows_that_fit(choice) <= ROWS_HANDED_THAT_FIT - (alignment != "whole")


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
    return Tuning(blocks=blocks, threads=HANDED_THREADS if small else CLUSTER_THREADS, staged=True)


def _all_at_once(choice: Choice) -> bool:
    """Whether rows are so few that larger blocks for each pay."""
    return choice.problem.rows * MULTIPROCESSORS_PER_HANDED_ROW[choice.kept_size] <= choice.device.multiprocessors


def _rows_that_fit(choice: Choice) -> int:
    """Rows that the shared memory of a multiprocessor has room for."""
    return choice.device.shared_per_multiprocessor // (choice.problem.length * choice.kept_size)


def plan_cluster(choice: Choice, pack: int, alignment: str) -> CudaPlan:
    """The plan for "cluster"; refused with a reason where it cannot serve."""
    tuning = _measured(choice, pack, alignment) or _handed_tuning(choice) or choice.tuning
    choice = replace(choice, tuning=tuning)
    sizes = cluster_sizes(choice)
    packs = max(1, choice.problem.length // pack)
    cut_row = _cut_waiting if choice.elementwise else _cut_read_once
    cuts = [cut for n in sizes if (cut := cut_row(choice, pack, alignment, packs, n))]
    if not cuts:
        raise does_not_fit(choice, pack, packs, choice.tuning.staged is not False, f"a cluster of {sizes[-1]}")
    # As many blocks as are at work at once, and leave room for more than one on a multiprocessor: while one waits for
    # its cluster, another loads.
    at_once = CLUSTER_BLOCKS_PER_MULTIPROCESSOR * choice.device.multiprocessors // max(1, choice.problem.rows)
    fewest = min(PORTABLE_CLUSTER, floor_power(max(1, at_once)))
    cut = next((cut for cut in cuts if cut.blocks >= fewest and cut.resident >= CLUSTER_RESIDENT), cuts[-1])
    cut = replace(cut, handed=_hands_out(choice, cut))
    if cut.parts > (2 if cut.handed and alignment != "whole" else 3):
        # 64 registers each are too few for the totals of so many parts: they spill.
        of_a_thread = _HANDED_REGISTERS if cut.handed else _LOG_REGISTERS if choice.problem.op == "log_softmax" else 64
        of_a_thread *= choice.registers_per_element if alignment == "apart" else 1
        cut = replace(cut, resident=min(cut.resident, choice.device.registers // (of_a_thread * cut.threads)))
    elif cut.parts and choice.registers_per_element == 1:
        of_a_thread = 64 + extra_registers(choice.device)
        cut = replace(cut, resident=min(cut.resident, choice.device.registers // (of_a_thread * cut.threads)))
    if not choice.elementwise:
        return build_split(
            choice, "cluster", "split_reduce" if choice.problem.op in REDUCTIONS else "stream", pack, alignment, cut
        )
    return build_split(choice, "cluster", "split", pack, alignment, cut)


def _hands_out(choice: Choice, cut: TeamCut) -> bool:
    """Whether clusters take rows as they are ready for them, rather than one each."""
    if choice.tuning.handed is not None:
        return choice.tuning.handed
    return cut.parts > 0 and choice.problem.rows >= cut.teams(choice.device)


def cluster_sizes(choice: Choice) -> list[int]:
    """Blocks that clusters for this problem may have; refused where there can be none."""
    most, blocks = choice.device.most_clustered, choice.tuning.blocks
    if most == 1:
        raise choice.refuse(f"sm_{choice.device.architecture} has no clusters of blocks; sm_90 and later do")
    if blocks is not None and not 2 <= blocks <= most:
        raise choice.refuse(f"a cluster has 2 to {most} blocks, not {blocks}")
    if choice.problem.rows > MOST_HANDED_ROWS:
        raise choice.refuse(f"clusters count rows, up to {MOST_HANDED_ROWS}, and there are {choice.problem.rows}")
    return [blocks] if blocks else [n for n in _SIZES if n <= most]


def cluster_scratch_bytes(blocks: int, threads: int, state_bytes: int) -> int:
    """Of cluster_exchange.h: two places for the states of all warps and the number of a row, and barriers."""
    return 2 * (threads // 32 * blocks * 8 * ceil_div(state_bytes, 8) + 16)


def _threads(choice: Choice, slice_packs: int) -> int:
    return choice.tuning.threads or (LONG_CLUSTER_THREADS if slice_packs > LONG_CLUSTER_PACKS else CLUSTER_THREADS)


def _most_held(choice: Choice) -> int:
    """Elements of its slice that a thread may hold."""
    if choice.tuning.handed:
        return CLUSTER_HELD[choice.registers_per_element]
    return ROW_EACH_HELD[8 if choice.registers_per_element == 2 else choice.kept_size]


def _cut_waiting(choice: Choice, pack: int, alignment: str, packs: int, blocks: int) -> TeamCut | None:
    """A row whose slices wait in so many blocks; None where these do not hold it."""
    tuning, device = choice.tuning, choice.device
    threads = _threads(choice, ceil_div(packs, blocks))
    of_a_thread = ceil_div(ceil_div(packs, blocks), threads)
    most = most_resident(choice, threads, 0)
    most = min(most, tuning.resident or most)
    registers = split_registers(choice, pack, _most_held(choice))
    held = of_a_thread <= registers.most_packs
    if tuning.staged is False or (tuning.staged is None and held):
        if not held:
            return None
        others = registers.others + extra_registers(device) * (1 if alignment == "whole" else 2)
        if of_a_thread > _MOST_PACKS_BESIDE_EDGE:
            others += _EDGE_REGISTERS if alignment != "whole" else _MANY_PACKS_REGISTERS
        registers = replace(registers, others=others)
        resident = min(registers.blocks(device, threads, of_a_thread), tuning.resident or device.max_threads // threads)
        return TeamCut(packs, blocks, threads, max(1, resident), of_a_thread, clustered=True)
    shared_bytes = of_a_thread * threads * pack * choice.kept_size
    static = cluster_scratch_bytes(blocks, threads, state_bytes(choice))
    if shared_bytes + static > device.shared_per_block:
        return None
    fit = device.shared_per_multiprocessor // (shared_bytes + static + BLOCK_SCRATCH)
    resident = max(1, min(fit, most))
    parts = tuning.parts or ceil_div(of_a_thread, part_packs(choice, pack))
    return TeamCut(packs, blocks, threads, resident, ceil_div(of_a_thread, parts), parts, shared_bytes, clustered=True)


def _cut_read_once(choice: Choice, pack: int, alignment: str, packs: int, blocks: int) -> TeamCut:
    """A row whose slices wait nowhere."""
    del pack, alignment
    threads = _threads(choice, ceil_div(packs, blocks))
    # As `split`: 64 registers each are too few for packs of 8 on sm_100.
    resident = most_resident(choice, threads, int(choice.x_size == 2))
    return TeamCut(packs, blocks, threads, min(resident, choice.tuning.resident or resident), clustered=True)
