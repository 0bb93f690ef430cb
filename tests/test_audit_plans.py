"""tools/audit_plans.py as far as it goes without a GPU: the problems it draws, and what it makes of the times."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import imported_tool
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from onepass.bench.gpu_cells import GpuCell
from onepass.cuda.device import by_name

TOOLS = Path(__file__).parent.parent / "tools"
H200 = by_name("h200")


@pytest.fixture(scope="module")
def audit():
    with imported_tool("audit_plans") as module:
        yield module


@pytest.mark.parametrize("columns", [False, True])
def test_a_seed_draws_the_same_problems_of_all_sizes(audit, columns):
    def draw(seed):
        source = random.Random(seed)
        return [audit.at_random("softmax", "float32", columns, source) for _ in range(200)]

    cells = draw(3)
    assert cells == draw(3) != draw(4)
    assert {(len(cell.shape), cell.dim) for cell in cells} == {(3, 1) if columns else (2, -1)}
    elements = [math.prod(cell.shape) for cell in cells]
    assert all(audit.FEWEST_ELEMENTS <= n <= audit.MOST_ELEMENTS for n in elements)
    assert min(elements) < 1 << 16 and max(elements) > 1 << 25
    assert {cell.shape[-1] % 64 == 0 for cell in cells} == {False, True}


def test_each_problem_has_other_plans_of_several_algorithms(audit):
    source = random.Random(0)
    for op, columns in (("softmax", False), ("sum", True), ("log_softmax_backward", True)):
        found = [
            audit.candidates(audit.at_random(op, "bfloat16", columns, source), H200, audit.coarse_sweeps(op))
            for _ in range(4)
        ]
        assert all(one.chosen not in one.others.values() and one.others for one in found)
        assert len({plan.algorithm for one in found for plan in one.others.values()}) > 1


@pytest.fixture
def looked(audit, monkeypatch):
    """A look at a problem with these times of its looks, in microseconds; the looks it took."""
    cell = GpuCell("audit", "softmax", (4096, 4096), "a test", peers=())
    found = audit.candidates(cell, H200, audit.coarse_sweeps("softmax"))

    def look(*times):
        efforts = []

        def time_plans(cell, variants, effort, device, console):
            efforts.append((effort, [variant.name for variant in variants]))
            return {name: microseconds * 1e-6 for name, microseconds in times[len(efforts) - 1].items()}

        monkeypatch.setattr(audit, "time_plans", time_plans)
        return audit.look(cell, found, "cuda", 1.05, Console(quiet=True)), efforts

    return look


def test_a_problem_that_seems_behind_is_looked_at_again(audit, looked):
    first = {"copy": 9, "onepass": 20, "block threads=512": 15, "block threads=128": 12, "block threads=1024": 19}
    first["online threads=512"] = 40
    one, efforts = looked(first, {"copy": 9, "onepass": 20, "block threads=128": 19.5, "block threads=512": 16})
    assert efforts[1] == (audit.SECOND_LOOK, ["block threads=128", "block threads=512", "block threads=1024"])
    assert (one.best, one.behind) == ("block threads=512", pytest.approx(1.25))
    assert json.loads(audit.as_json(one))["again"]["block threads=512"] == 16e-6


def test_a_problem_that_is_not_behind_is_left(audit, looked):
    one, efforts = looked({"copy": 9, "onepass": 10, "block threads=128": 9.6})
    assert len(efforts) == 1
    assert one.best == "block threads=128"
    assert one.behind == pytest.approx(1.042, abs=1e-3)


def test_those_behind_are_shown_the_farthest_first(audit, looked):
    def look(best):
        times = {"copy": 9, "onepass": 10, "block threads=128": best}
        return looked(times, times)[0]

    some = [look(best) for best in (9.9, 8, 5)]
    console = Console(record=True, width=200, quiet=False, file=None)
    audit.show(some, 1.05, console)
    lines = console.export_text().splitlines()
    assert [line.split()[-2] for line in lines if line.startswith("softmax")] == ["2.00x", "1.25x"]
    assert lines[-1] == "3 problems: 2 behind by more than 1.05x, 1.362x in the mean"


def test_a_dry_run_needs_no_gpu():
    tool = [sys.executable, str(TOOLS / "audit_plans.py"), "--problems", "3", "--columns", "--op", "sum"]
    done = subprocess.run([*tool, "--device", "h200", "--dry-run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 problems, ")
    assert all(line.startswith("sum ") and ", dim 1, " in line and " other plans; " in line for line in lines[1:])
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--op", "nix", "--dry-run", "--device", "h200"], "--op nix: expected one of softmax"),
        (["--device", "h200"], "add --dry-run"),
        (["--device", "tpu", "--dry-run"], "'tpu' is not known"),
    ],
)
def test_wrong_usage_says_what_would_be_right(audit, arguments, complaint):
    app = Typer()
    app.command()(audit.main)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert complaint in done.output
