"""What several test files need: element types, NumPy and torch alike, outputs that start as NaN, fresh interpreters."""

import importlib
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {t.name: t for t in map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))}
SOFTMAX_FAMILY = ("softmax", "log_softmax", "logsumexp")
REDUCTIONS = ("sum", "mean", "amax", "amin")
ELEMENTWISE = ("softmax", "log_softmax")
KINDS = ("numpy", "torch")
# The error allowed in ULP over anything that may come, broadcast rows, whose roundings all have one sign, too. What is
# reached on random data is the table of test_numbers.py.
LIMITS = {
    **{(op, dtype): 0.52 for op in (*SOFTMAX_FAMILY, *REDUCTIONS) for dtype in ("float16", "bfloat16")},
    **{(op, "float32"): limit for op, limit in zip((*SOFTMAX_FAMILY, "sum", "mean"), (12, 2, 1.5, 6, 6), strict=True)},
    **{(op, "float64"): limit for op, limit in zip((*SOFTMAX_FAMILY, "sum", "mean"), (8, 4, 5, 4, 4), strict=True)},
    **{(op, dtype): 0 for op in ("amax", "amin") for dtype in DTYPES},
}
# Results of these nearer to zero than 1 are measured in ULP of 1, the size of the terms they are a difference of.
FLOORS = {op: 1.0 if op in ("log_softmax", "logsumexp") else 0.0 for op in (*SOFTMAX_FAMILY, *REDUCTIONS)}
TESTS = Path(__file__).resolve().parent


def random_array(shape, dtype="float32", sigma=1.0, seed=0):
    """Normally distributed values with that spread, rounded to `dtype`."""
    return (np.random.default_rng(seed).standard_normal(shape) * sigma).astype(DTYPES[dtype])


def nan_filled(shape, dtype):
    """An output to be overwritten: an element that is left out stays NaN."""
    return np.full(shape, np.nan, dtype)


def nan_filled_past_a_line(shape, dtype, first):
    """The same, `first` elements past the beginning of a cache line; and the memory on both sides of it."""
    size = math.prod(shape)
    memory = nan_filled(size + 128, dtype)
    begin = -memory.__array_interface__["data"][0] % 64 // memory.itemsize + first
    return memory[begin : begin + size].reshape(shape), (memory[:begin], memory[begin + size :])


def as_kind(array, kind):
    """The array itself, or a torch tensor that shares its memory."""
    return array if kind == "numpy" else to_torch(array)


def to_torch(array):
    """A torch tensor over the memory of a NumPy array, whatever its strides (negative ones torch does not have)."""
    import torch

    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    if array.dtype == BFLOAT16:
        storage, dtype = base.view(np.int16), torch.bfloat16
    else:
        storage, dtype = base, None
    if not base.flags.c_contiguous or base.dtype != array.dtype:
        raise ValueError("to_torch wants a view of a contiguous array of the same element type")
    whole = torch.from_numpy(storage.reshape(-1))
    whole = whole if dtype is None else whole.view(dtype)
    if array.size == 0:
        return whole.new_empty(array.shape)
    offset = (array.ctypes.data - base.ctypes.data) // array.itemsize
    return whole.as_strided(array.shape, [s // array.itemsize for s in array.strides], offset)


def to_numpy(result):
    """A NumPy array over the memory of a torch tensor; anything else as numpy.asarray has it."""
    if type(result).__module__.partition(".")[0] != "torch":
        return np.asarray(result)
    import torch

    if result.dtype == torch.bfloat16:
        return result.view(torch.int16).numpy().view(BFLOAT16)
    return result.numpy()


def torch_dtype(name):
    import torch

    return getattr(torch, name)


def same_bits(a, b):
    """Equal shape, type and bits, NaNs included."""
    a, b = np.ascontiguousarray(to_numpy(a)), np.ascontiguousarray(to_numpy(b))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def run_python(code, *, timeout=120, env=None, python_args=("-W", "error")):
    """Run `code` in a fresh interpreter; its standard output. Fails on an error, on a time-out and on any warning."""
    process = subprocess.run(
        [sys.executable, *python_args, "-c", code],
        env={**os.environ, **(env or {})},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, f"exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    assert process.stderr == "", process.stderr
    return process.stdout


def run_with_isa(isa, *pytest_args, timeout=300):
    """Run tests of this folder in a fresh interpreter whose engine, and torch, are held to one instruction set."""
    torchs = {"v2": "default", "v3": "avx2"}.get(isa)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *pytest_args],
        env={**os.environ, "ONEPASS_ISA": isa, **({"ATEN_CPU_CAPABILITY": torchs} if torchs else {})},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, f"under ONEPASS_ISA={isa}:\n{process.stdout[-6000:]}\n{process.stderr[-2000:]}"
    assert " passed" in process.stdout, process.stdout
    return process.stdout


@contextmanager
def imported_tool(name):
    """A module of tools/, which may stand on tools/tune.py; both are forgotten afterwards."""
    tools = str(Path(__file__).parent.parent / "tools")
    sys.path.insert(0, tools)
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(tools)
        for module in (name, "tune"):
            sys.modules.pop(module, None)
