"""What the planner for GPUs refuses: what functors would be told wrong, tunings of no kernel, more than a grid has."""

import pytest

from onepass.cuda.device import by_name
from onepass.cuda.plan import Functor, Tuning, make_cuda_plan
from onepass.problem import make_problem

H200 = by_name("h200")


@pytest.mark.parametrize(
    ("dims", "strides", "result_strides"),
    [((0, 1), (6, 18, 1), None), ((2,), (200, 100, 1), (20, 60, 1)), ((1,), (1, 0, 12), (1, 4, 20))],
)
def test_rows_and_columns_that_functors_are_told_are_those_of_the_dims(dims, strides, result_strides):
    layout = {"strides": strides, "result_strides": result_strides}
    problem = make_problem("softmax", "float32", (3, 2, 20), dims, **layout)
    masked = Functor("onepass::cuda::Masked", (0, 20, 1))
    with pytest.raises(ValueError, match="softmax: no kernel serves .*order of the dims, .*make it contiguous$"):
        make_cuda_plan(problem, H200, load=masked)
    for anywhere in (None, Functor("onepass::cuda::Scaled", (0.5,))):
        make_cuda_plan(problem, H200, load=anywhere)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"lanes": 3}, {"lanes": 64}, {"threads": 48}, {"threads": 400}, {"threads": 2048}, {"threads": 0}),
        *({"pack": 0}, {"pack": 3}, {"pack": 32}, {"across": -4}, {"across": 2048}, {"blocks": 0}, {"parts": -1}),
        *({"rows": 0}, {"resident": 0}, {"held": 0}, {"spread": 0}, {"kept": -1}),
    ],
)
def test_what_no_kernel_can_be_held_to_is_refused(wrong):
    (name, number), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"Tuning: {name}={number}; expected"):
        Tuning(**wrong)


@pytest.mark.parametrize("name", ["pack", "threads", "blocks", "kept"])
def test_a_tuning_is_of_numbers(name):
    with pytest.raises(TypeError, match=f"^Tuning: {name} is a float; expected an int$"):
        Tuning(**{name: 64.0})


@pytest.mark.parametrize("algorithm", ["block", "block_smem", "block_uncached", "online", "three_pass", "cluster"])
def test_a_block_may_have_any_number_of_whole_warps(algorithm):
    problem = make_problem("softmax", "float32", (64, 8192), (1,))
    assert make_cuda_plan(problem, H200, algorithm, tuning=Tuning(threads=384)).threads == 384


@pytest.mark.parametrize(("dtype", "fewest"), [("bfloat16", 16), ("float32", 8)])
def test_each_edge_of_a_reduced_row_has_a_lane_of_its_own(dtype, fewest):
    odd, whole = make_problem("sum", dtype, (111, 671), (1,)), make_problem("sum", dtype, (111, 672), (1,))

    def lanes(problem, n):
        return dict(make_cuda_plan(problem, H200, "warp", addresses=(0, 0), tuning=Tuning(lanes=n)).shape)["lanes"]

    with pytest.raises(ValueError, match=f"sum: algorithm 'warp' .*: {fewest // 2} lanes: each of a row's .* edges"):
        lanes(odd, fewest // 2)
    assert (lanes(odd, fewest), lanes(whole, fewest // 2)) == (fewest, fewest // 2)


def test_more_rows_than_a_grid_has_blocks_are_refused_without_advice_that_does_not_help():
    problem = make_problem("logsumexp", "float32", (2**31 + 5, 2048), (1,), strides=(0, 1))
    with pytest.raises(ValueError, match="no kernel .* a block for each of its rows, and a grid has 2147483647$"):
        make_cuda_plan(problem, H200)
