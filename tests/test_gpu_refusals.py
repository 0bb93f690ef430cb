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


@pytest.mark.parametrize("wrong", [{"lanes": 3}, {"lanes": 64}, {"threads": 48}, {"threads": 2048}, {"threads": 0}])
def test_what_no_kernel_can_be_held_to_is_refused(wrong):
    (name, number), *_ = wrong.items()
    with pytest.raises(ValueError, match=f"Tuning: {name}={number}; expected"):
        Tuning(**wrong)


def test_more_rows_than_a_grid_has_blocks_are_refused_without_advice_that_does_not_help():
    problem = make_problem("logsumexp", "float32", (2**31 + 5, 2048), (1,), strides=(0, 1))
    with pytest.raises(ValueError, match="no kernel .* a block for each of its rows, and a grid has 2147483647$"):
        make_cuda_plan(problem, H200)
