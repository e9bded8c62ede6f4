"""A plot for every table that says what of it to draw: a panel for each of its plots and settings."""

from collections.abc import Sequence
from math import log2
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.deficit.drawing import COLOURS, FAINT, INK, save, style
from benchmarks.table import Cell, Plot, Table
from emblema.eval.metrics import Interval, Share

SETTING = "setting"
ACROSS = 2
LOGARITHMIC = 1e-7
"""Nats below which a divergence is drawn on the axis."""
SHARES = ("eta", "gap closed", "flips restored", "same answer", "right", "accuracy")
TIME = " ms"
MARKS = "os^DvP"
LETTERS = 52
"""Of names side by side below a panel, before they are turned."""

Row = dict[str, Cell]


def draw_table(table: Table, model: str, folder: Path) -> Path | None:
    """Write a table's plots as one PNG; None if it has none."""
    wanted = [(plot, setting, rows) for plot in table.plots for setting, rows in _panes(table, plot)]
    wanted = [one for one in wanted if any(_drawn(row, one[0]) for row in one[2])]
    if not wanted:
        return None
    figure, axes = _panels(len(wanted), f"{table.title}: {model}")
    colours = _colours(table)
    for panel, (plot, setting, rows) in zip(axes, wanted, strict=True):
        (_bars if plot.bars else _lines)(panel, plot, rows, colours)
        _range(panel, plot)
        style(panel, "" if setting is None else str(setting), plot.x, plot.y)
    entries = _entries(axes, [str(group) for group in colours])
    if entries:
        corner = axes[min(ACROSS, len(axes)) - 1]
        corner.legend(entries.values(), entries, frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1, 1))
    return save(figure, folder, f"{model}-{table.name}")


