"""tools/measurements.py: what docs/measurements.md and README.md show is what the records say."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools/measurements.py"
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks/results").exists(), reason="a source archive has no records")


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("measurements", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(tool, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["measurements.py", *arguments])
    tool.main()


def test_the_committed_tables_are_of_the_committed_records(tool, monkeypatch, capsys):
    run(tool, monkeypatch, "--check")
    assert capsys.readouterr().out == "up to date\n"


def test_what_is_stale_is_said_and_written(tool, monkeypatch, capsys, tmp_path):
    readme, page = tool.README.read_text(), tool.PAGE.read_text()
    emptied = re.sub(r"(<!-- measured: \S+ -->\n).*?(<!-- /measured)", r"\1\2", readme, flags=re.DOTALL)
    assert emptied != readme
    (tmp_path / "README.md").write_text(emptied)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "README", tmp_path / "README.md")
    monkeypatch.setattr(tool, "PAGE", tmp_path / "measurements.md")
    with pytest.raises(SystemExit, match=r"not what the records say: measurements.md, README.md"):
        run(tool, monkeypatch, "--check")
    assert (tmp_path / "README.md").read_text() == emptied, "--check writes nothing"
    run(tool, monkeypatch)
    assert capsys.readouterr().out == "written: measurements.md, README.md\n"
    assert (tmp_path / "README.md").read_text() == readme
    assert (tmp_path / "measurements.md").read_text() == page


def outcome(label, seconds, ratio=None, *, mode="fresh", share=None, status="ok"):
    return {
        **{"label": label, "peer": label.removesuffix(" out="), "mode": mode, "status": status, "seconds": seconds},
        **{"onepass_is_times_faster": ratio, "fraction_of_copy": share},
    }


CELL = {
    **{"name": "softmax-8x8", "group": "softmax", "op": "softmax_backward", "shape": [8, 8], "dim": 0},
    **{"dtype": "float32", "algorithm": "row", "input": "torch"},
    "outcomes": [
        outcome("copy", 1e-3, mode="copy"),
        outcome("onepass", 1.25e-3, 1.0, share=0.8),
        outcome("onepass out=", 1e-3, 1.0, mode="out"),
        outcome("torch", 2.5e-3, 2.0),
        outcome("torch out=", 0.9e-3, 0.9, mode="out"),
        outcome("three_pass out=", 3e-3, 3.0, mode="out"),
        outcome("scipy", 1e-3, 1.0, status="wrong"),
    ],
}


def test_a_row_of_a_processor(tool):
    head, _, row = tool.table_of(False, [CELL], ["torch", "scipy"])
    assert head == "|  | algorithm | onepass | torch | scipy | of a copy | is, of torch | is, of scipy |"
    assert row == (
        "| gradient of softmax 8 x 8 float32, dim 0 | `row` | 1.25 / 1 | 2.5 / 0.9 | - | 80% | 2.00x / 0.90x | - |"
    )


def test_a_row_of_a_gpu_has_the_copy_and_variants(tool):
    head, _, row = tool.table_of(True, [CELL], ["torch"])
    assert head == "|  | algorithm | onepass | torch | copy | of a copy | is, of torch | variants |"
    assert row.endswith("| `row` | 1250 | 2500 | 1000 | 80% | 2.00x | three_pass 3.00 |")


def test_who_is_ahead_is_named(tool):
    named = tool.behind_in({"cells": [CELL]}, ["torch"])
    assert named[0] == "Ahead by more than 3%, of 1 cells:"
    assert named[-1] == "- gradient of softmax 8 x 8 float32, dim 0: torch out= (0.90x)"
    nobody = json.loads(json.dumps(CELL))
    nobody["outcomes"] = nobody["outcomes"][:4]
    assert tool.behind_in({"cells": [nobody]}, ["torch"]) == ["No contender is more than 3% ahead in any cell."]
