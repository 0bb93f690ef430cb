"""install, uninstall, installed and installed_stats: what is routed, what is not, and that it can be undone."""

import gc
import os
import threading
import weakref

import pytest
import torch
from helpers import run_python
from torch_cases import DEVICES, assert_like, random_tensor

import onepass
from onepass import _engine
from onepass.torch import routes

FUNCTIONS = {
    "aten::_softmax": lambda x: torch.nn.functional.softmax(x, 1),
    "aten::_log_softmax": lambda x: torch.log_softmax(x, 0),
    "aten::logsumexp": lambda x: torch.logsumexp(x, (0, 1)),
    "aten::_safe_softmax": lambda x: torch.ops.aten._safe_softmax(x, 1),
    "aten::_softmax.out": lambda x: torch.softmax(x, 1, out=torch.full_like(x, torch.nan)),
    "aten::_log_softmax.out": lambda x: torch.log_softmax(x, 1, out=torch.full_like(x, torch.nan)),
    "aten::_softmax_backward_data": lambda x: torch.ops.aten._softmax_backward_data(x.cos(), x.sigmoid(), 1, x.dtype),
    "aten::_log_softmax_backward_data": lambda x: torch.ops.aten._log_softmax_backward_data(
        x.cos(), -x.abs(), 0, x.dtype
    ),
    "aten::_softmax_backward_data.out": lambda x: torch.ops.aten._softmax_backward_data.out(
        x.cos(), x.sigmoid(), 0, x.dtype, grad_input=torch.full_like(x, torch.nan)
    ),
    "aten::_log_softmax_backward_data.out": lambda x: torch.ops.aten._log_softmax_backward_data.out(
        x.cos(), -x.abs(), 1, x.dtype, out=torch.full_like(x, torch.nan)
    ),
}


@pytest.fixture(autouse=True, params=["native", "in Python"])
def undone(request, monkeypatch):
    if request.param == "native":
        assert _engine.can_route(), "this torch has what native routes need"
    else:  # a torch that has not
        monkeypatch.setattr(routes, "can_route", lambda: False)
    yield
    onepass.uninstall()
    x = torch.zeros(2)
    before = onepass.installed_stats()
    torch.softmax(x, 0)
    assert onepass.installed_stats() == before, "still routed"


def served(name):
    return onepass.installed_stats()[name]["onepass"]


