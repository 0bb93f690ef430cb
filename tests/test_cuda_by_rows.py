"""Kernels whose results go through shared memory, to be written along rows that x has across memory, run on a CPU by
tests/cusim and, with -m gpu, on a GPU."""

import cuda_gradient_cases as gradient_cases
import gpu_machine
import pytest
from cuda_cases import Layout, few_blocks, launch
from cuda_gradient_values import LIMITS
from cuda_gradient_values import with_specials as with_gradient_specials
from cuda_values import STEPS, check_results, check_special_values, in_steps, with_specials
from simulator import Simulator

from onepass.cuda.plan import Tuning

KINDS = {
    "a thread for a row": Tuning(by_rows=True, threads=64),
    "threads that share rows": Tuning(by_rows=True, threads=64, across=16),
    "several tiles at a time": Tuning(by_rows=True, threads=32, rows=4),
    "two rows for a thread": Tuning(by_rows=True, threads=64, across=16, pack=2),
}


def swapped(x):
    return x.swapaxes(-1, -2)


# In memory; the rows lie along its dim before the last.
LAYOUTS = {
    "an odd number of steps": Layout((3, 21, 100), -1, swapped),
    "whole packs": Layout((3, 24, 100), -1, swapped),
    "packs of two": Layout((3, 22, 100), -1, swapped),
    "fewer rows than a tile has": Layout((21, 40), -1, swapped),
    "one row beyond a tile": Layout((9, 66), -1, swapped),
    "few steps": Layout((5, 2, 130), -1, swapped),
    "backwards beyond": Layout((3, 20, 72), -1, lambda x: swapped(x[::-1])),
    "every second row": Layout((3, 21, 144), -1, lambda x: swapped(x[..., ::2])),
    "every second step": Layout((3, 42, 72), -1, lambda x: swapped(x[:, ::2])),
    "steps backwards": Layout((3, 21, 72), -1, lambda x: swapped(x[:, ::-1])),
    "padded": Layout((3, 20, 80), -1, lambda x: swapped(x[..., 4:76])),
    "rows of other dims between": Layout((40, 21, 6), -1, lambda x: x.transpose(2, 0, 1)),
    "the result elsewhere": Layout((3, 20, 100), -1, swapped, past=(0, 1)),
    "an odd number of steps elsewhere": Layout((3, 21, 100), -1, swapped, past=(0, 3)),
    "addresses not told": Layout((3, 20, 100), -1, swapped, past=None),
}
NO_PAIRS = ("one row beyond", "every second row", "rows of other", "addresses")
MIXED = (("bfloat16", "float32"), ("float32", "float16"), ("float64", "float64"))
CASES = {
    (op, kind): [
        launch(f"{why} {dtype}", op, layout, dtype, tuning=tuning)
        for why, layout in LAYOUTS.items()
        if not (tuning.pack == 2 and why.startswith(NO_PAIRS))
        for dtype in ("float32", "bfloat16")
    ]
    + [launch(f"{dtypes}", op, LAYOUTS["whole packs"], *dtypes, tuning=tuning) for dtypes in MIXED]
    for op in ("softmax", "log_softmax")
    for kind, tuning in KINDS.items()
}


def turned_back(values):
    return lambda shape: values(shape[::-1]).T


SPECIALS = [
    launch(op, op, Layout((length, 20), -1, lambda x: x.T), dtype, values=turned_back(with_specials), tuning=tuning)
    for op in ("softmax", "log_softmax")
    for dtype in ("float32", "bfloat16")
    for length, tuning in zip((21, 70, 6, 70), KINDS.values(), strict=True)
]
FAR_APART = [
    launch(op, op, Layout((300, 12), -1, lambda x: x.T), dtype, values=turned_back(in_steps), tuning=tuning)
    for op in ("softmax", "log_softmax")
    for dtype in ("float32", "bfloat16")
    for tuning in (KINDS["threads that share rows"], KINDS["two rows for a thread"])
]

GRADIENT_KINDS = {kind: tuning for kind, tuning in KINDS.items() if tuning.rows is None}


def of_gradient(shape, past=None, dy=swapped):
    """Where dy lies so: in memory, its dims before the last are the rows'."""
    places = (
        {}
        if past is None
        else {"saved": gradient_cases.Place(shape, past=past), "dx": gradient_cases.Place(shape, past=past)}
    )
    memory = (*shape[:-2], shape[-1], shape[-2])
    return gradient_cases.Layout(shape, dy=gradient_cases.Place(memory, dy), **places)


