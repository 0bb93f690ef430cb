"""Tensors that stand for something: subclasses, traces, modes, devices without memory, autocast, modules."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch_cases import DEVICES, FAMILY, assert_like, random_tensor

import onepass
from onepass import _engine

pytestmark = pytest.mark.usefixtures("recorded_by")

OPS = (*FAMILY, "sum", "mean", "amax", "amin")


class Plain(torch.Tensor):
    """A subclass with nothing of its own."""


class Logging(torch.Tensor):
    """A subclass that sees every function of torch and of onepass."""

    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubled(torch.Tensor):
    """Stands for twice the tensor that it holds: whoever reads its memory is wrong."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [a.held * 2 if isinstance(a, Doubled) else a for a in args]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", OPS)
def test_subclasses_keep_their_class(op):
    x = random_tensor((3, 4))
    expected = getattr(onepass, op)(x, 1)
    y = getattr(onepass, op)(x.as_subclass(Plain), 1)
    assert type(y) is Plain
    assert torch.equal(y.as_subclass(torch.Tensor), expected)
    y = getattr(onepass, op)(x.clone().as_subclass(Plain).requires_grad_(), 1)
    assert type(y) is Plain
    assert y.requires_grad


def test_a_subclass_is_told_of_the_call():
    x = random_tensor((3, 4)).as_subclass(Logging)
    Logging.seen.clear()
    y = onepass.softmax(x, 0)
    assert Logging.seen == [onepass.softmax]
    assert type(y) is Logging


@pytest.mark.parametrize("op", OPS)
def test_a_subclass_with_its_own_operators_is_torchs(op):
    x = random_tensor((3, 4))
    assert_like(getattr(onepass, op)(Doubled(x), 1), getattr(onepass, op)(2 * x, 1), scale=1.0)
    with pytest.raises(TypeError, match=f"{op}: .*Doubled.*torch's own operators"):
        getattr(onepass, op)(Doubled(x), 1, out=torch.empty(3))


@pytest.mark.filterwarnings("ignore:.*prototype")
def test_nested_tensors_are_torchs():
    rows = [random_tensor((n, 4), torch.float32) for n in (2, 3)]
    for layout in (torch.strided, torch.jagged):
        y = onepass.softmax(torch.nested.nested_tensor(rows, layout=layout), -1)
        assert_like(list(y.unbind()), [onepass.softmax(row) for row in rows], scale=1.0)


@pytest.mark.parametrize("op", OPS)
def test_meta_and_fake_tensors_have_shapes_only(op):
    x = random_tensor((3, 4, 5), torch.bfloat16)
    arguments = [{"dim": 1}, {"dim": (0, 2)}, {"dim": None}]
    if op not in ("softmax", "log_softmax"):
        arguments += [{"dim": 1, "keepdim": True}]
    else:
        arguments += [{"dtype": torch.float64}]
    for keywords in arguments:
        real = getattr(onepass, op)(x, **keywords)
        meta = getattr(onepass, op)(x.to("meta"), **keywords)
        assert (meta.shape, meta.dtype, meta.device.type) == (real.shape, real.dtype, "meta")
        turned = x.mT
        with FakeTensorMode() as mode:
            fake = getattr(onepass, op)(mode.from_tensor(turned), **keywords)
        expected = getattr(onepass, op)(turned, **keywords)
        assert (fake.shape, fake.dtype, fake.device.type) == (expected.shape, expected.dtype, "cpu")
        assert fake.stride() == expected.stride()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_gradients_of_nested_tensors_are_refused_by_name(layout):
    rows = [random_tensor((n, 4), torch.float32) for n in (2, 3)]
    x = torch.nested.nested_tensor(rows, layout=layout)
    for op in ("softmax_backward", "log_softmax_backward"):
        with pytest.raises(TypeError, match=f"^{op}: y is a nested tensor; pass y.to_padded_tensor"):
            getattr(onepass, op)(x, x)
    if layout == torch.strided:
        with pytest.raises(TypeError, match="^softmax: x is a nested tensor"):
            onepass.softmax(x, out=x)


def test_gradients_of_meta_tensors_have_inputs_of_one_shape():
    y = random_tensor((3, 4)).to("meta")
    assert onepass.softmax_backward(y, y).shape == y.shape
    for op in ("softmax_backward", "log_softmax_backward"):
        with pytest.raises(ValueError, match=rf"^{op}: dy has shape \(1, 4\); expected \(3, 4\)"):
            getattr(onepass, op)(y[:1], y)


def test_gradients_of_logsumexp_of_meta_tensors_have_inputs_that_fit():
    x = random_tensor((3, 4)).to("meta")
    assert onepass.logsumexp_backward(x[:, 0], x, x[:, 0]).shape == x.shape
    with pytest.raises(ValueError, match=r"^logsumexp_backward: lse has shape \(4,\); expected \(3,\)"):
        onepass.logsumexp_backward(x[:, 0], x, x[0])
    with pytest.raises(TypeError, match="^logsumexp_backward: dy of shape .* has dtype torch.int32"):
        onepass.logsumexp_backward(x[:, 0].int(), x, x[:, 0])


