"""The page of a run: bars, then every table with its plots and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.fidelity.files import write_rows
from benchmarks.table import Bar, Table
from benchmarks.table_plots import draw_table
from benchmarks.table_words import bar_lines, show_bars, show_table, table_lines
from emblema.eval.figures import environment, plain

Pictures = Mapping[str, Callable[[Table, Path], list[Path]]]


def bars_of(tables: Sequence[Table]) -> tuple[Bar, ...]:
    """Everything that has to hold."""
    return tuple(bar for table in tables for bar in table.bars)


def show(screen: Console, label: str, tables: Sequence[Table]) -> None:
    """Print tables and their bars."""
    for table in tables:
        show_table(screen, table, f"{label}: {table.title}")
    show_bars(screen, bars_of(tables))


def write_json(label: str, tables: Sequence[Table], asked: Mapping[str, Any], path: Path) -> Path:
    """Write every table as data."""
    found = {
        "environment": environment(),
        "model": label,
        "asked": asked,
        "bars": [{**asdict(bar), "holds": bar.holds} for bar in bars_of(tables)],
        "rows": [table.data() for table in tables],
    }
    return write_rows(plain(found), path)


def write_page(label: str, tables: Sequence[Table], asked: Mapping[str, Any], folder: Path, pictures: Pictures) -> Path:
    """Write `stream.md` and its plots into a folder; returns the page's path.

    Args:
        pictures: what draws more than a table's plots, by the table's name.
    """
    where = environment()
    lines = [
        "# Streams, measured",
        f"`python -m benchmarks stream`, {label}: "
        f"{', '.join(f'{name} {_words(value)}' for name, value in asked.items())}; "
        f"on {where['device']}, {where['cores']} cores, {where['threads']} threads of torch {where['torch']}, "
        f"{where['date']}.",
    ]
    bars = bars_of(tables)
    if bars:
        lines += ["## Bars", "\n".join(bar_lines([(label, bars)]))]
    for table in tables:
        lines += [f"## {table.title}", table.note, "\n".join(table_lines(table))]
        drawn = draw_table(table, label, folder)
        paths = [] if drawn is None else [drawn]
        if table.name in pictures:
            paths += pictures[table.name](table, folder)
        lines += [f"![{table.title}, {label}]({path.name})" for path in paths]
    page = folder / "stream.md"
    page.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return page


def _words(value: Any) -> str:
    return " ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value)
