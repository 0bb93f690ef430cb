"""The CUDA kernels of gradients, run on a CPU by tests/cusim and, with -m gpu, on a GPU: every algorithm, operation,
type and layout against the reference."""

import gpu_machine
import numpy as np
import pytest
from cuda_cases import few_blocks
from cuda_gradient_cases import STRIDED, Layout, Place, launch, rows_of
from cuda_gradient_values import LIMITS, SPECIAL_ROWS, with_specials, with_subnormal_exponentials
from helpers import DTYPES
from simulator import Simulator

from onepass.cuda.plan import Tuning

SUMS = ("softmax_backward", "log_softmax_backward")
GRADIENTS = (*SUMS, "logsumexp_backward")
# Of dy, of what was saved, of dx.
MIXED = (
    ("float32", "bfloat16", "bfloat16"),
    ("bfloat16", "float32", "float32"),
    ("float16", "bfloat16", "float32"),
    ("float64", "float32", "float16"),
    ("float32", "float32", "float64"),
)
# Long enough that every thread of the algorithm has something, with a rest.
ROWS = {
    "warp": (200, "warp", Tuning()),
    "warp_smem": (203, "warp_smem", Tuning()),
    "block": (1500, "block", Tuning()),
    "block_smem": (2600, "block_smem", Tuning()),
    "block_uncached, nothing kept": (1500, "block_uncached", Tuning(kept=0, threads=128)),
    "block_uncached, a part kept": (1500, "block_uncached", Tuning(kept=50, threads=128)),
    "block_uncached, all kept": (700, "block_uncached", Tuning(threads=128)),
}
FEW = ("aligned", "odd: each row starts elsewhere", "only the inputs agree", "dy has one value for a row", "one column")
LAUNCHES = {}


def add(key, *args, **options):
    LAUNCHES.setdefault(key, []).append(launch(*args, **options))


def layouts_of(name):
    layouts = rows_of(ROWS[name][0])
    if name == "warp_smem":  # which takes rows that follow each other
        apart = ("padded inputs", "everything padded", "dy has one value for a row", "dy has one value")
        return {why: at for why, at in layouts.items() if why not in (*apart, "two kept axes in another order")}
    return layouts


def layouts(of, op, dtype):
    """All of them for the types people train in, the rest for what differs by type."""
    every = dtype == "bfloat16" if op == SUMS[0] else dtype == "float32"
    return {why: layout for why, layout in of.items() if every or why in FEW}


for name, (length, algorithm, tuning) in ROWS.items():
    for op in SUMS:
        for dtype in DTYPES if op == SUMS[0] and tuning.kept is None else ("float32", "bfloat16"):
            for why, layout in layouts(layouts_of(name), op, dtype).items():
                add((name, op, dtype), why, op, layout, dtype, algorithm, tuning=tuning)
    for dtypes in MIXED if tuning == Tuning() else ():
        for why in FEW[1:3]:
            add((name, SUMS[0], "mixed"), why, SUMS[0], rows_of(length)[why], dtypes, algorithm)
for dtype in DTYPES:
    for length in (200, 3000):
        for why, layout in layouts(rows_of(length), "logsumexp_backward", dtype).items():
            add(("warp", "logsumexp_backward", dtype), why, "logsumexp_backward", layout, dtype, "warp")
for dtypes in MIXED:
    for why in FEW[1:3]:
        add(("warp", "logsumexp_backward", "mixed"), why, "logsumexp_backward", rows_of(200)[why], dtypes, "warp")
for op in GRADIENTS:
    for dtype in ("float32", "bfloat16"):
        for staged in (True, False) if op in SUMS else (None,):
            for why, layout in STRIDED.items():
                if dtype == "float32" or op == SUMS[0]:
                    tuning = Tuning(staged=staged)
                    add(("strided", op, dtype), why, op, layout, dtype, "strided", tuning=tuning)
    for dtype in ("float16", "float64"):
        add(("strided", op, dtype), "columns", op, STRIDED["columns"], dtype, "strided")
    for dtypes in MIXED:
        add(("strided", op, "mixed"), "dy off", op, STRIDED["a middle dim, dy off"], dtypes, "strided")

