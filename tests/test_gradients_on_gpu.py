"""Gradients on a real GPU, as users call them: `pytest -m gpu`. What kernels compute, over all their parameters, is
test_cuda_gradients.py's; here it is arrays in and out, plans that the planner chooses, torch's autograd, streams and
graphs."""

import itertools

import gpu_machine
import numpy as np
import pytest
from gpu_layouts import GRADIENT_LAYOUTS
from helpers import DTYPES, random_array, to_torch
from ulp import max_ulp

from onepass import _engine, gradients, reference
from onepass.call_gradients import checked
from onepass.cuda import launch
from onepass.cuda.launch import read_device

pytestmark = pytest.mark.gpu
SUMS = ("softmax_backward", "log_softmax_backward")
OPS = (*SUMS, "logsumexp_backward")
FORWARD = {"softmax_backward": "softmax", "log_softmax_backward": "log_softmax", "logsumexp_backward": "logsumexp"}
# In ULP of the terms that a result is a difference of.
LIMITS = {"float16": 0.52, "bfloat16": 0.52, "float32": 6, "float64": 6}

CONVERTED = (((65, 1000), -1), ((9, 30001), -1), ((70, 65), 0))


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def laid_out(torch, op, name, saved, dy=None):
    """Of whole arrays on the GPU: dy, what was saved, and of logsumexp its result. Tensors where a layout has them."""
    _, dim, saved_view, dy_view, _ = GRADIENT_LAYOUTS[name]
    saved = saved if saved_view is None else saved_view(saved)
    if op == "logsumexp_backward":
        lse = torch.logsumexp(saved.double(), dim=tuple(range(saved.ndim)) if dim is None else dim).to(saved.dtype)
        return torch.randn_like(lse), saved, lse
    dy = dy if dy_view is None else dy_view(dy)
    if tuple(dy.shape) != tuple(saved.shape):
        dy = dy[tuple(slice(0, n) for n in saved.shape)]
    return dy, saved


def inputs_of(torch, op, name, dtype):
    """The same with elements: of softmax and log_softmax what they are of random ones."""
    shape, dim, *_ = GRADIENT_LAYOUTS[name]
    x = random_array(shape, "float64", 3)
    if op == "logsumexp_backward":
        return laid_out(torch, op, name, to_torch(x.astype(DTYPES[dtype])).cuda())
    y = getattr(reference, FORWARD[op])(x, dim).astype(DTYPES[dtype])
    return laid_out(torch, op, name, to_torch(y).cuda(), to_torch(random_array(shape, dtype, seed=1)).cuda())


@pytest.fixture(scope="module", autouse=True)
def _compiled(torch):
    """The kernels of the largest test, compiled by all cores together rather than by each test."""
    plans = []

    def add(op, dim, dy, saved, *lse, dtype=None):
        inputs, problem = checked(op, (saved, dy, *lse), dim, False, dtype, None)
        plans.append(launch.plan(problem, inputs[0], None, beside=inputs[1:]))

    for op in OPS:
        for dtype in DTYPES:
            for name, (shape, dim, *_) in GRADIENT_LAYOUTS.items():
                zeros = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
                add(op, dim, *laid_out(torch, op, name, zeros, zeros))
    for shape, dim in CONVERTED:
        for given, saved, result in itertools.product(DTYPES, repeat=3):
            dy, y = (torch.zeros(shape, dtype=getattr(torch, name), device="cuda") for name in (given, saved))
            add("softmax_backward", dim, dy, y, dtype=getattr(torch, result))
    gpu_machine.compile_all(plans, read_device(0).architecture)


def to_host(tensor):
    """Exactly, in float64."""
    return tensor.double().cpu().numpy()


