"""The plane of rows x columns: its cells, and what is concluded from a run's document. No GPU is needed."""

import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from onepass.bench import gpu_run, run, show_results
from onepass.bench.document import NotOneRun, describe_cell, document, read_documents
from onepass.bench.gpu_cells import GPU_CELLS, GpuCell
from onepass.bench.gpu_heat import draw_heat
from onepass.bench.gpu_peers import GPU_PEERS
from onepass.bench.gpu_plot import draw
from onepass.bench.peers import Peer
from onepass.bench.results import CellReport, Outcome
from onepass.bench.selection import GPU_ELEMENTS, sample, select
from onepass.bench.standing import standing
from onepass.bench.timing import Timing, Window
from onepass.cli import app
from onepass.cuda.device import by_name

RECORDED = Path(__file__).parent.parent / "benchmarks/results/h200"
GPU = {**asdict(by_name("h200")), "driver": "CUDA 13.0"}


def outcome_of(peer, seconds, mode="fresh", moved=1000):
    timing = Timing((Window(seconds, 1, None, False),) * 3)
    return Outcome(f"{peer} out=" if mode == "out" else peer, peer, mode, f"{peer}(x)", moved, "ok", timing=timing)


def cell_of(shape, seconds, op="softmax", dim=-1, group="made up", dtype="float32"):
    """A measured cell: seconds by contender; the copy's is its bound."""
    cell = GpuCell(group, op, shape, "a test", dim, dtype)
    outcomes = tuple(outcome_of(peer, s, "copy" if peer == "copy" else "fresh") for peer, s in seconds.items())
    return describe_cell(CellReport(cell, "torch", "block", 1.0, outcomes), brief=True)


# the registry


def test_the_plane_goes_from_one_short_row_to_4_gib():
    plane = [cell for cell in GPU_CELLS if cell.group.startswith("plane_")]
    assert len(plane) >= 110
    shapes = {cell.shape for cell in plane}
    assert {(1, 32), (65536, 32), (1, 4194304), (65536, 8192), (4096, 50257), (64, 128256)} <= shapes
    assert max(cell.input_bytes for cell in plane) == 4 << 30
    for dtype in ("float32", "bfloat16"):
        group = select([f"plane_{dtype}"], False, GPU_CELLS)
        assert len(group) >= 55
        assert all(cell.dtype == dtype and cell.dim == -1 and len(cell.shape) == 2 for cell in group)
    assert select(["plane_*"], False, GPU_CELLS) == plane


def test_cells_of_softmax_are_150_at_least():
    compared = [cell for cell in GPU_CELLS if cell.op == "softmax" and cell.group != "calls" and cell.peers]
    assert len({(cell.shape, cell.dim, cell.dtype) for cell in compared}) >= 150


@pytest.mark.parametrize(
    ("group", "taking_part"),
    [
        ("plane_float32", {"onepass", "torch", "torch.compile", "quack", "liger"}),
        ("seeds", set(GPU_PEERS)),
        ("ablation", {"onepass", "torch"}),
        ("calls", set(GPU_PEERS) - {"torch.compile"}),
    ],
)
def test_a_cell_says_which_libraries_take_part(monkeypatch, group, taking_part):
    asked = set()
    peers = [
        Peer(name, (), ("any",), lambda data, name=name: asked.add(name) or [])  # nothing to time
        for name in GPU_PEERS
    ]
    cell = select([group], False, GPU_CELLS)[0]
    monkeypatch.setattr(gpu_run, "bounds", lambda data: [])
    gpu_run._prepared(gpu_run.GpuData(cell, None, (), None), peers)
    assert asked == taking_part


# where onepass stands


def test_a_sample_on_a_gpu_is_of_its_cells():
    cells = sample(50, 0, GPU_ELEMENTS, GpuCell)
    assert all(isinstance(cell, GpuCell) and cell.name.startswith("sample-") for cell in cells)
    assert select(["sum-8x9-dim0"], False, GPU_CELLS, GpuCell)[0].name == "asked-sum-8x9-dim0"


