"""The tables and pictures of the page of load, made of its JSON file; its words are written by hand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.blocks import write_blocks
from benchmarks.intervals import Interval
from benchmarks.load.bars import beside_prefix
from benchmarks.load.figures import Figures, by_method
from benchmarks.load.stages import AUTO, ENGINE, FIRST, MPIC, PREFIX, SIX
from benchmarks.plots import draw_table
from benchmarks.table import Bar, Cell, Plot, Table, cell_text, table_markdown
from benchmarks.window.page import Row, pivot

NAME = "load"
LEADS = (PREFIX, "full-reuse", "mpic-32", "cacheblend-15", "patch-25%", AUTO)
"""Methods of MPIC's stages in the table; the picture has every K and R."""
RATED = (PREFIX, "mpic-32", AUTO)
"""Methods at rates in the picture."""
DRAWN = ("subsets", "subsets-large")
"""Traffic at rates in the picture."""


def write_load_page(found: Figures, folder: Path) -> Path:
    """Make the tables of `load.md` in a folder, and its pictures; returns the page's path."""
    for table in pictures(found):
        draw_table(table, NAME, folder)
    return write_blocks(folder / f"{NAME}.md", "Load", blocks(found))


def blocks(found: Figures) -> dict[str, str]:
    """Return the tables of the page by the names of their blocks."""
    made = {
        f"{part} bounds": bounds([bar for bar in found["bars"] if bar["part"] == part])
        for part in ("stages", "rates", "decoding")
    }
    for engine, stage in dict.fromkeys((row["engine"], row["stage"]) for row in found["stages"]):
        if stage in SIX:
            made[stage if engine == ENGINE else f"{engine} {stage}"] = _stage(by_method(found["stages"], engine, stage))
    made |= {"knobs": _knobs(found), "rates": _rates(found["rates"]), FIRST: _first(found), "runs": _runs(found)}
    return {name: text for name, text in made.items() if text}


def bounds(bars: Sequence[Row]) -> str:
    """Return bounds by stage: a row for each bound, a column for each stage; a missed one is in bold."""
    several = len({bar["engine"] for bar in bars}) > 1

    def down(bar: Row) -> tuple[str]:
        return (f"{bar['name']} {'≥' if bar['least'] else '≤'} {bar['bound']:g}{' (aim)' * bar['aim']}",)

    def across(bar: Row) -> str:
        return f"{bar['engine']}: {bar['stage']}" if several else str(bar["stage"])

    def cell(bar: Row) -> str:
        text = "nothing" if bar["value"] is None else cell_text(float(bar["value"]))
        return text if Bar(bar["name"], bar["value"], bar["bound"], bar["least"]).holds else f"**{text}**"

    return pivot(bars, ("`auto`",), down, across, cell) if bars else ""


def _made(columns: Sequence[str], rows: Iterable[tuple[Cell, ...]]) -> str:
    found = tuple(rows)
    return table_markdown(Table("made", "", "", tuple(columns), found)) if found else ""


def _stage(rows: Mapping[str, Row]) -> str:
    first, *others = rows.values()
    words = f"{first['requests']} requests of {first['prompt_rows']:,.0f} rows; "
    words += f"TTFT of `{first['method']}`: {first['ms']:.0f} ms."
    lines = [
        (
            *(row[name] for name in ("method", "rows", "ran", "ttft", "throughput")),
            Interval(row["agrees"], row["low"], row["high"]),
        )
        for row in others
    ]
    return f"{words}\n\n" + _made(("method", "rows", "rows run", "TTFT", "throughput", "agrees"), lines)


def _knobs(found: Figures) -> str:
    """Return MPIC's stages side by side."""
    both = [by_method(found["stages"], ENGINE, stage) for stage in MPIC]
    lines = [
        (name, *(rows[name][figure] for rows in both for figure in ("ttft", "ran", "agrees")))
        for name in LEADS
        if all(name in rows for rows in both)
    ]
    return _made(("method", *(f"{stage}: {name}" for stage in MPIC for name in ("TTFT", "rows", "agrees"))), lines)


