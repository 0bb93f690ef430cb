"""Many Python threads, forked children, few processors: no wrong result, no hang, no thread left spinning."""

import importlib
import os
import sys
import threading
import time

import numpy as np
import pytest
from helpers import random_array, run_python, same_bits

import onepass
from onepass import _engine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
IGNORE = ("-W", "ignore")  # 3.12 warns of a fork with threads: those are what is tested

HAMMER = """
import os, sys, threading, time
import numpy as np, onepass

rng = np.random.default_rng(0)
WORK = [
    (op, rng.standard_normal(shape).astype(dtype), dim)
    for op, shape, dtype, dim in [
        ("softmax", (8, 8), "float32", -1),
        ("softmax", (300, 1000), "float32", -1),
        ("softmax", (1, 600_000), "float32", -1),
        ("log_softmax", (64, 500, 17), "float32", 1),
        ("softmax", (30_000, 6), "float64", 0),
        ("logsumexp", (3, 200_000), "float16", -1),
        ("sum", (700, 900), "float32", 0),
        ("amax", (700, 900), "float16", -1),
    ]
]
EXPECTED = [getattr(onepass, op)(x, dim) for op, x, dim in WORK]
wrong = []

def hammer(seed, rounds):
    order = np.random.default_rng(seed)
    for i in range(rounds):
        k = order.integers(len(WORK))
        op, x, dim = WORK[k]
        if not np.array_equal(getattr(onepass, op)(x, dim), EXPECTED[k]):
            wrong.append((op, x.shape))
        if i % 7 == 0:
            onepass.empty_cache()
        if i % 11 == 0:
            onepass.set_num_threads(int(order.integers(1, 5)))

def run_threads(count, rounds, seed):
    threads = [threading.Thread(target=hammer, args=(seed + i, rounds)) for i in range(count)]
    for t in threads:
        t.start()
    return threads
"""


def test_four_threads_in_four_forked_children():
    """The children are forked while the parent's own threads are in the middle of calls, and hammer beside them."""
    out = run_python(
        HAMMER
        + """
threads = run_threads(4, 60, 1000)
children = []
for i in range(4):
    time.sleep(0.02)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for t in run_threads(4, 60, 10 * i):
                t.join()
            status = 2 if wrong else 0
        finally:
            os._exit(status)
    children.append(pid)
for t in threads:
    t.join()
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(codes, wrong)
""",
        python_args=IGNORE,
        timeout=180,
    )
    assert out.strip() == "[0, 0, 0, 0] []"


def test_a_child_of_a_child():
    out = run_python(
        HAMMER
        + """
def generation(depth):
    hammer(depth, 20)
    if depth == 0:
        return 0
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = generation(depth - 1) or len(wrong)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(generation(4), wrong)
""",
        python_args=IGNORE,
        timeout=120,
    )
    assert out.strip() == "0 []"


def test_workers_of_a_data_loader():
    """What torch users do: results made in forked worker processes and handed to the parent."""
    run_python(
        """
import torch, onepass
x = torch.randn(6, 64, 3000)
expected = onepass.softmax(x)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, i):
        return onepass.softmax(x[i])
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for epoch in range(2):
        assert torch.equal(torch.cat(list(loader)), expected)
""",
        python_args=IGNORE,
        timeout=120,
    )


def test_the_processors_allowed_are_the_threads():
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import onepass
print(onepass.get_num_threads())
"""
    assert run_python(code).strip() == "1"
    for name in ("ONEPASS_NUM_THREADS", "OMP_NUM_THREADS"):
        assert run_python("import onepass; print(onepass.get_num_threads())", env={name: "3"}).strip() == "3"


@pytest.mark.parametrize("text", ["four", "0", "-1", "1e3", "4097", "\u00b2"])
def test_a_number_of_threads_that_is_none_is_an_error(text):
    code = """
try:
    import onepass
except ValueError as error:
    print(error)
