"""Layouts of arrays as users have them on a GPU, and the algorithm that each brings about on an H100 or H200: what
test_on_gpu.py and others run there, and test_gpu_plans.py plans anywhere."""

from functools import partial

import numpy as np
from helpers import DTYPES, REDUCTIONS

from onepass.call import operands_like
from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import contiguous_strides, make_problem, normalize_dims


def expand(x, shape):
    """A broadcast array, of NumPy or torch."""
    return np.broadcast_to(x, shape) if isinstance(x, np.ndarray) else x.expand(shape)


# Shape, dim and what is taken of the array, and the algorithms of softmax and of a plain reduction, in float32.
LAYOUTS = {
    "warp": ((70, 384), -1, None, ("warp", "warp")),
    "a block for each of few short rows": ((70, 512), -1, None, ("block", "warp")),
    "warp, odd rows": ((70, 333), -1, None, ("warp", "warp")),
    "many short odd rows": ((60000, 21), -1, None, ("warp_smem", "warp_smem")),
    "many short rows of whole packs": ((30000, 32), -1, None, ("warp", "warp")),
    "block": ((40, 8192), -1, None, ("block", "block")),
    "block, odd rows": ((140, 7001), -1, None, ("block", "block")),
    "a cluster for each of few short odd rows": ((30, 7001), -1, None, ("cluster", "cluster")),
    "a cluster for each of few odd rows": ((9, 9001), -1, None, ("cluster", "cluster")),
    "few rows": ((5, 40000), -1, None, ("cluster", "cluster")),
    "few longer rows": ((3, 150001), -1, None, ("cluster", "cluster")),
    "few long rows": ((3, 600001), -1, None, ("split", "split")),
    "rows that one multiprocessor holds once": ((80, 40000), -1, None, ("cluster", "block")),
    "a cluster of four for each row": ((600, 17000), -1, None, ("cluster", "block")),
    "a cluster for each of many odd rows": ((600, 20001), -1, None, ("cluster", "block")),
    "columns": ((200, 300), 0, None, ("strided", "strided")),
    "columns that clusters share": ((700, 203), 0, None, ("strided_split", "strided")),
    "a middle dim": ((5, 64, 49), 1, None, ("strided", "strided")),
    "few neighbours": ((50, 300, 3), 1, None, ("strided", "strided")),
    "many times few neighbours": ((4000, 48, 7), 1, None, ("warp_smem", "strided")),
    "many times some neighbours": ((800, 100, 49), 1, None, ("warp_smem", "strided")),
    "few neighbours, a very long dim": ((9, 20000, 3), 1, None, ("strided_split", "strided_split")),
    "columns too long for a tile": ((70000, 33), 0, None, ("strided_split", "strided_split")),
    "many columns too long for a tile": ((7000, 4400), 0, None, ("strided_split", "strided")),
    "every second row": ((40, 1024), -1, lambda x: x[::2], ("block", "block")),
    "every second element": ((40, 1024), -1, lambda x: x[:, ::2], ("strided", "strided")),
    "every second element of short rows": ((9000, 40), -1, lambda x: x[:, ::2], ("strided", "strided")),
    "every third element of longer ones": ((6000, 300), -1, lambda x: x[:, ::3], ("strided", "strided")),
    "columns of x, rows of the result": ((601, 401), -1, lambda x: x.T, ("strided", "strided")),
    "classes put last": ((8, 21, 2048), -1, lambda x: x.swapaxes(1, 2), ("strided", "strided")),
    "classes of whole packs put last": ((8, 24, 2048), -1, lambda x: x.swapaxes(1, 2), ("strided", "strided")),
    "many classes put last": ((2, 301, 704), -1, lambda x: x.swapaxes(1, 2), ("strided", "strided")),
    "rows that are turned": ((20, 64, 96), -1, lambda x: x.swapaxes(1, 2), ("strided", "strided")),
    "rows that are turned the other way": ((20, 70, 98), 1, lambda x: x.swapaxes(1, 2), ("strided", "warp")),
    "rows turned along another dim": ((24, 60, 50), 1, lambda x: x.swapaxes(0, 2), ("strided", "strided")),
    "rows that clusters turn along another dim": (
        (20, 1000, 40),
        1,
        lambda x: x.swapaxes(0, 2),
        ("strided_split", "strided"),
    ),
    "rows that clusters turn": ((2000, 320), -1, lambda x: x.T, ("strided_split", "strided")),
    "rows of x, columns of the result": ((3, 40, 8, 256), 1, lambda x: x.swapaxes(1, 3), ("strided", "warp")),
    "few neighbours in x, others in the result": (
        (20, 60, 33, 8),
        1,
        lambda x: x.swapaxes(0, 3).swapaxes(2, 3),
        ("strided", "strided"),
    ),
    "neighbours along one dim in x, another in the result": (
        (24, 60, 51),
        1,
        lambda x: x.swapaxes(0, 2),
        ("strided", "strided"),
    ),
    "neighbours that are one element in x": (
        (60, 256, 1),
        0,
        lambda x: expand(x, (60, 256, 40)),
        ("strided", "strided"),
    ),
    "rows off the boundaries": ((40, 1031), -1, lambda x: x[:, 5:], ("block", "block")),
    "a broadcast row": ((1, 700), -1, lambda x: expand(x, (30, 700)), ("block", "block")),
    "two dims apart": ((6, 7, 8, 9), (0, 2), None, ("strided", "strided")),
    "everything": ((60, 70), None, None, ("cluster", "cluster")),
}