def in_four_threads(work):
    """work(0) to work(3), at once."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def passed(name):
    return onepass.installed_stats()[name]["torch"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_each_is_routed(device, dtype, name):
    x = random_tensor((130, 333), dtype, device)
    expected = FUNCTIONS[name](x)
    for _ in range(2):
        onepass.install()
        onepass.install()
        for n in range(1, 4):
            # torch rounds 16-bit exponentials and sums in between.
            assert_like(FUNCTIONS[name](x), expected, scale=1.0, epsilons=16 if dtype.itemsize == 2 else 64)
            assert served(name) == n
        assert passed(name) == 0
        onepass.uninstall()
        assert torch.equal(FUNCTIONS[name](x), expected), "torch's own kernel again"
        assert served(name) == 3
        onepass.uninstall()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_above_them_is_routed_too(device):
    x = random_tensor((5, 11), torch.float32, device).requires_grad_()
    target = torch.arange(5, device=device)
    attention = torch.nn.MultiheadAttention(8, 2, device=device)
    tokens = random_tensor((4, 1, 8), torch.float32, device)
    above = {
        "Softmax": lambda: torch.nn.Softmax(1)(x),
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(x, target),
        "gumbel_softmax": lambda: torch.manual_seed(0) and torch.nn.functional.gumbel_softmax(x),
        "softmin": lambda: torch.nn.functional.softmin(x, 1),
        "MultiheadAttention": lambda: attention(tokens, tokens, tokens)[0],
    }
    for name, function in above.items():
        expected = function()
        with onepass.installed():
            actual = function()
            total = sum(counts["onepass"] for counts in onepass.installed_stats().values())
        assert total >= 1, name
        assert_like(actual, expected)


def test_blocks_may_be_nested_and_end_in_an_exception():
    x = random_tensor((3, 4))
    with pytest.raises(KeyError), onepass.installed():
        with onepass.installed():
            torch.softmax(x, 1)
        torch.softmax(x, 1)
        assert served("aten::_softmax") == 2
        raise KeyError
    torch.softmax(x, 1)
    assert served("aten::_softmax") == 2
    with onepass.installed():
        onepass.uninstall()
        torch.softmax(x, 1)
        assert served("aten::_softmax") == 1, "a block keeps its routes"
    onepass.install()
    with onepass.installed():
        pass
    torch.softmax(x, 1)
    assert served("aten::_softmax") == 1, "the end of a block does not undo install"


def test_errors_are_torchs_own():
    x = random_tensor((3, 4))
    wrong = {
        "dim": lambda: torch.softmax(x, 2),
        "dims": lambda: torch.logsumexp(x, (0, 0)),
        "integers": lambda: torch.softmax(torch.arange(3), 0),
        "a result elsewhere": lambda: torch.softmax(x, 1, out=torch.empty(3, 4, dtype=torch.float32)),
        "half_to_float": lambda: torch.ops.aten._softmax(x, 1, True),
    }
    for name, call in wrong.items():
        with pytest.raises(Exception) as expected:  # noqa: PT011  whatever torch raises
            call()
        with onepass.installed(), pytest.raises(type(expected.value)) as actual:
            call()
        assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0], name
    assert x.isfinite().all()


def test_what_onepass_does_not_serve_is_torchs_to_the_bit():
    x = random_tensor((3, 4))
    cases = {
        "empty": (torch.softmax, torch.empty(0, 3), 1),
        "empty rows": (torch.softmax, torch.empty(3, 0), 1),
        "integers": (torch.logsumexp, torch.arange(5), 0),
        "complex": (torch.logsumexp, x.to(torch.complex128), 0),
    }
    for name, (function, x, dim) in cases.items():
        expected = function(x, dim)
        with onepass.installed():
            actual = function(x, dim)
            stats = onepass.installed_stats()
        assert torch.equal(actual, expected), name
        assert actual.dtype == expected.dtype
        assert sum(counts["onepass"] for counts in stats.values()) == 0, name
        assert sum(counts["torch"] for counts in stats.values()) == 1, name


class Mine(torch.Tensor):
    """A subclass without rules for operators."""


class Counted(torch.Tensor):
    """A subclass that sees every operator, and lets torch go on."""

    seen = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        Counted.seen += 1
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Mine, Counted])
def test_subclasses_are_served_below_their_rules(kind):
    x = random_tensor((7, 9))
    expected = torch.softmax(x.as_subclass(kind), 1)
    Counted.seen = 0
    with onepass.installed():
        for n in range(1, 4):
            actual = torch.softmax(x.as_subclass(kind), 1)
            assert served("aten::_softmax") == n
            assert type(actual) is type(expected)
            assert_like(actual.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert kind is Mine or Counted.seen >= 3


@pytest.fixture
def native(request):
    if request.node.callspec.params["undone"] != "native":
        pytest.skip("of native routes alone")


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"])
def test_calls_that_were_planned_never_see_python(name, device, monkeypatch):
    route = (f"aten::{name}", torch.device(device).type.upper())
    number = _engine.native_routes().index(route)
    call = FUNCTIONS[route[0]]
    first, second = (random_tensor((31, 77), torch.float32, device, seed=seed) for seed in (0, 1))
    expected = call(second)
    with onepass.installed():
        before = _engine.natively_served(number)
        call(first)
        planned = _engine.natively_served(number)
        monkeypatch.setattr(routes, "call_memory", None)
        monkeypatch.setattr(routes, "call_gradient_memory", None)
        actual = call(second)
        assert (before, _engine.natively_served(number)) == (0, planned + 1)
        assert_like(actual, expected, scale=1.0)
    assert _engine.natively_served(number) == planned + 1


@pytest.mark.usefixtures("native")
def test_large_results_are_blocks_of_the_cache_and_go_back_to_it():
    x = random_tensor((256, 1024), torch.float32)
    expected = torch.softmax(x, 1)
    with onepass.installed():
        torch.softmax(x, 1)
        before = onepass.memory_stats()
        y = torch.softmax(x, 1)
        during = onepass.memory_stats()
        assert _engine.natively_served(_engine.native_routes().index(("aten::_softmax", "CPU"))) >= 1
    assert during["live_blocks"] == before["live_blocks"] + 1
    assert_like(y, expected)
    row = y[17].clone()
    view = y[17]
    del y
    assert onepass.memory_stats()["live_blocks"] == during["live_blocks"], "a view keeps it"
    assert torch.equal(view, row)
    del view
    assert onepass.memory_stats()["live_blocks"] == before["live_blocks"]


def test_threads_that_plan_and_threads_that_run_at_once():
    """Shapes are forgotten, planned anew and run by all threads, natively and not."""
    shapes = [(3, 5 + i) for i in range(12)] + [(64, 1200 + i) for i in range(3)]
    xs = [random_tensor(shape, torch.float32, seed=i) for i, shape in enumerate(shapes)]
    expected = [torch.softmax(x, 1) for x in xs]
    wrong = []

    def work(first):
        for n in range(600):
            i = (first + n) % len(xs)
            y = torch.softmax(xs[i], 1)
            if not torch.allclose(y, expected[i], rtol=1e-5, atol=0):
                wrong.append(i)
            if n % 97 == first:
                _engine.forget_all()

    with onepass.installed():
        in_four_threads(work)
        assert served("aten::_softmax") == 2400
    assert not wrong


def test_what_was_in_place_is_let_go():
    gone = []
    for _ in range(3):
        with onepass.installed():
            torch.softmax(random_tensor((3, 4)), 1)
            gone.append(weakref.ref(onepass.torch.install._routes[0]))
    gc.collect()
    assert [route() is None for route in gone] == [True, True, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on():
    code = """
