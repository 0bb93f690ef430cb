"""Kernels for columns that are a run of memory, run on a CPU by tests/cusim and, with -m gpu, on a GPU."""

import cuda_gradient_cases as gradient_cases
import gpu_machine
import numpy as np
import pytest
from cuda_cases import Layout, few_blocks, launch
from cuda_gradient_cases import Place
from cuda_gradient_values import LIMITS
from cuda_teams import MIXED, scratch_words, with_scratch
from cuda_values import SPECIAL_ROWS, STEPS, check_results, in_steps, limit, with_specials
from helpers import DTYPES, FLOORS, REDUCTIONS, SOFTMAX_FAMILY
from simulator import Simulator
from ulp import max_ulp

from onepass.cuda.plan import Tuning

GRADIENTS = ("softmax_backward", "log_softmax_backward")
RUN = Tuning(threads=64, blocks=3, interleaved=True)
# (shape, elements past a boundary): packs of 4 meet 1, 3, 5 or 9 columns in turn, or the same all the time.
LAYOUTS = {
    "whole packs": ((3, 40, 24), 0),
    "an odd number of columns": ((2, 90, 5), 0),
    "twice an odd number, each run elsewhere": ((3, 45, 22), 0),
    "all past a boundary": ((3, 70, 7), 3),
    "fewer columns than a pack has elements": ((2, 201, 3), 1),
    "two columns": ((4, 151, 2), 1),
    "one run": ((1, 300, 9), 0),
    "many runs for each team": ((40, 20, 5), 0),
    "fewer packs than blocks": ((3, 2, 3), 0),
    "a pack, in two parts": ((4, 2, 2), 3),
    "as many columns as threads": ((2, 9, 64), 0),
}


def dtypes_of(op):
    """All for an operation of each kernel."""
    return DTYPES if op in ("softmax", "sum", "softmax_backward") else ("float32", "bfloat16")


def forward(why, op, dtype, result_dtype=None, **options):
    shape, past = LAYOUTS[why]
    options = {"tuning": RUN, **options}
    return launch(why, op, Layout(shape, 1, past=(past, past)), dtype, result_dtype, "strided_split", **options)


def gradient(why, op, dtypes, **options):
    shape, past = LAYOUTS[why]
    place = Place(past=past)
    layout = gradient_cases.Layout(shape, 1, place, place, place)
    options = {"tuning": RUN, **options}
    return gradient_cases.launch(why, op, layout, dtypes, "strided_split", **options)


FORWARD = {
    op: [
        *(forward(why, op, dtype) for dtype in dtypes_of(op) for why in LAYOUTS),
        *(forward("an odd number of columns", op, *dtypes) for dtypes in MIXED if op in ("softmax", "mean")),
    ]
    for op in (*SOFTMAX_FAMILY, *REDUCTIONS)
}
BACKWARD = {
    op: [
        *(gradient(why, op, dtype) for dtype in dtypes_of(op) for why in LAYOUTS),
        gradient("all past a boundary", op, ("float32", "bfloat16", "bfloat16")),
        gradient("an odd number of columns", op, ("float16", "float64", "float32")),
    ]
    for op in GRADIENTS
}
# More than the lanes of a warp ask for at a time; columns for several warps of each block; one that needs no other.
COUNTED = [
    launch(
        f"{blocks} blocks",
        op,
        Layout((2, 700, columns), 1),
        algorithm="strided_split",
        tuning=Tuning(threads=64, blocks=blocks, interleaved=True),
    )
    for op in ("softmax", "log_softmax", "sum")
    for blocks, columns in ((1, 7), (2, 60), (70, 5), (140, 3))
]
SPECIALS = [
    launch(
        f"{op} {dtype}",
        op,
        Layout((200, SPECIAL_ROWS), 0),
        dtype,
        None,
        "strided_split",
        values=lambda shape: with_specials(shape[::-1]).T,
        tuning=RUN,
    )
    for op in ("softmax", "log_softmax", "logsumexp", "amax")
    for dtype in ("float32", "bfloat16", "float64")
]
FAR_APART = [
    launch(
        f"{op} {dtype}",
        op,
        Layout((200, len(STEPS)), 0),
        dtype,
        None,
        "strided_split",
        values=lambda shape: in_steps(shape[::-1]).T,
        tuning=RUN,
    )
    for op in ("softmax", "log_softmax")
    for dtype in ("float32", "bfloat16", "float64")
]
ALL = [case for cases in (*FORWARD.values(), COUNTED, SPECIALS, FAR_APART, *BACKWARD.values()) for case in cases]
MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="module", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    machine = MACHINES[request.param]([case.plan for case in ALL])
    yield machine
    machine.close()