"""
    message = run_python(code, env={"ONEPASS_NUM_THREADS": text})
    assert "ONEPASS_NUM_THREADS must be a number from 1 to 4096" in message and repr(text) in message
    # What is another library's is its to complain about.
    assert int(run_python("import onepass; print(onepass.get_num_threads())", env={"OMP_NUM_THREADS": text})) >= 1


def test_more_threads_than_processors(threads):
    x = random_array((64, 5000))
    threads(1)
    expected = onepass.softmax(x)
    for n in (2, 5, 16, 64):
        threads(n)
        assert onepass.get_num_threads() == n
        for _ in range(3):
            assert same_bits(onepass.softmax(x), expected)


def test_large_calls_let_other_threads_run(threads):
    """logsumexp of 2**28 elements that are one in memory: no reading, much computing, in one call."""
    threads(1)
    x = np.ndarray((4, 1 << 26), np.float32, np.zeros(1, np.float32), 0, (0, 0))
    running, ticks = threading.Event(), []
    stop = threading.Event()

    def tick():
        running.set()
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    before = sys.getswitchinterval()
    other = threading.Thread(target=tick)
    other.start()
    try:
        running.wait()
        start = time.perf_counter()
        onepass.logsumexp(x)
        end = time.perf_counter()
    finally:
        stop.set()
        other.join()
    assert end - start > 0.02, "too short to tell"
    assert sum(start < t < end for t in ticks) >= 5, f"in {end - start:.3f} s; switch interval {before}"


def test_threads_that_wait_cost_nothing():
    """A pool that spins forever would burn a processor while the program sleeps."""
    code = """
import time
import numpy as np, onepass
onepass.set_num_threads(4)
x = np.zeros((2000, 1000), np.float32)
for _ in range(5):
    onepass.softmax(x)
time.sleep(0.1)
before = time.process_time()
time.sleep(1.0)
print(time.process_time() - before)
"""
    assert float(run_python(code)) < 0.1


def test_a_short_call_by_itself_wakes_nobody():
    """Waking takes longer than the call. One that is long wakes the helper, and so does a series."""
    code = """
import os, pathlib, time
import numpy as np, onepass
from onepass.cpu import cpu_plan
cpu_plan.PARALLEL_ELEMENTS = 1  # a microsecond of work is for two threads, too
onepass.set_num_threads(2)
before = set(os.listdir("/proc/self/task"))
long, short = np.zeros((4000, 4000), np.float32), np.zeros((64, 100), np.float32)
assert onepass.explain("sum", short).plan.threads == 2
onepass.softmax(long)
(helper,) = set(os.listdir("/proc/self/task")) - before

def slept():
    text = pathlib.Path(f"/proc/self/task/{helper}/status").read_text()
    return int(text.split("\\nvoluntary_ctxt_switches:")[1].split()[0])

def woken(x, calls):
    sleeps = slept()
    for _ in range(calls):
        onepass.sum(x)
        time.sleep(0.003)
    return slept() - sleeps

time.sleep(0.01)
alone = min(woken(short, 40) for _ in range(3))  # beside other programs some of it is noise
times = woken(long, 40)
sleeps = slept()
for _ in range(2000):
    onepass.sum(short)
time.sleep(0.01)
print(alone, times, slept() - sleeps)
"""
    alone, of_long_ones, of_a_series = map(int, run_python(code).split())
    assert alone < of_long_ones / 2
    assert of_long_ones >= 20
    assert of_a_series >= 1


@pytest.mark.parametrize(
    "again", ["pass", "onepass.set_num_threads(3); onepass.set_num_threads(2)"], ids=["hot", "cold"]
)
def test_a_program_may_end_in_the_middle_of_a_call(again):
    """A daemon thread is in the engine, without the GIL, when the interpreter goes."""
    run_python(f"""
import threading, time
import numpy as np, onepass
x = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
def work():
    while True:
        onepass.softmax(x)
        {again}
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""")


_THREADS_OF = """
import os, sys
import torch, onepass
torch.set_num_threads(2)
onepass.set_num_threads(2)

def threads():
    return len(os.listdir("/proc/self/task"))

x = torch.randn(512, 4096)
torch.softmax(x, 1)
before = threads()
"""


def test_calls_of_tensors_run_on_torchs_threads():
    """Which look for more work after each operator of torch; ours would have to share the cores with them."""
    code = """
y = onepass.softmax(x)
with onepass.installed():
    z = torch.softmax(x, 1)
    torch.softmax(x, 1)
of_tensors = threads() - before
by_own = onepass.softmax(x.numpy())
print(of_tensors, threads() - before)
assert torch.equal(y, z) and torch.equal(y, torch.from_numpy(by_own)), "the same bits on whatever threads"
"""
    assert run_python(_THREADS_OF + code) == "0 1\n"


def test_a_child_of_a_process_that_used_torchs_threads_has_its_own():
    """torch's do not survive a fork, and its operators wait for them; calls of onepass do not."""
    code = """
expected = onepass.softmax(x)
child = os.fork()
if child == 0:
    before = threads()
    right = (onepass.softmax(x).numpy() == expected.numpy()).all()  # torch.equal would wait for ever
    os._exit(0 if right and threads() == before + 1 else 1)
print(os.waitpid(child, 0)[1])
"""
    assert run_python(_THREADS_OF + code) == "0\n"