import os, torch, onepass
torch.set_num_threads(1)
onepass.install()
x = torch.rand(5, 6)
expected = torch.softmax(x, 1)
child = os.fork()
y = torch.softmax(x, 1)
z = torch.softmax(x[:, 1:], 1)
assert torch.equal(y, expected) and z.isfinite().all()
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1], onepass.installed_stats()["aten::_softmax"])
"""
    assert run_python(code) == "0 {'onepass': 3, 'torch': 0}\n"


def test_an_exception_on_a_thread_of_autograd_is_torchs_own():
    """What a kernel raises in a backward pass, and in a forward pass on a thread that Python did not start."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return torch.softmax(g, 5)

    with onepass.installed():
        x = random_tensor((2, 3), torch.float32).requires_grad_()
        with pytest.raises(IndexError, match="Dimension out of range"):
            Wrong.apply(x).sum().backward()
        assert torch.softmax(x, 1).isfinite().all(), "nothing is left behind"


@pytest.mark.parametrize("device", DEVICES)
def test_layouts(device):
    """Results are contiguous, whatever the input is, as torch's."""
    x = random_tensor((4, 6, 8), torch.float32, device)
    layouts = {
        "transposed": x.mT,
        "every second": x[:, ::2, ::2],
        "broadcast": x[:1].expand(3, 6, 8),
        "a scalar": x[0, 0, 0],
        "offset": x.reshape(-1)[3:75].reshape(3, 4, 6),
        "channels last": random_tensor((2, 3, 4, 5), torch.float32, device).to(memory_format=torch.channels_last),
    }
    for name, view in layouts.items():
        expected = torch.softmax(view, -1)
        with onepass.installed():
            actual = torch.softmax(view, -1)
            assert served("aten::_softmax") == 1, name
        assert actual.is_contiguous()
        assert actual.stride() == expected.stride()
        assert_like(actual, expected)


