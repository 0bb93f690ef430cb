"""Heat maps of the plane: the share of a copy's speed over rows and columns, a panel for each contender and dtype."""

from __future__ import annotations

from typing import Any

from onepass.bench.plot import fraction_of_copy, short_size

INK = "#222222"
_MISSING = "#EEEEEE"
_COLOURS = "viridis"  # even steps to the eye, and to one that tells red and green not apart
_DARK_BELOW = 0.45  # of the scale: figures are white there


def of_plane(cell: dict[str, Any]) -> bool:
    """Whether a cell belongs to the plane, and someone was timed."""
    timed = any("seconds" in outcome for outcome in cell["outcomes"] if outcome["mode"] == "fresh")
    return bool(cell["group"].startswith("plane") and timed)


def draw_heat(figure: Any, cells: list[dict[str, Any]], contenders: list[str]) -> None:
    """A row of panels for each dtype, a panel for each contender that has timings; fresh results, as users call, one
    scale."""
    names = [name for name in contenders if any(fraction_of_copy(cell, name, "fresh") is not None for cell in cells)]
    dtypes = list(dict.fromkeys(cell["dtype"] for cell in cells))
    rows = sorted({cell["shape"][0] for cell in cells})
    columns = sorted({cell["shape"][1] for cell in cells})
    axes = figure.subplots(len(dtypes), len(names), sharex=True, sharey=True, squeeze=False)
    image = None
    for line, dtype in zip(axes, dtypes, strict=True):
        for axis, name in zip(line, names, strict=True):
            found = {
                (rows.index(cell["shape"][0]), columns.index(cell["shape"][1])): fraction_of_copy(cell, name, "fresh")
                for cell in cells
                if cell["dtype"] == dtype
            }
            image = _panel(axis, found, len(rows), len(columns))
            axis.set_xticks(range(len(columns)), map(short_size, columns), rotation=60, ha="right", fontsize=8)
            axis.set_yticks(range(len(rows)), map(short_size, rows), fontsize=8)
        line[0].set_ylabel(f"{dtype}\nrows", fontsize=11, color=INK)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(name, loc="left", fontsize=12, color=INK, weight="bold" if name == "onepass" else "normal")
    for axis in axes[-1]:
        axis.set_xlabel("columns", fontsize=9, color=INK)
    bar = figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01, format=lambda value, _: f"{value:.0%}")
    bar.set_label("time of a copy over time; hatched: no figure", fontsize=9, color=INK)
    bar.outline.set_visible(False)


def _panel(axis: Any, found: dict[tuple[int, int], float | None], rows: int, columns: int) -> Any:
    grid = [[float("nan")] * columns for _ in range(rows)]
    axis.set_facecolor(_MISSING)
    axis.patch.set(hatch="////", edgecolor="#CCCCCC")
    for (row, column), share in found.items():
        if share is not None:
            grid[row][column] = share
            ink = "white" if share < _DARK_BELOW else INK
            axis.text(column, row, f"{share * 100:.0f}", ha="center", va="center", fontsize=8, color=ink)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return axis.imshow(grid, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto", origin="lower")
