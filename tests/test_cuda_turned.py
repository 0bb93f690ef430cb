"""Kernels that turn rows which lie one way in one array and another way in another, run on a CPU by tests/cusim and,
with -m gpu, on a GPU."""

from dataclasses import replace

import cuda_gradient_cases as gradient_cases
import gpu_machine
import pytest
from cuda_cases import Layout, few_blocks, launch
from cuda_gradient_values import LIMITS
from cuda_gradient_values import with_specials as with_gradient_specials
from cuda_values import STEPS, check_results, check_special_values, in_steps, with_specials
from simulator import Simulator

from onepass.cuda.plan import Tuning

# Few threads, so that each has squares, some none, and some lack the last.
KINDS = {
    "a block": Tuning(turned=True, threads=64, across=4),
    "a cluster": Tuning(turned=True, threads=64, across=4, blocks=3),
    "the planner's": None,
}
LAYOUTS = {
    "a matrix": Layout((96, 64), -1, lambda x: x.T),
    "a matrix, dim 0": Layout((96, 64), 0, lambda x: x.T),
    "batches": Layout((3, 136, 40), -1, lambda x: x.swapaxes(1, 2)),
    "batches, the middle dim": Layout((3, 136, 40), 1, lambda x: x.swapaxes(1, 2)),
    "channels last": Layout((2, 6, 8, 48), 1, lambda x: x.transpose(0, 3, 1, 2)),
    "backwards beyond": Layout((3, 88, 24), -1, lambda x: x[::-1].swapaxes(1, 2)),
    "a tile wider than the rows": Layout((72, 8), -1, lambda x: x.T),
    "two dims that are reduced": Layout((5, 24, 40), (0, 2), lambda x: x.swapaxes(1, 2)),
    "padded": Layout((96, 72), -1, lambda x: x[:, 4:68].T),
    "whole packs of two": Layout((98, 66), -1, lambda x: x.T),
    "whole packs of two, dim 0": Layout((98, 66), 0, lambda x: x.T),
    "two elements past a boundary": Layout((96, 64), -1, lambda x: x.T, past=(2, 6)),
    "of rows": Layout((18, 40, 20), 1, lambda x: x.T),
    "of rows, of batches": Layout((3, 10, 21, 12), 2, lambda x: x.transpose(0, 3, 2, 1)),
    "of rows, channels last": Layout((2, 16, 10, 24), 2, lambda x: x.transpose(0, 3, 1, 2)),
    "of rows, two dims that are reduced": Layout((8, 5, 6, 10), (1, 2), lambda x: x.transpose(3, 2, 1, 0)),
    "of rows, backwards between": Layout((12, 33, 14), 1, lambda x: x[:, ::-1].T),
}
OF_ROWS = "of rows"  # where both sides of a square are


def tuned(kind, why):
    """A tile has more rows where both sides of a square are rows, and a thread for each."""
    tuning = KINDS[kind]
    return replace(tuning, threads=128) if tuning is not None and OF_ROWS in why else tuning


MIXED = (("bfloat16", "float32"), ("float32", "float16"))
FORWARD = ("softmax", "log_softmax")
CASES = {
    (op, kind): [
        launch(f"{why} {dtype}", op, layout, dtype, tuning=tuned(kind, why))
        for why, layout in LAYOUTS.items()
        for dtype in (("float32", "bfloat16", "float16") if op == "softmax" else ("float32", "bfloat16"))
    ]
    + [launch(f"{dtypes}", op, LAYOUTS["batches"], *dtypes, tuning=tuning) for dtypes in MIXED]
    for op in FORWARD
    for kind, tuning in KINDS.items()
}
OF_EIGHT = [
    launch(f"squares of 8 {why}", "softmax", LAYOUTS[why], "bfloat16", tuning=Tuning(turned=True, pack=8, threads=64))
    for why in ("a matrix", "batches, the middle dim")
]


def turned_back(values):
    return lambda shape: values(shape[::-1]).T


def with_specials_of_rows(shape):
    """Along the middle dim."""
    first, steps, last = shape
    return with_specials((first * last, steps)).reshape(first, last, steps).swapaxes(1, 2)


SPECIALS = [
    launch(op, op, Layout((300, 16), -1, lambda x: x.T), dtype, values=turned_back(with_specials), tuning=tuning)
    for op in FORWARD
    for dtype in ("float32", "bfloat16")
    for tuning in KINDS.values()
] + [
    launch(
        op, op, Layout((8, 300, 8), 1, lambda x: x.T), dtype, values=with_specials_of_rows, tuning=tuned(kind, OF_ROWS)
    )
    for op in FORWARD
    for dtype in ("float32", "bfloat16")
    for kind in KINDS
]
# Some of a row's warps, and blocks, have maxima that are far from others'.
FAR_APART = [
    launch(op, op, Layout((300, 12), -1, lambda x: x.T), dtype, values=turned_back(in_steps), tuning=tuning)
    for op in FORWARD
    for dtype in ("float32", "bfloat16")
    for tuning in KINDS.values()
]

