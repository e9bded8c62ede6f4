"""The page of results on `reference-hybrid`: its text is written by hand, its tables and plot are made of figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.fidelity.arms import FULL
from benchmarks.figures import read_figures
from benchmarks.hybrids.run import HYPIC
from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.report import measured_on
from benchmarks.table import Bar, Plot, Table, bars_markdown, markdown_table
from benchmarks.tasks.prompts import SETTINGS

OURS = "patch-4"
"""The method that is held beside HYPIC's: it takes fewer bytes."""
Row = Mapping[str, Any]


def write_page(figures: Path, page: Path) -> Path:
    """Write the page's tables and its plot from its figures; returns its path."""
    found = read_figures(figures)
    write_blocks(page, "Hybrids, measured", blocks(found))
    drawn = draw_table(_plot(found["rows"]), "reference-hybrid", page.parent)
    if drawn is not None:
        drawn.replace(page.parent / "hybrids-land.png")
    return page


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """Return every table in Markdown by its name."""
    made = f"{found['items']} items of `maps`, seed {found['seed']}; {measured_on(found['environment'])}."
    return {
        "measured": made,
        "bars": bars_markdown(bars_of(found)),
        "methods": _methods(found["rows"], found["bytes"]),
    }


def row_of(rows: Sequence[Row], setting: str, strategy: str) -> Row | None:
    """Return the figures of a strategy in a setting; None where it was not measured."""
    asked = {"setting": setting, "strategy": strategy}
    return next((row for row in rows if asked.items() <= row.items()), None)


def bars_of(found: Mapping[str, Any]) -> list[Bar]:
    """Return what has to hold: the model answers, reuse beside HYPIC's method, and bytes at the shapes of models."""
    rows: Sequence[Row] = found["rows"]
    bars: list[Bar] = []
    for setting in SETTINGS:
        full, ours, theirs = (row_of(rows, setting, name) for name in (FULL, OURS, HYPIC))
        if full is None or ours is None or theirs is None:
            continue
        bars.append(Bar(f"`full`, {setting}", full["accuracy"], 0.97))
        gained = ours["accuracy"] - theirs["accuracy"]
        bars.append(Bar(f"`{OURS}` less `{HYPIC}`, {setting}", gained, 0.0))
    taken = found["bytes"]
    bars.append(Bar(f"bytes, `{OURS}` over `{HYPIC}`", taken[OURS] / taken[HYPIC], 1.0, least=False))
    share = max(row["map MB"] / row["whole MB"] for row in found["shapes"])
    bars.append(Bar("map over state and operator whole, most", share, 0.25, least=False))
    return bars


def _methods(rows: Sequence[Row], taken: Mapping[str, int]) -> str:
    """Return a line for each method: bytes of a chunk, rows computed, and right answers by setting."""
    lines = []
    for name in dict.fromkeys(row["strategy"] for row in rows):
        own = {setting: row_of(rows, setting, name) for setting in SETTINGS}
        first = own["visible"]
        if first is None:
            continue
        cells = [_ranged(row) for row in own.values()]
        size = f"{taken[name] / 1e3:.0f}" if name in taken else ""
        lines.append((f"`{name}`", size, f"{first['rows_computed_share']:.0%}", *cells))
    return markdown_table(("method", "kB", "rows", "right, visible", "right, slid"), lines)


def _ranged(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = row["intervals"]["accuracy"]
    return f"{row['accuracy']:.3f} [{low:.3f}–{high:.3f}]"


def _plot(rows: Sequence[Row]) -> Table:
    """Return right answers to questions of two hops by method, as bars."""
    cells = tuple(
        (row["strategy"], row["setting"], Interval(row["accuracy"], *row["intervals"]["accuracy"])) for row in rows
    )
    shown = Plot("method", "accuracy", "setting", bars=True)
    return Table("hybrids", "Questions that need two pictures", "", ("method", "setting", "accuracy"), cells, (shown,))
