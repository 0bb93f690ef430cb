"""No driver, an old one, one that refuses: what a person is told. And what survives a fork."""

import sys

import pytest
from helpers import run_python
from stub_gpu import ELF
from test_gpu_launch import bind

from onepass import _engine
from onepass.cuda import launch

# code, the exception, its name, what the message says to do
REFUSALS = [
    (2, MemoryError, None, "5 of 144384 MiB are free.*other processes"),
    (46, _engine.CudaError, "CUDA_ERROR_46", "CUDA_VISIBLE_DEVICES"),
    (100, _engine.CudaError, "CUDA_ERROR_NO_DEVICE", "whether CUDA_VISIBLE_DEVICES hides it"),
    (200, _engine.CudaError, "CUDA_ERROR_INVALID_IMAGE", "driver supports CUDA 13.1: upgrade it"),
    (209, _engine.CudaError, "CUDA_ERROR_NO_BINARY_FOR_GPU", "nvidia-cuda-nvrtc of that version or older"),
    (222, _engine.CudaError, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "onepass cache clear"),
    (700, _engine.CudaError, "CUDA_ERROR_ILLEGAL_ADDRESS", "restart the process"),
    (701, _engine.CudaError, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "onepass.explain"),
    (719, _engine.CudaError, "CUDA_ERROR_LAUNCH_FAILED", "compute-sanitizer finds the kernel"),
    (803, _engine.CudaError, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reinstall it, or reboot"),
    (900, _engine.CudaError, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "once before the capture"),
    (12345, _engine.CudaError, "CUDA_ERROR_12345", "the CUDA driver API's description"),
]


@pytest.mark.parametrize(("code", "exception", "name", "remedy"), REFUSALS, ids=lambda v: str(v)[:20])
def test_a_refused_launch_names_the_error_and_the_remedy(stub, fake_gpu, code, exception, name, remedy):
    _engine.register_exchange_type(fake_gpu.Array)
    bound = bind(_engine.load_kernel(0, ELF, "kernel"))
    stub.fail("cuLaunchKernel", code)
    with pytest.raises(exception, match=f"onepass could not launch warp: .*{remedy}") as caught:
        _engine.run(bound, fake_gpu.Array((64, 1000)), None)
    if name:
        assert (caught.value.name, caught.value.code) == (name, code)
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("function", "doing"),
    [
        ("cuDeviceGet", "find the GPU"),
        ("cuCtxPushCurrent_v2", "make the GPU current"),
        ("cuModuleLoadData", "load a kernel onto the GPU"),
        ("cuModuleGetFunction", "find a kernel in its module"),
        ("cuFuncGetParamInfo", "ask for a kernel's argument"),
    ],
)
def test_a_refused_loading_says_what_was_refused(stub, function, doing):
    stub.fail(function, 719)
    with pytest.raises(_engine.CudaError, match=f"onepass could not {doing}: CUDA_ERROR_LAUNCH_FAILED"):
        _engine.load_kernel(0, ELF, "kernel")
    assert stub.depth() == 1  # nothing is left current


@pytest.mark.parametrize(
    ("function", "changes", "doing"),
    [
        ("cuOccupancyMaxActiveBlocksPerMultiprocessor", {}, "ask for a kernel's occupancy"),
        ("cuOccupancyMaxActiveClusters", {"cluster": 2}, "ask how many clusters"),
        ("cuFuncSetAttribute", {"shared_bytes": 232448}, "give a block 232448 bytes of shared memory"),
    ],
)
def test_a_refused_binding_says_what_was_refused(stub, function, changes, doing):
    kernel = _engine.load_kernel(0, ELF, "kernel")
    stub.fail(function, 1)
    with pytest.raises(_engine.CudaError, match=f"onepass could not {doing}.*CUDA_ERROR_INVALID_VALUE"):
        bind(kernel, **changes)
    assert stub.depth() == 1


def test_a_kernel_that_fits_no_multiprocessor_is_said_so(stub):
    kernel = _engine.load_kernel(0, ELF, "kernel")
    stub.set_occupancy(0)
    with pytest.raises(_engine.CudaError, match="fit a block of this kernel on a multiprocessor"):
        bind(kernel)


def test_a_cluster_that_does_not_fit_is_said_so(stub):
    kernel = _engine.load_kernel(0, ELF, "kernel")
    stub.set_clusters(0)
    with pytest.raises(_engine.CudaError, match="fit a cluster of 16 blocks on the GPU"):
        bind(kernel, cluster=16, waves=1)


def test_a_gpu_that_is_not_there(stub):
    with pytest.raises(_engine.CudaError, match="CUDA_ERROR_INVALID_DEVICE"):
        _engine.load_kernel(7, ELF, "kernel")


def test_bytes_that_are_no_cubin(stub):
    with pytest.raises(_engine.CudaError, match="CUDA_ERROR_INVALID_IMAGE"):
        _engine.load_kernel(0, b"no cubin", "kernel")


