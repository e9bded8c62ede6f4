"""The tables and the picture of the page of changed pictures, made of its JSON file; its words are written by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.blocks import write_blocks
from benchmarks.plots import draw_table
from benchmarks.table import Cell, Plot, Table, bars_markdown, cell_text, markdown_table
from benchmarks.variants.run import AT, bars_of

NAME = "changed"
FIGURES = {
    "rows": "rows",
    "encoded": "work",
    "moved": "moved",
    "encoder KL": "encoder KL",
    "encoder agrees": "encoder agrees",
    "KL": "KL",
    "agrees": "agrees",
}
"""Figures of a row, and their names in the table."""
DRAWN = {"rows": "rows", "encoded": "encoder's work", "agrees": "agrees", "KL": "KL"}
"""Those in the picture."""


def write_changed_page(found: dict[str, Any], folder: Path) -> Path:
    """Make the tables of `changed.md` in a folder, and its picture; returns the page's path."""
    for table in pictures(found):
        draw_table(table, NAME, folder)
    return write_blocks(folder / f"{NAME}.md", "Pictures that changed a little", blocks(found))


def blocks(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by the names of their blocks."""
    auto = [row for row in found["rows"] if row["method"] == "auto" and row["share"] == AT]
    lines = [
        [
            row["model"],
            row["place"],
            *("" if (value := _figure(row, name)) is None else cell_text(value) for name in FIGURES),
        ]
        for row in auto
    ]
    runs = "\n".join(f"- `{run['command']}`, {run['date']}" for run in found["runs"])
    table = markdown_table(("model", "place", *FIGURES.values()), lines, (0, 1))
    return {"bars": bars_markdown(bars_of(found)), "tenth": table, "runs": runs}


def pictures(found: dict[str, Any]) -> Iterator[Table]:
    """Yield the table whose plots are the page's picture: figures by share, of changes side by side."""
    names = ("changed", *DRAWN.values(), "model")
    rows: list[tuple[Cell, ...]] = [
        (row["share"], *(_figure(row, name) for name in DRAWN), row["model"])
        for row in found["rows"]
        if row["method"] == "auto" and row["place"] == "region"
    ]
    plots = tuple(Plot("changed", name, "model", doubling=True) for name in names[1:-1])
    yield Table("shares", "Pictures of which a share changed, side by side", "", names, tuple(rows), plots)


def _figure(row: dict[str, Any], name: str) -> float | None:
    """Return a figure of a row; None without one, and for answers of random weights, which know nothing."""
    value = row[name]
    silent = value is None or (name.endswith("agrees") and row["model"].startswith("random"))
    return None if silent else float(value)
