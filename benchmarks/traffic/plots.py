"""Pictures of traffic: what every method costs, and how that changes with the requests seen."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.intervals import Interval
from benchmarks.plots import (
    COLOURS,
    FAINT,
    INK,
    MARKS,
    draw_bars,
    draw_legend,
    make_panels,
    save_figure,
    style_panel,
)
from benchmarks.traffic.methods import AUTO, FULL, METHODS

TALLEST = 1.6
"""Where the axis of a ratio ends: what is above is written there as a number."""
THICK, THIN = 2.2, 1.1
PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Behind a number, so that no line runs through it."""


def colour_of(method: str) -> str:
    """Return a method's colour, the same in every picture."""
    if method in (FULL, AUTO):
        return FAINT if method == FULL else COLOURS[1]
    others = [colour for colour in COLOURS if colour != COLOURS[1]]
    places = [name for name in METHODS if name not in (FULL, AUTO)]
    return others[places.index(method) % len(others)] if method in places else others[hash_of(method) % len(others)]


def hash_of(name: str) -> int:
    """Return a number of a name, the same in every run."""
    return sum(map(ord, name))


def draw_methods(title: str, figures: Mapping[str, Mapping[str, Interval]], folder: Path, name: str) -> Path:
    """Draw a panel of lying bars for each figure, a bar for each method, and return the picture's path."""
    figure, panels = make_panels(len(figures), title, width=5.2, height=2.9, across=2)
    for axes, (heading, values) in zip(panels, figures.items(), strict=True):
        draw_bars(axes, list(values), list(values.values()), [colour_of(method) for method in values])
        style_panel(axes, heading, "", "", grid="x")
        axes.axvline(1, color=INK, linewidth=0.8)
        longest = max(1.0, *(value.high for value in values.values()))
        axes.set_xlim(0, 1.18 * longest)
        for place, value in enumerate(values.values()):
            axes.text(value.high + 0.015 * longest, place, f"{value.value:.3g}", va="center", fontsize=7.5, bbox=PLATE)
    return save_figure(figure, folder, name)


def draw_curves(
    title: str, seen: Sequence[int], figures: Mapping[str, Mapping[str, Sequence[float]]], folder: Path, name: str
) -> Path:
    """Draw a panel of lines for each figure, a line for each method by requests seen, and return the picture's path."""
    figure, panels = make_panels(len(figures), title, width=5.0, height=3.1, across=2, margin=1.2)
    for axes, (heading, lines) in zip(panels, figures.items(), strict=True):
        ratio = not heading.startswith("MB")
        high = []
        for place, (method, values) in enumerate(lines.items()):
            width = THICK if method == AUTO else THIN
            mark = MARKS[place % len(MARKS)]
            axes.plot(
                seen, values, f"{mark}-", color=colour_of(method), linewidth=width, markersize=3.5, label=method,
                zorder=3 if method == AUTO else 2,
            )  # fmt: skip
            if ratio and min(values) > TALLEST:
                high.append(f"{method}: {min(values):.1f} to {max(values):.1f}")
        style_panel(axes, heading, "requests seen", "")
        highest = max(value for values in lines.values() for value in values)
        axes.set_ylim(0, (1.05 if highest <= 1 else TALLEST) if ratio else None)
        if high:
            axes.text(0.02, 0.97, "above: " + ", ".join(high), transform=axes.transAxes, va="top", fontsize=7.5)
    draw_legend(panels[1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder, name)
