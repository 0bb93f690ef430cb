"""Kernels in which the blocks of a cluster share a row, run on a CPU by tests/cusim and, with -m gpu, on a GPU."""

import cuda_teams
import gpu_machine
import pytest
from cuda_cases import Layout, launch, rows_of
from cuda_values import (
    FUNCTORS,
    SPECIAL_ROWS,
    check_functors,
    check_results,
    check_special_values,
    with_specials,
)
from helpers import DTYPES, REDUCTIONS, SOFTMAX_FAMILY
from simulator import Simulator

from onepass.cuda.device import by_name
from onepass.cuda.kernel_plan import ONCE
from onepass.cuda.plan import Tuning, make_cuda_plan
from onepass.problem import make_problem

KINDS = {
    "registers": Tuning(threads=64, blocks=3, staged=False),
    "shared memory": Tuning(threads=64, blocks=3, staged=True),
    "registers, handed out": Tuning(threads=64, blocks=3, staged=False, handed=True),
    "shared memory, handed out": Tuning(threads=64, blocks=3, staged=True, handed=True),
}


def kinds_of(op):
    """A reduction waits nowhere."""
    if op in ("softmax", "log_softmax"):
        return KINDS
    return {
        "nothing": Tuning(threads=64, blocks=3),
        "nothing, handed out": Tuning(threads=64, blocks=3, handed=True),
    }


def cases(op, kind):
    """Every type on rows that start anywhere, every layout in two types."""
    found = []
    for dtype in DTYPES:
        layouts = {**rows_of(cuda_teams.LENGTH), **cuda_teams.SHORT}
        if dtype not in ("float32", "bfloat16"):
            layouts = {"bases differently past a boundary": Layout((5, 1000), past=(1, 3))}
        for why, layout in layouts.items():
            found.append(launch(why, op, layout, dtype, None, "cluster", tuning=kinds_of(op)[kind]))
    return found


ALL = {(op, kind): cases(op, kind) for op in (*SOFTMAX_FAMILY, *REDUCTIONS) for kind in kinds_of(op)}
# One warp, and more states than a warp has lanes.
SIZES = [
    launch(f"{blocks} blocks", op, Layout((3, 3001)), algorithm="cluster", tuning=tuning)
    for blocks, threads in ((2, 32), (5, 32), (8, 256), (16, 64), (16, 96))
    for op in ("softmax", "log_softmax", "sum")
    for tuning in [Tuning(threads=threads, blocks=blocks)]
]
# Blocks that take turns at the packs of rows off their boundaries, whose slices wait in several parts.
TURNS = [
    launch(f"{parts} parts", op, Layout((3, 3001)), dtype, None, "cluster", tuning=tuning)
    for parts in (1, 2, 3)
    for op, dtype in (("softmax", "float32"), ("log_softmax", "bfloat16"), ("softmax", "float64"))
    for tuning in [Tuning(threads=96, blocks=3, staged=True, handed=False, parts=parts)]
]
SPECIALS = [
    launch(f"{kind} {dtype}", op, layout, dtype, None, "cluster", values=with_specials, tuning=tuning)
    for op in ("softmax", "logsumexp", "amax")
    for kind, tuning in kinds_of(op).items()
    for dtype in ("float32", "float64")
    for layout in [Layout((SPECIAL_ROWS, 700))]
]
FUNCTOR_LAUNCHES = [
    launch(f"{op} {kind}", op, Layout((6, 600)), algorithm="cluster", tuning=tuning, sigma=1, **functors)
    for op in ("softmax", "logsumexp")
    for kind, tuning in kinds_of(op).items()
    for functors in FUNCTORS
]
MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="module", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    groups = (*ALL.values(), SIZES, TURNS, SPECIALS, FUNCTOR_LAUNCHES)
    machine = MACHINES[request.param]([case.plan for cases in groups for case in cases])
    yield machine
    machine.close()


@pytest.mark.parametrize("key", ALL, ids=" in ".join)
def test_every_layout(machine, key):
    """Of those that take rows: one cluster for all, and three."""
    for case in ALL[key]:
        assert (case.plan.algorithm, case.plan.cluster, case.plan.team, case.plan.reads) == ("cluster", 3, 0, 1)
        assert bool(case.plan.shared_bytes) == key[1].startswith("shared memory")
        assert case.plan.hands_out == key[1].endswith("handed out")
    check_results(machine, ALL[key], grids=(3, 9))


def test_any_number_of_blocks(machine):
    check_results(machine, SIZES, grids=(16, 48))


