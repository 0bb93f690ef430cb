"""What lanes of a warp have of many rows: both sides of the thresholds, on an H200 of 132 multiprocessors."""

import pytest
from gpu_layouts import along_dim_1

MANY = 25344  # 192 rows for each
NARROW = 59400  # 450
VERY_MANY = 198000  # 1500


def cut(op, shape, dtype):
    """The algorithm, lanes of a row or threads of a block, and packs that each holds; of sums that is not said."""
    plan = along_dim_1(op, shape, dtype)
    shape = dict(plan.shape)
    return plan.algorithm, shape.get("lanes", shape["threads"]), shape.get("packs", 0)


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("softmax", (MANY, 199), "bfloat16", ("warp", 8, 3)),
        ("softmax", (MANY, 201), "bfloat16", ("warp", 16, 2)),
        ("softmax", (MANY, 391), "float16", ("warp", 16, 3)),
        ("softmax", (MANY, 393), "float16", ("warp", 32, 2)),
        ("softmax", (MANY, 257), "float32", ("warp", 16, 4)),
        ("softmax", (MANY, 261), "float32", ("warp", 32, 3)),
        ("softmax", (15839, 257), "bfloat16", ("warp", 32, 1)),
        ("log_softmax", (MANY, 263), "bfloat16", ("warp", 8, 4)),
        ("log_softmax", (MANY, 313), "bfloat16", ("warp", 16, 3)),
        ("log_softmax", (MANY, 545), "bfloat16", ("warp", 16, 5)),
        ("log_softmax", (MANY, 647), "bfloat16", ("warp", 16, 5)),
        ("log_softmax", (MANY, 649), "bfloat16", ("warp", 32, 3)),
        ("log_softmax", (MANY, 227), "float32", ("warp", 8, 7)),
        ("log_softmax", (MANY, 229), "float32", ("warp", 16, 4)),
        ("logsumexp", (MANY, 641), "bfloat16", ("warp", 16, 5)),
        ("logsumexp", (MANY, 257), "float32", ("warp", 16, 4)),
        ("logsumexp", (MANY, 289), "float32", ("warp", 8, 9)),
        ("logsumexp", (MANY, 293), "float32", ("warp", 16, 5)),
        ("logsumexp", (MANY, 545), "float32", ("warp", 16, 9)),
        ("sum", (MANY, 1543), "bfloat16", ("warp", 16, 0)),
        ("sum", (MANY, 1545), "bfloat16", ("warp", 32, 0)),
        ("amax", (MANY, 643), "float32", ("warp", 16, 0)),
        ("amax", (MANY, 645), "float32", ("warp", 32, 0)),
        ("softmax", (MANY, 1281), "float64", ("block", 256, 3)),
    ],
)
def test_rows_off_the_boundaries_of_packs(op, shape, dtype, expected):
    assert cut(op, shape, dtype) == expected


@pytest.mark.parametrize(
    ("op", "dtype", "longest", "packs"),
    [
        ("softmax", "bfloat16", 1287, 5),
        ("log_softmax", "float16", 1543, 6),
        ("logsumexp", "bfloat16", 1543, 6),
        ("log_softmax", "float32", 1155, 9),
        ("logsumexp", "float32", 1411, 11),
    ],
)
def test_a_warp_has_longer_rows_if_they_are_many(op, dtype, longest, packs):
    assert cut(op, (MANY, longest), dtype) == ("warp", 32, packs)
    assert cut(op, (MANY, longest + 1), dtype)[0] == "block"
    assert cut(op, (MANY - 1, longest), dtype)[0] == "block"


@pytest.mark.parametrize(
    ("length", "lanes", "packs"),
    [
        (145, 16, 2),
        (391, 16, 3),
        (393, 32, 2),
        (513, 32, 2),
        (545, 16, 5),
        (769, 32, 3),
        (136, 32, 1),
        (264, 16, 3),
        (384, 16, 3),
        (392, 32, 2),
        (640, 16, 5),
        (704, 32, 3),
        (768, 32, 3),
    ],
)
@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_gradients_of_16_bits(op, length, lanes, packs):
    assert cut(op, (MANY, length), "bfloat16") == ("warp", lanes, packs)
    assert cut(op, (MANY - 1, length), "float16")[0] == ("warp" if length < 520 else "block")
    assert cut(op, (MANY, 776), "bfloat16")[0] == "block"


