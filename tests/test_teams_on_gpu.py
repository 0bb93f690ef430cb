"""Rows that several blocks share, on a real GPU, as users call it: `pytest -m gpu`, in a process of its own."""

import math

import numpy as np
import pytest
from gpu_layouts import TEAMS, TEAMS_AND_TYPES, of_a_team
from helpers import DTYPES, FLOORS, LIMITS, random_array
from test_on_gpu import replay_beside_each_other, to_gpu, to_host
from ulp import max_ulp

import onepass
from onepass import _engine, reference
from onepass.cuda import Tuning, prepare

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize(("name", "dtype"), TEAMS_AND_TYPES)
def test_every_tier(torch, name, dtype):
    shape, op, _, *dim = TEAMS[name]
    dim = dim[0] if dim else -1
    x = to_gpu(random_array(shape, dtype, sigma=3))
    y = getattr(onepass, op)(x, dim=dim)
    assert _engine.last_algorithm() in of_a_team(name, dtype)
    expected = getattr(reference, op)(to_host(x), dim, dtype=np.longdouble)
    assert max_ulp(to_host(y), expected, floor=FLOORS[op]) <= LIMITS[op, dtype]
    out = torch.full_like(y, float("nan"))
    assert getattr(onepass, op)(x, dim=dim, out=out) is out
    assert torch.equal(out, y)


