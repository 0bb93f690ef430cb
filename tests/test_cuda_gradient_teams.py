"""Kernels of gradients in which several blocks share a row, run on a CPU by tests/cusim and, with -m gpu, on a GPU."""

from dataclasses import replace

import gpu_machine
import pytest
from cuda_cases import few_blocks
from cuda_gradient_cases import STRIDED, Layout, Place, launch, rows_of
from cuda_gradient_values import LIMITS, SPECIAL_ROWS, with_specials
from simulator import Simulator

from onepass.cuda.plan import Tuning

# What a slice or a tile waits in, as (algorithm, tuning): few threads, so that every block has packs, edges and a rest.
KINDS = {
    "registers": ("split", Tuning(threads=64, blocks=3, staged=False)),
    "shared memory": ("split", Tuning(threads=64, blocks=3, staged=True)),
    "registers of a cluster": ("cluster", Tuning(threads=64, blocks=3, staged=False, handed=False)),
    "registers, handed out": ("cluster", Tuning(threads=64, blocks=3, staged=False, handed=True)),
    "shared memory of a cluster": ("cluster", Tuning(threads=64, blocks=3, staged=True, handed=False)),
    "shared memory, handed out": ("cluster", Tuning(threads=64, blocks=3, staged=True, handed=True)),
    "claimed slices": ("split", Tuning(threads=64, blocks=3, held=1, handed=True)),
    "claimed slices, in turns": ("split", Tuning(threads=64, blocks=4, spread=2, held=1, handed=True)),
    "nothing": ("stream", Tuning(threads=64, blocks=3)),
    "nothing, columns": ("strided_split", Tuning(threads=64, blocks=3)),
    "registers of a block, columns": ("strided", Tuning(threads=512, across=4, blocks=1, clustered=True)),
    "registers of a cluster, columns": ("strided_split", Tuning(threads=128, across=4, blocks=3, clustered=True)),
    "registers of a team, columns": ("strided_split", Tuning(threads=128, across=4, blocks=3, clustered=False)),
}
LENGTH = 1500
SUMS = ("softmax_backward", "log_softmax_backward")
FEW = ("odd: each row starts elsewhere", "dy has one value for a row")
FEW_COLUMNS = ("columns, an odd number", "a middle dim, dy has one value for a row")
# Slices of nothing: more blocks than packs, and rows that are all head or all tail.
SHORT = {
    "fewer packs than blocks": Layout((4, 8)),
    "many rows for each team, whose blocks lie apart": Layout((100, 40)),
    "a row shorter than its head": Layout((5, 5), saved=Place(past=1), dy=Place(past=1), dx=Place(past=1)),
}
# Of dy, of what was saved, of dx; in shared memory the second's slice starts behind that of the first.
MIXED = (("float32", "bfloat16", "bfloat16"), ("float16", "float64", "float32"))
LAUNCHES = {}


def add(key, *args, **options):
    LAUNCHES.setdefault(key, []).append(launch(*args, **options))