@pytest.mark.parametrize(
    ("op", "length", "dtype", "fewer", "many"),
    [
        ("softmax", 41, "bfloat16", ("warp_smem", 2, 21), ("warp_smem", 1, 41)),
        ("softmax", 97, "bfloat16", ("warp", 8, 2), ("warp_smem", 2, 49)),
        ("softmax", 111, "float16", ("warp", 8, 2), ("warp_smem", 2, 56)),
        ("softmax", 113, "float16", ("warp", 8, 2), ("warp", 8, 2)),
        ("softmax", 63, "float32", ("warp_smem", 2, 32), ("warp_smem", 2, 32)),
        ("log_softmax", 99, "bfloat16", ("warp", 8, 2), ("warp_smem", 2, 50)),
        ("log_softmax", 101, "bfloat16", ("warp", 8, 2), ("warp", 8, 2)),
        ("softmax_backward", 79, "float32", ("warp", 32, 3), ("warp_smem", 4, 20)),
        ("softmax_backward", 81, "float32", ("warp", 32, 3), ("warp", 32, 3)),
        ("logsumexp", 97, "bfloat16", ("warp_smem", 4, 25), ("warp_smem", 2, 49)),
        ("logsumexp", 127, "float32", ("warp_smem", 4, 32), ("warp_smem", 2, 64)),
        ("logsumexp", 129, "bfloat16", ("warp", 8, 2), ("warp", 8, 2)),
        ("sum", 97, "bfloat16", ("warp_smem", 2, 0), ("warp_smem", 1, 0)),
        ("sum", 161, "bfloat16", ("warp_smem", 4, 0), ("warp_smem", 2, 0)),
        ("sum", 287, "bfloat16", ("warp", 16, 0), ("warp_smem", 2, 0)),
        ("sum", 289, "bfloat16", ("warp", 16, 0), ("warp", 16, 0)),
        ("sum", 141, "float64", ("warp", 32, 0), ("warp", 32, 0)),
    ],
)
def test_lanes_take_more_of_very_many_rows(op, length, dtype, fewer, many):
    assert cut(op, (VERY_MANY - 1, length), dtype) == fewer
    assert cut(op, (VERY_MANY, length), dtype) == many


@pytest.mark.parametrize(
    ("op", "length", "dtype", "fewer", "many"),
    [
        ("logsumexp", 24, "bfloat16", ("warp", 2, 2), ("warp", 1, 3)),
        ("logsumexp", 40, "bfloat16", ("warp", 4, 2), ("warp", 2, 3)),
        ("logsumexp", 64, "bfloat16", ("warp", 4, 2), ("warp", 4, 2)),
        ("logsumexp", 12, "float32", ("warp", 4, 1), ("warp", 1, 3)),
        ("logsumexp", 132, "float32", ("warp", 16, 3), ("warp", 8, 5)),
        ("logsumexp", 140, "float32", ("warp", 16, 3), ("warp", 8, 5)),
        ("sum", 16, "bfloat16", ("warp", 2, 0), ("warp", 1, 0)),
        ("sum", 448, "bfloat16", ("warp", 32, 0), ("warp", 8, 0)),
        ("sum", 12, "float32", ("warp", 4, 0), ("warp", 2, 0)),
        ("amax", 56, "float32", ("warp", 8, 0), ("warp", 8, 0)),
        ("log_softmax", 48, "bfloat16", ("warp", 4, 2), ("warp", 2, 3)),
        ("log_softmax", 200, "bfloat16", ("warp", 16, 2), ("warp", 8, 4)),
        ("log_softmax", 400, "float16", ("warp", 32, 2), ("warp", 16, 4)),
        ("log_softmax", 40, "float64", ("warp", 4, 5), ("warp", 4, 5)),
        ("softmax", 72, "float32", ("warp", 16, 2), ("warp", 8, 3)),
        ("softmax", 12, "float32", ("warp", 4, 1), ("warp_smem", 1, 3)),
        ("softmax", 36, "float32", ("warp", 8, 2), ("warp_smem", 1, 9)),
        ("softmax", 44, "float32", ("warp", 8, 2), ("warp", 4, 3)),
        ("softmax", 104, "bfloat16", ("warp", 8, 2), ("warp_smem", 2, 7)),
        ("log_softmax", 40, "float16", ("warp", 4, 2), ("warp_smem", 1, 5)),
        ("log_softmax", 120, "bfloat16", ("warp", 8, 2), ("warp", 4, 4)),
        ("softmax_backward", 40, "bfloat16", ("warp", 8, 1), ("warp", 8, 1)),
    ],
)
def test_whole_packs_of_very_many_rows(op, length, dtype, fewer, many):
    """As few lanes as have the least left over; of an odd number of packs by way of shared memory."""
    assert cut(op, (VERY_MANY - 1, length), dtype) == fewer
    assert cut(op, (VERY_MANY, length), dtype) == many


