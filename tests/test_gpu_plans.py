"""Which algorithm each layout of gpu_layouts.py brings about: what `pytest -m gpu` asserts of calls, planned."""

import itertools

import numpy as np
import pytest
from gpu_layouts import (
    GRADIENT_LAYOUTS,
    GRADIENT_TEAMS,
    LAYOUTS,
    TEAMS,
    TEAMS_AND_TYPES,
    along,
    along_dim_1,
    is_expected,
    of_a_team,
)
from helpers import DTYPES, REDUCTIONS, SOFTMAX_FAMILY

from onepass.call_gradients import checked
from onepass.cuda.device import by_name
from onepass.cuda.plan import Tuning, make_cuda_plan
from onepass.problem import make_problem, normalize_dims


def taken(view, shape, dtype):
    """What a layout takes of an array, and how far into it that begins."""
    base = np.zeros(shape, DTYPES[dtype])
    x = base if view is None else view(base)
    return x, x.__array_interface__["data"][0] - base.__array_interface__["data"][0]


@pytest.mark.parametrize("op", (*SOFTMAX_FAMILY, *REDUCTIONS))
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(name, op):
    shape, dim, view, _ = LAYOUTS[name]
    for dtype in DTYPES:
        x, into = taken(view, shape, dtype)
        strides = tuple(stride // x.itemsize for stride in x.strides)
        problem = make_problem(op, dtype, x.shape, normalize_dims(op, dim, x.shape), strides=strides)
        algorithm = make_cuda_plan(problem, by_name("h200"), addresses=(into, 0)).algorithm
        assert is_expected(name, op, dtype, algorithm), (dtype, algorithm)


@pytest.mark.parametrize(("name", "dtype"), TEAMS_AND_TYPES)
def test_every_team(name, dtype):
    shape, op, _, *dim = TEAMS[name]
    assert along(dim[0] if dim else -1, op, shape, dtype).algorithm in of_a_team(name, dtype)


@pytest.mark.parametrize("op", ("softmax_backward", "log_softmax_backward"))
@pytest.mark.parametrize("name", GRADIENT_TEAMS)
def test_every_team_of_a_gradient(name, op):
    shape, algorithm = GRADIENT_TEAMS[name]
    for dtype in ("float32", "bfloat16"):
        assert along(-1, op, shape, dtype).algorithm == algorithm, dtype


@pytest.mark.parametrize("op", ("softmax_backward", "log_softmax_backward"))
@pytest.mark.parametrize("name", GRADIENT_LAYOUTS)
def test_every_layout_of_a_gradient(name, op):
    shape, dim, saved_view, dy_view, algorithm = GRADIENT_LAYOUTS[name]
    saved, saved_into = taken(saved_view, shape, "bfloat16")
    dy, dy_into = taken(dy_view, shape, "bfloat16")
    dy = dy[tuple(slice(0, n) for n in saved.shape)]
    _, problem = checked(op, (saved, dy), dim, False, None, None)
    plan = make_cuda_plan(problem, by_name("h200"), addresses=(saved_into, 0, dy_into))
    assert plan.algorithm == algorithm


def _few(across, packs, cluster):
    """How clusters hold few long columns."""
    return {"threads": 128, "across": across, "packs": packs, "pack": 1, "cluster": cluster}


def _segment(across, threads, pack):
    """How tiles are cut whose blocks need nothing of each other."""
    return {"across": across, "threads": threads, "pack": pack}


# (operation, shape, dim, dtype) -> algorithm, and what its shape must say: the reason.
CUTS = [
    ("sum", (65536, 64), 0, "bfloat16", "strided_split", {"pack": 2, "across": 16}, "two tiles of tall columns"),
    ("amax", (200000, 8), 0, "float32", "strided_split", {"pack": 2, "across": 2}, "the same of eight columns"),
    ("sum", (32, 1000, 3), 1, "float32", "strided", {"across": 1, "threads": 64}, "few columns: a block each"),
    ("sum", (64, 1000, 5), 1, "float32", "strided", {"across": 4, "threads": 256}, "more of them: tiles"),
    ("sum", (500, 64), 0, "bfloat16", "strided", {"across": 2, "pack": 1, "threads": 512}, "little, at once"),
    ("sum", (2000, 2000), 0, "float32", "strided", {"across": 8, "pack": 2}, "not little: packs"),
    ("sum", (2, 5, 40000), 1, "float32", "strided", {"across": 128}, "short columns: a thread each"),
    ("sum", (64, 50176, 3), 1, "float32", "strided", {"across": 1, "threads": 512}, "few neighbours: a block each"),
    ("sum", (512, 50176, 3), 1, "float32", "strided", {"across": 1, "threads": 64}, "many of them: small blocks"),
    ("amax", (256, 2000, 7), 1, "bfloat16", "strided", {"across": 2, "threads": 128}, "shorter ones: two to a block"),
    ("sum", (4, 50176, 3), 1, "float32", "strided_split", {"across": 4}, "too few of them for a block each"),
    ("logsumexp", (85, 12301), -1, "bfloat16", "block", {"pack": 8, "padded": "true"}, "they come at once: held"),
    ("logsumexp", (256, 16384), -1, "bfloat16", "online", {"threads": 256}, "more of them are walked along"),
    ("softmax", (600, 84000), -1, "float32", "cluster", {"threads": 128, "parts": 1}, "in shared memory"),
    ("softmax", (64, 84000), -1, "float32", "cluster", {"threads": 256, "parts": 0}, "few: in registers"),
    ("softmax", (600, 120000), -1, "float32", "cluster", {"threads": 256, "parts": 0}, "longer slices, too"),
    ("softmax", (600, 90001), -1, "float32", "cluster", {"threads": 128, "parts": 1}, "edges beside: too"),
    ("softmax", (300, 43000), -1, "float32", "cluster", {"cluster": 8, "parts": 1}, "just too long for 8 in registers"),
    ("softmax", (64, 43000), -1, "float32", "cluster", {"cluster": 16, "parts": 0}, "few"),
    ("log_softmax", (4096, 18000), -1, "bfloat16", "cluster", {"cluster": 2, "parts": 1}, "exponentials twice"),
    ("log_softmax", (4096, 36000), -1, "bfloat16", "cluster", {"cluster": 4, "parts": 1}, "longer"),
    ("log_softmax", (600, 52000), -1, "bfloat16", "cluster", {"cluster": 8, "parts": 1}, "longer still"),
    ("log_softmax", (264, 20000), -1, "bfloat16", "cluster", {"cluster": 4, "parts": 0}, "few: in registers"),
    ("log_softmax", (133, 48000), -1, "bfloat16", "cluster", {"cluster": 8, "parts": 1}, "few for 4, not for 8"),
    ("softmax", (300, 160000), -1, "float32", "cluster", {"threads": 256, "parts": 1, "handed": "false"}, "longer"),
    ("softmax", (64, 160000), -1, "float32", "cluster", {"threads": 256, "handed": "true"}, "few: handed out"),
    ("softmax", (300, 240000), -1, "float32", "cluster", {"threads": 256, "handed": "true"}, "too long"),
    ("softmax", (600, 36000), -1, "bfloat16", "cluster", {"cluster": 8, "parts": 0}, "exponentials once: in registers"),
    ("softmax", (132, 75000), -1, "bfloat16", "cluster", {"cluster": 8, "parts": 1}, "longer than 8 hold in registers"),
    ("softmax", (4096, 200000), -1, "bfloat16", "cluster", {"cluster": 16, "parts": 1}, "the longest"),
    ("logsumexp", (4, 40000), -1, "float32", "cluster", {"packs": 0}, "longer ones are several blocks'"),
    ("logsumexp", (90, 20000), -1, "float32", "online", {"threads": 512}, "too long for one block to hold"),
    ("logsumexp", (85, 12301), -1, "float64", "block_smem", {"pack": 2}, "of eight bytes as before"),
    ("logsumexp", (168, 100003), -1, "float32", "online", {"threads": 512}, "two rows for a multiprocessor"),
    ("logsumexp", (365, 45919), -1, "bfloat16", "online", {"threads": 256}, "three"),
    ("logsumexp", (1525, 11002), -1, "float32", "online", {"threads": 64}, "twelve"),
    ("logsumexp", (3168, 50257), -1, "bfloat16", "online", {"threads": 32}, "twenty-four, all at work at once"),
    ("logsumexp", (3169, 50257), -1, "bfloat16", "online", {"threads": 128}, "more take turns"),
    ("logsumexp", (1000, 1000), 0, "float32", "strided", {"across": 8, "packs": 32}, "not written, small: one block"),
    ("logsumexp", (1000, 1000), 0, "bfloat16", "strided_split", {"pack": 2, "across": 8}, "the same of 16 bits"),
    ("logsumexp", (20000, 500), 0, "float32", "strided_split", {"across": 8, "cluster": 16}, "few long columns"),
    ("logsumexp", (20000, 2000), 0, "float32", "strided", {"across": 8, "pack": 1}, "more of them: walked along"),
    ("logsumexp", (5000, 1501), 0, "float32", "strided", {"across": 8, "threads": 512}, "a block to eight columns"),
    ("logsumexp", (5000, 1201), 0, "float32", "strided_split", {"across": 16, "cluster": 8}, "few, and no packs"),
    ("logsumexp", (8, 1000, 2000), 1, "bfloat16", "strided", {"across": 32, "pack": 2, "threads": 512}, "many: wider"),
    ("logsumexp", (8, 990, 2000), 1, "bfloat16", "strided_split", {"cluster": 2}, "shorter ones held"),
    ("logsumexp", (7, 1094, 311), 1, "float32", "strided_split", {"cluster": 2}, "17 elements a thread"),
    ("logsumexp", (300, 1100, 15), 1, "float32", "strided_split", {"cluster": 4}, "of fifteen neighbours"),
    ("logsumexp", (29, 3000, 49), 1, "bfloat16", "strided_split", {"cluster": 8}, "16 bits one by one"),
    ("logsumexp", (34, 10000, 49), 1, "bfloat16", "strided", {"across": 8, "threads": 512}, "long ones of them"),
    ("logsumexp", (28, 3000, 200), 1, "float32", "strided", {"pack": 4}, "walked along in wider packs"),
    ("logsumexp", (3, 10000, 501), 1, "float32", "strided", {"across": 8}, "no run, where there are threads enough"),
    ("logsumexp", (2, 10000, 501), 1, "float32", "strided_split", {"most_columns": 512}, "a run, where there are not"),
    ("sum", (1, 83886, 1000), 1, "bfloat16", "strided_split", {"most_columns": 1024}, "the same of wide ones"),
    ("sum", (1, 83886, 2048), 1, "bfloat16", "strided", {"pack": 8}, "where there are"),
    ("logsumexp", (8, 1000, 2000), 1, "float64", "strided", {"pack": 2}, "as before"),
    ("logsumexp", (10000, 1001), 0, "float32", "strided_split", {"across": 16, "resident": 2}, "those longer: walked"),
    ("logsumexp", (64, 50176, 3), 1, "float32", "strided_split", {"threads": 512, "resident": 3}, "of few neighbours"),
    ("logsumexp", (64, 50176, 3), 1, "bfloat16", "strided_split", {"packs": 49, "cluster": 16}, "narrow ones held"),
    ("logsumexp", (17140, 4840), 0, "bfloat16", "strided", {"across": 8, "threads": 512}, "too many clusters"),
    ("logsumexp", (16384, 1024), 0, "bfloat16", "strided_split", {"packs": 16, "cluster": 16}, "not too many of them"),
    ("logsumexp", (31, 1931, 1356), 1, "float32", "strided", {"across": 16, "threads": 128}, "no second wave"),
    ("logsumexp", (4, 2201, 7948), 1, "float32", "strided", {"across": 8, "staged": "false"}, "no narrow tile is held"),
    ("softmax", (4, 2201, 7948), 1, "float32", "strided_split", {"packs": 18, "cluster": 8}, "written: held"),
    ("logsumexp", (100, 200, 3000), 1, "float32", "strided", {"packs": 25, "threads": 128}, "more held, fewer threads"),
    ("softmax", (100, 200, 3000), 1, "float32", "strided", {"packs": 7, "threads": 256}, "no more where written"),
    ("softmax", (24, 394, 6655), 1, "bfloat16", "strided_split", {"packs": 25, "cluster": 2}, "half as many steps"),
    ("sum", (13593, 19, 2), 1, "float32", "strided", {"across": 32, "threads": 64}, "short pairs, side by side"),
    ("sum", (11000, 40, 2), 1, "float32", "strided", {"across": 2, "threads": 64}, "pairs that fill a warp"),
    ("sum", (64, 1000, 196), 1, "bfloat16", "strided", {"across": 16, "pack": 2, "threads": 256}, "narrow packs"),
    ("sum", (32, 256, 3136), 1, "bfloat16", "strided", {"across": 16, "pack": 8}, "columns enough for wide ones"),
    ("amax", (35, 1142, 672), 1, "float32", "strided", {"across": 32, "pack": 2}, "a run's columns too short"),
    ("sum", (1, 40000, 64), 1, "float32", "strided_split", {"pack": 2}, "too long for one block"),
    ("sum", (1, 12000, 31), 1, "float32", "strided_split", {"pack": 1}, "and those that no access takes several of"),
    (
        "softmax",
        (256, 500, 49),
        1,
        "float32",
        "strided_split",
        {"threads": 256, "cluster": 4},
        "no packs: more threads",
    ),
    ("log_softmax", (4096, 4096), 0, "bfloat16", "strided_split", {"packs": 16, "resident": 3}, "halves as read"),
    ("softmax", (4096, 4096), 0, "bfloat16", "strided_split", {"packs": 16, "resident": 4}, "halves, an anchor fewer"),
    ("softmax", (8192, 8192), 0, "bfloat16", "strided_split", {"threads": 512, "cluster": 8}, "halves, longer"),
    ("log_softmax", (150, 808, 1972), 1, "bfloat16", "strided_split", {"across": 16, "cluster": 4}, "across sectors"),
    (
        "logsumexp",
        (165, 82, 5928),
        1,
        "bfloat16",
        "strided",
        {"across": 32, "pack": 2, "packs": 21},
        "in pairs",
    ),
    ("softmax", (32, 256, 56, 56), 1, "bfloat16", "strided", {"across": 16, "packs": 16}, "longer: half as wide"),
    ("sum", (846, 3, 6127), 1, "bfloat16", "strided", {"packs": 3, "tiles": 8}, "few steps: several tiles"),
    ("sum", (8, 21, 513, 513), 1, "float32", "strided", {"packs": 21, "tiles": 1}, "a few more: all at a time"),
    ("amax", (235, 34, 11018), 1, "bfloat16", "strided", {"pack": 2, "staged": "false"}, "packs are worth more"),
    ("softmax", (76847, 3, 1123), 1, "float32", "strided", {"packs": 3, "tiles": 8}, "the same, written"),
    ("logsumexp", (3257, 4, 465), 1, "float32", "strided", {"packs": 4, "tiles": 1}, "a step more: one tile"),
    ("log_softmax", (420, 536, 128), 1, "bfloat16", "strided_split", {"pack": 2, "cluster": 2}, "logarithms of halves"),
    ("log_softmax", (190, 1035, 56), 1, "float16", "strided_split", {"pack": 2, "cluster": 4}, "more steps of them"),
    ("log_softmax", (81, 312, 256), 1, "bfloat16", "strided_split", {"pack": 4, "cluster": 2}, "fewer steps of them"),
    (
        "log_softmax",
        (1, 427, 840),
        1,
        "bfloat16",
        "strided_split",
        {"pack": 2, "across": 8},
        "few of them",
    ),
    ("log_softmax", (348, 147, 2512), 1, "bfloat16", "strided", {"pack": 2, "across": 32}, "logarithms of one block"),
    ("log_softmax", (390, 107, 56), 1, "bfloat16", "strided", {"pack": 2, "across": 16}, "of fewer neighbours"),
    ("log_softmax", (1, 226, 644), 1, "bfloat16", "strided", {"pack": 2, "across": 4}, "of few columns"),
    ("log_softmax", (476, 56, 40), 1, "bfloat16", "strided", {"pack": 4, "across": 16}, "shorter ones by four"),
    ("logsumexp_backward", (12, 88469, 64), 1, "float32", "strided", _segment(16, 64, 4), "as wide as neighbours"),
    ("logsumexp_backward", (232, 87589, 2), 1, "bfloat16", "strided", _segment(1, 64, 2), "two neighbours"),
    ("logsumexp_backward", (9, 20824, 8), 1, "bfloat16", "strided", _segment(4, 64, 2), "narrow packs: more threads"),
    ("logsumexp_backward", (1, 438, 23), 1, "bfloat16", "strided", _segment(1, 512, 1), "a step for each thread"),
    ("logsumexp_backward", (4096, 64, 4096), 1, "bfloat16", "strided", _segment(16, 64, 8), "whole packs of many"),
    ("log_softmax", (26, 6591, 4), 1, "float32", "strided_split", _few(4, 26, 8), "few columns, as many as neighbours"),
    ("softmax_backward", (13, 7331, 2), 1, "float32", "strided_split", _few(2, 15, 8), "few columns of a gradient"),
    ("log_softmax_backward", (8, 16118, 2), 1, "bfloat16", "strided_split", _few(2, 16, 16), "longer ones"),
    ("logsumexp", (29802, 24), 0, "bfloat16", "strided_split", _few(4, 59, 16), "few columns, not written"),
    ("softmax", (2048, 20), 0, "float32", "strided_split", _few(8, 8, 16), "a sector of few columns"),
    ("softmax", (2500, 127), 0, "float32", "strided_split", _few(8, 20, 8), "not so few"),
    ("softmax", (2500, 128), 0, "float32", "strided_split", {"across": 8, "pack": 2}, "many neighbours"),
    ("softmax", (2047, 20), 0, "float32", "strided_split", {"across": 8, "pack": 2}, "few columns, shorter"),
    ("softmax", (32767, 16), 0, "float32", "strided_split", _few(2, 32, 16), "two columns a cluster"),
    ("softmax", (32768, 16), 0, "float32", "strided_split", {"across": 8, "pack": 2}, "few columns, too long"),
    ("softmax", (30000, 40), 0, "float32", "strided_split", {"across": 8, "pack": 2}, "too many elements"),
    ("log_softmax", (9872, 2), 0, "bfloat16", "strided_split", {"across": 1, "pack": 2}, "too few columns"),
    ("softmax", (26, 6591, 4), 1, "float64", "strided_split", {"most_columns": 4}, "few columns of doubles"),
    ("softmax", (64, 50176, 3), 1, "bfloat16", "strided_split", {"threads": 256, "packs": 49}, "long, few neighbours"),
    ("softmax", (1000, 8192, 2), 1, "float32", "strided_split", {"across": 2, "cluster": 2}, "two neighbours"),
    ("log_softmax", (128, 8192, 5), 1, "float32", "strided_split", {"across": 8, "cluster": 16}, "five neighbours"),
    ("logsumexp", (32, 16384, 4), 1, "float32", "strided_split", {"across": 4, "packs": 32}, "not written, not longer"),
    ("softmax", (1000, 5000, 3), 1, "float32", "strided_split", {"cluster": 4}, "few neighbours, shorter"),
    ("softmax", (17, 9999, 37), 1, "bfloat16", "strided_split", {"packs": 40, "cluster": 16}, "by element: held"),
    ("softmax", (8000, 2056), -1, "bfloat16", "block", {"threads": 128, "packs": 3}, "half as many threads"),
    ("softmax", (8000, 5001), -1, "float16", "block", {"threads": 256, "packs": 3}, "of odd rows, too"),
    (
        "softmax",
        (8000, 3504),
        -1,
        "bfloat16",
        "block",
        {"threads": 256, "packs": 2},
        "not where they would have four packs",
    ),
    ("softmax", (500, 2056), -1, "bfloat16", "block", {"threads": 256, "packs": 2}, "nor of few rows"),
    ("softmax", (8000, 1504), -1, "bfloat16", "block", {"threads": 128, "packs": 2}, "nor 64"),
    ("softmax", (8000, 6144), -1, "float32", "block", {"threads": 256, "packs": 6}, "float32: six packs"),
    ("softmax", (8000, 6148), -1, "float32", "block", {"threads": 512, "packs": 4}, "and no more"),
    ("softmax", (8000, 3072), -1, "float32", "block", {"threads": 128, "packs": 6}, "whole thirds, too"),
    ("log_softmax", (8000, 8192), -1, "float32", "block", {"threads": 256, "packs": 8}, "of logarithms eight"),
    ("log_softmax", (8000, 4096), -1, "float32", "block", {"threads": 256, "packs": 4}, "but not by 128 threads"),
    ("log_softmax", (265, 7000), -1, "float32", "block", {"threads": 256, "packs": 7}, "of fewer rows, too"),
    ("log_softmax", (264, 7000), -1, "float32", "block", {"threads": 512, "packs": 4}, "but not of so few"),
    ("softmax", (132, 2048), -1, "float32", "block", {"threads": 256, "packs": 2}, "a multiprocessor for each row"),
    ("softmax", (133, 2048), -1, "float32", "block", {"threads": 128, "packs": 4}, "not for each"),
    ("softmax", (8, 1536), -1, "float32", "block", {"threads": 128, "packs": 3}, "three packs are few enough"),
    ("softmax", (8, 4096), -1, "float32", "block", {"threads": 256, "packs": 4}, "and so are 256 threads"),
    ("logsumexp", (8, 2048), -1, "float32", "block", {"threads": 256, "packs": 2}, "the same, not written"),
    ("log_softmax", (8, 4096), -1, "bfloat16", "block", {"threads": 128, "packs": 4}, "not of 16 bits"),
    ("logsumexp", (1056, 4104), -1, "bfloat16", "block", {"threads": 256, "packs": 3}, "longer, not many: held"),
    ("logsumexp", (1057, 4104), -1, "bfloat16", "online", {"threads": 64}, "more of them: walked along"),
    ("logsumexp", (4224, 6144), -1, "float16", "block", {"threads": 256, "packs": 3}, "longer yet: held"),
    ("logsumexp", (4224, 6136), -1, "float16", "online", {"threads": 32}, "a little shorter"),
    ("logsumexp", (4225, 8192), -1, "bfloat16", "online", {"threads": 64}, "many: walked along"),
    ("logsumexp", (1056, 8200), -1, "bfloat16", "online", {"threads": 128}, "longer than 256 threads hold"),
    ("sum", (64, 388), -1, "float32", "block", {"threads": 128}, "all rows at once, a pack each"),
    ("sum", (64, 384), -1, "float32", "warp", {"lanes": 32}, "a warp takes three at one go"),
    ("sum", (64, 512), -1, "float32", "warp", {"lanes": 32}, "and four"),
    ("sum", (64, 1024), -1, "float32", "block", {"threads": 64}, "four each, at one go as well"),
    ("amax", (64, 2048), -1, "bfloat16", "block", {"threads": 64}, "the same of 16 bits"),
    ("sum", (1056, 1001), -1, "float32", "block", {"threads": 256}, "odd rows, as many as come at once"),
    ("sum", (1057, 1001), -1, "float32", "warp", {"lanes": 32}, "and one more"),
    ("amax", (264, 3501), -1, "float32", "block", {"threads": 1024}, "as large as blocks are"),
    ("amax", (265, 3501), -1, "float32", "block", {"threads": 128}, "one too many for such"),
    ("sum", (64, 500), -1, "float64", "warp", {"lanes": 32}, "doubles are not asked for so"),
    ("softmax", (1, 40000, 1101), 1, "bfloat16", "strided_split", {"staged": "false", "resident": 3}, "longer: twice"),
    ("softmax", (16, 20000, 1024), 1, "float32", "strided_split", {"staged": "true"}, "by packs, longer: once"),
]


@pytest.mark.parametrize(("device", "fewest", "resident"), [("h200", 64, (4, 3)), ("a100", 128, (3, 2))])
def test_what_would_spill_is_not_planned(device, fewest, resident):
    """Of registers, for which tools/nvrtc_matrix.py compiles: other GPUs have smaller blocks' and more pairs' kernels
    spill than the one that columns were timed on."""

    def cut(op, shape, dtype="bfloat16"):
        return dict(along(1, op, shape, dtype, device=device).shape)

    assert cut("logsumexp_backward", (232, 87589, 2))["threads"] == fewest
    assert cut("logsumexp_backward", (1, 438, 23), "float32")["threads"] == 512
    assert cut("logsumexp_backward", (1, 438, 23), "float64")["threads"] == 256
    some = [cut("log_softmax", (600, length, 2048)) for length in (121, 170)]
    assert [(one["packs"], one["resident"]) for one in some] == list(zip((16, 22), resident, strict=True))


def test_logarithms_hold_no_array_in_memory():
    """Of 22 pairs and more there is one, on sm_90: they are for clusters of more blocks."""
    held = {
        (op, length): [dict(along(1, op, (300, length, 102), "bfloat16").shape)[name] for name in ("packs", "cluster")]
        for op in ("softmax", "log_softmax")
        for length in (336, 352)
    }
    assert held["softmax", 336] == held["log_softmax", 336] == [21, 2]
    assert (held["softmax", 352], held["log_softmax", 352]) == ([22, 2], [11, 4])


@pytest.mark.parametrize(("op", "shape", "dim", "dtype", "algorithm", "cut", "why"), CUTS, ids=[c[-1] for c in CUTS])
def test_how_a_problem_is_cut(op, shape, dim, dtype, algorithm, cut, why):
    plan = along(dim, op, shape, dtype)
    held = dict(plan.shape)
    assert plan.algorithm == algorithm, plan
    assert {name: held[name] for name in cut} == cut, plan


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "threads"),
    [
        ("log_softmax_backward", (264, 1100), "float32", 512),
        ("log_softmax_backward", (264, 4096), "float32", 512),
        ("log_softmax_backward", (264, 800), "float32", 256),
        ("log_softmax_backward", (265, 1100), "float32", 128),
        ("log_softmax_backward", (64, 2048), "bfloat16", 128),
        ("softmax_backward", (64, 2048), "float32", 128),
    ],
)
def test_a_pack_a_thread_of_few_rows_with_exponentials(op, shape, dtype, threads):
    plan = along_dim_1(op, shape, dtype)
    assert (plan.algorithm, plan.threads) == ("block", threads)