def test_a_call_uses_no_more_threads_than_torch_may():
    code = """
torch.set_num_threads(1)
expected = onepass.softmax(x)
torch.set_num_threads(2)
assert torch.equal(onepass.softmax(x), expected)
print(threads() - before)
"""
    assert run_python(_THREADS_OF + code) == "0\n"


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_a_plan_made_meanwhile_does_not_keep_an_old_number_of_threads(op, monkeypatch):
    """Another Python thread sets it between the moment when a call reads it and the one when its plan is remembered."""
    module = importlib.import_module("onepass.call" if op == "softmax" else "onepass.call_gradients")
    make_plan, planned = module.make_plan, []

    def slowly(problem, machine, threads, algorithm=None):
        planned.append(threads)
        if len(planned) == 1:
            thread = threading.Thread(target=onepass.set_num_threads, args=(1,))
            thread.start()
            thread.join()
        return make_plan(problem, machine, threads, algorithm)

    before = onepass.get_num_threads()
    x = np.random.default_rng(0).standard_normal((7, 54321)).astype(np.float32)
    given = [x] if op == "softmax" else [x, x]
    monkeypatch.setattr(module, "make_plan", slowly)
    try:
        onepass.set_num_threads(2)
        for _ in range(3):
            getattr(onepass, op)(*given)
    finally:
        onepass.set_num_threads(before)
    assert planned == [2, 1]


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_that_become_nan_have_the_same_bits_by_any_number_of_threads(threads, dtype, value):
    """A row that one thread keeps in cache, two split; a NaN has a sign."""
    row = random_array((1, 200_000), dtype)
    everywhere, once = np.full_like(row, value), row.copy()
    once[0, 35_000] = value
    for x in (once, everywhere):
        seen = set()
        for count in (1, 2):
            threads(count)
            out = np.full_like(x, 7)
            onepass.softmax(x, out=out)
            seen.add((_engine.last_algorithm(), out.tobytes()))
        assert "split" in {algorithm for algorithm, _ in seen} and len({bits for _, bits in seen}) == 1


def test_an_interpreter_that_numpy_refuses_leaves_the_first_one_whole():
    pytest.importorskip("_xxsubinterpreters")
    if tuple(map(int, np.__version__.split(".")[:2])) < (2, 3):
        pytest.skip("this NumPy does not refuse")
    code = """
import sys, numpy as np, onepass, _xxsubinterpreters as interpreters
onepass.softmax(np.ones(3))
try:
    interpreters.run_string(interpreters.create(), f"import sys; sys.path = {sys.path!r}; import onepass")
except Exception as error:
    print(error)
print(onepass.softmax(np.ones(5)).sum())  # a shape that has no plan yet
"""
    said = run_python(code, python_args=IGNORE).splitlines()
    assert "ImportError" in said[0] and float(said[1]) == 1


SMALL_STACK = """
import threading
import numpy as np, onepass
from onepass import gradients

rng = np.random.default_rng(0)
x = [
    (rng.standard_normal(shape).astype(dtype), dim)
    for dtype in ("float32", "float64", "float16")
    for shape, dim in [((rows, n), -1) for rows in (3, 64, 1000) for n in (3, 17, 64, 200, 400, 3000)]
    + [((300, n, inner), 1) for n in (3, 20, 100) for inner in (3, 16)]
    + [((n, 300), 0) for n in (3, 17, 64, 400)]
]
periodic = rng.standard_normal(1009).astype("float32")
past_cache = [np.resize(periodic, shape) for shape in [(1_500_000, 7), (100_000, 99)]]
ops = ("softmax", "log_softmax", "logsumexp", "sum", "amax")


def results():
    for array, dim in x:
        yield from [getattr(onepass, op)(array, dim) for op in ops]
        for op in ops[:2]:
            yield getattr(gradients, op + "_backward")(array, getattr(onepass, op)(array, dim), dim=dim)
    for array in past_cache:
        yield gradients.softmax_backward(array, onepass.softmax(array))


expected = list(results())
got = []
threading.stack_size(64 << 10)
thread = threading.Thread(target=lambda: got.extend(results()))
thread.start()
thread.join()
assert len(got) == len(expected)
for one, other in zip(got, expected):
    assert one.tobytes() == other.tobytes(), one.shape
"""


def test_threads_with_small_stacks():
    """64 KiB, less than musl gives: kernels of wide vectors want as much for the rows that they hold at a time."""
    run_python(SMALL_STACK)
