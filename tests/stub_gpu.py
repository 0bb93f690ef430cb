"""Two GPUs that are not there: the stub driver of stub_libcuda.cpp, and arrays that say they are on one of them."""

import ctypes
import importlib.util
import os
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CONTEXTS = (0x100, 0x101)  # of the stub's two GPUs
ELF = b"\x7fELF the stub looks no further"


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("arguments", ctypes.c_ubyte * 4096),
    ]


class Stub:
    """The stub driver, as a test sees it: what was called, what was launched, and what is to fail."""

    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.stub_calls.restype = ctypes.c_char_p
        self._library.stub_launch.restype = ctypes.POINTER(_Launch)
        self._library.stub_context.restype = ctypes.c_uint64
        self._library.stub_set_context.argtypes = [ctypes.c_uint64]
        self._library.stub_function_attribute.argtypes = [ctypes.c_uint64, ctypes.c_int]
        self._library.stub_set_parameter_bytes.argtypes = [ctypes.c_size_t]

    def __getattr__(self, name):
        return getattr(self._library, f"stub_{name}")

    def fail(self, function, code):
        self._library.stub_fail(function.encode(), code)

    @property
    def calls(self):
        """Names of the driver's functions that were called, since the last look."""
        calls = self._library.stub_calls().decode().split("\n")[:-1]
        self._library.stub_forget_calls()
        return calls

    @property
    def launched(self):
        return self._library.stub_launch().contents

    def words(self, count):
        """The first 8-byte words of what the last launch handed to its kernel."""
        return struct.unpack_from(f"{count}q", bytes(self.launched.arguments))


def build(folder):
    """Compile the stub driver and the module fake_gpu into a folder; (path of the driver, path of the module)."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("the stub driver needs a C++ compiler")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    driver, module = folder / "libcuda.so", folder / f"fake_gpu{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = [f"-I{TESTS.parent / 'csrc'}", f"-isystem{sysconfig.get_path('include')}"]
    for source, target in (("stub_libcuda.cpp", driver), ("fake_gpu.cpp", module)):
        command = [compiler, *flags, *includes, "-o", str(target), str(TESTS / source)]
        subprocess.run(command, check=True, timeout=120)
    return driver, module


def load_module(path):
    spec = importlib.util.spec_from_file_location("fake_gpu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
