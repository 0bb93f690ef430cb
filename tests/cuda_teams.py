"""Launches in which several blocks share a row: few threads and short slices, so that the simulator runs them quickly
and every block still has whole packs, edges and a rest."""

from dataclasses import replace

from cuda_cases import SCRATCH_HEAD, STRIDED, Layout, launch, rows_of
from helpers import DTYPES, REDUCTIONS, SOFTMAX_FAMILY

from onepass.cuda.plan import Tuning

LENGTH = 1500
ONE_PART = "shared memory, in one part"
# What a slice waits in, as (algorithm, tuning).
KINDS = {
    "registers": ("split", Tuning(threads=64, blocks=3)),
    "shared memory": ("split", Tuning(threads=64, blocks=3, staged=True)),
    ONE_PART: ("split", Tuning(threads=64, blocks=3, staged=True, parts=1)),
    "nothing": ("stream", Tuning(threads=64, blocks=3)),
    "registers and shared memory": ("split", Tuning(threads=64, blocks=3, handed=True, held=1)),
}
MIXED = [("bfloat16", "float32"), ("float32", "float16"), ("float16", "float64"), ("float64", "bfloat16")]
# Slices of nothing: more blocks than packs, and rows that are all head or all tail.
SHORT = {
    "one column": Layout((7, 1)),
    "a row shorter than its head": Layout((5, 5), past=(1, 1)),
    "fewer packs than blocks": Layout((4, 8)),
    "many rows for each team, which begin in turn": Layout((50, 40)),
}


def kinds_of(op):
    """A reduction waits nowhere."""
    return KINDS if op in ("softmax", "log_softmax") else {"nothing": ("split", Tuning(threads=64, blocks=3))}


def cases(op, kind):
    """Every type and layout."""
    algorithm, tuning = kinds_of(op)[kind]
    found = []
    # Parts differ in how they wait for each other only.
    for dtype in ("float32", "bfloat16") if kind == ONE_PART else DTYPES:
        for why, layout in {**rows_of(LENGTH), **SHORT}.items():
            found.append(launch(why, op, layout, dtype, None, algorithm, tuning=tuning))
    mixed = kind != ONE_PART and op in ("softmax", "log_softmax", "mean", "amax")
    for dtype, result_dtype in MIXED if mixed else ():
        for why, layout in rows_of(LENGTH).items():
            if why in ("aligned", "odd: each row starts elsewhere", "bases differently past a boundary"):
                found.append(launch(why, op, layout, dtype, result_dtype, algorithm, tuning=tuning))
    return found


def few_columns():
    """Few long columns as the planner cuts them: clusters of many blocks hold one or some, an element per access."""
    kinds = (("softmax", "float32"), ("logsumexp", "bfloat16"))
    return [launch("few long columns", op, Layout((3, 4200, 3), 1), dtype) for op, dtype in kinds]


def many_blocks():
    """More blocks than a warp has lanes, than a block has threads, and one; the simulator runs all of them at once."""
    found = []
    for blocks in (1, 2, 31, 33, 70):
        for op in ("softmax", "log_softmax", "logsumexp", "sum"):
            algorithm = "split"
            tuning = Tuning(threads=64, blocks=blocks, staged=True if op == "log_softmax" else None)
            found.append(launch(f"{blocks} blocks", op, Layout((3, 3001)), algorithm=algorithm, tuning=tuning))
    # Of rows of whole packs slices take turns at them, where they are a multiple of so many.
    return found + [
        launch(f"{blocks} slices that are claimed", op, Layout((4, length)), algorithm="split", tuning=tuning)
        for blocks in (1, 2, 16, 17, 33, 70, 150)
        for op, length in (("softmax", 12001), ("log_softmax", 12000), ("softmax", 60004 if blocks > 2 else 12004))
        for tuning in [Tuning(threads=128, blocks=blocks, handed=True, held=8 if blocks == 1 else 1)]
    ]


def all_kinds():
    return [(op, kind) for op in (*SOFTMAX_FAMILY, *REDUCTIONS) for kind in kinds_of(op)]


def strided_tuning(kind):
    """Where slices wait: in shared memory (True), nowhere (False), in the registers of a cluster or of other blocks."""
    if kind in ("cluster", "apart"):
        return Tuning(threads=256, blocks=3, clustered=kind == "cluster")
    return Tuning(threads=64, blocks=3, staged=kind)


def strided_cases(op, kind):
    """Tiles of rows whose elements lie apart; teams of three blocks, some of which have no step of a short row."""
    algorithm, tuning = "strided_split", strided_tuning(kind)
    found = []
    for dtype in DTYPES if op in ("softmax", "logsumexp", "sum") else ("float32", "bfloat16"):
        for why, layout in {**STRIDED, "a long dim": Layout((700, 40), 0)}.items():
            found.append(launch(why, op, layout, dtype, None, algorithm, tuning=tuning))
    for dtype, result_dtype in MIXED if op in ("softmax", "mean") else ():
        found.append(launch("columns", op, STRIDED["columns"], dtype, result_dtype, algorithm, tuning=tuning))
    return found


def strided_kinds():
    ops = (*SOFTMAX_FAMILY, *REDUCTIONS)
    return [(op, kind) for op in ops for kind in (("cluster", "apart", True, False) if op in _TWICE else (False,))]


_TWICE = ("softmax", "log_softmax")  # that need a row twice


def with_scratch(case, scratch, grid):
    """The arrays of a launch that finds this in scratch memory."""
    arrays = case.arrays(grid)
    arrays[2] = replace(arrays[2], data=scratch)
    return arrays


def scratch_words(plans, grid):
    """4-byte words of scratch memory that is enough for all of these plans."""
    return (SCRATCH_HEAD + max(plan.slots(grid) * plan.scratch_bytes for plan in plans)) // 4