def check(op, dx, dy, saved, *lse, dim, dtype):
    dy, saved, *lse = map(to_host, (dy, saved, *lse))
    dims = tuple(range(saved.ndim)) if dim is None else dim
    expected = getattr(reference, op)(dy, saved, *lse, dim, dtype=np.longdouble)
    scale = np.zeros(saved.shape)
    with np.errstate(all="ignore"):
        if op == "softmax_backward":
            scale = np.abs(saved) * (np.abs(dy) + np.abs(dy * saved).sum(dims, keepdims=True))
        elif op == "log_softmax_backward":
            scale = np.abs(dy) + np.exp(saved) * np.abs(dy).sum(dims, keepdims=True)
    got = to_host(dx)
    assert got.shape == expected.shape
    error = max_ulp(got, expected, DTYPES[dtype], floor=np.where(np.isfinite(scale), scale, 0))
    assert error <= LIMITS[dtype], (op, dtype, error)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", GRADIENT_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout(torch, name, op, dtype):
    inputs = inputs_of(torch, op, name, dtype)
    dim, algorithm = GRADIENT_LAYOUTS[name][1], GRADIENT_LAYOUTS[name][4]
    function = getattr(gradients, op)
    dx = function(*inputs, dim=dim)
    if dtype == "bfloat16" and op in SUMS:
        assert _engine.last_algorithm() == algorithm
    assert type(dx) is torch.Tensor
    assert dx.is_cuda and dx.is_contiguous() and dx.dtype == inputs[1].dtype
    check(op, dx, *inputs, dim=dim, dtype=dtype)
    out = torch.full_like(dx, float("nan"))
    assert function(*inputs, dim=dim, out=out) is out
    assert torch.equal(out, dx)


@pytest.mark.parametrize(
    "algorithm", ["warp", "warp_smem", "block", "block_smem", "block_uncached", "split", "stream", "cluster", "strided"]
)
@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_algorithm(torch, algorithm, op, dtype):
    y = getattr(torch, FORWARD[op])(
        torch.randn(133, 241 if algorithm.startswith("warp") else 777, device="cuda") * 3, -1
    )
    y = y.to(getattr(torch, dtype))
    dy = torch.randn_like(y)
    dx = getattr(gradients, op)(dy, y, algorithm=algorithm)
    assert _engine.last_algorithm() == algorithm
    check(op, dx, dy, y, dim=-1, dtype=dtype)


@pytest.mark.parametrize("result", DTYPES)
@pytest.mark.parametrize("saved", DTYPES)
@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), CONVERTED)
def test_any_types(torch, given, saved, result, shape, dim):
    y = torch.softmax(torch.randn(shape, device="cuda"), dim).to(getattr(torch, saved))
    dy = torch.randn(shape, device="cuda").to(getattr(torch, given))
    dx = gradients.softmax_backward(dy, y, dim=dim, dtype=getattr(torch, result))
    assert dx.dtype == getattr(torch, result)
    check("softmax_backward", dx, dy, y, dim=dim, dtype=result)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), [((64, 300), -1), ((16, 5000), -1), ((2, 200001), -1), ((7, 300, 50), 1)])
