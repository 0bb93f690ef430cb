"""The CUDA kernels, run on a CPU by tests/cusim and, with -m gpu, on a GPU: every algorithm, operation, type and layout
against the reference."""

import functools

import gpu_machine
import ml_dtypes
import numpy as np
import pytest
from cuda_cases import STRIDED, Layout, few_blocks, launch, rows_of
from cuda_values import FUNCTORS, SPECIAL_ROWS, functor_result, limit, with_specials
from helpers import DTYPES, FLOORS, REDUCTIONS, SOFTMAX_FAMILY, random_array
from simulator import Simulator
from ulp import max_ulp

from onepass import reference
from onepass.cuda.device import by_name
from onepass.cuda.plan import Tuning, make_cuda_plan
from onepass.problem import make_problem

# Long enough that every thread of the algorithm has something, with a rest.
LENGTHS = {
    "warp": 200,
    "warp_smem": 203,
    "block": 1500,
    "block_smem": 2600,
    "online": 1500,
    "block_uncached": 1500,
    "three_pass": 700,
}
ROW_CASES = [(algorithm, op) for algorithm in LENGTHS for op in SOFTMAX_FAMILY]
ROW_CASES += [(algorithm, op) for algorithm in ("warp", "warp_smem", "block") for op in REDUCTIONS]
STRIDED_CASES = [(op, staged) for op in (*SOFTMAX_FAMILY, *REDUCTIONS) for staged in (True, False)]
STRIDED_CASES = [(op, staged) for op, staged in STRIDED_CASES if staged or op in ("softmax", "log_softmax")]
STRIDED_CASES += [(op, None) for op in SOFTMAX_FAMILY]  # which waits in registers if it is short
# Tiles in registers: how the lanes and the warps of a block share the columns.
HELD = {
    "one thread to a row": (Layout((3, 21, 50), 1), Tuning()),
    "one thread to a row, two warps": (Layout((3, 9, 150), 1), Tuning(threads=64)),
    "all lanes across, three warps": (Layout((3, 20, 100), 1), Tuning(across=32, threads=96)),
    "lanes share columns, as many warps": (Layout((3, 40, 150), 1), Tuning(across=16, threads=64)),
    "lanes share columns, more warps": (Layout((3, 60, 150), 1), Tuning(across=16, threads=256)),
    "lanes share columns, fewer warps": (Layout((3, 41, 24), 1), Tuning(across=4, threads=64)),
    "one warp": (Layout((50, 37), 0), Tuning(across=8, threads=32)),
    "more threads than steps": (Layout((50, 3, 6), 1), Tuning(across=4, threads=32)),
}
MIXED = [("bfloat16", "float32"), ("float32", "float16"), ("float16", "float64"), ("float64", "bfloat16")]
LAUNCHES = {}


def add(key, *args, **options):
    LAUNCHES.setdefault(key, []).append(launch(*args, **options))


def layouts_of(algorithm):
    layouts = rows_of(LENGTHS[algorithm])
    if algorithm == "warp_smem":  # which takes rows that follow each other
        del layouts["padded rows"], layouts["two kept axes in another order"]
    return layouts


for algorithm, op in ROW_CASES:
    for dtype in DTYPES:
        for why, layout in layouts_of(algorithm).items():
            add((algorithm, op, dtype), why, op, layout, dtype, None, algorithm)
        short = {"one column": Layout((70, 1)), "a row shorter than its head": Layout((9, 5), past=(1, 1))}
        for why, layout in short.items():
            add((algorithm, op, dtype), why, op, layout, dtype, None, algorithm)
    for dtype, result_dtype in MIXED if op in ("softmax", "log_softmax", "mean", "amax") else ():
        for why, layout in layouts_of(algorithm).items():
            if why in ("aligned", "odd: each row starts elsewhere", "bases differently past a boundary"):
                add((algorithm, op, "mixed"), why, op, layout, dtype, result_dtype, algorithm)
for op, staged in STRIDED_CASES:
    for dtype in DTYPES if op in ("softmax", "logsumexp", "sum") else ("float32", "bfloat16"):
        for why, layout in STRIDED.items():
            add(("strided", op, dtype), why, op, layout, dtype, None, "strided", tuning=Tuning(staged=staged))
    for dtype, result_dtype in MIXED if op in ("softmax", "log_softmax", "mean", "amax") else ():
        add(("strided", op, "mixed"), "columns", op, STRIDED["columns"], dtype, result_dtype, "strided")

