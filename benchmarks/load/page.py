"""The tables and pictures of the page of load, made of its JSON file; its words are written by hand."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.blocks import write_blocks
from benchmarks.intervals import Interval
from benchmarks.load.figures import LoadBar, LoadFigures
from benchmarks.load.stages import AUTO, ENGINE, FIRST, FULL, MPIC, PREFIX, SIX
from benchmarks.plots import draw_table
from benchmarks.table import Bar, Cell, Plot, Table, cell_text, markdown_table, table_markdown

NAME = "load"
LEADS = (PREFIX, "full-reuse", "mpic-32", "cacheblend-15", "patch-25%", AUTO)
"""Methods of MPIC's stages in the table; the picture has every K and R."""
RATED = (PREFIX, "mpic-32", AUTO)
"""Methods at rates in the picture."""
DRAWN = ("subsets", "subsets-large")
"""Traffic at rates in the picture."""


def write_load_page(found: LoadFigures, folder: Path) -> Path:
    """Make the tables of `load.md` in a folder, and its pictures; returns the page's path."""
    for table in pictures(found):
        draw_table(table, NAME, folder)
    return write_blocks(folder / f"{NAME}.md", "Load", blocks(found))


def blocks(found: LoadFigures) -> dict[str, str]:
    """Return the tables of the page by the names of their blocks."""
    made = {f"{part} bounds": bounds([bar for bar in found.bars if bar.part == part]) for part in ("stages", "rates",
            "decoding")}  # fmt: skip
    for engine, stage in dict.fromkeys((row.engine, row.stage) for row in found.stages if row.stage in SIX):
        made[stage if engine == ENGINE else f"{engine} {stage}"] = _stage(found, engine, stage)
    made |= {"knobs": _knobs(found), "rates": _rates(found), FIRST: _first(found)}
    made["runs"] = _runs(found)
    return {name: text for name, text in made.items() if text}


def bounds(bars: Sequence[LoadBar]) -> str:
    """Return bounds by stage: a row for each bound, a column for each stage; a missed one is in bold."""
    engines = {bar.engine for bar in bars}
    columns = list(dict.fromkeys(_column(bar, engines) for bar in bars))
    rows: dict[str, dict[str, str]] = {}
    for bar in bars:
        name = f"{bar.name} {'≥' if bar.least else '≤'} {bar.bound:g}" + (" (aim)" if bar.aim else "")
        text = "nothing" if bar.value is None else cell_text(float(bar.value))
        holds = Bar(bar.name, bar.value, bar.bound, bar.least).holds
        rows.setdefault(name, {})[_column(bar, engines)] = text if holds else f"**{text}**"
    lines = [[name, *(cells.get(column, "") for column in columns)] for name, cells in rows.items()]
    return markdown_table(["`auto`", *columns], lines) if lines else ""


def _column(bar: LoadBar, engines: set[str]) -> str:
    return bar.stage if len(engines) < 2 else f"{bar.engine}: {bar.stage}"


