"""What clusters of blocks have of few rows, and of longer gradients: both sides of the thresholds, on an H200."""

import pytest
from gpu_layouts import along_dim_1

from onepass.cuda.device import by_name
from onepass.cuda.tuning import Tuning


def cut(op, shape, dtype, **options):
    """The algorithm, blocks of a cluster, threads, and whether a slice waits in registers."""
    plan = along_dim_1(op, shape, dtype, **options)
    shape = dict(plan.shape)
    return plan.algorithm, shape.get("cluster", 0), shape["threads"], shape.get("packs", 0) > 0


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("softmax", (33, 4100), "float32", ("cluster", 8, 128, True)),
        ("softmax", (33, 4096), "float32", ("block", 0, 256, True)),
        ("log_softmax", (34, 4100), "float32", ("block", 0, 512, True)),
        ("softmax", (33, 5001), "float32", ("cluster", 8, 128, True)),
        ("softmax", (33, 6152), "bfloat16", ("cluster", 8, 128, True)),
        ("softmax", (33, 6144), "bfloat16", ("block", 0, 512, True)),
        ("softmax", (34, 6152), "float16", ("block", 0, 512, True)),
        ("softmax", (12672, 8192), "float32", ("cluster", 2, 256, True)),
        ("softmax", (12671, 8192), "float32", ("block", 0, 512, True)),
        ("softmax", (8, 262144), "bfloat16", ("cluster", 16, 256, True)),
        ("softmax", (8, 262152), "bfloat16", ("split", 0, 256, True)),
        ("softmax", (9, 200000), "bfloat16", ("split", 0, 256, True)),
        ("softmax", (16, 200000), "bfloat16", ("split", 0, 256, True)),
        ("softmax", (17, 200000), "bfloat16", ("cluster", 16, 128, True)),
        ("softmax", (8, 163840), "float32", ("cluster", 16, 256, True)),
        ("softmax", (8, 163844), "float32", ("split", 0, 256, True)),
    ],
)
def test_rows_of_a_softmax(op, shape, dtype, expected):
    assert cut(op, shape, dtype) == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((16, 7168), "float32", ("cluster", 8, 128, True)),
        ((16, 7164), "float32", ("block", 0, 512, True)),
        ((17, 7168), "float32", ("block", 0, 512, True)),
        ((16, 7168), "bfloat16", ("cluster", 8, 128, True)),
        ((17, 8192), "bfloat16", ("block", 0, 512, True)),
        ((66, 8200), "bfloat16", ("cluster", 8, 128, True)),
        ((66, 8200), "float32", ("cluster", 8, 128, True)),
        ((66, 16384), "float32", ("cluster", 8, 128, True)),
        ((66, 16388), "float32", ("cluster", 8, 256, True)),
        ((66, 32768), "bfloat16", ("cluster", 8, 256, True)),
        ((66, 32776), "bfloat16", ("cluster", 8, 256, False)),
        ((67, 8200), "float32", ("cluster", 4, 256, True)),
        ((8000, 12289), "float32", ("cluster", 4, 256, True)),
        ((67, 8192), "float32", ("block", 0, 512, True)),
        ((67, 9000), "bfloat16", ("cluster", 2, 256, False)),
        ((67, 9001), "bfloat16", ("block_smem", 0, 1024, False)),
        ((1056, 9001), "bfloat16", ("cluster", 2, 128, False)),
        ((1055, 9001), "bfloat16", ("block_smem", 0, 256, False)),
        ((4224, 5129), "bfloat16", ("cluster", 2, 128, False)),
        ((4223, 5129), "bfloat16", ("block", 0, 1024, True)),
        ((4224, 4103), "bfloat16", ("block", 0, 512, True)),
        ((1056, 16385), "bfloat16", ("cluster", 2, 256, False)),
        ((1056, 25601), "bfloat16", ("cluster", 4, 256, False)),
        ((1056, 25600), "bfloat16", ("cluster", 4, 256, False)),
        ((1056, 25599), "bfloat16", ("cluster", 2, 256, False)),
        ((1056, 16385), "float32", ("cluster", 4, 256, True)),
        ((1056, 16389), "float32", ("cluster", 8, 256, True)),
        ((1056, 40000), "float32", ("cluster", 16, 256, True)),
        ((1056, 49153), "float32", ("cluster", 16, 256, True)),
        ((1056, 16384), "bfloat16", ("block_smem", 0, 512, False)),
        ((8, 65536), "bfloat16", ("cluster", 16, 256, True)),
        ((9, 65536), "bfloat16", ("cluster", 8, 256, False)),
        ((8, 65544), "bfloat16", ("cluster", 16, 256, False)),
        ((8, 131072), "float32", ("cluster", 16, 512, True)),
        ((9, 131072), "float32", ("cluster", 16, 256, False)),
        ((8, 131076), "float32", ("split", 0, 256, True)),
        ((9, 140000), "float32", ("cluster", 16, 256, False)),
        ((9, 180000), "float32", ("cluster", 16, 512, False)),
        ((300, 221184), "float32", ("cluster", 16, 512, False)),
        ((300, 221188), "float32", ("split", 0, 256, True)),
        ((300, 300000), "float32", ("split", 0, 512, False)),
        ((14, 300000), "float32", ("split", 0, 256, True)),
        ((15, 300000), "float32", ("split", 0, 512, False)),
        ((300, 180001), "float32", ("cluster", 16, 256, False)),
        ((17, 289112), "bfloat16", ("cluster", 16, 256, False)),
        ((16, 289112), "bfloat16", ("split", 0, 512, False)),
        ((300, 350000), "bfloat16", ("cluster", 16, 512, False)),
        ((300, 160000), "bfloat16", ("cluster", 16, 128, False)),
        ((300, 170000), "bfloat16", ("cluster", 16, 256, False)),
    ],
)
@pytest.mark.parametrize("op", ("softmax_backward", "log_softmax_backward"))
def test_rows_of_gradients(op, shape, dtype, expected):
    assert cut(op, shape, dtype) == expected


