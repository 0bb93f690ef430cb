"""The memory of large results: handed out once, kept while anything looks at it, given back from anywhere."""

import copy
import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from helpers import run_python, to_numpy

import onepass

LARGE = (512, 4096)  # 8 MiB of float32: far past the size from which results live in cached blocks
NBYTES = 512 * 4096 * 4


@pytest.fixture(autouse=True, scope="module")
def older_objects_aside():
    """What other files of tests have left behind is not looked through again, 100 ms or more at each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def empty():
    gc.collect()
    onepass.empty_cache()
    yield
    gc.collect()
    onepass.empty_cache()


def large(seed=0, kind="numpy"):
    x = np.random.default_rng(seed).standard_normal(LARGE).astype(np.float32)
    return x if kind == "numpy" else torch.from_numpy(x)


def address(result):
    return result.ctypes.data if isinstance(result, np.ndarray) else result.data_ptr()


def churn(kind="numpy", times=6):
    """Results that would be written over memory that was handed out twice."""
    x = large(99, kind)
    kept = [onepass.log_softmax(x) for _ in range(times)]
    del kept


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_results_that_live_share_no_memory(kind):
    x = large(1, kind)
    results = [onepass.softmax(x * i) for i in range(8)]
    for _ in range(3):
        results.pop(2)
        results.append(onepass.softmax(x))
    starts = sorted(address(r) for r in results)
    assert all(b - a >= NBYTES for a, b in zip(starts, starts[1:], strict=False))
    again = onepass.softmax(x * 1)
    np.testing.assert_array_equal(to_numpy(results[1]), to_numpy(again))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_dead_result_serves_the_next(kind):
    x = large(2, kind)
    first = onepass.softmax(x)
    expected, where = to_numpy(first).copy(), address(first)
    before = onepass.memory_stats()
    assert before["live_blocks"] >= 1
    assert before["live_bytes"] >= NBYTES
    del first
    freed = onepass.memory_stats()
    assert freed["cached_blocks"] == before["cached_blocks"] + 1
    assert freed["cached_bytes"] >= before["cached_bytes"] + NBYTES
    assert freed["live_bytes"] <= before["live_bytes"] - NBYTES
    second = onepass.softmax(x)
    after = onepass.memory_stats()
    assert address(second) == where
    assert after["hits"] == freed["hits"] + 1
    assert after["misses"] == freed["misses"]
    np.testing.assert_array_equal(to_numpy(second), expected)


def test_numpy_and_torch_take_turns_in_one_block():
    x = large(3)
    y = onepass.softmax(x)
    where = address(y)
    del y
    t = onepass.softmax(torch.from_numpy(x))
    assert address(t) == where
    del t
    assert address(onepass.softmax(x)) == where


# Things that look at the memory of a NumPy result after the result itself is gone.
NUMPY_HOLDERS = {
    "a view": lambda y: y[10:20],
    "a view of a view": lambda y: y.T[5:][::2],
    "another dtype": lambda y: y.view(np.int32),
    "flat": lambda y: y.flat,
    "a memoryview": lambda y: memoryview(y),
    "frombuffer": lambda y: np.frombuffer(y, np.float32),
    "ctypes": lambda y: np.ctypeslib.as_array(np.ctypeslib.as_ctypes(y)),
    "torch": lambda y: torch.from_numpy(y),
    "torch and back": lambda y: torch.from_numpy(y).numpy(),
    "a torch view": lambda y: torch.from_numpy(y)[3:].t(),
    "torch through DLPack": lambda y: torch.from_dlpack(y),
    "NumPy through DLPack": lambda y: np.from_dlpack(y),
    "torch and DLPack and NumPy": lambda y: np.from_dlpack(torch.from_numpy(y)),
}
TORCH_HOLDERS = {
    "a view": lambda y: y[10:20],
    "a transpose": lambda y: y.t()[::2],
    "detached": lambda y: y.detach(),
    "another dtype": lambda y: y.view(torch.int32),
    "storage": lambda y: torch.empty(0).set_(y.untyped_storage(), 0, y.shape),
    "NumPy": lambda y: y.numpy(),
    "NumPy and back": lambda y: torch.from_numpy(y.numpy()),
    "NumPy through DLPack": lambda y: np.from_dlpack(y),
    "torch through DLPack": lambda y: torch.from_dlpack(y),
    "unbound": lambda y: y.unbind(0)[7],
    "a parameter": lambda y: torch.nn.Parameter(y),
}
HOLDERS = [pytest.param("numpy", hold, id=f"numpy: {name}") for name, hold in NUMPY_HOLDERS.items()] + [
    pytest.param("torch", hold, id=f"torch: {name}") for name, hold in TORCH_HOLDERS.items()
]


@pytest.mark.parametrize(("kind", "hold"), HOLDERS)
def test_what_looks_at_a_result_keeps_its_memory(kind, hold):
    x = large(4, kind)
    live = onepass.memory_stats()["live_blocks"]
    y = onepass.softmax(x)
    held = hold(y)
    expected = contents(held)
    assert np.any(expected != 0)
    del y
    gc.collect()
    churn("numpy")
    churn("torch")
    np.testing.assert_array_equal(contents(held), expected)
    assert onepass.memory_stats()["live_blocks"] == live + 1
    del held
    gc.collect()
    assert onepass.memory_stats()["live_blocks"] == live, "the block did not come back"


def contents(held):
    return held.detach().numpy().copy() if isinstance(held, torch.Tensor) else np.asarray(held).copy()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("way", [lambda y: pickle.loads(pickle.dumps(y)), copy.deepcopy, copy.copy])
def test_copies_are_their_own(way, kind):
    y = onepass.softmax(large(5, kind))
    expected = to_numpy(y).copy()
    duplicate = way(y)
    if way is not copy.copy or kind == "numpy":
        assert address(duplicate) != address(y)
    del y
    gc.collect()
    churn(kind)
    np.testing.assert_array_equal(to_numpy(duplicate), expected)


def test_torch_may_do_what_it_does_to_its_own():
    y = onepass.softmax(torch.from_numpy(large(6)))
    expected = y.clone()
    y.share_memory_()
    assert torch.equal(y, expected)
    z = onepass.softmax(torch.from_numpy(large(6)))
    z.resize_(2, 3)
    assert torch.equal(z, expected.flatten()[:6].reshape(2, 3))
    w = onepass.softmax(torch.from_numpy(large(6)))
    w.mul_(2).set_()
    churn("torch")
    assert torch.equal(y, expected)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_result_may_die_in_another_thread(kind):
    box = [onepass.softmax(large(7, kind))]
    live = onepass.memory_stats()["live_blocks"]

    def end():
        box.clear()

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert onepass.memory_stats()["live_blocks"] == live - 1
    churn(kind)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_result_may_outlive_the_thread_that_made_it(kind):
    box = []
    x = large(8, kind)
    thread = threading.Thread(target=lambda: box.append(onepass.softmax(x)))
    thread.start()
    thread.join()
    churn(kind)
    np.testing.assert_array_equal(to_numpy(box[0]), to_numpy(onepass.softmax(x)))


def test_a_result_may_be_part_of_a_cycle():
    class Node:
        pass

    node = Node()
    node.itself, node.result = node, onepass.softmax(large(9))
    gone = weakref.ref(node)
    live = onepass.memory_stats()["live_blocks"]
    del node
    gc.collect()
    assert gone() is None
    assert onepass.memory_stats()["live_blocks"] == live - 1


def test_empty_cache_gives_everything_back_but_what_lives():
    x = large(10)
    kept = onepass.softmax(x)
    expected = kept.copy()
    others = [onepass.softmax(x) for _ in range(3)]
    del others
    assert onepass.memory_stats()["cached_bytes"] >= 3 * NBYTES
    onepass.empty_cache()
    stats = onepass.memory_stats()
    assert stats["cached_bytes"] == stats["cached_blocks"] == 0
    np.testing.assert_array_equal(kept, expected)


def test_the_cache_is_bounded():
    bound = onepass.memory_stats()["bound_bytes"]
    assert 0 < bound <= 2 << 30
    code = """