GRADIENT_LAYOUTS = {
    "an odd number of steps": of_gradient((3, 100, 21)),
    "whole packs": of_gradient((3, 100, 24)),
    "packs of two": of_gradient((3, 100, 22)),
    "fewer rows than a tile has": of_gradient((40, 21)),
    "few steps": of_gradient((5, 130, 2)),
    "backwards beyond": of_gradient((3, 72, 20), dy=lambda x: swapped(x[::-1])),
    "what was saved and dx elsewhere": of_gradient((3, 100, 20), past=1),
    "an odd number of steps elsewhere": of_gradient((3, 100, 21), past=3),
    "rows of other dims between": gradient_cases.Layout(
        (6, 40, 21), dy=gradient_cases.Place((40, 21, 6), lambda x: x.transpose(2, 0, 1))
    ),
}
GRADIENT_CASES = {
    (op, kind): [
        gradient_cases.launch(f"{why} {dtype}", op, layout, dtype, tuning=tuning)
        for why, layout in GRADIENT_LAYOUTS.items()
        for dtype in ("float32", "bfloat16", "float64" if why == "whole packs" else "float16")
    ]
    for op in ("softmax_backward", "log_softmax_backward")
    for kind, tuning in GRADIENT_KINDS.items()
}
GRADIENT_SPECIALS = [
    gradient_cases.launch(op, op, of_gradient((14, 300)), values=with_gradient_specials, tuning=tuning)
    for op in ("softmax_backward", "log_softmax_backward")
    for kind, tuning in GRADIENT_KINDS.items()
    if kind != "a thread for a row"
]
MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="module", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    groups = (*CASES.values(), SPECIALS, FAR_APART, *GRADIENT_CASES.values(), GRADIENT_SPECIALS)
    machine = MACHINES[request.param]([case.plan for cases in groups for case in cases])
    yield machine
    machine.close()


def assert_by_rows(case, kind):
    shape = dict(case.plan.shape)
    assert case.plan.algorithm == "strided" and case.plan.reads == 1 and "by_rows" in shape, case.name
    assert (case.plan.threads == shape["across"]) == (kind in ("a thread for a row", "several tiles at a time"))


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_every_layout(machine, op, kind):
    for case in CASES[op, kind]:
        assert_by_rows(case, kind)
    check_results(machine, CASES[op, kind], grids=(2, 6))


def test_rows_are_written_as_one_and_by_packs():
    how = {
        why: dict(case.plan.shape)["by_rows"] for case in CASES["softmax", "a thread for a row"] for why in [case.name]
    }
    assert ".pack = 4, .joined = true" in how["an odd number of steps float32"]
    assert ".pack = 8, .joined = true" in how["an odd number of steps bfloat16"]
    assert ".pack = 4, .joined = false" in how["whole packs float32"]
    assert ".pack = 2, .joined = false" in how["packs of two bfloat16"]
    assert ".pack = 1, .joined = true" in how["an odd number of steps elsewhere float32"]
    assert ".pack = 1, .joined = false" in how["the result elsewhere float32"]
    assert ".pack = 1, .joined = false" in how["rows of other dims between float32"]


def test_special_values(machine):
    """NaN, infinities and numbers up to the largest."""
    for case in SPECIALS:
        assert "by_rows" in dict(case.plan.shape)
        check_special_values(machine, case)


def test_parts_of_a_row_that_are_far_apart(machine):
    assert len(STEPS) <= 12
    check_results(machine, FAR_APART, grids=(6,))


def test_the_same_bits_under_every_schedule(machine):
    for kind in KINDS:
        for case in CASES["softmax", kind][:4]:
            results = {case.run(machine, grid=2, seed=seed).tobytes() for seed in range(4)}
            assert len(results) == 1, case.plan.kernel


def check_gradients(machine, cases):
    for case in cases:
        assert "by_rows" in dict(case.plan.shape) and case.plan.reads == 1, case.name
        error = case.error(machine, grid=6, seed=1)
        assert error <= LIMITS[case.views[1].dtype.name], (case.name, case.plan.kernel, error)


@pytest.mark.parametrize(("op", "kind"), GRADIENT_CASES)
def test_every_layout_of_gradients(machine, op, kind):
    check_gradients(machine, GRADIENT_CASES[op, kind])


def test_special_values_of_gradients(machine):
    check_gradients(machine, GRADIENT_SPECIALS)


def test_a_gradient_in_place_of_what_was_saved(machine):
    """It waits in shared memory before anything is written."""
    for kind in GRADIENT_KINDS:
        case = GRADIENT_CASES["softmax_backward", kind][0]
        blocks = few_blocks(case.plan, 6)
        arrays = [array for array in case.arrays(blocks) if array.word != 1]
        place = [array.word for array in arrays].index(0)
        arrays[place].also = 1
        after = machine.launch(case.plan, arrays, grid=blocks, seed=1)[place]
        assert after.tobytes() == case.run(machine, grid=6).tobytes(), kind


def test_gradients_have_the_same_bits_under_every_schedule(machine):
    for kind in GRADIENT_KINDS:
        for case in GRADIENT_CASES["softmax_backward", kind][:4]:
            results = {case.run(machine, grid=2, seed=seed).tobytes() for seed in range(4)}
            assert len(results) == 1, case.plan.kernel
