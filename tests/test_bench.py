"""The benchmark itself: its registry, its verification, its noise flags and what it writes. No timing is asserted."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from onepass import reference
from onepass.bench import list_cells, peers, report, run, run_benchmark
from onepass.bench.cells import CELLS, GROUPS, Cell
from onepass.bench.document import SCHEMA, describe_cell
from onepass.bench.results import CellReport, Outcome, geometric_mean, summarize
from onepass.bench.selection import CPU_ELEMENTS, sample, select
from onepass.bench.standing import standing
from onepass.bench.timing import Effort, Timing, Window, seed_of
from onepass.bench.verify import Verifier, WrongResult
from onepass.cli import app
from onepass.files import FileError

TINY = Effort(rounds=2, most_rounds=2, window_seconds=1e-4)


def cell_of(op="softmax", shape=(6, 40), **more):
    return Cell("made up", op, shape, "a test", **more)


def timing_of(seconds, noisy=False, count=5):
    return Timing(tuple(Window(seconds, 1, 0.5 if noisy else 0.0, noisy) for _ in range(count)))


def outcome_of(peer, mode, seconds, moved=1000):
    label = f"{peer} out=" if mode == "out" else peer
    return Outcome(label, peer, mode, f"{peer}(x)", moved, "ok", timing=timing_of(seconds))


# the registry


def test_every_cell_has_its_own_name_and_a_reason():
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    assert all(cell.why for cell in CELLS)
    assert all(-len(cell.shape) <= cell.dim < len(cell.shape) for cell in CELLS)
    assert [line.split()[0] for line in list_cells()] == names


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp", "sum", "amax"])
def test_every_operation_is_measured_on_every_main_shape_and_as_one_call(op):
    names = {cell.name for cell in CELLS}
    for rest in ("4096x1024", "1x16777216", "32x256x56x56-dim1", "4096x4096-bfloat16", "8x8-numpy", "8x8-torch"):
        assert f"{op}-{rest}" in names


def test_select_takes_names_groups_and_globs_and_names_what_is_near():
    assert [cell.name for cell in select(["sum-8x8-numpy"], quick=True)] == ["sum-8x8-numpy"]
    assert {cell.group for cell in select(["strided", "widths"], quick=False)} == {"strided", "widths"}
    assert {cell.op for cell in select(["log*-8x8-*"], quick=False)} == {
        "log_softmax",
        "logsumexp",
        "log_softmax_backward",
    }
    assert select(None, quick=False) == list(CELLS)
    assert 3 <= len(select(None, quick=True)) <= 8
    with pytest.raises(ValueError, match=r"'softmx-4096x1024'.*softmax-4096x1024"):
        select(["softmx-4096x1024"], quick=False)


def test_a_problem_that_no_table_has_is_spelled_as_names_are():
    asked = select(["sum-3x70x5-dim-2-bfloat16-numpy", "amax-9", "softmax-8x8-torch"], quick=False)
    assert [cell.name for cell in asked] == ["softmax-8x8-torch", "sum-3x70x5-dim-2-bfloat16-numpy", "amax-9"]
    first, second = asked[1:]
    assert (first.op, first.shape, first.dim, first.length) == ("sum", (3, 70, 5), -2, 70)
    assert (first.dtype, first.framework, first.group) == ("bfloat16", "numpy", "asked")
    assert (second.shape, second.dim, second.dtype, second.framework) == ((9,), -1, "float32", "any")
    for text in ("median-8x9", "sum-8x0", "sum-8x9-dim2", "sum-8x9-int8", "sum-8x9-dim0-", "sum-*x9"):
        with pytest.raises(ValueError, match="is named"):
            select([text], quick=False)


def test_a_sample_is_the_same_for_a_seed_and_has_sizes_of_all_magnitudes():
    cells = sample(400, 1, CPU_ELEMENTS, Cell)
    assert cells == sample(400, 1, CPU_ELEMENTS, Cell) != sample(400, 2, CPU_ELEMENTS, Cell)
    assert len({cell.name for cell in cells}) == 400
    assert {cell.dtype for cell in cells} == {"float32", "bfloat16"}
    assert {cell.op for cell in cells} == {cell.op for cell in CELLS}
    lengths = sorted(cell.length for cell in cells)
    assert lengths[0] < 5 and lengths[-1] > 1 << 20
    inners = [cell.shape[2] for cell in cells if len(cell.shape) == 3]
    assert 150 < len(inners) < 250 and min(inners) == 2
    sizes = [np.prod(cell.shape) for cell in cells]
    assert CPU_ELEMENTS[0] // 2 <= min(sizes) and max(sizes) <= CPU_ELEMENTS[1]


def test_bytes_moved_count_the_input_and_the_result():
    assert cell_of(shape=(4, 8)).moved_bytes == 2 * 4 * 8 * 4
    assert cell_of("sum", (4, 8, 2), dim=1, dtype="bfloat16").moved_bytes == (4 * 8 * 2 + 4 * 2) * 2
    assert cell_of("sum", (4, 8, 2), dim=1).result_shape == (4, 2)
    assert cell_of("softmax_backward", (4, 8)).moved_bytes == 3 * 4 * 8 * 4
    assert len(GROUPS) == len({cell.group for cell in CELLS})


# verification


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp", "sum", "amax"])
@pytest.mark.parametrize(("shape", "dim"), [((6, 40), -1), ((3, 50, 4), 1), ((1, 3000), -1)])
def test_the_reference_itself_passes_and_a_small_error_does_not(op, shape, dim):
    cell = cell_of(op, shape, dim=dim)
    data = peers.make_data(cell, "numpy")
    verifier = Verifier(cell, data.x_numpy)
    right = getattr(reference, op)(data.x_numpy, dim).astype(np.float32)
    assert verifier.error(right) <= min(1.0, verifier.tolerance)
    with np.errstate(all="ignore"):
        assert verifier.error(right * np.float32(1.001)) > verifier.tolerance
    assert verifier.error(np.zeros_like(right)) > verifier.tolerance


@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
@pytest.mark.parametrize(("shape", "dim"), [((6, 40), -1), ((3, 50, 4), 1), ((1, 3000), -1)])
def test_a_gradient_passes_and_a_small_error_does_not(op, shape, dim):
    data = peers.make_data(cell_of(op, shape, dim=dim), "numpy")
    verifier = Verifier(data.cell, data.x_numpy, beside=() if data.dy_numpy is None else (data.dy_numpy,))
    right = getattr(reference, op)(data.dy_numpy, data.x_numpy, dim).astype(np.float32)
    assert verifier.error(right) <= 1
    assert verifier.error(right * np.float32(1.001)) > verifier.tolerance
    assert verifier.error(np.zeros_like(right)) > verifier.tolerance


def test_gradients_have_a_cell_for_every_shape_of_softmax():
    shapes = {(cell.shape, cell.dim, cell.dtype) for cell in CELLS if cell.group in ("softmax", "strided")}
    for op in ("softmax_backward", "log_softmax_backward"):
        assert {
            (cell.shape, cell.dim, cell.dtype) for cell in select(["backward"], quick=False) if cell.op == op
        } == shapes


def test_an_error_in_the_last_row_alone_is_seen():
    cell = cell_of(shape=(1 << 17, 32))
    assert cell.checked_rows < 1 << 17
    data = peers.make_data(cell, "numpy")
    result = reference.softmax(data.x_numpy).astype(np.float32)
    result[-1, 0] *= 1.01
    assert Verifier(cell, data.x_numpy).error(result) > 1000


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda y: y.astype(np.float64), "returned float64"),
        (lambda y: y[:-1], r"expected float32 \(6, 40\)"),
        (lambda y: np.where(np.arange(40) == 7, np.float32("nan"), y), "unwritten"),
    ],
    ids=["dtype", "shape", "unwritten"],
)
def test_a_wrong_array_is_refused(spoil, complaint):
    data = peers.make_data(cell_of(), "numpy")
    verifier = Verifier(data.cell, data.x_numpy)
    with pytest.raises(WrongResult, match=complaint):
        verifier.error(spoil(reference.softmax(data.x_numpy).astype(np.float32)))


def peer_that(compute, name="injected", mode="fresh"):
    def prepare(data):
        names = {"compute": compute, "x": data.x_numpy, "out": data.out_numpy}
        return [peers.Contender(name, mode, "compute(x, out)", names, data.cell.moved_bytes)]

    return peers.Peer(name, ("numpy",), ("any", "numpy"), prepare)


def test_a_wrong_contender_is_reported_and_not_timed():
    def raises(x, out):
        raise RuntimeError("no such kernel\nsecond line")

    def broken(data):
        raise ImportError("half installed")

    injected = [
        peer_that(lambda x, out: np.zeros_like(x), "zeros"),
        peer_that(lambda x, out: out.fill(0.025), "uniform", "out"),
        peer_that(lambda x, out: None, "idle", "out"),
        peer_that(raises, "raises"),
        peers.Peer("broken", ("numpy",), ("any",), broken),
    ]
    found = run.measure(cell_of(), [peers.PEERS["onepass"], *injected], TINY)
    outcomes = {outcome.label: outcome for outcome in found.outcomes}
    assert outcomes["onepass"].status == outcomes["onepass out="].status == "ok"
    for label, status, note in (
        ("zeros", "wrong", "ULP"),
        ("uniform out=", "wrong", "ULP"),
        ("idle out=", "wrong", "unwritten"),
        ("raises", "failed", "RuntimeError: no such kernel"),
        ("broken", "failed", "ImportError: half installed"),
    ):
        assert outcomes[label].status == status
        assert note in outcomes[label].note
        assert outcomes[label].timing is None
        assert found.ratio(outcomes[label]) is None
    assert outcomes["raises"].note.endswith("kernel")


def test_a_copy_that_copies_nothing_is_found(monkeypatch):
    data = peers.make_data(cell_of(), "numpy")
    for contender in peers.copies(data):
        peers.check_copy(contender)
    monkeypatch.setattr(peers, "_engine", SimpleNamespace(copy=lambda *arguments: None))
    with pytest.raises(RuntimeError, match="differs"):
        peers.check_copy(peers.copies(data)[0])


@pytest.mark.parametrize("name", [name for name in peers.PEERS if not peers.PEERS[name].missing])
@pytest.mark.parametrize(
    "op", ["softmax", "log_softmax", "logsumexp", "sum", "amax", "softmax_backward", "log_softmax_backward"]
)
@pytest.mark.parametrize(("shape", "dim", "dtype"), [((5, 33), -1, "float32"), ((3, 20, 4), 1, "bfloat16")])
def test_every_installed_contender_is_right(name, op, shape, dim, dtype):
    cell = cell_of(op, shape, dim=dim, dtype=dtype)
    data = peers.make_data(cell, "torch" if name == "torch" else "numpy")
    verifier = Verifier(cell, data.x_numpy, beside=() if data.dy_numpy is None else (data.dy_numpy,))
    for contender in peers.PEERS[name].prepare(data):
        assert verifier.error(contender.result(data.out_numpy)) <= verifier.tolerance, contender.statement


VIEWS = {
    "softmax-30x41-order1.0": (1, 30),
    "log_softmax-30x41-pitch48-bfloat16": (48, 1),
    "sum-6x5x40-dim1-order2.0.1-pitch7-step2": None,  # seven elements of a line are too few
    "sum-6x5x40-dim1-order2.0.1-pitch90-step2": (2, 3600, 90),
    "softmax_backward-30x41-step3": (123, 3),
}


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_taken_of_memory_and_measured(name, framework):
    """Of the input, or of dy; not by those who would copy them first."""
    if VIEWS[name] is None:
        with pytest.raises(ValueError, match="is named"):
            select([name], quick=False)
        return
    (cell,) = select([name], quick=False)
    assert cell.name == name
    data = peers.make_data(cell, framework)
    viewed, rest = (data.x_numpy, []) if data.dy_numpy is None else (data.dy_numpy, [data.x_numpy])
    assert tuple(stride // viewed.itemsize for stride in viewed.strides) == VIEWS[name]
    assert all(array.flags.c_contiguous for array in (data.out_numpy, *rest))
    verifier = Verifier(cell, data.x_numpy, beside=() if data.dy_numpy is None else (data.dy_numpy,))
    for peer in ("onepass", *(["torch"] if framework == "torch" else ["numpy"])):
        assert peers.PEERS[peer].takes(cell)
        for contender in peers.PEERS[peer].prepare(data):
            assert verifier.error(contender.result(data.out_numpy)) <= verifier.tolerance, contender.statement
    for copy in peers.copies(data):
        peers.check_copy(copy)
    assert not peers.PEERS["onnxruntime"].takes(cell)
    assert peers.PEERS["onnxruntime"].takes(cell_of())


def test_a_view_is_said_of_its_cell():
    (cell,) = select(["softmax-30x41-dim0-order1.0-step2"], quick=False)
    assert report.format_cell(cell) == "softmax 30 x 41 float32, dim 0, order 1.0, step 2"
    assert describe_cell(CellReport(cell), brief=True)["view"] == {"order": "1.0", "step": "2"}
    for text in ("softmax-30x41-order0", "softmax-30x41-order1.1", "softmax-30x41-order1.0.2", "softmax-30x41-pitch40"):
        with pytest.raises(ValueError, match="is named"):
            select([text], quick=False)


def test_every_cell_draws_orders_of_its_own(monkeypatch):
    assert len({seed_of(cell.name) for cell in CELLS}) == len(CELLS)
    seeds = []
    monkeypatch.setattr(run, "interleave", lambda timers, effort, seed: seeds.append(seed) or {})
    for shape in ((3, 4), (3, 5)):
        run.measure(Cell("x", "softmax", shape, "why"), [peers.PEERS["onepass"]], TINY)
    assert len(set(seeds)) == 2


# results


def test_ratios_compare_like_with_like():
    outcomes = (
        *(outcome_of("copy", "copy", 1e-6), outcome_of("copy nt", "copy", 0.5e-6)),
        *(outcome_of("onepass", "fresh", 2e-6), outcome_of("onepass", "out", 1e-6)),
        *(outcome_of("torch", "fresh", 8e-6), outcome_of("torch", "out", 2e-6)),
    )
    found = CellReport(cell_of(), outcomes=outcomes)
    assert found.copy_limit == pytest.approx(1000 / 0.5e-6 / 1e9)
    assert [round(found.fraction(o), 6) for o in outcomes] == [0.5, 1.0, 0.25, 0.5, 0.0625, 0.25]
    assert [found.ratio(o) for o in outcomes[4:]] == pytest.approx([4.0, 2.0])
    slower = CellReport(cell_of(), outcomes=(outcome_of("onepass", "fresh", 1e-6), outcome_of("torch", "fresh", 1e-6)))
    means = summarize([describe_cell(one, brief=False) for one in (found, slower)])["made up"]["torch"]
    assert (means["cells"], means["ratio"], means["worst_ratio"]) == (2, pytest.approx(2.0), pytest.approx(1.0))
    assert geometric_mean([None]) is None


# end to end


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    paths = {kind: folder / f"run.{kind}" for kind in ("json", "html")}
    pytest.MonkeyPatch().setattr(run, "FULL", TINY)
    with pytest.MonkeyPatch().context() as settings:
        settings.setenv("ONEPASS_CACHE_DIR", str(folder))
        settings.setenv("ONEPASS_OTHER", "1")
        code = run_benchmark(cells=["softmax-8x8-numpy"], against=["numpy", "scipy"], **paths)
    return code, paths


@pytest.fixture(scope="module")
def document(one_run):
    return json.loads(one_run[1]["json"].read_text())


def test_one_cell_end_to_end(one_run, document):
    code, paths = one_run
    assert code == 0
    assert sorted(path.name for path in paths["json"].parent.iterdir()) == ["run.html", "run.json"]
    (cell,) = document["cells"]
    assert [outcome["label"] for outcome in cell["outcomes"]][:4] == ["copy", "copy nt", "onepass", "onepass out="]
    assert all(outcome["status"] == "ok" for outcome in cell["outcomes"])


def test_json_says_what_where_when_and_every_raw_number(document):
    assert document["schema"] == SCHEMA
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", document["date"])
    assert {"processor", "isa", "cores", "memory_bytes", "l2_bytes", "environment"} <= document["machine"].keys()
    environment = document["machine"]["environment"]
    assert environment["ONEPASS_OTHER"] == "1" and "ONEPASS_CACHE_DIR" not in environment  # a setting, and a folder
    assert {"rounds", "window_seconds", "threads", "quick"} <= document["settings"].keys()
    assert set(document["contenders"]) == {"onepass", "numpy", "scipy"}
    (cell,) = document["cells"]
    assert cell["algorithm"]
    assert cell["shape"] == [8, 8]
    for outcome in cell["outcomes"]:
        assert len(outcome["windows"]) == TINY.rounds
        assert all(window["seconds"] > 0 and window["calls"] >= 1 for window in outcome["windows"])
        assert outcome["gb_per_s"] == pytest.approx(outcome["moved_bytes"] / outcome["seconds"] / 1e9)
    assert document["summary"]["calls"]["numpy"]["cells"] == 1


def test_the_page_holds_the_data_and_asks_no_one_else(one_run, document):
    page = one_run[1]["html"].read_text()
    inline = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(inline) == document
    assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]|\bsrc=|@import|url\(", page)


def test_text_in_the_data_cannot_end_the_script(tmp_path, document):
    hostile = {**document, "onepass": "</script><script>alert(1)</script>"}
    report.write_html(hostile, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("</script>") == 2


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_drawn(tmp_path, document, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"run.{suffix}"
    report.write_plot(document, path)
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        assert "onepass" in path.read_text()


def test_wrong_usage_is_2_and_names_the_choices(capsys):
    for arguments, complaint in (
        ({"cells": ["softmax-8x8-nump"]}, "softmax-8x8-numpy"),
        ({"cells": ["softmax-8x8-dim2"]}, "spelled like softmax-64x1000x196-dim1"),
        ({"against": ["tensorflow"]}, "there are onepass, torch"),
        ({"repeats": 0}, "at least 1"),
        ({"samples": 0}, "samples is 0; expected at least 1"),
    ):
        assert run_benchmark(**arguments) == 2
        assert complaint in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "measure", lambda *arguments: pytest.fail("measured first"))
    for arguments, complaint in (
        ({"json": tmp_path / "absent" / "run.json"}, "is no directory"),
        ({"html": tmp_path}, "it is a directory"),
        ({"plot": tmp_path / "run.txt"}, "ends in .png"),
    ):
        assert run_benchmark(cells=["softmax-8x8-numpy"], **arguments) == 1
        assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_ends_with_where_it_is_behind_fresh_or_in_out():
    outcomes = [
        outcome_of(peer, mode, seconds * 1e-6)
        for peer, mode, seconds in (
            *(("onepass", "fresh", 5.0), ("onepass", "out", 4.0), ("torch", "fresh", 4.9)),  # 2% is no difference
            *(("torch", "out", 2.0), ("numpy", "out", 1.0), ("jax", "fresh", 4.0)),
        )
    ]
    cell = describe_cell(CellReport(cell_of(), algorithm="row", outcomes=tuple(outcomes)), brief=False)
    found = standing([cell], ["torch", "numpy", "jax"])
    assert (found["regions"], found["cells"]) == ({}, 1)
    assert [(one["peer"], one["algorithm"], one["times_slower"]) for one in found["behind"]] == [
        ("numpy out=", "row", pytest.approx(4.0)),
        ("jax", "row", pytest.approx(1.25)),
    ]
    assert standing([cell], ["torch"])["behind"][0]["peer"] == "torch out="


def test_a_sample_runs_from_the_command_line(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "FULL", TINY)
    monkeypatch.setattr(run, "CPU_ELEMENTS", (1 << 8, 1 << 12))
    path = tmp_path / "sample.json"
    done = CliRunner().invoke(app, ["bench", "--sample", "3", "--seed", "5", "--against", "numpy", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "behind the fastest peer" in done.output
    cells = json.loads(path.read_text())["cells"]
    assert [cell["name"] for cell in cells] == [cell.name for cell in sample(3, 5, (1 << 8, 1 << 12), Cell)]
    assert all(outcome["status"] == "ok" for cell in cells for outcome in cell["outcomes"])


def test_a_wrong_result_of_onepass_is_exit_code_1(monkeypatch, capsys):
    wrong = dataclasses.replace(outcome_of("onepass", "fresh", 1.0), status="wrong", note="off by 1e6 ULP", timing=None)
    monkeypatch.setattr(run, "measure", lambda cell, *rest: CellReport(cell, outcomes=(wrong,)))
    assert run_benchmark(cells=["softmax-8x8-numpy"], against=["numpy"]) == 1
    assert "off by 1e6 ULP" in capsys.readouterr().out


def test_contenders_that_are_not_installed_are_named(monkeypatch, capsys):
    absent = peers.Peer("jax", ("no_such_package",), ("any",), lambda data: pytest.fail("was prepared"))
    monkeypatch.setitem(peers.PEERS, "jax", absent)
    monkeypatch.setattr(run, "FULL", TINY)
    assert run_benchmark(cells=["sum-8x8-numpy", "sum-8x8-torch"], against=["jax"]) == 0
    shown = capsys.readouterr().out
    assert "jax not installed (pip install no_such_package)" in shown
    assert "skipped: its input is a torch tensor" in shown


def test_importing_the_benchmark_imports_no_contender():
    heavy = {"torch", "jax", "matplotlib", "onnxruntime", "scipy"}
    code = f"import sys, onepass.bench; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp", "sum", "amax", "softmax_backward"])
def test_a_shape_may_have_one_axis(op, tmp_path):
    out = tmp_path / "run.json"
    assert run_benchmark(True, [f"{op}-1000-numpy"], ["numpy"], json=out, repeats=1) == 0
    (cell,) = json.loads(out.read_text())["cells"]
    ours = [outcome for outcome in cell["outcomes"] if outcome["peer"] == "onepass"]
    assert ours and all(outcome["status"] == "ok" and outcome["error_ulp"] >= 0 for outcome in ours)


def test_a_cell_that_cannot_be_measured_does_not_take_the_others_along(monkeypatch, tmp_path, capsys):
    measure = run.measure

    def failing(cell, peers, effort):
        if cell.shape == (9, 9):
            raise MemoryError("of this cell")
        return measure(cell, peers, effort)

    monkeypatch.setattr(run, "measure", failing)
    out = tmp_path / "run.json"
    cells = ["softmax-8x9-numpy", "softmax-9x9-numpy", "softmax-9x8-numpy"]
    assert run_benchmark(True, cells, ["numpy"], json=out, repeats=1) == 1
    document = json.loads(out.read_text())
    skipped = {cell["name"]: cell["skipped"] for cell in document["cells"]}
    assert skipped == {cells[0]: "", cells[1]: "it failed: MemoryError: of this cell", cells[2]: ""}
    assert "of this cell" in capsys.readouterr().out


def test_what_cannot_be_written_is_said_before_measuring(monkeypatch, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.json")
    monkeypatch.setattr(run, "measure", None)
    assert run_benchmark(True, ["softmax-8x8-numpy"], ["numpy"], json=tmp_path / "pipe.json") == 1
    assert "pipe.json: it is not a file" in capsys.readouterr().err


def test_a_full_disk_is_one_line(monkeypatch, tmp_path, capsys):
    @contextlib.contextmanager
    def full(path):
        raise FileError(f"{path}: No space left on device")
        yield

    monkeypatch.setattr("onepass.files.atomic.replacing", full)
    assert run_benchmark(True, ["softmax-8x8-numpy"], ["numpy"], json=tmp_path / "run.json", repeats=1) == 1
    said = capsys.readouterr().err
    assert "run.json: No space left on device" in said and said.count("\n") == 1


def test_cells_of_a_device_that_is_none():
    result = CliRunner().invoke(app, ["bench", "--list", "--device", "tpu"])
    assert result.exit_code == 2
    assert "device is 'tpu'" in result.output
