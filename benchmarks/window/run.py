"""What `python -m benchmarks window` does, from options to files."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import rounded, write_figures
from benchmarks.recordfile import RecordFile, digest
from benchmarks.report import labels_of
from benchmarks.table import SampleSize, show_bars
from benchmarks.window.experiment import Experiment, Measured, measure
from benchmarks.window.kamera import Recall, Reorder, Slide
from benchmarks.window.kamera_appendix import ChangedAntecedents, Refresh, Superset
from benchmarks.window.page import write_page
from benchmarks.window.trace import Trace, TraceSettings, agent_trace, novelty_trace
from benchmarks.window.trace_run import run_trace, trace_measured
from emblema.engine.engine import Engine
from emblema.eval.progress import steps

EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    kind.name: kind for kind in (Reorder, Slide, Recall, ChangedAntecedents, Superset, Refresh)
}
"""Every table of Kamera's section 5 and appendix D."""
PARTS = ("trace", *EXPERIMENTS)
NOVEL = 10
"""Steps of the agent's trace to one of the novelty trace, in which every step costs a whole window."""


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """What to measure.

    Attributes:
        models: names, folders or ids.
        size: items and seed of the experiments; the traces have the same seed.
        steps: of the agent's trace; `windows`: pictures in its window, a trace for each.
        parts: of `PARTS`.
    """

    models: tuple[str, ...]
    size: SampleSize
    steps: int
    windows: tuple[int, ...]
    parts: tuple[str, ...] = PARTS

    @property
    def traces(self) -> list[Trace]:
        """The agent's traces, and that of sustained novelty in the first one's window."""
        if "trace" not in self.parts:
            return []
        shapes = [TraceSettings(steps=self.steps, window=window) for window in self.windows]
        fewer = replace(shapes[0], steps=max(1, self.steps // NOVEL))
        return [*(agent_trace(self.size.seed, shape) for shape in shapes), novelty_trace(self.size.seed, fewer)]


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What a part came to on a model, under the digest of what it depends on."""

    key: str
    model: str
    found: Measured


def run_window(
    options: WindowOptions, load: Callable[[str], Engine], figures: Path, page: Path, screen: Console
) -> None:
    """Measure, print, and write figures and page; a run that was killed goes on from the records beside the figures.

    Raises:
        EmblemaError: a model or a place to write is not right.
    """
    parts: list[PartRecord] = []
    with RecordFile(figures.with_suffix(".records.jsonl"), PartRecord) as records:
        for model, label in zip(options.models, labels_of(options.models), strict=True):
            with load(model) as engine:
                for key, make in _jobs(engine, label, options, screen):
                    if key not in records.held:
                        records.add([PartRecord(key, label, make())])
                    parts.append(records.held[key])
            show_bars(screen, [bar for part in parts if part.model == label for bar in part.found.bars])
    write_figures(as_figures(options, parts), figures)
    write_page(figures, page)


def _jobs(
    engine: Engine, label: str, options: WindowOptions, screen: Console
) -> list[tuple[str, Callable[[], Measured]]]:
    """Return every part of a run on a model: its key, and what measures it."""

    def traced(trace: Trace) -> Measured:
        with steps(screen, f"{label}, {trace.name} trace", len(trace.steps)) as advance:
            return trace_measured(label, trace, run_trace(engine, trace, advance))

    def tabled(name: str) -> Measured:
        with steps(screen, f"{label}, {name}: {options.size.items} items", options.size.items) as advance:
            return measure(engine, label, options.size, [EXPERIMENTS[name]()], advance)[0]

    about = (engine.adapter.fingerprint, label, asdict(options.size))
    traces = [
        (digest(*about, trace.name, asdict(trace.settings)), lambda trace=trace: traced(trace))
        for trace in options.traces
    ]
    tables = [(digest(*about, name), lambda name=name: tabled(name)) for name in EXPERIMENTS if name in options.parts]
    return [*traces, *tables]


def as_figures(options: WindowOptions, parts: list[PartRecord]) -> dict[str, Any]:
    """Return what was measured as rows of plain data."""
    shown = ("name", "value", "bound", "least", "count", "holds")
    bars = [(part.model, bar) for part in parts for bar in part.found.bars]
    rows: dict[str, list[Any]] = {
        "bars": [{"model": model, **{name: getattr(bar, name) for name in shown}} for model, bar in bars]
    }
    for name in ("answers", "figures", "trace", "answered"):
        rows[name] = [row for part in parts for row in part.found.rows.get(name, [])]
    size = asdict(options.size)
    return {"asked": {**size, "steps": options.steps, "windows": options.windows}, **rounded(rows)}
