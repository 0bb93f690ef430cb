"""Gradients of rows that several blocks share, on a real GPU: `pytest -m gpu`. Layouts and types are those of
test_gradients_on_gpu.py; here it is rows from one to more than the chip holds at once, and what goes on beside them."""

import pytest
from gpu_layouts import GRADIENT_TEAMS
from test_gradients_on_gpu import FORWARD, SUMS, check
from test_on_gpu import replay_beside_each_other

from onepass import _engine, gradients
from onepass.call_gradients import checked
from onepass.cuda import Tuning, launch

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def inputs_of(torch, op, shape, dtype="float32"):
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(shape, device="cuda", generator=generator) * 3
    y = getattr(torch, FORWARD[op])(x, -1).to(getattr(torch, dtype))
    return torch.randn(shape, device="cuda", generator=generator).to(y.dtype), y


@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", GRADIENT_TEAMS)
def test_every_tier(torch, name, dtype, op):
    shape, algorithm = GRADIENT_TEAMS[name]
    dy, y = inputs_of(torch, op, shape, dtype)
    dx = getattr(gradients, op)(dy, y)
    assert _engine.last_algorithm() == algorithm
    check(op, dx, dy, y, dim=-1, dtype=dtype)
    out = torch.full_like(dx, float("nan"))
    assert getattr(gradients, op)(dy, y, out=out) is out
    assert torch.equal(out, dx)
    assert getattr(gradients, op)(dy, y, out=dy) is dy
    assert torch.equal(dy, dx)


@pytest.mark.parametrize("op", SUMS)
def test_any_number_of_blocks(torch, op):
    """Up to all that are at work at once, more than a block has threads; slices in registers, in shared memory,
    and nowhere."""
    dy, y = inputs_of(torch, op, (3, 100003))
    for algorithm, tuning in (
        ("split", Tuning(threads=64, blocks=528)),
        ("split", Tuning(threads=256, blocks=32)),
        ("split", Tuning(threads=512, blocks=13)),
        ("split", Tuning(threads=256, blocks=4, staged=True)),
        ("split", Tuning(threads=128, blocks=40, staged=True)),
        ("stream", Tuning(threads=128, blocks=200)),
        ("cluster", Tuning(threads=512, blocks=16, staged=False)),
        ("cluster", Tuning(threads=128, blocks=5, staged=True)),
    ):
        out = torch.full_like(y, float("nan"))
        arrays, problem = checked(op, (y, dy), -1, False, None, out)
        plan = launch.plan(problem, arrays[0], out, algorithm, beside=arrays[1:], tuning=tuning)
        assert plan.shared_by == tuning.blocks
        _engine.run(launch.bind(problem, arrays[0], out, plan), y, out, dy)
        check(op, out, dy, y, dim=-1, dtype="float32")


@pytest.mark.parametrize("shape", [(150, 4100), (2000, 4096), (12000, 97), (65536, 16), (65536, 7)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", SUMS)
def test_columns_in_registers(torch, shape, dtype, op):
    dy, y = inputs_of(torch, op, shape, dtype)
    out = torch.full_like(y, float("nan"))
    arrays, problem = checked(op, (y, dy), 0, False, None, out)
    assert "held" in launch.plan(problem, arrays[0], out, beside=arrays[1:]).kernel
    assert getattr(gradients, op)(dy, y, dim=0, out=out) is out
    check(op, out, dy, y, dim=0, dtype=dtype)


@pytest.mark.parametrize("op", SUMS)
def test_columns_by_any_number_of_blocks(torch, op):
    dy, y = inputs_of(torch, op, (100003, 6))
    for blocks in (1, 7, 32, 132):
        out = torch.full_like(y, float("nan"))
        arrays, problem = checked(op, (y, dy), 0, False, None, out)
        plan = launch.plan(problem, arrays[0], out, "strided_split", beside=arrays[1:], tuning=Tuning(blocks=blocks))
        assert plan.team == blocks
        _engine.run(launch.bind(problem, arrays[0], out, plan), y, out, dy)
        check(op, out, dy, y, dim=0, dtype="float32")


def test_the_same_bits_a_hundred_times_beside_a_busy_stream(torch):
    other = torch.cuda.Stream()
    a = torch.randn((4096, 4096), device="cuda")
    tiles = ((2000, 4096), (300, 4096), (9000, 32), (65536, 16))
    for shape, dim in (*((shape, -1) for shape, _ in GRADIENT_TEAMS.values()), *((shape, 0) for shape in tiles)):
        for op in SUMS:
            dy, y = inputs_of(torch, op, shape)
            first = getattr(gradients, op)(dy, y, dim=dim)
            for _ in range(100):
                with torch.cuda.stream(other):
                    a.mul_(1.0)
                assert torch.equal(getattr(gradients, op)(dy, y, dim=dim), first), (shape, op)


def test_streams_that_each_want_the_whole_gpu_take_turns(torch):
    """Forward and backward of three streams, which share nothing."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    given = [inputs_of(torch, SUMS[0], (1 + i, 1 << 20)) for i in range(3)]
    expected = [gradients.softmax_backward(dy, y) for dy, y in given]
    results = [[] for _ in given]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, (dy, y), found in zip(streams, given, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(gradients.softmax_backward(dy, y))
                assert _engine.last_algorithm() == "split"
    torch.cuda.synchronize()
    for found, right in zip(results, expected, strict=True):
        assert all(torch.equal(dx, right) for dx in found)


def test_graphs_replayed_on_two_streams(torch):
    """Each has scratch memory of its own."""
    given = [inputs_of(torch, SUMS[0], (2, 300000 + i)) for i in range(2)]
    expected = [gradients.softmax_backward(dy, y) for dy, y in given]
    graphs, results = [], []
    for dy, y in given:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append((gradients.softmax_backward(dy, y), gradients.log_softmax_backward(dy, y)))
        graphs.append(graph)
    replay_beside_each_other(torch, graphs, 50)
    for (dx, of_log), right, (dy, y) in zip(results, expected, given, strict=True):
        assert torch.equal(dx, right)
        assert torch.equal(of_log, gradients.log_softmax_backward(dy, y))


@pytest.mark.parametrize(("algorithm", "length"), [("split", 1 << 20), ("cluster", 1 << 17)])
def test_more_elements_than_31_bits_count(torch, algorithm, length):
    """In rows that are shared: each of the same numbers as the first."""
    dy, y = inputs_of(torch, SUMS[0], (1, length), "bfloat16")
    shape = (1 << 31) // length + 3, length
    dx = gradients.softmax_backward(dy.expand(shape), y.expand(shape), algorithm=algorithm)
    assert dx.numel() > 1 << 31
    check(SUMS[0], dx[:1], dy, y, dim=-1, dtype="bfloat16")
    for row in (shape[0] // 2, shape[0] - 4, shape[0] - 1):
        assert torch.equal(dx[row], dx[0])
