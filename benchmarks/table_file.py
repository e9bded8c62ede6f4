"""Tables that were measured before, a line each, so that a killed run goes on with the next one."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.recordfile import parsed, records_in
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.errors import EmblemaError
from emblema.eval.metrics import Interval, Share


class KeptTables:
    """A file of tables by key. One process writes it.

    Raises:
        EmblemaError: the file cannot be written, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: dict[str, Table] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):
                # A run was killed while it wrote: what it left of a line goes.
                path.write_text("".join(lines[:-1]), encoding="utf-8")
                lines.pop()
        except OSError as error:
            raise EmblemaError(f"{path}: it cannot be written ({error.strerror}); give another place") from error
        self.held.update(parsed(path, lines, _kept))

    def add(self, key: str, table: Table) -> None:
        """Keep a table."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, _written(table)]) + "\n")
        self.held[key] = table


def tables_in(path: Path) -> dict[str, Table]:
    """The tables by key of a file that another run writes, or wrote; none are in a file that is not there.

    Raises:
        EmblemaError: the file cannot be read, or holds something else.
    """
    return dict(records_in(path, _kept))


def _kept(line: str) -> tuple[str, Table]:
    key, table = json.loads(line)
    return key, _read(table)


def _written(table: Table) -> dict[str, Any]:
    return {**asdict(table), "rows": [[_cell(cell) for cell in row] for row in table.rows]}


def _cell(cell: Cell) -> Any:
    return asdict(cell) if isinstance(cell, Interval | Share) else cell


def _read(held: dict[str, Any]) -> Table:
    return Table(
        held["name"],
        held["title"],
        held["note"],
        tuple(held["columns"]),
        tuple(tuple(_read_cell(cell) for cell in row) for row in held["rows"]),
        tuple(_read_plot(one) for one in held["plots"]),
        tuple(Bar(**one) for one in held["bars"]),
        held["seconds"],
    )


def _read_plot(held: dict[str, Any]) -> Plot:
    only = held.get("only")
    return Plot(**{**held, "only": None if only is None else (only[0], only[1])})


def _read_cell(cell: Any) -> Cell:
    if not isinstance(cell, dict):
        found: Cell = cell
        return found
    return Interval(**cell) if "low" in cell else Share(**cell)
