"""Plots of a trace: what every arm ran, waited and kept, step by step; and how often it agreed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plots import FAINT, INK, make_panels, save_figure, style_panel
from benchmarks.window.arms import AUTO, BLIND, BROUGHT, FULL, PREFIX
from benchmarks.window.records import StepRecord
from benchmarks.window.tables_trace import AGREEMENT, WHERES, arms_of, mean, of, spent

COLOURS = {AUTO: "#1d6f8a", FULL: "#444444", PREFIX: "#e9b44c", BLIND: "#d1495b", BROUGHT: "#9db4c0"}
SMOOTH = 9
"""Steps of the running median of times."""


def draw_trace(records: Sequence[StepRecord], title: str, folder: Path, name: str) -> list[Path]:
    """A page of panels over the steps, and one of agreement for an agent's trace."""
    paths = [_steps(records, title, folder, f"{name}-steps")]
    if records[0].trace == "agent" and any(one.warm for one in records):
        paths.append(_agreement(records, title, folder, f"{name}-agreement"))
    return paths


def _steps(records: Sequence[StepRecord], title: str, folder: Path, name: str) -> Path:
    figure, (rows, times, held) = make_panels(3, title)
    for arm in arms_of(records):
        own = of(records, arm, warm=False)
        steps = np.array([one.step for one in own])
        _line(rows, steps, own, spent, arm)
        seconds = np.array([one.seconds for one in own]) * 1e3
        times.plot(steps, seconds, color=COLOURS[arm], linewidth=0.5, alpha=0.35)
        times.plot(steps, _running(seconds), color=COLOURS[arm], linewidth=1.6, label=arm)
        _line(held, steps, own, lambda one: one.held / 1e6, arm)
    if records[0].trace == "agent":
        own = of(records, AUTO, warm=False)
        new = [one.new_rows for one in own]
        rows.plot([one.step for one in own], new, color=INK, linewidth=1.2, linestyle=":", label="new rows")
    first = next((one.step for one in records if one.warm), None)
    for axes in (rows, times, held):
        if first and records[0].trace == "agent":
            axes.axvline(first, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
            axes.annotate("window full", (first, 0.99), xycoords=("data", "axes fraction"), xytext=(3, 0),
                          textcoords="offset points", fontsize=7, color=FAINT, va="top")  # fmt: skip
    wide = records[0].trace == "agent"
    for axes in (rows, times, held):
        axes.xaxis.get_major_locator().set_params(integer=True)
        if wide and axes is not held:
            _logarithmic(axes)
        else:
            axes.set_ylim(bottom=0)
    scale = " (logarithmic)" if wide else ""
    style_panel(rows, "Rows computed", "step", f"rows{scale}")
    style_panel(times, f"Time to first token; thick: median of {SMOOTH} steps", "step", f"ms{scale}")
    style_panel(held, "Kept between steps", "step", "MB")
    entries = rows.get_legend_handles_labels()
    held.legend(*entries, frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder, name)


def _agreement(records: Sequence[StepRecord], title: str, folder: Path, name: str) -> Path:
    figure, (agreed, right) = make_panels(2, title, width=5.2, height=3.4)
    measures: tuple[tuple[Any, Callable[[StepRecord], float], str], ...] = (
        (agreed, lambda one: one.agrees, "Agreement with full prefill"),
        (right, lambda one: one.right, "Accuracy"),
    )
    arms = arms_of(records)
    asked = {where: len([one for one in of(records, AUTO) if one.where == where]) for where in WHERES}
    for axes, value, words in measures:
        for place, arm in enumerate(arms):
            for spot, where in enumerate(WHERES):
                found = mean([one for one in of(records, arm) if one.where == where], value)
                if found is None:
                    continue
                across = spot + (place - (len(arms) - 1) / 2) * 0.2
                error = [[max(0.0, found.value - found.low)], [max(0.0, found.high - found.value)]]
                label = arm if spot == 0 else None
                axes.bar(across, found.value, 0.18, color=COLOURS[arm], label=label)
                axes.errorbar(across, found.value, error, fmt="none", ecolor=INK, elinewidth=1)
                axes.text(across, 0.02, f"{found.value:.2f}", rotation=90, ha="center", va="bottom", fontsize=7,
                          color="white")  # fmt: skip
        labels = [f"{words}\n{asked[where]} steps" for where, words in _short().items()]
        axes.set_xticks(range(len(WHERES)), labels)
        axes.set_ylim(0, 1.02)
        style_panel(axes, words, "", "")
    agreed.axhline(AGREEMENT, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
    right.legend(frameon=False, fontsize=7.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return save_figure(figure, folder, name)


def _short() -> dict[str, str]:
    return {"one": "one picture", "binding": "bound inside\nthe window", "gone": "legend\nhas left"}


def _line(
    axes: Any, steps: np.ndarray, records: Sequence[StepRecord], value: Callable[[StepRecord], float], arm: str
) -> None:
    axes.plot(steps, [value(one) for one in records], color=COLOURS[arm], linewidth=1.5, label=arm)


def _running(values: np.ndarray) -> np.ndarray:
    half = SMOOTH // 2
    return np.array([np.median(values[max(0, place - half) : place + half + 1]) for place in range(len(values))])


def _logarithmic(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