def is_expected(name, op, dtype, algorithm):
    """Whether it is what the layout is there for; anything goes where another size of elements decides."""
    of_softmax, of_reduction = LAYOUTS[name][3]
    if op in REDUCTIONS:
        others = () if dtype == "float32" else ("warp", "warp_smem", "block", "split", "cluster")
        return algorithm in (of_reduction, *others)
    return dtype != "float32" or op == "logsumexp" or algorithm == of_softmax


# Shape, dim, what is taken of what was saved and of dy, and the algorithm of a softmax's gradient in bfloat16 on an
# H100 or H200.
GRADIENT_LAYOUTS = {
    "warp": ((70, 512), -1, None, None, "warp"),
    "warp, odd rows": ((70, 333), -1, None, None, "warp"),
    "many short odd rows": ((60000, 21), -1, None, None, "warp_smem"),
    "few neighbours": ((2000, 300, 3), 1, None, None, "strided"),
    "many times few neighbours": ((9000, 48, 3), 1, None, None, "warp_smem"),
    "many times some neighbours": ((2000, 48, 13), 1, None, None, "warp_smem"),
    "few neighbours, a very long dim": ((9, 20000, 3), 1, None, None, "strided_split"),
    "block": ((9, 4096), -1, None, None, "block"),
    "block, odd rows": ((9, 5001), -1, None, None, "block"),
    "block, a pack a thread": ((9, 3000), -1, None, None, "block"),
    "two blocks": ((150, 12000), -1, None, None, "cluster"),
    "two blocks of many rows": ((1100, 5200), -1, None, None, "cluster"),
    "shared memory": ((150, 16384), -1, None, None, "block_smem"),
    "shared memory, odd rows": ((150, 12001), -1, None, None, "block_smem"),
    "few rows": ((3, 40000), -1, None, None, "cluster"),
    "few shorter rows": ((3, 20000), -1, None, None, "cluster"),
    "few odd rows": ((5, 150001), -1, None, None, "cluster"),
    "few rows, longer than a cluster holds": ((5, 300001), -1, None, None, "split"),
    "rows of which a multiprocessor holds one": ((150, 50257), -1, None, None, "cluster"),
    "few rows, dy lies differently": ((3, 40009), -1, lambda x: x[:, :-9], lambda x: x[:, 1:-8], "split"),
    "few rows, dy has one value for a row": ((3, 150000), -1, None, lambda x: expand(x[:, :1], (3, 150000)), "split"),
    "columns": ((300, 200), 0, None, None, "strided_split"),
    "a middle dim": ((5, 64, 49), 1, None, None, "strided"),
    "a middle dim, whole packs": ((5, 64, 48), 1, None, None, "strided"),
    "columns too long for a tile": ((4100, 4300), 0, None, None, "strided_split"),
    "a few long columns": ((70000, 33), 0, None, None, "strided_split"),
    "a few long columns of few neighbours": ((13, 7331, 2), 1, None, None, "strided_split"),
    "a few long columns, dy has one value for each": (
        (2, 9000, 33),
        1,
        None,
        lambda x: expand(x[:, :1], (2, 9000, 33)),
        "strided_split",
    ),
    "columns of few neighbours": ((7, 586, 4), 1, None, None, "strided_split"),
    "two neighbours, held instead of a run": ((61, 9000, 2), 1, None, None, "strided_split"),
    "three neighbours": ((82, 10199, 3), 1, None, None, "strided_split"),
    "shorter ones of fewer": ((72, 114, 2), 1, None, None, "strided"),
    "every second row": ((40, 1024), -1, lambda x: x[::2], lambda x: x[::2], "block"),
    "every second element": ((40, 1024), -1, lambda x: x[:, ::2], None, "strided"),
    "every second element of short rows": ((900, 80), -1, lambda x: x[:, ::2], lambda x: x[:, 1::2], "strided"),
    "inputs off the boundaries": ((40, 1031), -1, lambda x: x[:, 5:], lambda x: x[:, 3:-2], "block"),
    "dy transposed": ((61, 61), -1, None, lambda x: x.T, "strided"),
    "dy transposed, longer rows": ((301, 301), -1, None, lambda x: x.T, "strided"),
    "dy of classes put last": ((70, 63, 63), -1, None, lambda x: x.swapaxes(1, 2), "strided"),
    "dy turned": ((20, 64, 64), -1, None, lambda x: x.swapaxes(1, 2), "strided"),
    "dy turned the other way": ((20, 70, 70), 1, None, lambda x: x.swapaxes(1, 2), "strided"),
    "what was saved turned": ((304, 304), -1, lambda x: x.T, None, "strided"),
    "dy turned by clusters": ((1600, 1600), -1, None, lambda x: x.T, "strided_split"),
    "dy with a step": ((60, 500), -1, lambda x: x[:, :250], lambda x: x[:, ::2], "strided"),
    "dy of columns that lie apart": ((200, 63, 63), 1, None, lambda x: x.swapaxes(1, 2), "strided"),
    "dy has its neighbours along another dim": ((95, 20, 95), 1, None, lambda x: x.swapaxes(0, 2), "strided"),
    "dy turned along another dim": ((96, 20, 96), 1, None, lambda x: x.swapaxes(0, 2), "strided"),
    "dy turned along another dim by clusters": ((40, 2000, 40), 1, None, lambda x: x.swapaxes(0, 2), "strided_split"),
    "dy has one value for a row": ((30, 700), -1, None, lambda x: expand(x[:, :1], (30, 700)), "block"),
    "dy has one value": ((30, 700), -1, None, lambda x: expand(x[:1, :1], (30, 700)), "block"),
    "two dims apart": ((6, 7, 8, 9), (0, 2), None, None, "strided"),
    "everything": ((60, 70), None, None, None, "block"),
}

