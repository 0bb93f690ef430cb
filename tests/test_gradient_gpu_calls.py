"""Gradients on arrays that say they are on a GPU: planner, compiler and engine are real, the driver is the stub. Looked
at is what is launched, with which addresses and when, and what is refused."""

import sys

import numpy as np
import pytest
from fake_libraries import Cupy, Jax

from onepass import _engine, explain, gradients
from onepass.bench import gpu_gradients
from onepass.bench.gpu_cells import GPU_CELLS, GpuCell
from onepass.bench.gpu_contenders import GpuData
from onepass.cuda import precompile
from onepass.cuda.device import NAMES, by_name

HOT = ["cuCtxGetCurrent", "cuLaunchKernel"]
HOT_OF_CLUSTERS = ["cuCtxGetCurrent", "cuLaunchKernelEx"]
# Where blocks share rows: their scratch memory is that of the stream, or of the graph that it is captured in.
HOT_OF_TEAMS = ["cuCtxGetCurrent", "cuStreamGetCaptureInfo_v2", "cuStreamGetId", "cuLaunchKernelEx"]
SUMS = ("softmax_backward", "log_softmax_backward")
GRADIENTS = (*SUMS, "logsumexp_backward")
SHAPE = (64, 1000)


@pytest.fixture
def array(fake_gpu):
    return fake_gpu.Array


def call(op, saved, dy, *lse, **options):
    return getattr(gradients, op)(dy, saved, *lse, **options)


def inputs_of(op, array, shape=SHAPE, **options):
    """What was saved, dy, and of logsumexp its result."""
    if op != "logsumexp_backward":
        return array(shape, **options), array(shape, **options)
    return array(shape, **options), array(shape[:-1], **options), array(shape[:-1], **options)


@pytest.mark.parametrize("op", GRADIENTS)
def test_the_second_call_is_one_launch(gpu, array, op):
    inputs = inputs_of(op, array)
    first = call(op, *inputs)
    assert "cuModuleLoadData" in gpu.calls
    second = call(op, *inputs)
    assert gpu.calls == HOT
    for dx in (first, second):
        assert (type(dx), dx.shape, dx.dtype, dx.device) == (array, SHAPE, "float32", 0)
    saved, *beside = inputs
    expected = (saved.address, second.address, *(x.address for x in beside), *SHAPE)
    assert gpu.words(len(expected)) == expected
    assert _engine.last_algorithm() == ("warp" if op == "logsumexp_backward" else "block")


@pytest.mark.parametrize("op", GRADIENTS)
def test_out_may_be_an_input(gpu, array, op):
    inputs = inputs_of(op, array)
    for out in (array(SHAPE), *inputs[: 1 if op == "logsumexp_backward" else 2]):
        for _ in range(2):
            gpu.forget_calls()
            assert call(op, *inputs, out=out) is out
            assert gpu.words(3) == (inputs[0].address, out.address, inputs[1].address)
        assert gpu.calls == HOT


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        ({"dim": 0}, "strided"),
        ({"dim": (0, 1)}, "cluster"),
        ({"dtype": np.float64}, "block"),
        ({"algorithm": "warp"}, "warp"),
        ({"algorithm": "block_smem"}, "block_smem"),
        ({"algorithm": "block_uncached"}, "block_uncached"),
        ({"algorithm": "split"}, "split"),
        ({"algorithm": "stream"}, "stream"),
        ({"algorithm": "cluster"}, "cluster"),
        ({"algorithm": "strided"}, "strided"),
    ],
    ids=str,
)
def test_every_way_to_say_a_call_gets_hot(gpu, array, options, algorithm):
    inputs = inputs_of("softmax_backward", array)
    call("softmax_backward", *inputs, **options)
    gpu.forget_calls()
    dx = call("softmax_backward", *inputs, **options)
    hot = HOT_OF_TEAMS if algorithm in ("split", "stream") else HOT
    assert gpu.calls == (HOT_OF_CLUSTERS if algorithm == "cluster" else hot)
    assert _engine.last_algorithm() == algorithm
    assert dx.dtype == np.dtype(options.get("dtype", "float32")).name


