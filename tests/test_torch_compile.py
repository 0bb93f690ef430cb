"""torch.compile: one graph, forward and backward, and no more compilations than shapes ask for."""

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch_cases import DEVICES, FAMILY, assert_like, random_tensor

import onepass

# Compilers' own warnings are theirs.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(function, x):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    (y * torch.cos(y.detach())).sum().backward()
    return y, x.grad


def all_three(x):
    y = onepass.softmax(x * 2, 1) + onepass.log_softmax(x, dim=0)
    return y * onepass.logsumexp(x, axis=1, keepdim=True)


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_forward_and_backward(device):
    """With the code generator that users have."""
    x = random_tensor((5, 40), torch.float32, device)
    counter = CompileCounterWithBackend("inductor")
    actual = trained(torch.compile(all_three, fullgraph=True, backend=counter), x)
    assert_like(actual, trained(all_three, x))
    assert counter.frame_count == 1
    targets = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    assert {"onepass.softmax.default", "onepass.log_softmax.default", "onepass.logsumexp.default"} <= targets


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("device", DEVICES)
def test_shapes_that_change_compile_twice(device, op):
    """Once for the first shape, once for every one after it."""
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(lambda x: getattr(onepass, op)(x * 2, -1), fullgraph=True, backend=counter)
    for rows in range(2, 12):
        x = random_tensor((rows, 3 * rows), torch.float32, device, seed=rows)
        assert_like(trained(function, x), trained(lambda x: getattr(onepass, op)(x * 2, -1), x))
    assert counter.frame_count == 2


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("arguments", [(), (0,), ((0, 1),), (None,), ([0, 1],)], ids=str)
def test_arguments_as_in_eager_calls(op, arguments):
    counter = CompileCounterWithBackend("aot_eager")
    x = random_tensor((3, 4), torch.float32)
    function = getattr(onepass, op)
    actual = torch.compile(lambda x: function(x, *arguments), fullgraph=True, backend=counter)(x)
    assert_like(actual, function(x, *arguments))
    assert counter.frame_count == 1


@pytest.mark.parametrize("op", ["softmax", "logsumexp", "sum"])
def test_dims_that_change(op):
    """A compiler takes them for numbers of its own from the second one on."""
    function = getattr(onepass, op)
    compiled = torch.compile(lambda x, dim: function(x, dim), fullgraph=True, backend="aot_eager")
    x = random_tensor((3, 4, 5), torch.float32)
    for dim in (0, 1, -1):
        assert_like(compiled(x, dim), function(x, dim), scale=1.0)


def test_keywords_as_in_eager_calls():
    x = random_tensor((3, 4), torch.float32)
    calls = {
        "dtype": lambda x: onepass.softmax(x, dtype=torch.float64),
        "dtype by name": lambda x: onepass.log_softmax(x, 0, "float16"),
        "algorithm": lambda x: onepass.softmax(x, algorithm="online"),
        "axis": lambda x: onepass.logsumexp(x, axis=None),
        "out": lambda x: onepass.softmax(x, out=torch.empty_like(x)),
        "sum": lambda x: onepass.sum(x, (0, 1), keepdim=True),
        "keepdim as an int": lambda x: onepass.sum(x, 0, 1) + onepass.logsumexp(x, 0, 1),
        "integers": lambda x: onepass.softmax((x * 8).long(), 0, torch.float32),
        "a gradient's dtype": lambda x: onepass.softmax_backward(x, x, dtype="float16"),
        "the same of NumPy": lambda x: onepass.log_softmax_backward(x, x, dtype=np.float64),
        "mean": lambda x: onepass.mean(x),
        "amax": lambda x: onepass.amax(x, None),
        "module": onepass.nn.Softmax(0),
    }
    for name, call in calls.items():
        actual = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
        assert_like(actual, call(x), scale=1.0), name


