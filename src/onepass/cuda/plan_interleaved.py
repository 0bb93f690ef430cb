"""The plans for long columns with few neighbours: together they are a run of memory, which several blocks share."""

from __future__ import annotations

from ..problem import GRADIENTS, ITEMSIZE, REDUCTIONS, Axis
from .kernel_plan import LINE_BYTES, Choice, CudaPlan, Functor, Team, alignment_of, build
from .rounding import ceil_div, ceil_power
from .tile_thresholds import (
    ENOUGH_BUSY_WALKERS,
    FEW_STAGED_BLOCKS,
    FEWEST_BUSY_WALKERS,
    FEWEST_STEP_BYTES,
    IDLE_WALKS,
    LARGEST_RUN_THREADS,
    LONG_HELD_BYTES,
    LONG_HELD_STEPS,
    LONG_HELD_THREADS,
    LONG_REDUCED_STEPS,
    MANY_GRADIENT_COLUMNS,
    MOST_HELD_GRADIENT_COLUMNS,
    MOST_HELD_PAIRS,
    MOST_OTHER_HELD_PAIRS,
    MOST_READ_ONCE_THREADS,
    MOST_RUN_COLUMNS,
    MOST_RUN_PACK,
    MOST_RUN_PACKS,
    OTHER_RUN_THREADS,
    READ_ONCE_RUNS,
    RUN_BLOCKS,
    RUN_BYTES_OF_TWO_READS,
    RUN_THREADS,
    RUN_THREADS_PER_MULTIPROCESSOR,
    SECTOR_BYTES,
    SHARED_STEPS,
)
from .tuning import Tuning