@pytest.mark.parametrize(
    ("op", "routed", "node"),
    [
        ("softmax", "aten::_softmax", "SoftmaxBackward0"),
        ("log_softmax", "aten::_log_softmax", "LogSoftmaxBackward0"),
    ],
)
@pytest.mark.parametrize("recorded_by", ["python"], indirect=True)
def test_a_recorded_call_of_onepass_goes_through_torchs_operator(recorded_by, op, routed, node):
    """It records in C++ there."""
    function = getattr(onepass, op)
    x = random_tensor((3, 4)).requires_grad_()
    alone = function(x)
    with onepass.installed():
        y = function(x)
        assert served(routed) == 1
        assert type(y.grad_fn).__name__ == node
        with torch.no_grad():
            assert torch.equal(function(x), alone)
            assert function(x).grad_fn is None
        before = served(routed)
        assert function(x.detach()).grad_fn is None
        for dim in ((0, 1), None):
            assert type(function(x, dim).grad_fn).__name__ not in (node, "NoneType"), "torch's has one dim"
        with pytest.raises(ValueError, match="dim 3"):
            function(x, 3)
        assert served(routed) == before
    assert torch.equal(y, alone)
    assert type(function(x).grad_fn).__name__ != node, "no longer routed"


def test_rows_that_are_masked_have_no_gradient_whoever_is_installed(recorded_by):
    """onepass.logsumexp's is 0 in a row of -inf; that of torch's operator NaN."""
    x = torch.zeros(2, 3)
    x[0] = -torch.inf

    def gradients():
        w = torch.ones(3, requires_grad=True)
        total = onepass.logsumexp(x + w, -1, keepdim=True).logaddexp(torch.zeros(2, 1)).sum()
        (first,) = torch.autograd.grad(total, w, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), w)[0]

    alone = gradients()
    assert not any(g.isnan().any() for g in alone)
    with onepass.installed():
        for got, expected in zip(gradients(), alone, strict=True):
            assert torch.equal(got, expected)


def test_a_safe_softmax_of_nothing_after_a_softmax_of_it():
    with onepass.installed():
        assert onepass.softmax(torch.empty(3, 0)).shape == (3, 0)
        assert torch._safe_softmax(torch.empty(3, 0), -1).shape == (3, 0)


def test_results_of_more_bytes_than_there_are_addresses():
    """Also of a call that has been planned, which never sees Python."""
    x = torch.zeros(1).expand(2**52 + 128, 1024)
    with onepass.installed():
        for _ in range(2):
            with pytest.raises(MemoryError, match="no memory for a result"):
                torch.softmax(x, -1)


def test_a_gradient_in_another_dtype_is_torchs_on_a_cpu():
    y, dy = torch.rand(2, 3), torch.rand(2, 3)
    expected = torch.ops.aten._softmax_backward_data(dy, y, 1, torch.float64)
    with onepass.installed():
        got = torch.ops.aten._softmax_backward_data(dy, y, 1, torch.float64)
        assert passed("aten::_softmax_backward_data") == 1
        with pytest.raises(RuntimeError, match="expected scalar type"):
            torch.ops.aten._softmax_backward_data(dy, y, 1, torch.float16)
    assert got.dtype == expected.dtype and torch.equal(got, expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript_passes_on_what_torch_says_of_a_dim():
    @torch.jit.script
    def scripted(x: torch.Tensor):
        return torch.softmax(x, 7)

    expected = r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 7\)"
    with onepass.installed():
        with pytest.raises(RuntimeError, match=expected):
            scripted(torch.ones(2, 3))
        for dim in (-3, 2, 7):
            with pytest.raises(IndexError, match=rf"\[-2, 1\], but got {dim}"):
                torch.softmax(torch.ones(2, 3), dim)
        for dim in (-2, -1, 0, 1):
            assert torch.softmax(torch.ones(2, 3), dim).shape == (2, 3)


