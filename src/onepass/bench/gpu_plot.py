"""The picture of a run on a GPU: heat maps of the plane, and a panel for each other group, the share of a copy's speed
over the length of a row."""

from __future__ import annotations

from typing import Any, BinaryIO

from onepass.bench import views
from onepass.bench.gpu_heat import INK, draw_heat, of_plane

_COLOURS = {
    "onepass": "#D55E00",
    "torch": "#0072B2",
    "torch.compile": "#56B4E9",
    "quack": "#009E73",
    "liger": "#CC79A7",
    "cupy": "#8C8C8C",
    "jax": "#332288",
    "online": "#E69F00",
    "three_pass": "#999933",
}
_OTHERS = ("#BBBBBB", "#88CCEE", "#117733", "#DDCC77", "#882255", "#44AA99", "#AA4499", "#661100")


def draw(document: dict[str, Any], stream: BinaryIO, file_format: str) -> None:
    """Draw every group of cells that has outcomes; what a call costs the host is no share of anything."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plane = [cell for cell in document["cells"] if of_plane(cell)]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in document["cells"]:
        if cell["outcomes"] and cell["group"] != "calls" and not of_plane(cell):
            groups.setdefault((cell["group"], cell["dtype"]), []).append(cell)
    heights = [3.4 * len({cell["dtype"] for cell in plane}), 4.2 * -(-len(groups) // 2)]
    drawn = [height for height in heights if height] or [4.2]
    width = 15.0 if plane else 7.5 * min(2, max(1, len(groups)))
    figure = Figure(figsize=(width, sum(drawn)), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    gpu = document["machine"]["gpu"]
    figure.suptitle(f"{gpu['name']}: share of a copy's speed", x=0.01, ha="left", fontsize=14, color=INK, weight="bold")
    versions = ", ".join(f"{name} {version}" for name, version in document["contenders"].items() if version)
    caption = f"{gpu['driver']}, {document['date'][:10]}; {versions}"
    figure.supxlabel(caption, fontsize=8, color="#666666", x=0.01, ha="left")
    parts = list(figure.subfigures(len(drawn), 1, squeeze=False, height_ratios=drawn).ravel())
    if plane:
        draw_heat(parts.pop(0), plane, list(document["contenders"]))
    if groups:
        _lines(parts.pop(), groups)
    figure.savefig(stream, format=file_format)


def _lines(figure: Any, groups: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    columns = min(2, len(groups))
    axes = figure.subplots(-(-len(groups) // columns), columns, squeeze=False).ravel()
    for axis, ((group, dtype), cells) in zip(axes, groups.items(), strict=False):
        _panel(axis, f"{group}, {dtype}", cells)
    for axis in axes[len(groups) :]:
        axis.set_visible(False)


def _panel(axis: Any, title: str, cells: list[dict[str, Any]]) -> None:
    """Of a contender with a fresh result and one into out=, the faster."""
    places = range(len(cells))
    names = dict.fromkeys(o["peer"] for cell in cells for o in cell["outcomes"] if o["mode"] in ("fresh", "out"))
    others = iter(_OTHERS * 4)
    for name in names:
        shares = [
            max((o["fraction_of_copy"] for o in cell["outcomes"] if o["peer"] == name and "seconds" in o), default=None)
            for cell in cells
        ]
        ours = name == "onepass"
        look = {"color": _COLOURS.get(name) or next(others), "zorder": 3 if ours else 2, "label": name}
        points = [float("nan") if share is None else share for share in shares]
        axis.plot(places, points, marker="o", markersize=6 if ours else 4, linewidth=2.5 if ours else 1.2, **look)
    axis.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axis.set_title(title, loc="left", fontsize=11, color=INK)
    axis.set_xticks(places, [_tick(cell) for cell in cells], fontsize=7.5, rotation=35, ha="right")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.legend(fontsize=8, frameon=False, ncols=2)
    axis.spines[["top", "right"]].set_visible(False)


def _tick(cell: dict[str, Any]) -> str:
    sizes = "\u00d7".join(map(str, cell["shape"]))
    dim = f", dim {cell['dim']}" if cell["dim"] != -1 else ""
    return f"{cell['op'] + ' ' if cell['op'] != 'softmax' else ''}{sizes}{dim}{views.said(cell.get('view', {}))}"
