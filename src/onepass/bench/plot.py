"""The picture of a run: how much of the speed of memory each contender reaches, over shape."""

from __future__ import annotations

from typing import Any, BinaryIO

# One colour and one marker (and its letter) per contender, whoever takes part: Okabe and Ito's palette, which
# colour-blind eyes tell apart.
_LOOKS = {
    "onepass": ("#D55E00", "o", "\u25cf"),
    "torch": ("#0072B2", "s", "\u25a0"),
    "onnxruntime": ("#009E73", "^", "\u25b2"),
    "jax": ("#CC79A7", "D", "\u25c6"),
    "numpy": ("#56B4E9", "v", "\u25bc"),
    "scipy": ("#8C8C8C", "P", "\u271a"),
}
_INK, _FAINT = "#222222", "#D9D9D9"


def draw(document: dict[str, Any], stream: BinaryIO, file_format: str) -> None:
    """Draw the cells of one operation (softmax where it was measured), one panel per place of the result."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    op, cells = _cells_to_draw(document)
    panels = [
        (mode, heading)
        for mode, heading in (("fresh", "Result in fresh memory"), ("out", "Result into out="))
        if any(outcome["mode"] == mode for cell in cells for outcome in cell["outcomes"])
    ]
    width = max(5.0, 1.2 + 0.7 * len(cells)) * max(1, len(panels))
    figure = Figure(figsize=(width, 6.4), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.12)
    axes = figure.subplots(1, max(1, len(panels)), sharey=True, squeeze=False)[0]
    for axis, (mode, heading) in zip(axes, panels, strict=False):
        _panel(axis, cells, mode, heading)
    axes[0].set_ylabel("share of the copy bandwidth", color=_INK, fontsize=11)
    title = f"{op} on a CPU: fraction of memory bandwidth, over shape"
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, color=_INK, weight="bold")
    figure.supxlabel(_caption(document), fontsize=8.5, color="#666666", x=0.01, ha="left")
    figure.savefig(stream, format=file_format)


def _cells_to_draw(document: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    measured = [cell for cell in document["cells"] if cell["outcomes"]]
    drawable = [cell for cell in measured if cell["group"] != "calls"] or measured
    ops = [cell["op"] for cell in drawable]
    op = "softmax" if "softmax" in ops or not ops else ops[0]
    same = [cell for cell in drawable if cell["op"] == op]
    main = [cell for cell in same if cell["group"] == op]  # without the odd widths and the strided ones
    return op, sorted(main or same, key=lambda cell: (not _is_plain(cell), cell["length"]))


def _is_plain(cell: dict[str, Any]) -> bool:
    return bool(cell["dim"] == -1 and cell["dtype"] == "float32")


def _panel(axis: Any, cells: list[dict[str, Any]], mode: str, heading: str) -> None:
    places = range(len(cells))
    ends: list[tuple[float, str]] = []
    for peer, (colour, marker, _) in reversed(_LOOKS.items()):
        heights = [fraction_of_copy(cell, peer, mode) for cell in cells]
        if all(height is None for height in heights):
            continue
        ours = peer == "onepass"
        # Rows of float32 from short to long are one scale: a line. Another dtype or dim stands for itself: a point.
        points = [float("nan") if height is None else height for height in heights]
        scale = sum(_is_plain(cell) for cell in cells)
        look = {"color": colour, "zorder": 3 if ours else 2, "clip_on": False}
        axis.plot(places[:scale], points[:scale], linewidth=3 if ours else 1.5, **look)
        axis.plot(places, points, marker=marker, markersize=9 if ours else 6, linestyle="none", **look)
        last = max(place for place in places if heights[place] is not None)
        ends.append((float(heights[last] or 0.0), peer))
    axis.axhline(1, color=_INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axis.text(-0.4, 1.015, "a copy of the same bytes", fontsize=9, color=_INK, va="bottom")
    axis.set_title(heading, loc="left", fontsize=11.5, color=_INK, pad=10)
    axis.set_xlim(-0.45, len(cells) - 0.55)
    axis.set_xticks(places, [_tick(cell) for cell in cells], fontsize=8.5, color=_INK)
    axis.set_ylim(0, max(1.1, *(height * 1.05 for height, _ in ends)) if ends else 1.1)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.grid(axis="y", color=_FAINT, linewidth=0.6)
    axis.tick_params(length=0, labelcolor=_INK)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#999999")
    _name_the_lines(axis, ends)


def _name_the_lines(axis: Any, ends: list[tuple[float, str]]) -> None:
    """Write each contender's name at the right, level with its last point, pushed apart where names would overlap."""
    gap = 0.045 * axis.get_ylim()[1]
    for height, peer in _apart(sorted(ends), gap):
        colour, _, letter = _LOOKS[peer]
        axis.annotate(
            f"{letter} {peer}",
            (1, height),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=11 if peer == "onepass" else 9.5,
            weight="bold" if peer == "onepass" else "normal",
            color=colour,
            annotation_clip=False,
        )


def _apart(ends: list[tuple[float, str]], gap: float) -> list[tuple[float, str]]:
    """Heights at least `gap` apart, in the same order, each crowd of names centred on its points.

    >>> [round(height, 2) for height, _ in _apart([(0.5, "a"), (0.5, "b"), (0.9, "c")], 0.1)]
    [0.45, 0.55, 0.9]
    """
    crowds: list[tuple[list[float], list[str]]] = []
    for height, name in ends:
        heights, names = [height], [name]
        while crowds and _top(crowds[-1][0], gap) + gap > _bottom(heights, gap):
            below = crowds.pop()
            heights, names = below[0] + heights, below[1] + names
        crowds.append((heights, names))
    return [
        (_bottom(heights, gap) + position * gap, name)
        for heights, names in crowds
        for position, name in enumerate(names)
    ]


def _bottom(heights: list[float], gap: float) -> float:
    """The lowest name of a crowd: centred on its points, but not below the axis."""
    return max(0.0, sum(heights) / len(heights) - gap * (len(heights) - 1) / 2)


def _top(heights: list[float], gap: float) -> float:
    return _bottom(heights, gap) + gap * (len(heights) - 1)


def fraction_of_copy(cell: dict[str, Any], peer: str, mode: str) -> float | None:
    """Of a contender's timing; None without one."""
    for outcome in cell["outcomes"]:
        if outcome["peer"] == peer and outcome["mode"] == mode:
            fraction: float | None = outcome.get("fraction_of_copy")
            return fraction
    return None


def _tick(cell: dict[str, Any]) -> str:
    """`[4096, 1024]` as two short lines; a dtype or dim that is not plain is said below."""
    sizes = [short_size(size) for size in cell["shape"]]
    half = len(sizes) // 2
    lines = ["\u00d7".join(sizes[:half]), "\u00d7" * (half > 0) + "\u00d7".join(sizes[half:])]
    lines += [cell["dtype"]] if cell["dtype"] != "float32" else []
    lines += [f"dim {cell['dim']}"] if cell["dim"] != -1 else []
    lines += [f"{name} {value}" for name, value in cell.get("view", {}).items()]
    return "\n".join(lines)


def short_size(size: int) -> str:
    """16777216 as 16M: exact multiples only."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def _caption(document: dict[str, Any]) -> str:
    here, settings = document["machine"], document["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in document["contenders"].items() if version)
    return f"{here['processor']}, {here['isa']}, threads: {settings['threads']}, {document['date'][:10]}; {versions}"