# Shape and type -> slices of a row that are claimed, packs of a thread in registers and in shared memory; None: not.
CLAIMED_GRADIENTS = {
    ((512, 262144), "float32"): (32, 4, 4),
    ((512, 262148), "float32"): None,
    ((512, 262147), "float32"): (26, 4, 6),
    ((16, 225001), "float32"): (22, 4, 6),
    ((15, 225001), "float32"): None,
    ((512, 400000), "float32"): None,
    ((512, 500000), "float32"): (56, 4, 5),
    ((256, 1048576), "float32"): (104, 4, 6),
    ((8, 524288), "float32"): (56, 4, 6),
    ((4, 524288), "float32"): None,
    ((64, 2097152), "float32"): (264, 4, 4),
    ((1, 2097152), "float32"): None,
    ((64, 4194304), "float32"): (528, 4, 4),
    ((64, 8388608), "float32"): None,
    ((128, 450001), "bfloat16"): (14, 1, 7),
    ((128, 442369), "float16"): (14, 1, 7),
    ((128, 442361), "float16"): None,
    ((128, 1048576), "bfloat16"): None,
    ((64, 1048576), "float64"): None,
}


@pytest.mark.parametrize("op", ("softmax_backward", "log_softmax_backward"))
@pytest.mark.parametrize("problem", CLAIMED_GRADIENTS, ids=str)
def test_gradients_whose_slices_are_claimed(problem, op):
    (shape, dtype), expected = problem, CLAIMED_GRADIENTS[problem]
    plan = along_dim_1(op, shape, dtype)
    words = dict(plan.shape)
    assert plan.claims == (expected is not None), plan
    if expected:
        device, size = by_name("h200"), 4 if dtype == "float32" else 2
        assert (plan.algorithm, plan.team, words["packs"], words["waiting"], plan.reads) == ("split", *expected, 1)
        assert plan.shared_bytes == 2 * words["waiting"] * plan.threads * words["pack"] * size
        of_a_slice = plan.threads * (words["packs"] + words["waiting"]) * words["pack"]
        assert plan.team * of_a_slice >= shape[1] - 2 * 128 // size
        assert plan.team <= plan.resident(device) * device.multiprocessors
        assert plan.resident(device) * (plan.shared_bytes + 2048) <= device.shared_per_multiprocessor
        assert any("slices that blocks claim as they are ready" in why for why in plan.why)