@pytest.mark.parametrize("tuning", [Tuning(lanes=8), Tuning(threads=64), Tuning(threads=256)], ids=str)
def test_what_tuning_holds_fixed_of_few_reduced_rows(tuning):
    plan = make_cuda_plan(make_problem("sum", "float32", (64, 1000), (1,)), by_name("h200"), tuning=tuning)
    held = dict(plan.shape)
    assert (plan.algorithm, held["lanes"]) == ("warp", tuning.lanes or 32)
    assert plan.threads == (tuning.threads or 128)


def test_logarithms_of_sums_elsewhere():
    """What a block of fewer threads cannot hold is walked along; packs of four spill on GPUs that came later."""

    def plan_of(shape, dim, dtype, device="h200", tuning=None):
        problem = make_problem("logsumexp", dtype, shape, normalize_dims("logsumexp", dim, shape))
        return make_cuda_plan(problem, by_name(device), addresses=(0, 0), tuning=tuning)

    assert plan_of((85, 12301), -1, "bfloat16", tuning=Tuning(threads=1024)).algorithm == "block"
    assert plan_of((85, 12301), -1, "bfloat16", tuning=Tuning(threads=64)).algorithm == "online"
    assert dict(plan_of((28, 3000, 200), 1, "float32").shape)["pack"] == 4
    assert dict(plan_of((28, 3000, 200), 1, "float32", "b200").shape)["pack"] == 2
    assert dict(plan_of((28, 3000, 200), 1, "float32", "a100").shape)["pack"] == 4


