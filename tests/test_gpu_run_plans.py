"""How columns that are runs of memory, slabs of short rows, and states of float64 are cut."""

import dataclasses
from functools import partial

import pytest
from gpu_layouts import along_dim_1

from onepass import report
from onepass.cuda.device import by_name
from onepass.cuda.plan import Functor, Tuning, make_cuda_plan
from onepass.problem import ELEMENTWISE, GRADIENTS, make_problem

# Blocks for each run, of 264: all runs at once, or no more than L2 holds, in rounds of as many each.
RUNS = [
    ("softmax", (3, 678102, 43), "float32", 264, "a run is more than L2 holds"),
    ("softmax", (3, 678102, 7), "float32", 88, "three are not"),
    ("softmax", (8, 200000, 12), "float32", 66, "half of eight are not"),
    ("softmax", (8, 200000, 12), "bfloat16", 33, "all of them"),
    ("softmax", (675, 65410, 5), "float32", 5, "many rounds"),
    ("softmax", (675, 65410, 5), "float64", 5, "the same of doubles, by half as many blocks"),
    ("softmax", (64, 50176, 3), "float32", 4, "of tiles in registers the longest"),
    ("softmax", (3000, 17702, 3), "float32", 1, "a block for each of many"),
    ("softmax", (3000, 9999, 3), "float32", None, "but not shorter ones"),
    ("softmax", (1, 28966, 181), "float32", 264, "of any threads, if the steps are many"),
    ("softmax", (1, 8723, 601), "float32", None, "and not where they are few"),
    ("softmax", (1, 26083, 402), "float32", 132, "in packs of two, of more memory"),
    ("softmax", (1, 10485, 1000), "float32", None, "but not of whole sectors"),
    ("softmax", (1, 13000, 402), "float32", None, "nor of less"),
    ("softmax_backward", (1, 10464, 1002), "bfloat16", 264, "a gradient of as much"),
    ("log_softmax", (1, 13981, 750), "float32", None, "logarithms of still more"),
    ("log_softmax", (1, 27962, 750), "float32", 264, "of so much"),
    ("softmax", (1, 20000, 99), "float32", None, "nor those of little memory"),
    ("softmax", (2, 128256, 16), "float32", None, "nor what comes by packs"),
    ("log_softmax", (1, 60000, 300), "bfloat16", 264, "many columns"),
    ("softmax", (1, 60000, 290), "bfloat16", 264, "145 packs are two steps"),
    ("softmax", (1, 60000, 301), "bfloat16", 132, "903 of 1024 threads walk"),
    ("softmax", (2, 204613, 392), "bfloat16", 264, "490 of 512"),
    ("softmax", (1, 60000, 181), "bfloat16", 264, "362 of 384, rather than of 512"),
    ("softmax", (1, 60000, 219), "float32", 132, "657 of 768, rather than 219 of 256"),
    ("softmax", (1, 60000, 129), "float32", 132, "five times 129 of 768"),
    ("softmax", (1, 60000, 701), "float32", 132, "701 of 768"),
    ("softmax", (1, 60000, 801), "float32", 132, "801 of 1024"),
    ("softmax", (1, 60000, 801), "float64", None, "which are too many for doubles"),
    ("sum", (1, 60000, 449), "float32", None, "and for a sum: 449 of 768 are too few"),
    ("sum", (1, 163840, 512), "bfloat16", None, "wide sums of 16 bits, by tiles that blocks share"),
    ("logsumexp", (1, 60000, 801), "bfloat16", 132, "but not for logarithms of 16 bits"),
    ("logsumexp", (1, 60000, 801), "float32", None, "those of 32"),
    ("softmax", (1, 60000, 1101), "float32", None, "more packs than threads"),
    ("softmax", (4, 65536, 1024), "float32", 132, "tiles of whole lines, of many blocks"),
    ("log_softmax", (1, 20000, 2048), "float32", 132, "tiles of few blocks, of logarithms"),
    ("softmax", (1, 20000, 2048), "float32", None, "the same of none"),
    ("softmax", (1, 60000, 3072), "float32", 132, "as many columns as there may be"),
    ("softmax", (1, 60000, 3076), "float32", None, "more columns than that"),
    ("softmax_backward", (2, 50000, 1100), "float32", 132, "for wider ones of no whole lines"),
    ("softmax_backward", (4, 65536, 1024), "bfloat16", None, "a gradient of whole lines"),
    ("sum", (4, 65536, 1024), "float32", None, "a sum of so many"),
    ("softmax", (16, 20000, 1024), "float32", None, "tiles of whole lines, of few blocks"),
    ("softmax", (16, 2521712, 2), "bfloat16", None, "steps of four bytes, in shared memory"),
    ("softmax_backward", (188, 70630, 19), "bfloat16", 24, "for tiles of one block each, read twice"),
    ("softmax_backward", (16, 20000, 800), "float32", None, "but not of whole lines by packs"),
    ("logsumexp", (8, 200000, 12), "float32", 33, "read once: all at once"),
    ("logsumexp", (128, 100000, 12), "float32", None, "a block for each tile is enough"),
    ("logsumexp", (64, 100000, 12), "float32", 4, "which leaves the chip idle"),
    ("logsumexp", (64, 50176, 3), "float32", None, "shorter runs"),
    ("logsumexp", (1, 122197, 20), "float32", None, "little memory"),
    ("sum", (13, 121734, 56), "float32", 20, "a plain reduction"),
    ("amax", (675, 65410, 5), "float32", 1, "one block each"),
    ("sum", (64, 50176, 3), "float32", None, "shorter runs"),
    ("amax", (34, 67665, 28), "bfloat16", 7, "16 bits, much of it"),
    ("sum", (1, 81865, 240), "bfloat16", None, "16 bits, less"),
    ("sum", (1, 1000000, 7), "float64", None, "nobody measured that"),
    ("softmax_backward", (361, 177020, 3), "float32", 18, "two arrays"),
    ("softmax_backward", (64, 50176, 3), "bfloat16", 4, "of tiles in registers the longest with few columns"),
    ("softmax_backward", (152, 5661, 107), "float32", None, "but not wider ones"),
    ("log_softmax_backward", (2, 861971, 40), "bfloat16", 264, "a run is more than L2 holds"),
    ("logsumexp_backward", (3, 678102, 43), "float32", None, "which needs no sum"),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "blocks", "why"), RUNS, ids=[f"{r[0]}: {r[-1]}" for r in RUNS])