def test_blocks_of_odd_rows_are_fewer_for_one_of_both_gradients():
    assert cut("log_softmax_backward", (1056, 40001), "float32") == ("cluster", 8, 256, False)
    assert cut("softmax_backward", (1056, 40001), "float32") == ("cluster", 16, 256, True)


def test_long_halves_are_claimed_for_one_of_both_gradients():
    for length in (4194304, 8388608):
        assert along_dim_1("softmax_backward", (64, length), "bfloat16").claims
        assert not along_dim_1("log_softmax_backward", (64, length), "bfloat16").claims


def test_gradients_that_are_not_claimed():
    """Arrays that start differently, tunings, devices; and rows that do not fit are refused."""
    shape = (64, 1048576)
    assert not along_dim_1("softmax_backward", shape, "float32", addresses=None).claims
    tuning = Tuning(threads=512)
    assert not along_dim_1("softmax_backward", shape, "float32", algorithm="split", tuning=tuning).claims
    for device in ("a100", "b200", "l4"):
        tuning = Tuning(handed=True, blocks=50)
        rows = (64, 131072)
        plan = along_dim_1("softmax_backward", rows, "float32", algorithm="split", tuning=tuning, device=device)
        assert plan.claims and plan.shared_bytes + 2048 <= by_name(device).shared_per_block
    with pytest.raises(ValueError, match="a row of 134217728 bytes does not fit the slices"):
        along_dim_1("softmax_backward", (1, 1 << 24), "float32", algorithm="split", tuning=Tuning(handed=True))


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("sum", (33, 4100), "float32", ("cluster", 8, 128, False)),
        ("sum", (33, 4096), "float32", ("block", 0, 256, False)),
        ("amax", (34, 4100), "float32", ("cluster", 2, 256, False)),
        ("amax", (132, 8188), "float32", ("cluster", 4, 256, False)),
        ("amax", (132, 8192), "float32", ("block", 0, 512, False)),
        ("amin", (132, 10240), "float32", ("cluster", 4, 256, False)),
        ("amin", (133, 10240), "float32", ("block", 0, 512, False)),
        ("amin", (132, 10236), "float32", ("block", 0, 512, False)),
        ("amax", (45, 12288), "bfloat16", ("cluster", 2, 256, False)),
        ("amax", (45, 12296), "bfloat16", ("cluster", 4, 256, False)),
        ("mean", (132, 32768), "bfloat16", ("block", 0, 512, False)),
        ("mean", (33, 16384), "bfloat16", ("block", 0, 512, False)),
        ("mean", (33, 16392), "bfloat16", ("cluster", 8, 128, False)),
        ("mean", (32, 16392), "bfloat16", ("cluster", 8, 256, False)),
        ("sum", (26, 16392), "bfloat16", ("cluster", 8, 256, False)),
        ("logsumexp", (33, 8192), "float32", ("cluster", 8, 128, False)),
        ("logsumexp", (33, 8188), "float32", ("block", 0, 256, True)),
        ("logsumexp", (34, 16380), "float32", ("block", 0, 512, True)),
        ("logsumexp", (34, 16384), "float32", ("cluster", 8, 128, False)),
        ("sum", (8, 32768), "float32", ("cluster", 16, 128, False)),
        ("sum", (8, 32772), "float32", ("cluster", 16, 256, False)),
        ("logsumexp", (8, 32768), "float32", ("cluster", 16, 128, False)),
        ("logsumexp", (8, 32772), "float32", ("cluster", 16, 256, False)),
        ("logsumexp", (16, 65536), "float32", ("cluster", 16, 128, False)),
        ("logsumexp", (16, 65540), "float32", ("cluster", 16, 256, False)),
        ("logsumexp", (33, 32764), "float32", ("cluster", 8, 128, False)),
        ("logsumexp", (33, 32768), "float32", ("cluster", 16, 128, False)),
        ("sum", (100, 65536), "float64", ("block", 0, 512, False)),
        ("sum", (8, 65536), "float32", ("cluster", 16, 256, False)),
        ("sum", (8, 65540), "float32", ("cluster", 16, 512, False)),
        ("sum", (9, 65536), "float32", ("cluster", 16, 128, False)),
        ("sum", (9, 65540), "float32", ("cluster", 16, 256, False)),
        ("sum", (16, 131080), "bfloat16", ("cluster", 16, 256, False)),
        ("sum", (17, 131080), "bfloat16", ("cluster", 16, 128, False)),
        ("sum", (33, 32768), "float32", ("cluster", 16, 128, False)),
        ("sum", (34, 32768), "float32", ("cluster", 8, 256, False)),
        ("sum", (50, 32768), "float32", ("cluster", 8, 128, False)),
        ("sum", (34, 32764), "float32", ("cluster", 8, 128, False)),
        ("logsumexp", (34, 32768), "float32", ("cluster", 8, 128, False)),
        ("sum", (8, 32764), "float32", ("cluster", 8, 256, False)),
        ("logsumexp", (8, 65540), "float32", ("cluster", 16, 256, False)),
        ("logsumexp", (8, 524288), "bfloat16", ("cluster", 16, 256, False)),
        ("logsumexp", (8, 524296), "bfloat16", ("split", 0, 512, False)),
        ("logsumexp", (8, 196608), "float32", ("cluster", 16, 256, False)),
        ("logsumexp", (8, 196612), "float32", ("split", 0, 512, False)),
        ("logsumexp", (34, 98304), "float32", ("cluster", 8, 128, False)),
        ("logsumexp", (34, 98308), "float32", ("split", 0, 512, False)),
        ("sum", (66, 524288), "float32", ("cluster", 8, 128, False)),
        ("sum", (67, 32764), "float32", ("block", 0, 512, False)),
        ("sum", (132, 32768), "float32", ("block", 0, 1024, False)),
        ("sum", (133, 32768), "float32", ("block", 0, 512, False)),
        ("sum", (8, 524292), "float32", ("split", 0, 512, False)),
    ],
)
def test_rows_that_are_read_once(op, shape, dtype, expected):
    assert cut(op, shape, dtype) == expected


