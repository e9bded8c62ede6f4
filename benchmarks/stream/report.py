"""The report of a run of streams: figures as JSON, and a page of bars, tables, plots and pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ModelTables, options_text, write_page, write_rows
from benchmarks.table import Table, bars_of

Pictures = Mapping[str, Callable[[Table, Path], list[Path]]]


def write_json(label: str, tables: Sequence[Table], asked: Mapping[str, Any], path: Path) -> Path:
    """Write every table as data."""
    bars = [bar.data() for bar in bars_of(tables)]
    return write_rows({"model": label, "asked": asked, "bars": bars, "rows": [table.data() for table in tables]}, path)


def write_report(
    label: str, tables: Sequence[Table], asked: Mapping[str, Any], folder: Path, pictures: Pictures
) -> Path:
    """Write `stream.md` and its plots into a folder; returns the page's path.

    Args:
        pictures: what draws more than a table's plots, by the table's name.
    """

    def draw(model: str, table: Table, folder: Path) -> list[Path]:
        return pictures[table.name](table, folder) if table.name in pictures else []

    command = f"`python -m benchmarks stream`, {label}: {options_text(asked)}"
    return write_page(folder / "stream.md", "Streams, measured", command, [ModelTables(label, tuple(tables))], draw)
