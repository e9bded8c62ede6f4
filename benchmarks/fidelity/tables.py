"""Rows as Markdown tables: figures by strategy and at equal bytes, the patch against its bars and its rivals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.arms import BLIND, FULL, SHARES
from benchmarks.fidelity.summary import POOLED
from benchmarks.intervals import Interval
from benchmarks.table import markdown_table

FigureRow = Mapping[str, Any]
"""Figures of one strategy, as `summary.rows_of` makes them and files keep them."""
FLIPS = 100
"""Changed answers that a flip recovery has to be counted on."""


def known(value: Any) -> bool:
    """Return whether a figure is there: neither missing nor NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def number(value: Any, digits: int = 3) -> str:
    """Return a figure, or a dash where there is none."""
    if not known(value):
        return "–"
    shown = f"{value:.{digits}f}"
    return shown.lstrip("-") if float(shown) == 0 else shown


def small(value: Any) -> str:
    """Return nats: three digits after the first that is not zero."""
    return "–" if not known(value) else "0" if value == 0 else f"{value:.2g}" if value >= 1e-3 else f"{value:.1e}"


def interval(row: FigureRow, name: str) -> Interval:
    """Return a figure with its interval."""
    return Interval(row[name], *row["intervals"][name])


def ranged(row: FigureRow, name: str, digits: int = 3) -> str:
    """Return a figure with its interval."""
    if not known(row.get(name)):
        return "–"
    low, high = row["intervals"][name]
    return f"{number(row[name], digits)} [{number(low, digits)}, {number(high, digits)}]"


def flips(row: FigureRow) -> str:
    """Return flip recovery, always with the count."""
    return f"{ranged(row, 'flip_recovery', 2)} of {row['flips']}" if row["flips"] else "of none"


def main_table(rows: Sequence[FigureRow]) -> str:
    """Return a line for each strategy with its own knob."""
    head = ("strategy", "KV bytes", "rows computed", "single-hop", "multi-hop", "KL", "eta", "median eta",
            "flips restored", "same answer")  # fmt: skip
    lines = []
    for row in rows:
        reused = row["strategy"] not in (FULL, BLIND)
        lines.append(
            (
                f"`{row['strategy']}`",
                f"{row['kv_bytes_share']:.1%}",
                f"{row['rows_computed_share']:.1%}",
                number(row["single_hop_accuracy"]),
                number(row["multi_hop_accuracy"]),
                small(row["kl"]),
                ranged(row, "eta") if reused else "",
                number(row["eta_median"], 2) if reused else "",
                flips(row) if reused else "",
                number(row["agreement"]) if row["strategy"] != FULL else "",
            )
        )
    return markdown_table(head, lines)


def matched_table(rows: Sequence[FigureRow]) -> str:
    """Return a line for each method at the same bytes, with its paired distance to the patch; empty without any."""
    at = {row["strategy"]: row for row in rows}
    methods = list(dict.fromkeys(name.partition("@")[0] for name in at if "@" in name))
    kept = [method for method in methods if any(f"{method}@{share}%" in at for share in SHARES)]
    if not kept:
        return ""
    head = ["method"]
    for share in SHARES:
        head += [f"bytes at {share} %", "eta", "patch's eta − its", "flips restored", "rows"]
    lines = []
    for method in kept:
        cells = [f"`{method}`"]
        for share in SHARES:
            row = at.get(f"{method}@{share}%")
            if row is None:
                cells += ["–"] * 5
                continue
            ahead = "" if method == "patch" else ranged(row, "eta_below_patch")
            cells += [f"{row['kv_bytes_share']:.1%}", ranged(row, "eta"), ahead, flips(row),
                      f"{row['rows_computed_share']:.0%}"]  # fmt: skip
        lines.append(cells)
    return markdown_table(head, lines)


@dataclass(frozen=True, slots=True)
class FigureBar:
    """What a strategy has to reach, slid and pooled over the tasks that the models were trained on."""

    strategy: str
    figure: str
    least: float


BARS = (
    FigureBar("patch-25%", "eta", 0.95),
    FigureBar("patch-25%", "flip_recovery", 0.95),
    FigureBar("patch-50%", "eta", 0.99),
    FigureBar("patch-50%", "flip_recovery", 0.99),
)


def verdict(row: FigureRow, bar: FigureBar) -> str:
    """Return how a row is to a bar: `met` with its whole interval, `met in the mean`, `missed`, or `too few flips`."""
    if bar.figure == "flip_recovery" and row["flips"] < FLIPS:
        return "too few flips"
    if not known(row.get(bar.figure)):
        return "not measured"
    if row["intervals"][bar.figure][0] >= bar.least:
        return "met"
    return "met in the mean" if row[bar.figure] >= bar.least else "missed"


def bars_table(rows: Sequence[FigureRow]) -> str:
    """Return a line for each model, setting and bar; empty where none is measured."""
    lines = []
    for model, setting in _groups(rows):
        own = _pooled(rows, model, setting)
        for bar in BARS:
            row = own.get(bar.strategy)
            if row is None:
                continue
            flips = f" of {row['flips']}" if bar.figure == "flip_recovery" else ""
            figure = f"{ranged(row, bar.figure)}{flips}"
            lines.append((model, setting, f"`{bar.strategy}`", bar.figure.replace("_", " "), f"{bar.least:g}", figure,
                          str(row["n"]), verdict(row, bar)))  # fmt: skip
    return (
        markdown_table(("model", "setting", "strategy", "figure", "at least", "measured", "questions", ""), lines)
        if lines
        else ""
    )


def _groups(rows: Sequence[FigureRow]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["model"], row["setting"]) for row in rows if row["task"] == POOLED))


def _pooled(rows: Sequence[FigureRow], model: str, setting: str) -> dict[str, FigureRow]:
    return {
        row["strategy"]: row for row in rows if (row["model"], row["setting"], row["task"]) == (model, setting, POOLED)
    }
