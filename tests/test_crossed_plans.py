"""How a GPU's tiles are cut where rows lie one way in one array and another way in another."""

import numpy as np
import pytest
from view_plans import empty, gradient_of, plan_of


def tile_of(x, dim):
    """(threads across, threads of a block) of a forward operation."""
    plan = plan_of(x, dim)
    assert plan.algorithm == "strided", str(plan)
    return dict(plan.shape)["across"], plan.threads


def one_block_of(saved, dy, dim):
    """The plan of a gradient, in which a block has a tile to itself."""
    plan = gradient_of(saved, dy, dim)
    assert plan.algorithm == "strided", str(plan)
    return plan


def test_columns_of_x_that_are_rows_of_the_result():
    """Eight side by side; of few steps a thread has a row for itself. So few, and an odd number, that results do not go
    through shared memory and nothing is turned."""
    assert tile_of(empty(24, 9001).T, -1) == (32, 128)  # eight would be fewer threads
    assert tile_of(empty(64, 4001).T, -1) == (8, 128)
    assert tile_of(empty(3000, 30, 8), 1) == (128, 128)  # eight neighbours that lie one way
    assert tile_of(empty(6, 30001).T, -1) == (128, 128)
    assert tile_of(empty(4000, 4001).T, -1) == (4, 512)  # as many as registers hold


def test_rows_of_x_that_are_columns_of_the_result():
    """Threads lie side by side where the result does: along its last dim, not along the one of 8, nearer in x."""
    x = empty(12, 301, 8, 256).transpose(0, 3, 2, 1)
    assert x.strides[1] < x.strides[2] < x.strides[3]
    assert tile_of(x, 1) == (8, 128)
    why = plan_of(x, 1).why
    assert any("8 threads lie across rows that are 2048 apart" in line for line in why), why


def test_a_broadcast_dim_that_is_fastest_in_the_result():
    """Threads that lie along it write side by side, and read the same element."""
    x = np.broadcast_to(empty(256, 512, 1), (256, 512, 64))
    assert tile_of(x, 1)[0] == 32
    why = plan_of(x, 1).why
    assert any("32 threads lie across rows that are 0 apart" in line for line in why), why


def kept_axes_of(plan, strides=2):
    """(size, stride in the input, in the result, and of gradients in dy) of the axes that rows lie along."""
    layout = plan.words[2 : 2 + dict(plan.shape)["kept_axes"] * (strides + 1)]
    return [tuple(layout[at : at + strides + 1]) for at in range(0, len(layout), strides + 1)]


@pytest.mark.parametrize(
    ("in_x", "in_result", "few", "across"),
    [
        (60, 64, ("result", 8), 32),
        (60, 50, ("result", 10), 32),  # the divisor that is nearest to 8
        (60, 12, ("result", 12), 32),  # all of them
        (60, 20, ("result", 10), 32),
        (60, 31, ("x", 10), 32),  # no divisor of the result's is right
        (31, 60, ("result", 10), 32),
        (31, 62, ("result", 2), 32),  # of neither: two are better than none
        (8, 31, ("x", 8), 32),
        (17, 32, ("result", 8), 32),
        (8, 7, ("result", 7), 32),
        (3, 32, ("result", 8), 8),  # too few of x's for a tile of both
        (41, 43, None, 8),
    ],
)
def test_neighbours_along_one_axis_in_x_and_another_in_the_result(in_x, in_result, few, across):
    """A tile as wide as it can be has a few of the ones and beyond them others, if both have them."""
    x = empty(60, 512, in_result, in_x).transpose(0, 3, 1, 2)
    plan = plan_of(x, 2, addresses=None)
    assert dict(plan.shape)["across"] == across
    of_x, of_result = (1, 512 * in_result), (in_x, 1)
    if few is None:
        assert kept_axes_of(plan)[-2:] == [(in_result, *of_result), (in_x, *of_x)]
        return
    where, count = few
    last, other = ((of_result, (in_x, *of_x)), (of_x, (in_result, *of_result)))[where == "x"]
    assert kept_axes_of(plan)[-2:] == [other, (count, *last)]
    left = (in_result if where == "result" else in_x) // count
    if left > 1:
        assert kept_axes_of(plan)[-3] == (left, *(count * stride for stride in last))


def test_steps_that_are_nearer_than_neighbours_leave_axes_as_they_are():
    """In x, or in the result."""
    for order, dim in (((2, 1, 0), 0), ((2, 1, 0), 2)):
        x = empty(60, 500, 70).transpose(order)
        plan = plan_of(x, dim, addresses=None)
        assert len(kept_axes_of(plan)) == 2


