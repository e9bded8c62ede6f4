"""How figures look: one style for every panel, lines and bars with their intervals, and the plots of a table."""

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from math import ceil, floor, log2
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intervals import Interval
from benchmarks.table import Cell, Plot, Table, grouped

INK, FAINT, GRID = "#2b2b2b", "#6b6b6b", "#e3e3e3"
COLOURS = ("#1d6f8a", "#d1495b", "#e9b44c", "#5b8c5a", "#7a5c99", "#9db4c0", "#b5651d", "#444444", "#f0a6b8")
ACROSS = 2
"""Panels of a table in a row."""
LOGARITHMIC = 1e-7
"""Nats below which a divergence is drawn on the axis."""
MOST_TICKS = 8
"""Places along a panel that are named one by one."""
SHARES = ("eta", "gap closed", "flips restored", "same answer", "right", "agrees", "accuracy")
TIME = " ms"
MARKS = "os^DvP"
LETTERS = 52
"""Of names side by side below a panel, before they are turned."""

TableRow = dict[str, Cell]


def make_panels(
    count: int, title: str, *, width: float = 4.6, height: float = 3.7, across: int | None = None, margin: float = 0.0
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, side by side or `across` in a row; sizes in inches, of a panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(across or count, count)
    rows = -(-count // columns)
    size = (width * columns + margin, height * rows)
    figure = Figure(figsize=size, dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def style_panel(axes: Any, title: str, across: str, up: str, *, grid: str = "y") -> None:
    """Give a panel its title, labels and grid."""
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.set_xlabel(across, fontsize=8.5, color=FAINT)
    axes.set_ylabel(up, fontsize=8.5, color=FAINT)
    axes.tick_params(colors=INK, labelsize=8, length=0)
    if grid:
        axes.grid(True, axis=grid, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def save_figure(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure into a folder as a PNG of 64 colours, which takes half the bytes; return its path."""
    drawn, path = BytesIO(), folder / f"{name}.png"
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def importable(name: str) -> bool:
    """Return whether a package can be imported."""
    return find_spec(name) is not None


def draw_table(table: Table, model: str, folder: Path) -> Path | None:
    """Write a table's plots as one PNG and return its path; None if it has none, or matplotlib is not installed."""
    if not importable("matplotlib"):
        return None
    panes = [
        (plot, setting, rows)
        for plot in table.plots
        for setting, rows in grouped(table.records, plot.split).items()
        if any(_drawn(row, plot) for row in rows)
    ]
    if not panes:
        return None
    figure, axes = make_panels(len(panes), f"{table.title}: {model}", width=5.2, height=3.3, across=ACROSS, margin=1.2)
    colours = _colours(table)
    for panel, (plot, setting, rows) in zip(axes, panes, strict=True):
        (_bars if plot.bars else _lines)(panel, plot, rows, colours)
        _range(panel, plot)
        style_panel(panel, "" if setting is None else str(setting), plot.x, plot.y)
    handles = {name: handle for panel in axes for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    entries = {str(group): handles[str(group)] for group in colours if str(group) in handles}
    if entries:
        corner = axes[min(ACROSS, len(axes)) - 1]
        corner.legend(entries.values(), entries, frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1, 1))
    return save_figure(figure, folder, f"{model}-{table.name}")


def _colours(table: Table) -> dict[Cell, str]:
    """Return a colour for every group that is drawn somewhere."""
    drawn = dict.fromkeys(
        row[plot.by] for row in table.records for plot in table.plots if plot.by is not None and _drawn(row, plot)
    )
    return {group: COLOURS[place % len(COLOURS)] for place, group in enumerate(drawn)}


def _drawn(row: TableRow, plot: Plot) -> bool:
    value = _number(row[plot.y])
    # A divergence of exactly nothing, as re-prefill's from itself, has no place on a logarithmic axis.
    return value is not None and (value != 0 or plot.y != "KL")


def _lines(axes: Any, plot: Plot, rows: Sequence[TableRow], colours: dict[Cell, str]) -> None:
    groups = grouped((row for row in rows if _drawn(row, plot)), plot.by)
    ticks = sorted({_across(row, plot) for row in rows if _number(row[plot.x]) is not None})
    # Lines that lie on one another stay apart by a little; where most places are one line's own, a place is exact.
    apart = (ticks[-1] - ticks[0]) * 0.012 if 0 < len(ticks) <= MOST_TICKS else 0.0
    # A group has the same mark on every panel, as it has the same colour.
    marks = {group: place for place, group in enumerate(colours)}
    for place, (group, own) in enumerate(groups.items()):
        points = sorted(
            ((_across(row, plot), row[plot.y]) for row in own if _number(row[plot.x]) is not None),
            key=lambda point: point[0],
        )
        if not points:
            continue
        across = [x + (place - (len(groups) - 1) / 2) * apart for x, _ in points]
        low, middle, high = zip(*(_spread(y, plot) for _, y in points), strict=True)
        colour, mark = colours.get(group, COLOURS[0]), MARKS[marks.get(group, 0) % len(MARKS)]
        label = None if group is None else str(group)
        axes.plot(across, middle, f"{mark}-", color=colour, markersize=4, linewidth=1.4, label=label)
        axes.vlines(across, low, high, color=colour, linewidth=1)
    if ticks:
        edge = max(0.05 * (ticks[-1] - ticks[0]), len(groups) * apart)
        axes.set_xlim(ticks[0] - edge, ticks[-1] + edge)
    if len(ticks) > MOST_TICKS and plot.doubling:
        ticks = [float(power) for power in range(ceil(ticks[0]), floor(ticks[-1]) + 1)]
    if len(ticks) <= MOST_TICKS:
        axes.set_xticks(ticks, [f"{2**tick if plot.doubling else tick:g}" for tick in ticks])


def _across(row: TableRow, plot: Plot) -> float:
    """Return where a row is on a panel of lines."""
    value = float(_number(row[plot.x]) or 0.0)
    return log2(value) if plot.doubling else value


def _bars(axes: Any, plot: Plot, rows: Sequence[TableRow], colours: dict[Cell, str]) -> None:
    names = list(dict.fromkeys(row[plot.x] for row in rows))
    groups = grouped((row for row in rows if _drawn(row, plot)), plot.by)
    width = 0.8 / max(1, len(groups))
    for place, (group, own) in enumerate(groups.items()):
        across = [names.index(row[plot.x]) + (place - (len(groups) - 1) / 2) * width for row in own]
        spreads = [_spread(row[plot.y], plot) for row in own]
        low, middle, high = np.array(spreads).T
        colour = colours.get(group, COLOURS[0])
        axes.bar(across, middle, width * 0.92, color=colour, label=None if group is None else str(group))
        axes.errorbar(across, middle, [middle - low, high - middle], fmt="none", ecolor=INK, elinewidth=0.9)
    room = LETTERS // len(names)
    if all(len(word) <= room for name in names for word in str(name).split()):
        axes.set_xticks(range(len(names)), [fill(str(name), room, break_long_words=False) for name in names])
    else:
        axes.set_xticks(range(len(names)), [str(name) for name in names], rotation=35, ha="right")


def _range(axes: Any, plot: Plot) -> None:
    if plot.y == "KL":
        from matplotlib.ticker import NullLocator

        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
        return
    low, high = axes.get_ylim()
    if plot.y in SHARES:
        low, high = min(low, -0.02), 1.05
        axes.set_ylim(low, high)
    elif plot.y.endswith(TIME) and low > 0:
        axes.set_ylim(0, high)
    if low < -0.02 and high > 0:
        axes.axhline(0, color=FAINT, linewidth=0.8)


def _spread(cell: Cell, plot: Plot) -> tuple[float, float, float]:
    """Return low, middle and high of a cell; the same where it has no interval."""
    floor = LOGARITHMIC if plot.y == "KL" else float("-inf")
    middle = max(floor, _number(cell) or 0.0)
    if isinstance(cell, Interval):
        return min(middle, max(floor, cell.low)), middle, max(middle, cell.high)
    return middle, middle, middle


def _number(cell: Cell) -> float | None:
    value = cell.value if isinstance(cell, Interval) else cell
    return None if value is None or isinstance(value, str) or value != value else float(value)
