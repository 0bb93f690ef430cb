"""torch.func over onepass's functions: every transform, nested too, gives what it gives of torch's."""

import pytest
import torch
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch_cases import DEVICES, FAMILY, assert_like, random_tensor

import onepass

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # torch loads its rules for tangents with it


def scalar(f):
    return lambda x: (f(x) ** 2).sum()


# A function of (f, x, v), where f is of one tensor and along dim 1 of x, or 0 of a row of x.
TRANSFORMS = {
    "grad": lambda f, x, v: grad(scalar(lambda z: f(z, 1)))(x),
    "vjp": lambda f, x, v: vjp(lambda z: f(z, 1), x)[1](torch.cos(f(x, 1))),
    "jvp": lambda f, x, v: jvp(lambda z: f(z, 1), (x,), (v,)),
    "vmap": lambda f, x, v: vmap(lambda z: f(z, 0))(x),
    "vmap of columns": lambda f, x, v: vmap(lambda z: f(z, -1), in_dims=1)(x),
    "vmap of scalars": lambda f, x, v: vmap(vmap(lambda z: f(z, 0)))(x),
    "vmap grad": lambda f, x, v: vmap(grad(scalar(lambda z: f(z, 0))))(x),
    "vmap jvp": lambda f, x, v: vmap(lambda a, b: jvp(lambda z: f(z, 0), (a,), (b,)))(x, v),
    "vmap vjp of one point": lambda f, x, v: vmap(lambda d: vjp(lambda z: f(z, 0), x[0])[1](d * torch.cos(f(x[0], 0))))(
        x[:, 0]
    ),
    "jacrev": lambda f, x, v: jacrev(lambda z: f(z, 1))(x),
    "jacfwd": lambda f, x, v: jacfwd(lambda z: f(z, 1))(x),
    "hessian": lambda f, x, v: hessian(scalar(lambda z: f(z, 1)))(x),
    "jacrev of jacrev": lambda f, x, v: jacrev(jacrev(lambda z: f(z, 1)))(x),
    "jacfwd of jacfwd": lambda f, x, v: jacfwd(jacfwd(lambda z: f(z, 1)))(x),
    "jacrev of jacfwd": lambda f, x, v: jacrev(jacfwd(lambda z: f(z, 1)))(x),
    "third derivatives": lambda f, x, v: jacfwd(hessian(scalar(lambda z: f(z, 1))))(x[:2, :3]),
    "functionalize": lambda f, x, v: functionalize(lambda z: f(z, 1))(x),
    "jvp without recording": lambda f, x, v: torch.no_grad()(jvp)(lambda z: f(z, 1), (x,), (v,)),
}


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("device", DEVICES)
def test_transforms_as_of_torchs(device, name, op):
    x, v = random_tensor((3, 4), device=device), random_tensor((3, 4), device=device, seed=1)
    actual = TRANSFORMS[name](getattr(onepass, op), x, v)
    assert_like(actual, TRANSFORMS[name](getattr(torch, op), x, v), scale=1.0)
    if name not in ("vmap of scalars",):
        assert min(t.abs().max() for t in torch.utils._pytree.tree_leaves(actual)) > 1e-3, "not all zero"


@pytest.mark.parametrize("op", FAMILY)
def test_autograd_through_a_transform(op):
    """A level of torch.func inside of plain autograd."""
    x = random_tensor((3, 4))

    def through(f):
        z = x.clone().requires_grad_()
        return torch.autograd.grad((jacrev(lambda w: f(w, 1))(z) ** 2).sum(), z)

    assert_like(through(getattr(onepass, op)), through(getattr(torch, op)), scale=1.0)


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("dim", [None, (0, 1), (1,), -1], ids=str)
def test_dims_under_vmap(op, dim):
    x = random_tensor((2, 3, 4))
    y = vmap(lambda z: getattr(onepass, op)(z, dim), in_dims=1, out_dims=-1)(x)
    expected = torch.stack([getattr(onepass, op)(x[:, i], dim) for i in range(3)], -1)
    assert_like(y, expected)


