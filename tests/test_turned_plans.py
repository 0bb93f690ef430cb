"""Which rows are turned in registers on a GPU, and how their tiles are cut."""

from dataclasses import replace

import numpy as np
import pytest
from view_plans import H200, empty, gradient_of, plan_of

from onepass.cuda.device import by_name
from onepass.cuda.kernel_plan import Functor
from onepass.cuda.plan import Tuning


def is_turned(plan):
    return "turned<" in plan.kernel


def cut_of(plan):
    """Rows of a square, threads across a tile and of a block, blocks, and squares of a thread."""
    assert is_turned(plan), plan.kernel
    shape = dict(plan.shape)
    return shape["pack"], shape["across"], plan.threads, plan.cluster, shape["packs"]


@pytest.mark.parametrize(
    ("length", "float32", "bfloat16"),
    [
        (16, (4, 16, 64, 1, 1), (4, 16, 64, 1, 1)),
        (32, (4, 16, 64, 1, 2), (4, 8, 64, 1, 1)),
        (64, (4, 8, 64, 1, 2), (4, 8, 64, 1, 2)),
        (128, (4, 4, 64, 1, 2), (4, 4, 64, 1, 2)),
        (192, (4, 4, 64, 1, 3), (4, 4, 64, 1, 3)),
        (256, (4, 4, 128, 1, 2), (4, 4, 128, 1, 2)),
        (512, (4, 4, 128, 1, 4), (4, 8, 128, 1, 8)),
        (1024, (4, 4, 128, 2, 4), (4, 4, 128, 1, 8)),
        (2048, (4, 4, 128, 4, 4), (4, 4, 128, 4, 4)),
        (4096, (4, 2, 128, 4, 4), (4, 4, 128, 4, 8)),
        (8192, (4, 2, 128, 8, 4), (4, 4, 128, 8, 8)),
        (16384, (4, 2, 128, 16, 4), (4, 4, 256, 16, 4)),
        (49152, (4, 2, 512, 16, 3), (4, 4, 512, 16, 6)),
        (102, (2, 8, 64, 1, 7), (2, 8, 128, 1, 4)),
        (4098, (2, 4, 128, 8, 9), (2, 8, 128, 8, 17)),
    ],
)
def test_tiles_of_a_transposed_matrix(length, float32, bfloat16):
    """Short rows are so few that their results do not go through shared memory."""
    rows = 640 if length <= 256 else 4096
    assert cut_of(plan_of(empty(length, rows).T)) == float32
    assert cut_of(plan_of(empty(length, rows, dtype="bfloat16").T)) == bfloat16


@pytest.mark.parametrize(
    ("length", "float32", "bfloat16"),
    [
        (16, (4, 16, 64, 1, 1), (4, 16, 64, 1, 1)),
        (64, (4, 4, 64, 1, 1), (8, 8, 64, 1, 1)),
        (128, (4, 4, 128, 1, 1), (8, 4, 64, 1, 1)),
        (512, (4, 4, 256, 1, 2), (8, 4, 256, 1, 1)),
        (2048, (4, 4, 256, 4, 2), (8, 4, 256, 4, 1)),
        (8192, (4, 2, 128, 16, 2), (8, 2, 256, 8, 1)),
        (32768, (4, 2, 512, 16, 2), (8, 2, 512, 16, 1)),
        (60, (4, 4, 64, 1, 1), (4, 8, 64, 1, 2)),
        (2052, (4, 4, 256, 8, 2), (4, 4, 256, 4, 3)),
        (102, (2, 8, 128, 1, 4), (2, 8, 128, 1, 4)),
    ],
)
def test_tiles_of_a_gradient_whose_dy_is_transposed(length, float32, bfloat16):
    for dtype, cut in (("float32", float32), ("bfloat16", bfloat16)):
        saved, dy = empty(4096, length, dtype=dtype), empty(length, 4096, dtype=dtype).T
        assert cut_of(gradient_of(saved, dy)) == cut


