"""The benchmark's GPU half, as far as it goes without a GPU: its registry, its verification, its picture."""

import io
from dataclasses import asdict

import pytest

from onepass.bench import gpu_gradients, gpu_run, run
from onepass.bench.document import document as describe
from onepass.bench.gpu_cells import GPU_CELLS, GpuCell, Variant
from onepass.bench.gpu_contenders import GpuContender, GpuData
from onepass.bench.gpu_peers import GPU_PEERS, make_data
from onepass.bench.gpu_plot import draw
from onepass.bench.gpu_run import GpuVerifier, _verified
from onepass.bench.results import CellReport, Outcome
from onepass.bench.timing import Timing, Window
from onepass.bench.verify import WrongResult
from onepass.bench.views import View
from onepass.call import operands_like
from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import contiguous_strides, make_problem, normalize_dims

torch = pytest.importorskip("torch")


def test_every_cell_has_its_own_name_and_a_plan_for_every_variant():
    assert len({cell.name for cell in GPU_CELLS}) == len(GPU_CELLS)
    for cell in GPU_CELLS:
        assert cell.why
        dims = normalize_dims(cell.op, cell.dim, cell.shape)
        second, third = operands_like(cell.op, cell.dtype, cell.shape, contiguous_strides(cell.shape), dims)
        problem = make_problem(cell.op, cell.dtype, cell.shape, dims, second=second, third=third)
        assert cell.moved_bytes == problem.floor_bytes
        for variant in cell.variants:
            for device in ("h100", "h200"):
                plan = make_cuda_plan(
                    problem, by_name(device), variant.algorithm, addresses=(0, 0, 0, 0), tuning=variant.tuning
                )
                assert plan.algorithm == variant.algorithm


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp", "sum", "amax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_verifier_passes_torch_and_nothing_else(op, dtype):
    cell = GpuCell("made up", op, (50, 30, 8), "a test", dim=1, dtype=dtype)
    x = torch.randn(cell.shape, dtype=getattr(torch, dtype))
    good = getattr(torch, op)(x.double(), dim=1).to(x.dtype)
    verifier = GpuVerifier(GpuData(cell, x, (), torch.empty_like(good)))
    assert verifier.error(good) <= verifier.tolerance
    for broken in (torch.full_like(good, float("nan")), good.double(), good[:-1]):
        with pytest.raises(WrongResult):
            verifier.error(broken)
    assert verifier.error(good * 1.1 + 0.1) > verifier.tolerance


GRADIENT_CELLS = [
    ("softmax_backward", (50, 300), -1),
    ("softmax_backward", (50, 30, 8), 1),
    ("log_softmax_backward", (50, 300), -1),
    ("logsumexp_backward", (50, 300), -1),
    ("logsumexp_backward", (50, 30, 8), 1),
]


@pytest.mark.parametrize(("op", "shape", "dim"), GRADIENT_CELLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_gradients_too(op, shape, dim, dtype):
    """Of torch, of onepass itself, and of what is off."""
    cell = GpuCell("made up", op, shape, "a test", dim, dtype)
    data = make_data(cell, "cpu")
    verifier = GpuVerifier(data)
    (torchs,) = gpu_gradients.of_torch(data)
    good = torchs.call()
    assert verifier.error(good) <= 4 * verifier.tolerance
    for broken in (torch.full_like(good, float("nan")), good.double(), good[:-1]):
        with pytest.raises(WrongResult):
            verifier.error(broken)
    assert verifier.error(good * 1.1 + 0.1) > 4 * verifier.tolerance


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_views_of_the_input_or_of_dy(op):
    cell = GpuCell("views", op, (30, 41), "a test", view=View((1, 0), pitch=40), peers=("torch.compile",))
    assert cell.name == f"views-{op}-30x41-order1.0-pitch40"
    data = make_data(cell, "cpu")
    assert (data.beside or (data.x,))[-1].stride() == (1, 40)
    assert data.out.is_contiguous() and all(saved.is_contiguous() for saved in (data.x,) if data.beside)
    verifier = GpuVerifier(data)
    for contender in GPU_PEERS["torch"].prepare(data)[:1]:
        assert verifier.error(contender.call()) <= 4 * verifier.tolerance
    assert [name for name in GPU_PEERS if GPU_PEERS[name].takes(cell)] == ["onepass", "torch", "torch.compile"]


@pytest.mark.parametrize(("ours", "status"), [(True, "wrong"), (False, "ok")])
def test_room_for_honest_sums_is_for_others_only(ours, status):
    cell = GpuCell("made up", "softmax", (50, 400), "a test")
    x = torch.randn(cell.shape)
    off = torch.softmax(x.double(), -1).float() * (1 + 60 * 2**-24)  # between what onepass may and what others may
    data = GpuData(cell, x, (), torch.empty_like(x))
    contender = GpuContender("someone", "fresh", "", lambda: off, cell.moved_bytes, ours=ours)
    verifier = GpuVerifier(data)
    assert verifier.tolerance < verifier.error(off) < 4 * verifier.tolerance
    assert _verified(contender, data, verifier).status == status


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_a_variant_that_cannot_be_bound_fails_alone(op, monkeypatch):
    """A tensor on a CPU has no plan of a GPU's; the calls beside it do not care."""
    monkeypatch.setattr(gpu_run, "bounds", lambda data: [])
    cell = GpuCell("made up", op, (50, 400), "a test", variants=(Variant("held", "block"),), peers=())
    data = make_data(cell, "cpu")
    verifier = GpuVerifier(data)
    prepared = gpu_run._prepared(data, [GPU_PEERS["onepass"]])
    outcomes = {contender.label: problem or _verified(contender, data, verifier) for contender, problem in prepared}
    assert {label: outcome.status for label, outcome in outcomes.items()} == {
        "onepass": "ok",
        "onepass out=": "ok",
        "held out=": "failed",
    }
    assert outcomes["held out="].note


def test_a_device_that_is_unknown_or_not_here(monkeypatch, capsys):
    with pytest.raises(ValueError, match="tpu"):
        run.suite("tpu")
    assert run.run_benchmark(device="tpu") == 2
    monkeypatch.setattr("onepass.bench.gpu_run.describe", lambda _: (_ for _ in ()).throw(RuntimeError("no driver")))
    assert run.run_benchmark(device="cuda") == 1
    assert "no driver" in capsys.readouterr().err


def test_the_picture():
    def outcome(peer, mode, seconds):
        timing = Timing((Window(seconds, 1, None, False),) * 3)
        return Outcome(peer, peer, mode, "", 1000, "ok", timing=timing)

    reports = [
        CellReport(
            GpuCell(group, "softmax", (8, n), "a test"),
            "torch",
            "warp",
            1.0,
            (outcome("copy", "copy", 1e-6), outcome("onepass", "out", 1e-6), outcome("pack 2", "out", 2e-6)),
        )
        for group in ("seeds", "ablation", "calls")
        for n in (32, 64)
    ]
    gpu = {**asdict(by_name("h200")), "driver": "CUDA 13.0"}
    document = describe(reports, list(GPU_PEERS.values()), {"threads": 1}, gpu)
    stream = io.BytesIO()
    draw(document, stream, "png")
    assert stream.getvalue().startswith(b"\x89PNG")
