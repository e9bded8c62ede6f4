"""What `python -m benchmarks stream` does, from options to files."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.recordfile import records_in
from benchmarks.stream.passes import Results, run_passes
from benchmarks.stream.records import PassRecord, Records, digest
from benchmarks.stream.report import show, write_json, write_page
from benchmarks.stream.sweeps import ablation_table, budget_table, length_table
from benchmarks.stream.systems.measure import PARTS as SYSTEMS
from benchmarks.stream.systems.measure import PICTURES
from benchmarks.stream.systems.wanted import SystemsWanted
from benchmarks.stream.tables import accuracy_tables
from benchmarks.stream.wanted import PARTS, Wanted
from benchmarks.table import Table
from benchmarks.table_file import KeptTables, tables_in
from emblema.engine.engine import Engine
from emblema.errors import PromptError

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


def parts_of(text: str | None) -> tuple[str, ...]:
    """Names of parts with commas between them, in the bench's order; all without any.

    Raises:
        PromptError: there is none of that name.
    """
    known = (*PARTS, *SYSTEMS)
    if text is None:
        return known
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = next((name for name in named if name not in known), None)
    if unknown is not None or not named:
        raise PromptError(f"--only {text!r}: choose of {', '.join(known)}, with commas")
    return tuple(name for name in known if name in named)


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
        records = stack.enter_context(Records(_beside(files.figures, "records")))
        tables = KeptTables(_beside(files.figures, "tables"))
        for other in files.others:
            places = _beside(other, "records"), _beside(other, "tables")
            if not any(place.exists() for place in places):
                raise PromptError(f"--with {other}: there is no {places[0].name} beside it; give another run's --json")
            records.held.update({one.key: one for one in records_in(places[0], PassRecord.read)})
            tables.held.update(tables_in(places[1]))
        for part in parts:
            if part in SYSTEMS:
                made: tuple[Table, ...] = (_system(engine, part, systems, tables, screen),)
            else:
                results = run_passes(engine, label, wanted.passes(part), wanted, records, screen)
                made = accuracy_tables(results, wanted) if part == "accuracy" else (SWEEPS[part](results, wanted),)
            found += made
            show(screen, label, made)
            write_json(label, found, told(wanted), files.figures)
            write_page(label, found, told(wanted), files.report, PICTURES)
    return tuple(found)


def _system(engine: Engine, part: str, wanted: SystemsWanted, tables: KeptTables, screen: Console) -> Table:
    key = digest(engine.adapter.fingerprint, part, asdict(wanted))
    if key not in tables.held:
        tables.add(key, SYSTEMS[part](engine, wanted, screen))
    return tables.held[key]


def _beside(figures: Path, what: str) -> Path:
    return figures.with_suffix(f".{what}.jsonl")