import numpy as np, onepass
x = np.zeros((2048, 1024), np.float32)
results = [onepass.softmax(x) for _ in range(8)]
before = onepass.memory_stats()
del results
after = onepass.memory_stats()
print(before["live_bytes"], after["live_bytes"], after["bound_bytes"], after["cached_bytes"])
"""
    lived, live, bound, cached = map(int, run_python(code, env={"ONEPASS_CACHE_BYTES": str(20 << 20)}).split())
    assert lived >= 64 << 20
    assert live == 0
    assert bound == 20 << 20
    assert 8 << 20 <= cached <= bound
    *_, bound, cached = map(int, run_python(code, env={"ONEPASS_CACHE_BYTES": "0"}).split())
    assert bound == cached == 0


@pytest.mark.parametrize("text", ["lots", "\u00b2", "9" * 26])
def test_a_bound_that_is_no_number_is_an_error(text):
    code = """
try:
    import onepass
except ValueError as error:
    print(error)
"""
    message = run_python(code, env={"ONEPASS_CACHE_BYTES": text})
    assert "ONEPASS_CACHE_BYTES must be a number of bytes" in message
    assert repr(text) in message


def test_results_may_live_to_the_end_of_the_interpreter():
    run_python("""
import atexit, threading
import numpy as np, onepass, torch
x = np.zeros((1024, 1024), np.float32)
y = onepass.softmax(x)
t = onepass.softmax(torch.from_numpy(x))
view = torch.from_numpy(y)[1:]
class Cycle:
    pass
