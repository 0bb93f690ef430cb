"""onepass.softmax and its kin on arrays that say they are on a GPU: planner, compiler and engine are real, the driver
is the stub. What a kernel computes is not looked at here; what is launched, and when, is."""

import ctypes
import gc
import sys
import types

import numpy as np
import pytest
from fake_libraries import Cupy, Jax
from helpers import ELEMENTWISE, REDUCTIONS, SOFTMAX_FAMILY, run_python
from stub_gpu import CONTEXTS

import onepass
from onepass import _engine, arrays, gpu_arrays
from onepass.cuda import CompileError, Functor, Tuning, launch, precompile, prepare
from onepass.cuda.device import by_name
from onepass.problem import make_problem

HOT = ["cuCtxGetCurrent", "cuLaunchKernel"]
# Of blocks that share rows: their scratch memory is that of the stream, or of the capture.
SHARED_HOT = ["cuCtxGetCurrent", "cuStreamGetCaptureInfo_v2", "cuStreamGetId", "cuLaunchKernelEx"]
OPS = (*SOFTMAX_FAMILY, *REDUCTIONS)


@pytest.fixture
def array(fake_gpu):
    return fake_gpu.Array


# ---- cold and hot ----


@pytest.mark.parametrize("op", OPS)
def test_the_second_call_is_one_launch(gpu, array, op):
    x = array((64, 300))
    function = getattr(onepass, op)
    first = function(x)
    assert "cuModuleLoadData" in gpu.calls
    second = function(x)
    assert gpu.calls == HOT
    shape = (64, 300) if op in ELEMENTWISE else (64,)
    for y in (first, second):
        assert (type(y), y.shape, y.dtype, y.device) == (array, shape, "float32", 0)
    assert gpu.words(7)[:4] == (x.address, second.address, 64, 300)
    assert _engine.last_algorithm() == "warp"


def test_a_call_with_out_is_one_launch(gpu, array):
    x, out = array((64, 1000)), array((64, 1000))
    for _ in range(2):
        gpu.forget_calls()
        assert onepass.softmax(x, out=out) is out
        assert gpu.words(2) == (x.address, out.address)
    assert gpu.calls == HOT
    assert onepass.softmax(x, out=x) is x
    assert gpu.words(2) == (x.address, x.address)


@pytest.mark.parametrize(
    ("keywords", "algorithm"),
    [
        ({"dim": 0}, "strided"),
        ({"dim": (0, 1)}, "cluster"),
        ({"dim": None}, "cluster"),
        ({"dtype": np.float64}, None),
        ({"dtype": "float16"}, "block"),
        ({"algorithm": "block"}, "block"),
        ({"algorithm": "three_pass"}, "three_pass"),
        ({"algorithm": "block_uncached"}, "block_uncached"),
        ({"algorithm": "block_smem"}, "block_smem"),
        ({"algorithm": "online"}, "online"),
        ({"algorithm": "split"}, "split"),
        ({"algorithm": "stream"}, "stream"),
        ({"algorithm": "cluster"}, "cluster"),
        ({"algorithm": "warp_smem"}, "warp_smem"),
        ({"algorithm": "strided_split", "dim": 0}, "strided_split"),
    ],
    ids=str,
)
def test_every_way_to_say_a_call_gets_hot(gpu, array, keywords, algorithm):
    x = array((64, 1000))
    onepass.softmax(x, **keywords)
    gpu.forget_calls()
    y = onepass.softmax(x, **keywords)
    # A dtype that is no object of the process's life is looked up anew; the launch is all that reaches the driver.
    hot = SHARED_HOT if algorithm in ("split", "stream", "strided_split") else HOT
    if algorithm == "cluster":
        hot = ["cuCtxGetCurrent", "cuLaunchKernelEx"]
    assert gpu.calls == hot or keywords == {"dtype": "float16"}
    assert algorithm in (None, _engine.last_algorithm())
    assert y.dtype == np.dtype(keywords.get("dtype", "float32")).name


@pytest.mark.parametrize("dtype", arrays.DTYPES)
def test_every_dtype(gpu, array, dtype):
    y = onepass.softmax(array((8, 256), dtype=dtype))
    assert y.dtype == dtype


def test_problems_whose_plans_agree_share_a_kernel(gpu, array):
    onepass.softmax(array((64, 1024)))
    gpu.forget_calls()
    onepass.softmax(array((65, 1024)))
    calls = gpu.calls
    assert "cuModuleLoadData" not in calls
    assert "cuLaunchKernel" in calls


