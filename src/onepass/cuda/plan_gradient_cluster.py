"""The plan for gradients in which the blocks of a cluster share a row, and tell each other its sum through their shared
memory."""

from __future__ import annotations

from dataclasses import replace

from ..problem import ITEMSIZE, Axis
from .kernel_plan import BLOCK_SCRATCH, Choice, CudaPlan
from .plan_cluster import cluster_scratch_bytes, cluster_sizes
from .plan_gradient_split import (
    EDGE_REGISTERS,
    build_gradient_split,
    fits_a_block,
    several_accesses,
    slice_bytes,
    slice_registers,
)
from .rounding import ceil_div, ceil_power
from .team_cut import TeamCut, does_not_fit, most_resident
from .team_thresholds import (
    CLUSTER_RESIDENT,
    CLUSTER_THREADS,
    CLUSTERED_GRADIENT_LENGTH,
    FEW_GRADIENTS_ELEMENTS,
    FEWEST_GRADIENTS_THREADS,
    GRADIENT_CLUSTER_BYTES,
    GRADIENT_CLUSTER_SLICE_BYTES,
    LARGE_CLUSTER,
    LEAST_GRADIENT_SLICE_BYTES,
    LEAST_UNEVEN_SLICE_BYTES,
    LONG_CLUSTER_THREADS,
    LONG_GRADIENT_CLUSTER_BYTES,
    LONG_GRADIENT_SLICE_BYTES,
    MOST_SMALL_GRADIENT_SLICE_BYTES,
    MULTIPROCESSORS_PER_FEW_GRADIENTS,
    MULTIPROCESSORS_PER_FEWEST_GRADIENTS,
    MULTIPROCESSORS_PER_LONG_GRADIENT,
    PAIRED_GRADIENT_LENGTHS,
    PAIRED_ROWS_PER_MULTIPROCESSOR,
    PAIRED_SLICE_BYTES,
    PORTABLE_CLUSTER,
    ROW_EACH_THREADS,
    SHORTEST_FEW_GRADIENTS,
    UNEVEN_PAIRED_ROWS_PER_MULTIPROCESSOR,
)
from .tuning import Tuning


def gradient_cluster_pays(choice: Choice, access: dict[str, int | str | bool], packs: int) -> bool:
    """Whether rows are of the size that clusters are faster for than anything else."""
    problem = choice.problem
    if choice.device.most_clustered < PORTABLE_CLUSTER or choice.tuning != Tuning():
        return False
    # Measured of arrays that are read by packs, and computed in float32.
    if choice.registers_per_element > 1 or not _by_packs(access):
        return False
    many = problem.rows * MULTIPROCESSORS_PER_LONG_GRADIENT[_wider_size(choice)] > choice.device.multiprocessors
    two = choice.device.shared_per_multiprocessor >= 2 * LONG_GRADIENT_CLUSTER_BYTES
    most = LONG_GRADIENT_CLUSTER_BYTES if many and two else GRADIENT_CLUSTER_BYTES
    if _row_bytes(choice) > choice.device.most_clustered * most:
        return False
    if _pair(choice, access):
        choice.why.append(f"{problem.rows} rows of {_row_bytes(choice)} bytes: two blocks share each")
        return True
    if fits_a_block(choice) and not _beats_a_block(choice):
        return False
    cut = _best_cut(choice, access, packs, cluster_sizes(choice))
    if cut is None or (cut.resident < CLUSTER_RESIDENT and not _few(choice)):
        return False  # nothing would be loaded while a cluster waits
    choice.why.append(f"{problem.rows} rows of {_row_bytes(choice)} bytes: the blocks of a cluster share each")
    return True


def plan_gradient_cluster(choice: Choice, access: dict[str, int | str | bool], along: Axis, packs: int) -> CudaPlan:
    """The plan for "cluster"; refused with a reason where it cannot serve."""
    pair = _pair(choice, access)
    choice = replace(choice, tuning=pair or choice.tuning)
    sizes = cluster_sizes(choice)
    cut = _best_cut(choice, access, packs, sizes)
    if cut is None:
        staged = choice.tuning.staged is not False
        raise does_not_fit(choice, int(access["pack"]), packs, staged, f"a cluster of {sizes[-1]}")
    cut = replace(cut, handed=bool(choice.tuning.handed))
    return build_gradient_split(choice, "cluster", "gradient_split", access, along, cut)


def _pair(choice: Choice, access: dict[str, int | str | bool]) -> Tuning | None:
    """Two blocks for rows of 16-bit elements that fill the registers of one but in part, or are a little too long."""
    problem = choice.problem
    if choice.tuning != Tuning() or choice.kept_size > 4 or _few(choice) or not _by_packs(access):
        return None
    shortest, filling, longest = PAIRED_GRADIENT_LENGTHS
    whole = access["alignment"] == "whole"
    pack = int(access["pack"])
    if problem.length // pack * pack <= shortest or problem.length >= longest or problem.length == filling:
        return None
    if whole and problem.length > filling:
        return Tuning(blocks=2, threads=CLUSTER_THREADS, staged=True)
    uneven = not whole and problem.length < filling
    fewest = UNEVEN_PAIRED_ROWS_PER_MULTIPROCESSOR if uneven else PAIRED_ROWS_PER_MULTIPROCESSOR
    many = problem.rows >= fewest * choice.device.multiprocessors
    return Tuning(blocks=2, threads=ROW_EACH_THREADS, staged=True) if many else None


