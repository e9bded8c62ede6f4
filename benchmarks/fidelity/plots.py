"""Plots of fidelity: KL by rank, recovery by token budget, residuals by question, and every method on every model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.fidelity.arms import BLIND, FULL
from benchmarks.fidelity.tables import FigureRow, interval, known
from benchmarks.plots import (
    COLOURS,
    FAINT,
    INK,
    draw_legend,
    draw_line,
    make_panels,
    rank_axis,
    save_figure,
    style_panel,
)

FLOOR = 1e-7
"""Nats below which a residual is drawn on the axis."""
MARKS = "os^vDP"
MOST = 24
"""Strategies in the plot of residuals."""
LEAST_ETA = -0.25
"""Methods that do more harm are drawn at the edge."""
LEAST_BYTES = 0.004
"""Share of the bytes below which a strategy is drawn at the edge."""


def draw_ranks(rows: Sequence[FigureRow], path: Path) -> Path | None:
    """Draw KL by rank, a line for each model and setting; None if fewer than two ranks were measured."""
    lines: dict[tuple[str, str], list[tuple[int, FigureRow]]] = {}
    for row in rows:
        match = re.fullmatch(r"patch-([0-9]+)", row["strategy"])
        if match:
            lines.setdefault((row["model"], row["setting"]), []).append((int(match[1]), row))
    lines = {name: sorted(points, key=lambda point: point[0]) for name, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    figure, (axes,) = make_panels(1, "KL by rank of the patch", width=7.2, height=4.2)
    for place, ((model, setting), points) in enumerate(lines.items()):
        ranks, colour = [rank for rank, _ in points], COLOURS[place % len(COLOURS)]
        draw_line(axes, ranks, [interval(row, "kl") for _, row in points], f"{model}, {setting}", colour, floor=FLOOR)
        for row in rows:
            if (row["model"], row["setting"], row["strategy"]) == (model, setting, BLIND):
                axes.axhline(row["kl"], color=colour, linestyle=":", linewidth=1)
                axes.annotate("blind", (ranks[-1], row["kl"]), fontsize=8, ha="right", va="bottom", color=colour)
    rank_axis(axes, sorted({rank for points in lines.values() for rank, _ in points}))
    axes.set_yscale("log")
    style_panel(axes, "", "rank", f"KL from re-prefill, nats (least shown {FLOOR:g})")
    draw_legend(axes)
    return save_figure(figure, path.parent, path.stem)


def draw_budgets(rows: Sequence[FigureRow], title: str, path: Path) -> Path | None:
    """Draw flip recovery and eta by share of the KV bytes, a line for each method; None if fewer than three shares."""
    lines: dict[str, list[tuple[float, FigureRow]]] = {}
    for row in rows:
        method, at, share = row["strategy"].partition("@")
        if at:
            lines.setdefault(method, []).append((float(share.rstrip("%")), row))
    lines = {method: sorted(points, key=lambda point: point[0]) for method, points in lines.items() if len(points) > 2}
    if not lines:
        return None
    figure, panels = make_panels(2, title, width=5.2, height=4.2)
    for axes, name, label in zip(
        panels, ("flip_recovery", "eta"), ("flips restored", "eta: share of blind reuse's KL removed"), strict=True
    ):
        for place, (method, points) in enumerate(lines.items()):
            shown = [(share, row[name]) for share, row in points if known(row[name])]
            mark = f"{MARKS[place % len(MARKS)]}{'--' if method.startswith('oracle') else '-'}"
            colour = INK if method == "patch" else COLOURS[place % len(COLOURS)]
            axes.plot([share for share, _ in shown], [value for _, value in shown], mark, label=method, color=colour)
        axes.set_ylim(min(-0.05, max(-1.0, axes.get_ylim()[0])), 1.05)
        style_panel(axes, label, "share of the chunks' KV bytes, %", "")
    draw_legend(panels[1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, path.parent, path.stem)


def draw_residuals(residuals: Mapping[str, np.ndarray], title: str, path: Path) -> Path | None:
    """Draw KL question by question, a column of dots for each strategy; None without one beside re-prefill."""
    names = [name for name in residuals if name != FULL][:MOST]
    if not names:
        return None
    figure, (axes,) = make_panels(1, title, width=max(7.2, 0.75 * len(names)), height=4.2)
    random = np.random.default_rng(0)
    for place, name in enumerate(names):
        values = np.maximum(residuals[name], FLOOR)
        spread = place + random.uniform(-0.28, 0.28, len(values))
        axes.scatter(spread, values, s=7, alpha=0.5, color=FAINT if name == BLIND else f"C{place}", linewidths=0)
        axes.hlines(np.median(values), place - 0.35, place + 0.35, color=INK, linewidth=1.4)
    axes.set_yscale("log")
    axes.set_ylim(FLOOR * 0.6, None)
    told = f"a dot a question, the line their median, least shown {FLOOR:g}"
    style_panel(axes, told, "", "KL from re-prefill, nats")
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
    return save_figure(figure, path.parent, path.stem)
