"""The C++ of the PyTorch layer: how it is built and found, and what of autograd it has to know by itself.

That its gradients are right is for test_torch_gradients.py, which runs by it and without it.
"""

import ctypes
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from torch_cases import FAMILY, assert_like, random_tensor
from typer.testing import CliRunner

import onepass
from onepass import _engine
from onepass.arrays import DTYPES
from onepass.cli import app
from onepass.cuda import compile
from onepass.torch import extension

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # torch loads its rules for tangents with it
VERSION = f"{torch.__version__}-{torch.version.git_version[:8]}"
BY_EXTENSION = pytest.mark.parametrize("recorded_by", ["c++"], indirect=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of what is compiled, empty."""
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(folder, torch_extension):
    """That folder with the extension of this run in it."""
    folder.mkdir(mode=0o700)
    path = folder / os.path.basename(torch_extension.__file__)
    path.write_bytes(Path(torch_extension.__file__).read_bytes())
    return path


# ---- building and finding it ----


def kind_of_node():
    """The class of node by which a new process records."""
    program = "import onepass, torch; print(type(onepass.softmax(torch.zeros(2, requires_grad=True)).grad_fn).__name__)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_uses_it_where_it_was_built(folder, compiler):
    assert extension.built() == []
    assert extension.load() is None
    assert kind_of_node() == "SoftmaxBackward"
    result = CliRunner().invoke(app, ["build-torch-extension"])
    assert result.exit_code == 0, result.output
    (path,) = folder.iterdir()
    assert result.output.split() == [str(path)]
    assert len(compiler.lines) == 1
    assert extension.built() == [VERSION]
    assert kind_of_node() == "CppFunction"


def test_doctor_says_whether_it_is_there(filled):
    def doctor():
        return " ".join(CliRunner().invoke(app, ["doctor"]).output.split())

    assert f"torch extension for torch {VERSION}" in doctor()
    filled.unlink()
    assert "small calls cost less after onepass build-torch-extension" in doctor()


@pytest.fixture
def kernels_there():
    """The cache of kernels in that folder too, whoever had one before in this process."""
    compile.cache.cache_clear()
    yield
    compile.cache.cache_clear()


def test_clearing_the_cache_removes_it(filled, kernels_there):
    filled.with_name(f"{filled.stem}-failure").touch()
    (filled.parent / "not-ours").touch()
    clear = CliRunner().invoke(app, ["cache", "clear"])
    assert clear.output == "0 kernels, 1 torch extensions removed\n"
    assert [path.name for path in filled.parent.iterdir()] == ["not-ours"]
    assert CliRunner().invoke(app, ["cache", "clear"]).output == "0 kernels removed\n"


def test_one_of_another_onepass_is_not_used(filled):
    filled.rename(filled.with_name(f"torch-extension-{VERSION}-0123456789abcdef-0123456789abcdef.so"))
    assert extension.built() == []
    assert extension.load() is None


@pytest.mark.parametrize("compiler", ["", "no-such-compiler", "false", "cat"])
def test_without_a_compiler_that_works_nothing_is_left_behind(folder, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", "/bin:/usr/bin" if compiler else "")
    result = CliRunner().invoke(app, ["build-torch-extension"])
    assert result.exit_code == 1
    assert "onepass: error:" in result.output
    assert (compiler or "install g++ or clang++") in result.output
    assert list(folder.iterdir()) == []


def test_what_a_compiler_says_is_passed_on(folder, monkeypatch, tmp_path):
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\necho 'node.cpp:1:10: fatal error: Python.h: No such file' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(extension.BuildError, match=r"fatal error: Python\.h.*install Python's headers"):
        extension.build()


def test_what_a_linker_says_is_passed_on(folder, monkeypatch, tmp_path):
    fake = tmp_path / "cxx"
    fake.write_text(
        "#!/bin/sh\necho '/bin/ld: final link failed: No space left on device' >&2\n"
        "echo 'collect2: error: ld returned 1 exit status' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(extension.BuildError, match="cxx fails: /bin/ld: final link failed: No space left on device"):
        extension.build()


def test_a_command_that_is_none_is_named(folder, monkeypatch):
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(extension.BuildError, match=r"CXX=g\+\+ ' is not a command: No closing quotation"):
        extension.build()
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_refused(filled):
    filled.parent.chmod(0o777)
    with pytest.raises(extension.BuildError, match="others may write to"):
        extension.build()
    with pytest.warns(RuntimeWarning, match="cost more than they need to: others may write to"):
        assert extension.load() is None
    assert stat.S_IMODE(filled.parent.stat().st_mode) == 0o777, "it is the user's to change"


def test_a_file_that_others_may_write_to_is_refused(filled):
    filled.chmod(0o664)
    with pytest.warns(RuntimeWarning, match="others may write to"):
        assert extension.load() is None


def test_a_file_that_cannot_be_loaded_is_a_warning(filled):
    filled.unlink()
    contents = b"no library"
    digest = hashlib.sha256(contents).hexdigest()[:16]
    filled.with_name(f"{filled.name[: -len('0123456789abcdef.so')]}{digest}.so").write_bytes(contents)
    with pytest.warns(RuntimeWarning, match="build it again: onepass build-torch-extension"):
        assert extension.load() is None


def test_a_new_one_takes_the_place_of_the_old(filled, compiler):
    old = filled.with_name(f"{filled.name[: -len('0123456789abcdef.so')]}{'0' * 16}.so")
    filled.rename(old)
    built = extension.build()
    assert list(filled.parent.iterdir()) == [built] != [old]
    assert len(compiler.lines) == 1


def test_a_torch_that_is_too_old_is_named(monkeypatch):
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    with pytest.raises(extension.BuildError, match=r"needs torch 2\.10 or later"):
        extension.build()


def test_a_damaged_file_is_a_warning(filled):
    filled.write_bytes(filled.read_bytes()[:1000])
    with pytest.warns(RuntimeWarning, match="damaged; build it again: onepass build-torch-extension"):
        assert extension.load() is None


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.setattr(extension, "default_folder", lambda: None)
    assert extension.built() == []
    assert extension.load() is None
    with pytest.raises(extension.BuildError, match="ONEPASS_CACHE_DIR"):
        extension.build()


# ---- tensors ----


@pytest.fixture
def make_tensor(torch_extension):
    """What the engine makes results on a CPU with, as a Python function of (number of the dtype, shape)."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object,
        *(ctypes.c_int,) * 2,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_void_p),
    )
    function = kind(pointer(torch_extension.make_tensor, b"onepass.make_tensor"))

    def make(dtype, shape):
        data = ctypes.c_void_p()
        tensor = function(dtype, len(shape), (ctypes.c_int64 * len(shape))(*shape), ctypes.byref(data))
        assert tensor.data_ptr() == (data.value or 0)
        return tensor

    return make


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 1, 7)], ids=str)
@pytest.mark.parametrize("number", range(4))
def test_a_tensor_is_made_as_torch_makes_it(make_tensor, number, shape):
    tensor = make_tensor(number, shape)
    expected = torch.empty(shape, dtype=getattr(torch, DTYPES[number]))
    assert type(tensor) is torch.Tensor
    said_of_both = "shape dtype device stride is_contiguous is_pinned requires_grad is_leaf _version"
    for said in said_of_both.split():
        actual, wanted = getattr(tensor, said), getattr(expected, said)
        assert (actual() == wanted()) if callable(actual) else (actual == wanted), said
    assert torch.equal(tensor.fill_(3).double(), expected.fill_(3).double())
    with torch.inference_mode():
        assert make_tensor(number, shape).is_inference()