def _made(columns: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> str:
    found = tuple(rows)
    return table_markdown(Table("made", "", "", tuple(columns), found)) if found else ""


def _stage(found: LoadFigures, engine: str, stage: str) -> str:
    first, *others = found.of(engine, stage).values()
    words = f"{first.requests} requests of {first.prompt_rows:,.0f} rows; TTFT of `{first.method}`: {first.ms:.0f} ms."
    lines = [
        (row.method, row.rows, row.ran, row.ttft, row.throughput, _interval(row.agrees, row.low, row.high))
        for row in others
    ]
    return f"{words}\n\n" + _made(("method", "rows", "rows run", "TTFT", "throughput", "agrees"), lines)


def _interval(value: float | None, low: float | None, high: float | None) -> Cell:
    return value if value is None or low is None or high is None else Interval(value, low, high)


def _knobs(found: LoadFigures) -> str:
    """Return MPIC's stages side by side."""
    both = [found.of(ENGINE, stage) for stage in MPIC]
    lines = [
        (name, *(value for rows in both for value in (rows[name].ttft, rows[name].ran, rows[name].agrees)))
        for name in LEADS
        if all(name in rows for rows in both)
    ]
    return _made(("method", *(f"{stage}: {name}" for stage in MPIC for name in ("TTFT", "rows", "agrees"))), lines)


def _rates(found: LoadFigures) -> str:
    """Return `auto` beside the prefix cache: one request after another, at the most, and processor time."""
    lines: list[tuple[Cell, ...]] = []
    for engine, stage in dict.fromkeys((row.engine, row.stage) for row in found.rates):
        rows = [row for row in found.rates if (row.engine, row.stage) == (engine, stage)]
        other = PREFIX if any(row.method == PREFIX for row in rows) else FULL
        cells: list[Cell] = []
        both = [[row for row in rows if row.method == method] for method in (other, AUTO)]
        if all(both):
            cells += [own[0].ttft_p50_ms if own[0].rate == 0 else None for own in both]
            cells += [max(row.answers_s for row in own) for own in both]
            cells += [min(row.processor_ms for row in own) for own in both]
            lines.append((f"{engine}: {stage}", *cells, min(row.agrees for row in both[1])))
    names = (f"{name} {method}" for name in ("ms", "answers/s", "processor ms") for method in (PREFIX, AUTO))
    return _made(("traffic", *names, "agrees"), lines)


def _first(found: LoadFigures) -> str:
    lines = [
        (row.engine, row.method, _interval(row.ms, row.ms_least, row.ms_most), row.ttft, row.rows)
        for row in found.stages
        if row.stage == FIRST
    ]
    return _made(("engine", "method", "ms, least to most", "of the first", "rows computed"), lines)


def _runs(found: LoadFigures) -> str:
    by: dict[tuple[str, ...], list[float]] = {}
    for run in found.runs:
        loads = by.setdefault((f"`{run.command}`", run.model, run.device, run.date), [])
        loads += map(float, run.load.split(" to "))
    lines = [(*about, f"{min(loads)} to {max(loads)}") for about, loads in by.items()]
    machines = {run.device for run in found.runs}
    if len(machines) == 1:
        table = _made(("command", "model", "date", "load average"), [(*line[:2], *line[3:]) for line in lines])
        return f"Machine: {machines.pop()}.\n\n{table}"
    return _made(("command", "model", "machine", "date", "load average"), lines)


def pictures(found: LoadFigures) -> Iterator[Table]:
    """Yield tables whose plots are the page's pictures."""
    names: tuple[str, ...] = ("requests seen", "rows computed, of the prompt's", "TTFT, over full", "stage")
    curve = tuple((row.seen, row.rows, row.ttft, row.stage) for row in found.stretches if row.engine == ENGINE)
    if len({row[0] for row in curve}) > 1:
        plots = tuple(Plot(names[0], name, "stage") for name in names[1:3])
        yield Table("stretches", "auto by requests seen", "", names, curve, plots)
    names = ("pages", "method", "K or R", "TTFT, over prefix", "agrees")
    knobs = tuple(
        (row.stage, family, int(knob), row.ttft, row.agrees)
        for row in found.stages
        for family, _, knob in [row.method.partition("-")]
        if row.stage in MPIC and knob.isdigit()
    )
    plots = tuple(Plot("K or R", name, "method", split="pages", doubling=True) for name in names[3:])
    yield Table("knobs", "K of MPIC and R % of CacheBlend, ten pictures", "", names, knobs, plots)
    names = ("traffic", "method", "requests a second", "TTFT p50 ms")
    rates = tuple(
        (f"{row.engine}: {row.stage}", row.method, row.rate, row.ttft_p50_ms)
        for row in found.rates
        if row.rate and row.method in RATED and row.stage in DRAWN
    )
    plots = (Plot(names[2], names[3], "method", split="traffic", doubling=True),)
    yield Table("rates", "First tokens by requests a second", "", names, rates, plots)