def test_standing_compares_fresh_results_of_the_same_cell():
    cells = [
        cell_of((8192, 8192), {"copy": 100e-6, "onepass": 100e-6, "torch": 400e-6, "quack": 98e-6}),
        cell_of((4, 8192), {"copy": 5e-6, "onepass": 6e-6, "torch": 6e-6, "quack": 5e-6}),
        cell_of((16, 32, 64), {"copy": 10e-6, "onepass": 12e-6, "torch": 120e-6}, dim=1),
        cell_of((16, 32), {"copy": 10e-6, "onepass": 20e-6, "torch": 10e-6}, op="log_softmax"),
        cell_of((8, 8), {"copy": 1e-6, "onepass": 9e-6, "torch": 1e-6}, group="calls"),
    ]
    found = standing(cells, ["torch", "quack"], GPU)
    regions = found["regions"]
    assert {name: region["cells"] for name, region in regions.items()} == {
        "all": 3,
        "few rows": 1,
        "large": 1,
        "other dims": 1,
    }
    assert regions["all"]["times_faster"]["torch"] == pytest.approx((4 * 1 * 10) ** (1 / 3))
    assert regions["all"]["over_copy"]["median"] == pytest.approx(1.2)
    assert regions["large"]["over_copy"] == {
        "median": pytest.approx(1.0),
        "worst": pytest.approx(1.0),
        "worst_cell": cells[0]["name"],
    }
    assert regions["few rows"]["times_faster"]["quack"] == pytest.approx(5 / 6)
    assert regions["other dims"]["times_faster"]["quack"] is None
    # 98 of 100 is within 3%, a call's cost is no time of the GPU, and the worst comes first.
    assert found["cells"] == 4
    assert [(one["cell"], one["peer"]) for one in found["behind"]] == [
        (cells[3]["name"], "torch"),
        (cells[1]["name"], "quack"),
    ]
    assert found["behind"][0]["times_slower"] == pytest.approx(2)


def test_rows_that_no_chip_holds_are_not_asked_to_run_at_a_copys_speed():
    cells = [cell_of((2, 33554432), {"copy": 130e-6, "onepass": 215e-6})]
    assert standing(cells, [], GPU)["regions"]["large"]["cells"] == 0


def test_what_is_not_timed_is_behind_nobody():
    cell = cell_of((8192, 8192), {"copy": 1e-4, "onepass": 1e-4, "torch": 2e-4})
    wrong = asdict(replace(outcome_of("quack", 1e-6), status="wrong", timing=None))
    cell["outcomes"].append({key: value for key, value in wrong.items() if key != "timing"})
    assert standing([cell], ["torch", "quack"], GPU)["behind"] == []


# reading what was written


def write(path, cells, **changes):
    reports = document([], list(GPU_PEERS.values()), {"threads": 1}, GPU)
    path.write_text(json.dumps(reports | {"cells": cells} | changes))
    return path


def test_parts_of_a_run_become_one(tmp_path, capsys):
    first = write(tmp_path / "a.json", [cell_of((8, 32), {"onepass": 1e-6, "torch": 2e-6})])
    second = write(
        tmp_path / "b.json",
        [cell_of((8, 32), {"onepass": 1e-6, "torch": 4e-6}), cell_of((8, 64), {"onepass": 1e-6, "torch": 4e-6})],
    )
    assert show_results([first, second], json=tmp_path / "all.json") == 0
    merged = json.loads((tmp_path / "all.json").read_text())
    assert [cell["shape"] for cell in merged["cells"]] == [[8, 32], [8, 64]]
    assert merged["summary"]["made up"]["torch"]["ratio"] == pytest.approx(4)  # the last of two measurements
    assert "made up  onepass" in capsys.readouterr().out


def test_a_part_may_have_asked_fewer_contenders(tmp_path):
    asked = [{"torch": "2.11", "jax": None}, {"torch": "2.11", "jax": "0.11"}, {"jax": None, "quack": "0.6"}]
    parts = [write(tmp_path / f"{i}.json", [], contenders=contenders) for i, contenders in enumerate(asked)]
    assert read_documents(parts)["contenders"] == {"torch": "2.11", "jax": "0.11", "quack": "0.6"}
    other = write(tmp_path / "other.json", [], contenders={"quack": "0.5"})
    with pytest.raises(NotOneRun, match=r"version of quack 0\.5, there 0\.6"):
        read_documents([*parts, other])