def test_runs_of_memory(op, shape, dtype, blocks, why):
    planned = partial(along_dim_1, op, shape, dtype)
    plan = planned()
    if blocks is None:
        assert "interleaved" not in plan.kernel, plan
        return
    assert "interleaved" in plan.kernel and plan.team == blocks, plan
    assert plan.algorithm == "strided_split" and plan == planned(algorithm="strided_split")
    assert "interleaved" not in planned(tuning=Tuning(interleaved=False)).kernel
    written = op in ELEMENTWISE  # as the input is: where both lie must be known
    assert ("interleaved" in planned(addresses=None).kernel) != written
    if op not in GRADIENTS:
        assert "interleaved" not in planned(load=Functor("onepass::cuda::Scaled", (0.5,))).kernel


# (operation, shape, dtype, team or None where tiles are better): the reason.
SLABS = [
    ("softmax", (474412, 48, 3), "float32", 32, "short, few neighbours"),
    ("softmax", (7000, 48, 3), "float32", 32, "not so many of them"),
    ("softmax", (6000, 48, 3), "float32", None, "too few of them"),
    ("softmax", (100000, 6, 3), "float32", None, "too few of very short ones"),
    ("softmax", (300000, 6, 3), "float32", 32, "enough of those"),
    ("softmax", (3000, 20, 20), "float32", None, "too few of more neighbours"),
    ("softmax", (4096, 8, 128), "bfloat16", None, "very short, an even number of more neighbours"),
    ("softmax", (20000, 32, 20), "bfloat16", 64, "longer ones"),
    ("softmax", (20000, 32, 66), "bfloat16", None, "an even number of many neighbours"),
    ("log_softmax", (20000, 32, 20), "float32", None, "logarithms, an even number of more neighbours"),
    ("softmax", (7133, 48, 49), "bfloat16", 128, "a block for as many as a warp has no room for"),
    ("softmax", (6000, 48, 150), "float32", None, "more neighbours than that"),
    ("softmax", (100000, 77, 4), "float32", None, "longer: tiles do well where packs go"),
    ("softmax", (5000, 350, 10), "float32", 256, "but not where packs are narrow, and a tile wider"),
    ("softmax", (2000, 350, 12), "float32", None, "packs that are whole accesses"),
    ("softmax", (3424, 100, 49), "bfloat16", 256, "an odd number, longer"),
    ("softmax", (1712, 200, 49), "float32", 512, "the largest team"),
    ("softmax", (1712, 200, 49), "bfloat16", None, "which does not pay for 16 bits"),
    ("log_softmax", (1712, 200, 49), "float32", None, "nor for logarithms"),
    ("softmax", (4000, 1500, 3), "float32", None, "longer than 32 lanes hold"),
    ("log_softmax", (100000, 20, 8), "bfloat16", 32, "logarithms, few neighbours"),
    ("log_softmax", (20000, 20, 25), "bfloat16", None, "logarithms of 16 bits, more of them"),
    ("log_softmax", (20000, 20, 25), "float32", 32, "logarithms of 32 bits"),
    ("softmax_backward", (300000, 20, 3), "bfloat16", 32, "a gradient"),
    ("softmax_backward", (20000, 20, 25), "bfloat16", None, "a gradient of 16 bits, more neighbours"),
    ("softmax_backward", (20000, 48, 16), "float32", None, "a gradient, more of them and whole accesses"),
    ("softmax_backward", (20000, 48, 18), "float32", 128, "a gradient, more of them and no whole accesses"),
    ("softmax_backward", (3424, 100, 49), "float32", 256, "a gradient, longer"),
    ("log_softmax_backward", (50000, 100, 3), "bfloat16", 32, "a gradient of 16 bits, longer"),
    ("log_softmax_backward", (20000, 300, 3), "bfloat16", None, "and longer still"),
    ("softmax_backward", (80000, 100, 4), "bfloat16", 32, "a gradient, neighbours of 8 bytes"),
    ("softmax_backward", (40000, 200, 2), "bfloat16", None, "and longer"),
    ("softmax_backward", (40000, 150, 2), "float32", None, "and longer, of 32 bits"),
    ("sum", (170000, 48, 2), "float32", 32, "read once"),
    ("sum", (170000, 48, 7), "float32", None, "read once, more neighbours"),
    ("sum", (170000, 48, 7), "bfloat16", 32, "more of 16 bits"),
    ("sum", (40000, 48, 17), "bfloat16", None, "even more of 16 bits"),
    ("sum", (400000, 20, 2), "float32", 32, "read once, short, few neighbours"),
    ("sum", (400000, 20, 5), "float32", None, "read once, short"),
    ("sum", (400000, 10, 2), "float32", None, "read once, shorter"),
    ("sum", (4000, 2000, 2), "float32", None, "read once, long"),
    ("sum", (170000, 48, 2), "float64", None, "doubles, read once"),
    ("logsumexp", (56000, 100, 3), "float32", 32, "logarithms of sums"),
    ("logsumexp", (56000, 100, 4), "float32", None, "of four neighbours"),
    ("logsumexp", (100000, 48, 3), "bfloat16", None, "of short ones"),
    ("logsumexp", (8000, 500, 3), "bfloat16", None, "of long ones"),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "team", "why"), SLABS, ids=[case[-1] for case in SLABS])