def test_blocks_of_long_columns():
    """As many as a tile has threads along it; as there is room for, where each of these has many steps all the same."""

    def team(op, shape):
        problem = make_problem(op, "bfloat16", shape, normalize_dims(op, 1, shape))
        plan = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
        assert plan.algorithm == "strided_split", plan
        return plan.team

    assert team("softmax", (1, 40000, 1101)) == 132 * 3 // 35  # those that go by element
    assert team("amax", (5, 401536, 19)) == 32
    assert team("amax", (10, 40153, 19)) == 16


@pytest.mark.parametrize(
    ("shape", "dtype", "cut"),
    [
        ((73, 2, 61825), "float32", {"across": 128, "packs": 2, "pack": 1}),
        ((6768, 6, 1387), "bfloat16", {"across": 128, "packs": 6, "pack": 1}),
        ((4096, 8, 128), "bfloat16", {"across": 128, "packs": 8, "pack": 4}),
        ((4, 15, 1885), "float32", {"across": 32, "packs": 15, "pack": 1}),  # few: smaller blocks
        ((2, 16, 1947), "float32", {"across": 32, "packs": 4, "pack": 1}),  # few and longer: four threads each
    ],
    ids=str,
)
def test_gradients_of_short_columns_need_no_other_thread(shape, dtype, cut):
    plan = along_dim_1("softmax_backward", shape, dtype)
    held = dict(plan.shape)
    assert plan.algorithm == "strided" and plan.reads == 1
    assert {name: held[name] for name in cut} == cut, plan