def test_a_second_gpu_loads_what_the_first_compiled(gpu, array, monkeypatch):
    onepass.softmax(array((64, 1024)))
    monkeypatch.setattr(sys.modules["onepass.cuda.compile"], "_compile", None)
    gpu.forget_calls()
    y = onepass.softmax(array((64, 1024), device=1))
    assert "cuModuleLoadData" in gpu.calls
    assert (y.device, gpu.launched.context, gpu.context()) == (1, CONTEXTS[1], CONTEXTS[0])
    onepass.softmax(array((64, 1024)))
    assert (gpu.calls, gpu.launched.context) == (
        ["cuCtxGetCurrent", "cuLaunchKernel"],
        CONTEXTS[0],
    )


def test_another_alignment_is_another_plan(gpu, array):
    onepass.softmax(array((64, 1000)))
    gpu.forget_calls()
    onepass.softmax(array((64, 1000), offset=4))
    assert "cuModuleLoadData" in gpu.calls
    out = array((64, 1000), offset=4)
    onepass.softmax(array((64, 1000)), out=out)
    assert gpu.words(2)[1] == out.address


def test_strides_are_read_in_place(gpu, array):
    x = array((64, 1000), strides=(2048, 1))
    onepass.softmax(x)
    assert gpu.words(7)[4:] == (64, 2048, 1000)


def test_results_of_nothing(gpu, array):
    for shape in ((0, 5), (5, 0)):
        for _ in range(2):
            gpu.forget_calls()
            assert onepass.softmax(array(shape)).shape == shape
            assert "cuLaunchKernel" not in gpu.calls
    assert onepass.sum(array((5, 0))).shape == (5,)
    assert "cuLaunchKernel" in gpu.calls  # zeros have to be written


def test_cold_calls_work_while_a_graph_is_captured(gpu, array):
    onepass.softmax(array((64, 1000)))
    assert "cuModuleLoadData" in gpu.calls  # the stub calls it something else outside the relaxed mode


# ---- what is refused ----


def test_out_must_be_on_the_same_gpu(gpu, array):
    x = array((4, 8))
    with pytest.raises(ValueError, match="softmax: out is on cuda:1, x on cuda:0; they must be on one device"):
        onepass.softmax(x, out=array((4, 8), device=1))
    with pytest.raises(TypeError, match=r"softmax: out must be a fake_gpu.Array like x, got numpy.ndarray"):
        onepass.softmax(x, out=np.empty((4, 8), np.float32))
    with pytest.raises(TypeError, match=r"softmax: out must be a numpy.ndarray like x, got fake_gpu.Array"):
        onepass.softmax(np.empty((4, 8), np.float32), out=x)
    assert "cuLaunchKernel" not in gpu.calls


def test_an_algorithm_that_cannot_serve_says_why(gpu, array):
    with pytest.raises(ValueError, match="softmax: unknown algorithm 'fast'"):
        onepass.softmax(array((4, 8)), algorithm="fast")
    with pytest.raises(ValueError, match="algorithm 'warp' cannot serve an input of shape"):
        onepass.softmax(array((4, 100000)), algorithm="warp")


def test_an_array_on_a_gpu_of_no_known_library(gpu, array):
    class Unknown:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **_):
            raise AssertionError("not to be read")

    with pytest.raises(TypeError, match=r"Unknown on a GPU.*pass torch.from_dlpack\(x\) or cupy.from_dlpack\(x\)"):
        onepass.softmax(Unknown())


@pytest.mark.parametrize("device", [(10, 0), (8, 0), (4, 0)])  # ROCm, Metal, OpenCL
def test_other_devices_are_named(device):
    other = types.SimpleNamespace(__dlpack_device__=lambda: device, __dlpack__=None)
    with pytest.raises(ValueError, match=r"DLPack device .*; onepass runs on CPUs and NVIDIA GPUs"):
        onepass.softmax(other)