def _panels(count: int, title: str) -> tuple[Any, list[Any]]:
    """A figure with panels, at most two side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across, down = min(ACROSS, count), -(-count // ACROSS)
    figure = Figure(figsize=(5.2 * across + 1.2, 3.3 * down), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    axes = list(figure.subplots(down, across, squeeze=False).ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def _entries(axes: Sequence[Any], order: Sequence[str]) -> dict[str, Any]:
    """Every group that is drawn, once, with what it is drawn in."""
    found: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return dict(sorted(found.items(), key=lambda one: order.index(one[0])))


def _panes(table: Table, plot: Plot) -> list[tuple[Cell, list[Row]]]:
    """What each panel of a plot is about, and its rows; one panel of them all where nothing splits them."""
    split = plot.split
    if split is None and SETTING in table.columns and not any(SETTING in (one.x, one.by) for one in table.plots):
        split = SETTING
    rows = [row for row in table.records if plot.only is None or row[plot.only[0]] == plot.only[1]]
    if split is None:
        return [(None if plot.only is None else plot.only[1], rows)] if rows else []
    found: dict[Cell, list[Row]] = {}
    for row in rows:
        found.setdefault(row[split], []).append(row)
    return list(found.items())


def _colours(table: Table) -> dict[Cell, str]:
    """A colour for every group that is drawn somewhere."""
    drawn = dict.fromkeys(
        row[plot.by] for row in table.records for plot in table.plots if plot.by is not None and _drawn(row, plot)
    )
    return {group: COLOURS[place % len(COLOURS)] for place, group in enumerate(drawn)}


def _drawn(row: Row, plot: Plot) -> bool:
    value = _number(row[plot.y])
    # A divergence of exactly nothing, as re-prefill's from itself, has no place on a logarithmic axis.
    return value is not None and (value != 0 or plot.y != "KL")


def _groups(plot: Plot, rows: Sequence[Row]) -> dict[Cell, list[Row]]:
    found: dict[Cell, list[Row]] = {}
    for row in rows:
        if _drawn(row, plot):
            found.setdefault(None if plot.by is None else row[plot.by], []).append(row)
    return found


def _lines(axes: Any, plot: Plot, rows: Sequence[Row], colours: dict[Cell, str]) -> None:
    groups = _groups(plot, rows)
    ticks = sorted({_across(row, plot) for row in rows if _number(row[plot.x]) is not None})
    # Lines that lie on one another stay apart by a little.
    apart = (ticks[-1] - ticks[0]) * 0.012 if ticks else 0.0
    for place, (group, own) in enumerate(groups.items()):
        points = sorted(
            ((_across(row, plot), row[plot.y]) for row in own if _number(row[plot.x]) is not None),
            key=lambda point: point[0],
        )
        if not points:
            continue
        across = [x + (place - (len(groups) - 1) / 2) * apart for x, _ in points]
        low, middle, high = zip(*(_spread(y, plot) for _, y in points), strict=True)
        colour, mark = colours.get(group, COLOURS[0]), MARKS[place % len(MARKS)]
        label = None if group is None else str(group)
        axes.plot(across, middle, f"{mark}-", color=colour, markersize=4, linewidth=1.4, label=label)
        axes.vlines(across, low, high, color=colour, linewidth=1)
    if ticks:
        edge = max(0.05 * (ticks[-1] - ticks[0]), len(groups) * apart)
        axes.set_xlim(ticks[0] - edge, ticks[-1] + edge)
    if len(ticks) <= 8:
        axes.set_xticks(ticks, [f"{2**one if plot.doubling else one:g}" for one in ticks])


def _across(row: Row, plot: Plot) -> float:
    """Where a row stands on a panel of lines."""
    value = float(_number(row[plot.x]) or 0.0)
    return log2(value) if plot.doubling else value


def _bars(axes: Any, plot: Plot, rows: Sequence[Row], colours: dict[Cell, str]) -> None:
    names = list(dict.fromkeys(row[plot.x] for row in rows))
    groups = _groups(plot, rows)
    width = 0.8 / max(1, len(groups))
    for place, (group, own) in enumerate(groups.items()):
        across = [names.index(row[plot.x]) + (place - (len(groups) - 1) / 2) * width for row in own]
        spreads = [_spread(row[plot.y], plot) for row in own]
        middle = [one[1] for one in spreads]
        errors = [[one[1] - one[0] for one in spreads], [one[2] - one[1] for one in spreads]]
        colour = colours.get(group, COLOURS[0])
        axes.bar(across, middle, width * 0.92, color=colour, label=None if group is None else str(group))
        axes.errorbar(across, middle, errors, fmt="none", ecolor=INK, elinewidth=0.9)
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
        if low < -1.1:
            # Harm has no floor: below -1 the axis goes on by its logarithm.
            axes.set_yscale("symlog", linthresh=1.0, linscale=1.5)
            powers = [-(10.0**power) for power in range(1, 7) if -(10.0**power) > low]
            ticks = [*reversed(powers), -1.0, 0.0, 0.5, 1.0]
            axes.set_yticks(ticks, [f"{one:g}" for one in ticks])
            axes.minorticks_off()
            low, high = 1.5 * low, 1.2
        axes.set_ylim(low, high)
    elif plot.y.endswith(TIME) and low > 0:
        axes.set_ylim(0, high)
    if low < -0.02 and high > 0:
        axes.axhline(0, color=FAINT, linewidth=0.8)


def _spread(cell: Cell, plot: Plot) -> tuple[float, float, float]:
    """Low, middle and high of a cell; the same where it has no interval."""
    floor = LOGARITHMIC if plot.y == "KL" else float("-inf")
    middle = max(floor, _number(cell) or 0.0)
    if isinstance(cell, Interval):
        return min(middle, max(floor, cell.low)), middle, max(middle, cell.high)
    return middle, middle, middle


def _number(cell: Cell) -> float | None:
    value = cell.value if isinstance(cell, Interval | Share) else cell
    return None if value is None or isinstance(value, str) or value != value else float(value)
