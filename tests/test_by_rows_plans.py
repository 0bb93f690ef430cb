"""Which rows' results go through shared memory on a GPU, to be written along them, and how their tiles are cut."""

from dataclasses import replace

import numpy as np
import pytest
from view_plans import empty, gradient_of, plan_of

from onepass.cuda.device import by_name
from onepass.cuda.kernel_plan import Functor
from onepass.cuda.plan import Tuning


def is_by_rows(plan):
    return "by_rows" in dict(plan.shape)


def cut_of(plan):
    """Rows per access, threads across a tile and of a block, steps of a thread, and tiles of a block at a time."""
    assert is_by_rows(plan), plan.kernel
    shape = dict(plan.shape)
    return shape["pack"], shape["across"], plan.threads, shape["packs"], shape["tiles"]


def written_by(plan):
    """Elements at a time, and whether rows are written as one."""
    text = dict(plan.shape)["by_rows"]
    pack = int(text.partition(".pack = ")[2].partition(",")[0])
    return pack, ".joined = true" in text


def channels_last(length, rows=32768, dtype="float32"):
    """Logits of images, permuted."""
    return empty(8, length, rows, dtype=dtype).transpose(0, 2, 1)


@pytest.mark.parametrize(
    ("length", "float32", "bfloat16", "float64"),
    [
        (2, None, (4, 64, 64, 2, 1), None),
        (3, None, (4, 64, 64, 3, 1), None),
        (4, None, (2, 64, 64, 4, 1), None),
        (7, (2, 64, 64, 7, 1), (2, 64, 64, 7, 1), (1, 64, 64, 7, 1)),
        (9, (2, 64, 64, 9, 1), (2, 64, 64, 9, 1), (1, 64, 64, 9, 1)),
        (10, (1, 64, 64, 10, 1), (2, 64, 64, 10, 1), (1, 64, 64, 10, 1)),
        (24, (1, 64, 64, 24, 1), (2, 64, 64, 24, 1), (1, 32, 64, 12, 1)),
        (25, (1, 64, 64, 25, 1), (2, 32, 64, 13, 1), (1, 32, 64, 13, 1)),
        (40, (1, 64, 64, 40, 1), (2, 32, 64, 20, 1), (1, 32, 128, 10, 1)),
        (41, (1, 32, 64, 21, 1), (2, 32, 64, 21, 1), (1, 32, 128, 11, 1)),
        (77, (1, 32, 128, 20, 1), (2, 16, 64, 20, 1), (1, 32, 128, 20, 1)),
        (100, (1, 32, 128, 25, 1), (2, 16, 64, 25, 1), (1, 16, 128, 13, 1)),
        (161, (1, 16, 128, 21, 1), (2, 16, 128, 21, 1), None),
        (305, (1, 16, 256, 20, 1), (2, 16, 256, 20, 1), None),
        (609, (1, 8, 256, 20, 1), (2, 8, 256, 20, 1), None),
        (1217, (1, 8, 512, 20, 1), (2, 8, 512, 20, 1), None),
        (2433, None, None, None),  # more than registers hold
    ],
)
def test_tiles(length, float32, bfloat16, float64):
    for dtype, cut in (("float32", float32), ("bfloat16", bfloat16), ("float64", float64)):
        plan = plan_of(channels_last(length, dtype=dtype))
        assert (cut_of(plan) if is_by_rows(plan) else None) == cut, dtype


@pytest.mark.parametrize(
    ("length", "rows", "tiles"), [(2, 1 << 22, 4), (3, 1 << 22, 4), (7, 1 << 22, 2), (16, 1 << 22, 1)]
)
def test_tiles_at_a_time_of_few_steps(length, rows, tiles):
    """As many as registers have room for, if there are blocks enough."""
    assert cut_of(plan_of(channels_last(length, rows, "bfloat16")))[-1] == tiles
    assert cut_of(plan_of(channels_last(length, 1 << 15, "bfloat16")))[-1] == 1


def test_how_results_are_written():
    """Rows of an odd number of elements as one, if they follow each other; else whole packs of them."""
    for length, written in ((21, (4, True)), (22, (2, False)), (24, (4, False)), (25, (4, True))):
        assert written_by(plan_of(channels_last(length))) == written
    assert written_by(plan_of(channels_last(21, dtype="bfloat16"))) == (8, True)
    assert written_by(plan_of(channels_last(24, dtype="bfloat16"))) == (4, False)
    assert written_by(plan_of(channels_last(24), addresses=(0, 8))) == (2, False)
    assert written_by(plan_of(channels_last(24), addresses=(0, 4))) == (1, False)
    assert written_by(plan_of(channels_last(21), addresses=(0, 4))) == (1, True)
    assert written_by(plan_of(channels_last(21), addresses=None)) == (1, True)
    swapped = empty(64, 21, 8192).transpose(2, 0, 1)  # its tiles lie along the first dim: rows of the result lie apart
    assert written_by(plan_of(swapped)) == (1, False)


