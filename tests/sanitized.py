"""What tools/sanitize.sh runs under sanitizers: NumPy alone, no test framework. It fails on a wrong result, too.

python tests/sanitized.py memory     every algorithm, operation, dtype and instruction set at the edges of its memory
python tests/sanitized.py threads    the pool and the cache of results from several Python threads
"""

import ctypes
import dataclasses
import itertools
import mmap
import queue
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import numpy.random  # NumPy imports it when first used: not from several threads at once
from gradient_cases import GRADIENTS, cast, error_of, inputs_of
from gradient_cases import LIMITS as GRADIENT_LIMITS
from helpers import DTYPES, ELEMENTWISE, FLOORS, LIMITS, REDUCTIONS, SOFTMAX_FAMILY
from ulp import max_ulp

import onepass
from onepass import _engine, call, call_gradients, reference
from onepass.cpu import cpu_plan
from onepass.machine import this_machine

OPS = (*SOFTMAX_FAMILY, *REDUCTIONS)
ROWS, TILES = ("registers", "row", "online", "split"), ("strided", "packed")


# ---- the same values in memory of different shapes, for inputs and results ----


def exact(values):
    """Begins and ends where its allocation does: AddressSanitizer sees a byte too far."""
    return values.copy(order="C")


def beside_a_guard(values, at_end):
    """Between pages that nobody may touch: the sanitizer sees no masked or streaming access, the processor does."""
    page = mmap.PAGESIZE
    inside = -(-values.nbytes // page) * page
    memory = mmap.mmap(-1, page + inside + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    for guard in (start, start + page + inside):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) != 0:
            sys.exit("mprotect failed")
    offset = page + (inside - values.nbytes if at_end else 0)
    return filled(np.frombuffer(memory, values.dtype, values.size, offset).reshape(values.shape), values)


def misaligned(values):
    """Aligned to its elements and to nothing more."""
    return filled(np.full(values.size + 3, np.nan, values.dtype)[3:].reshape(values.shape), values)


def reversed_axes(values):
    backwards = (*[slice(None, None, -1)] * values.ndim, ...)
    return values[backwards].copy(order="C")[backwards]


def every_second(values):
    """NaN between the elements, and around them: one that is read by mistake shows."""
    larger = np.full([2 * n + 5 for n in values.shape], np.nan, values.dtype)
    return filled(larger[(*(slice(3, 3 + 2 * n, 2) for n in values.shape), ...)], values)


def repeated(values):
    """One element in memory for each row; for `values_of(..., alike=True)`, and for inputs alone."""
    return np.broadcast_to(exact(values[..., :1]), values.shape)


def filled(view, values):
    view[...] = values
    return view


LAYOUTS = {
    "exact": exact,
    "behind a guard": lambda values: beside_a_guard(values, at_end=False),
    "before a guard": lambda values: beside_a_guard(values, at_end=True),
    "misaligned": misaligned,
    "reversed": reversed_axes,
    "every second": every_second,
}
INPUTS = {**LAYOUTS, "repeated": repeated}
TARGETS = {**LAYOUTS, "fresh": lambda values: None, "in place": None}


def bytes_around(view):
    """All of the allocation that a view lies in, with NaN in place of the view."""
    view[...] = np.nan
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view.tobytes()


# ---- values and what is expected of them ----


@lru_cache(maxsize=64)
def values_of(shape, dtype, alike=False):
    """Normal values; the last row also has infinities, NaN and numbers near the ends of the type."""
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape) * rng.choice([1, 3, 30])
    if x.size >= 8:
        special = rng.choice([np.inf, -np.inf, np.nan, 1e30, -1e30, 6e4, 1e-7, -0.0], size=3)
        x[-1].flat[rng.integers(0, x[-1].size, 3)] = special
    if alike:
        x[...] = x[..., :1]
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[dtype])


@lru_cache(maxsize=512)
def expected_of(op, shape, dtype, dim, alike=False):
    """The result, and the size of the terms it is a sum or difference of: errors are in units of its last place."""
    values = values_of(shape, dtype, alike)
    expected = getattr(reference, op)(values, dim, dtype=np.longdouble)
    if op not in ("sum", "mean"):
        return expected, FLOORS[op]
    terms = getattr(reference, op)(np.abs(values), dim)
    return expected, np.where(np.isfinite(terms), terms, 0)


