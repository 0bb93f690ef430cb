"""Tiles of columns that are cut again, since those of the tables cost too much: both sides of every border."""

import pytest
from gpu_layouts import along
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.cuda.tile_thresholds import (
    MOST_CHEAP_HALVES,
    MOST_CHEAP_HALVES_OF_CLUSTERS,
    MOST_CHEAP_HALVES_OF_GRADIENTS,
    MOST_CHEAP_HELD,
)
from onepass.cuda.tuning import Tuning
from onepass.problem import make_problem

CHEAPEST = "of all tiles that registers hold, the one of least cost"


def plan_of(op, shape, dtype="float32", dim=1, **options):
    return along(dim, op, shape, dtype, **options)


def cut(plan):
    """Rows per access, threads across, threads of a block, blocks of a cluster."""
    shape = dict(plan.shape)
    return shape["pack"], shape["across"], plan.threads, shape.get("cluster", 1)


# (operation, shape, dtype) -> algorithm and cut: what was measured beside the tables' tile on an H200.
CUT_AGAIN = {
    ("softmax", (387, 6894, 8), "float32"): ("strided_split", (1, 8, 256, 8)),
    ("softmax", (284, 386, 8), "bfloat16"): ("strided", (1, 8, 256, 1)),
    ("softmax_backward", (165, 8045, 8), "float32"): ("strided_split", (4, 2, 256, 16)),
    ("log_softmax", (41, 7263, 7), "float32"): ("strided_split", (1, 8, 256, 16)),
    ("log_softmax_backward", (502, 5112, 6), "float32"): ("strided_split", (2, 4, 128, 16)),
    ("logsumexp", (1661, 626, 35), "float16"): ("strided_split", (1, 16, 128, 2)),
    ("logsumexp", (4096, 100, 5), "bfloat16"): ("strided", (1, 16, 128, 1)),
    ("logsumexp", (100, 200, 3000), "bfloat16"): ("strided", (1, 16, 128, 1)),
    # As many halves as clusters may hold; half of the threads and two blocks, where one may not hold as many.
    ("log_softmax", (2577, 1428, 16), "bfloat16"): ("strided_split", (4, 4, 256, 2)),
    ("softmax", (1018, 700, 28), "bfloat16"): ("strided_split", (4, 4, 128, 2)),
    # What several blocks would walk along together, and runs that would be read twice.
    ("logsumexp", (7, 29918, 19), "bfloat16"): ("strided_split", (1, 8, 512, 16)),
    ("log_softmax", (46, 6341, 4), "bfloat16"): ("strided_split", (2, 2, 256, 4)),
    ("softmax", (332, 32025, 2), "bfloat16"): ("strided_split", (2, 1, 256, 8)),
    ("log_softmax", (161, 39918, 2), "float32"): ("strided_split", (1, 2, 128, 16)),
    ("softmax_backward", (1275, 10127, 4), "float32"): ("strided_split", (4, 1, 128, 16)),
}


@pytest.mark.parametrize("problem", CUT_AGAIN, ids=str)
def test_what_costs_too_much_is_cut_again(problem):
    plan = plan_of(*problem)
    assert (plan.algorithm, cut(plan)) == CUT_AGAIN[problem]
    assert plan.reads == 1 and CHEAPEST in plan.why


# The border -> a problem within it, and one beyond.
BORDERS = {
    "neighbours": (("softmax", (8, 144, 31), "bfloat16"), ("softmax", (8, 144, 32), "bfloat16")),
    "neighbours of a gradient": (
        ("softmax_backward", (8, 92, 31), "bfloat16"),
        ("softmax_backward", (8, 92, 32), "bfloat16"),
    ),
    "fewest steps": (("softmax", (737, 64, 24)), ("softmax", (737, 63, 24))),
    "most steps": (("log_softmax", (33, 32767, 6), "bfloat16"), ("log_softmax", (33, 32768, 6), "bfloat16")),
    "elements": (("softmax", (6, 170, 18), "bfloat16"), ("softmax", (5, 170, 18), "bfloat16")),
    "more than few columns": (
        ("log_softmax_backward", (31, 2770, 13), "bfloat16"),
        ("log_softmax_backward", (30, 2770, 13), "bfloat16"),
    ),
    "shorter than few long ones": (("log_softmax", (13, 2047, 3)), ("log_softmax", (13, 2048, 3))),
    "the cost of a softmax": (("softmax", (15, 152, 22), "bfloat16"), ("softmax", (16, 152, 22), "bfloat16")),
    "of its gradient": (("softmax_backward", (12, 107, 26)), ("softmax_backward", (13, 107, 26))),
    "of a logarithm": (("logsumexp", (32, 732, 6), "bfloat16"), ("logsumexp", (33, 732, 6), "bfloat16")),
    "rounds": (("logsumexp", (4, 28998, 53)), ("logsumexp", (5, 28998, 53))),
    "neighbours of a run": (("softmax", (41, 22040, 8)), ("softmax", (41, 22040, 10))),
    "of a run by element": (("softmax", (253, 14372, 2)), ("softmax", (253, 14372, 3))),
    "of a gradient's": (("softmax_backward", (304, 10199, 3)), ("softmax_backward", (304, 10199, 5))),
    "all of them in a tile": (("softmax", (53, 17597, 6)), ("softmax", (57, 31380, 6))),
    "most steps of a run": (("softmax", (100, 131071, 2)), ("softmax", (100, 131072, 2))),
    "single precision": (("softmax", (387, 6894, 8)), ("softmax", (387, 6894, 8), "float64")),
    "exponentials": (("logsumexp", (41, 7263, 7)), ("amax", (41, 7263, 7))),
    "a sum": (("log_softmax_backward", (502, 5112, 6)), ("logsumexp_backward", (502, 5112, 6))),
    "rows": (("softmax", (387, 6894, 8)), ("softmax", (0, 6894, 8))),
    "steps": (("softmax", (387, 6894, 8)), ("softmax", (387, 0, 8))),
}


