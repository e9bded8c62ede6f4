"""The page of the window: its text is written by hand, its tables and pictures are made of figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.figures import read_figures
from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.report import measured_on
from benchmarks.table import Plot, Table, cell_text, markdown_table

Row = Mapping[str, Any]
WIDE = 0.3
"""Width from which an interval is shown."""
GROUPS = {"reorder": "pages", "slide": "what left", "recall": "turnover", "drift": "change", "superset": "antecedents"}
"""What an experiment did to the window; its table has a line for each."""
DRAWN = {
    "slide": ("Divergence when the leading page leaves", "KL"),
    "recall": ("Recall by turnover", "eta"),
    "drift": ("A patch after changed antecedents", "eta"),
}
"""Experiments that have a picture: its title and what it shows."""


def write_page(figures: Path, page: Path) -> Path:
    """Write a page's tables and pictures, of the first model, from its figures; returns the page's path."""
    found = read_figures(figures)
    write_blocks(page, "The window, measured", blocks(found))
    for name, rows in _by_experiment(found["answers"]).items():
        if name in DRAWN:
            _draw(name, [row for row in rows if row["model"] == rows[0]["model"]], page.parent)
    return page


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """Return every table in Markdown by its name."""
    made = {"measured": f"Measured on {measured_on(found['environment'])}."}
    if found["bars"]:
        made["bars"] = pivot(_nearest(found["bars"]), ("bar", "bound"), _bar_key, _model, _bar)
    for name, rows in _by_experiment(found["answers"]).items():
        if name in GROUPS:
            made[name] = pivot(rows, (GROUPS[name],), lambda row: (row["group"],), _column, eta)
        else:
            made[name] = pivot(rows, ("method",), lambda row: (_method(row),), _group, eta)
    for name, rows in _by_experiment(found["figures"]).items():
        made[f"{name} figures"] = pivot(rows, ("figure",), lambda row: (row["name"],), _model, _value)
    if found["trace"]:
        made["trace"] = pivot(found["trace"], ("trace", "model"), lambda row: (row["trace"], _model(row)), _arm, _costs)
    if found["answered"]:
        head = ("trace", "the question needs", "steps")
        made["answered"] = pivot(found["answered"], head, _question, lambda row: f"{_arm(row)}, {_model(row)}", _shares)
    return made


def pivot(
    rows: Iterable[Row],
    head: Sequence[str],
    down: Callable[[Row], tuple[str, ...]],
    across: Callable[[Row], str],
    cell: Callable[[Row], str],
) -> str:
    """Return rows as a Markdown table: a line for each value of `down`, a column for each of `across`."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        lines.setdefault(down(row), {})[across(row)] = cell(row)
    columns = list(dict.fromkeys(name for line in lines.values() for name in line))
    cells = [(*key, *(line.get(name, "") for name in columns)) for key, line in lines.items()]
    return markdown_table((*head, *columns), cells, range(len(head)))


def eta(row: Row) -> str:
    """Return a row's eta, with its interval where that is wide; blind reuse's divergence, as its eta is 0."""
    if row["method"] == "blind":
        return cell_text(row["kl"])
    wide = row["high"] - row["low"] >= WIDE
    return cell_text(Interval(row["eta"], row["low"], row["high"]) if wide else row["eta"])


def _model(row: Row) -> str:
    return f"`{row['model']}`"


def _group(row: Row) -> str:
    return f"{row['group']}, {_model(row)}"


def _value(row: Row) -> str:
    return cell_text(row["value"])


def _method(row: Row) -> str:
    kept = "rows as they are" if row["experiment"] == "slide" else "blind reuse"
    return f"KL, {kept}" if row["method"] == "blind" else str(row["method"])


def _column(row: Row) -> str:
    return f"{_method(row)}, {_model(row)}"


def _nearest(bars: Iterable[Row]) -> list[Row]:
    """Return of a model's bars of one kind the one that is nearest to its bound, or furthest beyond it."""
    found: dict[tuple[str, ...], Row] = {}
    for row in bars:
        key = (row["model"], *_bar_key(row))
        found[key] = min(found.get(key, row), row, key=_margin)
    return list(found.values())


def _margin(row: Row) -> float:
    """Return how far a bar's value is from its bound."""
    found = float("-inf") if row["value"] is None else row["value"] - row["bound"]
    return float(found if row["least"] else -found)


def _bar_key(row: Row) -> tuple[str, ...]:
    return row["name"].split(",")[0], f"{'≥' if row['least'] else '≤'} {row['bound']:g}"


def _bar(row: Row) -> str:
    return cell_text(row["value"]) + ("" if row["holds"] else " **missed**")


def _question(row: Row) -> tuple[str, ...]:
    return row["trace"], row["where"], str(row["steps"])


def _arm(row: Row) -> str:
    return f"`{row['arm']}`"


def _costs(row: Row) -> str:
    return f"{cell_text(row['over'])}, {cell_text(row['ttft'])} ms, {cell_text(row['held'])} MB"


def _shares(row: Row) -> str:
    return f"{row['agreement']:.3f}, {row['accuracy']:.3f}"


def _by_experiment(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["experiment"], []).append(row)
    return found


def _draw(name: str, rows: Sequence[Row], folder: Path) -> None:
    """Draw what an experiment came to on one model."""
    title, shown = DRAWN[name]
    across, bars = GROUPS[name], name != "recall"
    cells = tuple(
        (
            row["group"] if bars else float(row["group"]),
            _method(row).removeprefix("KL, "),
            row["kl"] if shown == "KL" else Interval(row["eta"], row["low"], row["high"]),
        )
        for row in rows
        if shown == "KL" or row["method"] != "blind"
    )
    table = Table(name, title, "", (across, "method", shown), cells, (Plot(across, shown, "method", bars=bars),))
    drawn = draw_table(table, rows[0]["model"], folder)
    if drawn is not None:
        drawn.replace(folder / f"window-{name}.png")