@pytest.mark.filterwarnings("ignore:.*quantiz")
def test_quantized_tensors_are_told_the_way_out():
    x = torch.quantize_per_tensor(random_tensor((3, 4), torch.float32), 0.1, 0, torch.qint8)
    for dtype in (None, torch.float32):
        with pytest.raises(TypeError, match=r"^softmax: x of shape \(3, 4\) is quantized .*pass x.dequantize\(\)"):
            onepass.softmax(x, dtype=dtype)


def test_other_devices_and_layouts_are_named():
    for x, error, words in (
        (random_tensor((3, 4)).to_sparse(), TypeError, "layout torch.sparse_coo"),
        (random_tensor((3, 4)).to_sparse().requires_grad_(), TypeError, "layout torch.sparse_coo"),
        (torch.arange(3), TypeError, "int64"),
        (random_tensor((3, 4), torch.float8_e4m3fn), TypeError, "float8_e4m3fn"),
    ):
        for op in OPS:
            with pytest.raises(error, match=f"^{op}: .*{words}"):
                getattr(onepass, op)(x)
    sparse = random_tensor((3, 4)).to_sparse()
    for op in ("softmax_backward", "log_softmax_backward"):
        with pytest.raises(TypeError, match=rf"^{op}: dy of .* has layout torch.sparse_coo; pass dy.to_dense\(\)"):
            getattr(onepass, op)(sparse, sparse.to_dense())


def test_more_dims_than_are_served_are_counted():
    with pytest.raises(ValueError, match="^softmax: x has 65 dims; at most 64 are served: reshape it"):
        onepass.softmax(torch.ones((1,) * 65))


@pytest.mark.parametrize("op", OPS)
def test_a_mode_sees_an_operator(op):
    """Not a result that came from nowhere: warm calls go past the dispatcher otherwise."""
    x = random_tensor((3, 4))
    function = getattr(onepass, op)
    expected = function(x)

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    with Seeing():
        y = function(x)
    assert_like(y, expected, scale=1.0)
    assert any(op in name for name in seen)
    traced = make_fx(lambda x: function(x))(x)
    z = random_tensor((3, 4), seed=1)
    assert_like(traced(z), function(z), scale=1.0)


