"""onepass on a real GPU, as users call it: `pytest -m gpu`, in a process of its own (others have the stub driver).

What kernels compute, over all their parameters, is test_cuda_kernels.py's; here it is arrays in and out, streams,
graphs, threads, and what is said when a GPU fails.
"""

import threading

import gpu_machine
import numpy as np
import pytest
from gpu_layouts import LAYOUTS, is_expected
from helpers import DTYPES, ELEMENTWISE, FLOORS, LIMITS, REDUCTIONS, SOFTMAX_FAMILY, random_array, run_python, to_torch
from ulp import max_ulp, ulp_error

import onepass
from onepass import _engine, reference
from onepass.call import checked
from onepass.cuda import Functor, launch, prepare
from onepass.cuda.launch import read_device

pytestmark = pytest.mark.gpu
OPS = (*SOFTMAX_FAMILY, *REDUCTIONS)
ROW_ALGORITHMS = ("warp", "warp_smem", "block", "block_smem", "block_uncached", "online", "three_pass")
ROWS = (133, 777)
CONVERTED = (((65, 1000), -1), ((9, 30001), -1), ((70, 65), 0))  # warp, block, strided


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def _compiled(torch):
    """The kernels of the largest tests, compiled by all cores together rather than by each test."""
    plans = []

    def add(op, x, dim=-1, dtype=None, algorithm=None):
        source, problem = checked(op, x, dim, False, dtype, None)
        plans.append(launch.plan(problem, source, None, algorithm))

    for dtype in DTYPES:
        for op in OPS:
            for shape, dim, view, _ in LAYOUTS.values():
                x = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
                add(op, x if view is None else view(x), dim)
        x = torch.zeros(ROWS, dtype=getattr(torch, dtype), device="cuda")
        for algorithm in ROW_ALGORITHMS:
            for op in SOFTMAX_FAMILY:
                add(op, x, algorithm=algorithm)
        for result in DTYPES:
            for shape, dim in CONVERTED:
                for op in ELEMENTWISE:
                    x = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
                    add(op, x, dim, getattr(torch, result))
    gpu_machine.compile_all(plans, read_device(0).architecture)


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def replay_beside_each_other(torch, graphs, times, beside=lambda: None):
    """Each graph on a stream of its own, so many times, with what is done beside them. Returns the last of that."""
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(times):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        result = beside()
    torch.cuda.synchronize()
    return result


def to_gpu(array):
    return to_torch(array).cuda()


def to_host(tensor):
    """A NumPy array of a tensor's elements, in whatever order it has them."""
    import torch

    host = tensor.cpu().contiguous()
    return host.view(torch.int16).numpy().view(DTYPES["bfloat16"]) if host.dtype == torch.bfloat16 else host.numpy()


def nan_like(torch, shape, dtype):
    return torch.full(shape, float("nan"), dtype=getattr(torch, dtype), device="cuda")


def check(op, y, x, dim, dtype):
    """The error of a result against the reference of what is in x."""
    expected = getattr(reference, op)(to_host(x), dim, dtype=np.longdouble)
    got = to_host(y)
    assert got.shape == expected.shape
    error = max_ulp(got, expected, floor=FLOORS[op])
    assert error <= LIMITS[op, dtype], (op, dtype, tuple(x.shape), dim, error)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout(torch, name, op, dtype):
    shape, dim, view, _ = LAYOUTS[name]
    x = to_gpu(random_array(shape, dtype, sigma=3))
    x = x if view is None else view(x)
    function = getattr(onepass, op)
    y = function(x, dim=dim)
    algorithm = _engine.last_algorithm()
    if torch.cuda.get_device_capability() >= (9, 0):  # before, there are no clusters
        assert is_expected(name, op, dtype, algorithm), algorithm
    assert type(y) is torch.Tensor
    assert y.is_cuda and y.is_contiguous() and y.dtype == x.dtype
    check(op, y, x, dim, dtype)
    out = nan_like(torch, y.shape, dtype)
    assert function(x, dim=dim, out=out) is out
    assert to_host(out).tobytes() == to_host(y).tobytes()