# ---- memory ----

PARALLEL_ELEMENTS, NONTEMPORAL_BYTES = cpu_plan.PARALLEL_ELEMENTS, cpu_plan.NONTEMPORAL_BYTES
chance = random.Random(0)
ran = Counter()


@lru_cache
def machine(isa, small):
    this_machine.cache_clear()
    caches = {"l1_bytes": 1 << 10, "l2_bytes": 8 << 10, "l3_bytes": 16 << 10} if small else {}
    return dataclasses.replace(this_machine(), **caches)


def plan_for(isa, small, past_cache):
    """`small`: caches of a few KiB, so that small arrays are split and chunked by three threads. `past_cache`: results
    of any size are stored past it."""
    _engine.choose_isa(isa)
    _engine.set_num_threads(3 if small else 2)
    call.this_machine = call_gradients.this_machine = lambda: machine(isa, small)
    cpu_plan.PARALLEL_ELEMENTS = 1 if small else PARALLEL_ELEMENTS
    cpu_plan.NONTEMPORAL_BYTES = 1 if past_cache else NONTEMPORAL_BYTES


def any_machine():
    """`small` and `past_cache`, one draw for all instruction sets."""
    small = chance.random() < 0.5
    return small, small or chance.random() < 0.5


def check(op, shape, dtype, dim, algorithm=None, result_dtype=None):
    """One call in every instruction set, one way of lying in memory, compared with the reference."""
    layout, target = chance.choice([*INPUTS]), chance.choice([*TARGETS])
    small, past_cache = any_machine()
    alike = layout == "repeated"
    if target == "in place" and (op not in ELEMENTWISE or result_dtype or alike):
        target = "fresh"
    values = values_of(shape, dtype, alike)
    expected, unit = expected_of(op, shape, dtype, dim, alike)
    to = DTYPES[result_dtype or dtype]
    # Chunks of a few steps are merged far more often than a planner would have them; that adds up in float64 alone.
    limit = max(LIMITS[op, to.name], LIMITS[op, dtype]) * (16 if small else 1)
    for isa in _engine.isas():
        plan_for(isa, small, past_cache)
        x = INPUTS[layout](values)
        out = x if target == "in place" else TARGETS[target](np.full(expected.shape, np.nan, to))
        around = None if out is None else bytes_around(out)
        if out is x:
            filled(x, values)
        try:
            y = call.plan_and_run(op, x, dim, False, to if result_dtype else None, out, algorithm)
        except ValueError as error:
            if "cannot serve" not in str(error):
                raise
            continue
        ran[_engine.last_algorithm(), dtype, isa] += 1
        error = max_ulp(y, expected, floor=unit)
        wrong = (
            f"{_engine.last_algorithm()} ran" * (algorithm not in (None, _engine.last_algorithm()))
            or f"wrong by {error:.3g} ULP (limit {limit})" * (error > limit)
            or "wrote to the input" * (out is not x and x.tobytes() != values.tobytes())
            or "wrote around the result" * (around is not None and bytes_around(out) != around)
        )
        if wrong:
            described = f"{op} of {shape} {dtype} -> {to.name}, dim {dim}, {algorithm}, {isa}, {small=}, {past_cache=}"
            sys.exit(f"{described}, {layout} -> {target}: {wrong}")


