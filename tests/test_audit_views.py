"""tools/audit_views.py: the views it draws, what it makes of them on a CPU, and what it does not."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import imported_tool
from rich.console import Console

from onepass import _engine, call, call_gradients

TOOLS = Path(__file__).parent.parent / "tools"
SIZES = range(1 << 10, 1 << 14)


@pytest.fixture(scope="module")
def audit():
    pytest.importorskip("torch")
    with imported_tool("audit_views") as module:
        yield module


def drawn(audit, seed, n=300):
    source = random.Random(seed)
    return [audit.at_random(source, audit.KINDS, SIZES) for _ in range(n)]


def test_a_seed_draws_the_same_views_of_every_kind(audit):
    import torch

    views = drawn(audit, 3)
    assert views == drawn(audit, 3) != drawn(audit, 4)
    assert {view.kind for view in views} == set(audit.KINDS)
    assert {view.op for view in views} == set(audit.OPS)
    assert all(math.prod(view.shape) in SIZES for view in views)
    for view in views:
        x = view.taken_of(torch.empty(view.shape))
        plain = x.is_contiguous() and view.kind not in ("converted", "sliced", "sliced and permuted")
        of_ones = 1 in x.shape or view.kind == "broadcast"  # dims of one element lie any way
        assert not plain or of_ones or "permuted" in view.kind, view
        assert (view.to is not None) == (view.kind == "converted")


def test_what_is_timed_is_right(audit):
    """All kinds and operations, on this machine."""
    console = Console(record=True, width=200)
    found = list(audit.audit(drawn(audit, 5, 120), "cpu", console))
    assert len(found) == 120, console.export_text()
    assert all(set(took) == {"onepass", "torch", "copy"} and min(took.values()) > 0 for _, took in found)
    audit.show(found, console)
    text = console.export_text()
    assert "120  all" in text
    for view, took in found:
        assert (str(view) in text) == (took["torch"] < took["onepass"])


def test_its_problems_are_those_of_the_calls(audit, monkeypatch):
    """What is compiled ahead is what is called."""
    planned = []
    for module in (call, call_gradients):
        real = module.make_plan

        def planning(problem, *rest, real=real):
            planned.append(problem)
            return real(problem, *rest)

        monkeypatch.setattr(module, "make_plan", planning)
    for view in drawn(audit, 7, 60):
        planned.clear()
        _engine.forget_all()
        calls, _ = audit.calls_of(view, "cpu", 0)
        calls["onepass"]()
        assert planned == [audit.problem_of(view)], view


def test_a_wrong_result_is_said_and_not_timed(audit, monkeypatch):
    real = audit.onepass.softmax

    def wrong(x, dim, *, dtype, out):
        result = real(x, dim, dtype=dtype, out=out)
        out.view(-1)[-1] += 1
        return result

    monkeypatch.setattr(audit.onepass, "softmax", wrong)
    console = Console(record=True, width=200)
    views = [view for view in drawn(audit, 6) if view.op == "softmax"][:3]
    assert list(audit.audit(views, "cpu", console)) == []
    assert console.export_text().count("from the exact result") == 3


def run(*args):
    return subprocess.run(
        [sys.executable, str(TOOLS / "audit_views.py"), *args], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command(audit, tmp_path):
    path = tmp_path / "found.json"
    done = run("--views", "5", "--elements", "1024:4096", "--kind", "permuted", "--json", str(path))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 5
    assert all(line["kind"] == "permuted" and line["seconds"]["torch"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--kind", "twisted"], "--kind twisted: expected one of permuted"),
        (["--elements", "9"], "--elements 9: expected"),
        (["--elements", "100:10"], "--elements 100:10: expected"),
        (["--elements", "many"], "audit_views:"),
    ],
)
def test_wrong_usage(args, said):
    done = run("--views", "1", *args)
    assert done.returncode == 2
    assert said in done.stderr