@pytest.mark.parametrize(
    ("rows", "length", "float32", "bfloat16"),
    [
        (8192, 8192, (4, 2, 128, 8, 4), (4, 4, 128, 8, 8)),
        (5116, 5580, (4, 8, 256, 16, 3), (4, 8, 256, 8, 6)),
        (500, 500, (4, 8, 256, 1, 4), (4, 8, 256, 2, 2)),
        (512, 512, (4, 4, 128, 1, 4), (4, 8, 128, 1, 8)),
        (4098, 4098, (2, 8, 256, 8, 9), (2, 16, 256, 8, 17)),
        (28, 500, (4, 4, 128, 1, 4), (4, 4, 256, 1, 2)),  # no more rows side by side
        (4, 500, None, None),  # too few of them
    ],
)
def test_tiles_whose_results_lie_across_rows(rows, length, float32, bfloat16):
    """Wider ones where lines are no whole sectors."""
    for dtype, cut in (("float32", float32), ("bfloat16", bfloat16)):
        plan = plan_of(empty(60, rows, length, dtype=dtype).swapaxes(1, 2), 1)
        assert (cut_of(plan) if is_turned(plan) else None) == cut


@pytest.mark.parametrize(
    ("rows", "length", "float32", "bfloat16"),
    [
        (8192, 8192, (4, 4, 256, 16, 2), (8, 4, 256, 16, 1)),
        (8192, 2048, (4, 4, 256, 4, 2), (8, 4, 256, 4, 1)),
        (5116, 5580, (4, 4, 256, 16, 2), (4, 8, 256, 16, 3)),
        (500, 500, (4, 8, 256, 2, 2), (4, 8, 256, 1, 4)),
        (4098, 4098, (2, 8, 256, 16, 5), (2, 16, 256, 16, 9)),
    ],
)
def test_tiles_of_gradients_whose_dx_lies_across_rows(rows, length, float32, bfloat16):
    for dtype, cut in (("float32", float32), ("bfloat16", bfloat16)):
        saved, dy = empty(length, rows, dtype=dtype), empty(rows, length, dtype=dtype).T
        assert cut_of(gradient_of(saved, dy, 0)) == cut


