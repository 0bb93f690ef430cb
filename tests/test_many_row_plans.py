"""Which rows are a warp's and which a block's where rows are many, on an H200 of 132 multiprocessors: both sides of the
thresholds. How many lanes of a warp share one is in test_lanes.py."""

import pytest
from gpu_layouts import along_dim_1

MANY = 25344  # 192 rows for each


def cut(op, shape, dtype):
    """The algorithm, lanes of a row or threads of a block, and packs that each holds; of sums that is not said."""
    plan = along_dim_1(op, shape, dtype)
    shape = dict(plan.shape)
    return plan.algorithm, shape.get("lanes", shape["threads"]), shape.get("packs", 0)


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


@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_lanes_have_longer_gradients_of_16_bits_if_they_are_many(op):
    assert cut(op, (MANY, 768), "bfloat16")[0] == "warp"
    assert cut(op, (MANY, 776), "bfloat16")[0] == "block"
    assert cut(op, (MANY - 1, 768), "float16")[0] == "block"
    assert cut(op, (MANY, 520), "float32")[0] == "block"


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