# What each parameter of the warp algorithm does, held fixed one at a time.
for lanes in (1, 2, 4, 8, 16, 32):
    for rows in (1, 2, 4):
        name = f"{lanes} lanes, {rows} rows at a time"
        tuning = Tuning(lanes=lanes, rows=rows)
        add(("lanes",), name, "softmax", Layout((37, lanes * 4)), algorithm="warp", tuning=tuning)
        odd = Layout((37, lanes * 4 - 1), past=(1, 1))
        tuning = Tuning(lanes=lanes, rows=rows, pack=4)
        add(("lanes",), f"{name}, odd", "log_softmax", odd, algorithm="warp", tuning=tuning)
# Several packs of 16 bits a lane, which not all have: all are asked for before the first is widened.
for lanes, length in ((8, 136), (8, 264), (16, 360), (16, 640), (32, 300), (32, 1536)):
    for op in SOFTMAX_FAMILY:
        for dtype, result_dtype in (("float16", None), ("bfloat16", None), ("bfloat16", "float32")):
            name = f"{lanes} lanes, {length} columns of {dtype}"
            tuning = Tuning(lanes=lanes)
            add(("lanes",), name, op, Layout((9, length)), dtype, result_dtype, algorithm="warp", tuning=tuning)
            odd = Layout((9, length - 3), past=(3, 3))
            add(("lanes",), f"{name}, odd", op, odd, dtype, result_dtype, algorithm="warp", tuning=tuning)
# Fewer lanes than a row has edges.
for lanes, length in ((1, 17), (2, 37), (4, 61)):
    for op in SOFTMAX_FAMILY:
        odd = Layout((37, length), past=(3, 3))
        tuning = Tuning(lanes=lanes, pack=8)
        add(("lanes",), f"{lanes} lanes, fourteen edges", op, odd, "bfloat16", algorithm="warp", tuning=tuning)
# Rows by way of shared memory: widths from one element on, last warps and last rows that are not full.
for lanes in (1, 2, 4, 8, 16, 32):
    for rows in (1, 2, 4):
        tuning = Tuning(lanes=lanes, rows=rows, threads=64)
        for length, dtype, past in (
            (1, "float32", (0, 0)),
            (3, "bfloat16", (5, 2)),
            (10, "float32", (2, 4)),
            (2 * lanes - 1, "float16", (1, 1)),
        ):
            name = f"{lanes} lanes, {rows} rows at a time, {length} columns"
            for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax"):
                layout = Layout((150, length), past=past)
                add(("chunks",), f"{op}, {name}", op, layout, dtype, algorithm="warp_smem", tuning=tuning)
# Slabs: rows whose elements take turns, for a warp and for a block; the last of them not as many, or not on accesses.
SLABS = {
    "a column to a lane": ((70, 20, 3), Tuning()),
    "several rows of a lane": ((90, 8, 5), Tuning(rows=4)),
    "lanes share a column": ((23, 48, 2), Tuning(lanes=4)),
    "a lane without a step": ((23, 37, 3), Tuning(lanes=2)),
    "further apart in shared memory": ((31, 32, 6), Tuning()),
    "a block brings several": ((11, 20, 33), Tuning()),
    "a block brings one": ((3, 100, 49), Tuning()),
    "two steps": ((50, 2, 7), Tuning()),
    "one slab": ((1, 40, 5), Tuning()),
}
for why, (shape, tuning) in SLABS.items():
    slabs = Layout(shape, 1)
    for dtype in DTYPES:
        add(("slabs",), f"softmax, {why}", "softmax", slabs, dtype, algorithm="warp_smem", tuning=tuning)
    for op, dtype in (("log_softmax", "bfloat16"), ("logsumexp", "float32"), ("sum", "bfloat16"), ("amax", "float64")):
        add(("slabs",), f"{op}, {why}", op, slabs, dtype, algorithm="warp_smem", tuning=tuning)
    for past in ((1, 1), (3, 2), None):
        odd = Layout(shape, 1, past=past)
        add(("slabs",), f"{why}, {past}", "softmax", odd, "float16", algorithm="warp_smem", tuning=tuning)
for dtype, result_dtype in MIXED:
    for shape in ((31, 32, 6), (11, 20, 33)):
        add(("slabs",), f"mixed, {shape}", "softmax", Layout(shape, 1), dtype, result_dtype, "warp_smem")
for pack in (1, 2, 4, 8):
    for padded in (None, True):
        tuning = Tuning(pack=pack, padded=padded)
        name = f"packs of {pack}, padded: {padded}"
        add(("packs",), name, "softmax", Layout((9, 256)), "bfloat16", algorithm="warp", tuning=tuning)
        add(("packs",), name, "softmax", Layout((3, 2048)), "bfloat16", algorithm="block", tuning=tuning)
        add(("packs",), name, "sum", Layout((9, 256)), "float16", algorithm="warp", tuning=tuning)
