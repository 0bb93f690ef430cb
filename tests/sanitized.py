"""What tools/sanitize.sh runs under sanitizers: NumPy alone, no test framework. It fails on a wrong result, too.

python tests/sanitized.py isas             the instruction sets to run it under, on one line
python tests/sanitized.py memory           every algorithm, operation and dtype at the edges of its memory
python tests/sanitized.py threads          the pool and the cache of results from several Python threads
"""

import dataclasses
import itertools
import queue
import sys
import threading
from collections import Counter
from functools import lru_cache

import numpy as np
from helpers import DTYPES, ELEMENTWISE, FLOORS, LIMITS, REDUCTIONS, SOFTMAX_FAMILY
from ulp import max_ulp

import onepass
from onepass import _engine, call, plan, reference
from onepass.machine import this_machine

OPS = (*SOFTMAX_FAMILY, *REDUCTIONS)
RESULT_CANARY = 0x5A  # the bytes around a result
ran = Counter()


# ---- the same values in memory of different shapes ----
# Each begins or ends where its allocation does, so that a byte too far is a byte outside.


def exact(values):
    return values.copy(order="C")


def misaligned(values):
    """Aligned to its elements and to nothing more."""
    buffer = np.empty(values.size + 3, values.dtype)
    view = buffer[3:].reshape(values.shape)
    view[...] = values
    return view


def reversed_axes(values):
    backwards = (slice(None, None, -1),) * values.ndim
    return values[backwards].copy(order="C")[backwards]


def every_second(values):
    """NaN between the elements: one that is read by mistake shows."""
    buffer = np.full(max(2 * values.size - 1, 0), np.nan, values.dtype)
    strides = [2 * s for s in np.empty(values.shape, values.dtype).strides]
    view = np.lib.stride_tricks.as_strided(buffer, values.shape, strides)
    view[...] = values
    return view


def columns_of_a_wider_array(values):
    buffer = np.full((*values.shape[:-1], values.shape[-1] + 5), np.nan, values.dtype)
    view = buffer[..., 5:]
    view[...] = values
    return view


def fortran_order(values):
    return values.copy(order="F")


LAYOUTS = (exact, misaligned, reversed_axes, every_second, columns_of_a_wider_array, fortran_order)


# ---- where results go ----


class Fresh:
    """A new array."""

    def __init__(self, x, shape, dtype, op):
        self.out = None

    def untouched_around(self):
        return True


class Exact(Fresh):
    """An allocation that is full."""

    def __init__(self, x, shape, dtype, op):
        self.out = np.full(shape, np.nan, dtype)


class InALargerBuffer(Fresh):
    """In the middle of a buffer, aligned to elements alone; nothing around it may change."""

    def __init__(self, x, shape, dtype, op):
        size = int(np.prod(shape)) * dtype.itemsize
        before = 128 + dtype.itemsize
        self.buffer = np.full(before + size + 256, RESULT_CANARY, np.uint8)
        self.out = self.buffer[before : before + size].view(dtype).reshape(shape)
        self.around = [self.buffer[:before], self.buffer[before + size :]]
        self.out[...] = np.nan

    def untouched_around(self):
        return all((part == RESULT_CANARY).all() for part in self.around)


class EverySecond(Fresh):
    """Strided, with elements between those of the result that may not change."""

    def __init__(self, x, shape, dtype, op):
        self.buffer = np.full((*shape, 2), RESULT_CANARY, np.uint8).repeat(dtype.itemsize, axis=-1)
        self.out = self.buffer.view(dtype)[..., 0]
        self.between = self.buffer[..., dtype.itemsize :]
        self.out[...] = np.nan

    def untouched_around(self):
        return (self.between == RESULT_CANARY).all()


class InPlace(Fresh):
    """The input itself, where there is as much result as input."""

    def __init__(self, x, shape, dtype, op):
        self.out = x if op in ELEMENTWISE and dtype == x.dtype else None


TARGETS = (Fresh, Exact, InALargerBuffer, EverySecond, InPlace)


# ---- how the planner sees the machine ----


def as_it_is():
    plan._PARALLEL_ELEMENTS, plan._NONTEMPORAL_BYTES = PARALLEL_ELEMENTS, NONTEMPORAL_BYTES
    call.this_machine = this_machine
    _engine.set_num_threads(2)


def cut_up():
    """Caches of a few KiB, so that small arrays are split, chunked, and stored past the cache by several threads."""
    plan._PARALLEL_ELEMENTS, plan._NONTEMPORAL_BYTES = 1, 0
    call.this_machine = small_machine
    _engine.set_num_threads(3)


@lru_cache
def small_machine():
    return dataclasses.replace(this_machine(), l1_bytes=1 << 10, l2_bytes=8 << 10, l3_bytes=16 << 10)


PARALLEL_ELEMENTS, NONTEMPORAL_BYTES = plan._PARALLEL_ELEMENTS, plan._NONTEMPORAL_BYTES
WAYS = itertools.cycle(list(itertools.product((as_it_is, cut_up), LAYOUTS, TARGETS)))


# ---- values and what is expected of them ----


