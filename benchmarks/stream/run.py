"""What `python -m benchmarks stream` does, from options to files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.recordfile import RecordFile, TableRecord, digest
from benchmarks.report import ModelTables, show_tables
from benchmarks.stream.costs import measure_bytes, measure_growth
from benchmarks.stream.long import measure_long
from benchmarks.stream.page import write_page
from benchmarks.stream.passes import PassRecord, PassResults, run_passes
from benchmarks.stream.plan import ACCURACY_PARTS, AccuracyOptions
from benchmarks.stream.running import SystemsOptions
from benchmarks.stream.tables import ablation_table, accuracy_tables, length_table, search_table
from benchmarks.table import Table
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

SYSTEMS: dict[str, Callable[[Engine, SystemsOptions, Console], Table]] = {
    "growth": measure_growth,
    "long": measure_long,
    "bytes": measure_bytes,
}
"""The parts about time and bytes by name; the table of a part has that name."""
PARTS = (*ACCURACY_PARTS, *SYSTEMS)
SWEEPS: dict[str, Callable[[PassResults, AccuracyOptions], Table]] = {
    "search": search_table,
    "lengths": length_table,
    "ablation": ablation_table,
}


@dataclass(frozen=True, slots=True)
class StreamRunOptions:
    """What to measure, and where it is written.

    Attributes:
        label: the model's short name.
        parts: of `PARTS`.
        folder: of the page, its pictures, its figures, and what is made on the way.
        beside: figures of a run on other seeds, which the page shows too.
    """

    label: str
    accuracy: AccuracyOptions
    systems: SystemsOptions
    parts: Sequence[str]
    folder: Path
    beside: Path | None = None


def run_streams(engine: Engine, options: StreamRunOptions, screen: Console) -> tuple[Table, ...]:
    """Measure, print, and write figures and page after each part; a run that was killed goes on.

    Raises:
        EmblemaError: a stream does not fit the model, or a file is not right.
    """
    found: list[Table] = []
    folder, accuracy, systems = options.folder, options.accuracy, options.systems
    beside = None if options.beside is None else _read_beside(options.beside)
    with (
        RecordFile(folder / "stream-records.jsonl", PassRecord) as records,
        RecordFile(folder / "stream-tables.jsonl", TableRecord) as tables,
    ):
        for part in options.parts:
            if part in SYSTEMS:
                key = digest(engine.adapter.fingerprint, part, asdict(systems))
                if key not in tables.held:
                    tables.add([TableRecord(key, SYSTEMS[part](engine, systems, screen))])
                made: tuple[Table, ...] = (tables.held[key].table,)
            else:
                results = run_passes(engine, part, accuracy, records, screen)
                made = accuracy_tables(results, accuracy) if part == "accuracy" else (SWEEPS[part](results, accuracy),)
            found += made
            show_tables(screen, ModelTables(options.label, made))
            write_run(ModelTables(options.label, tuple(found)), accuracy.reported, folder, beside)
    return tuple(found)


def write_run(
    found: ModelTables, asked: Mapping[str, Any], folder: Path, beside: Mapping[str, Any] | None = None
) -> Path:
    """Write `stream.json`, and the page that it makes; returns the page's path."""
    data = found.data()
    tables = rounded({table["name"]: table["rows"] for table in data["tables"]})
    figures = {"model": found.model, "asked": asked, "bars": rounded(data["bars"]), "tables": tables, "fresh": beside}
    return write_page(read_figures(write_figures(figures, folder / "stream.json")), folder)


def _read_beside(path: Path) -> dict[str, Any]:
    try:
        found = read_figures(path)
        return {name: found[name] for name in ("environment", "asked", "tables")}
    except (OSError, ValueError, KeyError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error}); give what `benchmarks stream` wrote") from error
