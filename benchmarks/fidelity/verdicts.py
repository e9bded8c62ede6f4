"""The patch against its bars, and against every method that recomputes tokens at the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.arms import SHARES, TOKEN_METHODS
from benchmarks.fidelity.summary import POOLED
from benchmarks.fidelity.tables import known, number, ranged, table

Row = Mapping[str, Any]
RIVALS = (*TOKEN_METHODS, "epic", "cacheblend2", "vlcache", "sink")
FLIPS = 100
"""Changed answers that a flip recovery has to be counted on."""


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


def verdict(row: Row, bar: FigureBar) -> str:
    """Whether a row clears a bar: `met` with its whole interval, `met in the mean`, `missed`, or `too few flips`."""
    if bar.figure == "flip_recovery" and row["flips"] < FLIPS:
        return "too few flips"
    if not known(row.get(bar.figure)):
        return "not measured"
    if row["intervals"][bar.figure][0] >= bar.least:
        return "met"
    return "met in the mean" if row[bar.figure] >= bar.least else "missed"


def bars_table(rows: Sequence[Row]) -> str:
    """A line for each model, setting and bar; empty where none is measured."""
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
        table(("model", "setting", "strategy", "figure", "at least", "measured", "questions", ""), lines)
        if lines
        else ""
    )


def rivals_table(rows: Sequence[Row]) -> str:
    """At each share, the token method that comes nearest to the patch or passes it; empty where none is measured."""
    lines = []
    for model, setting in _groups(rows):
        own = _pooled(rows, model, setting)
        for share in SHARES:
            patch = own.get(f"patch@{share}%")
            rivals = [
                row for name in RIVALS if (row := own.get(f"{name}@{share}%")) and known(row.get("eta_below_patch"))
            ]
            if patch is None or not rivals:
                continue
            for oracle in (False, True):
                found = [row for row in rivals if row["strategy"].startswith("oracle") == oracle]
                if found:
                    best = min(found, key=lambda row: row["eta_below_patch"])
                    deep = own.get(f"patch-deep@{share}%", {})
                    lines.append((model, setting, f"{share} %", f"`{best['strategy']}`", number(best["eta"]),
                                  number(patch["eta"]), _says(best, "eta_below_patch"), number(deep.get("eta")),
                                  _says(best, "eta_below_deep")))  # fmt: skip
    head = ("model", "setting", "bytes", "best method on tokens", "its eta", "the patch", "the patch's lead",
            "deep half only", "its lead")  # fmt: skip
    return table(head, lines) if lines else ""


def _says(row: Row, figure: str) -> str:
    """A lead with its interval; one that may be none, or is the other's, in words."""
    if not known(row.get(figure)):
        return "–"
    low, high = row["intervals"][figure]
    return ranged(row, figure) + ("" if low > 0 else " behind" if high < 0 else " no difference")


def _groups(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["model"], row["setting"]) for row in rows if row["task"] == POOLED))


def _pooled(rows: Sequence[Row], model: str, setting: str) -> dict[str, Row]:
    return {
        row["strategy"]: row for row in rows if (row["model"], row["setting"], row["task"]) == (model, setting, POOLED)
    }
