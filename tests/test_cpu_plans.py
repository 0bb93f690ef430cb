"""How tiles of a CPU are cut: by machines with short vectors and with long ones, with few cores and with many."""

import dataclasses

import numpy as np
import pytest

from onepass import call, call_gradients
from onepass.cpu.plan import make_plan
from onepass.machine import Machine

SHORT_VECTORS = Machine("two cores of a Zen 3", "v3", 32, 32 << 10, 512 << 10, 32 << 20, 16 << 30, 2)
LONG_VECTORS = Machine("two cores of a Zen 4", "v4", 64, 32 << 10, 1 << 20, 32 << 20, 16 << 30, 2)
NO_VECTORS = dataclasses.replace(SHORT_VECTORS, isa="v2", vector_bytes=16)
MANY_CORES = dataclasses.replace(LONG_VECTORS, cores=64, l3_bytes=256 << 20)


def plan_of(machine, op, shape, dtype="float32", dim=1):
    return make_plan(call.problem_of(op, shape, dtype, dim), machine, machine.cores)


# Operation, shape, dtype, dim: columns of a tile with short vectors and with long ones.
TILES = [
    ("softmax", (64, 1000, 192), "float32", 1, 192, 192),  # all of them are one tile
    ("softmax_backward", (64, 1000, 256), "float32", 1, 256, 256),
    ("sum", (64, 1000, 196), "bfloat16", 1, 196, 196),
    ("softmax", (64, 1000, 128), "float64", 1, 128, 128),
    ("softmax", (64, 1000, 320), "float32", 1, 112, 112),  # three: equal ones, of whole vectors
    ("softmax", (16, 256, 3136), "float32", 1, 128, 128),  # a longer axis, whose rows of results are lines
    ("softmax", (16, 256, 3136), "float64", 1, 64, 128),
    ("softmax_backward", (4096, 4096), "float32", 0, 128, 256),
    ("log_softmax_backward", (16, 256, 3136), "bfloat16", 1, 128, 256),
    ("logsumexp", (16, 256, 3136), "float32", 1, 128, 128),
    ("sum", (16, 256, 3136), "float32", 1, 128, 256),
    ("softmax", (8, 21, 262144), "float32", 1, 256, 128),  # columns so short that more of them fit L2
    ("softmax_backward", (4, 64, 65536), "float32", 1, 256, 256),
    ("sum", (4, 64, 65536), "float32", 1, 128, 256),
    ("softmax", (100, 100001), "float32", 0, 256, 256),  # rows that end within lines
    ("softmax_backward", (100, 100001), "bfloat16", 0, 256, 256),
    ("log_softmax", (100, 100001), "float64", 0, 128, 128),
    ("logsumexp", (100, 100001), "float32", 0, 128, 128),  # has no rows of results
]


@pytest.mark.parametrize(("op", "shape", "dtype", "dim", "short", "long"), TILES)
def test_columns_of_a_tile(op, shape, dtype, dim, short, long):
    assert plan_of(SHORT_VECTORS, op, shape, dtype, dim).tile == short
    assert plan_of(LONG_VECTORS, op, shape, dtype, dim).tile == long


def test_no_tile_has_more_vectors_than_the_kernels_hold():
    for shape in ((64, 1000, 192), (4, 400, 5001), (64, 1000, 131)):
        assert plan_of(NO_VECTORS, "softmax", shape).tile <= 32 * 4, shape


