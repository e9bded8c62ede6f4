"""What `python -m benchmarks stream` does, from options to files."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import read_figures, rounded, write_figures
from benchmarks.recordfile import RecordFile, TableRecord, digest, recorded_table
from benchmarks.report import ModelTables, comma_list, show_tables
from benchmarks.stream.costs import measure_bytes, measure_growth
from benchmarks.stream.long import measure_drawn, measure_long, measure_still
from benchmarks.stream.page import write_page
from benchmarks.stream.passes import PassRecord, PassResults, run_passes
from benchmarks.stream.plan import ABLATIONS, ACCURACY_PARTS, METHODS, AccuracyOptions, arms_named
from benchmarks.stream.running import SystemsOptions
from benchmarks.stream.tables import ablation_table, accuracy_tables, length_table, search_table
from benchmarks.table import Table
from emblema.engine.engine import Engine
from emblema.errors import PromptError

SYSTEMS: dict[str, Callable[[Engine, SystemsOptions, Console], Table]] = {
    "growth": measure_growth,
    "long": measure_long,
    "drawn": measure_drawn,
    "still": measure_still,
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
class StreamOptions:
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


def run_streams(engine: Engine, options: StreamOptions, screen: Console) -> tuple[Table, ...]:
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
                measured = recorded_table(tables, key, lambda: measure_part(part, engine, systems, screen))  # noqa: B023
                made: tuple[Table, ...] = (measured,)
            else:
                results = run_passes(engine, options.label, part, accuracy, records, screen)
                made = accuracy_tables(results, accuracy) if part == "accuracy" else (SWEEPS[part](results, accuracy),)
            found += made
            show_tables(screen, ModelTables(options.label, made))
            write_run(ModelTables(options.label, tuple(found)), accuracy.reported, folder, beside)
    return tuple(found)


def measure_part(part: str, engine: Engine, options: SystemsOptions, screen: Console) -> Table:
    """Measure one of `SYSTEMS`, and how long that took."""
    began = time.perf_counter()
    return replace(SYSTEMS[part](engine, options, screen), seconds=time.perf_counter() - began)


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
        raise PromptError(f"--beside {path}: it cannot be read ({error}); give another run's stream.json") from error


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas, each once, rising.

    Raises:
        PromptError: one of them is none, or there is none.
    """
    names = comma_list(text)
    if not names or not all(name.isdecimal() for name in names):
        raise PromptError(f"{option} {text!r}: give whole numbers with commas between them")
    return tuple(sorted({int(name) for name in names}))


def arms_of(text: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the methods and ablations of a list with commas; all of both without any.

    Raises:
        PromptError: there is no arm of a name.
    """
    ablations = tuple(arm.name for arm in ABLATIONS)
    named = (*METHODS, *ablations) if text is None else tuple(comma_list(text))
    chosen = [arm.name for arm in arms_named(named)]
    return tuple(name for name in METHODS if name in chosen), tuple(name for name in ablations if name in chosen)
