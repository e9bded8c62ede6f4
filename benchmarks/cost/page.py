"""The page of costs, `cost.md` with its pictures, made of figures of runs alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cost.linking import REPREFILL
from benchmarks.cost.roofline import draw_roofline
from benchmarks.intervals import Interval
from benchmarks.plots import draw_table
from benchmarks.report import importable, measured_on, write_parts
from benchmarks.table import Cell, Plot, Table, cell_text, markdown_table

Row = Mapping[str, Any]
Runs = Mapping[str, Mapping[str, Any]]

MIDDLE, PATCH = 2048, "patch-25%"
"""Rows of the placing, and the patch of the forming, that the page shows."""
INTRODUCTION = """*Re-prefill* is prefilling the whole prompt again, by `full` or by transformers, whichever is \
quicker. Times are medians of rounds in which all candidates take turns. Shapes other than `reference` have random \
weights."""
TEXTS = {
    "link": "Time to the first token over re-prefill, by rows of a prompt of 8 chunks. A kept prefix and `prefix` need "
    "the same chunks in the same order; the methods below do not.",
    "place": "Placing 2,048 rows: turned to their positions and patched. The share is the rate over that of a plain "
    "copy. Rank 0 means no patch.",
    "rows": "Linked prefill over `full`, by the share of the chunks' rows that are computed: the first ones of each "
    "chunk, or as many anywhere (scattered).",
    "decode": "Tokens a second of one sequence, after so many rows.",
    "form": "Forming a patch (`patch-25%`) over prefilling its chunk, and the number of reuses after which it has "
    "paid. A: the conditioned forward is paid too (Kamera, section C.6). B: a reuse saves the encoder as well. C: the "
    "forming alone, where the prefill happened anyway.",
}
TITLES = {
    "link": "How long is a first token?",
    "place": "How quickly are rows placed?",
    "rows": "What do computed rows cost?",
    "decode": "How quickly are tokens decoded?",
    "form": "When has a patch paid?",
}
KEYS = {"place": ("rank", "chunks"), "rows": ("% of chunks",), "decode": ("rows", "who"), "form": ("rows",)}
"""Columns that name a line."""
SHOWN = {
    "place": ("share of copy",),
    "rows": ("over full", "scattered over full"),
    "decode": ("tokens/s",),
    "form": ("over prefill", "A", "B", "C"),
}
"""Columns that are shown of every run."""


def cell(value: Any) -> Cell:
    """Return a figure of a file as a table's cell."""
    return Interval(**value) if isinstance(value, dict) else value


def text(value: Any) -> str:
    """Return a figure of a file in words, without its quartiles."""
    return cell_text(cell(value), interval=False)


def write_page(runs: Runs, folder: Path) -> Path:
    """Write the page and its pictures into a folder; returns the page's path."""
    drawn = draw(runs, folder) if importable("matplotlib") else {}
    parts = ["# What each step costs", INTRODUCTION]
    parts += [f"`{run['command']}`: on {measured_on(run['environment'])}." for run in runs.values()]
    if any(run["bars"] for run in runs.values()):
        parts += ["## Which bars hold?", bars_table(runs)]
    for name, title in TITLES.items():
        body = link_table(runs) if name == "link" else beside(runs, name)
        if body:
            parts += [f"## {title}", TEXTS[name], body, drawn.get(name, "")]
    return write_parts(parts, folder / "cost.md")


def bars_table(runs: Runs) -> str:
    """Return what had to hold, a column for each run."""
    held = {(name, bar["name"]): bar for name, run in runs.items() for bar in run["bars"]}
    lines = []
    for bar in dict.fromkeys(bar for _, bar in held):
        own = [held.get((name, bar)) for name in runs]
        bounds = dict.fromkeys(f"{'≥' if each['least'] else '≤'} {each['bound']:g}" for each in own if each)
        verdicts = [each and f"{text(each['value'])} {'holds' if each['holds'] else '**missed**'}" for each in own]
        lines.append([bar, "; ".join(bounds), *(verdict or "" for verdict in verdicts)])
    return markdown_table(("bar", "bound", *runs), lines)


def link_table(runs: Runs) -> str:
    """Return first tokens by method, over re-prefill, with a column for each length of each run."""
    held = {
        (row["method"], name, row["rows"]): text(row["over re-prefill"])
        for name, run in runs.items()
        for row in run["tables"].get("link", [])
        if row["method"] not in REPREFILL
    }
    columns = list(dict.fromkeys(key[1:] for key in held))
    methods = dict.fromkeys(method for method, *_ in held)
    lines = [[method, *(held.get((method, *column), "") for column in columns)] for method in methods]
    return markdown_table(("method", *(f"{name} {rows:,}" for name, rows in columns)), lines) if lines else ""


def beside(runs: Runs, name: str) -> str:
    """Return a table with the shown columns of every run side by side; empty without rows."""
    held: dict[tuple[Any, ...], dict[str, Row]] = {}
    for run, found in runs.items():
        for row in found["tables"].get(name, []):
            if (name != "place" or row["rows"] == MIDDLE) and (name != "form" or row["patch"] == PATCH):
                held.setdefault(tuple(row[key] for key in KEYS[name]), {})[run] = row
    measured = [run for run in runs if any(run in rows for rows in held.values())]
    columns = [(run, column) for run in measured for column in SHOWN[name]]
    lines = [
        [*map(text, key), *(text(rows[run][column]) if run in rows else "" for run, column in columns)]
        for key, rows in held.items()
    ]
    head = [*KEYS[name], *(f"{run}: {column}" for run, column in columns)]
    return markdown_table(head, lines, (0, 1) if name == "decode" else (0,)) if lines else ""


def draw(runs: Runs, folder: Path) -> dict[str, str]:
    """Write the pictures of the first run into a folder; returns what shows each of them on the page."""
    name, run = next(iter(runs.items()))
    shown = {}
    columns = ("rows", "method", "over re-prefill")
    plot = Plot("rows", "over re-prefill", "method", doubling=True)
    link = _table("link", "Time to first token over re-prefill", columns, run["tables"].get("link", []), plot)
    path = draw_table(link, "cost", folder)
    if path is not None:
        shown["link"] = f"![First tokens over re-prefill, {name}]({path.name})"
    parts = (("rates", ("what", "rate")), ("decode", ("rows", "who", "tokens/s", "MB", "flop/byte")))
    tables = [
        _table(part, "", columns, run["tables"][part]) for part, columns in parts if run["tables"].get(part)
    ]
    for path in draw_roofline("cost", tables, folder):
        shown["decode"] = f"![Roofline of decoding, {name} (Kamera, figure 11a)]({path.name})"
    return shown


def _table(name: str, title: str, columns: Sequence[str], rows: Sequence[Row], *plots: Plot) -> Table:
    return Table(name, title, "", tuple(columns), tuple(tuple(cell(r[c]) for c in columns) for r in rows), plots)
