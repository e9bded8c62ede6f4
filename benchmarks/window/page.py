"""The page of the window: its text is written by hand, its tables and pictures are made of figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.figures import read_figures
from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.report import measured_on
from benchmarks.table import Plot, Table, cell_text, grouped, markdown_table

Row = Mapping[str, Any]
BLIND = "KL, "
"""What a column of blind reuse begins with."""
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
    for name, rows in grouped(found["answers"], "experiment").items():
        if name in DRAWN:
            _draw(name, [row for row in rows if row["model"] == rows[0]["model"]], page.parent)
    return page


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """Return every table in Markdown by its name."""
    made = {"measured": f"Measured on {measured_on(found['environment'])}."}
    if found["bars"]:
        made["bars"] = pivot(_nearest(found["bars"]), ("bar", "bound"), _bar_key, "{model}", _bar)
    for name, rows in grouped(found["answers"], "experiment").items():
        named = [{**row, "method": _method(row)} for row in rows]
        if name in GROUPS:
            made[name] = pivot(named, (GROUPS[name],), ("{group}",), "{method}, {model}", eta, join=True)
        else:
            made[name] = pivot(named, ("method",), ("{method}",), "{group}, {model}", eta, join=True)
    for name, rows in grouped(found["figures"], "experiment").items():
        made[f"{name} figures"] = pivot(rows, ("figure",), ("{name}",), "{model}", lambda row: cell_text(row["value"]))
    if found["trace"]:
        made["trace"] = pivot(found["trace"], ("trace", "model"), ("{trace}", "{model}"), "`{arm}`", _costs)
    if found["answered"]:
        head, down = ("trace", "the question needs", "steps"), ("{trace}", "{where}", "{steps}")
        made["answered"] = pivot(found["answered"], head, down, "`{arm}`, {model}", _shares)
    return made


def pivot(
    rows: Iterable[Row],
    head: Sequence[str],
    down: Sequence[str] | Callable[[Row], Sequence[str]],
    across: str | Callable[[Row], str],
    cell: Callable[[Row], str],
    join: bool = False,
) -> str:
    """Return rows as a Markdown table.

    Args:
        head: of the columns on the left, which are there for each value of `down`.
        down, across: what a line and a column are of, with a row's figures by name; the model as code.
        join: lines of the same cells are one, which names what they are of.
    """
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in rows:
        figures = {**row, "model": f"`{row.get('model')}`"}
        key = down(row) if callable(down) else [part.format_map(figures) for part in down]
        column = across(row) if callable(across) else across.format_map(figures)
        columns[column] = None
        lines.setdefault(tuple(key), {})[column] = cell(row)
    cells = [(*key, *(line.get(name, "") for name in columns)) for key, line in lines.items()]
    return markdown_table((*head, *columns), _joined(cells) if join else cells, range(len(head)))


def _joined(lines: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Return lines of a table with those of the same cells beside their first as one, at the first one's place."""
    found: dict[tuple[str, ...], list[str]] = {}
    for first, *cells in lines:
        found.setdefault(tuple(cells), []).append(first)
    return [("; ".join(names), *cells) for cells, names in found.items()]


def eta(row: Row) -> str:
    """Return a row's eta, with its interval where that is wide; blind reuse's divergence, as its eta is 0."""
    if row["method"].startswith(BLIND):
        return cell_text(row["kl"])
    wide = row["high"] - row["low"] >= WIDE
    return cell_text(Interval(row["eta"], row["low"], row["high"]) if wide else row["eta"])


def _method(row: Row) -> str:
    kept = "rows as they are" if row["experiment"] == "slide" else "blind reuse"
    return f"{BLIND}{kept}" if row["method"] == "blind" else str(row["method"])


def _nearest(bars: Iterable[Row]) -> list[Row]:
    """Return of a model's bars of one kind the one that is nearest to its bound, or furthest beyond it."""

    def margin(row: Row) -> float:
        found = float("-inf") if row["value"] is None else row["value"] - row["bound"]
        return float(found if row["least"] else -found)

    found: dict[tuple[str, ...], Row] = {}
    for row in bars:
        key = (row["model"], *_bar_key(row))
        found[key] = min(found.get(key, row), row, key=margin)
    return list(found.values())


def _bar_key(row: Row) -> tuple[str, ...]:
    return row["name"].split(",")[0], f"{'≥' if row['least'] else '≤'} {row['bound']:g}"


def _bar(row: Row) -> str:
    return cell_text(row["value"]) + ("" if row["holds"] else " **missed**")


def _costs(row: Row) -> str:
    return f"{cell_text(row['over'])}, {cell_text(row['ttft'])} ms, {cell_text(row['held'])} MB"


def _shares(row: Row) -> str:
    return f"{row['agreement']:.3f}, {row['accuracy']:.3f}"


def _draw(name: str, rows: Sequence[Row], folder: Path) -> None:
    """Draw what an experiment came to on one model."""
    title, shown = DRAWN[name]
    across, bars = GROUPS[name], name != "recall"
    cells = tuple(
        (
            row["group"] if bars else float(row["group"]),
            _method(row).removeprefix(BLIND),
            row["kl"] if shown == "KL" else Interval(row["eta"], row["low"], row["high"]),
        )
        for row in rows
        if shown == "KL" or row["method"] != "blind"
    )
    table = Table(name, title, "", (across, "method", shown), cells, (Plot(across, shown, "method", bars=bars),))
    drawn = draw_table(table, rows[0]["model"], folder)
    if drawn is not None:
        drawn.replace(folder / f"window-{name}.png")