@pytest.mark.parametrize(
    ("op", "length", "fewer", "many"),
    [
        ("softmax", 36, ("warp", 8, 2), ("warp_smem", 1, 9)),
        ("log_softmax", 52, ("warp", 4, 4), ("warp_smem", 2, 7)),
        ("softmax_backward", 68, ("warp", 32, 1), ("warp_smem", 4, 5)),
        ("log_softmax_backward", 12, ("warp", 4, 1), ("warp_smem", 1, 3)),
        ("softmax_backward", 52, ("warp", 16, 1), ("warp", 16, 1)),
        ("softmax_backward", 132, ("warp", 16, 1), ("warp", 16, 1)),
        ("logsumexp", 36, ("warp_smem", 1, 9), ("warp_smem", 1, 9)),
        ("sum", 36, ("warp_smem", 1, 0), ("warp_smem", 1, 0)),
    ],
)
def test_rows_of_whole_packs_of_four(op, length, fewer, many):
    assert cut(op, (NARROW - 1, length), "bfloat16") == fewer
    assert cut(op, (NARROW, length), "bfloat16") == many


@pytest.mark.parametrize(
    ("op", "length", "dtype", "rows", "few", "enough"),
    [
        ("logsumexp", 36, "float32", 528000, 3, 5),
        ("logsumexp", 40, "bfloat16", 1056000, 3, 5),
    ],
)
def test_a_lane_has_more_packs_only_if_lanes_are_left(op, length, dtype, rows, few, enough):
    assert cut(op, (rows - 1, length), dtype)[2] == few
    assert cut(op, (rows, length), dtype)[2] == enough


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("softmax_backward", (4000, 1032), "bfloat16", ("block", 160, 1)),
        ("log_softmax_backward", (4000, 1153), "float16", ("block", 160, 1)),
        ("softmax_backward", (4000, 2048), "bfloat16", ("block", 128, 2)),
        ("softmax_backward", (4000, 2049), "bfloat16", ("block", 256, 1)),
        ("softmax_backward", (4000, 2305), "bfloat16", ("block", 288, 1)),
        ("softmax_backward", (4000, 3079), "bfloat16", ("block", 384, 1)),
        ("softmax_backward", (4000, 3081), "bfloat16", ("block", 512, 1)),
        ("softmax_backward", (4000, 1153), "float32", ("block", 128, 3)),
        ("softmax_backward", (528, 4104), "bfloat16", ("block", 320, 2)),
        ("softmax_backward", (527, 4104), "bfloat16", ("block", 544, 1)),
        ("softmax_backward", (4224, 5001), "bfloat16", ("block", 320, 2)),
        ("log_softmax_backward", (4224, 5000), "bfloat16", ("block", 320, 2)),
        ("log_softmax_backward", (4223, 5001), "bfloat16", ("block", 640, 1)),
        ("log_softmax_backward", (4224, 5001), "bfloat16", ("cluster", 128, 0)),
        ("softmax_backward", (4000, 5127), "bfloat16", ("block", 320, 2)),
        ("softmax_backward", (4000, 5129), "bfloat16", ("block", 1024, 1)),
        ("log_softmax", (2113, 2305), "bfloat16", ("block", 96, 3)),
        ("log_softmax", (2112, 2305), "bfloat16", ("block", 128, 3)),
        ("log_softmax", (4000, 5001), "float16", ("block", 160, 4)),
        ("logsumexp", (4000, 2305), "bfloat16", ("block", 96, 3)),
        ("logsumexp", (4000, 6144), "bfloat16", ("block", 256, 3)),
        ("log_softmax", (4000, 2305), "float32", ("block", 128, 5)),
        ("softmax", (4000, 2305), "bfloat16", ("block", 128, 3)),
    ],
)
def test_blocks_of_whole_warps(op, shape, dtype, expected):
    """As many warps as there are packs for, where a power of two would have many without."""
    assert cut(op, shape, dtype) == expected