@lru_cache(maxsize=64)
def values_of(shape, dtype):
    """Normal values; the last row or so also has infinities, NaN and numbers near the ends of the type."""
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape) * rng.choice([1, 3, 30])
    if x.size >= 8:
        special = rng.choice([np.inf, -np.inf, np.nan, 1e30, -1e30, 6e4, 1e-7, -0.0], size=3)
        x[-1].flat[rng.integers(0, x[-1].size, 3)] = special
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[dtype])


@lru_cache(maxsize=512)
def expected_of(op, shape, dtype, dim):
    return getattr(reference, op)(values_of(shape, dtype), dim, dtype=np.longdouble)


@lru_cache(maxsize=512)
def unit_of(op, shape, dtype, dim):
    """The size of the terms that a result is a sum or difference of: errors are in units of its last place."""
    if op not in ("sum", "mean"):
        return FLOORS[op]
    terms = getattr(reference, op)(np.abs(values_of(shape, dtype)), dim)
    return np.where(np.isfinite(terms), terms, 0)


def check(op, shape, dtype, dim, algorithm, result_dtype=None):
    """One call, one way of lying in memory, compared with the reference. False if this algorithm cannot serve it."""
    way, layout, target = next(WAYS)
    way()
    values = values_of(shape, dtype)
    expected = expected_of(op, shape, dtype, dim)
    to = DTYPES[result_dtype or dtype]
    x = layout(values)
    held = target(x, expected.shape, to, op)
    given_dtype = to if result_dtype else None
    described = (
        f"{op} of {shape} {dtype} -> {to.name}, dim {dim}, algorithm {algorithm}; "
        f"{way.__name__}, {layout.__name__}, {target.__name__}"
    )
    try:
        y = call.plan_and_run(op, x, dim, False, given_dtype, held.out, algorithm)
    except ValueError as error:
        if "cannot serve" not in str(error):
            raise
        return False
    if algorithm is not None and _engine.last_algorithm() != algorithm:
        sys.exit(f"{described}: {_engine.last_algorithm()} ran")
    ran[_engine.last_algorithm(), dtype] += 1
    error = max_ulp(y, expected, floor=unit_of(op, shape, dtype, dim))
    # Chunks of a few steps are merged far more often than a planner would have them; that adds up in float64 alone.
    limit = max(LIMITS[op, to.name], LIMITS[op, dtype]) * (1 if way is as_it_is else 16)
    if error > limit:
        sys.exit(f"{described}: wrong by {error:.3g} ULP (limit {limit})")
    if not held.untouched_around():
        sys.exit(f"{described}: wrote around the result")
    if held.out is not x and x.tobytes() != values.tobytes():
        sys.exit(f"{described}: wrote to the input")
    return True


# ---- memory ----

ROWS = ("registers", "row", "online", "split")
TILES = ("strided", "packed")
# Around the widths of vectors (2 to 16 lanes), of eight of them, of cache lines, and of a chunk of 4096.
LENGTHS = (1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129, 255, 1023, 1025, 4097, 9001)
INNERS = (2, 3, 5, 7, 8, 12, 15, 16, 17, 31, 33, 100, 259)
STEPS = (1, 2, 3, 7, 17, 40, 133)
EMPTY = (((0,), 0), ((0, 5), 1), ((5, 0), 1), ((0, 5), 0), ((5, 0), 0), ((2, 0, 3), (0, 2)), ((0, 0), None))


def memory():
    for dtype, algorithm in itertools.product(DTYPES, ROWS):
        for length, op in itertools.product(LENGTHS, OPS):
            for rows in (1, 3, 3, 9) if length < 200 else (3, 3):
                check(op, (rows, length), dtype, 1, algorithm)
    for dtype, algorithm in itertools.product(DTYPES, TILES):
        for inner, steps, op in itertools.product(INNERS, STEPS, OPS):
            check(op, (2, steps, inner), dtype, 1, algorithm)
        for inner, op in itertools.product((3, 16, 40), OPS):  # past the small machine's caches
            for _ in range(2):
                check(op, (2, 1500, inner), dtype, 1, algorithm)
    for dtype, to in itertools.permutations(DTYPES, 2):
        for op, shape in itertools.product(ELEMENTWISE, ((3, 1), (2, 17), (3, 130), (2, 4099))):
            for algorithm in ("row", "online", "split"):
                check(op, shape, dtype, 1, algorithm, to)
        for op, shape in itertools.product(ELEMENTWISE, ((2, 7, 3), (3, 40, 16), (2, 33, 33), (1, 17, 100))):
            for algorithm in TILES:
                check(op, shape, dtype, 1, algorithm, to)
    for dtype, op in itertools.product(DTYPES, OPS):
        for shape, dim in (((1,), 0), ((1, 1), 0), ((3, 4, 5), (0, 2)), ((3, 4, 5), None), ((2, 3, 5, 7), (1, 3))):
            check(op, shape, dtype, dim, None)
        for shape, dim in EMPTY:
            empty(op, np.empty(shape, DTYPES[dtype]), dim)
        broadcast(op, dtype)
    as_it_is()
    blocks()
    for algorithm, dtype in itertools.product((*ROWS, *TILES), DTYPES):
        if ran[algorithm, dtype] < 25:
            sys.exit(f"{algorithm} ran only {ran[algorithm, dtype]} times on {dtype}")
    print(f"memory, {_engine.isa()}: {ran.total()} calls, as in the reference: {by_algorithm()}")


