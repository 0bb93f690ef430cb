"""tools/lane_times.py as far as it goes without a GPU: the problems it draws, its file, and what it fits."""

import io
import random

import pytest
from helpers import imported_tool
from rich.console import Console
from typer.testing import CliRunner

from onepass.cuda.device import by_name
from onepass.cuda.lane_cost import Costs, LaneCosts, Way, microseconds
from onepass.cuda.lanes import direct_ways

H200 = by_name("h200")


@pytest.fixture(scope="module")
def tool():
    with imported_tool("lane_times") as module:
        yield module


def drawn(tool, seed, count=60):
    source = random.Random(seed)
    return [tool.at_random(source) for _ in range(count)]


def test_a_seed_draws_the_same_problems_of_every_kind(tool):
    cells = drawn(tool, 3)
    assert cells == drawn(tool, 3) != drawn(tool, 4)
    assert {cell.op for cell in cells} == set(tool.OPS) and {cell.dtype for cell in cells} == set(tool.DTYPES)
    assert all(cell.shape[0] * cell.shape[1] * tool.ITEMSIZE[cell.dtype] <= tool.MOST_BYTES for cell in cells)


def test_ways_are_what_plans_say_they_are(tool):
    """Each different, none by blocks, and the planner's among them or beside them."""
    for cell in drawn(tool, 5, 12):
        found = tool.candidates(cell, H200, tool.sweeps(cell), tool.BY_LANES)
        ways = [tool.way_of(plan, cell.shape[1]) for plan in found.others.values()]
        assert None not in ways and len(set(ways)) == len(ways) > 0
        for way in ways:
            assert way.lanes * way.packs * way.pack * 2 > cell.shape[1] or cell.op == "logsumexp_backward"
        chosen = tool.way_of(found.chosen, cell.shape[1])
        assert chosen not in ways
        assert (chosen is None) == (found.chosen.algorithm not in tool.BY_LANES)


def made_up(tool, costs):
    """Times as they would be if ways cost that."""
    for cell in drawn(tool, 7, 40):
        problem = cell.op, cell.dtype, *cell.shape
        choice = tool.choice_of(tool.untimed(problem), H200)
        of = LaneCosts.of(choice)
        whole = tool.math.gcd(16 // choice.x_size, cell.shape[1])
        for way in direct_ways(choice, whole, "whole"):
            yield tool.Timed(*problem, way, round(4 + float(microseconds(of.work(way), costs(of.costs))), 2))


def test_a_file_holds_what_was_timed(tool, tmp_path):
    timed = list(made_up(tool, lambda costs: costs))
    tool.write(tmp_path / "times.csv", timed)
    assert tool.read(tmp_path / "times.csv") == timed


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("op\n", "no times"),
        ("op\nsoftmax,float32,10,20\n", ":2: expected the columns that measure writes"),
        ("op\nsoftmax,float32,ten,20,1,2,4,whole,1,0,3.5\n", "invalid literal"),
    ],
)
def test_other_files_are_refused(tool, tmp_path, text, says):
    (tmp_path / "times.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        tool.read(tmp_path / "times.csv")
    ran = CliRunner().invoke(tool.app, ["fit", str(tmp_path / "times.csv")])
    assert ran.exit_code == 2


def test_costs_are_found_that_choose_better(tool):
    """Times by costs that are far from those that are there: accesses nothing, rows and starts much more."""
    pytest.importorskip("torch")
    other = Costs(element=2.0, row=400.0, access=0.5, line=0.5, start=0.1)
    timed = list(made_up(tool, lambda _: other))
    before = tool.behind(H200, timed)
    said = io.StringIO()
    tool.fit_costs(H200, timed, 400, Console(file=said, width=200))
    mean = float(said.getvalue().split("by these costs ")[1].split()[0])
    assert sum(before) / len(before) > 1.02 > 1.01 > mean >= 1


def test_the_planner_is_behind_where_another_way_was_faster(tool):
    problem = "softmax", "float32", 50_000, 96
    planned = tool.way_of(tool.make_cuda_plan(tool.untimed(problem), H200, addresses=(0, 0)), 96)
    other = planned._replace(lanes=planned.lanes * 2)
    timed = [tool.Timed(*problem, planned, 12.0), tool.Timed(*problem, other, 10.0)]
    assert tool.behind(H200, timed) == [pytest.approx(1.2)]
    assert tool.behind(H200, timed[1:]) == []  # not timed
    assert isinstance(planned, Way)