# Shape, operation and what the cluster is told.
CLUSTERS = {
    "as the planner cuts it": ((70, 131072), "softmax", {}),
    "odd rows": ((33, 50257), "log_softmax", {}),
    "odd rows in shared memory": ((70, 90001), "softmax", {}),
    "odd rows in two parts": ((300, 50257), "log_softmax", {}),
    "in registers": ((9, 40000), "softmax", {"blocks": 8, "threads": 512, "staged": False}),
    "more blocks than are portable": ((20, 262144), "softmax", {"blocks": 16, "staged": True}),
    "a number that is no power of two": ((20, 100003), "softmax", {"blocks": 6, "staged": True}),
    "logarithms of sums": ((100, 128257), "logsumexp", {}),
    "sums": ((100, 128257), "sum", {"blocks": 16}),
    "small blocks": ((70, 40001), "softmax", {"blocks": 8, "threads": 128, "staged": False}),
    "small blocks in shared memory": ((70, 57344), "log_softmax", {"blocks": 8, "threads": 128, "staged": True}),
    "rows that are handed out": ((100, 50400), "softmax", {"blocks": 16, "threads": 128, "handed": True}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters(torch, name, dtype):
    if name in ("in registers", "small blocks") and dtype == "float64":
        pytest.skip("registers of 8 blocks hold a quarter as many")
    shape, op, told = CLUSTERS[name]
    x = to_gpu(random_array(shape, dtype, sigma=3))
    run = prepare(op, x, algorithm="cluster", tuning=Tuning(**told))
    first = run(x)
    assert (_engine.last_algorithm(), run.plan.team, run.plan.reads) == ("cluster", 0, 1)
    assert run.plan.cluster == told.get("blocks", run.plan.cluster) > 1
    expected = getattr(reference, op)(to_host(x), -1, dtype=np.longdouble)
    assert max_ulp(to_host(first), expected, floor=FLOORS[op]) <= LIMITS[op, dtype]
    for _ in range(100):
        assert torch.equal(run(x), first)


# Rows and columns, and what the claims are told: one block reads the states for all, or each does.
CLAIMS = {
    "as the planner cuts it": ((100, 400001), {}),
    "whole rows": ((40, 1 << 20), {}),
    "many small slices": ((60, 100003), {"threads": 128, "blocks": 100, "held": 1}),
    "more slices than threads": ((20, 1200000), {"threads": 128, "blocks": 520, "held": 1}),
    "few slices": ((300, 50257), {"blocks": 3}),
    "as many slices as blocks": ((3, 300001), {"blocks": 40}),
    "in registers": ((90, 128256), {"kept": 0, "held": 4}),
    "large blocks": ((70, 300000), {"threads": 512, "held": 4}),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("name", CLAIMS)
def test_claimed_slices(torch, name, op, dtype):
    shape, told = CLAIMS[name]
    x = to_gpu(random_array(shape, dtype, sigma=3))
    y = torch.full_like(x, float("nan"))
    run = prepare(op, x, out=y, algorithm="split", tuning=Tuning(handed=True, **told))
    assert run.plan.claims and run.plan.team == told.get("blocks", run.plan.team)
    run(x, y)
    assert _engine.last_algorithm() == "split"
    expected = getattr(reference, op)(to_host(x), -1, dtype=np.longdouble)
    assert max_ulp(to_host(y), expected, floor=FLOORS[op]) <= LIMITS[op, dtype]
    first, again = y.clone(), torch.full_like(y, float("nan"))
    for _ in range(100):
        assert torch.equal(run(x, again), first)


@pytest.mark.parametrize("algorithm", ["split", "stream", "cluster"])
def test_in_place(torch, algorithm):
    x = to_gpu(random_array((3, 300001), "float32", sigma=3))
    expected = onepass.softmax(x, algorithm=algorithm)
    assert onepass.softmax(x, out=x, algorithm=algorithm) is x
    assert torch.equal(x, expected)


def test_the_same_bits_a_hundred_times_beside_a_busy_stream(torch):
    other = torch.cuda.Stream()
    a = torch.randn((4096, 4096), device="cuda")
    for shape, op, _, *dim in TEAMS.values():
        dim = dim[0] if dim else -1
        x = to_gpu(random_array(shape, "float32", sigma=3))
        first = getattr(onepass, op)(x, dim=dim)
        for _ in range(100):
            with torch.cuda.stream(other):
                a.mul_(1.0)
            assert torch.equal(getattr(onepass, op)(x, dim=dim), first), (shape, op)


@pytest.mark.parametrize(
    ("rows", "length", "algorithm"), [(1, 1 << 20, "split"), (70, 400001, "split"), (100, 128256, "cluster")]
)
def test_two_streams_at_once(torch, rows, length, algorithm):
    """Launches that each want the whole GPU take turns, and share nothing: no state, no count of rows."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    xs = [torch.randn((rows + i, length), device="cuda") for i in range(3)]
    expected = [onepass.softmax(x) for x in xs]
    ys = [[] for _ in xs]
    torch.cuda.synchronize()
    for _ in range(100):
        for stream, x, results in zip(streams, xs, ys, strict=True):
            with torch.cuda.stream(stream):
                results.append(onepass.softmax(x))
                assert _engine.last_algorithm() == algorithm
    torch.cuda.synchronize()
    for results, right in zip(ys, expected, strict=True):
        assert all(torch.equal(y, right) for y in results)


@pytest.mark.parametrize("shape", [(1, 1 << 20), (70, 400001), (100, 128256)])
def test_graphs_captured_on_one_stream_replayed_on_two(torch, shape):
    xs = [torch.randn(shape, device="cuda") for _ in range(2)]
    expected = [onepass.softmax(x) for x in xs]
    graphs, ys = [], []
    side = torch.cuda.Stream()
    for x in xs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            y = onepass.softmax(x)
            y = onepass.softmax(x, out=y)
            total = onepass.sum(y)
        graphs.append(graph)
        ys.append((y, total))
    eager = replay_beside_each_other(torch, graphs, 100, lambda: onepass.softmax(xs[0]))
    assert torch.equal(eager, expected[0])
    for (y, total), right in zip(ys, expected, strict=True):
        assert torch.equal(y, right)
        assert (total - 1).abs().max() < 1e-6


def test_graphs_that_come_and_go(torch):
    """The scratch memory of a graph that is gone serves another."""
    x = to_gpu(random_array((2, 300000), "float32", sigma=3))
    expected = onepass.softmax(x)
    for _ in range(20):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = onepass.softmax(x)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, expected)
        del graph


@pytest.mark.parametrize("algorithm", ["split", "stream"])
def test_any_number_of_blocks(torch, algorithm):
    """Up to all that are at work at once; more blocks than a block has threads."""
    x = to_gpu(random_array((3, 100003), "float32", sigma=3))
    expected = reference.softmax(to_host(x), dtype=np.longdouble)
    for threads, blocks, staged in (
        (64, 528, None),
        (128, 200, None),
        (256, 32, None),
        (512, 13, None),
        (256, 4, True),
    ):
        for parts in (5, 7) if staged else (None,):
            tuning = Tuning(threads=threads, blocks=blocks, staged=staged, parts=parts)
            run = prepare("softmax", x, algorithm=algorithm, tuning=tuning)
            assert run.plan.team == blocks
            assert max_ulp(to_host(run(x)), expected) <= LIMITS["softmax", "float32"], tuning


def test_more_elements_than_31_bits_count(torch):
    length = (1 << 31) + 5
    x = torch.empty((1, length), dtype=torch.bfloat16, device="cuda").normal_()
    y = torch.full_like(x, float("nan"))
    onepass.softmax(x, out=y)
    assert _engine.last_algorithm() == "stream"
    lse = math.log(sum(float(part.float().exp().sum(dtype=torch.float64)) for part in x[0].split(1 << 26)))
    for begin in (0, length // 2, length - 4096):
        part = slice(begin, begin + 4096)
        expected = np.exp(to_host(x[0, part]).astype(np.float64) - lse)
        np.testing.assert_allclose(to_host(y[0, part]).astype(np.float64), expected, rtol=5e-3)
    few = x[:, : 1 << 20].expand(3000, 1 << 20)
    del y
    for algorithm in ("split", "cluster"):
        y = onepass.softmax(few[:2100], algorithm=algorithm)
        assert y.numel() > 1 << 31
        assert torch.equal(y[0], y[2099])