def test_a_wrong_argument_is_an_error_while_tracing():
    x, parameter = random_tensor((3, 4), torch.float32), torch.nn.Parameter(torch.ones(3, 4))
    for call, words in (
        (lambda x: onepass.softmax(x, 2), "dim 2 is out of range"),
        (lambda x: onepass.softmax(x.to(torch.float8_e4m3fn)), "float8_e4m3fn"),
        (lambda x: onepass.sum(x.int(), 0), "sum: x has dtype torch.int32"),
        (lambda x: onepass.mean(x.to(torch.float8_e4m3fn), 0), "mean: x has dtype torch.float8_e4m3fn"),
        (lambda x: onepass.amax(x.to(torch.complex64), 0), "amax: x has dtype torch.complex64"),
        (lambda x: onepass.softmax(x, True), "dim must be an int, .* got True"),
        (lambda x: onepass.sum(x, True), "dim must be an int, .* got True"),
        (lambda x: onepass.softmax(x, out=torch.empty(3, 5)), "out has shape"),
        (lambda x: onepass.softmax(x, dim=0, axis=1), "two names of one argument"),
        (lambda x: onepass.softmax(x, axsi=1), "axsi"),
        (lambda x: onepass.softmax_backward(x, x, out=torch.empty(3, 5)), "out has shape"),
        (lambda x: onepass.softmax_backward(x, x, out=parameter * 1), "out= has no gradient"),
        (lambda x: onepass.softmax(x, out=parameter * 1), "out= has no gradient"),
        (lambda x: onepass.softmax(x, out=[1]), "out must be a torch.Tensor, got builtins.list"),
        (lambda x: onepass.softmax_backward(x, x, out=[1]), "out must be a torch.Tensor, got builtins.list"),
        (lambda x: onepass.softmax_backward(x * parameter, x, out=x), "out= has no gradient"),
        (lambda x: onepass.logsumexp_backward(x[0], x, x[0], 0, algorithm="row"), "algorithm= is for plain tensors"),
    ):
        with pytest.raises(Exception, match=words):
            torch.compile(call, fullgraph=True, backend="aot_eager")(x)


def test_gradients_into_an_array():
    y, dy = onepass.softmax(random_tensor((3, 4))), random_tensor((3, 4), seed=1)
    lse = onepass.logsumexp(y, 0)
    for call in (
        lambda out: onepass.softmax_backward(dy, y, out=out),
        lambda out: onepass.logsumexp_backward(dy[0], y, lse, 0, out=out),
    ):
        out, expected = (torch.full((3, 4), torch.nan, dtype=y.dtype) for _ in range(2))
        call(expected)
        assert torch.compile(call, fullgraph=True, backend="aot_eager")(out) is out
        assert torch.equal(out, expected)


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda z: (f(z, 1) ** 2).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(lambda z: f(z, 1), (x,), (torch.cos(x),)),
    "vmap": lambda f, x: torch.func.vmap(lambda z: f(z, 0))(x),
    "hessian": lambda f, x: torch.func.hessian(lambda z: (f(z, 1) ** 2).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside(name):
    x = random_tensor((3, 4))
    for op in FAMILY:
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, op=op: TRANSFORMS[name](getattr(onepass, op), x), fullgraph=True, backend="aot_eager"
        )
        assert_like(compiled(x), TRANSFORMS[name](getattr(torch, op), x), scale=1.0)


def test_arrays_of_numpy_run_past_the_compiler():
    import numpy as np

    x = np.arange(6.0).reshape(2, 3)
    y = torch.compile(lambda x: onepass.softmax(x) + 1, backend="eager")(x)
    np.testing.assert_allclose(y, onepass.softmax(x) + 1)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    """The operator is in the program, for any number of rows."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 6)
            self.softmax = onepass.nn.Softmax(-1)

        def forward(self, x):
            return self.softmax(self.linear(x)) * onepass.logsumexp(x, 1, keepdim=True)

    model = Model()
    x = random_tensor((3, 4), torch.float32)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},), strict=strict)
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"onepass.softmax.default", "onepass.logsumexp.default"} <= targets
    for n in (3, 7):
        z = random_tensor((n, 4), torch.float32, seed=n)
        assert_like(program.module()(z), model(z))


def test_a_compiled_module_of_torch_may_run_while_routes_are_in_place():
    """What the compiler generates is its own; what it leaves to torch's operators comes here."""
    x = random_tensor((3, 50), torch.float32)
    compiled = torch.compile(lambda x: torch.softmax(x, 1) * 2, backend="eager", fullgraph=True)
    expected = compiled(x)
    with onepass.installed():
        assert_like(compiled(x), expected)
        assert onepass.installed_stats()["aten::_softmax"]["onepass"] == 1