@pytest.mark.parametrize(("past", "pack"), [(0, 2), (4, 2), (2, 1)])
def test_where_x_begins_decides_about_its_packs(past, pack):
    plan = plan_of(channels_last(21, dtype="bfloat16"), addresses=(past, 0))
    assert cut_of(plan)[0] == pack
    assert cut_of(plan_of(channels_last(21, dtype="bfloat16"), addresses=None))[0] == 1
    assert cut_of(plan_of(channels_last(21, 32767, dtype="bfloat16")))[0] == 1


@pytest.mark.parametrize(
    ("x", "dim", "by_rows"),
    [
        (channels_last(21), -1, True),
        (channels_last(21, 1608), -1, False),  # elements for few multiprocessors
        (channels_last(21, 1610), -1, True),
        (empty(8, 21, 32768), 1, False),  # rows lie across memory in both
        (empty(8, 32768, 21).transpose(0, 2, 1), 1, False),  # and the other way round
        (empty(8, 32768, 21), -1, False),
        (empty(32768, 21, 8).transpose(0, 2, 1), -1, True),  # a sector of neighbours
        (empty(32768, 21, 7).transpose(0, 2, 1), -1, False),
        (channels_last(21, 65536)[:, ::2], -1, True),
        (empty(8192, 21, 8, 2)[..., 0].transpose(0, 2, 1), -1, False),  # the same sector, half of it for others
        (empty(8, 7, 3, 32768).transpose(0, 3, 1, 2), (2, 3), True),  # two dims that lie one behind the other
        (empty(8, 7, 2, 3, 32768)[:, :, 0].transpose(0, 3, 1, 2), (2, 3), False),  # and that do not
        (channels_last(256), -1, True),
        (channels_last(302), -1, False),  # squares are turned in registers
        (channels_last(303), -1, True),  # where that can be
    ],
)
def test_which_rows(x, dim, by_rows):
    assert is_by_rows(plan_of(x, dim)) == by_rows


@pytest.mark.parametrize(
    ("op", "dtype", "most"),
    [
        ("softmax", "float32", 300),
        ("softmax", "float16", 400),
        ("log_softmax", "float32", 14),
        ("log_softmax", "bfloat16", 300),
    ],
)
def test_up_to_which_length_squares_are_not_turned(op, dtype, most):
    assert is_by_rows(plan_of(channels_last(most, dtype=dtype), op=op))
    assert "turned<" in plan_of(channels_last(most + 2, dtype=dtype), op=op).kernel


def test_which_operations():
    x = channels_last(21)
    assert is_by_rows(plan_of(x, op="log_softmax")) and not is_by_rows(plan_of(x, op="logsumexp"))
    halved = Functor("onepass::cuda::Scaled", (0.5,))
    assert is_by_rows(plan_of(x, load=halved)) and is_by_rows(plan_of(x, store=halved))
    assert cut_of(plan_of(channels_last(21, dtype="bfloat16"), result="float32"))[:3] == (1, 64, 64)
    assert not is_by_rows(plan_of(x, algorithm="strided_split"))


def test_tiles_must_fit_shared_memory_twice():
    """A T4 has 64 KiB of it."""
    small, long = by_name("l4"), channels_last(1201)
    assert is_by_rows(plan_of(long, device=small))
    tiny = replace(small, shared_per_multiprocessor=64 << 10)
    assert not is_by_rows(plan_of(long, device=tiny)) and is_by_rows(plan_of(channels_last(301), device=tiny))