def test_memory_that_is_not_there_is_a_memory_error(make_tensor):
    with pytest.raises(MemoryError, match="onepass: cannot allocate a result"):
        make_tensor(0, (1 << 60,))


# ---- autograd ----


def gradient(function, x, **keywords):
    """Of a function whose values are all different."""
    y = function(x)
    return torch.autograd.grad(y, x, torch.cos(y.detach()), **keywords)[0]


@BY_EXTENSION
@pytest.mark.parametrize("op", FAMILY)
def test_saved_tensors_may_be_packed(recorded_by, op):
    """As torch.utils.checkpoint and save_on_cpu do."""
    x = random_tensor((3, 4)).requires_grad_()
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i].clone()):
        y = getattr(onepass, op)(x, 1)
    assert len(packed) == (2 if op == "logsumexp" else 1)
    dx = torch.autograd.grad(y, x, torch.cos(y.detach()))[0]
    assert_like(dx, gradient(lambda x: getattr(torch, op)(x, 1), x))


@BY_EXTENSION
@pytest.mark.parametrize("op", FAMILY)
def test_a_hook_that_raises_leaves_nothing_behind(recorded_by, op):
    x = random_tensor((3, 4)).requires_grad_()
    onepass_op = getattr(onepass, op)
    expected = gradient(lambda x: onepass_op(x, 1), x)
    for most in range(2 if op == "logsumexp" else 1):
        seen = []

        def pack(tensor, seen=seen, most=most):
            if len(seen) == most:
                raise ArithmeticError("no room")
            seen.append(tensor)
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            pytest.raises(ArithmeticError, match="no room"),
        ):
            onepass_op(x, 1)
    assert torch.equal(gradient(lambda x: onepass_op(x, 1), x), expected)


