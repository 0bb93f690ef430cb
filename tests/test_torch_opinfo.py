"""PyTorch's own samples of everything that reaches softmax, with torch's operators routed here: results as torch's."""

import warnings

import pytest
import torch
from torch_cases import DEVICES, assert_like

import onepass

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings("default")  # the samples' own, as of implicit dims

NAMES = (
    "softmax",
    "log_softmax",
    "logsumexp",
    "nn.functional.softmin",
    "masked.softmax",
    "masked.log_softmax",
    "masked.softmin",
    "masked.logsumexp",
    "nn.functional.cross_entropy",
    "nn.functional.nll_loss",
)
OPS = [op for op in op_db if op.name in NAMES]
IDS = [f"{op.name}.{op.variant_test_name}".strip(".") for op in OPS]
# nll_loss takes logarithms of probabilities: no operator of the family is under it.
UNDER = {name: "log_softmax" if "log_softmax" in name or "cross" in name else "softmax" for name in NAMES}
UNDER |= {"logsumexp": "logsumexp", "masked.logsumexp": "logsumexp", "nn.functional.nll_loss": None}


def samples_of(op, device, dtype):
    """Functions of one tensor, and the tensor. Of inputs with NaN the gradients have no meaning."""
    for sample in op.sample_inputs(device, dtype, requires_grad=False):
        function = sample_function(op, sample)
        if sample.input.numel() == 0 or not sample.input.is_floating_point():
            continue
        yield function, sample.input


def sample_function(op, sample):
    return lambda x: op(x, *sample.args, **sample.kwargs)


def test_they_are_all_there():
    assert {op.name for op in OPS} == set(NAMES)


@pytest.fixture
def routed():
    """Runs a function on a tensor by torch alone, then routed here; counts how often that was done."""

    class Routed:
        served = 0

        def __call__(self, function, *args):
            expected = function(*args)
            with onepass.installed():
                actual = function(*args)
                stats = onepass.installed_stats()
            self.served += sum(counts["onepass"] for counts in stats.values())
            return actual, expected

    return Routed()


def forward_and_gradient(function, x):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    if not y.requires_grad:
        return y
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y) + 0.5 * torch.cos(y.detach()), allow_unused=True)
    return y, dx


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPS, ids=IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_results_and_gradients(op, device, dtype, routed):
    if dtype not in op.supported_backward_dtypes(device):
        pytest.skip("torch has no gradient of it")
    for function, x in samples_of(op, device, dtype):
        actual, expected = routed(forward_and_gradient, function, x)
        assert_like(actual, expected, scale=1.0)
    assert routed.served > 0 or UNDER[op.name] is None


def second_gradient(function, x):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    dy = torch.cos(torch.arange(y.numel(), dtype=y.dtype, device=y.device)).reshape(y.shape).requires_grad_()
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True, allow_unused=True)
    if dx is None or not dx.requires_grad:
        return y
    return torch.autograd.grad(
        (dx * torch.sin(1 + x.detach())).sum(), [x, dy], allow_unused=True, materialize_grads=True
    )


@pytest.mark.parametrize("op", OPS, ids=IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_second_gradients(op, device, routed):
    for function, x in samples_of(op, device, torch.float64):
        actual, expected = routed(second_gradient, function, x)
        assert_like(actual, expected, scale=1.0)
    assert routed.served > 0 or UNDER[op.name] is None


@pytest.mark.parametrize("op", OPS, ids=IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_tangents(op, device, routed):
    for function, x in samples_of(op, device, torch.float64):
        actual, expected = routed(
            lambda x, function=function: torch.func.jvp(function, (x,), (torch.cos(x),)), x.detach()
        )
        assert_like(actual, expected, scale=1.0)
    assert routed.served > 0 or UNDER[op.name] is None


@pytest.mark.parametrize("op", OPS, ids=IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_batches(op, device, routed):
    checked = 0
    for function, x in samples_of(op, device, torch.float64):
        batch = torch.stack([x.detach(), 2 * x.detach()])
        try:
            torch.func.vmap(function)(batch)
        except RuntimeError:
            continue  # torch itself cannot: data-dependent control flow of masked operations
        actual, expected = routed(torch.func.vmap(function), batch)
        assert_like(actual, expected, scale=1.0)
        checked += 1
    assert checked > 0
    assert routed.served > 0 or UNDER[op.name] is None


@pytest.mark.parametrize(
    "op",
    [op for op in OPS if op.name in ("softmax", "log_softmax", "logsumexp")],
    ids=lambda op: op.name + op.variant_test_name,
)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_the_function(op, device):
    """Not only torch's: against differences."""
    with onepass.installed():
        for function, x in samples_of(op, device, torch.float64):
            x = x.detach().clone().requires_grad_()
            assert torch.autograd.gradcheck(function, x, check_forward_ad=True, fast_mode=True)
            assert torch.autograd.gradgradcheck(function, x, check_fwd_over_rev=True, fast_mode=True)


SAFE = {
    "no row masked": [[0.0, 1.0, 2.0], [3.0, 2.0, -torch.inf]],
    "one row masked": [[0.0, 1.0, 2.0], [-torch.inf] * 3],
    "all masked": [[-torch.inf] * 3] * 2,
    "a NaN in a row": [[torch.nan, -torch.inf, 0.0], [-torch.inf] * 3],
    "+inf": [[torch.inf, 0.0, 0.0], [0.0, -torch.inf, -torch.inf]],
}


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("values", SAFE.values(), ids=SAFE)
@pytest.mark.parametrize("device", DEVICES)
def test_safe_softmax(device, values, dim, dtype, routed):
    # On GPUs torch's own gradient of a narrower result is for float16 inputs alone.
    narrower = device == "cuda" and dtype == torch.float32
    x = torch.tensor(values, dtype=torch.float16 if narrower else torch.float64, device=device)

    def both(x):
        x = x.clone().requires_grad_()
        y = torch.ops.aten._safe_softmax(x, dim, dtype)
        return y, torch.autograd.grad(y, x, torch.cos(torch.arange(6.0, device=device)).reshape(2, 3).to(y.dtype))

    actual, expected = routed(both, x)
    assert_like(actual, expected)
    assert routed.served >= 1