# Rows and columns that several blocks share: shape, operation, algorithm and dim, each for what makes the planner take
# it of an H200.
TEAMS = {
    "one row over the whole GPU": ((1, 1 << 20), "softmax", "split"),
    "few rows": ((8, 300000), "softmax", "split"),
    "few odd rows": ((7, 400003), "log_softmax", "split"),
    "as many rows as are on the chip at once, and more": ((70, 600001), "softmax", "split"),
    "slices that blocks claim as they are ready": ((70, 600001), "log_softmax", "split"),
    "whole rows, and longer": ((40, 1 << 20), "softmax", "split"),
    "a cluster for each row, in registers": ((210, 20001), "softmax", "cluster"),
    "rows that clusters take as they are ready for them": ((100, 128256), "log_softmax", "cluster"),
    "rows in shared memory": ((20, 1 << 20), "log_softmax", "split"),
    "a row longer than the chip holds": ((1, (1 << 25) + 3), "softmax", "stream"),
    "sums of few rows": ((3, 1 << 21), "sum", "split"),
    "means of few odd rows": ((5, 2000001), "mean", "split"),
    "maxima": ((2, 1 << 21), "amax", "split"),
    "logarithms of sums": ((4, 1 << 20), "logsumexp", "split"),
    "a long dim with little beside it": ((2, 100003, 16), "softmax", "strided_split", 1),
    "columns that one block holds too few of": ((4096, 1024), "log_softmax", "strided_split", 0),
    "columns that clusters of eight share": ((3, 2048, 1000), "softmax", "strided_split", 1),
    "longer ones, in narrow tiles": ((10000, 200), "softmax", "strided_split", 0),
    "few columns": ((1500, 40), "log_softmax", "strided_split", 0),
    "few long columns, one or two to a cluster": ((13, 7331, 2), "log_softmax", "strided_split", 1),
    "logarithms of sums of as few": ((3, 29616, 11), "logsumexp", "strided_split", 1),
    "columns of few neighbours": ((41, 7263, 7), "log_softmax", "strided_split", 1),
    "four neighbours that an access takes": ((46, 6341, 4), "softmax", "strided_split", 1),
    "two, held instead of a run": ((61, 9000, 2), "softmax", "strided_split", 1),
    "as many halves as threads of clusters may hold": ((220, 11808, 4), "log_softmax", "strided_split", 1),
    "logarithms of sums that are held, not walked along": ((7, 29918, 19), "logsumexp", "strided_split", 1),
    "rows of an odd number of columns": ((9, 700, 33), "softmax", "strided_split", 1),
    "few columns that the GPU shares": ((65536, 16), "log_softmax", "strided_split", 0),
    "few very long columns": ((1 << 21, 7), "softmax", "strided_split", 0),
    "sums of few columns": ((300001, 5), "sum", "strided_split", 0),
    "logarithms of sums of few columns": ((300000, 8), "logsumexp", "strided_split", 0),
}
# Of float64 one block holds, or reads twice, as many columns as that.
_ALONE = {"few columns", "rows of an odd number of columns"}

