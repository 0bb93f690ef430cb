"""sum, mean, amax, amin of rows that lie side by side."""

from __future__ import annotations

from .kernel_plan import ONCE, Choice, CudaPlan, build
from .lanes import lanes_of_row
from .rounding import ceil_div, ceil_power
from .thresholds import (
    FEWEST_LONE_REDUCED_PACKS,
    FEWEST_REDUCE_THREADS,
    LONE_THREADS,
    LOOP_THREADS,
    MANY_ROWS_PER_MULTIPROCESSOR,
    PACKS_IN_FLIGHT,
    WARP_REDUCE_PACKS,
    WARP_THREADS,
)


def plan_reduction(choice: Choice, pack: int, alignment: str) -> CudaPlan:
    """For lanes of a warp, or a block, to each row."""
    problem, tuning = choice.problem, choice.tuning
    if choice.algorithm not in (None, "warp", "block"):
        raise choice.refuse("a plain reduction reads once: `warp`, `block`, `split` or `strided`")
    packs = max(1, problem.length // pack)
    many = problem.rows >= MANY_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    at_once = not (tuning.threads or tuning.lanes) and _one_pack_each(choice, packs)
    chosen = choice.algorithm or ("warp" if many or (packs <= WARP_REDUCE_PACKS and not at_once) else "block")
    if chosen == "warp":
        threads = tuning.threads or WARP_THREADS
        lanes = tuning.lanes or lanes_of_row(choice, pack, alignment)
        if alignment == "peeled" and lanes < 2 * pack - 2:
            raise choice.refuse(f"{lanes} lanes: each of a row's {2 * pack - 2} edges is for a lane of its own")
        choice.why.append(
            f"{problem.rows} rows are enough for {lanes} lanes each to fill the GPU"
            if many
            else f"{packs} packs are few enough for {lanes} lanes of a warp"
        )
    else:
        # Each thread asks for PACKS_IN_FLIGHT at a time, or waits for one after the other.
        alone = problem.rows <= choice.device.multiprocessors and choice.registers_per_element == 1
        most = LONE_THREADS if alone and packs >= FEWEST_LONE_REDUCED_PACKS else LOOP_THREADS
        busy = min(max(ceil_power(packs // PACKS_IN_FLIGHT + 1) // 2, FEWEST_REDUCE_THREADS), most)
        if at_once and packs != PACKS_IN_FLIGHT * busy:
            busy = ceil_power(packs)
        threads = tuning.threads or busy
        lanes = threads
        choice.why.append(f"{packs} packs are shared out among {threads} threads")
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "lanes": lanes,
        "pack": pack,
        "alignment": alignment,
    }
    return build(
        choice,
        chosen,
        "row_reduce.h",
        f"{chosen}_reduce",
        "RowReduce",
        shape,
        threads=threads,
        shared_bytes=0,
        units=problem.rows,
        units_per_block=threads // lanes,
        axes=choice.kept_axes,
        reads=1,
        waves=ONCE,
    )


def _one_pack_each(choice: Choice, packs: int) -> bool:
    """Whether all rows are on the chip at once with a pack for each thread, and lanes of a warp would wait twice."""
    one_go = packs <= (PACKS_IN_FLIGHT - 1) * 32 or packs == PACKS_IN_FLIGHT * 32
    threads = ceil_power(packs)
    rows = ceil_div(max(1, choice.problem.rows), choice.device.multiprocessors)
    fit = threads <= LONE_THREADS and rows * threads <= choice.device.max_threads
    return fit and not one_go and choice.registers_per_element == 1