def test_slices_in_parts_off_the_boundaries_of_packs(machine):
    for case in TURNS:
        shape = dict(case.plan.shape)
        assert (shape["alignment"], case.plan.hands_out, case.plan.cluster) == ("peeled", False, 3)
        assert case.name == f"{shape['parts']} parts"
    check_results(machine, TURNS, grids=(9,))


@pytest.mark.parametrize("case", SPECIALS, ids=lambda case: f"{case.op} in {case.name}")
def test_special_values(machine, case):
    """NaN, infinities and numbers up to the largest, in slices of which some hold nothing but -inf."""
    check_special_values(machine, case)


def test_functors(machine):
    check_functors(machine, FUNCTOR_LAUNCHES)


def test_the_same_bits_under_every_schedule(machine):
    for key in (
        ("softmax", "registers"),
        ("softmax", "registers, handed out"),
        ("log_softmax", "shared memory"),
        ("log_softmax", "shared memory, handed out"),
        ("logsumexp", "nothing"),
        ("sum", "nothing"),
    ):
        case = ALL[key][1]
        results = {case.run(machine, grid=grid, seed=seed).tobytes() for grid in (3, 9) for seed in range(6)}
        assert len(results) == 1, case.plan.kernel


# ---- the plan ----


def plan(shape, device="h200", op="softmax", dtype="float32", **tuning):
    problem = make_problem(op, dtype, shape, (1,))
    return make_cuda_plan(problem, by_name(device), "cluster", addresses=(0, 0), tuning=Tuning(**tuning))


@pytest.mark.parametrize(
    ("shape", "device", "tuning", "reason"),
    [
        ((8, 65536), "a100", {}, "sm_80 has no clusters"),
        ((1 << 32, 8), "h200", {}, "clusters count rows, up to 4294901760, and there are 4294967296"),
        ((8, 65536), "rtx4090", {"blocks": 2}, "sm_89 has no clusters"),
        ((8, 65536), "h200", {"blocks": 17}, "2 to 16 blocks, not 17"),
        ((8, 65536), "rtx5090", {"blocks": 16}, "2 to 8 blocks, not 16"),
        ((8, 65536), "h200", {"blocks": 1}, "2 to 16 blocks, not 1"),
        ((8, 1 << 20), "h200", {}, "4194304 bytes does not fit the shared memory of a cluster of 16"),
        ((8, 1 << 18), "h200", {"blocks": 4}, "1048576 bytes does not fit the shared memory of a cluster of 4"),
        ((8, 1 << 18), "h200", {"blocks": 8, "staged": False}, "does not fit the registers of a cluster of 8"),
    ],
)
def test_refused_with_a_reason(shape, device, tuning, reason):
    with pytest.raises(ValueError, match=reason):
        plan(shape, device, **tuning)