# Operation, shape, dtype, dim: whether results go past the cache, with short vectors and with long ones.
STORES = [
    ("softmax", (64, 1000, 192), "float32", 1, True, True),  # whole lines
    ("softmax", (64, 300, 98), "bfloat16", 1, False, False),  # few bytes
    ("softmax", (64, 1000, 196), "float32", 1, True, True),  # joined to whole lines
    ("log_softmax", (2048, 40, 96 + 1), "float32", 1, True, True),
    ("softmax_backward", (1500, 100, 95), "float32", 1, False, True),  # long enough for long vectors
    ("softmax_backward", (5000, 100, 31), "float32", 1, False, False),  # too short for those
    ("log_softmax_backward", (3000, 200, 48 + 1), "float32", 1, False, True),
    ("log_softmax_backward", (3000, 200, 48 - 1), "float32", 1, False, False),
    ("softmax_backward", (3000, 50, 95), "float32", 1, False, True),  # tiles so small that they are put together
    ("log_softmax_backward", (3000, 50, 95), "float32", 1, False, True),
    ("log_softmax_backward", (2000, 5, 361), "float32", 1, False, True),
    ("softmax_backward", (7000, 12, 31), "float32", 1, False, False),  # rows of less than two vectors
    ("softmax_backward", (7000, 6, 63), "float32", 1, False, False),  # tiles so small that each costs too much
    ("softmax_backward", (3000, 50, 95), "float64", 1, True, True),
    ("softmax_backward", (6000, 50, 95), "bfloat16", 1, False, False),
    ("softmax", (500, 100, 95), "float64", 1, True, True),
    ("softmax", (200, 500, 250), "bfloat16", 1, False, False),  # in 16 bits it does not pay
    ("softmax", (3000, 21, 65), "float32", 1, False, True),  # rows long enough for long vectors
    ("log_softmax", (4000, 21, 49), "float32", 1, False, True),
    ("log_softmax", (4000, 21, 47), "float32", 1, False, False),
    ("softmax", (5000, 12, 75), "float32", 1, False, True),  # short columns, put together
    ("log_softmax", (9000, 8, 49), "float32", 1, False, True),
    ("log_softmax", (9000, 12, 47), "float32", 1, False, False),
    ("log_softmax", (20_000, 5, 49), "float32", 1, False, False),
    ("softmax", (1000, 16, 321), "float32", 1, False, False),
    ("softmax", (5000, 12, 75), "float64", 1, False, False),
    ("log_softmax_backward", (64, 1000, 196), "float32", 1, False, True),
    ("softmax", (100, 100001), "float32", 0, True, True),  # all but the ends of long rows
    ("log_softmax", (64, 200, 401), "float64", 1, True, True),
    ("softmax_backward", (100, 100001), "float32", 0, True, True),
    ("log_softmax_backward", (100, 100001), "float32", 0, True, True),
    ("log_softmax_backward", (100, 100001), "float64", 0, False, True),
    ("softmax", (100, 100001), "bfloat16", 0, False, False),
    ("softmax", (20, 16, 50001), "float32", 1, False, False),  # columns too short for that
    ("softmax_backward", (20, 6, 50001), "float32", 1, False, False),
    ("softmax_backward", (20, 7, 50001), "float32", 1, True, True),
    ("softmax_backward", (500, 16, 321), "float32", 1, True, True),
    ("softmax_backward", (1000, 16, 255), "float32", 1, False, True),
    ("log_softmax_backward", (200, 90, 361), "float32", 1, True, True),
    ("log_softmax_backward", (200, 57, 561), "float32", 1, True, False),  # near enough to stay in the cache
    ("log_softmax_backward", (200, 60, 561), "float32", 1, True, True),
    ("log_softmax_backward", (200, 45, 361), "float64", 1, False, True),
    ("softmax_backward", (200, 90, 361), "float32", 1, True, True),
    ("softmax_backward", (700, 100, 49), "float32", 1, False, False),  # near, with many edges: from 40 MiB on
    ("softmax_backward", (720, 100, 49), "float32", 1, False, True),
    ("log_softmax_backward", (720, 59, 49), "float32", 1, False, False),  # with fewer: from 24 MiB on
    ("log_softmax_backward", (730, 59, 49), "float32", 1, False, True),
    ("softmax_backward", (400, 100, 48), "float32", 1, True, False),  # with none, for rows are lines
    ("softmax_backward", (440, 100, 48), "float32", 1, True, True),
    ("softmax_backward", (400, 100, 48), "float64", 1, True, True),
    ("softmax_backward", (4000, 100, 8), "float32", 1, True, True),  # packed
]


@pytest.mark.parametrize(("op", "shape", "dtype", "dim", "short", "long"), STORES)
def test_what_goes_past_the_cache(op, shape, dtype, dim, short, long):
    assert plan_of(SHORT_VECTORS, op, shape, dtype, dim).nontemporal == short
    assert plan_of(LONG_VECTORS, op, shape, dtype, dim).nontemporal == long


