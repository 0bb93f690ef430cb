"""tools/tune.py as far as it goes without a GPU: which plans it would time, and what it makes of the times."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from onepass.bench import gpu_run
from onepass.bench.gpu_cells import GpuCell
from onepass.bench.results import CellReport, Outcome
from onepass.bench.timing import Timing, Window
from onepass.bench.views import View
from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan

TOOL = Path(__file__).parent.parent / "tools/tune.py"
H200 = by_name("h200")


@pytest.fixture(scope="module")
def tune():
    spec = importlib.util.spec_from_file_location("tune", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tune"] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tune"]


def candidates(tune, cell, *only):
    return tune.candidates(cell, H200, tune.sweeps(H200, cell.op), only)


@pytest.fixture
def command(tune):
    app = Typer()
    app.command()(tune.main)
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "dim", "algorithms"),
    [
        ("softmax", "float32", (49152, 256), -1, {"warp", "block", "split"}),  # short rows
        ("softmax", "bfloat16", (4096, 50257), -1, {"block_smem", "online", "split", "stream"}),  # long, odd ones
        ("softmax", "float32", (128, 4194304), -1, {"online", "split", "stream"}),  # more than a block holds
        ("logsumexp", "float32", (8, 1048576), -1, {"online", "split"}),
        ("sum", "bfloat16", (32768, 4096), -1, {"warp", "block", "split"}),
        ("softmax", "float32", (4096, 4096), 0, {"strided", "strided_split"}),
        ("softmax_backward", "bfloat16", (4096, 131072), -1, {"block_uncached", "split", "stream"}),
    ],
)
def test_candidates_are_different_plans_that_their_variants_bring_about(tune, op, dtype, shape, dim, algorithms):
    found = candidates(tune, GpuCell("tune", op, shape, "a test", dim, dtype, peers=()))
    plans = list(found.others.values())
    assert algorithms <= {plan.algorithm for plan in plans}
    assert len({plan.algorithm.startswith("strided") for plan in plans}) == 1
    assert len({*plans, found.chosen}) == len(plans) + 1
    assert len({variant.name for variant in found.others}) == len(plans)
    for variant, plan in found.others.items():
        tuning = variant.tuning
        again = make_cuda_plan(found.problem, H200, variant.algorithm, addresses=(0,) * 4, tuning=tuning)
        assert again == plan
        assert plan.algorithm == variant.algorithm
        held = {name: value for name, value in vars(tuning).items() if value is not None}
        assert all(f"{name}={value}" in variant.name for name, value in held.items())


def test_an_algorithm_can_be_looked_at_alone(tune):
    found = candidates(tune, GpuCell("tune", "softmax", (128, 262144), "a test", peers=()), "split")
    assert {plan.algorithm for plan in found.others.values()} == {"split"}
    assert {plan.threads for plan in found.others.values()} >= {256, 512, 1024}


@pytest.fixture
def measured(tune, monkeypatch):
    """Times for variants by name, in microseconds; what was asked for. Later looks take the later times."""
    asked = []

    def set_times(*looks):
        times = iter(looks)

        def measure(cell, peers, effort, device):
            asked.append(([variant.name for variant in cell.variants], effort))
            look = next(times)
            outcomes = []
            for peer, mode in (("copy", "copy"), ("onepass", "fresh"), ("onepass", "out")):
                outcomes.append((peer, mode, look.get(peer)))
            outcomes += [(variant.name, "out", look.get(variant.name, 99.0)) for variant in cell.variants]
            return CellReport(cell, outcomes=tuple(made(*one) for one in outcomes))

        monkeypatch.setattr(gpu_run, "measure", measure)
        return asked

    def made(peer, mode, microseconds):
        if microseconds is None:
            return Outcome(peer, peer, mode, "", 1, "failed", note="no")
        timing = Timing((Window(microseconds * 1e-6, 1, None, False),))
        return Outcome(peer, peer, mode, "", 1, "ok", timing=timing)

    return set_times


def tuned(tune, shape=(4096, 4096)):
    """What is found for one problem, and what was printed."""
    cell = GpuCell("tune", "softmax", shape, "a test", dtype="bfloat16", peers=())
    found = candidates(tune, cell, "block")
    console = Console(record=True, width=200, quiet=False, file=None)
    finding = tune.tune(cell, found, "cuda", 2, console)
    tune.show([finding], H200, console)
    return finding, console.export_text()


def test_the_fastest_are_timed_again_and_the_second_look_counts(tune, measured):
    asked = measured(
        {"copy": 9.0, "onepass": 20.0, "block threads=128": 10.0, "block threads=512": 12.0},
        {"copy": 9.0, "onepass": 20.0, "block threads=128": 19.0, "block threads=512": 16.0},
    )
    finding, text = tuned(tune)
    assert asked[0][1] == gpu_run.QUICK
    assert asked[1] == (["block threads=128", "block threads=512"], gpu_run.FULL)
    assert finding.best.name == "block threads=512"
    assert finding.gain == pytest.approx(20 / 16)
    assert "# softmax 4096x4096 bfloat16 20.0 as planned, 16.0 with block threads=512 (1.25x)." in text
    assert "# H200, " in text


def test_a_first_look_that_was_luck_is_no_gain(tune, measured):
    measured({"copy": 9.0, "onepass": 20.0, "block threads=128": 10.0}, {"copy": 9.0, "onepass": 15.0})
    finding, text = tuned(tune)
    assert finding.best is None
    assert finding.gain == 1
    assert "# softmax 4096x4096 bfloat16 15.0 as planned." in text


def test_what_cannot_be_timed_is_said(tune, measured):
    measured({"copy": 9.0, "onepass": 20.0, "block threads=128": None}, {"copy": 9.0, "onepass": 15.0})
    _, text = tuned(tune)
    assert "block threads=128 failed: no" in text
    measured({"copy": 9.0})
    with pytest.raises(RuntimeError, match="the planner's choice cannot be timed"):
        tuned(tune)


def test_a_dry_run_needs_no_gpu_and_no_torch():
    code = f"""