@pytest.mark.parametrize("algorithm", [None, "strided_split"])
@pytest.mark.parametrize("op", ["softmax", "logsumexp", "sum", "softmax_backward"])
@pytest.mark.parametrize(
    "shape", [(0, 5, 7), (3, 0, 7), (3, 5, 0), (0, 4555, 22), (0, 100000, 7), (3, 100000, 0)], ids=str
)
def test_there_is_a_plan_for_nothing(op, shape, algorithm):
    for device, dtype in itertools.product(("h200", "a100"), ("float32", "float16")):
        plan = along_dim_1(op, shape, dtype, device=device, algorithm=algorithm)
        assert "interleaved" not in plan.kernel and plan.algorithm == (algorithm or plan.algorithm)


@pytest.mark.parametrize(("threads", "shared_bytes"), [(256, 227328), (512, 227328), (1024, 0)])
def test_a_tile_waits_beside_the_scratch_of_the_threads_it_is_held_to(threads, shared_bytes):
    """16 columns of 1776 steps, dy and y, take 222 KiB of 227; partial sums of 1024 threads 8 more."""
    held = {"algorithm": "strided", "tuning": Tuning(threads=threads, across=16)}
    plan = along_dim_1("log_softmax_backward", (1, 1776, 57), "float32", **held)
    assert plan.threads == threads
    assert plan.shared_bytes == shared_bytes
    assert plan.reads == (1 if shared_bytes else 2)