@pytest.mark.parametrize("recorded_by", ["c++"], indirect=True)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_a_recorded_call_of_onepass_stays_in_the_extension(op, recorded_by):
    x = random_tensor((3, 4)).requires_grad_()
    with onepass.installed():
        y = getattr(onepass, op)(x)
        assert type(y.grad_fn).__name__ == "CppFunction"
        assert all(counts == {"onepass": 0, "torch": 0} for counts in onepass.installed_stats().values())
        dx = torch.autograd.grad(y, x, torch.cos(y.detach()))[0]
    assert_like(dx, torch.autograd.grad(getattr(torch, op)(x, -1), x, torch.cos(y.detach()))[0], scale=1.0)


def test_counts_of_several_threads_add_up():
    xs = [random_tensor((5, 6), seed=i) for i in range(4)]
    expected = [torch.softmax(x, 1) for x in xs]
    wrong = []

    def work(i):
        for _ in range(500):
            if not torch.allclose(torch.softmax(xs[i], 1), expected[i]):
                wrong.append(i)

    with onepass.installed():
        in_four_threads(work)
        assert served("aten::_softmax") == 2000
    assert not wrong


def test_threads_may_open_blocks_at_once():
    x = random_tensor((5, 6))
    failures = []

    def work():
        try:
            for _ in range(50):
                with onepass.installed():
                    onepass.installed_stats()
        except Exception as error:  # noqa: BLE001  told to the main thread
            failures.append(error)

    in_four_threads(lambda _: work())
    assert not failures
    torch.softmax(x, 1)


def test_the_process_ends_well_with_routes_in_place():
    code = """
import torch, onepass
onepass.install()
x = torch.ones(3, requires_grad=True)
torch.softmax(x, 0).sum().backward()
print(onepass.installed_stats()["aten::_softmax"])
"""
    assert run_python(code) == "{'onepass': 1, 'torch': 0}\n"


def test_importing_and_asking_need_no_torch():
    code = """
import sys, onepass
assert "torch" not in sys.modules
assert callable(onepass.install) and callable(onepass.installed)
assert "torch" not in sys.modules
try:
    onepass.no_such_name
except AttributeError as error:
    print(error)
assert "nn" in dir(onepass)
assert "torch" not in sys.modules
onepass.nn
print("torch" in sys.modules)
"""
    assert run_python(code).splitlines() == ["module 'onepass' has no attribute 'no_such_name'", "True"]


# Contiguous, and along a dim that is not the last: (operator, shape, dim, who serves). See thresholds.py.
SERVED_BY = [
    ("_softmax", (10000, 3, 4), 1, "torch"),
    ("_softmax", (10000, 8, 4), 1, "onepass"),
    ("_softmax", (1000, 40, 16), 1, "torch"),
    ("_softmax", (100, 64, 16), 1, "onepass"),
    ("_softmax", (3, 4), 0, "onepass"),
    ("_softmax", (4, 5000), 0, "torch"),
    ("_softmax", (40, 5000), 0, "onepass"),
    ("_softmax", (5000, 3), 1, "onepass"),
    ("_log_softmax", (12, 5000), 0, "torch"),
    ("logsumexp", (4, 5000), 0, "torch"),
    ("logsumexp", (8, 5000), 0, "onepass"),
]


@pytest.mark.parametrize(("name", "shape", "dim", "who"), SERVED_BY, ids=str)
def test_who_serves_is_a_matter_of_the_table(name, shape, dim, who):
    """And of nothing that was called before."""
    x = random_tensor(shape, torch.float32)
    operation = name.removeprefix("_")
    function = getattr(torch, operation)
    expected = function(x, dim)
    with onepass.installed():
        for _ in range(2):
            actual = function(x, dim)
            getattr(onepass, operation)(x, dim)
        counts = onepass.installed_stats()[f"aten::{name}"]
    assert counts == {"onepass": 0, "torch": 0} | {who: 2}
    assert torch.equal(actual, expected) or who == "onepass"
    assert_like(actual, expected, scale=1.0)
