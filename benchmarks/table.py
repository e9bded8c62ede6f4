"""The shape that a table of a bench has: what was measured, row by row, and what has to hold."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from emblema.errors import PromptError
from emblema.eval.figures import plain
from emblema.eval.metrics import Interval, Share

Cell = str | int | float | Interval | Share | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure: so many items from a seed."""

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
        only: column and value of the rows that are drawn; all of them without.
        doubling: `x` on an axis of powers of two.
    """

    x: str
    y: str
    by: str | None = None
    bars: bool = False
    split: str | None = None
    only: tuple[str, Cell] | None = None
    doubling: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that has to hold.

    Attributes:
        value: what was measured; None where nothing was, for which nothing holds.
        bound: what it is held against, from below if `least`, else from above.
        count: items behind the value.
        strict: whether a value on the bound does not hold.
    """

    name: str
    value: float | None
    bound: float
    least: bool = True
    count: int = 0
    strict: bool = False

    @property
    def holds(self) -> bool:
        if self.value is None or math.isnan(self.value):
            return False
        if self.value == self.bound:
            return not self.strict
        return self.value > self.bound if self.least else self.value < self.bound


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
        seconds: how long it took.
    """

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    plots: tuple[Plot, ...] = ()
    bars: tuple[Bar, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        uneven = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if uneven is not None:
            raise PromptError(f"table {self.name}: a row of {len(uneven)} cells under {len(self.columns)} columns")

    @property
    def records(self) -> tuple[dict[str, Cell], ...]:
        """Every row by column."""
        return tuple(dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def data(self) -> dict[str, Any]:
        """Everything as plain data for JSON: intervals as value, low and high, shares as value and count."""
        rows = [
            {name: asdict(cell) if isinstance(cell, Interval | Share) else cell for name, cell in record.items()}
            for record in self.records
        ]
        found: dict[str, Any] = plain(
            {
                "name": self.name,
                "title": self.title,
                "note": self.note,
                "columns": self.columns,
                "rows": rows,
                "bars": [{**asdict(bar), "holds": bar.holds} for bar in self.bars],
                "seconds": self.seconds,
            }
        )
        return found
