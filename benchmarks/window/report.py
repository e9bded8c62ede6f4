"""The window's figures for people: tables and bars on a screen, and a Markdown page with plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import ModelTables, options_text, show_tables, write_page
from benchmarks.table import Bar, Table, bars_of
from benchmarks.window.plots_trace import draw_trace
from benchmarks.window.records import StepRecord


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: its tables, and the records of its traces."""

    model: str
    tables: tuple[Table, ...]
    traces: tuple[tuple[StepRecord, ...], ...]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Everything that has to hold."""
        return bars_of(self.tables)


def show(screen: Console, measured: Measured) -> None:
    """Print the tables of a model, without their intervals, and its bars."""
    show_tables(screen, ModelTables(measured.model, measured.tables))


def write_report(found: Sequence[Measured], asked: Mapping[str, Any], folder: Path) -> Path:
    """Write `window.md` and its plots into a folder; returns the page's path."""
    traces = {measured.model: measured.traces for measured in found}

    def pictures(model: str, table: Table, folder: Path) -> list[Path]:
        return [path for records in traces[model] for path in _trace_pictures(model, records, table.name, folder)]

    models = [ModelTables(measured.model, measured.tables) for measured in found]
    command = f"`python -m benchmarks window`: {options_text(asked)}"
    return write_page(folder / "window.md", "The window, measured", command, models, pictures)


def _trace_pictures(model: str, records: Sequence[StepRecord], table: str, folder: Path) -> list[Path]:
    """Draw a trace where one of its tables is shown; the pictures that belong below that table."""
    name = records[0].trace
    if table not in (f"trace-{name}", "trace-questions"):
        return []
    paths = draw_trace(records, f"{name} trace: {model}", folder, f"{model}-{name}")
    return paths[:1] if table == f"trace-{name}" else paths[1:]