def test_where_dy_lies_is_part_of_the_plan(gpu, array):
    """Its strides, its dtype and its address; the strides reach the kernel, which is that of any dy read by element."""
    y = array(SHAPE)
    call("softmax_backward", y, array(SHAPE))
    others = (array(SHAPE, offset=4), array(SHAPE, strides=(1, 0)), array(SHAPE, dtype="float16"))
    for dy, loads in zip(others, (True, False, True), strict=True):
        gpu.forget_calls()
        call("softmax_backward", y, dy)
        calls = gpu.calls
        assert len(calls) > len(HOT)
        assert ("cuModuleLoadData" in calls) == loads
        gpu.forget_calls()
        call("softmax_backward", y, dy)
        assert gpu.calls == HOT
    call("softmax_backward", y, array(SHAPE, strides=(1, 0)))
    assert gpu.words(13)[3:] == (64, 1000, 64, 1000, 1000, 1, 1000, 1, 1, 0)


def team_of(blocks):
    """The word that has a team's blocks, and what to multiply by instead of dividing by them."""
    return blocks | 2**32 // blocks << 32


@pytest.mark.parametrize("op", SUMS)
def test_blocks_that_share_a_row_are_launched_together(gpu, array, op):
    """And find behind the axes how many they are, how many packs each has, and where they talk."""
    y, dy = inputs_of(op, array, (1, 262144))
    for _ in range(2):
        gpu.forget_calls()
        dx = call(op, y, dy)
        assert (list(gpu.launched.grid), gpu.launched.cooperative) == ([128, 1, 1], 1)
        *words, scratch = gpu.words(16)
        assert words == [y.address, dx.address, dy.address, 1, 262144, 1, 0, 0, 0, 262144, 1, 1, 1, team_of(128), 512]
        assert scratch != 0
    assert gpu.calls == HOT_OF_TEAMS


@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("rows", [3, 4096])
def test_clusters_are_launched_as_such(gpu, array, op, rows):
    """One for each row: nothing is counted."""
    y, dy = inputs_of(op, array, (rows, 32768))
    dx = call(op, y, dy)
    assert (gpu.launched.cluster, gpu.launched.cooperative) == (8, 0)
    assert gpu.launched.grid[0] == 8 * rows
    *words, scratch = gpu.words(16)
    addresses = [y.address, dx.address, dy.address]
    assert words == [*addresses, rows, 32768, rows, *3 * (32768,), 32768, 1, 1, 1, team_of(8), 1024]
    assert scratch == 0


def test_nothing_to_do_is_no_launch(gpu, array):
    for shape in ((0, 5), (5, 0)):
        for op in GRADIENTS:
            for _ in range(2):
                gpu.forget_calls()
                assert call(op, *inputs_of(op, array, shape)).shape == shape
                assert "cuLaunchKernel" not in gpu.calls


@pytest.mark.parametrize("op", GRADIENTS)
def test_all_inputs_must_be_on_one_gpu(gpu, array, op):
    saved, *beside = inputs_of(op, array)
    for i, x in enumerate(beside):
        given = list(beside)
        given[i] = array(x.shape, device=1)
        with pytest.raises(ValueError, match="is on cuda:1, . on cuda:0; they must be on one device"):
            call(op, saved, *given)
        given[i] = np.zeros(x.shape, np.float32)
        with pytest.raises((TypeError, ValueError), match="must be"):
            call(op, saved, *given)
    with pytest.raises(ValueError, match="out is on cuda:1"):
        call(op, saved, *beside, out=array(SHAPE, device=1))
    assert "cuLaunchKernel" not in gpu.calls


def test_an_algorithm_that_cannot_serve_says_why(gpu, array):
    for algorithm, why in (("online", "no running maximum"), ("three_pass", "no running maximum")):
        with pytest.raises(ValueError, match=f"softmax_backward: algorithm '{algorithm}' cannot serve .*{why}"):
            call("softmax_backward", *inputs_of("softmax_backward", array), algorithm=algorithm)
    for algorithm, length, why in (("warp", 100000, "registers of a warp"), ("block", 100000, "registers of a block")):
        with pytest.raises(ValueError, match=why):
            call("softmax_backward", *inputs_of("softmax_backward", array, (4, length)), algorithm=algorithm)
    with pytest.raises(ValueError, match="bytes of shared memory"):
        call("softmax_backward", *inputs_of("softmax_backward", array, (4, 100000)), algorithm="block_smem")
    for algorithm in ("block", "split", "stream"):
        with pytest.raises(ValueError, match="no row is needed twice"):
            call("logsumexp_backward", *inputs_of("logsumexp_backward", array), algorithm=algorithm)
        with pytest.raises(ValueError, match="do not lie side by side"):
            call("softmax_backward", *inputs_of("softmax_backward", array), dim=0, algorithm=algorithm)
    with pytest.raises(ValueError, match="bytes does not fit the shared memory of the GPU"):
        call("softmax_backward", *inputs_of("softmax_backward", array, (1, 1 << 25)), algorithm="split")


