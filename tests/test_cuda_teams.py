"""Kernels in which several blocks share a row, and what the blocks tell each other, run on a CPU by tests/cusim and,
with -m gpu, on a GPU."""

import cuda_teams
import gpu_machine
import numpy as np
import pytest
from cuda_cases import Layout, launch
from cuda_values import (
    FUNCTORS,
    SPECIAL_ROWS,
    STEPS,
    check_functors,
    check_results,
    check_special_values,
    in_steps,
    limit,
    with_specials,
)
from helpers import FLOORS
from simulator import Simulator, SimulatorError
from ulp import max_ulp

from onepass.cuda.device import by_name
from onepass.cuda.kernel_plan import TOTAL_SLOTS, Team
from onepass.cuda.plan import Tuning, make_cuda_plan
from onepass.problem import make_problem

ALL = {key: cuda_teams.cases(*key) for key in cuda_teams.all_kinds()}
MANY = cuda_teams.many_blocks()
FEW_COLUMNS = cuda_teams.few_columns()
APART = {key: cuda_teams.strided_cases(*key) for key in cuda_teams.strided_kinds()}
APART_SPECIALS = {
    key: [
        launch(
            f"{key} {dtype}",
            key[0],
            Layout((300, SPECIAL_ROWS), view=lambda x: x.T),
            dtype,
            None,
            "strided_split",
            values=lambda shape: with_specials(shape[::-1]).T,
            tuning=cuda_teams.strided_tuning(key[1]),
        )
        for dtype in ("float32", "bfloat16")
    ]
    for key in APART
    if key[0] not in ("sum", "mean")
}
SPECIALS = {
    key: [
        launch(dtype, key[0], Layout((SPECIAL_ROWS, 700)), dtype, None, algorithm, values=with_specials, tuning=tuning)
        for dtype in ("float32", "bfloat16", "float64")
    ]
    for key in ALL
    for algorithm, tuning in [cuda_teams.kinds_of(key[0])[key[1]]]
    if key[0] not in ("sum", "mean")
}
FAR_APART = [
    launch(f"{key} {dtype}", key[0], layout(view), dtype, None, algorithm, values=values, tuning=tuning)
    for dtype in ("float32", "bfloat16", "float64")
    for keys, layout, values, view in (
        (ALL, lambda view: Layout((len(STEPS), 700), view=view), in_steps, None),
        (APART, lambda view: Layout((300, len(STEPS)), view=view), lambda s: in_steps(s[::-1]).T, lambda x: x.T),
    )
    for key in keys
    for algorithm, tuning in [
        cuda_teams.kinds_of(key[0])[key[1]] if keys is ALL else ("strided_split", cuda_teams.strided_tuning(key[1]))
    ]
    if key[0] in ("softmax", "log_softmax")
]
FUNCTOR_LAUNCHES = [
    launch(f"{op} {kind}", op, Layout((6, 600)), algorithm=algorithm, tuning=tuning, sigma=1, **functors)
    for op in ("softmax", "log_softmax", "logsumexp")
    for kind, (algorithm, tuning) in cuda_teams.kinds_of(op).items()
    for functors in FUNCTORS
] + [
    launch(
        f"{op} apart",
        op,
        Layout((300, 6), view=lambda x: x.T),
        algorithm="strided_split",
        tuning=cuda_teams.strided_tuning(kind),
        sigma=1,
        **functors,
    )
    for op, kind in APART
    if op in ("softmax", "log_softmax", "logsumexp")
    for functors in FUNCTORS
]
TWO_SIZES = [
    launch("small", "softmax", Layout((4, 700)), algorithm="split", tuning=Tuning(threads=64, blocks=2)),
    launch("exact", "log_softmax", Layout((3, 900)), algorithm="split", tuning=Tuning(threads=64, blocks=4)),
    launch("wide", "logsumexp", Layout((2, 900)), "float64", algorithm="split", tuning=Tuning(threads=64, blocks=5)),
]
# More slices than blocks, and as many; by one block that reads the states of all, and by each.
CLAIMED = [
    launch("claimed", "softmax", Layout((4, 700)), algorithm="split", tuning=Tuning(threads=64, blocks=3, handed=True)),
    launch(
        "by one", "log_softmax", Layout((3, 3000)), algorithm="split", tuning=Tuning(threads=64, blocks=18, handed=True)
    ),
    launch("at once", "softmax", Layout((2, 900)), algorithm="split", tuning=Tuning(threads=64, blocks=5, handed=True)),
]
# More rows than there are clusters: they are handed out.
HANDED = [
    launch("clusters", op, Layout((11, 700)), dtype, algorithm="cluster", tuning=tuning)
    for op, dtype, blocks in (("softmax", "float32", 3), ("logsumexp", "bfloat16", 5), ("sum", "float32", 2))
    for tuning in [Tuning(threads=64, blocks=blocks, handed=True)]
]
MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="module", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    groups = (*ALL.values(), *APART.values(), MANY, *SPECIALS.values(), *APART_SPECIALS.values(), FUNCTOR_LAUNCHES)
    groups = (*groups, TWO_SIZES, FAR_APART, FEW_COLUMNS)
    machine = MACHINES[request.param]([case.plan for cases in groups for case in cases])
    yield machine
    machine.close()


