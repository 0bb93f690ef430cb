"""Columns that are a run of memory, on a real GPU, as users call them: `pytest -m gpu`."""

import numpy as np
import pytest
from helpers import FLOORS, LIMITS, random_array
from test_gradient_teams_on_gpu import inputs_of
from test_gradients_on_gpu import SUMS, check
from test_on_gpu import replay_beside_each_other, to_gpu, to_host
from ulp import max_ulp

import onepass
from onepass import gradients, reference
from onepass.call_gradients import checked
from onepass.cuda import Tuning, launch, prepare

pytestmark = pytest.mark.gpu

# Shapes whose dim 1 is long, each for the blocks and packs that it has.
SHAPES = {
    "one run over the whole GPU": (1, 1300001, 7),
    "a few runs at a time": (20, 60000, 9),
    "whole packs": (3, 100000, 20),
    "smaller blocks": (2, 40001, 219),
    "larger blocks": (2, 33001, 701),
    "the largest blocks": (1, 30000, 801),
    "more than a thousand columns": (1, 40001, 1100),
}
RUN = Tuning(interleaved=True)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def is_run(op, x):
    return "interleaved" in prepare(op, x, 1).plan.kernel


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "op"),
    [
        (name, op)
        for name in SHAPES
        for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax")
        # Only softmax and log_softmax have such blocks in both types.
        if name != "the largest blocks" or op in ("softmax", "log_softmax")
    ],
)
def test_every_shape(torch, name, op, dtype):
    x = to_gpu(random_array(SHAPES[name], dtype, sigma=3))
    y = prepare(op, x, 1, tuning=RUN)(x)
    expected = getattr(reference, op)(to_host(x), 1, dtype=np.longdouble)
    assert max_ulp(to_host(y), expected, floor=FLOORS[op]) <= LIMITS[op, dtype]
    if op in ("softmax", "log_softmax"):
        assert is_run(op, x)
        assert torch.equal(getattr(onepass, op)(x, dim=1), y)
        out = torch.full_like(x, float("nan"))
        assert getattr(onepass, op)(x, dim=1, out=out) is out
        assert torch.equal(out, y)
        assert getattr(onepass, op)(x, dim=1, out=x) is x
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_gradients(torch, name, op, dtype):
    dy, y = inputs_of(torch, op, SHAPES[name], dtype)
    arrays, problem = checked(op, (y, dy), 1, False, None, None)
    assert "interleaved" in launch.plan(problem, arrays[0], None, beside=arrays[1:]).kernel
    dx = getattr(gradients, op)(dy, y, dim=1)
    check(op, dx, dy, y, dim=1, dtype=dtype)
    out = torch.full_like(dx, float("nan"))
    assert getattr(gradients, op)(dy, y, dim=1, out=out) is out
    assert torch.equal(out, dx)
    assert getattr(gradients, op)(dy, y, dim=1, out=dy) is dy
    assert torch.equal(dy, dx)


def test_the_same_bits_a_hundred_times_beside_a_busy_stream(torch):
    other = torch.cuda.Stream()
    a = torch.randn((4096, 4096), device="cuda")
    for shape in SHAPES.values():
        x = to_gpu(random_array(shape, "float32", sigma=3))
        dy = torch.randn_like(x)
        first = onepass.softmax(x, dim=1)
        of_gradient = gradients.softmax_backward(dy, first, dim=1)
        for _ in range(100):
            with torch.cuda.stream(other):
                a.mul_(1.0)
            assert torch.equal(onepass.softmax(x, dim=1), first), shape
            assert torch.equal(gradients.softmax_backward(dy, first, dim=1), of_gradient), shape


def test_graphs_replayed_on_two_streams(torch):
    """Each has scratch memory of its own, and the numbers of its exchanges go on."""
    given = [to_gpu(random_array((1 + i, 1300001, 7), "float32", sigma=3)) for i in range(2)]
    expected = [onepass.softmax(x, dim=1) for x in given]
    graphs, results = [], []
    for x in given:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(onepass.softmax(x, dim=1))
        graphs.append(graph)
    replay_beside_each_other(torch, graphs, 50)
    for y, right in zip(results, expected, strict=True):
        assert torch.equal(y, right)


def test_more_elements_than_31_bits_count(torch):
    """In one run, and in runs that are far from the first."""
    steps = (1 << 31) // 7 + 5
    x = torch.empty((1, steps, 7), dtype=torch.bfloat16, device="cuda").normal_()
    assert x.numel() > 1 << 31 and is_run("softmax", x)
    y = torch.full_like(x, float("nan"))
    onepass.softmax(x, dim=1, out=y)
    sums = sum(part.float().exp().sum(dim=0, dtype=torch.float64) for part in x[0].split(1 << 24))
    for begin in (0, steps // 2, steps - 4096):
        part = slice(begin, begin + 4096)
        expected = x[0, part].double().exp() / sums
        assert max_ulp(to_host(y[0, part]), to_host(expected), floor=FLOORS["softmax"]) <= 0.6
    del x, y
    few = to_gpu(random_array((1, 1300001, 7), "bfloat16", sigma=3))
    many = few.repeat((1 << 31) // few.numel() + 2, 1, 1)
    assert many.numel() > 1 << 31 and is_run("softmax", many)
    y = onepass.softmax(many, dim=1)
    for run in (0, len(many) // 2, len(many) - 1):
        expected = reference.softmax(to_host(few), 1, dtype=np.longdouble)
        assert max_ulp(to_host(y[run : run + 1]), expected, floor=FLOORS["softmax"]) <= 0.6


@pytest.mark.parametrize("shape", [(0, 100000, 7), (3, 100000, 0)], ids=str)
def test_nothing(torch, shape):
    x = torch.empty(shape, device="cuda")
    assert onepass.softmax(x, dim=1).shape == shape
    assert gradients.softmax_backward(x, x, dim=1).shape == shape
    assert onepass.sum(x, dim=1).shape == onepass.logsumexp(x, dim=1).shape == (shape[0], shape[2])