# What each parameter of the warp algorithm does, held fixed one at a time.
for lanes in (1, 4, 32):
    for rows in (1, 2):
        tuning = Tuning(lanes=lanes, rows=rows, pack=4)
        odd = Layout((37, lanes * 4 - 1), saved=Place(past=1), dy=Place(past=1), dx=Place(past=1))
        for layout in (Layout((37, lanes * 4)), odd):
            add(("shapes",), f"{lanes} lanes, {rows} rows", "softmax_backward", layout, algorithm="warp", tuning=tuning)
# Several packs of 16 bits a lane, which not all have: all are asked for before the first is widened.
for lanes, length in ((8, 136), (32, 296), (16, 360)):
    for op in SUMS:
        for dtypes in ("float16", "bfloat16", *MIXED[:3]):
            odd = Layout((5, length - 3), saved=Place(past=3), dy=Place(past=3), dx=Place(past=3))
            for layout in (Layout((5, length)), odd):
                name, tuning = f"{lanes} lanes, {length} columns of {dtypes}", Tuning(lanes=lanes)
                add(("shapes",), name, op, layout, dtypes, algorithm="warp", tuning=tuning)
# Fewer lanes than a row has edges.
for lanes, length in ((1, 17), (2, 37), (4, 61)):
    odd = Layout((37, length), saved=Place(past=3), dy=Place(past=3), dx=Place(past=3))
    for op in (*SUMS, "logsumexp_backward"):
        name, tuning = f"{lanes} lanes, fourteen edges", Tuning(lanes=lanes, pack=8)
        add(("shapes",), name, op, odd, "bfloat16", algorithm="warp", tuning=tuning)
for lanes in (1, 2, 8, 32):
    for rows in (1, 2):
        tuning = Tuning(lanes=lanes, rows=rows, threads=64)
        for length, dtype in ((3, "bfloat16"), (10, "float32"), (2 * lanes - 1, "float16")):
            name = f"{lanes} lanes, {rows} rows, {length} columns by way of shared memory"
            layout = Layout((150, length), saved=Place(past=2), dy=Place(past=4), dx=Place(past=2))
            for op in SUMS:
                add(("shapes",), name, op, layout, dtype, algorithm="warp_smem", tuning=tuning)
# Slabs, as in test_cuda_kernels.py.
for shape in ((70, 20, 3), (90, 8, 5), (23, 37, 2), (31, 32, 6), (11, 20, 33), (3, 50, 49)):
    for op, dtypes in ((SUMS[0], "float32"), (SUMS[0], "float16"), (SUMS[1], "bfloat16"), (SUMS[1], "float64")):
        add(("slabs",), f"slabs of {shape}", op, Layout(shape, 1), dtypes, algorithm="warp_smem")
    odd = Layout(shape, 1, saved=Place(past=2), dy=Place(past=4), dx=Place(past=3))
    add(("slabs",), f"slabs of {shape}, off boundaries", SUMS[0], odd, "float16", algorithm="warp_smem")
for dtypes in MIXED:
    add(("slabs",), "mixed slabs", SUMS[0], Layout((31, 32, 6), 1), dtypes, algorithm="warp_smem")
for pack in (1, 2, 4, 8):
    for padded in (None, True):
        tuning = Tuning(pack=pack, padded=padded)
        for algorithm, shape in (("warp", (9, 256)), ("block", (3, 2048))):
            add(("shapes",), f"{pack} {padded}", SUMS[0], Layout(shape), "bfloat16", algorithm, tuning=tuning)
    tuning = Tuning(pack=pack)
    add(("shapes",), f"packs of {pack}", "logsumexp_backward", Layout((3, 900)), "float16", "warp", tuning=tuning)
for threads in (32, 64, 96, 320, 1024):  # three and ten warps have no halves
    tuning = Tuning(threads=threads)
    for algorithm in ("block", "block_smem"):
        add(("shapes",), f"{threads} threads", SUMS[0], Layout((3, 512)), algorithm=algorithm, tuning=tuning)
for op in SUMS:  # more packs of a lane than 32 lanes have
    for length in (145, 640, 761):
        add(("shapes",), f"16 lanes, {length}", op, Layout((9, length)), "bfloat16", "warp", tuning=Tuning(lanes=16))


