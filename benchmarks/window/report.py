"""The window's figures for people: tables and bars on a screen, and a Markdown page with plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.table import Bar, Table
from benchmarks.table_plots import draw_table
from benchmarks.table_words import bar_lines, show_bars, show_table, table_lines
from benchmarks.window.plots_trace import draw_trace
from benchmarks.window.records import StepRecord
from emblema.eval.figures import environment


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: its tables, and the records of its traces."""

    model: str
    tables: tuple[Table, ...]
    traces: tuple[tuple[StepRecord, ...], ...]


def show(screen: Console, measured: Measured) -> None:
    """Print the tables of a model, without their intervals, and its bars."""
    for table in measured.tables:
        show_table(screen, table, f"{measured.model}: {table.title}")
    show_bars(screen, bars_of(measured))


def bars_of(measured: Measured) -> tuple[Bar, ...]:
    """Everything that has to hold."""
    return tuple(bar for table in measured.tables for bar in table.bars)


def write_report(found: Sequence[Measured], asked: Mapping[str, Any], folder: Path) -> Path:
    """Write `window.md` and its plots into a folder; returns the page's path."""
    where = environment()
    lines = [
        "# The window, measured",
        f"`python -m benchmarks window`: {', '.join(f'{name} {value}' for name, value in asked.items())}; on "
        f"{where['device']}, {where['cores']} cores, {where['threads']} threads of torch {where['torch']}, "
        f"{where['date']}.",
        "## Bars",
        "\n".join(bar_lines([(measured.model, bars_of(measured)) for measured in found])),
    ]
    for measured in found:
        lines.append(f"## {measured.model}")
        pictures = _trace_pictures(measured, folder)
        for table in measured.tables:
            lines += [f"### {table.title}", table.note, "\n".join(table_lines(table))]
            drawn = draw_table(table, measured.model, folder)
            own = [] if drawn is None else [drawn]
            own += pictures.pop(table.name, [])
            lines += [f"![{table.title}, {measured.model}]({path.name})" for path in own]
    page = folder / "window.md"
    page.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return page


def _trace_pictures(measured: Measured, folder: Path) -> dict[str, list[Path]]:
    """Pictures of the traces, by the table that they are shown under."""
    found = {}
    for records in measured.traces:
        name = records[0].trace
        paths = draw_trace(records, f"{name} trace: {measured.model}", folder, f"{measured.model}-{name}")
        found[f"trace-{name}"] = paths[:1]
        found["trace-questions"] = paths[1:] + found.get("trace-questions", [])
    return found
