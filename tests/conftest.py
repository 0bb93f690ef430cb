import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter

import pytest
import stub_gpu
from hypothesis import HealthCheck, settings

import onepass
from onepass import _engine
from onepass.cpu import cpu_plan
from onepass.cuda import launch

# What is compiled in a run is the run's own: an extension of the developer's would be used here, and not by others.
# On a machine with a GPU name a folder, for its kernels.
if "ONEPASS_CACHE_DIR" not in os.environ:
    os.environ["ONEPASS_CACHE_DIR"] = tempfile.mkdtemp(prefix="onepass-tests-")
    atexit.register(shutil.rmtree, os.environ["ONEPASS_CACHE_DIR"], ignore_errors=True)

# Nor is anything compiled that no test asks for.
os.environ["ONEPASS_BUILD_EXTENSION"] = "0"

# PyTorch's threads wait asleep: beside compilers and other workers, one that spins keeps those from running for whom it
# waits, and 80 tests that take one second took two minutes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# `ci` draws the same examples every time. `full` (--hypothesis-profile=full) is the run of more than 20,000.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=200, derandomize=True, database=None, **_COMMON)
settings.register_profile("full", max_examples=4000, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_examples = Counter()


@pytest.fixture
def looking_far_ahead():
    """Sets whether the processor is taken for one that looks far ahead by itself, for one test."""
    before = _engine.assume_looking_far_ahead(False)
    _engine.assume_looking_far_ahead(before)
    yield _engine.assume_looking_far_ahead
    _engine.assume_looking_far_ahead(before)


@pytest.fixture
def cached_share(monkeypatch):
    """Sets the share of L3 that an input may have, and has calls planned anew."""

    def set_share(number):
        monkeypatch.setattr(cpu_plan, "CACHED_SHARE_OF_L3", number)
        _engine.forget_all()

    yield set_share
    _engine.forget_all()


@pytest.fixture(scope="session")
def count_example():
    """To be called once for each hypothesis example that was checked to its end; the total is printed at the end."""

    def count(name):
        _examples[name] += 1

    return count


@pytest.fixture(autouse=True)
def _gpu_memory(request):
    """A test on a GPU gives its memory back: PyTorch would keep it, and other processes of the run have none left."""
    yield
    if request.node.get_closest_marker("gpu") and "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = onepass.get_num_threads()
    yield onepass.set_num_threads
    onepass.set_num_threads(before)


@pytest.fixture(scope="session")
def stub_libraries(tmp_path_factory):
    """The stub driver and the module of fake arrays, compiled once."""
    return stub_gpu.build(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="session")
def _stub_driver(stub_libraries):
    # The engine opens a driver once: from here on, this process has the stub's two GPUs.
    os.environ["ONEPASS_LIBCUDA"] = str(stub_libraries[0])
    return stub_gpu.Stub(stub_libraries[0])


@pytest.fixture
def stub(_stub_driver):
    """The stub driver with nothing recorded, nothing failing and no context current."""
    _engine.forget_all()
    _stub_driver.reset()
    _stub_driver.set_context(0)
    return _stub_driver


@pytest.fixture(scope="session")
def fake_gpu(stub_libraries):
    """The module of fake arrays."""
    return stub_gpu.load_module(stub_libraries[1])


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(stub, monkeypatch, kernels):
    """The stub driver, with no kernel loaded, context 0 current, and compiled kernels kept for the session."""
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(kernels))
    launch.compile_kernel.__globals__["cache"].cache_clear()
    launch._load.cache_clear()
    launch.read_device.cache_clear()
    stub.set_context(stub_gpu.CONTEXTS[0])
    yield stub
    launch._load.cache_clear()
    launch.read_device.cache_clear()


@pytest.fixture(scope="session")
def torch_extension(tmp_path_factory, request):
    """The C++ of the PyTorch layer, built for this run by the first of its processes to ask; the others wait."""
    from onepass.torch import extension

    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # one of pytest-xdist's workers, whose folders lie in the run's
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEPASS_CACHE_DIR", str(folder / "extension"))
        extension.build_once()
        built = extension.load()
        assert built is not None, extension.failure_here()
        return built


class Compiler:
    """A script for CXX, which does `work` and then succeeds with a library, or ends with an error."""

    def __init__(self, folder, library):
        self.script, self.calls, self.library = folder / "cxx", folder / "calls", library
        self.script.touch(mode=0o755)
        self.calls.touch()
        self.does("")

    def does(self, work):
        self.script.write_text(
            f"#!/bin/sh\necho $$ >> {self.calls}\n{work}\n"
            f'while [ "$1" != -o ]; do shift; done\ncp {self.library} "$2"\n'
        )

    @property
    def lines(self):
        return self.calls.read_text().splitlines()


@pytest.fixture
def compiler(tmp_path, monkeypatch, torch_extension):
    """The compiler of a test: a script that hands out what this run has compiled, and keeps a list of its calls."""
    found = Compiler(tmp_path, torch_extension.__file__)
    monkeypatch.setenv("CXX", str(found.script))
    return found


@pytest.fixture(params=["python", "c++"])
def recorded_by(request):
    """Who makes results that are tensors, and records them for autograd: a Function in Python, or a node in C++."""
    import torch

    from onepass.torch import tensors

    onepass.softmax(torch.zeros(1))  # from here on onepass knows torch
    tensors.use_extension(request.getfixturevalue("torch_extension") if request.param == "c++" else None)
    yield request.param
    tensors.use_extension(None)


def pytest_configure(config):
    # pytest-xdist would begin with the files of most tests; here those of few take longest, and one would be left over.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # one of pytest-xdist's workers: the process that started it reports
        session.config.workeroutput["examples"] = dict(_examples)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _examples.update(getattr(node, "workeroutput", {}).get("examples", {}))


def pytest_terminal_summary(terminalreporter):
    if _examples:
        terminalreporter.write_line(f"hypothesis examples checked: {_examples.total()} {dict(_examples)}")