def test_a_failed_launch_keeps_nothing_and_can_be_repeated(gpu, array):
    x = array((64, 300))
    onepass.softmax(x)
    gpu.fail("cuLaunchKernel", 701)
    with pytest.raises(_engine.CudaError, match="launch warp: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        onepass.softmax(x)
    gpu.fail("cuLaunchKernel", 0)
    onepass.softmax(x)


def test_without_a_driver_a_gpu_array_says_so(stub_libraries, tmp_path):
    out = run_python(
        f"""
import onepass, stub_gpu
x = stub_gpu.load_module({str(stub_libraries[1])!r}).Array((4, 8))
try:
    onepass.softmax(x)
except onepass.cuda.CudaError as error:
    print(error)
""",
        env={"ONEPASS_LIBCUDA": "/nowhere/libcuda.so", "ONEPASS_CACHE_DIR": str(tmp_path)},
    )
    assert out.startswith("onepass: no NVIDIA driver")


# ---- libraries ----


@pytest.fixture
def cupy(gpu, array, monkeypatch):
    module = Cupy(array)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.mark.parametrize("device", [0, 1])
def test_cupy_in_cupy_out_on_the_stream_that_cupy_has_current(gpu, cupy, array, device):
    x = cupy.ndarray(array((64, 1000), device=device))
    for _ in range(2):
        gpu.forget_calls()
        y = onepass.softmax(x)
        assert type(y) is cupy.ndarray
        assert y.inner.device == device
        assert gpu.words(2) == (x.inner.address, y.inner.address)
        assert gpu.launched.stream == cupy.streams[device]
        assert set(x.asked) == {-1}  # the same stream: nothing to wait for
    assert [name for name in gpu.calls if "Ctx" not in name] == ["cuLaunchKernel"]
    assert cupy.current_device == 0


def test_cupy_out_and_dtype(gpu, cupy, array):
    x = cupy.ndarray(array((64, 1000)))
    out = cupy.ndarray(array((64, 1000)))
    for _ in range(2):
        assert onepass.softmax(x, out=out) is out
        assert gpu.words(2) == (x.inner.address, out.inner.address)
    with pytest.raises(TypeError, match="out must be a cupy.*ndarray like x, got fake_gpu.Array"):
        onepass.softmax(x, out=out.inner)  # like a call that is hot, but for the kind of out
    assert onepass.softmax(x, dtype=np.float16).dtype == np.float16
    with pytest.raises(TypeError, match="CuPy has no bfloat16"):
        onepass.softmax(x, dtype="bfloat16")


@pytest.fixture
def jax(gpu, array, monkeypatch):
    module = Jax(array)
    monkeypatch.setitem(sys.modules, "jax", module)
    return module


def test_jax_in_jax_out_ordered_by_the_protocol(gpu, jax, array):
    x = jax.ArrayImpl(array((64, 1000)))
    onepass.softmax(x)
    for _ in range(2):
        gpu.forget_calls()
        y = onepass.softmax(x)
        assert type(y) is jax.ArrayImpl
    calls = [name for name in gpu.calls if "Ctx" not in name and "DeviceGet" not in name]
    assert calls == [
        "cuThreadExchangeStreamCaptureMode",  # another thread may be capturing a graph
        "cuMemAlloc_v2",
        "cuThreadExchangeStreamCaptureMode",
        "cuLaunchKernel",
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",  # of JAX's stream, for the legacy default stream, where the kernel was launched
        "cuEventDestroy_v2",
    ]
    assert gpu.launched.stream == 1
    assert set(x.asked) == {1}
    assert gpu.words(1) == (x.inner.address,)


def test_the_memory_of_a_jax_result_goes_with_the_last_capsule_and_takes_x_along(gpu, jax, array):
    inner = array((64, 1000))
    held = sys.getrefcount(inner)
    x = jax.ArrayImpl(inner)
    y = onepass.softmax(x)
    del x
    assert sys.getrefcount(inner) > held  # the kernel may still read it
    gpu.forget_calls()
    jax.taken.clear()
    del y
    assert "cuMemFree_v2" in gpu.calls
    assert sys.getrefcount(inner) == held


def test_a_jax_array_on_the_cpu_stays_there(gpu, jax, array):
    onepass.softmax(jax.ArrayImpl(array((64, 1000))))
    on_cpu = np.zeros((2, 4), np.float32)
    x = jax.ArrayImpl(on_cpu)
    gpu.forget_calls()
    np.testing.assert_array_equal(onepass.softmax(x), np.full((2, 4), 0.25, np.float32))
    assert "cuLaunchKernel" not in gpu.calls


def test_jax_arrays_are_not_written_to(gpu, jax, array):
    x = jax.ArrayImpl(array((64, 1000)))
    with pytest.raises(ValueError, match="is read-only"):
        onepass.softmax(x, out=jax.ArrayImpl(array((64, 1000))))


def test_no_memory_for_a_jax_result(gpu, jax, array):
    x = jax.ArrayImpl(array((64, 1000)))
    gpu.fail("cuMemAlloc_v2", 2)
    with pytest.raises(MemoryError, match="allocate a result of 256000 bytes: CUDA_ERROR_OUT_OF_MEMORY .5 of"):
        onepass.softmax(x)


def test_torch_makes_its_own_results():
    torch = pytest.importorskip("torch")
    for x, op, dtype, function in [
        (torch.empty(4, 8), "softmax", "float32", torch.empty_like),
        (torch.empty(4, 8), "softmax", "float16", torch.empty_like),
        (torch.empty(8, 4).T, "softmax", "float32", torch.Tensor.new_empty),  # empty_like would keep the order
        (torch.empty(4, 8), "sum", "float32", torch.Tensor.new_empty),
    ]:
        source = arrays.as_input(op, x, None)
        problem = make_problem(op, "float32", (4, 8), (1,), strides=source.strides, result_dtype=dtype)
        maker = gpu_arrays.maker(source, problem)
        assert maker.make is function
        made = maker.make(x, *maker.positional, **maker.keywords)
        assert made.is_contiguous()
        assert (tuple(made.shape), made.dtype) == (problem.result_shape, getattr(torch, dtype))


# ---- devices, and kernels before their first call ----


def test_the_device_is_the_driver_s(gpu):
    device = launch.read_device(0)
    assert device == by_name("h200")
    gpu.set_device_attribute(16, 100)
    gpu.set_device_attribute(75, 8)
    launch.read_device.cache_clear()
    device = launch.read_device(0)
    assert (device.multiprocessors, device.architecture) == (100, "80")


def test_precompile_for_a_gpu_that_is_here(gpu, array):
    plan = precompile("softmax", (64, 2048), "bfloat16")
    assert "cuModuleLoadData" in gpu.calls
    onepass.softmax(array((64, 2048), dtype="bfloat16"))
    assert "cuModuleLoadData" not in gpu.calls
    assert plan.algorithm == _engine.last_algorithm()


def test_precompile_for_a_gpu_that_is_elsewhere(gpu, kernels):
    before = len(list(kernels.iterdir()))
    gc.collect()  # modules that other tests have left are unloaded now, not while this one compiles
    gpu.forget_calls()
    plan = precompile("logsumexp", (3, 5), "float64", device="a100", dim=0)
    assert gpu.calls == []
    assert plan.algorithm == "strided"
    assert len(list(kernels.iterdir())) == before + 1


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (("softmax", (4, 8), "int8"), {}, TypeError, "precompile: dtype 'int8'"),
        (("softmax", (4, 8)), {"device": "h9000"}, ValueError, "device 'h9000' is not known"),
        (("softmax", (4, 8)), {"dim": 7}, ValueError, "dim 7 is out of range"),
        (("softmax", (4, 8)), {"device": 9}, _engine.CudaError, "CUDA_ERROR_INVALID_DEVICE"),
        (("softmin", (4, 8)), {"device": "h200"}, ValueError, "unknown operation 'softmin'"),
    ],
)
def test_precompile_refuses_what_a_call_would(gpu, arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        precompile(*arguments, **keywords)


def test_the_stub_keeps_what_a_launch_was_given(gpu, array):
    """The test's own tool: a launch's arguments are those of the last call, not of the one before."""
    for n in (100, 200):
        onepass.softmax(array((4, n)))
        assert gpu.words(4)[2:] == (4, n)
    assert ctypes.sizeof(type(gpu.launched)) == 4160


# ---- prepare ----

SQUARED = Functor(
    "Squared",
    source="""struct Squared {
    template <class C> __device__ C operator()(C x, long long, long long) const { return x * x; }
};""",
)


def test_a_prepared_call_hands_over_the_fields_of_its_functors(gpu, array):
    x, out = array((64, 1000)), array((64, 1000))
    run = prepare("softmax", x, load=Functor("onepass::cuda::Scaled", (0.5,)), store=SQUARED)
    assert "Scaled" in run.plan.kernel and "Squared" in run.plan.kernel
    y = run(x)
    assert gpu.words(8) == (x.address, y.address, 64, 1000, 64, 1000, 1000, np.float64(0.5).view(np.int64))
    gpu.forget_calls()
    run(array((64, 1000)))
    assert gpu.calls == HOT
    into = prepare("softmax", x, out=out, tuning=Tuning(pack=1))
    assert ".pack = 1" in into.plan.kernel
    assert into(x, out) is out


def test_a_prepared_call_takes_arrays_of_its_layout_only(gpu, array):
    x = array((64, 1000))
    run = prepare("softmax", x)
    for other in (array((64, 1001)), array((64, 1000), dtype="float16"), np.zeros((64, 1000), np.float32)):
        with pytest.raises(ValueError, match="prepared for an input of shape"):
            run(other)
    with pytest.raises(ValueError, match="without out="):
        run(x, array((64, 1000)))
    with pytest.raises(ValueError, match="unknown operation 'softmin'"):
        prepare("softmin", x)
    with pytest.raises(ValueError, match="not an array on an NVIDIA GPU"):
        prepare("softmax", np.zeros((4, 4)))


def test_fields_of_functors():
    class OnGpu:
        __cuda_array_interface__ = {"data": (0x7F00, False)}

    assert Functor("F", (1.0, -2, OnGpu())).words == (0x3FF0000000000000, -2, 0x7F00)
    with pytest.raises(TypeError, match="a field is a str"):
        _ = Functor("F", ("x",)).words


def test_text_that_does_not_compile_is_shown(gpu, array):
    with pytest.raises(CompileError, match="oops"):
        prepare("softmax", array((64, 1000)), load=Functor("Broken", source="struct Broken { oops };"))