def by_algorithm():
    totals = Counter()
    for (algorithm, _), count in ran.items():
        totals[algorithm] += count
    return dict(totals)


def empty(op, x, dim):
    try:
        expected = getattr(reference, op)(x, dim)
    except ValueError:
        expected = None
    try:
        y = getattr(onepass, op)(x, dim)
    except ValueError:
        y = None
    # amax of nothing is an error, except that no amax at all is asked for
    if (y is None) != (expected is None) and not (expected is None and y.size == 0):
        sys.exit(f"{op} of {x.shape}, dim {dim}: {y!r}, reference {expected!r}")
    if expected is not None and not np.array_equal(y.astype(np.float64), expected, equal_nan=True):
        sys.exit(f"{op} of {x.shape}, dim {dim}: {y!r}, reference {expected!r}")


def broadcast(op, dtype):
    """Axes of stride 0: the last element of an allocation, read many times."""
    values = values_of((40,), dtype)[1:]
    for shape, dim in (((39,), 0), ((7, 39), 0), ((7, 39), 1)):
        x = np.broadcast_to(exact(values) if len(shape) == 2 else exact(values[:1]), shape)
        expected = getattr(reference, op)(x, dim, dtype=np.longdouble)
        if max_ulp(getattr(onepass, op)(x, dim), expected, floor=max(FLOORS[op], 100.0)) > 100 * LIMITS[op, dtype]:
            sys.exit(f"{op} of a broadcast {shape} {dtype}, dim {dim}: wrong")


def blocks():
    """Results in blocks of the cache, written to their last byte, and views that outlive them."""
    for rows in (64, 65, 127, 520):
        x = values_of((rows, 1031), "float32")
        for _ in range(3):
            y = onepass.softmax(x)
            view = y[::2, 3:]
            kept = view.copy()
            del y
            other = onepass.log_softmax(x)
            if not np.array_equal(view, kept, equal_nan=True):
                sys.exit("a block was handed out while a view of it lived")
            del view, other
    try:
        onepass.softmax(np.broadcast_to(np.float32(1), (1 << 44,)))
        sys.exit("a result of 2**46 bytes was made")
    except MemoryError:
        pass
    onepass.empty_cache()


# ---- threads ----

WORK = [
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
]


class Hammer:
    """Python threads that call at once; results are checked, and die, in threads other than those that made them."""

    def __init__(self):
        self.inputs = [values_of(shape, dtype) for _, shape, dtype, _ in WORK]
        self.expected = []
        for (op, shape, dtype, dim), x in zip(WORK, self.inputs, strict=True):
            y = getattr(onepass, op)(x, dim)
            if max_ulp(y, expected_of(op, shape, dtype, dim), floor=unit_of(op, shape, dtype, dim)) > LIMITS[op, dtype]:
                sys.exit(f"{op} of {shape} {dtype}, dim {dim}: wrong")
            self.expected.append(y.copy())
        self.wrong = []
        self.calls = 0

    def work(self, seed, rounds, made):
        order = np.random.default_rng(seed)
        for i in range(rounds):
            k = int(order.integers(len(WORK)))
            op, _, _, dim = WORK[k]
            made.put((k, getattr(onepass, op)(self.inputs[k], dim)))
            self.calls += 1
            if i % 3 == 0:
                other, y = made.get()
                if not np.array_equal(y, self.expected[other], equal_nan=True):
                    self.wrong.append(WORK[other])
            if i % 7 == 0:
                onepass.set_num_threads(int(order.integers(1, 8)))
            if i % 11 == 0:
                onepass.empty_cache()
            if i % 13 == 0 and onepass.memory_stats()["live_bytes"] < 0:
                self.wrong.append("memory_stats")

    def wave(self, count, rounds, seed):
        """Threads that begin and end together; what they leave is checked and dies here."""
        made = queue.SimpleQueue()
        threads = [threading.Thread(target=self.work, args=(seed + i, rounds, made)) for i in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        while not made.empty():
            k, y = made.get()
            if not np.array_equal(y, self.expected[k], equal_nan=True):
                self.wrong.append(WORK[k])


def threads():
    plan._PARALLEL_ELEMENTS = 1 << 10  # small enough for a sanitizer, large enough to be shared
    hammer = Hammer()
    for seed in range(4):
        hammer.wave(4, 40, 100 * seed)
    if hammer.wrong:
        sys.exit(f"wrong results: {hammer.wrong[:5]}")
    live = onepass.memory_stats()["live_blocks"]
    if live:
        sys.exit(f"{live} blocks were not given back")
    print(f"threads, {_engine.isa()}: {hammer.calls} calls from 16 threads: no wrong result")


def main(arguments):
    if arguments == ["isas"]:
        print(*_engine.isas())
    elif arguments == ["memory"]:
        memory()
    elif arguments == ["threads"]:
        threads()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