def plan_interleaved(choice: Choice, kept: tuple[Axis, ...]) -> CudaPlan | None:
    """The plan; None where the columns are not laid out so; but refused if tuning wants it. `kept`: the kept axes, the
    last of which is inside a run."""
    problem, tuning = choice.problem, choice.tuning
    if not tuning.interleaved and tuning != Tuning():
        return None  # tuning wants tiles
    columns = max(1, kept[-1].size)
    length = problem.length * columns
    # States of float64 are twice as large, and a block has room for one of each element of its packs.
    pack = tuning.pack or min(choice.access_pack, MOST_RUN_PACK // choice.registers_per_element)
    alignment = alignment_of(choice, pack, length, kept[:-1])
    threads = tuning.threads or _threads(choice, columns, pack, alignment)
    resident = RUN_BLOCKS.get(threads, RUN_THREADS_PER_MULTIPROCESSOR // threads) // choice.registers_per_element
    resident = tuning.resident or max(1, resident)
    walkers = _walkers(threads, columns, pack)
    packs = ceil_div(length + 2 * (pack - 1), pack)
    possible = columns <= MOST_RUN_COLUMNS and packs <= MOST_RUN_PACKS and _is_run(choice, kept)
    if not possible or alignment == "apart" or walkers < FEWEST_BUSY_WALKERS * threads:
        if tuning.interleaved:
            raise choice.refuse("its columns are no run of memory that a block can walk along by packs")
        return None
    runs = problem.rows // columns
    at_once = resident * choice.device.multiprocessors
    blocks = tuning.blocks or min(_blocks(choice, runs, length * choice.kept_size, at_once), ceil_div(packs, walkers))
    if blocks > at_once:
        raise choice.refuse(f"{blocks} blocks for a run of memory; {at_once} are at work at once")
    reads = 2 if choice.elementwise else 1
    read = "read twice" if reads == 2 else "read once"
    choice.why.append(f"{columns} columns take turns in a run of memory: by packs of {pack}, wherever it begins")
    choice.why.append(f"{blocks} blocks share a run of {problem.length} steps, which waits nowhere: {read}")
    gradient = problem.op in GRADIENTS
    slot_bytes = 16 * ceil_div((2 if gradient else 3) * ITEMSIZE[problem.compute_dtype], 8)
    # Beyond a thousand by smaller steps: each block has scratch memory for so many.
    most_columns = ceil_power(columns) if columns <= 1024 else ceil_div(columns, 512) * 512
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "threads": threads,
        "resident": resident,
        "most_columns": most_columns,
        "pack": pack,
        "whole": alignment == "whole",
    }
    return build(
        choice,
        "strided_split",
        "gradient_interleaved.h" if gradient else "interleaved.h",
        "gradient_interleaved" if gradient else "interleaved_reduce" if problem.op in REDUCTIONS else "interleaved",
        "Interleaved",
        shape,
        threads=threads,
        shared_bytes=0,
        units=runs,
        units_per_block=1,
        axes=kept,
        reads=reads,
        waves=1,
        team=Team(blocks, 0, 2 * most_columns * slot_bytes),  # blocks take turns: none has a slice
    )


def run_pays(choice: Choice, kept: tuple[Axis, ...], tiles: CudaPlan) -> bool:
    """Whether a run beats the plan by tiles."""
    problem, shape = choice.problem, dict(tiles.shape)
    if choice.algorithm not in (None, "strided_split"):
        return False
    columns = kept[-1].size
    if "packs" in shape:
        return tiles.algorithm == "strided_split" and _pays_of_held(choice, tiles, columns)
    run_bytes = problem.length * columns * choice.kept_size
    if choice.elementwise:
        return _pays_written(choice, tiles, columns, run_bytes)
    fewest = READ_ONCE_RUNS.get((choice.kind, choice.x_size))
    if fewest is None or run_bytes < fewest.run_bytes or problem.input_bytes < fewest.bytes:
        return False
    if choice.kind == "plain" and problem.length < (SHARED_STEPS if shape["pack"] == 1 else LONG_REDUCED_STEPS):
        return False
    blocks = ceil_div(tiles.units, tiles.units_per_block)
    if tiles.algorithm == "strided" and blocks <= IDLE_WALKS * choice.device.multiprocessors:
        return True
    return (choice.kind == "plain" or tiles.algorithm == "strided_split") and columns <= fewest.most_columns


def _pays_of_held(choice: Choice, tiles: CudaPlan, columns: int) -> bool:
    """The same of tiles that wait in the registers of several blocks."""
    problem, shape = choice.problem, dict(tiles.shape)
    many_steps = choice.elementwise and problem.length >= LONG_HELD_STEPS
    if shape["pack"] == 2:
        most = MOST_HELD_PAIRS.get(problem.op, MOST_OTHER_HELD_PAIRS)
        whole = columns * choice.x_size % SECTOR_BYTES == 0  # steps: tiles ask for no more than they need
        return many_steps and not whole and problem.rows * problem.length > most
    wide = problem.op in GRADIENTS and int(shape["across"]) > MOST_HELD_GRADIENT_COLUMNS
    large = many_steps or (tiles.threads >= LONG_HELD_THREADS and not wide)
    return shape["pack"] == 1 and large and problem.input_bytes >= LONG_HELD_BYTES


def _pays_written(choice: Choice, tiles: CudaPlan, columns: int, run_bytes: int) -> bool:
    """The same of results as long as the input, whose tiles wait in shared memory or nowhere."""
    op, staged = choice.problem.op, dict(tiles.shape)["staged"] == "true"
    step_bytes = columns * choice.x_size
    whole_lines = step_bytes % LINE_BYTES == 0
    if op in GRADIENTS and whole_lines and columns > MANY_GRADIENT_COLUMNS:
        return False
    if tiles.algorithm != "strided_split":
        by_element = dict(tiles.shape)["pack"] == 1
        return tiles.reads > 1 and (by_element or not whole_lines) and run_bytes >= RUN_BYTES_OF_TWO_READS
    merged_at_once = op == "softmax" and whole_lines and tiles.team <= FEW_STAGED_BLOCKS
    return not (staged and (step_bytes < FEWEST_STEP_BYTES or merged_at_once))


def _is_run(choice: Choice, kept: tuple[Axis, ...]) -> bool:
    """Whether the steps of the last kept axis lie one after the other, in all arrays that have them."""
    problem = choice.problem
    if len(problem.reduce) != 1 or problem.op == "logsumexp_backward" or problem.rows * problem.length == 0:
        return False
    inner, along = kept[-1], problem.reduce[0]
    strides = [(inner.x_stride, along.x_stride)]
    if choice.elementwise:
        strides.append((inner.y_stride, along.y_stride))
    if problem.op in GRADIENTS:
        strides.append((inner.z_stride, along.z_stride))
    return choice.load == choice.store == Functor() and all(pair == (1, inner.size) for pair in strides)


def _threads(choice: Choice, columns: int, pack: int, alignment: str) -> int:
    """Of a block: as usual, if most of them walk; else as most of them do."""
    (usual, *others), large = _sizes(choice, alignment)

    def busy(threads: int) -> float:
        return _walkers(threads, columns, pack) / threads

    if busy(usual) >= ENOUGH_BUSY_WALKERS:
        return usual
    best = max(others, key=busy)
    return large if busy(best) < FEWEST_BUSY_WALKERS else best


def _sizes(choice: Choice, alignment: str) -> tuple[tuple[int, ...], int]:
    """Threads that a block may have, the usual ones first, and those where too few of these walk."""
    problem, doubles = choice.problem, choice.registers_per_element == 2
    # With the ends of runs beside them, logarithms and gradients have no room in 64 registers.
    crowded = alignment != "whole" and (problem.op == "log_softmax" or problem.op in GRADIENTS)
    if choice.device.major != 9 or doubles or crowded:
        # Blocks of 768 spill states of float64 on sm_120.
        sizes = OTHER_RUN_THREADS[:-1] if doubles and choice.device.major >= 12 else OTHER_RUN_THREADS
        return sizes, sizes[-1]
    of_size = RUN_THREADS[choice.x_size]
    if not choice.elementwise and (problem.op != "logsumexp" or choice.x_size > 2):
        return tuple(threads for threads in of_size if threads <= MOST_READ_ONCE_THREADS), MOST_READ_ONCE_THREADS
    return of_size, LARGEST_RUN_THREADS


def _walkers(threads: int, columns: int, pack: int) -> int:
    """Threads of a block that walk along a run: so many packs are a whole number of steps."""
    packs = columns // min(columns & -columns, pack)
    return threads // packs * packs


def _blocks(choice: Choice, runs: int, run_bytes: int, at_once: int) -> int:
    """For each run: no more runs at a time than L2 holds, if they are read again, in rounds of as many each."""
    most = max(1, min(at_once, choice.device.l2_bytes // run_bytes)) if choice.elementwise else at_once
    rounds = ceil_div(runs, most)
    return at_once // ceil_div(runs, rounds)