# ---- libraries ----


def test_cupy_arrays_are_read_on_the_stream_that_cupy_has_current(gpu, array, monkeypatch):
    cupy = Cupy(array)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    y, dy = (cupy.ndarray(array(SHAPE)) for _ in range(2))
    for _ in range(2):
        gpu.forget_calls()
        dx = gradients.softmax_backward(dy, y)
        assert type(dx) is cupy.ndarray
        assert gpu.words(3) == (y.inner.address, dx.inner.address, dy.inner.address)
        assert gpu.launched.stream == cupy.streams[0]
    assert [name for name in gpu.calls if "Ctx" not in name] == ["cuLaunchKernel"]


def test_arrays_of_two_libraries_are_refused(gpu, array, monkeypatch):
    """Each would be read on its own library's stream."""
    cupy, jax = Cupy(array), Jax(array)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "jax", jax)
    y, dy = cupy.ndarray(array(SHAPE)), jax.ArrayImpl(array(SHAPE))
    with pytest.raises(TypeError, match=r"dy must be a cupy\.ndarray like y, got jaxlib\._jax\.ArrayImpl"):
        gradients.softmax_backward(dy, y)
    with pytest.raises(TypeError, match=r"dy must be a cupy\.ndarray like y, got fake_gpu\.Array"):
        gradients.softmax_backward(array(SHAPE), y)
    assert "cuLaunchKernel" not in gpu.calls


@pytest.mark.parametrize("op", GRADIENTS)
def test_a_jax_result_takes_every_input_along(gpu, array, monkeypatch, op):
    jax = Jax(array)
    monkeypatch.setitem(sys.modules, "jax", jax)
    memory = inputs_of(op, array)
    held = [sys.getrefcount(x) for x in memory]
    dx = call(op, *map(jax.ArrayImpl, memory))
    assert all(sys.getrefcount(x) > before for x, before in zip(memory, held, strict=True))
    jax.taken.clear()
    del dx
    assert [sys.getrefcount(x) for x in memory] == held


# ---- the benchmark ----


@pytest.mark.parametrize("op", GRADIENTS)
def test_what_the_benchmark_calls(gpu, array, op):
    """A call with a result of its own, one into out=, and one for each variant: each a single launch."""
    variants = next(c for c in GPU_CELLS if c.group == "backward_waiting").variants if op in SUMS else ()
    cell = GpuCell("made up", op, SHAPE, "a test", variants=variants)
    data = GpuData(cell, *_split(inputs_of(op, array)), array(SHAPE))
    contenders = gpu_gradients.of_onepass(data)
    assert len(contenders) == 2 + len(variants)
    for contender in contenders:
        contender.call()
        gpu.forget_calls()
        result = contender.call()
        assert gpu.calls == HOT
        assert (result is data.out) == (contender.mode == "out")
        assert gpu.words(3) == (data.x.address, result.address, data.beside[0].address)


def _split(inputs):
    return inputs[0], inputs[1:]


# ---- plans before a call ----


@pytest.mark.parametrize("op", GRADIENTS)
def test_precompiled_kernels_are_found(gpu, array, op):
    plan = precompile(op, (64, 2048), "bfloat16")
    assert "cuModuleLoadData" in gpu.calls
    call(op, *inputs_of(op, array, (64, 2048), dtype="bfloat16"))
    assert "cuModuleLoadData" not in gpu.calls
    assert plan.algorithm == _engine.last_algorithm()


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("device", NAMES)
def test_explain_knows_every_device(op, device):
    for shape, dim in (
        ((4096, 32), -1),
        ((4096, 8192), -1),
        ((4096, 50257), -1),
        ((64, 1 << 20), -1),
        ((64, 64, 49), 1),
    ):
        report = explain(op, shape, "bfloat16", dim, device=device)
        assert report.plan.why
        assert report.moved_bytes >= report.problem.floor_bytes
        assert str(report)


