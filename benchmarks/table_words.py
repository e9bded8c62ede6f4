"""Tables and bars in words: on a screen, and as Markdown."""

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from benchmarks.table import Bar, Cell, Table
from emblema.eval.metrics import Interval, Share


def show_table(screen: Console, table: Table, title: str) -> None:
    """Print a table without its intervals."""
    screen.print(Text(title, "bold"))
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, column in enumerate(table.columns):
        words = any(isinstance(row[place], str) for row in table.rows)
        grid.add_column(column, justify="left" if words else "right", no_wrap=words)
    for row in table.rows:
        grid.add_row(*(text_of(cell, interval=False) for cell in row))
    screen.print(grid)
    screen.print(Text(table.note, "dim"))
    screen.print()


def show_bars(screen: Console, bars: Iterable[Bar]) -> None:
    """Print bars, those that hold in green."""
    for bar in bars:
        screen.print(Text(f"{'holds ' if bar.holds else 'missed'}  {_bar(bar)}", "green" if bar.holds else "red"))
    screen.print()


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


def table_lines(table: Table) -> list[str]:
    """A table as lines of Markdown."""
    aligned = [
        "---" if any(isinstance(row[place], str) for row in table.rows) else "---:"
        for place in range(len(table.columns))
    ]
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    return [f"| {' | '.join(row)} |" for row in (table.columns, aligned, *rows)]


def bar_lines(found: Sequence[tuple[str, Sequence[Bar]]]) -> list[str]:
    """The bars of models by name, as lines of Markdown."""
    lines = ["| model | bar | measured | bound | behind it | |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for model, bars in found:
        for bar in bars:
            value = "nothing" if bar.value is None or math.isnan(bar.value) else _digits(bar.value)
            verdict = "holds" if bar.holds else "**missed**"
            lines.append(f"| {model} | {bar.name} | {value} | {_bound(bar)} | {bar.count:,} | {verdict} |")
    return lines


def _bar(bar: Bar) -> str:
    value = "nothing measured" if bar.value is None or math.isnan(bar.value) else _digits(bar.value)
    behind = f" ({bar.count:,} behind it)" if bar.count else ""
    return f"{bar.name}: {value}, bound {_bound(bar)}{behind}"


def _bound(bar: Bar) -> str:
    sign = (">" if bar.strict else "≥") if bar.least else ("<" if bar.strict else "≤")
    return f"{sign} {bar.bound:g}"


def _digits(value: float) -> str:
    if math.isnan(value):
        return ""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"