@pytest.mark.parametrize("algorithm", ROW_ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SOFTMAX_FAMILY)
def test_every_algorithm_of_rows(torch, algorithm, dtype, op):
    x = to_gpu(random_array(ROWS, dtype, sigma=3))
    y = getattr(onepass, op)(x, algorithm=algorithm)
    assert _engine.last_algorithm() == algorithm
    check(op, y, x, -1, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("result", DTYPES)
@pytest.mark.parametrize("op", ELEMENTWISE)
@pytest.mark.parametrize(("shape", "dim"), CONVERTED)
def test_any_type_out(torch, op, dtype, result, shape, dim):
    x = to_gpu(random_array(shape, dtype, sigma=2))
    y = getattr(onepass, op)(x, dim=dim, dtype=getattr(torch, result))
    assert y.dtype == getattr(torch, result)
    check(op, y, x, dim, result)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), ()])
@pytest.mark.parametrize("op", OPS)
def test_nothing_and_a_single_number(torch, op, shape):
    x = torch.ones(shape, device="cuda")
    if op in ("amax", "amin") and shape in ((5, 0), (0,)):
        with pytest.raises(ValueError, match="nothing"):
            getattr(onepass, op)(x)
        return
    y = getattr(onepass, op)(x)
    expected = getattr(reference, op)(np.ones(shape))
    np.testing.assert_allclose(to_host(y), expected, rtol=1e-6)


def test_in_place(torch):
    x = to_gpu(random_array((100, 4000), "float32", sigma=3))
    expected = onepass.softmax(x)
    assert onepass.softmax(x, out=x) is x
    assert torch.equal(x, expected)


def test_a_result_of_any_strides(torch):
    x = to_gpu(random_array((64, 96), "float32"))
    out = nan_like(torch, (96, 64), "float32").T
    onepass.softmax(x, out=out)
    check("softmax", out, x, -1, "float32")


def test_the_same_bits_every_time(torch):
    for shape, dim in (((50, 1000), -1), ((50, 50000), -1), ((3, 200000), -1), ((2000, 70), 0)):
        x = to_gpu(random_array(shape, "float32", sigma=3))
        first = onepass.log_softmax(x, dim=dim)
        assert all(torch.equal(onepass.log_softmax(x, dim=dim), first) for _ in range(20))


