"""The page of `onepass bench --html` in headless Chromium: it renders, and what hover, keys and filters do is seen."""

import json
import struct
from base64 import b64decode
from pathlib import Path

import pytest
from webdriver import CHROMIUM, DRIVER, Browser

from onepass.bench import show_results

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium or chromedriver is not on this machine (apt-get install chromium chromium-driver)",
)

RESULTS = Path(__file__).parent.parent / "benchmarks/results"
TABLES = RESULTS / "h200/tables.json"  # softmax of two dims in float32 and float16, and some of four
BACKWARD = RESULTS / "h200/backward.json"
CPU = RESULTS / "xeon-6-106-2.8ghz-2core/softmax.json"


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of some results."""

    def open_page(*results):
        assert show_results(results, html=tmp_path / "page.html") == 0
        browser.open(tmp_path / "page.html")
        return browser

    yield open_page
    assert browser.complaints() == []  # no script failed, nothing was asked of anyone


def panels(browser):
    return browser.run("return [...document.querySelectorAll('#heat figcaption')].map(c => c.textContent)")


def tip(browser):
    """What the tip says; None where none is shown."""
    return browser.run("const t = document.getElementById('tip'); return t.checkVisibility() ? t.innerText : null")


def square(browser, panel, cell):
    return browser.find(f'svg[aria-label="{panel}"] .square[aria-label^="{cell}"]')


def recorded_cell(name, path=TABLES):
    (cell,) = (cell for cell in json.loads(path.read_text())["cells"] if cell["name"] == name)
    return cell


def recorded(name, peer, path=TABLES):
    return next(o for o in recorded_cell(name, path)["outcomes"] if o["peer"] == peer and o["mode"] == "fresh")


def test_a_run_on_a_gpu_has_a_heat_map_for_each_contender_and_dtype(show):
    page = show(TABLES)
    contenders = ("onepass", "torch", "torch.compile", "quack", "liger", "cupy", "jax")
    assert panels(page) == [f"{name}, {dtype}" for dtype in ("float32", "float16") for name in contenders]
    squares = "return [...document.querySelectorAll('svg[aria-label=\"onepass, float32\"] .square')].length"
    cells = json.loads(TABLES.read_text())["cells"]
    assert page.run(squares) == sum(len(cell["shape"]) == 2 and cell["dtype"] == "float32" for cell in cells)
    width, height = struct.unpack(">II", b64decode(page.screenshot())[16:24])
    assert (width, height) > (1000, 500)
    # Nothing sticks out of the window, and every square has its place in it.
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert page.run("return [...document.querySelectorAll('.square')].every(s => s.getBoundingClientRect().width > 10)")


def test_hover_shows_the_cell(show):
    page = show(TABLES)
    assert tip(page) is None
    page.hover(square(page, "torch, float32", "softmax 128 × 131072 "))
    torch = recorded("seeds-softmax-128x131072", "torch")
    assert tip(page).splitlines() == [
        "softmax 128 × 131072 float32, torch",
        f"{torch['seconds'] * 1e6:.1f} us, {torch['gb_per_s']:.0f} GB/s, {torch['fraction_of_copy']:.0%} of copy",
        f"onepass is {torch['onepass_is_times_faster']:.2f}x",
    ]
    page.hover(square(page, "onepass, float32", "softmax 128 × 131072 "))
    assert "onepass\n" in tip(page)
    assert tip(page).endswith(f"ran {recorded_cell('seeds-softmax-128x131072')['algorithm']}")
    page.hover(page.find("h1"))
    assert tip(page) is None


def test_a_contender_without_a_figure_is_struck_out_and_says_why(show):
    page = show(TABLES)
    missing = square(page, "quack, float32", "softmax 128 × 4194304 ")
    assert page.run("return arguments[0].querySelectorAll('line').length", missing) == 1
    page.hover(missing)
    assert tip(page).splitlines() == ["softmax 128 × 4194304 float32, quack", "does not take part"]


def test_the_colour_is_the_share_of_a_copy(show):
    page = show(TABLES)
    colour = "return arguments[0].querySelector('rect').getAttribute('fill').match(/[0-9]+/g).map(Number)"
    fast = page.run(colour, square(page, "onepass, float32", "softmax 49152 × 1024 "))  # at the speed of a copy
    slow = page.run(colour, square(page, "cupy, float32", "softmax 49152 × 1024 "))  # at a tenth of it
    assert fast[0] > 200 and fast[1] > 200 and fast[2] < 80
    assert max(slow[:2]) < 90


def test_the_keyboard_reaches_every_cell_of_a_panel(show):
    page = show(TABLES)
    page.run("document.getElementById('heat-contender').focus()")
    page.press("Tab")
    first = tip(page)
    assert first.startswith("softmax 128 × 2048 float32, onepass")
    page.press("Right")
    assert tip(page).startswith("softmax 128 × 32728 float32, onepass")
    page.press("Left", "Left")
    assert tip(page) == first  # there is nothing further left in that row
    page.press("Escape")
    assert tip(page) is None
    page.press("Tab")  # to the next panel: one stop each
    assert ", torch\n" in tip(page)


def test_filters_by_dtype_contender_and_operation(show, tmp_path):
    # Records are made anew one at a time, and pages are of one run: this is as if these were.
    backward, tables = (json.loads(path.read_text()) for path in (BACKWARD, TABLES))
    as_if = tmp_path / "backward.json"
    as_if.write_text(json.dumps(tables | {"cells": backward["cells"]}))
    page = show(TABLES, as_if)
    everything = panels(page)
    page.choose("#heat-dtype", "float16")
    assert panels(page) == [name for name in everything if name.endswith("float16")]
    page.choose("#heat-contender", "torch")
    assert panels(page) == ["torch, float16"]
    page.choose("#heat-dtype", "all")
    assert panels(page) == ["torch, float32", "torch, float16"]
    page.choose("#heat-dtype", "bfloat16")
    assert panels(page) == []  # softmax was not measured in it
    page.choose("#heat-op", "softmax_backward")
    assert panels(page) == ["torch, bfloat16"]
    page.hover(square(page, "torch, bfloat16", "softmax_backward 32768 × 4096 "))
    assert tip(page).startswith("softmax_backward 32768 × 4096 bfloat16, torch")


@pytest.mark.parametrize(("theme", "lighter"), [("dark", "color"), ("light", "backgroundColor")])
def test_both_themes(show, theme, lighter):
    page = show(TABLES)
    page.set_theme(theme)
    script = (
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor].map(c => c.match(/[0-9]+/)[0])"
    )
    ink, paper = map(int, page.run(script))
    assert abs(ink - paper) > 150
    assert (ink > paper) == (lighter == "color")


@pytest.mark.parametrize(("results", "heat"), [(TABLES, True), (CPU, False)], ids=["gpu", "cpu"])
def test_bars_and_table_are_there_for_every_run(show, results, heat):
    page = show(results)
    assert page.run("return document.getElementById('plane').checkVisibility()") == heat
    cell = json.loads(results.read_text())["cells"][0]
    bars = "return [...document.querySelectorAll('#chart .bar')].map(b => b.querySelector('text').textContent)"
    assert page.run(bars) == [o["label"] for o in cell["outcomes"] if o.get("fraction_of_copy") is not None]
    page.hover(page.find("#chart .bar:nth-child(3)"))
    assert ("rounds" if heat else "windows: ") in tip(page)
    count = "return document.querySelectorAll('#rows tr').length"
    everything = page.run(count)
    assert everything == sum(len(c["outcomes"]) for c in json.loads(results.read_text())["cells"])
    page.choose("#contender", "onepass")
    assert 0 < page.run(count) < everything
