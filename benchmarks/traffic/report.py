"""The page of traffic: protocol, bars, tables and plots, all from the records of a JSON file."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.intervals import Interval, bootstrap
from benchmarks.recordfile import parsed
from benchmarks.report import ModelTables, check_written, measured_on, show_tables
from benchmarks.rowfile import read_rows
from benchmarks.table import Bar, Cell, Table, bars_markdown, table_markdown
from benchmarks.traffic.methods import AUTO, FULL, STILL
from benchmarks.traffic.plots import draw_curves, draw_methods
from benchmarks.traffic.protocol import MORE, MORE_STAGES, PROTOCOL
from benchmarks.traffic.requests import AFTER, GONE
from benchmarks.traffic.stages import MethodRun, Stage
from emblema.errors import EmblemaError
from emblema.eval.metrics import Share

TITLE = "Traffic: many requests, on pages that recur or do not"
ON_SCREEN = ("method", "rows", "rows run", "TTFT p50", "throughput", "agrees", "fell back")
STRETCH = 40
"""Requests that a bar is held on together."""
LEARNT = 0.5
"""Bytes of patches and pairs, over those of the pages, that growth has to stay below."""
EDGES = (10, 20, 40)
"""Ends of the first stretches of a learning curve; from then on one ends every `STRETCH` requests."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrafficResult:
    """Everything that was measured.

    Attributes:
        model: its short name.
        command: how it was measured.
        source: digest and commit of the code.
        environment: see `eval.figures.environment`.
        runs: every stage's methods, together.
    """

    model: str
    command: str
    source: Mapping[str, str]
    environment: Mapping[str, Any]
    runs: tuple[MethodRun, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""
        return tuple({run.stage.name: run.stage for run in self.runs}.values())

    def of(self, stage: Stage) -> dict[str, MethodRun]:
        """Return a stage's records by method."""
        return {run.method: run for run in self.runs if run.stage.name == stage.name}


def read_result(path: Path) -> TrafficResult:
    """Return what a run wrote.

    Raises:
        EmblemaError: the file cannot be read, or is no such file.
    """
    try:
        data = read_rows(path)
        runs = tuple(parsed(MethodRun, {"key": "", **row}) for row in data["rows"])
        return TrafficResult(data["model"], data["command"], data["source"], data["environment"], runs)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EmblemaError(f"{path}: this is no file of `benchmarks traffic` ({error}); measure again") from error


@dataclass(frozen=True, slots=True)
class Part:
    """Some requests of a stage as one method served them, beside re-prefill.

    Attributes:
        run, full: the method's record and re-prefill's.
        chosen: numbers of the requests.
    """

    run: MethodRun
    full: MethodRun
    chosen: NDArray[np.int64]

    def _of(self, name: str, full: bool = False) -> Floats:
        values = np.asarray(getattr(self.full if full else self.run, name), dtype=np.float64)
        return values[self.chosen]

    @property
    def _groups(self) -> list[int]:
        return [self.full.group[index] for index in self.chosen]

    @property
    def count(self) -> int:
        return len(self.chosen)

    def rows(self, name: str = "computed") -> float:
        """Return rows over the prompt's: those `computed` in it, or all that `ran`."""
        return float(self._of(name).sum() / self._of("prompt", full=True).sum())

    def wait(self) -> float:
        """Return the median, over requests, of the time to the first token over re-prefill's for the same request."""
        return float(np.median(self._of("ttft") / self._of("ttft", full=True)))

    def longest_wait(self) -> float:
        """Return the 99th percentile of the time to the first token over re-prefill's."""
        return float(np.percentile(self._of("ttft"), 99) / np.percentile(self._of("ttft", full=True), 99))

    def milliseconds(self) -> float:
        return 1e3 * float(np.median(self._of("ttft")))

    def total(self, name: str) -> float:
        """Return the seconds of all requests, `wall` or `processor`, over re-prefill's."""
        return float(self._of(name).sum() / self._of(name, full=True).sum())

    def share(self, name: str) -> Interval:
        """Return the share of requests with 1 at `agrees`, `right` or `fell_back`."""
        return bootstrap(self._of(name), self._groups)

    def wrong(self) -> Share:
        """Return the share of answers other than re-prefill's, of those that did not fall back."""
        accepted = self._of("fell_back") == 0
        count = int(accepted.sum())
        return Share(float(1 - self._of("agrees")[accepted].mean()) if count else float("nan"), count)

    def kept(self) -> float:
        """Return the megabytes that were kept after the last of the requests."""
        return self.run.kept[int(self.chosen[-1])] / 1e6

    def learnt(self) -> float:
        """Return the megabytes of patches and pairs after the last of the requests."""
        return self.run.learnt[int(self.chosen[-1])] / 1e6

    def lanes(self) -> str:
        """Return how the answers came about, the two that come most often."""
        found = Counter(self.run.lane[index] for index in self.chosen).most_common(2)
        return ", ".join(f"{lane.removeprefix('auto:')} {count}" for lane, count in found)


def part_of(run: MethodRun, full: MethodRun, keep: Callable[[int], bool] = lambda index: True) -> Part:
    """Return the requests whose number is kept."""
    return Part(run, full, np.array([index for index in range(len(run.ttft)) if keep(index)], dtype=np.int64))


def stretches(count: int, edges: Sequence[int] = EDGES) -> list[tuple[int, int]]:
    """Return first and end of the stretches of a learning curve; what is left at the end joins the last."""
    ends = [edge for edge in edges if edge <= count]
    while not ends or ends[-1] + STRETCH <= count:
        ends.append(min(count, (ends[-1] if ends else 0) + STRETCH))
    ends[-1] = count
    return list(zip([0, *ends[:-1]], ends, strict=True))


def stretch_parts(run: MethodRun, full: MethodRun, edges: Sequence[int] = EDGES) -> list[Part]:
    """Return the stretches of a learning curve."""
    found = stretches(len(run.ttft), edges)
    return [Part(run, full, np.arange(first, end)) for first, end in found]


def tables_of(result: TrafficResult, stage: Stage) -> tuple[Table, ...]:
    """Return a stage's tables: methods, the learning curve of `auto`, and questions where they are of several kinds."""
    runs = result.of(stage)
    found = [_methods(stage, runs)]
    if AUTO in runs:
        found.append(_learning(stage, runs))
    if len(set(runs[FULL].where)) > 1:
        found.append(_questions(stage, runs))
    return tuple(found)


def _methods(stage: Stage, runs: Mapping[str, MethodRun]) -> Table:
    full = runs[FULL]
    rows: list[tuple[Cell, ...]] = []
    for name, run in runs.items():
        part = part_of(run, full)
        plain = part_of(run, full, lambda index: full.where[index] not in (GONE, AFTER))
        rows.append(
            (
                name, part.rows(), part.rows("ran"), part.wait(), part.longest_wait(),
                1 / part.total("wall"), part.total("processor"), None if name == FULL else part.share("agrees"),
                plain.share("right").value, part.share("fell_back").value if any(map(_known, run.margin)) else None,
                None if name == FULL else part.wrong(), part.kept(),
            )
        )  # fmt: skip
    shape, whole = stage.shape, part_of(full, full)
    columns = (
        "method", "rows", "rows run", "TTFT p50", "TTFT p99", "throughput", "CPU", "agrees", "right", "fell back",
        "wrong, accepted", "MB kept",
    )  # fmt: skip
    return Table(
        stage.name,
        stage.title,
        f"{shape.requests} requests, {np.mean(full.prompt):,.0f} rows a prompt (pages of {shape.side} x {shape.side} "
        f"cells); re-prefill's first token after {whole.milliseconds():.0f} ms (p50), and "
        f"{shape.requests / sum(full.wall):.1f} answers a second. Times and throughput are ratios to it. Load average "
        f"{full.load[0]:.1f} before and {full.load[1]:.1f} after."
        + (" *right* leaves out questions about dropped legends." if GONE in full.where else ""),
        columns,
        tuple(rows),
        bars=bars_of(stage, runs),
    )


def _known(margin: float | None) -> bool:
    return margin is not None


def _learning(stage: Stage, runs: Mapping[str, MethodRun]) -> Table:
    counted = bool(runs[AUTO].learnt)
    rows: list[tuple[Cell, ...]] = [
        (
            f"{part.chosen[0] + 1} to {part.chosen[-1] + 1}", part.rows(), part.rows("ran"), part.wait(),
            1 / part.total("wall"), part.share("agrees").value, part.share("fell_back").value, part.kept(),
            *((part.learnt(), part.learnt() * 1e6 / part.run.added) if counted else ()), part.lanes(),
        )
        for part in stretch_parts(runs[AUTO], runs[FULL])
    ]  # fmt: skip
    learnt = ("MB learnt", "over the pages'") if counted else ()
    return Table(
        f"{stage.name}-learning",
        f"`{AUTO}` by requests seen",
        "The same figures, stretch by stretch, with the lanes that came most often and how often.",
        ("requests", "rows", "rows run", "TTFT p50", "throughput", "agrees", "fell back", "MB kept", *learnt, "lanes"),
        tuple(rows),
    )


def _questions(stage: Stage, runs: Mapping[str, MethodRun]) -> Table:
    full = runs[FULL]
    rows: list[tuple[Cell, ...]] = []
    for where in dict.fromkeys(full.where):
        for name, run in runs.items():
            part = part_of(run, full, lambda index, where=where: full.where[index] == where)  # type: ignore[misc]
            rows.append(
                (
                    where, name, part.count, part.rows(), part.wait(),
                    None if name == FULL else part.share("agrees"), part.share("right").value,
                )
            )  # fmt: skip
    gone = (
        " *legend dropped*: nothing that is sent tells it; *right* is how often an answer is what the legend said all "
        "the same, which re-prefill does by chance, and a method that does so more often remembers what was dropped."
    )
    return Table(
        f"{stage.name}-questions",
        "By kind of question" if GONE in full.where else "By turn",
        "The same figures of some requests." + (gone if GONE in full.where else ""),
        ("requests", "method", "n", "rows", "TTFT p50", "agrees", "right"),
        tuple(rows),
    )


def bars_of(stage: Stage, runs: Mapping[str, MethodRun]) -> tuple[Bar, ...]:
    """Return what has to hold of `auto`; nothing of a stage of another shape, or shorter, than was promised of."""
    if AUTO not in runs:
        return ()
    auto, full, shape, name = runs[AUTO], runs[FULL], stage.shape, stage.name
    whole = part_of(auto, full)
    found: list[Bar] = []
    if shape.slid:
        found = [
            Bar(f"{name}: rows", whole.rows(), 0.36, False, whole.count),
            Bar(f"{name}: agrees with re-prefill", whole.share("agrees").value, 0.97, True, whole.count),
            Bar(f"{name}: wrong, of the accepted", whole.wrong().value, 0.01, False, whole.wrong().count),
        ]
    elif auto.learnt:
        kept, taken = auto.pieces
        found = [
            Bar(f"{name}: learnt bytes, over the pages'", auto.learnt[-1] / auto.added, LEARNT, False, whole.count),
            Bar(f"{name}: of the pieces kept, taken by a request", taken / kept if kept else None, 0.5, True, kept),
            Bar(f"{name}: agrees with re-prefill", whole.share("agrees").value, 0.99, True, whole.count),
        ]
    elif STILL in runs:
        still = part_of(auto, runs[STILL], lambda index: 2 * index >= len(auto.wall))
        return (Bar("learning: throughput, over that without", 1 / still.total("wall"), 0.95, True, still.count),)
    elif shape.kind == "rag" and (shape.shown, shape.pages) == (8, 30) and shape.requests >= 5 * STRETCH:
        parts = stretch_parts(auto, full, ())
        rows = max(part.rows() for part in parts)
        found = [
            Bar(f"{name}: rows, from the first requests on", rows, 0.35, False, whole.count),
            Bar(f"{name}: rows, after {parts[-1].chosen[0]} requests", parts[-1].rows(), 0.15, False, parts[-1].count),
            Bar(f"{name}: TTFT p50, first requests", parts[0].wait(), 0.4, False, parts[0].count),
            Bar(
                f"{name}: TTFT p50, after {parts[-1].chosen[0]} requests", parts[-1].wait(), 0.2, False,
                parts[-1].count,
            ),
            Bar(f"{name}: agrees with re-prefill", whole.share("agrees").value, 0.99, True, whole.count),
        ]  # fmt: skip
    elif shape.kind == "agent" and shape.requests >= 5 * STRETCH:
        gone = part_of(auto, full, lambda index: full.where[index] == GONE)
        found = [
            Bar(f"{name}: rows", whole.rows(), 0.36, False, whole.count),
            Bar(f"{name}: rows run, all counted", whole.rows("ran"), 0.36, False, whole.count, aim=True),
            Bar(f"{name}: TTFT p50", whole.wait(), 1.05, False, whole.count),
            Bar(f"{name}: agrees with re-prefill", whole.share("agrees").value, 0.97, True, whole.count),
            Bar(
                f"{name}: agrees on dropped legends", gone.share("agrees").value if gone.count else None, 0.97, True,
                gone.count,
            ),
        ]  # fmt: skip
    elif shape.kind == "novelty":
        found = [Bar(f"{name}: TTFT p50", whole.wait(), 1.05, False, whole.count)]
    return (*found, Bar(f"{name}: throughput", 1 / whole.total("wall"), 0.95, True, whole.count, aim=True))


def show(screen: Console, result: TrafficResult, name: str) -> None:
    """Print the columns of a stage that a screen has room for, and its bars."""
    stage = next(stage for stage in result.stages if stage.name == name)
    table = tables_of(result, stage)[0]
    rows = tuple(tuple(record[column] for column in ON_SCREEN) for record in table.records)
    show_tables(screen, ModelTables(result.model, (replace(table, columns=ON_SCREEN, rows=rows),)))


def page(result: TrafficResult) -> str:
    """Return the page in Markdown."""
    tables = {stage.name: tables_of(result, stage) for stage in result.stages}
    bars = tuple(bar for found in tables.values() for table in found for bar in table.bars)
    parts = [
        f"# {TITLE}",
        f"`{result.command}`; model `{result.model}`, commit {result.source['commit']} (files "
        f"{result.source['digest']}); on {measured_on(result.environment)}. The machine is shared; load averages "
        "are below. All figures are in [traffic.json](traffic.json), a row for each stage and method.",
        *PROTOCOL,
        *([MORE] if any(stage.name in MORE_STAGES for stage in result.stages) else []),
        "## Bars",
        bars_markdown([(AUTO, bars)]),
    ]
    for stage in result.stages:
        costs, curves = _pictures(result, stage)
        parts += [f"## {stage.title}"]
        for table in tables[stage.name]:
            if table.name == stage.name:
                parts += [table.note, table_markdown(table), f"![What methods cost, {stage.name}]({costs}.png)"]
            else:
                parts += [f"### {table.title}: {stage.name}", table.note, table_markdown(table)]
        parts.append(f"![By requests seen, {stage.name}]({curves}.png)")
    return "\n\n".join(parts) + "\n"


def _pictures(result: TrafficResult, stage: Stage) -> tuple[str, str]:
    """Return the names of a stage's pictures: what methods cost, and how that changes."""
    name = f"{result.model}-{stage.name}"
    return name, f"{name}-learning"


def write_report(result: TrafficResult, folder: Path) -> Path:
    """Write `traffic.md` and its plots into a folder; returns the page's path."""
    for stage in result.stages:
        runs = result.of(stage)
        full = runs[FULL]
        curves = {name: stretch_parts(run, full) for name, run in runs.items()}
        figures = {
            "rows run, over the prompt's": {
                name: [part.rows("ran") for part in parts] for name, parts in curves.items()
            },
            "TTFT p50, over re-prefill's": {name: [part.wait() for part in parts] for name, parts in curves.items()},
            "first tokens that are re-prefill's": {
                name: [part.share("agrees").value for part in parts] for name, parts in curves.items()
            },
            "MB kept": {name: [part.kept() for part in parts] for name, parts in curves.items()},
        }
        seen = [int(part.chosen[-1]) + 1 for part in curves[FULL]]
        whole = {name: part_of(run, full) for name, run in runs.items()}
        methods = {
            "rows run, over the prompt's (less is better)": _points(whole, lambda part: part.rows("ran")),
            "TTFT p50, over re-prefill's (less is better)": _points(whole, lambda part: part.wait()),
            "throughput, over re-prefill's (more is better)": _points(whole, lambda part: 1 / part.total("wall")),
            "first tokens that are re-prefill's (more is better)": {
                name: part.share("agrees") for name, part in whole.items()
            },
        }
        first, second = _pictures(result, stage)
        draw_methods(stage.title, methods, folder, first)
        draw_curves(stage.title, seen, figures, folder, second)
    path = folder / "traffic.md"
    path.write_text(page(result), encoding="utf-8")
    return path


def _points(parts: Mapping[str, Part], figure: Callable[[Part], float]) -> dict[str, Interval]:
    values = {name: figure(part) for name, part in parts.items()}
    return {name: Interval(value, value, value) for name, value in values.items()}


def check_report(folder: Path) -> None:
    """Check that a page is what its JSON file gives, and that its pictures are there.

    Raises:
        EmblemaError: it is not.
    """
    result = read_result(folder / "traffic.json")
    check_written(folder / "traffic.md", page(result))
    names = [f"{name}.png" for stage in result.stages for name in _pictures(result, stage)]
    lacking = [name for name in names if not (folder / name).is_file()]
    if lacking:
        raise EmblemaError(f"{folder / lacking[0]}: not there; write it with `python -m benchmarks results`")