def test_more_elements_than_31_bits_count(torch):
    columns = 1 << 16
    rows = (1 << 31) // columns + 3
    x = torch.empty((rows, columns), dtype=torch.bfloat16, device="cuda").normal_()
    y = torch.full_like(x, float("nan"))
    onepass.softmax(x, out=y)
    for row in (0, rows // 2, rows - 4, rows - 3, rows - 1):
        check("softmax", y[row], x[row], -1, "bfloat16")
    del y
    y = onepass.amax(x.view(-1, columns, rows), dim=1)
    assert torch.equal(y, x.view(-1, columns, rows).amax(dim=1))


def test_functors_of_ones_own(torch):
    """A scale and a mask on the way in, a text of one's own on the way out, in one pass."""
    host = random_array((50, 700), "float32", sigma=3)
    x = to_gpu(host)
    keep = torch.from_numpy(np.random.default_rng(1).random(host.shape) < 0.7).cuda().to(torch.uint8)
    keep[7] = 0
    masked = prepare("softmax", x, load=Functor("onepass::cuda::Masked", (keep, 700, 1)))
    expected = reference.softmax(np.where(keep.cpu().numpy(), host, -np.inf), dtype=np.longdouble)
    expected[7] = 0
    assert max_ulp(to_host(masked(x)), expected) <= LIMITS["softmax", "float32"]
    text = """struct Percent {
        double of;
        template <class C> __device__ C operator()(C x, long long, long long) const { return x * C(of); }
    };"""
    out = nan_like(torch, (50, 700), "float32")
    scaled = Functor("onepass::cuda::Scaled", (0.5,))
    run = prepare("softmax", x, out=out, load=scaled, store=Functor("Percent", (100.0,), text))
    assert run(x, out) is out
    expected = 100 * reference.softmax(host.astype(np.longdouble) / 2, dtype=np.longdouble)
    assert max_ulp(to_host(out), expected) <= LIMITS["softmax", "float32"] + 1


# ---- streams, graphs, threads ----


def _busy(torch, seconds=0.3):
    torch.cuda._sleep(int(seconds * 1.5e9))


def test_calls_go_to_the_current_stream_and_wait_for_nothing(torch):
    host = random_array((64, 3000), "float32", sigma=3)
    x = torch.zeros((64, 3000), device="cuda")
    source = torch.from_numpy(host).cuda()
    onepass.softmax(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        _busy(torch)
        x.copy_(source)
        y = onepass.softmax(x)
        assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    check("softmax", y, source, -1, "float32")


@pytest.mark.parametrize("seen", [True, False], ids=["called before", "never called"])
def test_graphs(torch, seen):
    columns = 3001 if seen else 3003
    x = to_gpu(random_array((64, columns), "float32", sigma=3))
    out = torch.full_like(x, float("nan"))
    if seen:
        onepass.softmax(x, out=out)
        onepass.logsumexp(x, dim=0)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        onepass.softmax(x, out=out)
        fresh = onepass.log_softmax(x)
        lse = onepass.logsumexp(x, dim=0)
    for seed in (1, 2):
        x.copy_(to_gpu(random_array((64, columns), "float32", sigma=3, seed=seed)))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check("softmax", out, x, -1, "float32")
        check("log_softmax", fresh, x, -1, "float32")
        check("logsumexp", lse, x, 0, "float32")


def test_threads_with_a_stream_each(torch):
    """No scratch memory is shared: whatever runs beside a call, its result is the same."""
    arrays = [to_gpu(random_array((40, n), "float32", sigma=3, seed=n)) for n in (100, 5000, 30000, 70000)]
    expected = [onepass.softmax(x) for x in arrays]
    wrong = []

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            for i in range(50):
                k = (i + number) % len(arrays)
                if not torch.equal(onepass.softmax(arrays[k]), expected[k]):
                    wrong.append((number, k))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_gpu_that_is_not_current(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x = to_gpu(random_array((64, 1000), "float32")).to("cuda:1")
    with torch.cuda.device(0):
        y = onepass.softmax(x)
        assert torch.cuda.current_device() == 0
    assert y.device == x.device
    check("softmax", y, x, -1, "float32")


def test_refusals_change_nothing(torch):
    x = torch.randn(4, 5, device="cuda")
    out = torch.full((4, 5), 7.0, device="cuda")
    with pytest.raises(ValueError, match="dim 3"):
        onepass.softmax(x, dim=3, out=out)
    with pytest.raises((ValueError, TypeError)):
        onepass.softmax(x, out=torch.empty(4, 5))
    with pytest.raises(ValueError, match="requires grad"):
        onepass.softmax(x.clone().requires_grad_(), out=out)
    with pytest.raises(ValueError, match="warp"):
        onepass.softmax(torch.randn(2, 100000, device="cuda"), algorithm="warp")
    assert (out == 7).all()


# ---- other libraries ----


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cupy(cupy, op, dtype):
    host = random_array((30, 777), dtype, sigma=3)
    x = cupy.asarray(host)
    for dim in (-1, 0):
        y = getattr(onepass, op)(x, dim=dim)
        assert type(y) is cupy.ndarray and y.dtype == x.dtype
        expected = getattr(reference, op)(host, dim, dtype=np.longdouble)
        assert max_ulp(cupy.asnumpy(y), expected, floor=FLOORS[op]) <= LIMITS[op, dtype]
    out = cupy.full(y.shape, np.nan, dtype)
    assert getattr(onepass, op)(x, dim=0, out=out) is out
    assert cupy.asnumpy(out).tobytes() == cupy.asnumpy(y).tobytes()


def test_cupy_on_its_current_stream(cupy):
    host = random_array((64, 3000), "float32", sigma=3)
    source = cupy.asarray(host)
    x = cupy.zeros_like(source)
    cupy.cuda.Device().synchronize()
    sleep = cupy.RawKernel(
        'extern "C" __global__ void wait() { long long t = clock64(); while (clock64() - t < 400000000); }', "wait"
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        sleep((1,), (1,), ())
        x[...] = source
        y = onepass.softmax(x)
    stream.synchronize()
    assert max_ulp(cupy.asnumpy(y), reference.softmax(host, dtype=np.longdouble)) <= LIMITS["softmax", "float32"]


def test_jax(monkeypatch):
    # It would take three quarters of the GPU's memory, from other processes of the run.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    host = random_array((30, 777), "float32", sigma=3)
    for _ in range(20):
        x = jax.numpy.asarray(host) * 1.0
        for op in OPS:
            y = getattr(onepass, op)(x)
            assert isinstance(y, jax.Array)
            expected = getattr(reference, op)(host, dtype=np.longdouble)
            error = max_ulp(np.asarray(y * 1), expected, floor=FLOORS[op])
            assert error <= LIMITS[op, "float32"]
    with pytest.raises((TypeError, ValueError)):
        onepass.softmax(x, out=x)


# ---- the driver ----


def test_the_device_is_described(torch):
    device = read_device(0)
    properties = torch.cuda.get_device_properties(0)
    assert device.multiprocessors == properties.multi_processor_count
    assert device.l2_bytes == properties.L2_cache_size
    assert device.architecture.startswith(f"{properties.major}{properties.minor}")


def test_no_memory_for_a_result(torch):
    x = torch.zeros((1 << 14, 1), device="cuda").expand(1 << 14, 1 << 24)
    with pytest.raises((MemoryError, torch.OutOfMemoryError)):
        onepass.softmax(x)
    assert onepass.softmax(x[:4, :4]).sum() == 4


def test_a_gpu_that_another_kernel_has_broken():
    """The error is named, with what to do; the CPU goes on."""
    printed = run_python(
        """
import cupy, numpy, onepass
from onepass.cuda import CudaError
x = cupy.ones((4, 100), "float32")
onepass.softmax(x)
cupy.RawKernel('extern "C" __global__ void bad(int* p) { *p = 1; }', "bad")((1,), (1,), (0,))
try:
    cupy.cuda.Device().synchronize()
except cupy.cuda.runtime.CUDARuntimeError:
    pass
try:
    onepass.softmax(x, out=x)
except CudaError as error:
    print(error.name, "restart the process" in str(error))
print(onepass.softmax(numpy.zeros(4, "float32")).tolist(), flush=True)
import os
os._exit(0)
"""
    )
    assert printed == "CUDA_ERROR_ILLEGAL_ADDRESS True\n[0.25, 0.25, 0.25, 0.25]\n"


def test_rows_of_exactly_48_kib_in_shared_memory(torch):
    """More than a kernel has unasked, together with what its reduction takes."""
    x = to_gpu(random_array((300, 12288), "float32", sigma=3))
    y = onepass.softmax(x, algorithm="block_smem")
    check("softmax", y, x, -1, "float32")


def test_large_magnitudes(torch):
    """Rows far from 0, where x * log2(e) would overflow or lose its fraction, and rows of wide spread."""
    for scale, shift in ((1e30, 0), (40, 0), (1, 1e6), (1, -3e4)):
        host = (random_array((20, 5000), "float64") * scale + shift).astype(np.float32)
        y = to_host(onepass.softmax(to_gpu(host)))
        error = ulp_error(y, reference.softmax(host, dtype=np.longdouble))
        assert error.max() <= LIMITS["softmax", "float32"], (scale, shift)
