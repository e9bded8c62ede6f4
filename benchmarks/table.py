"""Tables of measurements: figures row by row and what must hold, on a screen, as Markdown and as plain data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table as ScreenTable
from rich.text import Text

from benchmarks.intervals import Interval
from emblema.errors import PromptError
from emblema.eval.figures import plain

Cell = str | int | float | Interval | None
Fields = TypeVar("Fields", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Fresh items to measure on: how many, and the seed that they are drawn from."""

    items: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.items < 1 or self.seed < 0:
            raise PromptError(f"{self.items} items of seed {self.seed}: give one item or more, and a seed of 0 or more")


@dataclass(frozen=True, slots=True)
class Plot:
    """What of a table to draw: the column `y` over the column `x`, a line (or group of bars) for each value of `by`.

    Attributes:
        bars: bars, where `x` is a name rather than a number.
        split: a panel for each value of this column.
        doubling: `x` on an axis of powers of two.
    """

    x: str
    y: str
    by: str | None = None
    bars: bool = False
    split: str | None = None
    doubling: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound that a measured value has to hold.

    Attributes:
        value: what was measured; None where nothing was, which holds no bound.
        bound: from below if `least`, else from above.
        count: items that the value was measured on.
        aim: whether it is reported beside the bars and does not count.
    """

    name: str
    value: float | None
    bound: float
    least: bool = True
    count: int = 0
    aim: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of the bound, or on it."""
        if self.value is None:
            return False
        return self.value >= self.bound if self.least else self.value <= self.bound

    def data(self) -> dict[str, Any]:
        """Return the bar as plain data for JSON."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Table:
    """One table on one model.

    Attributes:
        name: short, for files: letters and hyphens.
        title: one line.
        note: what was measured and how to read it, in sentences.
        columns: a name for each cell of a row.
        rows: cells as numbers, with their interval or count where they are estimates; None where there is nothing.
        plots: what to draw.
        bars: what has to hold.
    """

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    plots: tuple[Plot, ...] = ()
    bars: tuple[Bar, ...] = ()

    def __post_init__(self) -> None:
        uneven = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if uneven is not None:
            raise PromptError(f"table {self.name}: a row of {len(uneven)} cells under {len(self.columns)} columns")

    @property
    def records(self) -> tuple[dict[str, Cell], ...]:
        """Every row by column."""
        return tuple(dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def data(self) -> dict[str, Any]:
        """Return the table as plain data for JSON: intervals as value, low and high."""
        rows = [
            {name: asdict(cell) if isinstance(cell, Interval) else cell for name, cell in record.items()}
            for record in self.records
        ]
        named = {name: getattr(self, name) for name in ("name", "title", "note", "columns")}
        found: dict[str, Any] = plain({**named, "rows": rows, "bars": [bar.data() for bar in self.bars]})
        return found


def grouped(rows: Iterable[Fields], column: str | None) -> dict[Any, list[Fields]]:
    """Return rows by what they have in a column; all of them together without one."""
    found: dict[Any, list[Fields]] = {}
    for row in rows:
        found.setdefault(None if column is None else row[column], []).append(row)
    return found


def cell_of(value: Any) -> Cell:
    """Return a figure of a file as a table's cell."""
    return Interval(**value) if isinstance(value, dict) else value


def cell_text(cell: Cell, *, interval: bool = True) -> str:
    """Return a cell in words: three or four digits, an interval in brackets."""
    if isinstance(cell, Interval):
        if not interval or cell.low == cell.high or math.isnan(cell.low):
            return _digits(cell.value)
        return f"{_digits(cell.value)} [{_digits(cell.low)}, {_digits(cell.high)}]"
    if isinstance(cell, bool) or cell is None:
        return "" if cell is None else str(cell)
    return _digits(cell) if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def figure_text(value: Any, *, interval: bool = True) -> str:
    """Return a figure of a file in words; an estimate has its interval, unless that is left out."""
    return cell_text(cell_of(value), interval=interval)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Return cells as a Markdown table; the columns `words` are aligned left, the others right."""
    rule = [":--" if column in words else "--:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def table_markdown(table: Table) -> str:
    """Return a table in Markdown."""
    return markdown_table(table.columns, [[cell_text(cell) for cell in row] for row in table.rows], _words(table))


def bars_markdown(bars: Iterable[Bar]) -> str:
    """Return bars as a Markdown table."""
    lines = [(bar.name, _value(bar), _bound(bar), "holds" if bar.holds else "**missed**") for bar in bars]
    return markdown_table(("bar", "measured", "bound", ""), lines)


def show_table(screen: Console, table: Table, title: str) -> None:
    """Print a table without its intervals, and its note."""
    screen.print(Text(title, "bold"))
    grid, words = ScreenTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)), _words(table)
    for column, name in enumerate(table.columns):
        grid.add_column(name, justify="left" if column in words else "right", no_wrap=True)
    for row in table.rows:
        grid.add_row(*(cell_text(cell, interval=False) for cell in row))
    screen.print(grid)
    screen.print(Text(table.note, "dim"))
    screen.print()


def show_bars(screen: Console, bars: Iterable[Bar]) -> None:
    """Print bars: those that hold in green, those missed in red, missed aims in yellow."""
    for bar in bars:
        items = f" ({bar.count:,} items)" if bar.count else ""
        aim = " (aim)" if bar.aim else ""
        colour = "green" if bar.holds else "yellow" if bar.aim else "red"
        verdict = "holds " if bar.holds else "missed"
        screen.print(Text(f"{verdict}  {bar.name}: {_value(bar)}, bound {_bound(bar)}{items}{aim}", colour))
    screen.print()


def _words(table: Table) -> list[int]:
    return [place for place in range(len(table.columns)) if any(isinstance(row[place], str) for row in table.rows)]


def _value(bar: Bar) -> str:
    return "nothing measured" if bar.value is None or math.isnan(bar.value) else _digits(bar.value)


def _bound(bar: Bar) -> str:
    return f"{'≥' if bar.least else '≤'} {bar.bound:g}"


def _digits(value: float) -> str:
    if math.isnan(value):
        return ""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"