@pytest.mark.parametrize("op", ["softmax", "logsumexp", "sum", *SUMS])
@pytest.mark.parametrize("device", NAMES)
def test_shared_rows_have_blocks_that_are_at_work_at_once(op, device):
    """On every device, few of whose multiprocessors have as many threads as an H200's."""
    for shape in ((1, 100_000), (3, 1 << 20), (8, 1 << 22), (300, 1 << 18), (1, 1 << 25)):
        for dtype in ("float32", "bfloat16", "float64"):
            plan = explain(op, shape, dtype, device=device).plan
            known = by_name(device)
            assert plan.team <= plan.resident(known) * known.multiprocessors
            assert plan.shared_bytes <= known.shared_per_block


@pytest.mark.parametrize(
    ("op", "shape", "dim", "text"),
    [
        ("softmax_backward", (4096, 4096), -1, "block: a block of 256 per row, 2 x packs of 8 each, in registers"),
        ("softmax_backward", (70, 300), -1, "warp: 32 lanes per row, 2 x packs of 8 each, head and tail peeled"),
        ("softmax_backward", (1, 1 << 20), -1, "split: 128 blocks of 512 per row, 2 x packs of 8 each, in registers"),
        ("softmax_backward", (64, 1 << 20), -1, "22 blocks of 512 per row, packs of 8 each, in 190752 bytes of shared"),
        (
            "softmax_backward",
            (2, 1 << 25),
            -1,
            "stream: 198 blocks of 256 per row, packs of 8 each, kept nowhere, 2 re",
        ),
        (
            "log_softmax_backward",
            (4096, 70000),
            -1,
            "cluster: 8 blocks of 256 per row, packs of 8 each, in 35104 bytes of shared memory",
        ),
        ("softmax_backward", (4096, 50256), -1, "cluster: 8 blocks of 128 per row, packs of 8 each, in 25376 bytes"),
        ("softmax_backward", (4096, 131072), -1, "cluster: 16 blocks of 128 per row"),
        ("softmax_backward", (4096, 32000), -1, "cluster: 4 blocks of 256 per row"),
        ("softmax_backward", (64, 128256), -1, "cluster: 16 blocks of 256 per row"),
        ("softmax_backward", (4096, 16384), -1, "block_smem: a block of 512 per row"),
        ("softmax_backward", (4096, 1304), -1, "block: a block of 192 per row, 1 x packs of 8 each, in registers"),
        ("softmax_backward", (4096, 8192), -1, "block: a block of 512 per row, 2 x packs of 8 each, in registers"),
        ("softmax_backward", (1000, 5000), -1, "block: a block of 320 per row, 2 x packs of 8 each, in registers"),
        ("softmax_backward", (1000, 5200), -1, "block: a block of 1024 per row, 1 x packs of 8 each, in registers"),
        ("softmax_backward", (1100, 5200), -1, "cluster: 2 blocks of 128 per row, packs of 8 each, in 10528 bytes"),
        ("softmax_backward", (1100, 5201), -1, "block: a block of 1024 per row, 1 x packs of 8 each, head and tail"),
        ("softmax_backward", (150, 9000), -1, "cluster: 2 blocks of 256 per row, packs of 8 each, in 18208 bytes"),
        ("softmax_backward", (150, 9001), -1, "block_smem: a block of 256 per row, packs of 8 each, head and tail"),
        ("softmax_backward", (132, 9001), -1, "block_smem: a block of 1024 per row, packs of 8 each, head and tail"),
        ("logsumexp_backward", (64, 4096), -1, "warp: 32 lanes per segment of a row, packs of 8 each, read once"),
        ("softmax_backward", (64, 64, 48), 1, "tiles of 16 rows, 4 x 32 threads, packs of 4 each, in registers"),
    ],
)
def test_a_plan_in_words(op, shape, dim, text):
    assert text in str(explain(op, shape, "bfloat16", dim, device="h200").plan)