for threads in (32, 64, 96, 160, 1024):  # three and five warps have no halves
    tuning = Tuning(threads=threads)
    add(("packs",), f"{threads} threads", "softmax", Layout((3, 1024)), algorithm="block", tuning=tuning)
    add(("packs",), f"{threads} threads", "amax", Layout((3, 1001)), algorithm="block", tuning=tuning)
for op in SOFTMAX_FAMILY:
    for algorithm in ("block", "block_smem", "online", "three_pass"):
        name = f"{op}, three warps, {algorithm}"
        add(("packs",), name, op, Layout((3, 701)), "float16", algorithm=algorithm, tuning=Tuning(threads=96))


for algorithm, op in ROW_CASES:
    if op in ("sum", "mean"):
        continue
    for dtype in ("float32", "bfloat16", "float64"):
        layout = Layout((SPECIAL_ROWS, LENGTHS[algorithm]))
        add(("specials", algorithm), f"{op} {dtype}", op, layout, dtype, None, algorithm, values=with_specials)
for op, staged in STRIDED_CASES:
    if op in ("sum", "mean"):
        continue
    layout = Layout((40, SPECIAL_ROWS), view=lambda x: x.T)
    for dtype in ("float32", "bfloat16"):
        options = {"values": lambda shape: with_specials(shape[::-1]).T, "tuning": Tuning(staged=staged)}
        add(("specials", "strided"), f"{op} {dtype}", op, layout, dtype, None, "strided", **options)


def wide_spread(shape):
    return np.random.default_rng(2).standard_normal(shape) * 40


def drawn(count):
    """Problems of random shape, strides, type and address, with the algorithm that the planner takes."""
    random = np.random.default_rng(3)
    for i in range(count):
        shape = tuple(int(n) for n in random.choice([1, 2, 3, 5, 8, 16, 31, 48, 130], random.integers(1, 4)))
        if random.random() < 0.3:
            shape = (*shape[:-1], int(random.integers(1, 5000)))
        while np.prod(shape) > 30_000:
            shape = shape[1:]
        axes = tuple(int(a) for a in random.permutation(len(shape)))
        steps = tuple(slice(None, None, int(s)) for s in random.choice([1, 1, 1, 2, -1], len(shape)))
        dim = int(random.integers(len(shape)))
        past = None if random.random() < 0.2 else (int(random.integers(4)), int(random.integers(4)))
        layout = Layout(shape, dim, lambda x, a=axes, s=steps: x.transpose(a)[s], past)
        dtype = result_dtype = random.choice(list(DTYPES))
        if random.random() < 0.3:
            result_dtype = random.choice(list(DTYPES))
        op = str(random.choice([*SOFTMAX_FAMILY, *REDUCTIONS]))
        yield f"{i}: {op} {dtype} {shape} {axes} {dim}", op, layout, str(dtype), str(result_dtype)


for op in SOFTMAX_FAMILY:
    for dtype in ("float32", "bfloat16", "float64"):
        for why, (layout, tuning) in HELD.items():
            add(("held",), why, op, layout, dtype, None, "strided", tuning=tuning)

# As the planner cuts large ones: eight packs of 16 bits under way, and what is left of them; many steps held where
# nothing is written; short pairs side by side.
for dtype in ("bfloat16", "float16"):
    for length in (1, 7, 130, 999):
        tuning = Tuning(threads=128, across=8, staged=False)
        add(
            ("walked",),
            f"{length} steps",
            "logsumexp",
            Layout((2, length, 64), 1),
            dtype,
            None,
            "strided",
            tuning=tuning,
        )
tuning = Tuning(threads=64, across=4)
add(("walked",), "200 steps held", "logsumexp", Layout((2, 200, 64), 1), algorithm="strided", tuning=tuning)
tuning = Tuning(threads=64, across=32)
for op in ("sum", "amax"):
    for length in (9, 19, 32):
        pairs = Layout((70, length, 2), 1)
        add(("walked",), f"pairs of {length}", op, pairs, algorithm="strided", tuning=tuning)