@pytest.mark.parametrize("border", BORDERS)
def test_both_sides(border):
    within, beyond = BORDERS[border]
    assert CHEAPEST in plan_of(*within).why and CHEAPEST not in plan_of(*beyond).why


def test_where_tables_are_left_alone():
    """By tuning, by a name, on GPUs without clusters, whose tiles nobody has timed, and where columns lie apart."""
    problem = "softmax", (387, 6894, 8)
    assert CHEAPEST in plan_of(*problem).why
    assert CHEAPEST in plan_of(*problem, device="h100").why
    assert CHEAPEST not in plan_of(*problem, tuning=Tuning(interleaved=False)).why
    assert CHEAPEST not in plan_of(*problem, algorithm="strided_split").why
    assert CHEAPEST not in plan_of(*problem, device="a100").why
    every_second = make_problem("softmax", "float32", (387, 6894, 8), (1,), strides=(6894 * 16, 16, 2))
    assert CHEAPEST not in make_cuda_plan(every_second, by_name("h200"), addresses=(0, 0)).why


@pytest.mark.parametrize(("device", "neighbours", "resident"), [("h200", 16, 3), ("h200", 17, 2), ("a100", 17, 2)])
def test_blocks_that_walk_along_columns_with_few_neighbours(device, neighbours, resident):
    """With three on a multiprocessor those of tiles 32 threads wide have no registers left for their states."""
    plan = plan_of("logsumexp", (30, 29919, neighbours), addresses=(4, 0), device=device)
    assert dict(plan.shape)["resident"] == resident and plan.algorithm == "strided_split"


@pytest.mark.parametrize(("device", "packs", "resident"), [("h200", 37, 8), ("b200", 36, 8), ("b200", 37, 6)])
def test_logarithms_that_leave_no_room_for_all_blocks(device, packs, resident):
    """Later GPUs' compilers spill where a thread holds 37 steps and all blocks are to have room."""
    shape = dict(plan_of("log_softmax", (3000, 16 * packs, 8), device=device).shape)
    assert (shape["packs"], shape["across"], shape["resident"]) == (packs, 8, resident)


@pytest.mark.parametrize("device", ["h200", "b200", "rtx5090", "a100"])
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward"]),
    st.one_of(
        st.tuples(st.integers(1, 3000), st.integers(60, 40000), st.integers(1, 70)),
        st.tuples(st.integers(1, 500), st.integers(60, 9000), st.integers(1, 35)),  # one in four is cut again
        st.tuples(st.integers(1, 500), st.integers(9000, 140000), st.integers(2, 8)),  # runs
    ),
    st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
)
def test_a_plan_that_holds_what_it_says(device, op, shape, dtype):
    """Whatever is chosen was not refused; its threads cover the steps and hold no more than is known not to spill."""
    plan = plan_of(op, shape, dtype, device=device)
    if CHEAPEST not in plan.why:
        return
    pack, across, threads, blocks = cut(plan)
    packs = dict(plan.shape)["packs"]
    assert blocks * (threads // across) * packs >= shape[1] > blocks * (threads // across) * (packs - 1)
    assert plan.units_per_block == pack * across and shape[2] % pack == 0
    arrays = 2 if op.endswith("backward") else 1
    if dtype == "float32" or pack == 1:
        assert arrays * packs * pack <= MOST_CHEAP_HELD
    else:  # two to a register
        of_one = MOST_CHEAP_HALVES_OF_CLUSTERS if pack == 4 and blocks > 1 else MOST_CHEAP_HALVES[pack]
        assert arrays * packs * pack // 2 <= (MOST_CHEAP_HALVES_OF_GRADIENTS if arrays == 2 else of_one)