@pytest.mark.parametrize("key", ALL, ids=" in ".join)
def test_every_layout(machine, key):
    """One team that takes every row, and three."""
    for case in ALL[key]:
        assert case.plan.team == 3 and case.plan.reads == (2 if case.plan.algorithm == "stream" else 1)
    check_results(machine, ALL[key], grids=(3, 9))


def test_any_number_of_blocks(machine):
    check_results(machine, MANY, grids=(70, 140))


def test_few_long_columns(machine):
    for case in FEW_COLUMNS:
        assert case.plan.cluster == 16 and dict(case.plan.shape)["pack"] == 1
    check_results(machine, FEW_COLUMNS, grids=(16, 48))


@pytest.mark.parametrize("key", APART, ids=str)
def test_every_strided_layout(machine, key):
    for case in APART[key]:
        assert case.plan.algorithm == "strided_split" and case.plan.shared_by == 3
        assert case.plan.cluster == (3 if key[1] == "cluster" else 1)
        assert case.plan.reads == (2 if key in (("softmax", False), ("log_softmax", False)) else 1)
    check_results(machine, APART[key], grids=(3, 9))


@pytest.mark.parametrize("cases", [*SPECIALS.values(), *APART_SPECIALS.values()], ids=lambda c: c[0].plan.kernel[15:60])
def test_special_values(machine, cases):
    """NaN, infinities and numbers up to the largest, in slices of which some hold nothing but -inf."""
    for case in cases:
        check_special_values(machine, case)


