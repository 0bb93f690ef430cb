"""Gradients and tangents of calls on torch tensors: against differences, and against torch's."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch_cases import DEVICES, FAMILY, assert_like, random_tensor

import onepass
from onepass import _engine

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*"),  # torch loads its rules for tangents with it
    pytest.mark.usefixtures("recorded_by"),
]

# Shape, dim and algorithm: each CPU algorithm on the rows or tiles that it is for.
CHECKED = {
    "registers": ((5, 7), -1, "registers"),
    "row": ((3, 9), -1, "row"),
    "online": ((3, 9), 1, "online"),
    "split": ((2, 9), -1, "split"),
    "strided": ((6, 5), 0, "strided"),
    "packed": ((3, 5, 2), 1, "packed"),
    "two dims": ((2, 3, 4), (0, 2), None),
    "everything": ((3, 4), None, None),
    "a dim of one": ((3, 1), 1, None),
    "one dim": ((6,), 0, None),
}
# More of them, for what is compared with torch alone.
SHAPES = {**{name: case[:2] for name, case in CHECKED.items()}, "long": ((2, 3001), -1), "middle": ((3, 40, 17), 1)}


def by_torch(op, x, dim, dtype=None):
    """torch's own, also along several dims."""
    dims = tuple(range(x.dim())) if dim is None else dim
    if op == "logsumexp":
        return torch.logsumexp(x, dims)
    if isinstance(dims, int):
        return getattr(torch, op)(x, dims, dtype=dtype)
    x = x if dtype is None else x.to(dtype)
    y = x - torch.logsumexp(x, dims, keepdim=True)
    return y.exp() if op == "softmax" else y


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("name", CHECKED)
def test_against_differences(name, op, recorded_by):
    shape, dim, algorithm = CHECKED[name]
    x = random_tensor(shape).requires_grad_()

    def function(x):
        return getattr(onepass, op)(x, dim, algorithm=algorithm)

    y = function(x)
    node = {"softmax": "Softmax", "log_softmax": "LogSoftmax", "logsumexp": "LogSumExp"}[op] + "Backward"
    assert y.grad_fn.name() == node
    assert type(y.grad_fn).__name__ == (node if recorded_by == "python" else "CppFunction")
    assert algorithm in (None, _engine.last_algorithm())
    assert gradcheck(function, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_as_torchs(device, dtype, name, op):
    shape, dim = SHAPES[name]
    x = random_tensor(shape, dtype, device, sigma=3)

    def gradient(function, x):
        x = x.clone().requires_grad_()
        y = function(x)
        return torch.autograd.grad(y, x, torch.cos(y.detach()))

    actual = gradient(lambda x: getattr(onepass, op)(x, dim), x)
    # A 16-bit result is saved rounded: of a log_softmax of -8, its exponential has eight roundings.
    expected = gradient(lambda x: by_torch(op, x, dim), x.float() if dtype.itemsize == 2 else x)
    expected = [g.to(dtype) for g in expected]
    assert_like(actual, expected, scale=1.0, epsilons=16 if dtype.itemsize == 2 else 256)


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_gradients_of_gradients(device, op):
    x = random_tensor((3, 4), device=device)

    def third(function):
        z = x.clone().requires_grad_()
        first = torch.autograd.grad((function(z) ** 2).sum(), z, create_graph=True)[0]
        second = torch.autograd.grad((first**3).sum(), z, create_graph=True)[0]
        return torch.autograd.grad((second * torch.cos(x)).sum(), z)

    actual = third(lambda z: getattr(onepass, op)(z, 1))
    assert_like(actual, third(lambda z: getattr(torch, op)(z, 1)), epsilons=200)
    assert actual[0].abs().max() > 1e-3


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("source", "result"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float64), (torch.float32, torch.float16)],
    ids=str,
)
@pytest.mark.parametrize("device", DEVICES)
def test_a_named_dtype(device, source, result, op):
    """The gradient has the dtype of x, whatever that of the result."""
    x = random_tensor((4, 33), source, device).requires_grad_()
    y = getattr(onepass, op)(x, dtype=result)
    assert y.dtype == result
    dy = torch.cos(y.detach())
    (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(getattr(torch, op)(wide, -1), wide, dy.double())
    coarser = max(torch.finfo(source).eps, torch.finfo(result).eps) / torch.finfo(source).eps
    assert_like(dx, expected.to(source), scale=1.0, epsilons=8 * coarser)
    with torch.no_grad():
        assert torch.equal(getattr(onepass, op)(x, dtype=str(result).removeprefix("torch.")), y)


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_that_come_expanded_and_strided(device, op):
    """The gradient of a sum has stride 0; that of a transposed use is transposed."""
    x = random_tensor((5, 6), device=device)
    uses = {
        "sum": lambda y: y.sum(),
        "strided": lambda y: (y.mT if y.dim() > 1 else y).contiguous().cumsum(0).sum(),
        "every second": lambda y: y[::2].sum(),
        "transposed": lambda y: (y.T * y.T.cos()).sum() if y.dim() > 1 else y.sum(),
    }
    for name, use in uses.items():
        ours, torchs = x.clone().requires_grad_(), x.clone().requires_grad_()
        use(getattr(onepass, op)(ours, 1)).backward()
        use(getattr(torch, op)(torchs, 1)).backward()
        assert_like(ours.grad, torchs.grad, scale=1.0), name


@pytest.mark.parametrize("device", DEVICES)
def test_masked_logits(device):
    """A logit of -inf has a gradient of 0; so has a row of them under logsumexp. softmax of such a row is NaN."""
    inf = torch.inf
    x = torch.tensor([[0.0, -inf, 1.0], [-inf, -inf, -inf], [-inf, 2.0, -inf]], device=device, dtype=torch.float64)
    for op in ("softmax", "log_softmax"):
        rows = x[[0, 2]].clone().requires_grad_()
        y = getattr(onepass, op)(rows)
        dy = torch.where(y.isfinite(), torch.cos(y.detach()), 0)
        (dx,) = torch.autograd.grad(y, rows, dy)
        assert dx.isfinite().all()
        assert (dx[rows.isinf()] == 0).all()
        assert_like(dx, torch.autograd.grad(getattr(torch, op)(rows, 1), rows, dy)[0], scale=1.0)
    z = x.clone().requires_grad_()
    onepass.logsumexp(z).sum().backward()
    assert torch.equal(z.grad[1], torch.zeros(3, device=device, dtype=torch.float64))
    assert_like(z.grad[[0, 2]], torch.softmax(x[[0, 2]], 1), scale=1.0)
    z = x.clone().requires_grad_()
    onepass.softmax(z).sum().backward()
    assert z.grad[1].isnan().all()
    assert z.grad[[0, 2]].isfinite().all()


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("device", DEVICES)
def test_tangents_as_torchs(device, op):
    x, v = random_tensor((4, 9), device=device), random_tensor((4, 9), device=device, seed=1)

    def tangents(function):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v)
            forward = forward_ad.unpack_dual(function(dual)).tangent
            leaf = forward_ad.make_dual(x.clone().requires_grad_(), v)
            (gradient,) = torch.autograd.grad((function(leaf) ** 2).sum(), leaf)
            return forward, forward_ad.unpack_dual(gradient).tangent

    actual = tangents(lambda z: getattr(onepass, op)(z, 1))
    assert min(t.abs().max() for t in actual) > 0.1, "a tangent of zero is a tangent lost"
    assert_like(actual, tangents(lambda z: getattr(torch, op)(z, 1)))
    plain = getattr(onepass, op)(x, 1)
    with forward_ad.dual_level():
        y = getattr(onepass, op)(x, 1)
        assert forward_ad.unpack_dual(y).tangent is None, "a tensor without one"
        assert torch.equal(y, plain)


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("dim", [1, (0, 1), None], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_reductions_have_torchs_gradients(device, dim, op):
    x = random_tensor((4, 5), device=device)
    assert gradcheck(lambda z: getattr(onepass, op)(z, dim), x.clone().requires_grad_(), check_forward_ad=True)
    z = x.clone().requires_grad_()
    y = getattr(onepass, op)(z, dim, keepdim=True)
    assert_like(y.detach(), getattr(onepass, op)(x, dim, keepdim=True), scale=1.0)


def test_where_recording_is_off_nothing_is_recorded():
    x = random_tensor((3, 4)).requires_grad_()
    for op in (*FAMILY, "sum", "amax"):
        function = getattr(onepass, op)
        with torch.no_grad():
            assert not function(x).requires_grad
            out = torch.full_like(function(x), torch.nan)
            assert function(x, out=out) is out
            assert torch.equal(out, function(x.detach()))
        with torch.inference_mode():
            assert function(x).is_inference()
        with pytest.raises(ValueError, match=f"{op}: out= has no gradient.*no_grad"):
            function(x, out=out)


def test_nothing_of_a_result_is_kept_alive_by_its_gradient():
    import gc
    import weakref

    x = random_tensor((8, 8)).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        for op in FAMILY:
            y = getattr(onepass, op)(x)
            gone = weakref.ref(y)
            del y
            assert gone() is None, "a cycle"
    finally:
        gc.enable()


def test_a_result_changed_in_place_is_noticed():
    x = random_tensor((3, 4)).requires_grad_()
    y = onepass.softmax(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


INTO = {
    "plain": lambda op, x, out: getattr(onepass, op)(x, 1, out=out),
    "of a parameter": lambda op, x, out: getattr(onepass, op)(torch.nn.Parameter(x), 1, out=out),
    "two dims": lambda op, x, out: getattr(onepass, op)(x[:, None], (1, 2), out=out if out.dim() < 2 else out[:, None]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", INTO)
@pytest.mark.parametrize("op", [*FAMILY, "sum", "amax"])
def test_what_autograd_has_saved_is_not_overwritten_unnoticed(device, way, op):
    """`out=` counts as a write, the first time and when the engine knows the call."""
    x = random_tensor((3, 6), torch.float32, device)
    for _ in range(3):
        a = random_tensor((3, 6) if op in FAMILY[:2] else (3,), torch.float32, device, seed=1).requires_grad_()
        saved = a.exp()
        out = saved.detach()
        before = out._version
        with torch.no_grad():
            INTO[way](op, x, out)
        assert out._version == before + 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_into_an_array_count_as_a_write(device):
    y, dy = (random_tensor((3, 6), torch.float32, device, seed=n) for n in (1, 2))
    for out in (torch.empty_like(y), y):
        for _ in range(2):
            before = out._version
            assert onepass.softmax_backward(dy, y, 1, out=out) is out
            assert out._version == before + 1


@pytest.mark.parametrize("device", DEVICES)
def test_an_out_that_requires_grad_is_written_where_nothing_is_recorded(device):
    x = random_tensor((3, 6), torch.float32, device)
    for other in (x, torch.nn.Parameter(x)):
        out = torch.full((3, 6), torch.nan, device=device, requires_grad=True)
        with torch.no_grad():
            assert onepass.softmax(other, 1, out=out) is out
            assert_like(out, torch.softmax(x, 1))
            out.fill_(torch.nan)
            assert onepass.softmax_backward(other, x, 1, out=out) is out
            assert_like(out, torch._softmax_backward_data(x, x, 1, x.dtype))
        with pytest.raises(ValueError, match=r"out= has no gradient"):
            onepass.softmax(other, 1, out=out)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of what is traced
@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("dim", [1, (0, 1)], ids=str)
def test_compiled_autograd_traces_one_graph(op, dim):
    from torch._dynamo import compiled_autograd

    torch._dynamo.reset()
    compiled_autograd.reset()
    x = random_tensor((3, 4)).requires_grad_()
    y = getattr(onepass, op)(x, dim)
    expected = torch.autograd.grad(y, x, torch.cos(y.detach()), retain_graph=True)[0]
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    with compiled_autograd._enable(torch.compile(backend=keep, fullgraph=True)):
        y.backward(torch.cos(y.detach()))
    assert [f"onepass.{op}_backward" in graph.code for graph in graphs] == [True]
    assert_like(x.grad, expected, scale=1.0)


@pytest.mark.parametrize("op", FAMILY)
def test_beside_a_transform(op):
    """A tensor that requires grad, and is none of the transform that is under way."""
    x, v = random_tensor((3, 4)).requires_grad_(), random_tensor((3, 4), seed=1)

    def through(function):
        y = torch.func.vmap(lambda w: w * function(x, 1).square().sum())(v)
        return y, torch.autograd.grad(y.sum(), x)[0]

    assert_like(through(getattr(onepass, op)), through(getattr(torch, op)), scale=1.0)


def test_from_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    xs = [random_tensor((40, 50), seed=i) for i in range(8)]

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(onepass.softmax(x).square().sum(), x)[0]

    alone = [gradient(x) for x in xs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(gradient, xs * 5))
    for i, dx in enumerate(together):
        assert torch.equal(dx, alone[i % 8])


def test_gradients_called_by_name_have_gradients():
    """onepass.softmax_backward and the others, on tensors that require grad, carry tangents or are batched."""
    x = random_tensor((3, 4))
    y, lse = onepass.log_softmax(x), onepass.logsumexp(x)
    calls = {
        "softmax": lambda dy: onepass.softmax_backward(dy, y.exp(), 1),
        "log_softmax": lambda dy: onepass.log_softmax_backward(dy, y, dim=None),
        "logsumexp": lambda dy: onepass.logsumexp_backward(dy[:, 0], x, lse),
    }
    dy = random_tensor((3, 4), seed=1)
    for name, call in calls.items():
        expected = call(dy)
        assert expected.grad_fn is None
        leaf = dy.clone().requires_grad_()
        assert torch.equal(call(leaf).detach(), expected), name
        assert gradcheck(call, leaf, check_forward_ad=True)
        with torch.no_grad():
            assert torch.equal(call(leaf), expected)
        batched = torch.func.vmap(call)(torch.stack([dy, 2 * dy]))
        assert_like(batched[1], 2 * expected, scale=1.0)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert_like(compiled(dy), expected)
    with pytest.raises(ValueError, match="softmax_backward: out= has no gradient, and an input of shape"):
        onepass.softmax_backward(leaf, y, out=torch.empty_like(y))
    with pytest.raises(ValueError, match="softmax_backward: algorithm= is for plain tensors"):
        onepass.softmax_backward(leaf, y, algorithm="row")
    with pytest.raises((TypeError, ValueError), match="^softmax_backward: "):
        onepass.softmax_backward(leaf, y.numpy())