def check_gradient(op, shape, dtypes, dim, algorithm=None):
    """The same for a gradient; `dtypes` are those of dy, y and the result, of logsumexp_backward dy, x and lse."""
    target = chance.choice([*TARGETS])
    small, past_cache = any_machine()
    per_row = op == "logsumexp_backward"
    to = DTYPES[dtypes[1 if per_row else 2]]
    given = cast(inputs_of(op, shape, "float32", dim), *dtypes[: 3 if per_row else 2])
    layouts = [chance.choice([*LAYOUTS]) if values.ndim else "exact" for values in given]
    if not per_row and 0 not in shape and chance.random() < 0.2:
        layouts[0] = "repeated"
        given = (np.broadcast_to(given[0].flat[0], shape), given[1])
    if target == "in place" and given[1].dtype != to:
        target = "fresh"
    limit = max(GRADIENT_LIMITS[op, name] for name in (*dtypes, to.name)) * (4 if small else 1)
    for isa in _engine.isas():
        plan_for(isa, small, past_cache)
        dy, y, *lse = (INPUTS[name](values) for name, values in zip(layouts, given, strict=True))
        out = y if target == "in place" else TARGETS[target](np.full(shape, np.nan, to))
        around = None if out is None else bytes_around(out)
        if out is y:
            filled(y, given[1])
        try:
            got = call_gradients.plan_and_run(op, (y, dy, *lse), dim, False, None if per_row else to, out, algorithm)
        except ValueError as error:
            if "cannot serve" not in str(error):
                raise
            continue
        ran["gradient", _engine.last_algorithm(), to.name, isa] += 1
        error = error_of(op, got, given, dim)
        after = ((x, values) for x, values in zip((dy, y, *lse), given, strict=True) if x is not out)
        wrong = (
            f"{_engine.last_algorithm()} ran" * (algorithm not in (None, _engine.last_algorithm()))
            or f"wrong by {error:.3g} ULP (limit {limit})" * (not error <= limit)
            or "wrote to an input" * any(x.tobytes() != values.tobytes() for x, values in after)
            or "wrote around the result" * (around is not None and bytes_around(out) != around)
        )
        if wrong:
            described = f"{op} of {shape} {dtypes}, dim {dim}, {algorithm}, {isa}, {small=}, {past_cache=}"
            sys.exit(f"{described}, {layouts} -> {target}: {wrong}")


def gradients():
    for dtype, op in itertools.product(DTYPES, GRADIENTS):
        for length, algorithm in itertools.product(LENGTHS, ROWS):
            for rows in (2, 21) if length < 200 else (3,):
                check_gradient(op, (rows, length), [dtype] * 3, 1, algorithm)
        # Packed tiles twice as often: of three arrays, seldom all lie in a way that they can be read or written so.
        for inner, steps, algorithm in itertools.product(INNERS, STEPS, (*TILES, "packed")):
            check_gradient(op, (2, steps, inner), [dtype] * 3, 1, algorithm)
        for inner, algorithm in itertools.product((3, 3, 16, 16, 40, 40), TILES):  # past the small machine's caches
            check_gradient(op, (2, 1500, inner), [dtype] * 3, 1, algorithm)
        for shape, dim in (*SEVERAL, *EMPTY):
            check_gradient(op, shape, [dtype] * 3, dim)
    for dtypes, op in itertools.product(itertools.product(DTYPES, DTYPES, DTYPES), GRADIENTS):
        check_gradient(op, (3, 130), dtypes, 1, chance.choice(("row", "online", "split")))
        check_gradient(op, chance.choice(((3, 40, 16), (2, 33, 33))), dtypes, 1, chance.choice(TILES))
    for key in itertools.product((*ROWS, *TILES), DTYPES, _engine.isas()):
        if ran[("gradient", *key)] < 15:
            sys.exit(f"gradients: {', '.join(key)} ran only {ran[('gradient', *key)]} times")


# Around the widths of vectors (2 to 16 lanes), of eight of them, of cache lines, and of a chunk of 4096.
LENGTHS = (1, 3, 8, 15, 17, 33, 63, 129, 255, 1025, 9001)
INNERS = (2, 3, 7, 12, 16, 17, 33, 100, 259)
STEPS = (1, 3, 133)
SEVERAL = (
    ((40, 5, 4), 1),
    ((33, 3, 7), 1),
    ((1,), 0),
    ((1, 1), 0),
    ((3, 4, 5), (0, 2)),
    ((3, 4, 5), None),
    ((2, 3, 5, 7), (1, 3)),
)
EMPTY = (((0,), 0), ((0, 5), 1), ((5, 0), 1), ((0, 5), 0), ((5, 0), 0), ((2, 0, 3), (0, 2)), ((0, 0), None))


