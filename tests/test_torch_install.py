"""install, uninstall, installed and installed_stats: what is routed, what is not, and that it can be undone."""

import threading

import pytest
import torch
from helpers import run_python
from torch_cases import DEVICES, assert_like, random_tensor

import onepass
from onepass.torch import thresholds

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


@pytest.fixture(autouse=True)
def undone():
    yield
    onepass.uninstall()
    x = torch.zeros(2)
    before = onepass.installed_stats()
    torch.softmax(x, 0)
    assert onepass.installed_stats() == before, "still routed"


def served(name):
    return onepass.installed_stats()[name]["onepass"]


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
    class Mine(torch.Tensor):
        pass

    x = random_tensor((3, 4))
    cases = {
        "empty": (torch.softmax, torch.empty(0, 3), 1),
        "empty rows": (torch.softmax, torch.empty(3, 0), 1),
        "a subclass": (torch.softmax, x.as_subclass(Mine), 1),
        "integers": (torch.logsumexp, torch.arange(5), 0),
        "complex": (torch.logsumexp, x.to(torch.complex128), 0),
    }
    for name, (function, x, dim) in cases.items():
        expected = function(x, dim)
        with onepass.installed():
            actual = function(x, dim)
            stats = onepass.installed_stats()
        assert torch.equal(torch.Tensor(actual) if type(actual) is Mine else actual, expected), name
        assert actual.dtype == expected.dtype
        assert type(actual) is type(expected)
        assert sum(counts["onepass"] for counts in stats.values()) == 0, name
        assert sum(counts["torch"] for counts in stats.values()) == 1, name


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


def test_a_call_of_onepass_goes_through_torchs_operator():
    """It records in C++ there."""
    x = random_tensor((3, 4)).requires_grad_()
    alone = onepass.softmax(x)
    with onepass.installed():
        y = onepass.softmax(x)
        assert served("aten::_softmax") == 1
        assert type(y.grad_fn).__name__ == "SoftmaxBackward0"
        assert onepass.softmax(x.detach()).grad_fn is None
        assert served("aten::_softmax") == 1
        with pytest.raises(ValueError, match="dim 3"):
            onepass.softmax(x, 3)
    assert torch.equal(y, alone)


def test_counts_of_several_threads_add_up():
    xs = [random_tensor((5, 6), seed=i) for i in range(4)]
    expected = [torch.softmax(x, 1) for x in xs]
    wrong = []

    def work(i):
        for _ in range(500):
            if not torch.allclose(torch.softmax(xs[i], 1), expected[i]):
                wrong.append(i)

    with onepass.installed():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


# What GPUs leave to torch: operator, bytes of an element, shape, dim.
LEFT_ON_GPUS = [
    ("softmax_backward", 4, (1, 1 << 20), -1),
    ("softmax_backward", 4, (2, 2, 20000), 2),
    ("log_softmax_backward", 2, (4096, 50257), 1),
    ("log_softmax_backward", 4, (4096, 50257), -1),
]
KEPT_ON_GPUS = [
    ("softmax", 4, (1, 1 << 20), -1),
    ("log_softmax", 2, (4096, 50257), -1),
    ("softmax_backward", 4, (1, 1 << 14), -1),  # as long as a short row may be
    ("softmax_backward", 2, (5, 1 << 20), -1),
    ("softmax_backward", 2, (4096, 50257), -1),
    ("softmax_backward", 4, (1 << 20, 2), 0),
    ("softmax_backward", 4, (1, 1 << 20, 1), 1),  # not the last dim, though it lies as one
    ("log_softmax_backward", 2, (4096, 50256), -1),
    ("log_softmax_backward", 4, (64, 16388), -1),  # whole packs of 16 bytes
]


@pytest.mark.parametrize(
    ("op", "itemsize", "shape", "dim", "slow"),
    [(*c, True) for c in LEFT_ON_GPUS] + [(*c, False) for c in KEPT_ON_GPUS],
    ids=str,
)
def test_what_gpus_leave_to_torch(op, itemsize, shape, dim, slow):
    assert thresholds._is_slow_on_gpus(op, itemsize, shape, dim) is slow