@pytest.mark.parametrize(
    ("length", "float32", "bfloat16", "gradient32", "gradient16"),
    [
        (16, (4, 64, 1, 4), (8, 128, 1, 4), (4, 64, 1, 4), (8, 128, 1, 4)),
        (60, (4, 64, 1, 15), (8, 128, 1, 15), (4, 128, 1, 8), (8, 128, 1, 15)),
        (250, (4, 256, 1, 16), (8, 256, 2, 16), (4, 256, 2, 8), (8, 256, 2, 16)),
        (480, (4, 256, 2, 15), (8, 256, 4, 15), (4, 256, 4, 8), (8, 256, 4, 15)),
        (512, (4, 256, 2, 16), (4, 256, 2, 16), (4, 256, 4, 8), (4, 256, 2, 16)),
        (4096, (4, 256, 16, 16), (4, 256, 16, 16), (4, 512, 16, 8), (4, 256, 16, 16)),
        (8192, (4, 512, 16, 16), (4, 512, 16, 16), None, (4, 512, 16, 16)),
        (8193, None, None, None, None),
    ],
)
def test_squares_of_rows(length, float32, bfloat16, gradient32, gradient16):
    """Threads down a tile and of a block, blocks, and squares of a thread."""
    for dtype, forward, gradient in (("float32", float32, gradient32), ("bfloat16", bfloat16, gradient16)):
        x, y = empty(20, length, 30, dtype=dtype).T, empty(30, length, 20, dtype=dtype)
        for plan, cut in ((plan_of(x, 1), forward), (gradient_of(y, x, 1), gradient)):
            assert is_turned(plan) == (cut is not None)
            if cut is not None:
                down, threads, blocks, squares = cut
                assert cut_of(plan) == (2, 4, threads, blocks, squares) and dict(plan.shape)["down"] == down
                assert plan.blocks(1, 132) == 4 * -(-20 // (2 * down)) * blocks, plan  # 30 rows by 8, 20 by 8 or 16


def test_lines_that_begin_within_a_sector():
    """As lines that are no whole sectors."""
    for address, across in ((0, 4), (32, 4), (16, 8)):
        assert dict(plan_of(empty(512, 512).T, 0, addresses=(0, address)).shape)["across"] == across


@pytest.mark.parametrize(("device", "resident"), [("h200", (4, 3)), ("b200", (3, 3))])
def test_halves_that_fill_the_registers_leave_room_for_others(device, resident):
    """A block alone, and one of a cluster."""
    for length, blocks in ((8192, resident[0]), (512, resident[1])):
        plan = plan_of(empty(length, 4096, dtype="bfloat16").T, device=by_name(device))
        assert dict(plan.shape)["resident"] == blocks


@pytest.mark.parametrize(
    ("x", "dim", "turned"),
    [
        (empty(15, 4096).T, -1, False),  # an odd number of steps
        (empty(14, 4096).T, -1, False),  # too few
        (empty(16, 4096).T, -1, True),
        (empty(4096, 30).T, 0, False),  # too few where results lie across rows
        (empty(4096, 32).T, 0, True),
        (empty(64, 4095).T, -1, False),  # an odd number of rows
        (empty(64, 4097)[:, :4096].T, -1, False),  # that lie an odd number of elements apart
        (empty(64, 4098)[:, 1:4097].T, -1, True),  # where a row starts is for the addresses to say
        (empty(65536, 64).T, -1, True),
        (empty(65538, 64).T, -1, False),  # more steps than the registers of a cluster hold
        (empty(49160, 64, dtype="bfloat16").T, -1, False),
        (empty(64, 4096, dtype="float64").T, -1, False),
        (empty(4096, 64), -1, False),  # nothing to turn
        (empty(64, 4096), 0, False),
        (empty(64, 4096)[::2].T, -1, True),  # lines may be any whole packs apart
        (empty(64, 8192)[:, ::2].T, -1, False),  # no neighbours in x
        (np.broadcast_to(empty(64, 1, 96), (64, 32, 96)).transpose(2, 1, 0), 2, True),  # others beyond, with a stride 0
        (np.broadcast_to(empty(256, 512, 1), (256, 512, 64)), 1, False),  # one line for a square
        (empty(8, 64, 48).transpose(0, 2, 1), 1, True),
        (empty(8, 64, 48, 6).transpose(3, 0, 2, 1), 3, True),  # a few rows
        (empty(8, 64, 48, 6).transpose(3, 0, 2, 1), 2, False),  # too few rows along one side
        (empty(8, 64, 48, 8).transpose(3, 0, 2, 1), 2, True),
        (empty(8, 6, 48, 64).transpose(3, 0, 2, 1), 2, False),  # and along the other
        (empty(8, 64, 15, 8).transpose(3, 0, 2, 1), 2, False),  # too few steps
        (empty(8, 64, 17, 8).transpose(3, 0, 2, 1), 2, True),  # an odd number of them is no matter
        (empty(9, 64, 48, 8).transpose(3, 0, 2, 1), 2, True),  # nor that of rows beyond
        (empty(8, 63, 48, 8).transpose(3, 0, 2, 1), 2, False),
        (empty(8, 64, 48, 9)[..., :8].transpose(3, 0, 2, 1), 2, False),
        (np.broadcast_to(empty(1, 48, 64), (8, 48, 64)).transpose(2, 1, 0), 1, False),  # one line for a square
    ],
)
def test_which_rows_are_turned(x, dim, turned):
    assert is_turned(plan_of(x, dim)) == turned


def test_addresses_decide_how_large_squares_are():
    x = empty(64, 4096).T
    assert dict(plan_of(x, addresses=(16, 0)).shape)["pack"] == 4
    assert dict(plan_of(x, addresses=(8, 0)).shape)["pack"] == 2
    assert not is_turned(plan_of(x, addresses=(4, 0)))
    assert not is_turned(plan_of(x, addresses=(0, 4)))
    assert not is_turned(plan_of(x, addresses=None))


def test_results_of_another_type():
    """Squares are as large as the wider of both allows."""
    assert cut_of(plan_of(empty(64, 4096, dtype="bfloat16").T, result="float32")) == (4, 8, 64, 1, 2)
    assert cut_of(plan_of(empty(64, 4096).T, result="float16")) == (4, 8, 64, 1, 2)
    assert not is_turned(plan_of(empty(64, 4096).T, result="float64"))


def test_reductions_and_functors_are_not_turned():
    x = empty(64, 4096).T
    for op in ("logsumexp", "sum", "amax"):
        assert not is_turned(plan_of(x, op=op))
    halved = Functor("onepass::cuda::Scaled", (0.5,))
    assert not is_turned(plan_of(x, load=halved)) and not is_turned(plan_of(x, store=halved))


def test_rows_that_only_clusters_hold_need_a_gpu_that_has_clusters():
    short, long = empty(64, 2048).T, empty(4096, 4096).T
    for device, most in ((by_name("a100"), 1), (H200, 16)):
        assert device.most_clustered == most
        assert is_turned(plan_of(short, device=device))
        assert is_turned(plan_of(long, device=device)) == (most > 1)


def test_an_algorithm_asked_for_by_name():
    long = empty(4096, 4096).T
    assert plan_of(long, algorithm="strided_split").cluster == 4
    alone = plan_of(long, algorithm="strided")
    assert alone.cluster == 1 and not is_turned(alone)
    short = empty(64, 4096).T
    assert is_turned(plan_of(short, algorithm="strided"))


def test_tuning():
    x = empty(64, 4096).T
    assert not is_turned(plan_of(x, tuning=Tuning(turned=False)))
    assert not is_turned(plan_of(x, tuning=Tuning(threads=64)))  # of the tiles that have it
    told = Tuning(turned=True, pack=2, across=8, threads=256, blocks=2, resident=3)
    plan = plan_of(x, tuning=told)
    assert cut_of(plan) == (2, 8, 256, 2, 1) and dict(plan.shape)["resident"] == 3
    with pytest.raises(ValueError, match="no squares of rows are to be turned"):
        plan_of(empty(64, 4095).T, tuning=Tuning(turned=True))
    with pytest.raises(ValueError, match="no squares of rows are to be turned"):
        plan_of(x, tuning=Tuning(turned=True, threads=32, across=16))
    with pytest.raises(ValueError, match="packs of 8 rows do not all start on their boundary, packs of 4 do"):
        plan_of(x, tuning=Tuning(turned=True, pack=8))
    with pytest.raises(ValueError, match="no squares of rows are to be turned"):
        plan_of(x, device=by_name("a100"), tuning=replace(told, pack=None))


def test_what_is_said_of_it():
    plan = plan_of(empty(4096, 4096).T)
    assert str(plan) == "strided_split: tiles of 8 rows, 2 x 64 threads of 4 blocks, packs of 4 each, in registers"
    assert any("4 squares of 4 rows by 4 steps" in line for line in plan.why), plan.why
    assert plan.reads == 1 and plan.moved_bytes == 2 * 4096 * 4096 * 4
    assert not any("squares" in line for line in plan_of(empty(4096, 4096)).why)


@pytest.mark.parametrize(
    ("first", "second", "length", "float32", "bfloat16"),
    [
        (32, 66, 100, 8, 8),
        (30, 66, 100, 4, 8),  # few rows along the first side
        (32, 62, 100, 4, 8),  # and along the second
        (32, 72, 100, 4, 8),  # steps of whole sectors of float32
        (32, 66, 511, 8, 8),
        (32, 66, 512, 4, 4),  # many steps
        (32, 16, 100, 4, 8),
        (32, 14, 100, 4, 4),  # no rows for more threads
    ],
)
def test_threads_down_a_tile_of_squares_of_rows(first, second, length, float32, bfloat16):
    for dtype, down in (("float32", float32), ("bfloat16", bfloat16)):
        x = empty(second, length, first, dtype=dtype).T
        assert dict(plan_of(x, 1).shape)["down"] == down
        of_gradient = 4 if dtype == "float32" else down
        assert dict(gradient_of(empty(first, length, second, dtype=dtype), x, 1).shape)["down"] == of_gradient


def test_what_is_said_of_squares_of_rows():
    plan = plan_of(empty(20, 480, 30).T, 1)
    assert str(plan) == (
        "strided_split: tiles of 8 x 8 rows, 4 x 4 x 16 threads of 2 blocks, packs of 2 each, in registers"
    )
    assert "neighbours in memory are other rows in one array than in another" in plan.why
    assert any("15 squares of 2 rows by 2 others" in line for line in plan.why), plan.why


@pytest.mark.parametrize("which", ["saved", "dy", "out"])
def test_any_array_of_a_gradient_may_lie_otherwise(which):
    arrays = {name: empty(64, 96) for name in ("saved", "dy", "out")}
    arrays[which] = empty(96, 64).T
    along = {"saved": "along_saved", "dy": "along_dy", "out": "along_dx"}
    plan = gradient_of(**arrays)
    assert is_turned(plan)
    shape = dict(plan.shape)
    assert {name for name, field in along.items() if shape[field] == "false"} == {which}