def _by_packs(access: dict[str, int | str | bool]) -> bool:
    return bool(access["wide_dy"] and access["wide_saved"])


def _wider_size(choice: Choice) -> int:
    """Bytes of an element of the wider array, of float32 and narrower ones."""
    return 4 if choice.kept_size > 4 else 2


def _row_bytes(choice: Choice) -> int:
    """Of both arrays."""
    return choice.problem.length * choice.kept_size


def _beats_a_block(choice: Choice) -> bool:
    """Whether clusters are faster for rows that the registers of a block hold, too."""
    length, rows = choice.problem.length, choice.problem.rows
    if rows * MULTIPROCESSORS_PER_FEWEST_GRADIENTS <= choice.device.multiprocessors:
        return length >= SHORTEST_FEW_GRADIENTS
    return length > CLUSTERED_GRADIENT_LENGTH and (choice.kept_size > 4 or _few(choice))


def _few(choice: Choice) -> bool:
    return choice.problem.rows * MULTIPROCESSORS_PER_FEW_GRADIENTS <= choice.device.multiprocessors


def _best_cut(choice: Choice, access: dict[str, int | str | bool], packs: int, sizes: list[int]) -> TeamCut | None:
    pack, alignment = int(access["pack"]), str(access["alignment"])
    blocks, threads = _blocks(choice, sizes, pack, alignment)
    threads = choice.tuning.threads or threads
    cuts = (_cut(choice, pack, alignment, packs, n, threads) for n in sizes if n >= blocks)
    return next((cut for cut in cuts if cut), None)


def _blocks(choice: Choice, sizes: list[int], pack: int, alignment: str) -> tuple[int, int]:
    """Blocks of a cluster, and threads of each. More blocks may be needed to hold the row."""
    if _few(choice) and (of_few := _blocks_of_few(choice, sizes[-1])):
        return of_few
    whole, halves = alignment == "whole", choice.kept_size <= 4
    if halves and not whole and _row_bytes(choice) <= 2 * PAIRED_SLICE_BYTES and not _few(choice):
        return 2, CLUSTER_THREADS
    in_packs = choice.problem.length // pack * pack * choice.kept_size
    blocks = next((n for n in sizes if in_packs <= n * GRADIENT_CLUSTER_SLICE_BYTES), sizes[-1])
    slice_bytes = _row_bytes(choice) // blocks
    if slice_bytes > LONG_GRADIENT_SLICE_BYTES and whole:
        return blocks, LONG_CLUSTER_THREADS
    uneven = not whole and not halves and choice.problem.op == "log_softmax_backward"
    if uneven and blocks == LARGE_CLUSTER and slice_bytes < LEAST_UNEVEN_SLICE_BYTES:
        return PORTABLE_CLUSTER, CLUSTER_THREADS
    if blocks < PORTABLE_CLUSTER or not halves or _few(choice):
        return blocks, CLUSTER_THREADS
    if slice_bytes < LEAST_GRADIENT_SLICE_BYTES:
        return blocks // 2, CLUSTER_THREADS
    return blocks, CLUSTER_THREADS if slice_bytes > MOST_SMALL_GRADIENT_SLICE_BYTES else ROW_EACH_THREADS


def _blocks_of_few(choice: Choice, most_blocks: int) -> tuple[int, int] | None:
    """Those whose threads hold FEW_GRADIENTS_ELEMENTS each; None for rows that are too long."""
    length, rows = choice.problem.length, choice.problem.rows
    for blocks, most_threads in (
        (PORTABLE_CLUSTER, CLUSTER_THREADS),
        (LARGE_CLUSTER, FEWEST_GRADIENTS_THREADS[_wider_size(choice)]),
    ):
        alone = rows * blocks <= choice.device.multiprocessors  # each block has a multiprocessor
        threads = max(ROW_EACH_THREADS, ceil_power(ceil_div(length, blocks * FEW_GRADIENTS_ELEMENTS)))
        if blocks <= most_blocks and threads <= most_threads and (alone or blocks < LARGE_CLUSTER):
            return blocks, threads
    return None


def _cut(choice: Choice, pack: int, alignment: str, packs: int, blocks: int, threads: int) -> TeamCut | None:
    """A row whose slices wait in so many blocks, in registers or in shared memory; None where these do not hold it."""
    tuning, device = choice.tuning, choice.device
    slice_packs = ceil_div(packs, blocks)
    of_a_thread = ceil_div(slice_packs, threads)
    registers = slice_registers(choice, pack)
    held = of_a_thread <= registers.most_packs
    if tuning.staged or (tuning.staged is None and not held):
        shared_bytes = slice_bytes(choice, pack, alignment, slice_packs)
        taken = shared_bytes + cluster_scratch_bytes(blocks, threads, ITEMSIZE[choice.problem.compute_dtype])
        if taken > device.shared_per_block:
            return None
        fit = device.shared_per_multiprocessor // (taken + BLOCK_SCRATCH)
        resident = min(fit, most_resident(choice, threads, several_accesses(choice, pack)))
        of_a_thread = 0
    elif held:
        shared_bytes = 0
        if alignment != "whole":  # an edge waits there, too
            registers = replace(registers, others=registers.others + EDGE_REGISTERS)
        resident = min(registers.blocks(device, threads, of_a_thread), device.max_threads // threads)
    else:
        return None
    resident = max(1, min(resident, tuning.resident or resident))
    return TeamCut(packs, blocks, threads, resident, of_a_thread, shared_bytes=shared_bytes, clustered=True)