def test_slabs(op, shape, dtype, team, why):
    """Short rows whose elements take turns come together by way of shared memory; how many threads bring them."""
    planned = partial(along_dim_1, op, shape, dtype)
    plan = planned()
    assert (plan.algorithm == "warp_smem") == (team is not None), plan
    assert plan.reads == 1 or team is None
    assert dict(plan.shape).get("team") == team
    assert planned(tuning=Tuning(staged=True)).algorithm != "warp_smem", "tiles, when they are tuned"


def test_slabs_lie_apart_where_lanes_would_meet_at_banks():
    def apart(shape, addresses, dtype="float32", result="float32"):
        problem = make_problem("softmax", dtype, shape, (1,), result_dtype=result)
        plan = make_cuda_plan(problem, by_name("h200"), "warp_smem", addresses=addresses)
        return dict(plan.shape)["apart"] == "true"

    assert apart((1000, 32, 2), (0, 0))
    assert not apart((1000, 33, 3), (0, 0)), "396 bytes"
    assert not apart((1000, 32, 2), (4, 0)), "off the boundaries of accesses"
    assert not apart((1000, 32, 2), None), "nobody knows"
    assert not apart((1000, 6, 2), (0, 0), "float32", "bfloat16"), "results of 24 bytes"
    assert apart((1000, 8, 2), (0, 0), "float32", "bfloat16"), "results of 32 bytes"


@pytest.mark.parametrize(
    ("strides", "result_strides"),
    [((60, 3, 1), (3, 3000, 1)), ((61, 3, 1), None), ((60, 6, 2), None)],
    ids=["the result lies another way", "something between slabs", "every second element"],
)
def test_what_is_no_slab(strides, result_strides):
    shape = (1000, 20, 3)
    problem = make_problem("softmax", "float32", shape, (1,), strides=strides, result_strides=result_strides)
    with pytest.raises(ValueError, match="neither follow each other in memory nor take turns"):
        make_cuda_plan(problem, by_name("h200"), "warp_smem", addresses=(0, 0))


# Static shared memory that a block may have without asking.
FREE_SHARED = 48 << 10