class Seeing(TorchDispatchMode):
    """A mode that keeps the names of the operators that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_of_other_threads_are_no_matter():
    """Two threads whose modes overlap, the first to begin being the first to end: nobody knows which of them torch's
    flag for all threads is about then."""
    x = torch.randn(3, 4)
    onepass.softmax(x)
    begun, ended, seen = threading.Event(), threading.Event(), {}

    def first():
        with Seeing() as mode:
            begun.set()
            assert second_has_begun.wait(60)
            onepass.softmax(x)
        seen["first"] = mode.seen
        ended.set()

    second_has_begun = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    with Seeing() as mode:
        second_has_begun.set()
        assert ended.wait(60)
        onepass.softmax(x)
        graphs = [make_fx(lambda x: onepass.softmax(x, -1) + 1, pre_dispatch=pre)(x) for pre in (False, True)]
    thread.join()
    assert seen["first"] == ["onepass.softmax.default"]
    assert mode.seen[0] == "onepass.softmax.default"
    other = torch.randn(3, 4)
    for graph in graphs:
        assert torch.equal(graph(other), onepass.softmax(other) + 1)
    assert _engine.is_plain(x), "no mode is left, and calls are hot again"


@pytest.mark.parametrize("op", FAMILY)
def test_nothing_is_recorded_in_inference_mode(op):
    x = torch.randn(3, 4, requires_grad=True)
    with torch.inference_mode(), torch.enable_grad():
        y = getattr(onepass, op)(x)
        assert not y.requires_grad
        assert_like(y, getattr(torch, op)(x, -1))


@pytest.mark.parametrize("op", FAMILY)
def test_a_dim_is_what_it_was_when_the_call_was_made(op):
    x, function = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), getattr(onepass, op)

    def gradients(y):
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), x)[0]

    expected = gradients(getattr(torch, op)(x, 1))
    for dim in (np.int64(1), np.array(1), (np.int64(1),)):
        assert_like(gradients(function(x, dim)), expected)
    dim = [1]
    y = function(x, dim)
    dim[0] = 0
    assert_like(gradients(y), expected)
    for wrong in (True, [True], "1", 1.0):
        with pytest.raises(TypeError, match="dim must be an int"):
            function(x, wrong)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("op", FAMILY)
def test_a_trace_records_the_call(op):
    x, z = random_tensor((3, 4)), random_tensor((3, 4), seed=1)
    function = getattr(onepass, op)
    function(x)
    traced = torch.jit.trace(lambda x: function(x, 0), (x,))
    assert torch.equal(traced(z), function(z, 0))
    assert f"onepass::{op}" in str(traced.graph)


def test_a_symbolic_trace_keeps_the_call():
    class Model(torch.nn.Module):
        def forward(self, x):
            y, lse = onepass.log_softmax(x, 0), onepass.logsumexp(x, 0, keepdim=True)
            y = y + onepass.logsumexp_backward(lse, x, lse, 0, keepdim=True)
            return y + onepass.softmax_backward(x, y, 0, out=torch.full_like(x, torch.nan))

    traced = torch.fx.symbolic_trace(Model())
    x = random_tensor((3, 4))
    kept = {onepass.log_softmax, onepass.logsumexp, onepass.logsumexp_backward, onepass.softmax_backward}
    assert {node.target for node in traced.graph.nodes} >= kept
    assert torch.equal(traced(x), Model()(x))


def negated(shape, seed=0):
    x = torch.complex(random_tensor(shape, seed=seed), random_tensor(shape, seed=seed + 1)).conj().imag
    assert x.is_neg()
    return x


@pytest.mark.parametrize("op", FAMILY)
def test_gradients_of_lazily_negated_tensors(op):
    x, w = negated((4, 5)).requires_grad_(), negated((4, 5) if op != "logsumexp" else (4,), seed=3)
    for _ in range(2):
        (actual,) = torch.autograd.grad((getattr(onepass, op)(x, 1) * w).sum(), x)
        (expected,) = torch.autograd.grad((getattr(torch, op)(x, 1) * w).sum(), x)
        assert_like(actual, expected)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_lazily_negated_tensor_is_not_written(requires_grad):
    x, out = random_tensor((4, 5)).requires_grad_(requires_grad), negated((4, 5))
    before = out.clone()
    with torch.no_grad():
        for write in (
            lambda: onepass.softmax(x, 1, out=out),
            lambda: onepass.softmax_backward(x, x, 1, out=out),
        ):
            for _ in range(2):
                with pytest.raises(ValueError, match="lazily negated"):
                    write()
    assert torch.equal(out, before)


def test_lazily_negated_and_conjugated_tensors():
    x = negated((3, 4))
    for leaf in (x, x.detach().requires_grad_()):
        assert_like(onepass.softmax(leaf, 1).detach(), onepass.softmax(x.resolve_neg(), 1))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_autocast_as_torchs(device, requires_grad, dtype, op):
    x = random_tensor((3, 40), dtype, device).requires_grad_(requires_grad)
    function = getattr(onepass, op)
    function(x.detach(), 1)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = function(x, 1)
        expected = getattr(torch, op)(x, dim=1)
        assert y.dtype == expected.dtype
        if op in ("softmax", "log_softmax"):
            assert function(x, 1, dtype=torch.float64).dtype == torch.float64
            assert getattr(torch.ops.onepass, op)(x, 1).dtype == expected.dtype
        with torch.autocast(device, enabled=False):
            assert function(x, 1).dtype == dtype
    assert function(x.detach(), 1).dtype == dtype
    # torch rounds what it computes in between.
    assert_like(
        y.detach().double(),
        getattr(torch, op)(x.detach().double(), dim=1),
        epsilons=2 * torch.finfo(y.dtype).eps / torch.finfo(torch.float64).eps,
        scale=1.0,
    )
    if requires_grad:
        assert torch.autograd.grad(y.sum(), x)[0].dtype == dtype


def test_deterministic_algorithms_are_asked_for_and_had():
    x = random_tensor((64, 1000), torch.float32)
    before = onepass.softmax(x)
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(onepass.softmax(x), before) for _ in range(5))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_modules_are_drop_ins(name):
    theirs, ours = getattr(torch.nn, name)(1), getattr(onepass.nn, name)(1)
    x = random_tensor((3, 4))
    assert_like(ours(x), theirs(x), scale=1.0)
    assert isinstance(ours, getattr(torch.nn, name))
    assert repr(ours) == repr(theirs)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), ours)
    model.load_state_dict(torch.nn.Sequential(torch.nn.Linear(4, 4), theirs).state_dict())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(again) is type(ours)
        assert torch.equal(again(x), ours(x))
    x.requires_grad_()
    assert torch.autograd.gradcheck(ours, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_modules_can_be_scripted_and_saved():
    x = random_tensor((3, 4))
    for module in (onepass.nn.Softmax(0), onepass.nn.LogSoftmax(-1)):
        scripted = torch.jit.script(torch.nn.Sequential(module))
        assert torch.equal(scripted(x), module(x))
        buffer = io.BytesIO()
        torch.jit.save(scripted, buffer)
        buffer.seek(0)
        assert torch.equal(torch.jit.load(buffer)(x), module(x))


def test_a_module_without_dim_warns_as_torchs():
    x = random_tensor((3, 4))
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        y = onepass.nn.Softmax()(x)
    assert torch.equal(y, onepass.softmax(x, 1))
