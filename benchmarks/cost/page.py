"""The tables and pictures of the page of costs, made of figures of runs; its words are written by hand."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.cost.linking import LINK_PLOT, REPREFILL
from benchmarks.cost.roofline import draw_roofline
from benchmarks.plots import draw_table, importable
from benchmarks.report import measured_on
from benchmarks.table import Table, cell_of, figure_text, markdown_table

Runs = Mapping[str, Mapping[str, Any]]

COLUMNS = {
    "place": (("rank", "chunks"), ("share of copy",)),
    "rows": (("% of chunks",), ("over full", "scattered over full")),
    "decode": (("rows", "who"), ("tokens/s",)),
    "form": (("rows",), ("over prefill", "A", "B", "C")),
    "states": (("method",), ("TTFT ms", "over full")),
}
"""Columns that name a line, and those that are shown of every run."""

text = partial(figure_text, interval=False)
"""Returns a figure of a file in words, without its quartiles."""


def write_page(runs: Runs, folder: Path) -> Path:
    """Make the tables of `cost.md` in a folder, and its pictures, of the first run; returns the page's path."""
    tables = next(iter(runs.values()))["tables"]
    columns = ("rows", "method", "over re-prefill")
    rows = tuple(tuple(cell_of(row[column]) for column in columns) for row in tables.get("link", ()))
    draw_table(Table("link", "Time to first token over re-prefill", "", columns, rows, (LINK_PLOT,)), "cost", folder)
    if {"rates", "decode"} <= tables.keys() and importable("matplotlib"):
        draw_roofline(tables["rates"], tables["decode"], folder)
    return write_blocks(folder / "cost.md", "What each step costs", blocks(runs))


def blocks(runs: Runs) -> dict[str, str]:
    """Return the tables of the page by the names of their blocks, empty where nothing was measured."""
    told = [f"`{run['command']}`: on {measured_on(run['environment'])}." for run in runs.values()]
    made = {"runs": "\n\n".join(told), "bars": bars_table(runs), "link": link_table(runs)}
    return made | {name: beside(runs, name) for name in COLUMNS} | {"sizes": sizes(runs)}


def bars_table(runs: Runs) -> str:
    """Return what had to hold, a column for each run; empty where nothing had to."""
    held = {(name, bar["name"]): bar for name, run in runs.items() for bar in run["bars"]}
    lines = []
    for bar in dict.fromkeys(bar for _, bar in held):
        own = [held.get((name, bar)) for name in runs]
        bounds = dict.fromkeys(f"{'≥' if each['least'] else '≤'} {each['bound']:g}" for each in own if each)
        verdicts = [each and f"{text(each['value'])} {'holds' if each['holds'] else '**missed**'}" for each in own]
        lines.append([bar, "; ".join(bounds), *(verdict or "" for verdict in verdicts)])
    return markdown_table(("bar", "bound", *runs), lines) if lines else ""


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


def sizes(runs: Runs) -> str:
    """Return the table of chunks at the shapes of models, which is the same in all runs that have it; else empty."""
    held: list[Mapping[str, Any]] = next((own for run in runs.values() if (own := run["tables"].get("sizes"))), [])
    return markdown_table(tuple(held[0]), [[text(cell) for cell in row.values()] for row in held], (0,)) if held else ""


def beside(runs: Runs, name: str) -> str:
    """Return a table with the shown columns of every run side by side; empty without rows."""
    keys, shown = COLUMNS[name]
    held: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for run, found in runs.items():
        for row in found["tables"].get(name, []):
            held.setdefault(tuple(row[key] for key in keys), {})[run] = row
    columns = [(run, column) for run in runs if name in runs[run]["tables"] for column in shown]
    lines = [
        [*map(text, key), *(text(rows[run][column]) if run in rows else "" for run, column in columns)]
        for key, rows in held.items()
    ]
    head = [*keys, *(f"{run}: {column}" for run, column in columns)]
    return markdown_table(head, lines, (0, 1) if name == "decode" else (0,)) if lines else ""