# What is run there: the reference takes its time, of large arrays there are two types.
_LARGE = 1 << 22
TEAMS_AND_TYPES = [
    (name, dtype)
    for name, (shape, *_) in TEAMS.items()
    for dtype in (DTYPES if np.prod(shape) < _LARGE else ("float32", "bfloat16"))
]


def of_a_team(name, dtype):
    """The algorithms that may be taken."""
    if dtype != "float64":
        return {TEAMS[name][2]}
    return {"strided" if name in _ALONE else TEAMS[name][2], "stream"}


# The same of both gradients that add up: shape and algorithm, each for what makes it take that.
GRADIENT_TEAMS = {
    "one row over the whole GPU": ((1, 1 << 20), "split"),
    "few rows": ((8, 128256), "cluster"),
    "rows that clusters share": ((1000, 40001), "cluster"),
    "as many rows as are on the chip at once, and more": ((70, 1000001), "split"),
    "a row that takes all shared memory": ((1, 3000001), "split"),
    "a row longer than the chip holds": ((1, (1 << 24) + 3), "stream"),
}


def problem_along(dim, op, shape, dtype):
    """Of contiguous arrays, with what else a gradient reads."""
    dims = normalize_dims(op, dim, shape)
    second, third = operands_like(op, dtype, shape, contiguous_strides(shape), dims)
    return make_problem(op, dtype, shape, dims, second=second, third=third)


def along(dim, op, shape, dtype, addresses=(0,) * 4, device="h200", **options):
    """The plan of that."""
    return make_cuda_plan(problem_along(dim, op, shape, dtype), by_name(device), addresses=addresses, **options)


along_dim_1 = partial(along, 1)