ONE_BLOCK = "one block, or blocks that meet in memory"


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        # A row for each cluster, in registers: blocks as many as hold it, more of them where rows are few.
        ((4096, 16384), "float32", "4 of 128, registers"),
        ((4096, 20000), "float32", "4 of 128, registers"),
        ((4096, 24001), "float32", "8 of 128, registers"),
        ((128, 32728), "float32", "8 of 128, registers"),
        ((8192, 40000), "float32", "8 of 128, registers"),
        ((4096, 65536), "float32", "16 of 128, registers"),
        ((4096, 16384), "bfloat16", "2 of 128, registers"),
        ((16384, 32768), "bfloat16", "4 of 128, registers"),
        ((4096, 32769), "bfloat16", "4 of 128, registers"),
        ((4096, 40000), "bfloat16", "8 of 128, registers"),
        ((128, 16384), "bfloat16", "4 of 128, registers"),
        ((64, 32768), "bfloat16", "8 of 128, registers"),
        ((4096, 8200), "bfloat16", "2 of 128, registers"),
        ((512, 10000), "float32", "2 of 128, registers"),
        ((49152, 8192), "float32", "2 of 256, registers"),
        ((64, 65536), "bfloat16", "8 of 128, registers"),
        ((512, 49152), "bfloat16", "8 of 128, registers"),
        ((8, 128256), "bfloat16", "16 of 128, registers"),
        ((1, 32768), "float32", "16 of 128, registers"),
        ((64, 16384), "float32", "8 of 128, registers"),
        ((8, 8192), "float32", "8 of 128, registers"),
        ((8, 50257), "float32", "16 of 128, registers"),
        ((66, 50257), "float32", "16 of 128, registers"),
        ((8, 8192), "bfloat16", "8 of 128, registers"),
        ((1, 262144), "bfloat16", "16 of 256, registers"),
        ((1, 128256), "float32", "16 of 256, registers"),
        ((16, 128256), "float32", "16 of 256, registers"),
        ((100, 128256), "float32", "16 of 256, registers"),
        ((128, 131072), "float32", "16 of 256, registers"),
        ((66, 128257), "float32", "16 of 256, registers"),
        ((33, 90001), "float32", "16 of 256, registers"),
        ((33, 80001), "float32", "16 of 128, registers"),
        ((132, 40001), "float32", "8 of 128, registers"),
        ((264, 17001), "float32", "4 of 128, registers"),
        ((1200, 16385), "float32", "4 of 128, registers"),
        # Or in shared memory.
        ((4096, 50256), "bfloat16", "8 of 128, shared memory"),
        ((32768, 65536), "bfloat16", "8 of 128, shared memory"),
        ((4096, 80000), "bfloat16", "8 of 128, shared memory"),
        ((4096, 128256), "bfloat16", "16 of 128, shared memory"),
        ((64, 128256), "bfloat16", "16 of 128, shared memory"),
        ((8192, 262144), "bfloat16", "16 of 128, shared memory"),
        ((4096, 50256), "float32", "8 of 128, shared memory"),
        ((4096, 48000), "float32", "8 of 128, shared memory"),
        ((4096, 100000), "float32", "16 of 128, shared memory"),
        ((4096, 150000), "float32", "16 of 256, shared memory"),
        ((4096, 100001), "bfloat16", "8 of 128, shared memory"),
        ((4096, 128257), "bfloat16", "8 of 128, shared memory"),
        # Off the boundaries of packs beside their edges.
        ((67, 50257), "float32", "8 of 128, shared memory"),
        ((4096, 50257), "float32", "8 of 128, shared memory"),
        ((34, 80001), "float32", "16 of 128, shared memory"),
        ((34, 90001), "float32", "16 of 128, shared memory"),
        ((133, 40001), "float32", "8 of 128, shared memory"),
        ((265, 17001), "float32", "4 of 128, shared memory"),
        ((67, 128257), "float32", "16 of 128, shared memory"),
        ((34, 151643), "float32", "16 of 256, shared memory"),
        ((300, 212991), "float32", "16 of 256, shared memory"),
        ((4096, 40001), "bfloat16", "4 of 128, shared memory"),
        ((4096, 50257), "bfloat16", "4 of 128, shared memory"),
        ((512, 50257), "bfloat16", "4 of 128, shared memory"),
        ((67, 212991), "bfloat16", "16 of 128, shared memory"),
        # Rows that are handed out.
        ((33, 151643), "float32", "16 of 256, handed out"),
        ((300, 212997), "float32", "16 of 256, handed out"),
        ((4096, 220000), "float32", "16 of 256, handed out"),
        ((128, 262144), "float32", "16 of 256, handed out"),
        ((66, 212991), "bfloat16", "16 of 128, handed out"),
        ((4096, 213001), "bfloat16", "16 of 128, handed out"),
        ((4096, 500000), "bfloat16", "16 of 256, handed out"),
        # Shorter rows, longer ones, rows off the boundaries of packs, rows that wait as float64.
        ((64, 8192), "float32", ONE_BLOCK),
        ((64, 7168), "float32", ONE_BLOCK),
        ((4096, 8192), "float32", ONE_BLOCK),
        ((64, 8192), "bfloat16", ONE_BLOCK),
        ((16, 262144), "bfloat16", ONE_BLOCK),
        ((128, 524288), "float32", ONE_BLOCK),
        ((4096, 600000), "bfloat16", ONE_BLOCK),
        ((8, 32768), "float64", ONE_BLOCK),
        ((4096, 32768), "float64", ONE_BLOCK),
    ],
)
def test_chosen_where_it_was_measured_to_pay(shape, dtype, expected):
    problem = make_problem("softmax", dtype, shape, (1,))
    chosen = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
    waits = "handed out" if chosen.hands_out else "shared memory" if chosen.shared_bytes else "registers"
    clusters = f"{chosen.cluster} of {chosen.threads}, {waits}"
    assert (clusters if chosen.cluster > 1 else ONE_BLOCK) == expected
    assert make_cuda_plan(problem, by_name("a100"), addresses=(0, 0)).cluster == 1


def test_log_softmax_of_16_bits_holds_less():
    """4096x40000: its exponentials are computed twice."""
    for op, blocks, in_shared_memory in (("softmax", 8, False), ("log_softmax", 4, True)):
        problem = make_problem(op, "bfloat16", (4096, 40000), (1,))
        chosen = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
        assert (chosen.cluster, chosen.shared_bytes > 0, chosen.hands_out) == (blocks, in_shared_memory, False)