@pytest.mark.parametrize("device", ["a100", "l4", "rtx4090", "h200", "b200", "rtx5090"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "mean", "logsumexp", "amax"])
def test_states_of_float64_fit_a_block(op, dtype, device):
    """Those of columns that are read once: one of 16 bytes, for logsumexp 24, for each warp and column, twice."""
    state = 24 if op == "logsumexp" else 16
    cut = 0
    for shape in ((28770, 4508), (401, 3092), (3000, 64), (512, 1000), (20000, 300), (100_000, 7)):
        problem = make_problem(op, dtype, shape, (0,), result_dtype="float64")
        plan = make_cuda_plan(problem, by_name(device))
        values = dict(plan.shape)
        if plan.algorithm == "strided" and "across" in values:
            cut += 1
            columns = int(values["across"]) * int(values["pack"])
            assert 2 * plan.threads // 32 * columns * state <= FREE_SHARED, (shape, plan)
    assert cut > 0


@pytest.mark.parametrize(
    ("op", "length", "threads"),
    [
        ("softmax", 600000, 512),
        ("softmax", 600001, 512),
        ("log_softmax", 600000, 512),
        ("log_softmax", 600001, 384),
        ("softmax_backward", 600001, 384),
        ("logsumexp", 600001, 512),
    ],
)
def test_threads_of_runs_that_begin_or_end_within_packs(op, length, threads):
    """Of 16 bits, where a block of 512 has no register left for it."""
    assert along_dim_1(op, (1, length, 43), "bfloat16").threads == threads


@pytest.mark.parametrize("device", ["a100", "l4", "b200", "rtx5090"])
def test_blocks_of_runs_on_other_gpus_are_those_that_spill_nowhere(device):
    for dtype, columns in (("bfloat16", 392), ("float32", 801), ("bfloat16", 801)):
        problem = make_problem("softmax", dtype, (2, 60000, columns), (1,))
        plan = make_cuda_plan(problem, by_name(device), addresses=(0,) * 4)
        assert plan.threads in (256, 384, 768) and ("interleaved" in plan.kernel) == (columns == 392), plan


@pytest.mark.parametrize("device", ["a100", "l4", "h200", "b200", "rtx5090"])
@pytest.mark.parametrize("op", ["log_softmax", "logsumexp"])
def test_states_of_runs_in_float64_fit_a_block(op, device):
    """One of 24 bytes for each element that its threads have in packs."""
    threads = set()
    shapes = ((1, 86670, 488), (3, 251651, 632), (2, 200_000, 44), (1, 466574, 552))
    for shape in shapes if device != "rtx5090" else shapes[:-1]:  # where those who would walk spill
        for dtype in ("float32", "bfloat16"):
            problem = make_problem(op, dtype, shape, (1,), result_dtype="float64")
            plan = make_cuda_plan(problem, by_name(device), tuning=Tuning(interleaved=True), addresses=(0,) * 4)
            assert plan.header == "onepass/cuda/interleaved.h"
            assert plan.threads * int(dict(plan.shape)["pack"]) * 24 <= FREE_SHARED, (shape, plan)
            threads.add(plan.threads)
    assert max(threads) == (768 if device != "rtx5090" else 384)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "float32"])
def test_a_row_is_read_twice_where_no_cut_of_it_may_wait(dtype):
    """On a T4 slices are cut finer than its shared memory is large; nobody had asked for them to wait."""
    t4 = dataclasses.replace(
        by_name("l4"), name="T4", architecture="75", multiprocessors=40, shared_per_block=64 << 10, max_threads=1024
    )
    algorithms, fell_back = set(), 0
    for length in range(100_001, 1_000_002, 12_000):
        problem = make_problem("softmax", dtype, (1, length), (1,))
        plan = make_cuda_plan(problem, t4)
        algorithms.add(plan.algorithm)
        fell_back += any("no slices of a row fit on the chip at once" in line for line in plan.why)
    assert algorithms == {"split", "stream"}
    assert (fell_back > 0) == (dtype != "float32")
    if dtype == "bfloat16":
        problem = make_problem("softmax", dtype, (1, 700_001), (1,))
        assert make_cuda_plan(problem, t4).algorithm == "stream"
        for algorithm, tuning in (("split", None), (None, Tuning(staged=True))):
            with pytest.raises(ValueError, match="does not fit"):
                make_cuda_plan(problem, t4, algorithm, tuning=tuning)


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "device"),
    [
        ("softmax_backward", (4201, 874), "float64", "h200"),
        ("log_softmax_backward", (26090, 2178), "float16", "rtx4090"),
    ],
)
def test_gradients_of_tiles_that_blocks_share_can_be_explained(op, shape, dtype, device):
    text = str(report.explain(op, shape, dtype, 0, device))
    assert "strided_split" in text and "1 on a multiprocessor at most" in text