def test_what_the_driver_says_of_a_gpu(stub):
    assert _engine.gpu_driver_version() == 13010
    assert _engine.gpu_count() == 2
    assert _engine.gpu_name(1) == "NVIDIA H200"
    assert _engine.gpu_attribute(0, 16) == 132
    assert _engine.gpu_memory(0) == 141 << 30


def test_without_a_driver_the_rest_works():
    out = run_python(
        """
        import numpy, onepass
        from onepass import _engine
        for _ in range(2):
            try:
                _engine.gpu_count()
            except _engine.CudaError as error:
                print(error.name, error)
        print(onepass.softmax(numpy.zeros(4)))
        """.replace("\n        ", "\n"),
        env={"ONEPASS_LIBCUDA": "/nowhere/libcuda.so.1"},
    )
    lines = out.splitlines()
    assert lines[0] == lines[1]
    assert lines[0].startswith("CUDA_ERROR_NOT_INITIALIZED onepass: no NVIDIA driver (/nowhere/libcuda.so.1")
    assert "nvidia-smi must work" in lines[0]
    assert lines[2] == "[0.25 0.25 0.25 0.25]"


def test_a_library_that_is_no_driver_is_said_so():
    out = run_python(
        "from onepass import _engine\ntry:\n    _engine.gpu_count()\nexcept _engine.CudaError as e:\n    print(e)",
        env={"ONEPASS_LIBCUDA": "libm.so.6"},
    )
    assert "libm.so.6 has no cuInit" in out
    assert "upgrade the driver" in out


def test_a_driver_that_does_not_start_is_asked_again(stub_libraries):
    """As where a GPU is handed to a container after the process has started."""
    out = run_python(
        f"""
import ctypes
from onepass import _engine
stub = ctypes.CDLL({str(stub_libraries[0])!r})
stub.stub_fail(b"cuInit", 100)
try:
    _engine.gpu_count()
except _engine.CudaError as error:
    print(error)
stub.stub_reset()
print(_engine.gpu_count())
""",
        env={"ONEPASS_LIBCUDA": str(stub_libraries[0])},
    )
    assert "onepass could not initialize the NVIDIA driver: CUDA_ERROR_NO_DEVICE. No GPU is visible" in out
    assert out.endswith("\n2\n")


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
@pytest.mark.parametrize("used_before", [True, False])
def test_a_forked_child_is_told_not_to_use_the_gpu(stub_libraries, used_before):
    out = run_python(
        f"""
import os
import stub_gpu
from onepass import _engine
from test_gpu_launch import bind
module = stub_gpu.load_module({str(stub_libraries[1])!r})
_engine.register_exchange_type(module.Array)
x = module.Array((64, 1000))
if {used_before}:
    bound = bind(_engine.load_kernel(0, stub_gpu.ELF, "kernel"))
    _engine.run(bound, x, None)
if os.fork() == 0:
    calls = [_engine.gpu_count, lambda: _engine.load_kernel(0, stub_gpu.ELF, "kernel")]
    if {used_before}:
        calls.append(lambda: _engine.run(bound, x, None))
    for call in calls:
        try:
            call()
            print("worked", flush=True)
        except _engine.CudaError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
""",
        env={"ONEPASS_LIBCUDA": str(stub_libraries[0])},
    )
    lines = out.splitlines()
    if used_before:
        assert len(lines) == 3
        assert all("'spawn' or 'forkserver'" in line for line in lines)
    else:
        assert lines == ["worked", "worked"]


def test_importing_onepass_opens_no_driver():
    out = run_python(
        "import pathlib, sys, onepass\n"
        "print([m for m in sys.modules if m.startswith(('cuda', 'onepass.cuda', 'torch'))])\n"
        "print('libcuda' in pathlib.Path('/proc/self/maps').read_text())"
    )
    assert out.splitlines() == ["[]", "False"]


@pytest.mark.parametrize(
    ("name", "clock", "bits", "bandwidth", "how"),
    [
        ("NVIDIA H200", 3_201_000, 6144, 4281, "measured"),
        ("NVIDIA H200 NVL", 3_201_000, 6144, 4281, "measured"),
        ("NVIDIA L4", 6_251_000, 192, 268, "modelled"),
        ("NVIDIA GeForce RTX 4090", 10_501_000, 384, 899, "modelled"),
        ("NVIDIA L40S", 9_001_000, 384, 771, "modelled"),
        ("NVIDIA H100 PCIe", 1_593_000, 5120, 1819, "modelled"),
    ],
)
def test_a_gpu_is_the_one_described_if_its_memory_is(gpu, monkeypatch, name, clock, bits, bandwidth, how):
    """An L40S is no L4, and an H100 by PCIe has another memory than the one that is listed."""
    monkeypatch.setattr(_engine, "gpu_name", lambda ordinal: name)
    gpu.set_device_attribute(36, clock)
    gpu.set_device_attribute(37, bits)
    try:
        launch.read_device.cache_clear()
        device = launch.read_device(0)
    finally:
        gpu.set_device_attribute(36, 3_201_000)
        gpu.set_device_attribute(37, 6144)
        launch.read_device.cache_clear()
    assert (round(device.bandwidth), device.bandwidth_is) == (bandwidth, how)