def test_the_ladder():
    """Each tier from the length that the one before cannot take, on an H200."""
    for length, algorithm in (
        (512, "warp"),
        (520, "block"),
        (4096, "block"),
        (5120, "block"),
        (5128, "cluster"),
        (8192, "block"),
        (8200, "cluster"),
        (16384, "block_smem"),
        (16392, "cluster"),
        (442368, "cluster"),
        (442376, "split"),
    ):
        assert explain("softmax_backward", (4096, length), "bfloat16", device="h200").plan.algorithm == algorithm
    of_few = ((4096, "block"), (8192, "cluster"), (1 << 17, "cluster"), (1 << 18, "split"), (1 << 25, "stream"))
    for length, algorithm in of_few:
        assert explain("softmax_backward", (3, length), "float32", device="h200").plan.algorithm == algorithm
    for length, algorithm in ((8192, "block"), (8196, "cluster")):  # many rows of float32
        assert explain("softmax_backward", (512, length), "float32", device="h200").plan.algorithm == algorithm
    for device, packs in (("a100", 1), ("l4", 2)):  # of an L4's threads one multiprocessor has 1536
        plan = explain("softmax_backward", (8000, 5200), "bfloat16", device=device).plan
        assert (plan.algorithm, dict(plan.shape)["packs"]) == ("block", packs)
    # Where there are no clusters. Most of a row waits, and of the rest dy is read again.
    for length, algorithm in ((32000, "block_smem"), (50256, "split")):
        assert explain("softmax_backward", (4096, length), "bfloat16", device="a100").plan.algorithm == algorithm
    plan = explain("log_softmax_backward", (4096, 50256), "bfloat16", device="a100").plan
    assert (plan.algorithm, plan.reads) == ("block_uncached", 2)
    assert 0 < plan.shared_bytes <= 227 << 10
    assert explain("logsumexp_backward", (4096, 131072), "bfloat16", device="h200").plan.reads == 1


# Shape, dim, type -> rows of a tile, blocks that share it and threads of each.
HELD = {
    ((16, 150, 128, 128), 1, "bfloat16"): (64, 0, 256),
    ((32, 256, 56, 56), 1, "float32"): (32, 0, 256),
    ((1, 256, 1024), 1, "bfloat16"): (16, 0, 128),  # few tiles: narrower ones
    ((2000, 1000, 4), 1, "bfloat16"): (4, 0, 128),  # few neighbours: a tile as wide as these
    ((8, 50176, 3), 1, "float32"): (4, 16, 512),  # the same of long dims, few tiles or not
    ((128, 8192, 5), 1, "float32"): (8, 16, 256),
    ((64, 1000, 196), 1, "bfloat16"): (64, 8, 128),
    ((64, 1000, 197), 1, "float32"): (32, 4, 256),
    ((4096, 4096), 0, "float32"): (32, 16, 256),
    ((8192, 8192), 0, "bfloat16"): (32, 16, 256),
    ((16384, 1024), 0, "float32"): (16, 16, 512),
    ((4096, 32), 0, "float32"): (8, 16, 128),
    ((65536, 16), 0, "bfloat16"): (8, 64, 512),  # more blocks than a cluster has
}


@pytest.mark.parametrize("problem", HELD, ids=str)
def test_tiles_of_a_strided_gradient_wait_in_registers(problem):
    shape, dim, dtype = problem
    plan = explain("softmax_backward", shape, dtype, dim, device="h200").plan
    rows, blocks, threads = HELD[problem]
    assert plan.algorithm == ("strided_split" if blocks else "strided")
    assert "gradient_strided_held" in plan.kernel
    assert (plan.units_per_block, plan.shared_by, plan.threads, plan.reads) == (rows, blocks, threads, 1)
    without = explain("softmax_backward", shape, dtype, dim, device="a100").plan
    assert without.cluster == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "threads", "reads", "why"),
    [
        ((16, 20000, 4096), "float32", 512, 2, "too many steps for registers: L2 serves the second read"),
        ((4, 20000, 8192), "bfloat16", 256, 2, "two-byte elements by full packs"),
        ((32, 256, 56, 56), "float64", 512, 1, "not measured"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else None,
)
def test_tiles_of_a_strided_gradient_wait_in_shared_memory_or_are_read_twice(shape, dtype, threads, reads, why):
    plan = explain("softmax_backward", shape, dtype, 1, device="h200").plan
    assert plan.algorithm == "strided"
    assert "held" not in plan.kernel
    assert (plan.reads, plan.threads) == (reads, threads), plan
    assert (plan.shared_bytes > 0) == (reads == 1)