def test_the_command_shows_results_and_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("onepass.bench.run_benchmark", lambda *_: pytest.fail("measured"))
    part = write(tmp_path / "a.json", [cell_of((8, 32), {"copy": 1e-6, "onepass": 1.25e-6, "torch": 2.5e-6})])
    done = CliRunner().invoke(app, ["bench", "--from", str(part), "--html", str(tmp_path / "run.html")])
    assert done.exit_code == 0
    assert (tmp_path / "run.html").exists()
    lines = [line.split() for line in done.output.splitlines()]
    assert ["onepass", "over", "torch", "2.00x", "2.00x"] in lines  # of all cells, and of those with few rows
    assert ["time", "over", "a", "copy's,", "median", "1.25x", "1.25x"] in lines


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"onepass": "0.0.1"}, "onepass 0.0.1, there 0.1.0"),
        ({"machine": {"gpu": GPU | {"name": "A100"}}}, "device A100, there H200"),
        ({"contenders": {"torch": "0.1"}}, "version of torch 0.1, there 2.11"),
        ({"schema": 99}, "schema 99"),
        ({"machine": 3}, "holds no results"),
    ],
)
def test_what_is_not_of_one_run_is_not_shown_together(tmp_path, capsys, changes, complaint):
    paths = [
        write(tmp_path / "a.json", [], contenders={"torch": "2.11", "jax": "0.11"}),
        write(tmp_path / "b.json", [], **changes),
    ]
    with pytest.raises(NotOneRun, match=complaint):
        read_documents(paths)
    assert show_results(paths) == 2
    assert "onepass: error: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tables", "kernels", "backward"])
def test_recorded_results_can_be_read(name, capsys):
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    read = read_documents([RECORDED / f"{name}.json"])
    assert read["cells"] == recorded["cells"]
    assert read["summary"] == recorded["summary"]  # concluded anew
    assert show_results([RECORDED / f"{name}.json"]) == 0
    assert "more than 3% behind the fastest peer" in capsys.readouterr().out


def test_an_interrupted_run_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    done = []

    def measure(cell, *_):
        if done:
            raise KeyboardInterrupt
        done.append(cell)
        return CellReport(cell, outcomes=(outcome_of("onepass", 1e-6),))

    monkeypatch.setattr(run, "measure", measure)
    path = tmp_path / "run.json"
    assert run.run_benchmark(cells=["sum-8x8-numpy", "softmax-8x8-numpy"], against=["numpy"], json=path) == 1
    assert [cell["name"] for cell in json.loads(path.read_text())["cells"]] == [done[0].name]
    assert "interrupted after 1 of 2 cells" in capsys.readouterr().err


# the picture


@pytest.fixture
def plane():
    """Two rows by three columns in two dtypes; quack has not taken part in one cell and failed in another."""
    cells = [
        cell_of((rows, columns), {"copy": 1e-6, "onepass": 1e-6, "quack": 2e-6}, group=f"plane_{dtype}", dtype=dtype)
        for dtype in ("float32", "bfloat16")
        for rows, columns in ((1, 32), (1, 1000), (64, 32), (64, 1000), (64, 4096))
    ]
    cells[1]["outcomes"].pop()
    failed = asdict(replace(outcome_of("quack", 1.0), status="failed", note="no such width", timing=None))
    cells[3]["outcomes"][-1] = {key: value for key, value in failed.items() if key != "timing"}
    return cells


def test_heat_maps_have_one_scale_and_show_what_is_missing(plane):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    draw_heat(figure, plane, ["onepass", "torch", "quack"])
    panels = [axis for axis in figure.axes if axis.images]
    assert [axis.get_title(loc="left") for axis in panels] == ["onepass", "quack", "", ""]  # torch has no figures
    assert {axis.images[0].get_clim() for axis in panels} == {(0, 1)}
    nan = float("nan")
    shown = [axis.images[0].get_array().filled(nan).tolist() for axis in panels]
    np.testing.assert_allclose(shown[0], [[1, 1, nan], [1, 1, 1]])
    np.testing.assert_allclose(shown[1], [[0.5, nan, nan], [0.5, nan, 0.5]])
    np.testing.assert_allclose(shown[3], [[0.5, 0.5, nan], [0.5, 0.5, 0.5]])
    assert [text.get_text() for text in panels[1].texts] == ["50", "50", "50"]
    assert [label.get_text() for label in panels[2].get_xticklabels()] == ["32", "1000", "4K"]


@pytest.mark.parametrize("also", [[], ["seeds"], ["seeds", "oneflow", "calls"]])
def test_a_picture_has_the_plane_and_the_other_groups(plane, also):
    pytest.importorskip("matplotlib")
    others = [cell_of((128, 2048), {"copy": 1e-6, "onepass": 1e-6}, group=group) for group in also]
    run_document = document([], list(GPU_PEERS.values()), {"threads": 1}, GPU) | {"cells": plane + others}
    stream = io.BytesIO()
    draw(run_document, stream, "png")
    assert stream.getvalue().startswith(b"\x89PNG")
