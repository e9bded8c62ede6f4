"""What `python -m benchmarks stream` does, from options to files."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.recordfile import RecordFile, TableRecord, digest, records_in
from benchmarks.report import ModelTables, show_tables
from benchmarks.stream.passes import Results, run_passes
from benchmarks.stream.records import PassRecord
from benchmarks.stream.report import write_json, write_report
from benchmarks.stream.sweeps import ablation_table, budget_table, length_table
from benchmarks.stream.systems.measure import PARTS as SYSTEMS
from benchmarks.stream.systems.measure import PICTURES
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.stream.tables import accuracy_tables
from benchmarks.stream.wanted import ACCURACY_PARTS, Wanted
from benchmarks.table import Table
from emblema.engine.engine import Engine
from emblema.errors import PromptError

PARTS = (*ACCURACY_PARTS, *SYSTEMS)
SWEEPS: dict[str, Callable[[Results, Wanted], Table]] = {
    "budgets": budget_table,
    "lengths": length_table,
    "ablation": ablation_table,
}


@dataclass(frozen=True, slots=True)
class Files:
    """Where a run reads and writes.

    Attributes:
        figures: JSON; what is made on the way lies beside it.
        report: folder of the page and its plots.
        others: JSON files of other runs; what lies beside those counts as measured, and is not written to.
    """

    figures: Path
    report: Path
    others: tuple[Path, ...] = field(default=())


def told(wanted: Wanted) -> dict[str, Any]:
    """The options as they are reported."""
    settings = wanted.settings
    shared = {name: getattr(settings, name) for name in ("sinks", "window", "block", "positions")}
    named = ("kinds", "seeds", "items", "others", "frames", "lengths", "budget", "budgets", "times", "each")
    return {**{name: getattr(wanted, name) for name in named}, **shared}


def run(
    engine: Engine,
    label: str,
    wanted: Wanted,
    systems: SystemsWanted,
    parts: Sequence[str],
    files: Files,
    screen: Console,
) -> tuple[Table, ...]:
    """Measure, print, and write the JSON file and the report after each part; a run that was killed goes on.

    Args:
        parts: of `PARTS`, or of the systems'.

    Raises:
        EmblemaError: a stream does not fit the model, or a file is not right.
    """
    found: list[Table] = []
    with ExitStack() as stack:
        records = stack.enter_context(RecordFile(_beside(files.figures, "records"), PassRecord))
        tables = stack.enter_context(RecordFile(_beside(files.figures, "tables"), TableRecord))
        for other in files.others:
            places = _beside(other, "records"), _beside(other, "tables")
            if not any(place.exists() for place in places):
                raise PromptError(f"--with {other}: there is no {places[0].name} beside it; give another run's --json")
            records.held.update(records_in(places[0], PassRecord))
            tables.held.update(records_in(places[1], TableRecord))
        for part in parts:
            if part in SYSTEMS:
                made: tuple[Table, ...] = (_system(engine, part, systems, tables, screen),)
            else:
                results = run_passes(engine, label, wanted.passes(part), wanted, records, screen)
                made = accuracy_tables(results, wanted) if part == "accuracy" else (SWEEPS[part](results, wanted),)
            found += made
            show_tables(screen, ModelTables(label, made))
            write_json(label, found, told(wanted), files.figures)
            write_report(label, found, told(wanted), files.report, PICTURES)
    return tuple(found)


def _system(
    engine: Engine, part: str, wanted: SystemsWanted, tables: RecordFile[TableRecord], screen: Console
) -> Table:
    key = digest(engine.adapter.fingerprint, part, asdict(wanted))
    if key not in tables.held:
        tables.add([TableRecord(key, SYSTEMS[part](engine, wanted, screen))])
    return tables.held[key].table


def _beside(figures: Path, what: str) -> Path:
    return figures.with_suffix(f".{what}.jsonl")