def _rates(rates: Sequence[Row]) -> str:
    """Return `auto` beside the prefix cache: one request after another, at the most, and processor time."""
    by: dict[str, list[Row]] = {}
    for row in rates:
        by.setdefault(f"{row['engine']}: {row['stage']}", []).append(row)
    lines: list[tuple[Cell, ...]] = []
    for traffic, rows in by.items():
        auto, other = beside_prefix(rows)
        if auto and other:
            both = (other, auto)
            alone = [own[0]["ttft_p50_ms"] if own[0]["rate"] == 0 else None for own in both]
            most = [max(row["answers_s"] for row in own) for own in both]
            spent = [min(row["processor_ms"] for row in own) for own in both]
            lines.append((traffic, *alone, *most, *spent, min(row["agrees"] for row in auto)))
    names = (f"{name} {method}" for name in ("ms", "answers/s", "processor ms") for method in (PREFIX, AUTO))
    return _made(("traffic", *names, "agrees"), lines)


def _first(found: Figures) -> str:
    lines = [
        (row["engine"], row["method"], Interval(row["ms"], row["ms_least"], row["ms_most"]), row["ttft"], row["rows"])
        for row in found["stages"]
        if row["stage"] == FIRST
    ]
    return _made(("engine", "method", "ms, least to most", "of the first", "rows computed"), lines)


def _runs(found: Figures) -> str:
    by: dict[tuple[str, ...], list[float]] = {}
    for run in found["runs"]:
        loads = by.setdefault((f"`{run['command']}`", run["model"], run["date"], run["device"]), [])
        loads += map(float, run["load"].split(" to "))
    lines = [(*about, f"{min(loads)} to {max(loads)}") for about, loads in by.items()]
    machines = {run["device"] for run in found["runs"]}
    if len(machines) == 1:
        table = _made(("command", "model", "date", "load average"), [(*line[:3], line[4]) for line in lines])
        return f"Machine: {machines.pop()}.\n\n{table}"
    return _made(("command", "model", "date", "machine", "load average"), lines)


def pictures(found: Figures) -> Iterator[Table]:
    """Yield tables whose plots are the page's pictures."""
    names: tuple[str, ...] = ("requests seen", "rows computed, of the prompt's", "TTFT, over full", "stage")
    own = [row for row in found["stretches"] if row["engine"] == ENGINE]
    if len({row["seen"] for row in own}) > 1:
        curve = tuple((row["seen"], row["rows"], row["ttft"], row["stage"]) for row in own)
        plots = tuple(Plot(names[0], name, "stage") for name in names[1:3])
        yield Table("stretches", "auto by requests seen", "", names, curve, plots)
    names = ("pages", "method", "K or R", "TTFT, over prefix", "agrees")
    knobs = tuple(
        (row["stage"], family, int(knob), row["ttft"], row["agrees"])
        for row in found["stages"]
        for family, _, knob in [row["method"].partition("-")]
        if row["stage"] in MPIC and knob.isdigit()
    )
    plots = tuple(Plot("K or R", name, "method", split="pages", doubling=True) for name in names[3:])
    yield Table("knobs", "K of MPIC and R % of CacheBlend, ten pictures", "", names, knobs, plots)
    names = ("traffic", "method", "requests a second", "TTFT p50 ms")
    rates = tuple(
        (f"{row['engine']}: {row['stage']}", row["method"], row["rate"], row["ttft_p50_ms"])
        for row in found["rates"]
        if row["rate"] and row["method"] in RATED and row["stage"] in DRAWN
    )
    plots = (Plot(names[2], names[3], "method", split="traffic", doubling=True),)
    yield Table("rates", "First tokens by requests a second", "", names, rates, plots)