cycle = Cycle(); cycle.me = cycle; cycle.result = onepass.softmax(x)
onepass.kept = onepass.softmax(x)
local = threading.local(); local.result = onepass.softmax(x)
atexit.register(lambda held=[onepass.softmax(x)]: held.append(onepass.softmax(x)))
def last():
    held = [onepass.softmax(x)]
    threading.Event().wait(0.2)
threading.Thread(target=last, daemon=True).start()
""")


def test_blocks_are_given_back_before_an_allocation_fails():
    """In an address space with room for either the cached blocks or the new result."""
    run_python(
        """
import resource
import numpy as np, onepass
MiB = 1 << 20
def zeros(mib):  # takes no memory
    return np.ndarray((mib, MiB // 4), np.float32, np.zeros(1, np.float32), 0, (0, 0))
onepass.softmax(zeros(1)), onepass.softmax(zeros(64))  # threads and their stacks exist
onepass.empty_cache()
with open("/proc/self/statm") as statm:
    in_use = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + 700 * MiB, resource.RLIM_INFINITY))
results = [onepass.softmax(zeros(96)) for _ in range(5)]
del results
assert onepass.memory_stats()["cached_bytes"] >= 480 * MiB, onepass.memory_stats()
y = onepass.softmax(zeros(400))
assert abs(float(y[-1, -1]) * (MiB // 4) - 1) < 1e-5
assert onepass.memory_stats()["cached_bytes"] < 480 * MiB
try:
    onepass.softmax(zeros(800))
except MemoryError as error:
    assert str(800 * MiB) in str(error), error
else:
    raise SystemExit("800 MiB fitted into 700")
del y
assert onepass.softmax(zeros(96)).shape == (96, MiB // 4), "usable after the failure"
""",
        env={"ONEPASS_CACHE_BYTES": str(1 << 30)},
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_results_of_its_own():
    """The child frees, reuses and empties its copy of the cache; the parent's results stay."""
    run_python(
        """
import os
import numpy as np, onepass
x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
kept, freed = onepass.softmax(x), onepass.softmax(x)
expected = kept.copy()
del freed
child = os.fork()
if child == 0:
    status = 1
    try:
        other = [onepass.log_softmax(x) for _ in range(4)]
        assert np.array_equal(kept, expected)
        del kept, other
        onepass.empty_cache()
        assert onepass.memory_stats()["live_blocks"] == 0
        assert np.array_equal(onepass.softmax(x), expected)
        status = 0
    finally:
        os._exit(status)
again = [onepass.softmax(x + 1) for _ in range(4)]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert np.array_equal(kept, expected)
""",
        python_args=("-W", "ignore"),  # 3.12 warns of a fork with threads: those of the engine are what is tested
    )