@BY_EXTENSION
@pytest.mark.parametrize("op", FAMILY)
def test_in_a_checkpoint(recorded_by, op):
    """Which stops recomputing, by an exception, when it has what was saved last."""
    x = random_tensor((3, 4)).requires_grad_()

    def block(x):
        return getattr(onepass, op)(x * 2, 1)

    y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    dx = torch.autograd.grad(y, x, torch.cos(y.detach()))[0]
    assert_like(dx, gradient(lambda x: getattr(torch, op)(x * 2, 1), x), scale=1.0)


@BY_EXTENSION
@pytest.mark.parametrize("op", FAMILY)
def test_a_second_backward_pass_has_to_be_asked_for(recorded_by, op):
    x = random_tensor((3, 4)).requires_grad_()
    y = getattr(onepass, op)(x, 1).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(y, x)[0], first)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y, x)


@BY_EXTENSION
@pytest.mark.parametrize("op", FAMILY)
def test_tangents_are_left_to_functions(recorded_by, op):
    x, v = random_tensor((3, 4)).requires_grad_(), random_tensor((3, 4), seed=1)

    def tangent(function):
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(function(torch.autograd.forward_ad.make_dual(x, v), 1)).tangent

    assert_like(tangent(getattr(onepass, op)), tangent(getattr(torch, op)), scale=1.0)


class NoPlans:
    """An engine that takes no tensor for memory."""

    call_gradient_memory = _engine.call_gradient_memory

    @staticmethod
    def is_plain(_):
        return False


def test_what_a_gradient_raises_comes_out_of_the_backward_pass(torch_extension):
    def refuses(*_):
        raise ArithmeticError("no gradient today")

    attach = torch_extension.attach_of("SoftmaxBackward", False, NoPlans, -1, refuses)
    x = random_tensor((3, 4)).requires_grad_()
    y = attach(torch.softmax(x.detach(), 1), x, 1, False)
    with pytest.raises(ArithmeticError, match="no gradient today"):
        y.sum().backward()


@BY_EXTENSION
def test_what_a_call_raises_comes_out_of_it(recorded_by):
    x = random_tensor((3, 4)).requires_grad_()
    with pytest.raises(ValueError, match="softmax: dim 2 is out of range"):
        onepass.softmax(x, 2)
    with pytest.raises(ValueError, match="softmax: unknown algorithm 'nonsense'"):
        onepass.softmax(x, 1, algorithm="nonsense")
