"""What `python -m benchmarks window` does, from options to files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.recordfile import RecordFile, TableRecord, digest, recorded_table
from benchmarks.report import ModelTables, labels_of, options_text, show_tables, write_page
from benchmarks.rowfile import write_rows
from benchmarks.table import SampleSize, Table
from benchmarks.window.kamera import Orbit, Recall, Survivors
from benchmarks.window.kamera_appendix import Divergence, Refresh, Superset
from benchmarks.window.probe import Probe, measure_probes
from benchmarks.window.trace import Trace, TraceSettings, agent_trace, novelty_trace
from benchmarks.window.trace_report import draw_trace, trace_tables
from benchmarks.window.trace_run import StepRecord, run_trace
from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.progress import steps

TRACES = ("agent", "novelty")
TABLES: dict[str, Callable[[], Probe]] = {
    "orbit": Orbit,
    "survivors": Survivors,
    "recall": Recall,
    "divergence": Divergence,
    "superset": Superset,
    "refresh": Refresh,
}
"""Every table of Kamera's section 5 and appendix D."""
PARTS = (*TRACES, *TABLES)
NOVEL = 10
"""Steps of the agent's trace to one of the novelty trace, in which every step costs a whole window."""
ModelTraces = Mapping[str, Sequence[tuple[StepRecord, ...]]]
"""Records of traces by the model's label."""


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """What to measure.

    Attributes:
        models: names, folders or ids.
        size: items and seed of the tables; the traces have the same seed.
        settings: of the agent's trace.
        parts: of `PARTS`.
    """

    models: tuple[str, ...]
    size: SampleSize
    settings: TraceSettings
    parts: tuple[str, ...] = PARTS

    @property
    def reported(self) -> dict[str, Any]:
        """The options as they are reported."""
        shape = {name: value for name, value in asdict(self.settings).items() if value is not None}
        return {"items": self.size.items, "seed": self.size.seed, **shape}


def run_window(
    options: WindowOptions, load: Callable[[str], Engine], json_path: Path, folder: Path, screen: Console
) -> None:
    """Measure, print, and write the JSON file and the report after each model.

    What is made on the way lies beside the JSON file, and a run that was killed goes on from it.

    Raises:
        EmblemaError: a model or a place to write is not right.
    """
    found: list[ModelTables] = []
    traces: dict[str, list[tuple[StepRecord, ...]]] = {}
    with (
        RecordFile(json_path.with_suffix(".records.jsonl"), StepRecord) as records,
        RecordFile(json_path.with_suffix(".tables.jsonl"), TableRecord) as tables,
    ):
        for model, label in zip(options.models, labels_of(options.models), strict=True):
            with load(model) as engine:
                own = _traces(options)
                traces[label] = [run_trace(engine, label, trace, records, screen) for trace in own]
                made = [table for trace in traces[label] for table in trace_tables(trace)]
                for name in (name for name in TABLES if name in options.parts):
                    made.append(_table(engine, label, name, options.size, tables, screen))
            found.append(ModelTables(label, tuple(made)))
            show_tables(screen, found[-1])
            write_rows({"asked": options.reported, "rows": [measured.data() for measured in found]}, json_path)
            write_report([measured.kept() for measured in found], traces, options.reported, folder)


def _traces(options: WindowOptions) -> list[Trace]:
    seed, settings = options.size.seed, options.settings
    fewer = replace(settings, steps=max(1, settings.steps // NOVEL))
    both = (agent_trace(seed, settings), novelty_trace(seed, fewer))
    return [trace for trace in both if trace.name in options.parts]


def _table(
    engine: Engine, label: str, name: str, size: SampleSize, tables: RecordFile[TableRecord], screen: Console
) -> Table:
    def measure() -> Table:
        with steps(screen, f"{label}, {name}: {size.items} items", size.items) as advance:
            return measure_tables(engine, size, [name], advance)[0]

    return recorded_table(tables, digest(engine.adapter.fingerprint, name, asdict(size)), measure)


def measure_tables(
    engine: Engine,
    size: SampleSize,
    names: Iterable[str] = tuple(TABLES),
    advance: Callable[[], object] = lambda: None,
) -> list[Table]:
    """Measure tables by name, item by item, so that each item's pages are encoded once for all of them.

    Args:
        advance: called after each item.

    Raises:
        PromptError: a table is unknown, or none is asked for.
    """
    chosen = list(dict.fromkeys(names))
    unknown = [name for name in chosen if name not in TABLES]
    if unknown or not chosen:
        raise PromptError(f"unknown table {', '.join(unknown)!r}: choose of {', '.join(TABLES)}")
    return measure_probes(engine, size, [TABLES[name]() for name in chosen], advance)


def write_report(found: Sequence[ModelTables], traces: ModelTraces, options: Mapping[str, Any], folder: Path) -> Path:
    """Write `window.md` and its plots into a folder; returns the page's path."""

    def pictures(model: str, table: Table, folder: Path) -> list[Path]:
        """Draw a trace with its first table; its further pictures belong below the table of its questions."""
        paths: list[Path] = []
        for records in traces.get(model, ()):
            name = records[0].trace
            if table.name in (f"trace-{name}", "trace-questions"):
                drawn = draw_trace(records, f"{name} trace: {model}", folder, f"{model}-{name}")
                paths += drawn[:1] if table.name == f"trace-{name}" else drawn[1:]
        return paths

    command = f"`python -m benchmarks window`: {options_text(options)}"
    return write_page(folder / "window.md", "The window, measured", command, found, pictures)