def test_parts_of_a_row_that_are_far_apart(machine):
    check_results(machine, FAR_APART, grids=(9,))


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 7, 11, 22, 44, 66, 88, 97, 127, 132, 133, 256, 264, 528, 2112])
def test_a_team_divides_by_a_multiplication(blocks):
    """As exchange.h's Team does, for every grid that a GPU has at work at once."""
    word, _, _ = Team(blocks, 1, 0).words
    assert word & 0xFFFFFFFF == blocks and -(2**63) <= word < 2**63
    grid = np.arange(1 << 16, dtype=np.uint64)
    inverse = np.uint64(word >> 32 & 0xFFFFFFFF)
    counts = grid if blocks == 1 else grid * inverse >> np.uint64(32)
    assert np.array_equal(counts, grid // np.uint64(blocks))


def test_functors(machine):
    check_functors(machine, FUNCTOR_LAUNCHES)


def test_the_same_bits_under_every_schedule(machine):
    keys = [(op, kind) for op in ("softmax", "log_softmax") for kind in cuda_teams.KINDS]
    for key in (*keys, ("sum", "nothing")):
        case = ALL[key][1]
        results = {case.run(machine, grid=grid, seed=seed).tobytes() for grid in (3, 9) for seed in range(6)}
        assert len(results) == 1, case.plan.kernel


def test_probabilities_sum_to_one(machine):
    for kind in cuda_teams.KINDS:
        for case in ALL["softmax", kind]:
            if case.y_dtype == np.float32:
                sums = case.run(machine, grid=6).astype(np.float64).sum(axis=-1)
                assert np.abs(sums - 1).max() < 4e-7, (case.name, sums)


@pytest.fixture(scope="module")
def simulated():
    machine = Simulator([case.plan for case in (*TWO_SIZES, *HANDED, *CLAIMED)])
    yield machine
    machine.close()


def run_in_turn(machine, cases, scratch, grid=20):
    """Launches that share scratch memory, one after the other; what is left in it."""
    for i, case in enumerate(cases):
        blocks = case.plan.blocks(1, grid)
        arrays = cuda_teams.with_scratch(case, scratch, grid)
        _, y, scratch = machine.launch(case.plan, arrays, grid=blocks, seed=i)
        assert max_ulp(y, case.reference(), floor=FLOORS[case.op]) <= limit(case), (i, case.name)
    return scratch


def test_launches_of_any_size_share_scratch_memory(simulated):
    """What one leaves there, the next does not take for its own."""
    words = cuda_teams.scratch_words([case.plan for case in TWO_SIZES], 20)
    left = run_in_turn(simulated, TWO_SIZES * 4, np.zeros(words, np.uint32))
    sequence, leaving, most = left[:3]
    assert leaving == 0  # as the next launch wants it
    assert sequence == 12  # a row for each team: so many exchanges
    assert 0 < most * 4 <= words


def test_the_counter_of_clusters_is_in_it_and_left_at_zero(simulated):
    cases = [case for pair in zip(HANDED, TWO_SIZES, strict=True) for case in pair]
    words = cuda_teams.scratch_words([case.plan for case in cases], 20)
    left = run_in_turn(simulated, cases * 4, np.zeros(words, np.uint32))
    sequence, leaving, _, handed = left[:4]
    assert (sequence, leaving, handed) == (12, 0, 0)  # clusters have no part in the sequence
    for case in HANDED:
        assert 1 < case.plan.blocks(1, 20) // case.plan.cluster < 11


def test_slices_are_claimed_from_the_counter_and_it_is_left_at_zero(simulated):
    cases = [case for pair in zip(CLAIMED, TWO_SIZES, strict=True) for case in pair]
    words = cuda_teams.scratch_words([case.plan for case in cases], 10)
    left = run_in_turn(simulated, cases * 4, np.zeros(words, np.uint32), grid=10)
    sequence, leaving, most, handed = left[:4]
    assert (leaving, handed) == (0, 0)
    exchanges = [-(-case.plan.units // max(1, 10 // case.plan.team)) for case in TWO_SIZES]
    assert sequence == 4 * (sum(exchanges) + len(CLAIMED))  # one number for all slices of a launch
    assert most == (18 + TOTAL_SLOTS) * 3 * 2  # pairs of words of log_softmax's states, and of its rows' totals
    assert [case.plan.blocks(1, 10) < case.plan.units * case.plan.team for case in CLAIMED] == [True, True, False]
    assert ["each_reads = true" in case.plan.kernel for case in CLAIMED] == [True, False, True]


def test_slices_of_a_row_without_a_block_for_each_are_reported(simulated):
    case = CLAIMED[1]
    with pytest.raises(SimulatorError, match="deadlock"):
        simulated.launch(case.plan, case.arrays(), grid=case.plan.team - 1, seed=0)


def test_the_counter_starts_again_before_old_numbers_could_match(simulated):
    words = cuda_teams.scratch_words([case.plan for case in TWO_SIZES], 20)
    scratch = np.zeros(words, np.uint32)
    scratch[0], scratch[2] = 0xEFFFFFFE, (words - 32) // 4
    scratch[32:] = np.repeat(np.arange(2, (words - 32) // 4 + 2), 4)  # old numbers that come again
    left = run_in_turn(simulated, TWO_SIZES[:1], scratch)
    assert left[0] == 0xEFFFFFFF and (left[32:] != 0).any()
    left = run_in_turn(simulated, TWO_SIZES[:1], left)
    assert left[0] == 0 and not left[32:].any()
    run_in_turn(simulated, TWO_SIZES * 2, left)


def test_a_team_without_one_of_its_blocks_is_reported(simulated):
    """The simulator sees that the others wait for ever."""
    case = TWO_SIZES[1]
    with pytest.raises(SimulatorError, match="deadlock"):
        simulated.launch(case.plan, case.arrays(), grid=2 * case.plan.team - 1, seed=0)


def test_slices_that_fit_nowhere_are_refused():
    with pytest.raises(ValueError, match="does not fit the shared memory"):
        launch("", "softmax", Layout((1, 1 << 16)), algorithm="split", tuning=Tuning(blocks=1, staged=True))
    with pytest.raises(ValueError, match="does not fit the registers"):
        launch("", "softmax", Layout((1, 1 << 16)), algorithm="split", tuning=Tuning(blocks=2, staged=False))
    with pytest.raises(ValueError, match="does not fit the slices of as many blocks as are at work"):
        launch("", "softmax", Layout((1, 1 << 26)), algorithm="split", tuning=Tuning(handed=True))
    with pytest.raises(ValueError, match="does not fit the slices"):
        launch("", "softmax", Layout((1, 1 << 16)), algorithm="split", tuning=Tuning(handed=True, blocks=529))
    with pytest.raises(ValueError, match="blocks claim too many slices: 3221225472"):
        many, tuning = make_problem("softmax", "float32", (1 << 30, 700), (1,)), Tuning(handed=True, blocks=3)
        make_cuda_plan(many, by_name("h200"), "split", addresses=(0, 0), tuning=tuning)
    with pytest.raises(ValueError, match="12 slices are no whole number of 8 that take turns"):
        tuning = Tuning(handed=True, blocks=12, spread=8)
        launch("", "softmax", Layout((1, 1 << 16)), algorithm="split", tuning=tuning)
    with pytest.raises(ValueError, match="blocks are at work at once"):
        launch("", "sum", Layout((1, 1 << 16)), algorithm="split", tuning=Tuning(blocks=4000))


@pytest.mark.parametrize(
    ("op", "device", "tuning", "reason"),
    [
        ("softmax", "a100", {}, "sm_80 has no clusters"),
        ("sum", "h200", {}, "nothing waits in registers: a reduction reads its input once"),
        ("softmax", "h200", {"blocks": 17}, "2 to 16 blocks, not 17"),
        ("softmax", "h200", {"blocks": 2}, "registers of the blocks do not hold 70000 steps"),
        ("softmax", "h200", {}, "registers of the blocks do not hold 70000 steps"),
        ("softmax", "h200", {"pack": 8}, "packs of 8 rows do not all start on their boundary, packs of 4 do"),
    ],
)
def test_clusters_that_cannot_share_a_tile_are_refused(op, device, tuning, reason):
    problem = make_problem(op, "float32", (70000, 64), (0,))
    told = Tuning(clustered=True, **tuning)
    with pytest.raises(ValueError, match=reason):
        make_cuda_plan(problem, by_name(device), "strided_split", addresses=(0, 0), tuning=told)


# Shape, dim, type -> rows of a tile, blocks that share it and threads of each; None: nobody shares it in registers.
SHARED_IN_REGISTERS = {
    ((256, 4096), 0, "float32"): None,  # one block holds them
    ((384, 4096), 0, "float32"): (32, 2, 128),
    ((64, 1000, 196), 1, "float32"): (64, 8, 256),  # steps that are not whole sectors
    ((64, 1000, 200), 1, "float32"): (32, 4, 256),
    ((32, 2000, 300), 1, "float32"): (64, 8, 512),
    ((128, 500, 98), 1, "float32"): (64, 4, 256),
    ((64, 1000, 196), 1, "bfloat16"): (64, 4, 256),
    ((64, 1000, 197), 1, "bfloat16"): (32, 4, 256),
    ((2048, 4096), 0, "float32"): (32, 8, 256),
    ((4096, 4096), 0, "float32"): (32, 8, 512),
    ((8192, 8192), 0, "float32"): (32, 16, 512),
    ((16384, 1024), 0, "float32"): (16, 16, 256),
    ((512, 4096), 0, "bfloat16"): (32, 2, 128),
    ((4096, 4096), 0, "bfloat16"): (32, 8, 256),
    ((8192, 8192), 0, "bfloat16"): (32, 8, 512),
    ((32768, 512), 0, "bfloat16"): (16, 16, 512),
    ((40000, 512), 0, "float32"): None,  # too many steps for the largest cluster
    ((1024, 64), 0, "float32"): (16, 8, 128),  # few tiles: narrower ones
    ((8192, 16), 0, "float16"): (4, 16, 128),
    ((4096, 4096), 0, "float64"): None,  # not measured
    ((2, 128256, 16), 1, "float32"): (16, 65, 512),  # more blocks than a cluster has
    ((65536, 16), 0, "bfloat16"): (8, 64, 256),
}


@pytest.mark.parametrize("problem", SHARED_IN_REGISTERS, ids=str)
def test_the_planner_has_tiles_shared_in_registers_as_they_were_measured(problem):
    shape, dim, dtype = problem
    problem, expected = make_problem("softmax", dtype, shape, (dim,)), SHARED_IN_REGISTERS[problem]
    plan = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
    if expected is None:
        assert "strided_split_held" not in plan.kernel
    else:
        assert plan.algorithm == "strided_split"
        assert "strided_split_held" in plan.kernel
        assert (plan.units_per_block, plan.shared_by, plan.threads) == expected
        assert plan.reads == 1
        assert plan.shared_bytes == 0
        # All at work at once, or a cluster each.
        teams = -(-problem.rows // plan.units_per_block)
        assert plan.cluster > 1 or teams * plan.team <= by_name("h200").multiprocessors
    assert make_cuda_plan(problem, by_name("a100"), addresses=(0, 0)).cluster == 1


@pytest.mark.parametrize(("inner", "columns"), [(196, 32), (198, 64), (200, 32)])
def test_tiles_of_logarithms_are_wide_where_steps_are_not_whole_halves_of_sectors(inner, columns):
    problem = make_problem("log_softmax", "float32", (64, 1000, inner), (1,))
    plan = make_cuda_plan(problem, by_name("h200"), addresses=(0, 0))
    assert (plan.algorithm, plan.units_per_block, plan.reads) == ("strided_split", columns, 1)
    assert "strided_split_held" in plan.kernel


# Shape, type, operation -> packs of a thread in registers and in shared memory; None: slices are not claimed.
CLAIMED_AS_MEASURED = {
    ((128, 2097152), "float32", "softmax"): (8, 8),
    ((128, 4194304), "float32", "log_softmax"): (8, 8),
    ((512, 524288), "float32", "softmax"): (8, 8),
    ((64, 524288), "float32", "softmax"): (8, 8),
    ((8, 4194304), "float32", "softmax"): (8, 8),
    ((4, 4194304), "float32", "softmax"): (8, 8),  # the longest rows
    ((64, 524289), "float32", "softmax"): (8, 8),
    ((128, 1000003), "float32", "softmax"): (8, 8),
    ((16, 1048577), "float32", "softmax"): (8, 8),  # off the boundaries of packs any that are not all on the chip
    ((16, 1048576), "float32", "softmax"): None,
    ((1, 4194304), "float32", "softmax"): None,  # all on the chip at once
    ((128, 262144), "float32", "softmax"): None,  # for clusters
    ((32, 8388608), "float32", "softmax"): (8, 8),  # two slices for each thread of the block that has the last
    ((4, 8388608), "float32", "softmax"): None,  # and few rows
    ((32, 16777216), "float32", "softmax"): None,  # more than there is room for
    ((128, 2097152), "bfloat16", "softmax"): (4, 12),
    ((512, 1048576), "float16", "softmax"): (4, 12),
    ((64, 1048576), "bfloat16", "softmax"): None,
    ((64, 700001), "bfloat16", "softmax"): (4, 12),
    ((128, 2097152), "bfloat16", "log_softmax"): None,
    ((32, 8388608), "bfloat16", "log_softmax"): (4, 12),
    ((512, 524288), "bfloat16", "softmax"): None,
    ((128, 1000003), "float64", "softmax"): None,
    ((128, 2097152), "float32", "logsumexp"): None,  # read once anyway
}


@pytest.mark.parametrize("problem", CLAIMED_AS_MEASURED, ids=str)
def test_slices_are_claimed_where_it_was_measured_to_pay(problem):
    shape, dtype, op = problem
    device, expected = by_name("h200"), CLAIMED_AS_MEASURED[problem]
    plan = make_cuda_plan(make_problem(op, dtype, shape, (1,)), device, addresses=(0, 0))
    assert plan.claims == (expected is not None)
    if expected is None:
        return
    held, waiting = expected
    words = dict(plan.shape)
    assert (plan.algorithm, words["packs"], words["waiting"], plan.reads) == ("split", held, waiting, 1)
    pack, size = words["pack"], 2 if dtype != "float32" else 4
    assert plan.shared_bytes == waiting * plan.threads * pack * size
    # Slices hold the row, and their blocks are at work at once.
    assert plan.team * plan.threads * (held + waiting) * pack >= shape[1] - 2 * 128 // size
    assert plan.team <= plan.resident(device) * device.multiprocessors
    assert words["slots"] == -(-plan.team // plan.threads)
    assert plan.blocks(plan.resident(device), device.multiprocessors) == plan.resident(device) * device.multiprocessors
    assert plan.slots(1) == plan.units * (plan.team + TOTAL_SLOTS)
    assert f"{plan.team} blocks of 256 per row" in str(plan) and "in registers and in" in str(plan)
    assert any("slices that blocks claim as they are ready" in why for why in plan.why)


# Few rows that are read once: shape, type, operation -> algorithm, blocks of a row and their threads.
REDUCED_AS_MEASURED = {
    ((1, 16384), "bfloat16", "logsumexp"): ("cluster", 8, 256),
    ((1, 65536), "float32", "logsumexp"): ("cluster", 16, 256),
    ((1, 128256), "float32", "logsumexp"): ("cluster", 16, 256),
    ((1, 262144), "float32", "logsumexp"): ("split", 128, 512),  # too much to do for so few threads
    ((1, 128256), "float32", "sum"): ("cluster", 16, 512),
    ((8, 128256), "bfloat16", "logsumexp"): ("cluster", 16, 256),
    ((32, 128256), "bfloat16", "amax"): ("cluster", 16, 128),
    ((64, 50257), "bfloat16", "logsumexp"): ("cluster", 8, 128),
    ((1, 1048576), "float32", "logsumexp"): ("split", 128, 512),
    ((1, 4194304), "float32", "sum"): ("split", 128, 512),
    ((8, 128256), "float32", "logsumexp"): ("cluster", 16, 256),
    ((8, 1048576), "bfloat16", "mean"): ("cluster", 16, 512),
    ((8, 2097152), "bfloat16", "mean"): ("split", 32, 512),
    ((1, 16777216), "float32", "logsumexp"): ("split", 128, 1024),
    ((32, 1048576), "float32", "logsumexp"): ("split", 4, 1024),
    ((3, 16777216), "float32", "sum"): ("split", 44, 1024),  # 32 would leave a quarter of the GPU idle
}


@pytest.mark.parametrize("problem", REDUCED_AS_MEASURED, ids=str)
def test_few_rows_are_reduced_as_measured(problem):
    shape, dtype, op = problem
    plan = make_cuda_plan(make_problem(op, dtype, shape, (1,)), by_name("h200"), addresses=(0, 0))
    blocks = plan.cluster if plan.algorithm == "cluster" else plan.team
    assert (plan.algorithm, blocks, plan.threads) == REDUCED_AS_MEASURED[problem]
    assert plan.reads == 1 and plan.shared_bytes == 0


def test_few_rows_are_reduced_without_clusters_where_there_are_none():
    problem = make_problem("logsumexp", "bfloat16", (1, 128256), (1,))
    plan = make_cuda_plan(problem, by_name("a100"), addresses=(0, 0))
    assert (plan.algorithm, plan.threads, plan.team) == ("split", 512, 32)


def test_claims_are_not_for_devices_or_tunings_that_say_otherwise():
    problem = make_problem("softmax", "float32", (128, 2097152), (1,))
    for tuning in (Tuning(handed=False), Tuning(threads=512)):
        assert not make_cuda_plan(problem, by_name("h200"), "split", addresses=(0, 0), tuning=tuning).claims
    for device in ("a100", "b200", "l4"):
        plan = make_cuda_plan(problem, by_name(device), "split", addresses=(0, 0), tuning=Tuning(handed=True))
        assert plan.claims and plan.shared_bytes + 2048 <= by_name(device).shared_per_block
        assert plan.resident(by_name(device)) * plan.threads <= by_name(device).max_threads