# Maxima that rise at every step and that never do, and the lowest number, which stands for -inf; of rows that are read
# once packs that some lanes lack, fewer than are under way at a time, and more.
def rising_and_falling(shape, dtype):
    lowest = float(ml_dtypes.finfo(DTYPES[dtype]).min)
    x = np.random.default_rng(4).standard_normal(shape)
    x[0] = np.linspace(-40, 40, shape[1])
    x[1] = x[0, ::-1]
    x[2:4] = lowest
    x[3, : shape[1] // 2] = -np.inf
    x[4] = -np.inf
    x[4, -1] = lowest
    return x


def rising_and_falling_columns(shape, dtype):
    return rising_and_falling(shape[::-1], dtype).T


for length in (3, 130, 256, 259, 515, 1024, 2100, 4099):
    for dtype in ("float32", "bfloat16", "float64"):
        values = functools.partial(rising_and_falling, dtype=dtype)
        rows, options = Layout((6, length)), {"values": values, "tuning": Tuning(threads=64)}
        add(("rising",), f"{length} {dtype}", "logsumexp", rows, dtype, None, "online", **options)
for op in SOFTMAX_FAMILY:
    for dtype in ("float32", "bfloat16", "float64"):
        values = functools.partial(rising_and_falling_columns, dtype=dtype)
        options = {"values": values, "tuning": Tuning(staged=False)}
        add(("rising",), f"{op} {dtype} columns", op, Layout((300, 6), 0), dtype, None, "strided", **options)

for drawing in drawn(100):
    add(("drawn",), *drawing)

FUNCTOR_CASES = [(a, n) for a, n in LENGTHS.items()] + [("strided", 40)]
for algorithm, length in FUNCTOR_CASES:
    for op in SOFTMAX_FAMILY:
        layout = Layout((length, 6), view=lambda x: x.T) if algorithm == "strided" else Layout((6, length))
        for functors in FUNCTORS:
            name = f"{op} {functors}"
            add(("functors", algorithm), name, op, layout, algorithm=algorithm, sigma=1, **functors)
            if algorithm == "strided":  # the axis of the rows that is fastest in memory is not the last
                turned = Layout((3, 40, 2), 1, lambda x: x.transpose(2, 1, 0))
                add(("functors", algorithm), f"{name}, turned", op, turned, algorithm=algorithm, sigma=1, **functors)
            if algorithm == "warp_smem":
                slabs, two_warps = Layout((2, 40, 3), 1), Tuning(lanes=8)
                add(("functors", "slabs"), name, op, slabs, algorithm=algorithm, sigma=1, tuning=two_warps, **functors)


MACHINES = {"simulator": Simulator, "gpu": gpu_machine.Gpu}


@pytest.fixture(scope="session", params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    """All kernels of this file, compiled together."""
    machine = MACHINES[request.param]([case.plan for cases in LAUNCHES.values() for case in cases])
    yield machine
    machine.close()


def check(machine, cases, seeds=(0, 1)):
    for case in cases:
        for seed in seeds:
            error = case.error(machine, seed=seed)
            assert error <= limit(case), (case.name, case.plan.kernel, error)


@pytest.mark.parametrize(("algorithm", "op", "dtype"), [key for key in LAUNCHES if len(key) == 3])
def test_every_layout(machine, algorithm, op, dtype):
    check(machine, LAUNCHES[algorithm, op, dtype])


@pytest.mark.parametrize("group", ["lanes", "chunks", "slabs", "packs", "drawn", "held", "walked", "rising"])
def test_every_shape_of_a_kernel(machine, group):
    check(machine, LAUNCHES[group,])


def test_slabs_are_slabs():
    """Axes of one element are none, and rows that are left then follow each other."""
    assert all(int(dict(case.plan.shape)["columns"]) > 1 for case in LAUNCHES["slabs",])


def test_where_a_tile_waits():
    """In registers if it is short, in shared memory if it is longer or told to, else nowhere."""
    for case in LAUNCHES["held",]:
        assert "::strided_held<" in case.plan.kernel and case.plan.reads == 1, case.name
    for staged in (True, False):
        plan = launch("", "softmax", STRIDED["columns"], algorithm="strided", tuning=Tuning(staged=staged)).plan
        assert "::strided<" in plan.kernel and (plan.shared_bytes > 0, plan.reads) == (staged, 2 - staged)
    assert launch("", "softmax", Layout((6000, 50), 0), algorithm="strided").plan.shared_bytes > 0


def test_what_is_walked_along():
    kernels = {case.name: (case.plan.kernel, dict(case.plan.shape)) for case in LAUNCHES["walked",]}
    for name, (kernel, shape) in kernels.items():
        if name == "200 steps held":
            assert "::strided_held<" in kernel and (shape["packs"], shape["pack"]) == (13, 4)
        elif name.startswith("pairs"):
            assert "::strided_reduce<" in kernel and (shape["across"], shape["pack"]) == (32, 2)
        else:
            assert "::strided<" in kernel and (shape["across"], shape["pack"]) == (8, 4)


def test_tiles_lie_as_memory_does():
    """Threads side by side read what lies side by side: along a row whose steps are nearer than other rows, across as
    many rows as are near, and some of each where x lies one way and the result the other."""

    def across(op, shape, dim, view=None):
        layout = Layout(shape, dim, view)
        return dict(launch("", op, layout, values=np.zeros).plan.shape)["across"]

    for op in ("softmax", "logsumexp", "sum"):
        assert across(op, (64, 600), -1, lambda x: x[:, ::2]) == 1
        assert across(op, (64, 600), -1, lambda x: x[:, ::-1]) == 1
    assert across("softmax", (200, 300), -1, lambda x: x.T) <= 8
    assert across("softmax", (1024, 300, 3), 1) == 4
    assert across("softmax", (32, 300, 3), 1) == 2  # few tiles
    assert across("sum", (2, 5, 40000), 1) == 128


@pytest.mark.parametrize("algorithm", [*LENGTHS, "strided"])
def test_special_values(machine, algorithm):
    """NaN, infinities and numbers up to the largest; rows beside them are not touched."""
    for case in LAUNCHES["specials", algorithm]:
        y = case.run(machine)
        for row, (got, expected) in enumerate(zip(y, case.reference(), strict=True)):
            error = max_ulp(got, expected, floor=FLOORS[case.op])
            assert error <= limit(case), (case.name, row, got, expected)


@pytest.mark.parametrize("algorithm", [*LENGTHS, "slabs", "strided"])
def test_functors(machine, algorithm):
    """Scaled on the way in; squared on the way in and shifted on the way out, by text; masked, one row altogether."""
    for case in LAUNCHES["functors", algorithm]:
        plan, arrays, expected, floor = functor_result(case)
        _, y, *_ = machine.launch(plan, arrays, grid=few_blocks(plan, 2), seed=1)
        assert max_ulp(y, expected, floor=floor) <= limit(case), (case.name, y, expected)


def test_probabilities_sum_to_one(machine):
    """As exactly as float32 terms can: the same exponential in every pass."""
    for algorithm in LENGTHS:
        for case in LAUNCHES[algorithm, "softmax", "float32"]:
            sums = case.run(machine).astype(np.float64).sum(axis=-1)
            assert np.abs(sums - 1).max() < 4e-7, (case.name, sums)
    for case in LAUNCHES["strided", "softmax", "float32"]:
        sums = case.run(machine).astype(np.float64).sum(axis=case.dims)
        assert np.abs(sums - 1).max() < 4e-7, (case.name, case.plan.kernel, sums)


def test_subtracting_the_maximum_first_is_less_accurate():
    """What float32 kernels do elsewhere, exp(x - max) / sum, on rows of wide spread, and what ours give there."""
    x = wide_spread((5, 4096)).astype(np.float32)
    expected = reference.softmax(x, dtype=np.longdouble)
    exps = np.exp(x - x.max(axis=1, keepdims=True))
    elsewhere = max_ulp(exps / exps.sum(axis=1, keepdims=True, dtype=np.float32), expected)
    ours = launch("wide", "softmax", Layout((5, 4096)), algorithm="block", values=wide_spread)
    simulator = Simulator([ours.plan])
    try:
        error = ours.error(simulator)
    finally:
        simulator.close()
    assert error <= 4 < elsewhere


def test_the_same_bits_under_every_schedule(machine):
    cases = [LAUNCHES[algorithm, "softmax", "float32"][1] for algorithm in LENGTHS]
    cases += [case for case in LAUNCHES["strided", "softmax", "float32"] if case.name == "long"]
    for case in cases:
        results = {case.run(machine, grid=grid, seed=seed).tobytes() for grid in (1, 3) for seed in range(6)}
        assert len(results) == 1, case.plan.kernel


def test_random_data_is_what_the_kernels_saw():
    """A reference computed from another array would agree with nothing."""
    case = LAUNCHES["warp", "softmax", "float32"][0]
    np.testing.assert_array_equal(case.x, random_array(case.x.shape, "float32", 3))


def test_more_rows_than_a_grid_has_blocks_are_refused_where_each_block_has_one():
    """And taken where a block has several, or steps on."""

    def plan(algorithm):
        return make_cuda_plan(make_problem("softmax", "float32", (1 << 31, 8), (1,)), by_name("h200"), algorithm)

    with pytest.raises(ValueError, match=r"a block for each of its rows, and a grid has 2147483647; leave"):
        plan("block")
    for algorithm in (None, "warp", "three_pass"):
        assert plan(algorithm).blocks(8, 132) < 1 << 31