def test_only_what_is_read_in_place_is_put_together_or_near():
    """Small tiles go past the cache, log_softmax's gradient of near ones stays in it; not if they must be gathered
    row by row, as they are where tiles are asked for."""
    small, near = np.zeros((5000, 12, 150), np.float32), np.zeros((200, 50, 561), np.float32)
    for op, y, past in (("softmax_backward", small[..., :75], True), ("log_softmax_backward", near, False)):
        for dy, in_place in (
            (np.copy(y), True),
            (np.broadcast_to(y[:, :, :1], y.shape), False),
            (y.astype(np.float16), False),
        ):
            problem = call_gradients.checked(op, (y, dy), 1, False, None, None)[1]
            plan = make_plan(problem, LONG_VECTORS, 2, None if in_place else "strided")
            assert plan.nontemporal == (past == in_place), (op, in_place)
            assert bool(make_plan(problem, LONG_VECTORS, 2).blocks) != in_place
    for x, past in ((small[..., :75], True), (small[..., ::2], False), (small[..., :75].astype(np.float16), False)):
        problem = call.problem_of("softmax", x, "float32", 1)
        assert make_plan(problem, LONG_VECTORS, 2, "strided").nontemporal == past


def test_tiles_of_exponentials_wait_in_cache_if_narrower_ones_do():
    eight_cores = dataclasses.replace(SHORT_VECTORS, cores=8)
    for machine, shape, dim, tile in (
        (SHORT_VECTORS, (4096, 5001), 0, 128),
        (SHORT_VECTORS, (64, 1000, 192), 1, 192),
        (eight_cores, (64, 1000, 192), 1, 96),
        (LONG_VECTORS, (4096, 5001), 0, 128),
        (LONG_VECTORS, (2000, 5001), 0, 256),
    ):
        chosen = plan_of(machine, "softmax", shape, dim=dim)
        assert (chosen.tile, chosen.resident) == (tile, True), chosen
    endless = plan_of(SHORT_VECTORS, "softmax", (100_000, 5001), dim=0)  # no tile would
    assert (endless.tile, endless.resident) == (256, False)


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "tiles"),
    [
        ("softmax_backward", (8, 21, 262144), "float32", (1024, 256, 512)),
        ("log_softmax_backward", (8, 21, 263169), "float32", (1024, 256, 512)),  # rows that end within lines
        ("log_softmax_backward", (128, 17, 3136), "float32", (784, 256, 448)),  # equal ones
        ("softmax_backward", (4, 48, 65536), "float32", (1024, 256, 512)),
        ("softmax_backward", (4, 49, 65536), "float32", (256, 256, 128)),  # more than that share of L2
        ("softmax_backward", (600, 30, 2048), "float32", (1024, 256, 512)),
        ("softmax_backward", (600, 30, 2047), "float32", (256, 256, 128)),  # one piece
        ("softmax_backward", (64, 16, 16384), "float32", (1024, 256, 512)),
        ("softmax_backward", (700, 16, 1536), "float32", (256, 256, 128)),  # short columns have more
        ("softmax_backward", (64, 16, 16383), "float32", (1024, 256, 512)),  # but not of rows that end within lines
        ("softmax_backward", (700, 10, 1025), "float32", (528, 208, 352)),
        ("softmax_backward", (700, 10, 1023), "float32", (256, 256, 128)),
        ("softmax_backward", (1500, 16, 1024), "float32", (1024, 256, 512)),  # or in one set of L1
        ("softmax_backward", (100, 16, 1024), "float32", (256, 256, 128)),  # from memory
        ("softmax_backward", (12, 8, 65536), "float32", (1024, 256, 512)),
        ("softmax_backward", (12, 7, 65536), "float32", (256, 256, 128)),
        ("log_softmax_backward", (12, 16, 65536), "float32", (256, 256, 128)),  # as whole columns
        ("softmax_backward", (8, 21, 262144), "bfloat16", (256, 256, 128)),
        ("softmax_backward", (2, 21, 4096), "float32", (256, 256, 128)),  # within the cache
    ],
)
def test_gradients_from_memory_have_long_pieces_of_rows(op, shape, dtype, tiles):
    assert tuple(plan_of(m, op, shape, dtype).tile for m in (SHORT_VECTORS, LONG_VECTORS, NO_VECTORS)) == tiles