def memory():
    for dtype, op in itertools.product(DTYPES, OPS):
        for length, algorithm in itertools.product(LENGTHS, ROWS):
            for rows in (2, 21) if length < 200 else (3,):  # less and more than a batch of short rows
                check(op, (rows, length), dtype, 1, algorithm)
        for inner, steps, algorithm in itertools.product(INNERS, STEPS, TILES):
            check(op, (2, steps, inner), dtype, 1, algorithm)
        for inner, algorithm in itertools.product((3, 3, 16, 16, 40, 40), TILES):  # past the small machine's caches
            check(op, (2, 1500, inner), dtype, 1, algorithm)
        for inner in (100, 251) * 2:  # one tile, of 25 vectors of v2, and of 32 of v3
            check(op, (24, 21, inner), dtype, 1, "strided")
        for shape, dim in (*SEVERAL, *(EMPTY if op not in ("amax", "amin") else ())):
            check(op, shape, dtype, dim)
    for (dtype, to), op in itertools.product(itertools.permutations(DTYPES, 2), ELEMENTWISE):
        for shape, algorithm in itertools.product(((3, 1), (2, 17), (3, 130), (2, 4099)), ("row", "online", "split")):
            check(op, shape, dtype, 1, algorithm, to)
        for shape, algorithm in itertools.product(((2, 7, 3), (3, 40, 16), (2, 33, 33), (1, 17, 100)), TILES):
            check(op, shape, dtype, 1, algorithm, to)
    for key in itertools.product((*ROWS, *TILES), DTYPES, _engine.isas()):
        if ran[key] < 25:
            sys.exit(f"{', '.join(key)} ran only {ran[key]} times")
    gradients()
    blocks()
    print(f"memory: {ran.total()} calls under {', '.join(_engine.isas())}, as in the reference")


def blocks():
    """Results in blocks of the cache, to their last byte, and views of them that outlive them."""
    for rows in (64, 65, 127, 520):
        x = values_of((rows, 1031), "float32")
        for _ in range(3):
            view = onepass.softmax(x)[::2, 3:]
            kept = onepass.sum(view)
            other = onepass.log_softmax(x)
            if not np.array_equal(onepass.sum(view), kept, equal_nan=True):
                sys.exit("a block was handed out while a view of it lived")
            del view, other


# ---- threads ----

WORK = (
    ("softmax", (8, 8), "float32", -1),
    ("softmax", (1024, 16), "float32", -1),
    ("softmax", (90, 1000), "float32", -1),
    ("softmax", (1, 150_000), "float32", -1),
    ("log_softmax", (30, 5000), "float16", -1),
    ("log_softmax", (16, 300, 17), "float32", 1),
    ("softmax", (9000, 6), "float64", 0),
    ("softmax", (2000, 50), "bfloat16", 0),
    ("logsumexp", (3, 60_000), "float64", -1),
    ("sum", (300, 400), "float32", 0),
    ("amax", (300, 400), "float16", -1),
)
WAVES, THREADS, ROUNDS = 4, 4, 40


def threads():
    """Python threads that call at once; results are checked, and die, in threads other than those that made them."""
    cpu_plan.PARALLEL_ELEMENTS = 1 << 10  # small enough for a sanitizer, large enough to be shared
    expected = []
    for op, shape, dtype, dim in WORK:
        y = getattr(onepass, op)(values_of(shape, dtype), dim)
        right, unit = expected_of(op, shape, dtype, dim)
        if max_ulp(y, right, floor=unit) > LIMITS[op, dtype]:
            sys.exit(f"{op} of {shape} {dtype}, dim {dim}: wrong")
        expected.append(y.copy())
    made = queue.SimpleQueue()

    def take_and_check():
        k, y = made.get()
        if not np.array_equal(y, expected[k], equal_nan=True):
            raise SystemExit(f"wrong beside other threads: {WORK[k]}")

    def call_and_check(seed):
        order = random.Random(seed)
        for i in range(ROUNDS):
            op, shape, dtype, dim = WORK[k := order.randrange(len(WORK))]
            made.put((k, getattr(onepass, op)(values_of(shape, dtype), dim)))
            if i % 3 == 0:
                take_and_check()
            if i % 7 == 0:
                onepass.set_num_threads(order.randrange(1, 8))
            if i % 11 == 0:
                onepass.empty_cache()

    for wave in range(WAVES):
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(call_and_check, range(wave * THREADS, (wave + 1) * THREADS)))
        while not made.empty():
            take_and_check()
    del y
    live = onepass.memory_stats()["live_blocks"]
    if live:
        sys.exit(f"{live} blocks were not given back")
    print(f"threads: {WAVES} times {THREADS} threads of {ROUNDS} calls: no wrong result")


if __name__ == "__main__":
    programs = {"memory": memory, "threads": threads}
    if len(sys.argv) != 2 or sys.argv[1] not in programs:
        sys.exit(__doc__)
    programs[sys.argv[1]]()