@pytest.mark.parametrize("op", ["sum", "logsumexp"])
def test_a_reduction_for_every_copy_of_a_broadcast_element(op):
    """Threads that lie along the copies read the same element, and write side by side; but not where these lie apart
    in the result."""
    for copied, inner in ((2, 40), (0, 256)):
        x = np.moveaxis(np.broadcast_to(empty(512, 256, 1), (512, 256, 40)), 2, copied)
        dim = x.shape.index(512)
        plan = plan_of(x, dim, op, addresses=None)
        assert kept_axes_of(plan)[-1][0] == inner


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((101, 20, 96), (8, 20 * 96, 1)),
        ((101, 20, 90), (9, 20 * 90, 1)),
        ((85, 20, 96), (96, 20 * 96, 1)),  # 8160 rows
        ((1001, 20, 10), (10, 200, 1)),
        ((2000, 20, 5), (5, 100, 1)),
        ((100, 20, 95), (95, 20 * 95, 1)),  # 5 is too little
    ],
)
def test_gradients_whose_dy_has_its_neighbours_along_another_axis(shape, last):
    plan = one_block_of(empty(*shape), empty(*shape[::-1]).T, 1)
    size, _, stride_of_dx = last
    assert kept_axes_of(plan, 3)[-1][:2] == (size, stride_of_dx)


@pytest.mark.parametrize(
    ("length", "tile"),
    [(15, (32, 64)), (16, (32, 64)), (63, (16, 64)), (128, (4, 64)), (1300, (4, 512)), (5000, (4, 512))],
)
def test_gradients_of_rows_that_lie_along_memory_but_for_dy(length, tile):
    """Narrow tiles, and as many threads along them as have eight steps; shorter rows are any others. Of an odd number
    of rows, that are not turned; so few or so long that they do not go through shared memory."""
    rows = 2001 if length < 1000 else 3001
    plan = one_block_of(empty(rows, length), empty(length, rows).T, -1)
    assert (dict(plan.shape)["across"], plan.threads) == tile


def test_gradients_whose_dy_lies_along_memory_with_a_step():
    """One column: it is read in its own order, too."""
    plan = one_block_of(empty(3000, 1000), empty(3000, 2000)[:, ::2], -1)
    assert (dict(plan.shape)["across"], plan.threads) == (1, 64)
    assert plan.reads == 1


@pytest.mark.parametrize(("length", "reads"), [(128, 1), (129, 2)])
def test_a_second_read_of_scattered_elements(length, reads):
    """It costs as much as the first; but not of one value for all columns, nor where dy lies as the others do."""
    saved = empty(50, length, 256, dtype="bfloat16")
    padded = empty(50, 256, length + 1 + length % 2, dtype="bfloat16")[..., :length]  # not to be turned
    assert one_block_of(saved, padded.swapaxes(1, 2), 1).reads == reads
    one = np.broadcast_to(empty(50, length, 1, dtype="bfloat16"), saved.shape)
    assert one_block_of(saved, one, 1).reads == 2


@pytest.mark.parametrize(
    ("op", "rows", "length", "across"),
    [
        ("softmax", 500000, 8, None),  # a thread has them to itself
        ("softmax", 500000, 9, 16),
        ("softmax", 500000, 16, 16),
        ("softmax", 500000, 20, 8),
        ("log_softmax", 500000, 64, 4),
        ("softmax", 500000, 65, 4),
        ("softmax", 500000, 128, 4),
        ("log_softmax", 500000, 129, 2),
        ("softmax", 500000, 256, 2),
        ("softmax", 500000, 257, None),
        ("logsumexp", 500000, 48, None),
        ("logsumexp", 500000, 49, 4),
        ("softmax", 16896, 16, 16),  # eight warps for each of 132 multiprocessors
        ("softmax", 16895, 16, None),
        ("sum", 500000, 64, None),
    ],
)
def test_short_rows_with_steps_are_several_for_a_warp(op, rows, length, across):
    plan = plan_of(empty(rows, 2 * length)[:, ::2], op=op)
    several = 1 < dict(plan.shape)["across"] < plan.threads == 32
    assert several == (across is not None), plan
    if across is not None:
        assert dict(plan.shape)["across"] == across and dict(plan.shape)["packs"] == -(-length * across // 32)


@pytest.mark.parametrize(
    ("length", "cut"), [(16, (16, 32)), (40, (8, 32)), (64, (4, 32)), (128, (2, 32)), (300, (1, 32)), (1000, (1, 64))]
)
def test_gradients_of_rows_with_steps_are_for_warps(length, cut):
    plan = gradient_of(empty(50000, length), empty(50000, 2 * length)[:, ::2])
    assert (dict(plan.shape)["across"], plan.threads) == cut, plan
