"""What `python -m benchmarks window` does, from options to files."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.recordfile import RecordFile, TableRecord, digest
from benchmarks.report import labels_of, write_rows
from benchmarks.table import SampleSize, Table
from benchmarks.window.parts import PARTS, TABLES
from benchmarks.window.records import StepRecord
from benchmarks.window.report import Measured, show, write_report
from benchmarks.window.run import run_trace
from benchmarks.window.tables import measure_tables
from benchmarks.window.tables_trace import trace_tables
from benchmarks.window.trace import TraceSettings, agent_trace, novelty_trace
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

NOVEL = 10
"""Steps of the agent's trace to one of the novelty trace, in which every step costs a whole window."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure.

    Attributes:
        models: names, folders or ids.
        wanted: items and seed of the tables; the traces have the same seed.
        settings: of the agent's trace.
        parts: of `PARTS`.
    """

    models: tuple[str, ...]
    wanted: SampleSize
    settings: TraceSettings
    parts: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        labels_of(self.models)

    @property
    def told(self) -> dict[str, Any]:
        """The options as they are reported."""
        shape = {name: value for name, value in asdict(self.settings).items() if value is not None}
        return {"items": self.wanted.items, "seed": self.wanted.seed, **shape}


def run(
    asked: Asked, load: Callable[[str], Engine], json_path: Path, report: Path, screen: Console
) -> tuple[Measured, ...]:
    """Measure, print, and write the JSON file and the report; what is made on the way lies beside the JSON file, and a
    run that was killed goes on from it.

    Raises:
        EmblemaError: a model or a place to write is not right.
    """
    found = []
    with (
        RecordFile(json_path.with_suffix(".records.jsonl"), StepRecord) as records,
        RecordFile(json_path.with_suffix(".tables.jsonl"), TableRecord) as tables,
    ):
        for model, label in zip(asked.models, labels_of(asked.models), strict=True):
            with load(model) as engine:
                found.append(_model(engine, label, asked, records, tables, screen))
            show(screen, found[-1])
            _write(found, asked, json_path, report)
    return tuple(found)


def _model(
    engine: Engine,
    label: str,
    asked: Asked,
    records: RecordFile[StepRecord],
    tables: RecordFile[TableRecord],
    screen: Console,
) -> Measured:
    seed, settings = asked.wanted.seed, asked.settings
    traces: list[tuple[StepRecord, ...]] = []
    if "agent" in asked.parts:
        traces.append(run_trace(engine, label, agent_trace(seed, settings), records, screen))
    if "novelty" in asked.parts:
        fewer = replace(settings, steps=max(1, settings.steps // NOVEL))
        traces.append(run_trace(engine, label, novelty_trace(seed, fewer), records, screen))
    found = [table for trace in traces for table in trace_tables(trace)]
    for name in TABLES:
        if name in asked.parts:
            found.append(_table(engine, label, name, asked.wanted, tables, screen))
    return Measured(label, tuple(found), tuple(traces))


def _table(
    engine: Engine, label: str, name: str, wanted: SampleSize, tables: RecordFile[TableRecord], screen: Console
) -> Table:
    key = digest(engine.adapter.fingerprint, name, asdict(wanted))
    if key not in tables.held:
        with steps(screen, f"{label}, {name}: {wanted.items} items", wanted.items) as advance:
            tables.add(TableRecord(key, table) for table in measure_tables(engine, wanted, [name], advance))
    return tables.held[key].table


def _write(found: list[Measured], asked: Asked, json_path: Path, report: Path) -> None:
    models = [
        {
            "model": one.model,
            "tables": [table.data() for table in one.tables],
            "bars": [bar.data() for bar in one.bars],
        }
        for one in found
    ]
    write_rows({"asked": asked.told, "rows": models}, json_path)
    write_report(found, asked.told, report)