_T = gradient_cases.Place((96, 64), lambda x: x.T)
_SWAPPED = gradient_cases.Place((3, 136, 40), lambda x: x.swapaxes(1, 2))
_OF_TWO = gradient_cases.Place((98, 66), lambda x: x.T)
_TURNED_ROUND = gradient_cases.Place((18, 40, 20), lambda x: x.T)
GRADIENT_LAYOUTS = {
    "dy": gradient_cases.Layout((64, 96), dy=_T),
    "dy, dim 0": gradient_cases.Layout((64, 96), 0, dy=_T),
    "what was saved": gradient_cases.Layout((64, 96), saved=_T),
    "dx": gradient_cases.Layout((64, 96), dx=_T),
    "both that are read": gradient_cases.Layout((64, 96), saved=_T, dy=_T),
    "dy of batches": gradient_cases.Layout((3, 40, 136), dy=_SWAPPED),
    "dy of batches, the middle dim": gradient_cases.Layout((3, 40, 136), 1, dy=_SWAPPED),
    "dy of whole packs of two": gradient_cases.Layout((66, 98), dy=_OF_TWO),
    "dy of whole packs of two, dim 0": gradient_cases.Layout((66, 98), 0, dy=_OF_TWO),
    "dy of rows": gradient_cases.Layout((20, 40, 18), 1, dy=_TURNED_ROUND),
    "what was saved, of rows": gradient_cases.Layout((20, 40, 18), 1, saved=_TURNED_ROUND),
    "dx of rows": gradient_cases.Layout((20, 40, 18), 1, dx=_TURNED_ROUND),
    "both that are read, of rows": gradient_cases.Layout((20, 40, 18), 1, saved=_TURNED_ROUND, dy=_TURNED_ROUND),
}
GRADIENTS = ("softmax_backward", "log_softmax_backward")
MIXED_GRADIENT = ("float32", "bfloat16", "bfloat16")
GRADIENT_CASES = {
    (op, kind): [
        gradient_cases.launch(f"{why} {dtype}", op, layout, dtype, tuning=tuned(kind, why))
        for why, layout in GRADIENT_LAYOUTS.items()
        for dtype in (("float32", "bfloat16") if op == "softmax_backward" else ("float16",))
    ]
    + [gradient_cases.launch("mixed", op, GRADIENT_LAYOUTS["dy"], MIXED_GRADIENT, tuning=tuning)]
    for op in GRADIENTS
    for kind, tuning in KINDS.items()
}
GRADIENT_SPECIALS = [
    gradient_cases.launch(
        op,
        op,
        gradient_cases.Layout((14, 300), dy=gradient_cases.Place((300, 14), lambda x: x.T)),
        values=with_gradient_specials,
        tuning=tuning,
    )
    for op in GRADIENTS
    for tuning in KINDS.values()
]
MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="module", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    groups = (*CASES.values(), OF_EIGHT, SPECIALS, FAR_APART, *GRADIENT_CASES.values(), GRADIENT_SPECIALS)
    machine = MACHINES[request.param]([case.plan for cases in groups for case in cases])
    yield machine
    machine.close()


def assert_turned(case, kind, pack=None):
    shape = dict(case.plan.shape)
    assert "turned<" in case.plan.kernel and case.plan.reads == 1, (case.name, case.plan.kernel)
    assert pack in (None, shape["pack"]), case.name
    assert (shape["down"] > 0) == (OF_ROWS in case.name), case.name
    if KINDS[kind] is not None:
        assert (shape["cluster"], case.plan.cluster) == (KINDS[kind].blocks or 1,) * 2
    assert case.plan.algorithm == ("strided_split" if case.plan.cluster > 1 else "strided")


@pytest.mark.parametrize(("op", "kind"), CASES)
def test_every_layout(machine, op, kind):
    for case in CASES[op, kind]:
        of_two = any(what in case.name for what in ("of two", "past a boundary float32", OF_ROWS))
        assert_turned(case, kind, 2 if of_two else None)
    check_results(machine, CASES[op, kind], grids=(6,))


def test_squares_of_eight(machine):
    for case in OF_EIGHT:
        assert_turned(case, "a block", 8)
    check_results(machine, OF_EIGHT, grids=(6,))


def test_special_values(machine):
    """NaN, infinities and numbers up to the largest, in squares of which some hold nothing but -inf."""
    for case in SPECIALS:
        assert "turned<" in case.plan.kernel
        check_special_values(machine, case)


def test_parts_of_a_row_that_are_far_apart(machine):
    assert len(STEPS) <= 12
    check_results(machine, FAR_APART, grids=(6,))


def check_gradients(machine, cases):
    for case in cases:
        error = case.error(machine, grid=6, seed=1)
        assert error <= LIMITS[case.views[1].dtype.name], (case.name, case.plan.kernel, error)


@pytest.mark.parametrize(("op", "kind"), GRADIENT_CASES)
def test_every_layout_of_gradients(machine, op, kind):
    for case in GRADIENT_CASES[op, kind]:
        assert_turned(case, kind, 2 if "of two" in case.name or OF_ROWS in case.name else None)
    check_gradients(machine, GRADIENT_CASES[op, kind])


def test_special_values_of_gradients(machine):
    for case in GRADIENT_SPECIALS:
        assert "turned<" in case.plan.kernel
    check_gradients(machine, GRADIENT_SPECIALS)


@pytest.mark.parametrize(("why", "number"), [("what was saved", 2), ("dy", 0)])
def test_in_place(machine, why, number):
    """dx may be the array that it lies like: every element is read before it is written."""
    for kind in KINDS:
        case = next(c for c in GRADIENT_CASES["softmax_backward", kind] if c.name == f"{why} float32")
        blocks = few_blocks(case.plan, 6)
        arrays = [array for array in case.arrays(blocks) if array.word != 1]
        place = [array.word for array in arrays].index(number)
        arrays[place].also = 1
        after = machine.launch(case.plan, arrays, grid=blocks, seed=1)[place]
        assert after.tobytes() == case.run(machine, grid=6).tobytes(), kind


def test_the_same_bits_under_every_schedule(machine):
    for kind in KINDS:
        for cases in (CASES["softmax", kind], GRADIENT_CASES["softmax_backward", kind]):
            for case in (cases[0], next(case for case in cases if OF_ROWS in case.name)):
                results = {case.run(machine, grid=6, seed=seed).tobytes() for seed in range(4)}
                assert len(results) == 1, case.plan.kernel