@pytest.mark.parametrize("op", FAMILY)
@pytest.mark.parametrize("dim", [2, 5, -3])
def test_a_dim_that_is_none_is_refused_under_vmap(op, dim):
    x = random_tensor((2, 3, 4))
    with pytest.raises(ValueError, match=rf"{op}: dim {dim} is out of range for an input of shape \(3, 4\)"):
        torch.vmap(lambda row: getattr(torch.ops.onepass, op)(row, [dim]))(x)


@pytest.mark.parametrize("op", FAMILY)
def test_a_dtype_under_a_transform(op):
    if op == "logsumexp":
        pytest.skip("it has no dtype=")
    x = random_tensor((3, 4), torch.float32)
    y, dx = vjp(lambda z: getattr(onepass, op)(z, 1, dtype=torch.float64), x)
    assert y.dtype == torch.float64
    assert dx(torch.cos(y))[0].dtype == torch.float32


OPERATORS = {
    "softmax": lambda x: (x, [1]),
    "softmax, transposed": lambda x: (x.detach().T.requires_grad_(x.requires_grad), [-1], torch.float32),
    "softmax, everything": lambda x: (x, [0, 1]),
    "log_softmax": lambda x: (x, [0]),
    "logsumexp": lambda x: (x, [1]),
    "logsumexp, keepdim": lambda x: (x, [0, 1], True),
    "softmax_backward": lambda x: (x.detach().cos().requires_grad_(), x, [1], torch.float64),
    "log_softmax_backward": lambda x: (x.detach().cos().requires_grad_(), x, [1], torch.float32),
    "logsumexp_backward": lambda x: (
        x.detach()[:, 0].cos().requires_grad_(),
        x,
        x.detach().logsumexp(1).requires_grad_(),
        [1],
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_operators_pass_torchs_own_check(device, requires_grad, name):
    x = random_tensor((3, 4), device=device).requires_grad_(requires_grad)
    results = torch.library.opcheck(getattr(torch.ops.onepass, name.partition(",")[0]).default, OPERATORS[name](x))
    assert set(results.values()) == {"SUCCESS"}
    assert len(results) == 4


@pytest.mark.parametrize("op", FAMILY)
def test_an_operator_alone_has_tangents_and_gradients(op):
    """As torch.ops.onepass.*, past the Python function: other ways to register one give tangents of zero there."""
    operator, function = getattr(torch.ops.onepass, op), getattr(torch, op)
    x, v = random_tensor((3, 4)), random_tensor((3, 4), seed=1)
    for name in ("jvp", "hessian", "vmap grad", "vjp"):
        assert_like(TRANSFORMS[name](operator, x, v), TRANSFORMS[name](function, x, v), scale=1.0)


@pytest.mark.parametrize("name", ["softmax_backward", "log_softmax_backward"])
def test_gradients_are_functions_too(name):
    """Their own gradients and tangents, by every argument."""
    operator = getattr(torch.ops.onepass, name)
    dy, y = random_tensor((3, 4)).requires_grad_(), random_tensor((3, 4), seed=1).requires_grad_()
    for dims in ([1], [0, 1]):
        assert torch.autograd.gradcheck(
            lambda dy, y, dims=dims: operator(dy, y, dims, torch.float64), (dy, y), check_forward_ad=True
        )
        assert torch.autograd.gradgradcheck(
            lambda dy, y, dims=dims: operator(dy, y, dims, torch.float64), (dy, y), check_fwd_over_rev=True
        )


@pytest.mark.parametrize("keepdim", [False, True])
def test_gradients_of_the_gradient_of_logsumexp(keepdim):
    x = random_tensor((3, 4))
    shape = (3, 1) if keepdim else (3,)
    inputs = (random_tensor(shape, seed=1), x, random_tensor(shape, seed=2))
    for t in inputs:
        t.requires_grad_()

    def function(dy, x, lse):
        return torch.ops.onepass.logsumexp_backward(dy, x, lse, [1], keepdim)

    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True)
    batched = vmap(function, in_dims=(0, None, None))(torch.stack([inputs[0], 2 * inputs[0]]), x, inputs[2])
    assert_like(batched[1], 2 * batched[0])