for kind, (algorithm, tuning) in KINDS.items():
    columns = kind.endswith("columns")
    layouts = STRIDED if columns else {**rows_of(LENGTH), **SHORT}
    few = FEW_COLUMNS if columns else FEW
    for why, layout in layouts.items():
        if why in few or kind != "nothing":
            add((kind, "softmax_backward"), why, SUMS[0], layout, "float32", algorithm, tuning=tuning)
    for why in few:
        add((kind, "softmax_backward"), why, SUMS[0], layouts[why], "float16", algorithm, tuning=tuning)
        add((kind, "log_softmax_backward"), why, SUMS[1], layouts[why], "bfloat16", algorithm, tuning=tuning)
    odd = layouts[few[0]] if columns else rows_of(LENGTH // 2)[few[0]]
    add((kind, "log_softmax_backward"), "double", SUMS[1], odd, "float64", algorithm, tuning=tuning)
    for dtypes in MIXED if columns or kind.startswith(("shared memory", "claimed")) else ():
        narrow = replace(tuning, pack=2)
        even = layouts["a middle dim" if columns else "aligned"]
        add((kind, "mixed"), "wide", SUMS[0], layouts[few[0]], dtypes, algorithm, tuning=tuning)
        add((kind, "mixed"), "narrow", SUMS[0], even, dtypes, algorithm, tuning=narrow)
    for op in SUMS:
        specials = Layout((SPECIAL_ROWS, 700))
        add((kind, "specials"), op, op, specials, algorithm=algorithm, values=with_specials, tuning=tuning)

# More blocks than a warp has lanes, and than a block has threads.
for blocks in (1, 33, 70):
    tuning = Tuning(threads=64, blocks=blocks)
    add(("many",), f"{blocks} blocks", "softmax_backward", Layout((3, 3001)), algorithm="split", tuning=tuning)
# Of a cluster, as many as there are warps in its blocks, and more.
for blocks in (2, 5, 16):
    tuning = Tuning(threads=64, blocks=blocks, staged=True)
    add(("sizes",), f"a cluster of {blocks}", SUMS[0], Layout((3, 3001)), algorithm="cluster", tuning=tuning)
# Claimed: by each block that reads the sums of all, by one that does, and more slices than that one has threads.
for blocks in (5, 18, 70):
    tuning = Tuning(threads=64, blocks=blocks, held=1, handed=True)
    for op in SUMS:
        add(("many",), f"{blocks} claimed slices", op, Layout((3, 3001)), algorithm="split", tuning=tuning)
add(("few columns",), "few long columns", SUMS[1], Layout((3, 2100, 3), 1), "bfloat16")
MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="module", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    machine = MACHINES[request.param]([case.plan for cases in LAUNCHES.values() for case in cases])
    yield machine
    machine.close()


def check(machine, cases, grids=(3, 9), seeds=(0, 1)):
    """One team that takes every row, and three."""
    for case in cases:
        for grid, seed in zip(grids, seeds, strict=True):
            error = case.error(machine, grid=grid, seed=seed)
            assert error <= LIMITS[case.views[1].dtype.name], (case.name, case.plan.kernel, grid, seed, error)


def grids_of(kind):
    """The blocks of one team and of three; as many as a row has claimed slices, and more."""
    return (4, 9) if kind.startswith("claimed") else (3, 9)


@pytest.mark.parametrize(("kind", "what"), [key for key in LAUNCHES if len(key) == 2])
def test_every_layout(machine, kind, what):
    """And NaN and infinities where the formula has them."""
    for case in LAUNCHES[kind, what]:
        algorithm, tuning = KINDS[kind]
        cluster = tuning.blocks if algorithm == "cluster" or tuning.clustered else 1
        shared_by = tuning.blocks if tuning.blocks > 1 else 0
        assert (case.plan.algorithm, case.plan.cluster, case.plan.shared_by) == (algorithm, cluster, shared_by)
        assert ("held" in case.plan.kernel) == (tuning.clustered is not None)
        assert case.plan.reads == (2 if kind.startswith("nothing") else 1)
        assert case.plan.claims == kind.startswith("claimed")
        if not case.plan.claims:  # a slice of which a thread has one pack is in registers
            assert (case.plan.shared_bytes > 0) == kind.startswith("shared memory")
        assert case.plan.hands_out == kind.endswith("handed out")
    check(machine, LAUNCHES[kind, what], grids=grids_of(kind))


def test_few_long_columns(machine):
    """As the planner cuts them: clusters of many blocks hold one or some, an element per access."""
    for case in LAUNCHES["few columns",]:
        assert case.plan.cluster == 16 and dict(case.plan.shape)["pack"] == 1
    check(machine, LAUNCHES["few columns",], grids=(16, 48))


def test_claimed_slices_wait_in_both_kinds_of_memory():
    for kind in ("claimed slices", "claimed slices, in turns"):
        waiting = [dict(case.plan.shape)["waiting"] for case in LAUNCHES[kind, "softmax_backward"]]
        assert {0, 1} <= set(waiting), kind
    assert {dict(case.plan.shape)["slots"] for case in LAUNCHES["many",] if case.plan.claims} == {1, 2}


def test_any_number_of_blocks(machine):
    check(machine, LAUNCHES["many",], grids=(70, 140))
    check(machine, LAUNCHES["sizes",], grids=(80, 240))


def test_the_same_bits_under_every_schedule(machine):
    for kind in KINDS:
        case = LAUNCHES[kind, "softmax_backward"][0]
        results = {case.run(machine, grid=grid, seed=seed).tobytes() for grid in grids_of(kind) for seed in range(4)}
        assert len(results) == 1, case.plan.kernel


@pytest.mark.parametrize("which", ["dy", "the saved array"])
def test_in_place(machine, which):
    """dx may be dy or the saved array: every element is read, as often as it is, before it is written."""
    number = 2 if which == "dy" else 0
    for kind in KINDS:
        case = next(c for c in LAUNCHES[kind, "softmax_backward"] if c.name in (FEW[0], FEW_COLUMNS[0]))
        blocks = few_blocks(case.plan, 3)
        arrays = [array for array in case.arrays(blocks) if array.word != 1]
        place = [array.word for array in arrays].index(number)
        arrays[place].also = 1
        after = machine.launch(case.plan, arrays, grid=blocks, seed=1)[place]
        assert after.tobytes() == case.run(machine, grid=3).tobytes(), (kind, which)


def test_slices_that_fit_nowhere_are_refused():
    row = Layout((1, 1 << 16))
    with pytest.raises(ValueError, match="does not fit the shared memory"):
        launch("", "softmax_backward", row, algorithm="split", tuning=Tuning(blocks=1, staged=True))
    with pytest.raises(ValueError, match="does not fit the registers"):
        launch("", "softmax_backward", row, algorithm="split", tuning=Tuning(blocks=2, staged=False))
    with pytest.raises(ValueError, match="does not fit the shared memory of a cluster of 2"):
        launch("", "softmax_backward", row, algorithm="cluster", tuning=Tuning(blocks=2))
    with pytest.raises(ValueError, match="does not fit the registers of a cluster of 16"):
        launch("", "softmax_backward", Layout((1, 1 << 19)), algorithm="cluster", tuning=Tuning(staged=False))
    with pytest.raises(ValueError, match="2 to 16 blocks, not 17"):
        launch("", "softmax_backward", row, algorithm="cluster", tuning=Tuning(blocks=17))
    columns = Layout((1 << 16, 1), 0)
    for algorithm, layout in (("stream", row), ("strided_split", columns)):
        with pytest.raises(ValueError, match="are at work at once"):
            launch("", "softmax_backward", layout, algorithm=algorithm, tuning=Tuning(blocks=4000))
    with pytest.raises(ValueError, match="no sum is needed"):
        launch("", "logsumexp_backward", columns, algorithm="strided_split")
    with pytest.raises(ValueError, match="no sum is needed"):
        launch("", "logsumexp_backward", columns, algorithm="strided", tuning=Tuning(clustered=True))
    with pytest.raises(ValueError, match="registers of the blocks do not hold 65536 steps"):
        launch("", "softmax_backward", columns, algorithm="strided_split", tuning=Tuning(clustered=True, blocks=2))
    with pytest.raises(ValueError, match="registers of the blocks do not hold"):
        launch("", "softmax_backward", columns, algorithm="strided_split", tuning=Tuning(clustered=True, across=1024))
    odd = Layout((3, 40, 9), 1)
    with pytest.raises(ValueError, match="packs of 4 rows do not all start on their boundary, packs of 1 do"):
        launch("", "softmax_backward", odd, algorithm="strided", tuning=Tuning(pack=4))