def test_tuning():
    x = channels_last(21)
    assert not is_by_rows(plan_of(x, tuning=Tuning(by_rows=False)))
    assert not is_by_rows(plan_of(x, tuning=Tuning(threads=64)))  # of the tiles that have it
    told = Tuning(by_rows=True, pack=4, across=32, threads=128, rows=1, resident=3)
    plan = plan_of(x, tuning=told)
    assert cut_of(plan) == (4, 32, 128, 6, 1) and dict(plan.shape)["resident"] == 3
    with pytest.raises(ValueError, match="rows do not lie across memory in one array and along it in the result"):
        plan_of(empty(21, 4096), 0, tuning=Tuning(by_rows=True))
    for wrong in ({"across": 64, "threads": 128}, {"across": 64, "threads": 32}, {"threads": 64, "pack": 4}):
        with pytest.raises(ValueError, match="or are too long"):
            plan_of(channels_last(45), tuning=Tuning(by_rows=True, **wrong))
    with pytest.raises(ValueError, match="packs of 8 rows do not all start on their boundary, packs of 4 do"):
        plan_of(x, tuning=Tuning(by_rows=True, pack=8))


def test_what_is_said_of_it():
    plan = plan_of(channels_last(21))
    assert plan.algorithm == "strided" and plan.reads == 1 and plan.moved_bytes == 2 * 8 * 32768 * 21 * 4
    assert "results go through shared memory, and cross memory along the rows" in plan.why
    assert any("64 threads lie across rows that are 1 apart" in line for line in plan.why), plan.why
    assert plan.shared_bytes == 64 * 21 * 4
    apart = plan_of(channels_last(24))
    assert apart.shared_bytes == 64 * (28 * 4 + 8)  # lines of seven packs, and where rows begin


def test_a_broadcast_x_is_left_to_others():
    x = np.broadcast_to(empty(8, 21, 1), (8, 21, 32768)).transpose(0, 2, 1)
    assert not is_by_rows(plan_of(x))


def gradient(length, rows=32768, dtype="float32", op="softmax_backward", saved=None):
    """Where only dy has the channels of images as planes."""
    saved = empty(8, rows, length, dtype=dtype) if saved is None else saved
    return gradient_of(saved, channels_last(length, rows, dtype), op=op)


@pytest.mark.parametrize(
    ("length", "float32", "bfloat16"),
    [
        (2, (2, 64, 64, 2), (4, 64, 64, 2)),
        (5, (2, 64, 64, 5), (4, 64, 64, 5)),
        (6, (1, 64, 64, 6), (1, 64, 64, 6)),
        (7, (2, 64, 64, 7), (2, 64, 64, 7)),
        (21, (1, 64, 64, 21), (2, 64, 64, 21)),
        (25, (1, 32, 64, 13), (1, 32, 64, 13)),
        (45, (1, 32, 128, 12), (1, 32, 128, 12)),
        (91, (1, 32, 128, 23), (1, 16, 64, 23)),
        (151, (1, 16, 128, 19), (1, 16, 128, 19)),
        (301, (1, 8, 128, 19), (1, 8, 128, 19)),
        (601, (1, 8, 256, 19), (1, 8, 256, 19)),
        (1201, (1, 8, 512, 19), (1, 8, 512, 19)),
        (1217, None, None),
    ],
)
def test_tiles_of_gradients(length, float32, bfloat16):
    for dtype, cut in (("float32", float32), ("bfloat16", bfloat16)):
        plan = gradient(length, dtype=dtype)
        assert is_by_rows(plan) == (cut is not None), dtype
        if cut is not None:
            shape = dict(plan.shape)
            assert (shape["pack"], shape["across"], plan.threads, shape["packs"]) == cut, dtype
            assert plan.algorithm == "strided" and plan.reads == 1


def test_which_gradients():
    assert is_by_rows(gradient(21)) and is_by_rows(gradient(21, op="log_softmax_backward"))
    assert is_by_rows(gradient(21, dtype="float64"))
    assert not is_by_rows(gradient(21, dtype="float64", op="log_softmax_backward"))
    assert not is_by_rows(gradient(21, 1608)) and is_by_rows(gradient(21, 1610))
    apart = empty(8, 32768, 22)[..., :21]  # what was saved lies otherwise than dx
    assert not is_by_rows(gradient(21, saved=apart))
    assert "turned<" in gradient(64).kernel
    assert any("what was saved and results go through shared memory" in line for line in gradient(21).why)
    assert written_by(gradient(21)) == (4, True) and written_by(gradient(14)) == (2, False)


def test_neighbours_in_dy_come_last_in_a_tile_of_a_gradient():
    """Whichever the result has nearest."""
    dy = empty(64, 21, 40, 512).transpose(3, 0, 2, 1)
    plan = gradient_of(empty(*dy.shape), dy)
    assert is_by_rows(plan) and written_by(plan) == (1, False)
    assert any("rows that are 1 apart" in line for line in plan.why), plan.why