def test_where_clusters_are_small():
    """Of 8 blocks, a multiprocessor having room for one slice of 64 KiB: rows that pay there are shorter."""
    elsewhere = {"device": "rtx5090"}
    for op, shape, dtype, expected in (
        ("softmax", (8, 60000), "bfloat16", ("cluster", 8, 128, True)),
        ("sum", (1, 131072), "float32", ("cluster", 8, 256, False)),
        ("sum", (1, 131076), "float32", ("split", 0, 512, False)),
        ("logsumexp", (1, 131080), "bfloat16", ("split", 0, 512, False)),
        ("softmax_backward", (8, 65536), "bfloat16", ("cluster", 8, 256, False)),
        ("softmax_backward", (40, 96000), "float32", ("split", 0, 256, True)),
    ):
        assert cut(op, shape, dtype, **elsewhere) == expected, (op, shape)


def test_gradients_before_there_were_clusters_leave_room_for_an_edge():
    """Two packs of 8 beside one; none of 4."""
    for dtype, length, resident in (("bfloat16", 50257, 3), ("bfloat16", 50256, 4), ("float32", 20001, 5)):
        assert dict(along_dim_1("softmax_backward", (8, length), dtype, device="a100").shape)["resident"] == resident


@pytest.mark.parametrize("addresses", [(0,) * 4, None])
def test_other_types_and_unknown_addresses(addresses):
    options = {"addresses": addresses}
    assert cut("softmax", (8, 7000), "float64", **options)[0] == "block"
    assert cut("softmax_backward", (8, 12000), "float64", **options)[1] == 0
    assert cut("softmax_backward", (8, 12000), "float16", **options)[0] == ("cluster" if addresses else "block_smem")


def test_what_tuning_holds_fixed_of_few_gradients():
    assert cut("softmax_backward", (8, 20000), "float32", tuning=Tuning(threads=512))[2] == 512
    assert cut("softmax_backward", (8, 20000), "float32", algorithm="cluster", tuning=Tuning(blocks=4))[1] == 4
