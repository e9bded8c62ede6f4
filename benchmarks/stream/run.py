"""What `python -m benchmarks stream` does, from options to files."""

import time
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.recordfile import RecordFile, TableRecord, digest, recorded_table, records_in
from benchmarks.report import ModelTables, comma_list, options_text, show_tables, write_page
from benchmarks.rowfile import write_rows
from benchmarks.stream.passes import PassRecord, PassResults, run_passes
from benchmarks.stream.plan import ABLATIONS, ACCURACY_PARTS, METHODS, SEEDS, AccuracyOptions, arms_named
from benchmarks.stream.systems.costs import measure_bytes, measure_growth
from benchmarks.stream.systems.encoding import measure_batching, measure_workers
from benchmarks.stream.systems.long import measure_drawn, measure_long, measure_still
from benchmarks.stream.systems.running import SystemsOptions
from benchmarks.stream.systems.skipping import measure_skipping
from benchmarks.stream.systems.structure import draw_questions, measure_questions, measure_sparsity, measure_structure
from benchmarks.stream.systems.transfers import measure_deferral, measure_prefetch
from benchmarks.stream.tables import ablation_table, accuracy_tables, budget_table, length_table, search_table
from benchmarks.table import Table
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.stream.settings import StreamSettings, change_settings

SYSTEMS: dict[str, Callable[[Engine, SystemsOptions, Console], Table]] = {
    "growth": measure_growth,
    "long": measure_long,
    "drawn": measure_drawn,
    "still": measure_still,
    "bytes": measure_bytes,
    "sparsity": measure_sparsity,
    "structure": measure_structure,
    "questions": measure_questions,
    "deferral": measure_deferral,
    "batching": measure_batching,
    "prefetch": measure_prefetch,
    "skipping": measure_skipping,
    "workers": measure_workers,
}
"""The systems parts by name; the table of a part has that name."""
PARTS = (*ACCURACY_PARTS, *SYSTEMS)
SWEEPS: dict[str, Callable[[PassResults, AccuracyOptions], Table]] = {
    "search": search_table,
    "budgets": budget_table,
    "lengths": length_table,
    "ablation": ablation_table,
}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What to measure, and where it is written.

    Attributes:
        label: the model's short name.
        parts: of `PARTS`.
        figures: the JSON file; what is made on the way lies beside it.
        folder: of the page and its plots.
        others: JSON files of other runs; what lies beside those counts as measured, and is not written to.
    """

    label: str
    accuracy: AccuracyOptions
    systems: SystemsOptions
    parts: Sequence[str]
    figures: Path
    folder: Path
    others: Sequence[Path] = field(default=())


def run_streams(engine: Engine, options: StreamOptions, screen: Console) -> tuple[Table, ...]:
    """Measure, print, and write the JSON file and the report after each part; a run that was killed goes on.

    Raises:
        EmblemaError: a stream does not fit the model, or a file is not right.
    """
    found: list[Table] = []
    with ExitStack() as stack:
        records = stack.enter_context(RecordFile(_beside(options.figures, "records"), PassRecord))
        tables = stack.enter_context(RecordFile(_beside(options.figures, "tables"), TableRecord))
        for other in options.others:
            places = _beside(other, "records"), _beside(other, "tables")
            if not any(place.exists() for place in places):
                raise PromptError(f"--with {other}: there is no {places[0].name} beside it; give another run's --json")
            records.held.update(records_in(places[0], PassRecord))
            tables.held.update(records_in(places[1], TableRecord))
        for part in options.parts:
            if part in SYSTEMS:
                made: tuple[Table, ...] = (_system(engine, part, options.systems, tables, screen),)
            else:
                results = run_passes(engine, options.label, part, options.accuracy, records, screen)
                accuracy = options.accuracy
                made = accuracy_tables(results, accuracy) if part == "accuracy" else (SWEEPS[part](results, accuracy),)
            found += made
            show_tables(screen, ModelTables(options.label, made))
            measured = ModelTables(options.label, tuple(found))
            write_json(measured, options.accuracy.reported, options.figures)
            write_report(measured.kept(), options.accuracy.reported, options.folder)
    return tuple(found)


def _system(
    engine: Engine, part: str, options: SystemsOptions, tables: RecordFile[TableRecord], screen: Console
) -> Table:
    key = digest(engine.adapter.fingerprint, part, asdict(options))
    return recorded_table(tables, key, lambda: measure_part(part, engine, options, screen))


def measure_part(part: str, engine: Engine, options: SystemsOptions, screen: Console) -> Table:
    """Measure one of `SYSTEMS`, and how long that took."""
    began = time.perf_counter()
    return replace(SYSTEMS[part](engine, options, screen), seconds=time.perf_counter() - began)


def _beside(figures: Path, what: str) -> Path:
    return figures.with_suffix(f".{what}.jsonl")


def write_json(found: ModelTables, options: Mapping[str, Any], path: Path) -> Path:
    """Write every table as data; returns the file's path."""
    data = found.data()
    return write_rows({"model": found.model, "asked": options, "bars": data["bars"], "rows": data["tables"]}, path)


def write_report(found: ModelTables, options: Mapping[str, Any], folder: Path) -> Path:
    """Write `stream.md` and its plots into a folder; returns the page's path."""

    def draw(model: str, table: Table, folder: Path) -> list[Path]:
        return draw_questions(table, folder) if table.name == "questions" else []

    command = f"`python -m benchmarks stream`, {found.model}: {options_text(options)}"
    return write_page(folder / "stream.md", "Streams, measured", command, [found], draw)


def names_of(text: str | None, known: Iterable[str]) -> tuple[str, ...]:
    """Return the names of a list with commas; all that are known without a list."""
    return tuple(known if text is None else comma_list(text))


def numbers_of(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a list with commas, each once, rising.

    Raises:
        PromptError: one of them is none, or there is none.
    """
    try:
        found = {int(number) for number in comma_list(text)}
    except ValueError as error:
        raise PromptError(f"{option} {text!r}: give whole numbers with commas between them") from error
    if not found:
        raise PromptError(f"{option} {text!r}: give one number or more")
    return tuple(sorted(found))


def seeds_of(text: str) -> tuple[int, ...]:
    """Return the seeds of a list, or so many seeds.

    Raises:
        PromptError: it is neither.
    """
    found = numbers_of(text, "--seeds")
    return found if "," in text else tuple(range(SEEDS[0], SEEDS[0] + found[0]))


def settings_of(
    window: int | None,
    block: int | None,
    positions: str | None,
    changes: Iterable[str] = (),
    base: StreamSettings | None = None,
) -> StreamSettings:
    """Return the settings of all streams.

    Args:
        changes: `name=value` each.
        base: what they change; the defaults if left out.

    Raises:
        PromptError: one of them is no such pair.
        StreamError: there is no such setting, or a value is not right.
    """
    given = {"window": window, "block": block, "positions": positions}
    named: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign:
            raise PromptError(f"--set {change!r}: write name=value")
        named[name.strip()] = _value(value.strip())
    return change_settings(base or StreamSettings(), named)


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def arms_of(text: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the methods and ablations of a list with commas; all of both without any.

    Raises:
        PromptError: there is no arm of a name.
    """
    ablations = tuple(arm.name for arm in ABLATIONS)
    chosen = [arm.name for arm in arms_named(names_of(text, (*METHODS, *ablations)))]
    return tuple(name for name in METHODS if name in chosen), tuple(name for name in ablations if name in chosen)