def test_plans():
    for case in ALL:
        assert case.plan.algorithm == "strided_split" and "interleaved" in case.plan.kernel
        assert case.plan.reads == (2 if "softmax" in case.op else 1)
        assert case.plan.shared_bytes == 0
        assert case.plan.team == 3 or case in COUNTED


@pytest.mark.parametrize("op", FORWARD)
def test_every_layout(machine, op):
    """One team that takes every run, and three."""
    check_results(machine, FORWARD[op], grids=(3, 9))


@pytest.mark.parametrize("op", BACKWARD)
def test_every_layout_of_gradients(machine, op):
    for case in BACKWARD[op]:
        for grid, seed in ((3, 0), (9, 1)):
            error = case.error(machine, grid=grid, seed=seed)
            assert error <= LIMITS[case.views[1].dtype.name], (case.name, case.plan.kernel, grid, error)


def test_any_number_of_blocks(machine):
    assert [case.plan.team for case in COUNTED[:4]] == [1, 2, 70, 140]
    check_results(machine, COUNTED, grids=(70, 140))


@pytest.mark.parametrize("case", SPECIALS, ids=lambda case: case.name)
def test_special_values(machine, case):
    """NaN, infinities and numbers up to the largest, in blocks of which some see nothing but -inf."""
    y = case.run(machine, grid=6)
    for column in range(SPECIAL_ROWS):  # one that is lost in a NaN must not hide another
        got, expected = y[..., column], case.reference()[..., column]
        assert max_ulp(got, expected, floor=FLOORS[case.op]) <= limit(case), (column, got, expected)


def test_parts_of_a_column_that_are_far_apart(machine):
    check_results(machine, FAR_APART, grids=(9,))


def test_the_same_bits_under_every_schedule(machine):
    for case in (FORWARD["softmax"][1], FORWARD["log_softmax"][2], FORWARD["sum"][3], BACKWARD["softmax_backward"][3]):
        results = {case.run(machine, grid=grid, seed=seed).tobytes() for grid in (3, 9) for seed in range(4)}
        assert len(results) == 1, case.plan.kernel


@pytest.mark.parametrize("which", ["x", "dy", "the saved array"])
def test_in_place(machine, which):
    """Every element is read, as often as it is, before it is written."""
    number = 2 if which == "dy" else 0
    for case in (FORWARD["softmax"] if which == "x" else BACKWARD["softmax_backward"])[:8]:
        blocks = few_blocks(case.plan, 3)
        arrays = [array for array in case.arrays(blocks) if array.word != 1]
        place = [array.word for array in arrays].index(number)
        arrays[place].also = 1
        after = machine.launch(case.plan, arrays, grid=blocks, seed=1)[place]
        assert after.tobytes() == case.run(machine, grid=3).tobytes(), (case.name, which)


def test_launches_share_scratch_memory():
    """Two exchanges for each run: what one launch leaves there, the next does not take for its own."""
    cases = [FORWARD["softmax"][1], FORWARD["sum"][7], FORWARD["log_softmax"][3]]
    machine = Simulator([case.plan for case in cases])
    scratch = np.zeros(scratch_words([case.plan for case in cases], 9), np.uint32)
    exchanges = 0
    for seed, case in enumerate(cases * 3):
        blocks = case.plan.blocks(1, 9)
        _, y, scratch = machine.launch(case.plan, with_scratch(case, scratch, 9), grid=blocks, seed=seed)
        assert max_ulp(y, case.reference(), floor=FLOORS[case.op]) <= limit(case), case.name
        exchanges += 2 * -(-case.plan.units // (blocks // case.plan.team))
        assert scratch[0] == exchanges and scratch[1] == 0
    machine.close()
    assert 0 < scratch[2] * 4 <= len(scratch)


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (Layout((3, 40, 33), 1), {}),  # 33 of 64 threads would walk
        (Layout((3, 40, 24), 1, past=(0, 1)), {}),  # the result lies differently to boundaries
        (Layout((3, 40, 24), 1, past=None), {}),
        (Layout((3, 40, 26), 1, view=lambda x: x[..., 1:-1]), {}),  # steps are apart
        (Layout((3, 24, 40), 1, view=lambda x: x.transpose(0, 2, 1)), {}),
        (Layout((3, 4, 5, 6), (0, 2)), {}),
        (Layout((3, 40, 24), 1), {"threads": 1024, "blocks": 300}),
    ],
    ids=["columns", "differently", "not told", "apart", "rows", "two dims", "blocks"],
)
def test_what_is_no_run_is_refused(layout, options):
    tuning = Tuning(**{"threads": 64, "blocks": 3, "interleaved": True, **options})
    with pytest.raises(ValueError, match="no run of memory|are at work at once"):
        launch("", "softmax", layout, algorithm="strided_split", tuning=tuning)
