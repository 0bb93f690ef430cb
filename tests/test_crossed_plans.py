"""How a GPU's tiles are cut where rows lie one way in one array and another way in another."""

import numpy as np
import pytest
from helpers import DTYPES

from onepass.call_gradients import checked
from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import make_problem


def tile_of(x, dim, op="softmax"):
    """(threads across, threads of a block) of a forward operation."""
    strides = tuple(stride // x.itemsize for stride in x.strides)
    problem = make_problem(op, x.dtype.name, x.shape, (dim % x.ndim,), strides=strides)
    plan = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
    assert plan.algorithm == "strided", str(plan)
    return dict(plan.shape)["across"], plan.threads


def gradient_of(saved, dy, dim):
    problem = checked("softmax_backward", (saved, dy), dim, False, None, None)[1]
    plan = make_cuda_plan(problem, by_name("h200"), addresses=(0,) * 4)
    assert plan.algorithm == "strided", str(plan)
    return plan


def empty(*shape, dtype="float32"):
    return np.empty(shape, DTYPES[dtype])


def test_columns_of_x_that_are_rows_of_the_result():
    """Eight side by side; of few steps a thread has a row for itself."""
    assert tile_of(empty(24, 30000).T, -1) == (32, 128)  # eight would be fewer threads
    assert tile_of(empty(64, 30000).T, -1) == (8, 128)
    assert tile_of(empty(3000, 30, 8), 1) == (128, 128)  # eight neighbours that lie one way
    assert tile_of(empty(23, 30000).T, -1) == (128, 128)
    assert tile_of(empty(4000, 4000).T, -1) == (4, 512)  # as many as registers hold


def test_rows_of_x_that_are_columns_of_the_result():
    """Threads lie side by side where the result does: along its last dim, not along the one of 8, nearer in x."""
    x = empty(12, 300, 8, 256).transpose(0, 3, 2, 1)
    assert x.strides[1] < x.strides[2] < x.strides[3]
    assert tile_of(x, 1) == (8, 128)
    problem = make_problem("softmax", "float32", x.shape, (1,), strides=tuple(s // 4 for s in x.strides))
    why = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0)).why
    assert any("8 threads lie across rows that are 2048 apart" in line for line in why), why


def test_a_broadcast_dim_that_is_fastest_in_the_result():
    """Threads that lie along it write side by side, and read the same element."""
    x = np.broadcast_to(empty(256, 512, 1), (256, 512, 64))
    assert tile_of(x, 1)[0] == 32
    problem = make_problem("softmax", "float32", x.shape, (1,), strides=(512, 1, 0))
    why = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0)).why
    assert any("32 threads lie across rows that are 0 apart" in line for line in why), why


@pytest.mark.parametrize(("in_x", "in_result", "across"), [(8, 32, 32), (16, 8, 32), (17, 32, 8), (8, 7, 8)])
def test_few_neighbours_in_x_and_others_in_the_result(in_x, in_result, across):
    """A tile as wide as it can be has some of both, if there are few enough of the ones, and enough of the others."""
    x = empty(60, 512, in_result, in_x).transpose(0, 3, 1, 2)
    assert tile_of(x, 2)[0] == across


@pytest.mark.parametrize(
    ("length", "tile"),
    [(15, (32, 64)), (16, (32, 64)), (63, (16, 64)), (128, (4, 64)), (1000, (4, 256)), (5000, (4, 512))],
)
def test_gradients_of_rows_that_lie_along_memory_but_for_dy(length, tile):
    """Narrow tiles, and as many threads along them as have eight steps; shorter rows are any others."""
    saved = empty(3000, length)
    plan = gradient_of(saved, empty(length, 3000).T, -1)
    assert (dict(plan.shape)["across"], plan.threads) == tile


def test_gradients_whose_dy_lies_along_memory_with_a_step():
    """One column: it is read in its own order, too."""
    plan = gradient_of(empty(3000, 1000), empty(3000, 2000)[:, ::2], -1)
    assert (dict(plan.shape)["across"], plan.threads) == (1, 64)
    assert plan.reads == 1


@pytest.mark.parametrize(("length", "reads"), [(128, 1), (129, 2)])
def test_a_second_read_of_scattered_elements(length, reads):
    """It costs as much as the first; but not of one value for all columns, nor where dy lies as the others do."""
    saved = empty(50, length, 256, dtype="bfloat16")
    assert gradient_of(saved, empty(50, 256, length, dtype="bfloat16").swapaxes(1, 2), 1).reads == reads
    one = np.broadcast_to(empty(50, length, 1, dtype="bfloat16"), saved.shape)
    assert gradient_of(saved, one, 1).reads == 2
