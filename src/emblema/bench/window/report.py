"""The window's figures for people: tables and bars on a screen, and a Markdown page with plots."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from emblema.bench.figures import environment
from emblema.bench.metrics import Interval, Share
from emblema.bench.table import Bar, Cell, Table
from emblema.bench.window.plots import draw_table
from emblema.bench.window.plots_trace import draw_trace
from emblema.bench.window.records import StepRecord


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: its tables, and the records of its traces."""

    model: str
    tables: tuple[Table, ...]
    traces: tuple[tuple[StepRecord, ...], ...]


def show(screen: Console, measured: Measured) -> None:
    """Print the tables of a model, without their intervals, and its bars."""
    for table in measured.tables:
        screen.print(Text(f"{measured.model}: {table.title}", "bold"))
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for place, column in enumerate(table.columns):
            words = any(isinstance(row[place], str) for row in table.rows)
            grid.add_column(column, justify="left" if words else "right", no_wrap=words)
        for row in table.rows:
            grid.add_row(*(text_of(cell, interval=False) for cell in row))
        screen.print(grid)
        screen.print(Text(table.note, "dim"))
        screen.print()
    for bar in bars_of(measured):
        screen.print(Text(f"{'holds ' if bar.holds else 'missed'}  {_bar(bar)}", "green" if bar.holds else "red"))
    screen.print()


def bars_of(measured: Measured) -> tuple[Bar, ...]:
    """Everything that has to hold."""
    return tuple(bar for table in measured.tables for bar in table.bars)


def text_of(cell: Cell, *, interval: bool = True) -> str:
    """A cell in words: three or four digits, an interval in brackets, a share with its count."""
    if isinstance(cell, Interval):
        if not interval or cell.low == cell.high or math.isnan(cell.low):
            return _digits(cell.value)
        return f"{_digits(cell.value)} [{_digits(cell.low)}, {_digits(cell.high)}]"
    if isinstance(cell, Share):
        return (
            (f"{cell.value:.3f} of {cell.count}" if interval else f"{cell.value:.2f}/{cell.count}")
            if cell.count
            else ""
        )
    if isinstance(cell, bool) or cell is None:
        return "" if cell is None else str(cell)
    return _digits(cell) if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def _digits(value: float) -> str:
    if math.isnan(value):
        return ""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def _bar(bar: Bar) -> str:
    value = "nothing measured" if bar.value is None or math.isnan(bar.value) else _digits(bar.value)
    behind = f" ({bar.count:,} behind it)" if bar.count else ""
    return f"{bar.name}: {value}, bound {'≥' if bar.least else '≤'} {bar.bound:g}{behind}"


def write_report(found: Sequence[Measured], asked: Mapping[str, Any], folder: Path) -> Path:
    """Write `window.md` and its plots into a folder; returns the page's path."""
    where = environment()
    lines = [
        "# The window, measured",
        f"`emblema bench window`: {', '.join(f'{name} {value}' for name, value in asked.items())}; on "
        f"{where['device']}, {where['cores']} cores, {where['threads']} threads of torch {where['torch']}, "
        f"{where['date']}.",
        "## Bars",
        "\n".join(_bars_table(found)),
    ]
    for measured in found:
        lines.append(f"## {measured.model}")
        pictures = _trace_pictures(measured, folder)
        for table in measured.tables:
            lines += [f"### {table.title}", table.note, "\n".join(_table(table))]
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


def _bars_table(found: Sequence[Measured]) -> list[str]:
    lines = ["| model | bar | measured | bound | behind it | |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for measured in found:
        for bar in bars_of(measured):
            value = "nothing" if bar.value is None or math.isnan(bar.value) else _digits(bar.value)
            bound = f"{'≥' if bar.least else '≤'} {bar.bound:g}"
            verdict = "holds" if bar.holds else "**missed**"
            lines.append(f"| {measured.model} | {bar.name} | {value} | {bound} | {bar.count:,} | {verdict} |")
    return lines


def _table(table: Table) -> list[str]:
    aligned = [
        "---" if any(isinstance(row[place], str) for row in table.rows) else "---:"
        for place in range(len(table.columns))
    ]
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    return [f"| {' | '.join(row)} |" for row in (table.columns, aligned, *rows)]
