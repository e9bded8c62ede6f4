"""How the figures look: one style for every panel, and lines with their intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

INK, FAINT, GRID = "#2b2b2b", "#6b6b6b", "#e3e3e3"
COLOURS = ("#1d6f8a", "#d1495b", "#e9b44c", "#5b8c5a", "#7a5c99", "#9db4c0", "#b5651d", "#444444")


def panels(count: int, title: str, *, width: float = 4.6, height: float = 3.7) -> tuple[Any, list[Any]]:
    """A figure with panels side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def style(axes: Any, title: str, across: str, up: str, *, grid: str = "y") -> None:
    """A panel's title, labels and grid."""
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.set_xlabel(across, fontsize=8.5, color=FAINT)
    axes.set_ylabel(up, fontsize=8.5, color=FAINT)
    axes.tick_params(colors=INK, labelsize=8, length=0)
    if grid:
        axes.grid(True, axis=grid, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def line(
    axes: Any, across: Sequence[float], rows: Sequence[Any], label: str, colour: str, *, floor: float | None = None,
    dashed: bool = False,
) -> None:  # fmt: skip
    """Estimates with their interval as a band; `floor` lifts values that a logarithmic axis cannot show."""
    middle, low, high = (np.array([getattr(row, part) for row in rows]) for part in ("value", "low", "high"))
    if floor is not None:
        middle, low, high = (np.maximum(one, floor) for one in (middle, low, high))
    axes.plot(across, middle, "o--" if dashed else "o-", color=colour, label=label, markersize=3.5, linewidth=1.5)
    axes.fill_between(across, low, high, color=colour, alpha=0.15, linewidth=0)


def bars(axes: Any, labels: Sequence[str], rows: Sequence[Any], colours: Sequence[str] | str) -> None:
    """Lying bars with their intervals, the first on top."""
    middle = np.array([row.value for row in rows])
    error = np.array(
        [[max(0.0, row.value - row.low) for row in rows], [max(0.0, row.high - row.value) for row in rows]]
    )
    axes.barh(range(len(rows)), middle, xerr=error, color=colours, height=0.7, error_kw={"linewidth": 1, "ecolor": INK})
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()


def legend(axes: Any, **extra: Any) -> None:
    """A frameless legend."""
    axes.legend(frameon=False, fontsize=7.5, handlelength=2.6, **extra)


def ranks(axes: Any, at: Sequence[float]) -> None:
    """A logarithmic axis of ranks; a half stands for none."""
    axes.set_xscale("log", base=2)
    shown = [one for one in at if one < 1 or float(one).is_integer() and int(one) & (int(one) - 1) == 0]
    axes.set_xticks(shown, ["blind" if one < 1 else f"{one:.0f}" for one in shown])
    axes.minorticks_off()


def save(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure and give back its path."""
    path = folder / f"{name}.png"
    figure.savefig(path)
    return path