import sys
sys.argv = ["tune", "128x262144", "32x128256", "--device", "h200", "--dry-run", "--algorithm", "split"]
try:
    __import__("runpy").run_path({str(TOOL)!r}, run_name="__main__")
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("softmax 128x262144 float32, ")
    assert "the planner's: cluster: " in lines[0]
    assert any(line.startswith("  split staged=True threads=512 resident=1: split: ") for line in lines)
    assert sum(line.startswith("softmax ") for line in lines) == 2
    assert lines[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["128y4"], 2, "SHAPE '128y4'"),
        (["128x4", "--device", "h200"], 2, "add --dry-run"),
        (["128x4", "--device", "tpu", "--dry-run"], 2, "'tpu' is not known"),
        (["128x4", "--device", "cuda:x"], 2, "expected cpu, cuda or cuda:1"),
        (["128x4", "--dim", "5", "--device", "h200", "--dry-run"], 2, "dim 5"),
    ],
)
def test_wrong_usage_says_what_would_be_right(command, arguments, code, complaint):
    done = command(*arguments)
    assert done.exit_code == code
    assert complaint in done.output


def test_without_a_gpu_that_is_said(command, tune, monkeypatch):
    def no_gpu(ordinal):
        raise tune.CudaError("onepass: no NVIDIA driver")

    monkeypatch.setattr(tune, "read_device", no_gpu)
    done = command("128x4")
    assert done.exit_code == 1
    assert "no NVIDIA driver" in done.output
    assert "--dry-run --device h200" in done.output


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_views(tune, command, op):
    """What is tried of a transposed input, or dy, turns squares, as the planner's choice does."""
    cell = GpuCell("tune", op, (2048, 1024), "a test", -1, "float32", view=View(order=(1, 0)), peers=())
    found = candidates(tune, cell)
    assert "turned<" in found.chosen.kernel
    turned = [plan for plan in found.others.values() if "turned<" in plan.kernel]
    assert {plan.cluster for plan in turned} >= {1, 2, 4, 8} and len(turned) < len(found.others)
    result = command("2048x1024", "--op", op, "--view", "order1.0", "--dry-run", "--device", "h200")
    assert result.exit_code == 0 and "float32, order 1.0" in result.output and "turned=True" in result.output


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
def test_views_with_rows_that_go_through_shared_memory(tune, op):
    cell = GpuCell("tune", op, (8, 32768, 21), "a test", -1, "bfloat16", view=View(order=(0, 2, 1)), peers=())
    found = candidates(tune, cell)
    assert "ByRows" in found.chosen.kernel
    tried = [dict(plan.shape) for plan in found.others.values() if "ByRows" in plan.kernel]
    assert {shape["pack"] for shape in tried} == {1, 2, 4} and {shape["across"] for shape in tried} == {8, 16, 32, 64}
    assert all(shape["across"] in (8, 16, 32, shape["threads"]) for shape in tried)


def test_a_view_that_is_none(command):
    result = command("64x64", "--view", "sideways", "--dry-run", "--device", "h200")
    assert result.exit_code == 2 and "--view 'sideways'" in result.output