def drawn(count):
    """Problems of random shape, strides, types and addresses, with the algorithm that the planner takes."""
    random = np.random.default_rng(5)
    for i in range(count):
        shape = tuple(int(n) for n in random.choice([1, 2, 3, 5, 8, 16, 31, 48, 130], random.integers(1, 4)))
        if random.random() < 0.3:
            shape = (*shape[:-1], int(random.integers(1, 5000)))
        while np.prod(shape) > 30_000:
            shape = shape[1:]

        def place(shape=shape):
            axes = tuple(int(a) for a in random.permutation(len(shape)))
            steps = tuple(int(s) for s in random.choice([1, 1, 1, 2, -1], len(shape)))
            base = tuple(shape[a] * abs(s) for a, s in zip(axes, (steps[a] for a in axes), strict=True))
            slices = tuple(slice(None, None, s) for s in steps)
            view = lambda x: x.transpose(np.argsort(axes))[slices]  # noqa: E731
            return Place(base, view, int(random.integers(4)))

        plain = random.random() < 0.4
        places = {"dx": Place()} if plain else {name: place() for name in ("saved", "dy", "dx")}
        layout = Layout(shape, int(random.integers(len(shape))), told=random.random() < 0.8, **places)
        dtypes = (str(random.choice(list(DTYPES))),) * 3
        if random.random() < 0.3:
            dtypes = tuple(str(d) for d in random.choice(list(DTYPES), 3))
        op = str(random.choice(GRADIENTS))
        yield f"{i}: {op} {dtypes} {shape} {layout.dim}", op, layout, dtypes


for drawing in drawn(60):
    add(("drawn",), *drawing)


for name, (length, algorithm, tuning) in ROWS.items():
    for op in GRADIENTS if name == "warp" else SUMS:
        for dtype in ("float32", "bfloat16", "float64"):
            layout = Layout((SPECIAL_ROWS, length))
            add(("specials", name), f"{op} {dtype}", op, layout, dtype, algorithm, values=with_specials, tuning=tuning)
for op in GRADIENTS:
    columns = Place((40, SPECIAL_ROWS), lambda x: x.T)
    for dtype in ("float32", "bfloat16"):
        for staged in (True, False):
            layout = Layout((SPECIAL_ROWS, 40), saved=columns, dy=columns, dx=columns)
            options = {"values": with_specials, "tuning": Tuning(staged=staged)}
            add(("specials", "strided"), f"{op} {dtype}", op, layout, dtype, "strided", **options)
    if op != "softmax_backward":
        layout = Layout((4, 200))
        options = {"values": with_subnormal_exponentials}
        add(("specials", "subnormal"), op, op, layout, ("bfloat16", "float32", "bfloat16"), "warp", **options)

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
            assert error <= LIMITS[case.views[1].dtype.name], (case.name, case.plan.kernel, error)


@pytest.mark.parametrize(("name", "op", "dtype"), [key for key in LAUNCHES if len(key) == 3])
def test_every_layout(machine, name, op, dtype):
    check(machine, LAUNCHES[name, op, dtype])


@pytest.mark.parametrize("group", ["shapes", "slabs", "drawn"])
def test_every_shape_of_a_kernel(machine, group):
    check(machine, LAUNCHES[group,])


@pytest.mark.parametrize("name", [*ROWS, "strided", "subnormal"])
def test_special_values(machine, name):
    """NaN and infinities where the formula has them, and nowhere else; zeros where nothing was not masked."""
    check(machine, LAUNCHES["specials", name])


def test_the_same_bits_under_every_schedule(machine):
    for name in ROWS:
        case = LAUNCHES[name, "softmax_backward", "float32"][1]
        results = {case.run(machine, grid=grid, seed=seed).tobytes() for grid in (1, 3) for seed in range(6)}
        assert len(results) == 1, case.plan.kernel


@pytest.mark.parametrize("which", ["dy", "the saved array"])
def test_in_place(machine, which):
    """dx may be dy or the saved array: every element is read, as often as it is, before it is written."""
    number = 2 if which == "dy" else 0
    for name in ROWS:
        case = LAUNCHES[name, "softmax_backward", "float32"][1]
        arrays = [array for array in case.arrays() if array.word != 1]
        place = [array.word for array in arrays].index(number)
        arrays[place].also = 1
        after = machine.launch(case.plan, arrays, grid=few_blocks(case.plan, 2), seed=1)[place]
        assert after.tobytes() == case.run(machine).tobytes(), (name, which)