def test_as_torch_s_autograd(torch, op, dtype, shape, dim):
    """Through torch's own forward and backward of the same numbers."""
    x = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)).requires_grad_()
    result = getattr(torch, FORWARD[op])(x, dim)
    dy = torch.randn_like(result)
    (expected,) = torch.autograd.grad(result, x, dy)
    saved = (x.detach(), result.detach()) if op == "logsumexp_backward" else (result.detach(),)
    dx = getattr(gradients, op)(dy, *saved, dim=dim)
    tolerance = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    torch.testing.assert_close(dx, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_special_values(torch):
    y = torch.softmax(torch.randn(6, 3000, device="cuda"), -1)
    dy = torch.randn_like(y)
    y[0, ::2] = 0
    dy[1, 5], dy[2, 5], y[3, 5] = float("nan"), float("inf"), float("nan")
    y[4] = 0
    for algorithm in ("block", "block_smem", "block_uncached", "split", "stream", "cluster", "strided"):
        dx = gradients.softmax_backward(dy, y, algorithm=algorithm)
        check("softmax_backward", dx, dy, y, dim=-1, dtype="float32")
        assert (dx[0, ::2] == 0).all() and (dx[4] == 0).all()
        assert dx[1].isnan().all() and dx[3].isnan().all()
    x = torch.randn(3, 3000, device="cuda")
    x[0], x[1, ::2] = -float("inf"), -float("inf")
    dx = gradients.logsumexp_backward(torch.ones(3, device="cuda"), x, torch.logsumexp(x, -1))
    assert (dx[0] == 0).all() and (dx[1, ::2] == 0).all()
    assert torch.allclose(dx[1:].sum(-1), torch.ones(2, device="cuda"))


@pytest.mark.parametrize("op", SUMS)
def test_in_place(torch, op):
    for shape, dim in (((50, 300), -1), ((50, 5001), -1), ((9, 40001), -1), ((3, 300001), -1), ((300, 70), 0)):
        y = getattr(torch, FORWARD[op])(torch.randn(shape, device="cuda"), dim)
        dy = torch.randn_like(y)
        expected = getattr(gradients, op)(dy, y, dim=dim)
        for into in ("dy", "y"):
            given = {"dy": dy.clone(), "y": y.clone()}
            dx = getattr(gradients, op)(given["dy"], given["y"], dim=dim, out=given[into])
            assert dx is given[into]
            assert torch.equal(dx, expected)


def test_the_same_bits_every_time(torch):
    for shape, dim in (((50, 1000), -1), ((50, 50000), -1), ((3, 200000), -1), ((2000, 70), 0)):
        y = torch.softmax(torch.randn(shape, device="cuda"), dim)
        dy = torch.randn_like(y)
        first = gradients.softmax_backward(dy, y, dim=dim)
        assert all(torch.equal(gradients.softmax_backward(dy, y, dim=dim), first) for _ in range(20))


def test_more_elements_than_31_bits_count(torch):
    columns = 1 << 16
    rows = (1 << 31) // columns + 3
    y = torch.empty((rows, columns), dtype=torch.bfloat16, device="cuda").uniform_(0, 2 / columns)
    dy = torch.empty_like(y).normal_()
    dx = torch.full_like(y, float("nan"))
    gradients.softmax_backward(dy, y, out=dx)
    for row in (0, rows // 2, rows - 4, rows - 3, rows - 1):
        check("softmax_backward", dx[row], dy[row], y[row], dim=-1, dtype="bfloat16")
    shape = (columns // 8, 8, rows)
    dx.fill_(float("nan"))
    gradients.softmax_backward(dy.view(shape), y.view(shape), dim=1, out=dx.view(shape))
    for i in (0, shape[0] - 1):
        of_i = (t.view(shape)[i] for t in (dx, dy, y))
        check("softmax_backward", *of_i, dim=0, dtype="bfloat16")


def test_calls_go_to_the_current_stream_and_wait_for_nothing(torch):
    y = torch.softmax(torch.randn(64, 3000, device="cuda"), -1)
    source, dy = torch.randn_like(y), torch.zeros_like(y)
    expected = gradients.softmax_backward(source, y)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        dy.copy_(source)
        dx = gradients.softmax_backward(dy, y)
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert torch.equal(dx, expected)


def test_graphs(torch):
    y = torch.softmax(torch.randn(64, 3005, device="cuda"), -1)
    dy = torch.randn_like(y)
    lse, x = torch.randn(64, device="cuda"), torch.randn(64, 3005, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dx = gradients.softmax_backward(dy, y)
        columns = gradients.softmax_backward(dy, y, dim=0)
        of_lse = gradients.logsumexp_backward(lse, x, lse)
    for seed in (1, 2):
        dy.copy_(torch.from_numpy(random_array(dy.shape, seed=seed)))
        graph.replay()
        assert torch.equal(dx, gradients.softmax_backward(dy, y))
        assert torch.equal(columns, gradients.softmax_backward(dy, y, dim=0))
        assert torch.equal(of_lse, gradients.logsumexp_backward(lse, x, lse))


def test_cupy():
    cupy = pytest.importorskip("cupy")
    host = random_array((30, 777), "float32")
    y, dy = cupy.asarray(reference.softmax(host).astype(np.float32)), cupy.asarray(random_array((30, 777), seed=1))
    dx = gradients.softmax_backward(dy, y)
    assert type(dx) is cupy.ndarray
    expected = reference.softmax_backward(cupy.asnumpy(dy), cupy.asnumpy(y))
    np.testing.assert_allclose(cupy.asnumpy(dx), expected, rtol=1e-5, atol=1e-9)