def test_long_rows_are_joined_where_a_tile_has_room():
    """Up to 32 vectors; those of gradients by short ones are cut, and their whole lines go past the cache."""
    for op in ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward"):
        chosen = plan_of(LONG_VECTORS, op, (128, 300, 356))
        assert (chosen.tile, chosen.nontemporal) == (356, True), op
    assert plan_of(SHORT_VECTORS, "softmax", (128, 300, 356)).tile == 192
    assert plan_of(SHORT_VECTORS, "softmax", (256, 300, 255)).tile == 255
    chosen = plan_of(SHORT_VECTORS, "softmax_backward", (256, 300, 257))
    assert (chosen.tile < 257, chosen.nontemporal) == (True, True)


def test_tiles_past_the_cache_are_whole_lines():
    assert plan_of(SHORT_VECTORS, "softmax_backward", (2000, 12, 400)).tile == 208
    assert plan_of(SHORT_VECTORS, "softmax_backward", (20, 12, 400)).tile == 200  # results stay in it


def test_tiles_whose_chunks_are_not_shared_out_are_enough_for_all_cores():
    few = plan_of(LONG_VECTORS, "log_softmax", (1000, 256), dim=0)
    many = plan_of(MANY_CORES, "log_softmax", (1000, 4096), dim=0)
    assert (few.tile, few.resident) == (128, True)
    assert (many.tile, many.resident) == (64, True)
    assert plan_of(MANY_CORES, "log_softmax", (500, 256), dim=0).tile == 64  # four, if they cannot be more
    assert plan_of(LONG_VECTORS, "logsumexp", (200, 256), dim=0).tile == 128  # too short for chunks
    assert plan_of(LONG_VECTORS, "amax", (1024, 128), dim=0).tile == 64
    assert plan_of(LONG_VECTORS, "amax", (1023, 128), dim=0).tile == 128  # and for threads
    assert plan_of(MANY_CORES, "softmax", (64, 500, 196)).nontemporal  # a tile of all columns for each core
    cut = plan_of(MANY_CORES, "softmax", (60, 500, 196))
    assert (cut.tile, cut.nontemporal) == (112, False)


@pytest.mark.parametrize(("op", "shape", "by_long_vectors", "by_short_ones"), [
    ("softmax", (16, 1000), 1, 1),
    ("softmax", (17, 1000), 1, 8),
    ("softmax", (33, 1000), 8, 16),
    ("log_softmax", (66, 1000), 16, 16),
    ("softmax_backward", (32, 1000), 1, 1),
    ("softmax_backward", (33, 1000), 8, 8),
    ("log_softmax_backward", (17, 1000), 1, 8),
    ("sum", (131, 1000), 1, 1),
    ("sum", (132, 1000), 8, 8),
    ("amax", (1000, 400), 16, 16),
    ("amin", (8192, 16), 16, 16),  # rows so short take longer
    ("amin", (7710, 17), 1, 1),
    ("mean", (1000, 16, 8), 1, 1),  # the same across memory do not
    ("softmax", (131_000, 1), 1, 1),
    ("softmax", (132_000, 1), 8, 8),
    ("sum", (131_000, 1), 1, 1),
])  # fmt: skip
def test_threads_have_enough_to_do_each(op, shape, by_long_vectors, by_short_ones):
    for vector_bytes, threads in ((64, by_long_vectors), (32, by_short_ones), (16, by_short_ones)):
        for cores in (16, 2):
            machine = dataclasses.replace(MANY_CORES, vector_bytes=vector_bytes, cores=cores)
            assert plan_of(machine, op, shape).threads == min(threads, cores)


def test_tiles_that_are_read_twice_are_shared_out_by_chunks():
    chosen = plan_of(SHORT_VECTORS, "softmax_backward", (40960, 256), dim=0)
    assert (chosen.tile, chosen.resident, chosen.split) == (256, False, True)


def test_columns_of_a_reduction_are_cut_for_all_threads():
    assert plan_of(LONG_VECTORS, "sum", (1000, 1000), dim=0).tile == 128