def test_log_softmax_of_16_bits_off_boundaries():
    """Long rows are handed out, and shorter ones wait in shared memory sooner than softmax's."""
    for op, shape, blocks, in_shared_memory, handed in (
        ("log_softmax", (300, 200001), 16, True, True),
        ("softmax", (300, 200001), 16, True, False),
        ("log_softmax", (265, 33001), 4, True, False),
        ("log_softmax", (264, 33001), 8, False, False),
        ("softmax", (265, 33001), 8, False, False),
    ):
        chosen = make_cuda_plan(make_problem(op, "bfloat16", shape, (1,)), by_name("h200"), addresses=(0, 0))
        assert (chosen.cluster, chosen.shared_bytes > 0, chosen.hands_out) == (blocks, in_shared_memory, handed)


@pytest.mark.parametrize(
    ("op", "length", "blocks", "parts"),
    [
        ("softmax", 49152 - 1, 4, 2),
        ("softmax", 49152 + 1, 4, 3),
        ("log_softmax", 49152 + 1, 4, 2),
        ("softmax", 114688 - 1, 8, 1),
        ("log_softmax", 114688 + 1, 8, 2),
        ("softmax", 151643, 16, 2),
    ],
)
def test_parts_of_16_bit_slices_off_boundaries(op, length, blocks, parts):
    """What spills in fewer has more; and on sm_100, where it spills in any, rows are handed out or have one part."""
    problem = make_problem(op, "bfloat16", (4096, length), (1,))
    chosen = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
    assert (chosen.cluster, dict(chosen.shape)["parts"], chosen.hands_out) == (blocks, parts, False)
    elsewhere = make_cuda_plan(problem, by_name("b200"), addresses=(0, 0))
    assert elsewhere.hands_out or dict(elsewhere.shape)["parts"] == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "blocks", "handed", "waits"),
    [
        ("float32", (4096, 50257), 16, False, False),  # in registers, however many rows
        ("float32", (300, 90001), 16, False, False),
        ("float32", (300, 50257), 16, False, False),
        ("bfloat16", (4096, 10001), 2, False, True),  # 16 bits in shared memory of the smallest clusters with room
        ("bfloat16", (4096, 20480), 2, False, True),
        ("bfloat16", (4096, 20481), 4, False, True),
        ("float16", (4096, 50257), 8, False, True),
        ("bfloat16", (200, 128257), 16, False, True),
        ("bfloat16", (132, 50257), 4, True, True),  # too few for that
    ],
)
def test_input_and_result_that_start_differently(dtype, shape, blocks, handed, waits):
    problem = make_problem("softmax", dtype, shape, (1,))
    chosen = make_cuda_plan(problem, by_name("h200"), addresses=(0, DTYPES[dtype].itemsize))
    assert dict(chosen.shape)["alignment"] == "apart"
    assert (chosen.cluster, chosen.hands_out, chosen.shared_bytes > 0) == (blocks, handed, waits)


@pytest.mark.parametrize("device", ["h200", "b200", "rtx5090"])
def test_a_cluster_fits_the_device(device):
    described = by_name(device)
    for length in (1000, 20000, 65536, 200_000, 400_000):
        for op in ("softmax", "logsumexp", "sum"):
            for threads in (None, 128, 1024):
                try:
                    cluster = plan((100, length), device, op, threads=threads)
                except ValueError:
                    room = described.most_clustered * (described.shared_per_block - (24 << 10))
                    assert op == "softmax" and length * 4 > room
                    continue
                assert 2 <= cluster.cluster <= described.most_clustered
                assert cluster.units == 100 * cluster.cluster
                assert cluster.waves == (1 if cluster.hands_out else ONCE)
                resident = cluster.resident(described)
                assert resident * cluster.threads <= described.max_threads
                assert resident * (cluster.shared_bytes + 1024) <= described.shared_per_multiprocessor
                grid = cluster.blocks(resident, described.multiprocessors)
                if cluster.hands_out:
                    assert grid % cluster.cluster == 0 and 0 < grid <= resident * described.multiprocessors
                else:
                    assert grid == cluster.units


def test_a_plan_says_what_it_is():
    assert "cluster: 16 blocks of 256 per row, 8 x packs of 4 each" in str(plan((128, 131072)))
    assert any("shared by a cluster of 16 blocks" in why for why in plan((128, 131072)).why)
